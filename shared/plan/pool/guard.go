package pool

import "math"

// slop absorbs rounding in sums of seconds.
const slop = 1e-6

// After is the state after running c for the whole tick of v: work and warm-up left, in seconds, if the instance
// is not lost.
func (j Job) After(v View, c Choice) (work, warmup float64) {
	if c.Mode == Idle {
		return v.Work, 0 // a warm-up given up is lost
	}
	warm := v.Warmup
	if v.Launches(c) {
		warm = j.Delay
	}
	burn := math.Min(warm, j.Tick)
	work, warmup = math.Max(v.Work-(j.Tick-burn), 0), warm-burn
	if warmup < 1e-3 {
		warmup = 0
	}
	return work, warmup
}

// Allowed reports whether c leaves the deadline reachable by on-demand from the next tick on, whatever spot does.
// It is exact: if it is false, the future in which spot never comes back misses the deadline.
func (j Job) Allowed(v View, c Choice) bool {
	work, warmup := j.After(v, c)
	if work <= slop {
		return true
	}
	need := work + j.Delay
	if c.Mode == OnDemand {
		need = work + warmup
	}
	return need <= j.End()-float64(v.T+1)*j.Tick+slop
}

// Guard returns c where it is allowed and on-demand where it is not. If the job was promisable and every tick
// went through Guard, it makes its deadline whatever spot does and whatever the choices were.
func (j Job) Guard(v View, c Choice) Choice {
	if j.Allowed(v, c) {
		return c
	}
	return Choice{OnDemand, -1}
}

// Guarded lays the guard over a rule.
func Guarded(j Job, r Rule) Rule { return guarded{j, r} }

type guarded struct {
	job  Job
	rule Rule
}

func (g guarded) Choose(v View) Choice {
	c := g.rule.Choose(v)
	if c.Mode == Spot && (c.Zone < 0 || c.Zone >= len(v.Up) || !v.Up[c.Zone]) {
		c = Choice{Idle, -1} // what really would run is what must be judged
	}
	return g.job.Guard(v, c)
}
