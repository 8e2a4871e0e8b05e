package simulate

import (
	"math"

	"lowtide/shared/plan/pool"
)

// Outcome is what one job came to.
type Outcome struct {
	Cost     float64 // $; whole ticks, the last one too
	Finish   float64 // seconds from the start, to the second; the trace's end if the job did not finish
	Missed   bool    // later than the deadline floored to the grid
	Open     bool    // not done when the trace ended
	Launches int
	Moves    int // launches that went from spot in one zone to spot in another
	Invalid  int // ticks in which spot was asked for where it was not up; they ran idle
}

// Play runs a job under a rule from tick start on. up holds the availability of each zone, all on one clock and
// equally long. The rule is asked once a tick; a late job goes on until it is done or the trace ends.
func Play(j pool.Job, r pool.Rule, up [][]bool, start int) Outcome {
	return PlayAt(j, r, up, start, func(int, int) float64 { return j.Spot })
}

// PlayAt is Play where spot costs what price says of a zone and a tick, $/h; the rule knows j.Spot alone.
func PlayAt(j pool.Job, r pool.Rule, up [][]bool, start int, price func(zone, at int) float64) Outcome {
	var o Outcome
	v := pool.View{Up: make([]bool, len(up)), Zone: -1, Work: j.Work}
	for ; v.Work > 1e-6; v.T++ {
		at := start + v.T
		if at >= len(up[0]) {
			o.Missed, o.Open, o.Finish = true, true, float64(v.T)*j.Tick
			return o
		}
		for z := range up {
			v.Up[z] = up[z][at]
		}
		if v.Mode == pool.Spot && !v.Up[v.Zone] {
			v.Mode, v.Zone, v.Warmup = pool.Idle, -1, 0
		}
		o.tick(j, &v, r.Choose(v), func(zone int) float64 { return price(zone, at) })
	}
	o.Missed = o.Finish > j.End()+1e-6
	return o
}

// tick books one tick of c and moves v to its end.
func (o *Outcome) tick(j pool.Job, v *pool.View, c pool.Choice, spot func(zone int) float64) {
	if c.Mode == pool.Spot && (c.Zone < 0 || c.Zone >= len(v.Up) || !v.Up[c.Zone]) {
		c = pool.Choice{Mode: pool.Idle, Zone: -1}
		o.Invalid++
	}
	if c.Mode != pool.Spot {
		c.Zone = -1
	}
	warm := v.Warmup
	if v.Launches(c) {
		o.Launches++
		warm = j.Delay
		if v.Mode == pool.Spot && c.Mode == pool.Spot {
			o.Moves++
		}
	}
	work, warmup := j.After(*v, c)
	if work <= 1e-6 {
		o.Finish = float64(v.T)*j.Tick + warm + v.Work
	}
	switch c.Mode {
	case pool.Spot:
		o.Cost += spot(c.Zone) * j.Tick / 3600
	case pool.OnDemand:
		o.Cost += j.OnDemand * j.Tick / 3600
	}
	v.Mode, v.Zone, v.Work, v.Warmup = c.Mode, c.Zone, work, warmup
}

// Starts lists where the windows of a set begin: n starts spread evenly over a trace of length ticks, so that
// each job has its whole time. A single window begins at 0. It is nil where the trace is too short.
func Starts(length, ticks, n int) []int {
	room := length - ticks - 2
	if room < 0 || n < 1 {
		return nil
	}
	if n == 1 {
		return []int{0}
	}
	starts := make([]int, n)
	for i := range starts {
		starts[i] = int(math.Floor(float64(i) * float64(room) / float64(n-1)))
	}
	return starts
}

// History is what may be known of each zone before a job: at most 7 days, newest last.
func History(up [][]bool, start int, tick float64) [][]bool {
	from := max(0, start-int(math.Floor(7*24*3600/tick)))
	past := make([][]bool, len(up))
	for z := range up {
		past[z] = up[z][from:start]
	}
	return past
}
