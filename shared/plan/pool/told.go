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
			if a.shares[n] == 0 {
				continue
			}
			v := t.read(t.idle(e.to), left/t.step, x)
			if m == OnDemand {
				v = t.demanded(e.to, left/t.step, x)
			}
			sum += a.shares[n] * float64(e.p) * v
			all += a.shares[n] * float64(e.p)
		}
	}
	return sum / all
}

// spent prices waiting and on-demand while the market's state is sure to last for span seconds.
func (a ahead) spent(m moment, span float64) (wait, onDemand float64) {
	t := a.tables[0]
	plain := m.left - m.work - t.delay // slack if what runs is given up
	wait = math.Inf(1)
	if plain >= span {
		wait = a.value(Idle, m.left-span, plain-span)
	}
	warm := t.delay
	if m.mode == OnDemand {
		warm = m.warmup
	}
	onDemand = (m.work + warm) / t.step
	if m.work+warm > span {
		onDemand = span/t.step + a.value(OnDemand, m.left-span, plain-warm)
	}
	return wait, onDemand
}

// knowing chooses by what was told of the lengths of runs and outages; false if nothing was told of this moment.
func (p *Planner) knowing(v View, m moment) (Choice, bool) {
	tick := p.job.Tick
	switch {
	case !v.Any() && p.told.Back != nil:
		wait, onDemand := p.ahead(-1).spent(m, tick*float64(p.told.Back(v.T)))
		return costs{wait, onDemand, math.Inf(1), math.Inf(1)}.pick(v, -1), true
	case !v.Any() || p.told.Life == nil:
		return Choice{}, false
	}
	r := rides{after: make([]ahead, len(v.Up)), lives: make([]float64, len(v.Up))}
	last := -1
	for z, up := range v.Up {
		if up {
			r.after[z], r.lives[z] = p.ahead(z), tick*float64(p.told.Life(v.T, z))
			if last < 0 || r.lives[z] > r.lives[last] {
				last = z
			}
		}
	}
	best, least := Choice{Idle, -1}, math.Inf(1)
	take := func(c Choice, cost float64) {
		if cost < least {
			best, least = c, cost
		}
	}
	if v.Mode == Spot {
		take(v.Stay(), r.cost(v.Zone, m, m.warmup, 0))
	}
	for z, up := range v.Up {
		if up && (v.Mode != Spot || z != v.Zone) {
			take(Choice{Spot, z}, r.cost(z, m, p.job.Delay, 0))
		}
	}
	wait, onDemand := r.after[last].spent(m, r.lives[last])
	take(Choice{Idle, -1}, wait)
	take(Choice{OnDemand, -1}, onDemand)
	return best, true
}

// rides are runs of known length in several zones, 0 where none is up.
type rides struct {
	after []ahead
	lives []float64 // seconds from now
}

// cost rides a zone to its end from a moment that is since seconds from now, and then another that outlasts it, or goes
// on as best it can.
func (r rides) cost(zone int, m moment, warm, since float64) float64 {
	t, span := r.after[zone].tables[0], r.lives[zone]-since
	if m.work+warm <= span {
		return (m.work + warm) / t.step / t.k
	}
	next := moment{left: m.left - span, work: m.work - math.Max(0, span-warm), mode: Idle}
	x := next.left - next.work - t.delay
	if x < 0 {
		return math.Inf(1)
	}
	on := math.Inf(1) // a zone that outlasts this one is known: what a table hopes of one like it does not count
	for z, life := range r.lives {
		if life > r.lives[zone] {
			on = math.Min(on, r.cost(z, next, t.delay, r.lives[zone]))
		}
	}
	if math.IsInf(on, 1) {
		on = r.after[zone].value(Idle, next.left, x)
	}
	return span/t.step/t.k + on
}

// ahead is where the market goes when a zone's run ends and no other is known to be up, or, for zone -1, when an outage
// ends.
func (p *Planner) ahead(zone int) ahead {
	if p.joint == nil {
		return p.aheadAlone(zone < 0)
	}
	if zone < 0 {
		return ahead{[]*table{p.joint}, []float64{1}, []edge{{to: manyClasses.up(0, 0), p: 1}}}
	}
	var lost []edge
	for _, e := range p.joint.chain.edges[manyClasses.up(0, 0)] {
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
		t, _ := p.tables.solved(context.Background(), key{p.reach, levels[l], 1}) // ends only with its context
		a.tables = append(a.tables, t)
	}
	return a
}
