package pool

import (
	"context"
	"math"
)

// Planner is lowtide's own policy on a grid of ticks, under the guard: least expected cost by the age of runs and
// outages, the level of each zone and, with several zones, the best other one. It learns from the history it is
// given and from what it sees, and from nothing else.
type Planner struct {
	job    Job
	tables *Tables
	reach  horizon
	zones  []Memory
	joint  *table    // several zones: solved once, for this job
	level  float64   // mean of the zones at the start
	kin    kin       // several zones
	usual  []float64 // several zones: mean surprise of a zone's kin, by class of the best other
	prompt float64   // several zones: how much faster outages of all ended than anyBack said
	told   Told
	dark   float64 // seconds since any zone was up, the present tick counted
}

// New makes the policy for one job. history holds the availability by zone before the start, newest last, all
// equally long, possibly empty; its length is the number of zones. Tables are taken from and left in t, and a
// cold one is solved at once.
func New(t *Tables, j Job, history [][]bool) *Planner {
	p := &Planner{job: j, tables: t, zones: make([]Memory, max(1, len(history)))}
	p.reach = reach(j.End(), j.End()-j.Work, j.Delay, j.OnDemand/j.Spot, j.Tick)
	if len(p.zones) == 1 {
		for _, h := range history {
			for _, up := range h {
				p.see([]bool{up})
			}
		}
		return p
	}
	p.kin = newKin(len(p.zones))
	p.prepare(history)
	return p
}

// prepare counts a history of several zones and solves their table.
func (p *Planner) prepare(history [][]bool) {
	f := int(math.Max(1, math.Round(p.reach.step/p.job.Tick)))
	ages := make([][]float64, len(history[0]))
	up := make([]bool, len(history))
	usual, seen := make([]float64, len(manyClasses.from)), make([]float64, len(manyClasses.from))
	expected, came := promptDoubt, promptDoubt
	said := make([]float64, len(ages)) // of an outage of all zones: the chance that it ends within a step
	for t := range ages {
		ages[t] = make([]float64, len(history))
		for z := range history {
			up[z] = history[z][t]
		}
		p.see(up)
		for z, m := range p.zones {
			if m.Up {
				ages[t][z] = m.steps(p.reach.step)
			}
		}
		for z, m := range p.zones {
			if m.Up {
				k := manyClasses.of(best(ages[t], z))
				usual[k], seen[k] = usual[k]+p.kin.surprise(z), seen[k]+1
			}
		}
		if p.dark > 0 {
			said[t] = p.anyBack()
		}
		if t >= f && said[t-f] > 0 {
			expected += said[t-f] / float64(f)
			if p.dark == 0 {
				came += 1 / float64(f)
			}
		}
	}
	for k := range usual {
		usual[k] /= seen[k] + usualDoubt
	}
	p.usual, p.prompt = usual, came/expected
	for _, m := range p.zones {
		p.level += m.Level() / float64(len(p.zones))
	}
	p.joint = newTable(p.reach, several(countGroup(ages, len(history), f), p.level, p.usual, p.reach.step))
	_ = p.joint.solve(context.Background()) // ends only with its context
}

func (p *Planner) see(up []bool) {
	any := false
	for z := range p.zones {
		p.zones[z].See(up[z], p.job.Tick)
		any = any || up[z]
	}
	if len(p.zones) > 1 {
		p.kin.see(p.zones, p.job.Tick)
	}
	p.dark += p.job.Tick
	if any {
		p.dark = 0
	}
}

// Choose answers one tick. It is to be asked once for each.
func (p *Planner) Choose(v View) Choice {
	p.see(v.Up)
	m := moment{left: p.job.End() - float64(v.T)*p.job.Tick, work: v.Work, warmup: v.Warmup, mode: v.Mode}
	if c, told := p.knowing(v, m); told {
		return p.job.Guard(v, c)
	}
	if p.joint != nil {
		return p.job.Guard(v, p.among(v, m))
	}
	c, _ := p.tables.weigh(context.Background(), p.reach, p.zones[0], m)
	return p.job.Guard(v, c.pick(v, 0))
}

