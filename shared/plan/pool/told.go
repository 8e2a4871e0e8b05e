package pool

import (
	"context"
	"math"
)

// Told is what an oracle whispers to a Planner: studies use it to measure what not knowing the future costs. Each
// part may be nil. Times are in ticks, the present one counted; t is the tick from the job's start.
type Told struct {
	Life func(t, zone int) int // for how long a zone that is up stays up
	Back func(t int) int       // until some zone is up, while none is
	Best func(t int) int       // the zone to launch in, of those that are up
}

// Tell makes the planner one that knows w. The guard holds as ever.
func (p *Planner) Tell(w Told) { p.told = w }

// ahead are the values a planner goes on with once what it was told has come to pass.
type ahead struct {
	tables []*table
	shares []float64 // of each table
	next   []edge    // states the market is then in, with their chances
}

// value is the mean cost of a mode with left seconds to the deadline and slack x.
func (a ahead) value(m Mode, left, x float64) float64 {
	sum, all := 0.0, 0.0
	for n, t := range a.tables {
		for _, e := range a.next {
			v := 0.0
			if m == OnDemand {
				v = t.demanded(e.to, left/t.step, x)
			} else {
				v = t.read(t.idle(e.to), left/t.step, x)
			}
			if a.shares[n] == 0 {
				continue
			}
			sum += a.shares[n] * float64(e.p) * v
			all += a.shares[n] * float64(e.p)
		}
	}
	return sum / all
}

// foreseen prices the actions when the market's state is sure to last for span seconds; up: it is a run.
func (a ahead) foreseen(m moment, span float64, up bool) costs {
	t := a.tables[0]
	c := costs{math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)}
	plain := m.left - m.work - t.delay // slack if what runs is given up
	if plain >= span {
		c.wait = a.value(Idle, m.left-span, plain-span)
	}
	warm := t.delay
	if m.mode == OnDemand {
		warm = m.warmup
	}
	c.onDemand = (m.work + warm) / t.step
	if m.work+warm > span {
		c.onDemand = span/t.step + a.value(OnDemand, m.left-span, plain-warm)
	}
	if !up {
		return c
	}
	ride := func(warm float64) float64 {
		if m.work+warm <= span {
			return (m.work + warm) / t.step / t.k
		}
		x := plain - math.Min(warm, span)
		if x < 0 {
			return math.Inf(1)
		}
		return span/t.step/t.k + a.value(Idle, m.left-span, x)
	}
	c.launch = ride(t.delay)
	if m.mode == Spot {
		c.stay = ride(m.warmup)
	}
	return c
}

// knowing chooses by what was told of the lengths of runs and outages; false if nothing was told of this moment.
func (p *Planner) knowing(v View, m moment) (Choice, bool) {
	tick := p.job.Tick
	switch {
	case !v.Any() && p.told.Back != nil:
		span := tick * float64(p.told.Back(v.T))
		return p.ahead(-1).foreseen(m, span, false).pick(v, -1), true
	case !v.Any() || p.told.Life == nil:
		return Choice{}, false
	}
	longest, zone := 0.0, -1
	best, least := Choice{Idle, -1}, math.Inf(1)
	take := func(c Choice, cost float64) {
		if cost < least {
			best, least = c, cost
		}
	}
	for z, up := range v.Up {
		if !up {
			continue
		}
		life := tick * float64(p.told.Life(v.T, z))
		if life > longest {
			longest, zone = life, z
		}
		c := p.ahead(z).foreseen(m, life, true)
		if v.Mode == Spot && z == v.Zone {
			take(v.Stay(), c.stay)
			continue
		}
		take(Choice{Spot, z}, c.launch)
	}
	c := p.ahead(zone).foreseen(m, longest, true)
	take(Choice{Idle, -1}, c.wait)
	take(Choice{OnDemand, -1}, c.onDemand)
	return best, true
}

// ahead is where the market goes when a zone's run ends, or, for zone -1, when an outage does.
func (p *Planner) ahead(zone int) ahead {
	if p.joint == nil {
		return p.aheadAlone(zone < 0)
	}
	if zone < 0 {
		return ahead{[]*table{p.joint}, []float64{1}, []edge{{to: upState(0, 0), p: 1}}}
	}
	other := 0.0
	for z, m := range p.zones {
		if z != zone && m.Up {
			other = math.Max(other, m.steps(p.reach.step))
		}
	}
	var lost []edge
	for _, e := range p.joint.chain.edges[upState(0, class(other))] {
		if e.lost {
			lost = append(lost, e)
		}
	}
	return ahead{[]*table{p.joint}, []float64{1}, lost}
}

// aheadAlone is ahead for a lone zone, at the level it has now.
func (p *Planner) aheadAlone(began bool) ahead {
	lo, hi, share := around(p.zones[0].Level())
	a := ahead{shares: []float64{1 - share, share}, next: []edge{{to: 0, p: 1}}}
	if began {
		a.next[0].to = len(fineAges)
	}
	for _, l := range []int{lo, hi} {
		t, _ := p.tables.solved(context.Background(), key{p.reach, levels[l]}) // ends only with its context
		a.tables = append(a.tables, t)
	}
	return a
}
