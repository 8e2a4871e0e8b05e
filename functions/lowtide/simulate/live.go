package simulate

import (
	"strconv"

	"lowtide/shared/plan/pool"
)

// Live is how lowtide decides where it runs: at any moment, from tables that all workloads share, about pools of which no
// common history is kept. What it costs beyond "lowtide", which solves tables for the one job, is what sharing them costs.
func Live() Policy {
	by := pool.Solving{Tables: pool.NewTables(tableMemory)}
	return Policy{Name: "live", Make: func(j pool.Job, history [][]bool) pool.Rule {
		l := &live{job: j, by: by, zones: make([]pool.Zone, len(history))}
		for z, seen := range history {
			l.zones[z] = pool.Zone{Name: strconv.Itoa(z), Price: j.Spot}
			for _, up := range seen {
				l.zones[z].See(up, j.Tick)
			}
		}
		return l
	}}
}

type live struct {
	job   pool.Job
	by    pool.Solving
	zones []pool.Zone
}

// Choose implements pool.Rule.
func (l *live) Choose(v pool.View) pool.Choice {
	for z, up := range v.Up {
		l.zones[z].See(up, l.job.Tick)
	}
	c := pool.Case{
		Left: l.job.End() - float64(v.T)*l.job.Tick, Work: v.Work, Warmup: v.Warmup, Delay: l.job.Delay, Wake: l.job.Tick,
		Mode: v.Mode, Zone: v.Zone, OnDemand: l.job.OnDemand, Zones: l.zones,
	}
	return l.job.Guard(v, l.by.Decide(c).Choice)
}
