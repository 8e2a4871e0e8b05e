package pool

import "math"

// Optimum is the least cost in $ of j when the availability of every zone is known in advance: up[z][t] for each
// tick t up to the deadline (later ticks are not read, missing ones count as down). It is +Inf where no plan
// makes the deadline. It bounds every policy and is none itself.
//
// It is a dynamic programme over (tick, mode, slack), exact on the grid of the greatest common divisor of tick,
// delay and work in whole seconds; a launch takes its delay at once, which only runs shorter than the delay
// could tell from the tick simulator, and those never pay.
func Optimum(j Job, up [][]bool) float64 {
	g, d, w := int(math.Round(j.Tick)), int(math.Round(j.Delay)), int(math.Round(j.Work))
	u := gcd(g, gcd(d, w))
	o := &optimum{job: j, up: up, g: g / u, d: d / u, n: j.Ticks()}
	o.slack = o.n*o.g - w/u
	if o.slack < 0 {
		return math.Inf(1)
	}
	return o.solve() * j.Tick / 3600
}

type optimum struct {
	job   Job
	up    [][]bool
	g, d  int // tick and delay in units
	n     int // ticks to the deadline
	slack int // at the start, in units: time left less work left
}

// solve sweeps from the deadline to the start; a row is indexed by the slack that is left. Running keeps the
// slack, waiting costs a tick of it, a launch costs the delay.
func (o *optimum) solve() float64 {
	zones := len(o.up)
	const idle, onDemand = 0, 1 // then the zones
	next, now := o.rows(zones+2), o.rows(zones+2)
	for t := o.n - 1; t >= 0; t-- {
		// With slack at least the time left there is no work left: 0 from there on.
		end := min(o.slack+1, (o.n-t)*o.g)
		best := now[idle][:end]
		for s := range best[:min(o.g, end)] {
			best[s] = math.Inf(1)
		}
		if end > o.g {
			copy(best[o.g:], next[idle])
		}
		lower(best, next[onDemand], o.d, o.job.OnDemand)
		for z := range zones {
			if o.at(z, t) {
				lower(best, next[o.survives(z, t+1)], o.d, o.job.Spot)
			}
		}
		copy(now[onDemand], best)
		lower(now[onDemand][:end], next[onDemand], 0, o.job.OnDemand)
		for z := range zones {
			if o.at(z, t) { // else nobody can be in this mode, and survives never says so
				copy(now[2+z], best)
				lower(now[2+z][:end], next[o.survives(z, t+1)], 0, o.job.Spot)
			}
		}
		for m := range now {
			clear(now[m][end:])
		}
		next, now = now, next
	}
	return next[idle][o.slack]
}

// lower lowers best to the cost of a tick at price and then next, with delay less slack.
func lower(best, next []float64, delay int, price float64) {
	if delay >= len(best) {
		return
	}
	best = best[delay:]
	next = next[:len(best)]
	for s, v := range next {
		if c := price + v; c < best[s] {
			best[s] = c
		}
	}
}

func (o *optimum) at(z, t int) bool { return t < len(o.up[z]) && o.up[z][t] }

// survives is the row of a job that ran in zone z until tick t begins.
func (o *optimum) survives(z, t int) int {
	if o.at(z, t) {
		return 2 + z
	}
	return 0
}

// rows are the values at the deadline: 0, for with slack left at that moment no work is.
func (o *optimum) rows(n int) [][]float64 {
	rows := make([][]float64, n)
	for m := range rows {
		rows[m] = make([]float64, o.slack+1)
	}
	return rows
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