// pick takes the cheapest action; ties go to spot, then to waiting.
func (c costs) pick(v View, zone int) Choice {
	choice, least := Choice{OnDemand, -1}, c.onDemand
	if c.wait < least {
		choice, least = Choice{Idle, -1}, c.wait
	}
	spot := c.launch
	if v.Mode == Spot {
		spot, zone = c.stay, v.Zone
	}
	if spot <= least && !math.IsInf(spot, 1) {
		choice = Choice{Spot, zone}
	}
	return choice
}

// weigh prices the actions for a lone zone, between the two levels around its own.
func (t *Tables) weigh(ctx context.Context, h horizon, z Memory, m moment) (costs, error) {
	lo, hi, share := around(z.Level())
	a, err := t.solved(ctx, key{h, levels[lo], 1})
	if err != nil {
		return costs{}, err
	}
	i := z.loneState(h.ages(), h.step)
	c := a.weigh(m, i, h.step)
	if share == 0 {
		return c, nil
	}
	b, err := t.solved(ctx, key{h, levels[hi], 1})
	if err != nil {
		return costs{}, err
	}
	return c.mix(b.weigh(m, i, h.step), share), nil
}

// mix goes from c to d by a share. What is unsafe in one is unsafe in both.
func (c costs) mix(d costs, share float64) costs {
	between := func(a, b float64) float64 {
		if math.IsInf(a, 1) || math.IsInf(b, 1) {
			return math.Inf(1)
		}
		return a*(1-share) + b*share
	}
	return costs{between(c.wait, d.wait), between(c.onDemand, d.onDemand), between(c.stay, d.stay), between(c.launch, d.launch)}
}

// among chooses between several zones: by the age at which an ordinary run is as safe as each zone's.
func (p *Planner) among(v View, m moment) Choice {
	danger, first, second := make([]float64, len(v.Up)), -1, -1
	for z, up := range v.Up {
		if !up {
			continue
		}
		danger[z] = p.danger(z)
		switch {
		case first < 0 || danger[z] < danger[first]:
			first, second = z, first
		case second < 0 || danger[z] < danger[second]:
			second = z
		}
	}
	ride := func(z, other int) costs {
		k, level := 0, upLevel*tilt(p.level)
		if other >= 0 {
			k = manyClasses.of(math.Round(ripe(danger[other] - level)))
		}
		i := manyClasses.up(bucket(coarseAges, math.Round(ripe(danger[z]-level-kinUp*p.usual[k]))), k)
		return p.joint.weighBent(m, i, p.joint.chain.bent(i, scaled(chance(danger[z]), p.reach.step)), p.reach.step)
	}
	switch {
	case first < 0:
		i := manyClasses.down(bucket(coarseAges, math.Max(1, math.Ceil(p.dark/p.reach.step-1e-9))))
		end := 1 - math.Pow(1-p.anyBack(), p.prompt)
		return p.joint.weighBent(m, i, p.joint.chain.bent(i, end), p.reach.step).pick(v, -1)
	case v.Mode == Spot:
		other := first
		if other == v.Zone {
			other = second
		}
		return ride(v.Zone, other).pick(v, v.Zone)
	}
	if p.told.Best != nil {
		if z := p.told.Best(v.T); z != first {
			first, second = z, first
		}
	}
	return ride(first, second).pick(v, first)
}

// anyBack is the chance that an outage of all zones ends within a step, were they independent but for their kin.
func (p *Planner) anyBack() float64 {
	none := 1.0
	for z, m := range p.zones {
		w := odds(downOdds, m.steps(p.reach.step)) + downLevel*tilt(m.Level()) + kinDown*p.kin.surprise(z)
		none *= 1 - scaled(chance(w), p.reach.step)
	}
	return 1 - none
}

// danger is the log odds that a zone is lost in the next step, by its age, its level and its kin.
func (p *Planner) danger(z int) float64 {
	m := p.zones[z]
	return odds(upOdds, m.steps(p.reach.step)) + upLevel*tilt(m.Level()) + kinUp*p.kin.surprise(z)
}
