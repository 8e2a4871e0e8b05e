package pool

import (
	"context"
	"math"
)

// known are the chances that a run of spot, or an outage, ends within the next ten minutes, by how long it has lasted
// (the buckets of ages). Measured on the public spot traces published with "Can't Be Late" (NSDI'24), so a figure that
// Aged reaches on those very traces is in part in sample.
var known = [2][]float64{
	{0.270, 0.245, 0.146, 0.084, 0.056, 0.049, 0.032, 0.025, 0.008}, // outages
	{0.263, 0.196, 0.142, 0.079, 0.047, 0.033, 0.018, 0.015, 0.005}, // runs
}

const (
	planStep    = 600.0 // seconds between two decisions of a plan; shorter ones learn the probing, not the market
	priorAlone  = 1000  // steps that the prior counts for when nothing else is known
	priorBeside = 150   // about a day, beside a zone's own last days
	fineGrid    = 3     // grid points a step while slack is small
	nearGrid    = 40    // steps of slack on the fine grid
)

// prior makes a tally of the known hazards: as many runs as outages, followed until they end.
func prior() tally {
	t := newTally()
	for z, hazards := range known {
		alive := 1.0
		for b, h := range hazards {
			if b == len(hazards)-1 {
				t.exposure[z][b], t.end[z][b] = alive/h, alive
				break
			}
			for range ages[b+1] - ages[b] {
				t.exposure[z][b] += alive
				t.end[z][b] += alive * h
				alive *= 1 - h
			}
			t.grow[z][b] = alive
		}
	}
	return t
}

// Aged plans for the least expected cost of one pool, with hazards that depend on the age of the present run or outage:
// the known ones, and what the history shows (availability by tick before the start, newest last). It is solved when it
// is made, in about a second at most, and then holds the exact guard itself.
func Aged(j Job, history []bool) Rule {
	f := max(1, int(math.Round(planStep/j.Tick)))
	weight := float64(priorBeside)
	if len(history) <= f {
		weight = priorAlone
	}
	t, p := newTally(), prior()
	t.add(p, weight/p.total())
	t.add(count(history, f), 1)
	step := float64(f) * j.Tick
	a := &aged{job: j, f: f}
	a.table = newTable(horizon{
		step: step, delay: j.Delay, k: j.OnDemand / j.Spot, left: max(1, int(math.Ceil(j.End()/step))),
		fine: fineGrid, near: nearGrid, slack: int(math.Ceil((j.End()-j.Work)/step)) + 1,
	}, chainOf(t))
	_ = a.table.solve(context.Background()) // fails only when its context ends
	for _, up := range history {
		a.see(up)
	}
	return a
}

type aged struct {
	job   Job
	f     int
	table *table
	up    bool
	age   int // ticks that the present run or outage has lasted
}

func (a *aged) see(up bool) {
	if up != a.up {
		a.up, a.age = up, 0
	}
	a.age++
}

// Choose takes the cheapest action; ties go to spot, then to waiting.
func (a *aged) Choose(v View) Choice {
	up := v.Any()
	a.see(up)
	state := b2i(up)*len(ages) + bucket((a.age+a.f-1)/a.f)
	m := moment{left: a.job.End() - float64(v.T)*a.job.Tick, work: v.Work, warmup: v.Warmup, mode: v.Mode}
	c := a.table.weigh(m, state, a.job.Tick)
	best, least := Choice{OnDemand, -1}, c.onDemand
	if c.wait <= least {
		best, least = Choice{Idle, -1}, c.wait
	}
	if up {
		cost, zone := c.launch, 0
		if v.Mode == Spot {
			cost, zone = c.stay, v.Zone
		}
		for zone < len(v.Up)-1 && !v.Up[zone] {
			zone++
		}
		if cost <= least {
			best = Choice{Spot, zone}
		}
	}
	return a.job.Guard(v, best)
}
