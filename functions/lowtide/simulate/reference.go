package simulate

import (
	"math"
	"slices"
	"sync"

	"lowtide/shared/plan/pool"
)

// The reference is the best online policy that was published to us with its numbers: the least expected cost where
// the chance that a run or an outage ends depends on its age, in nine buckets, counted on the whole of the other
// zones (for several zones: on the last week of all of them over lowtide's prior). It is played beside lowtide's own
// so that both are judged on the same windows.

// bounds of its age buckets, in plan ticks of about ten minutes
var ageFrom = []int{1, 2, 3, 5, 9, 17, 33, 65, 129}

const (
	buckets  = 9
	planTick = 600.0 // s, about
	workUnit = 120.0 // s, about
)

func ageBucket(age int) int {
	b := buckets - 1
	for b > 0 && ageFrom[b] > age {
		b--
	}
	return b
}

// tally counts, by up (1) or down (0) and age bucket, the plan ticks seen and how they went on.
type tally struct{ exposure, end, advance [2][buckets]float64 }

// count walks a sequence of ticks in plan ticks of f ticks, in all f phases with weight 1/f.
func count(seq []bool, f int) (c tally) {
	w := 1 / float64(f)
	for phase := range f {
		age := 1
		for i := phase; i+f < len(seq); i += f {
			z, b := side(seq[i]), ageBucket(age)
			c.exposure[z][b] += w
			if seq[i+f] != seq[i] {
				c.end[z][b] += w
				age = 1
				continue
			}
			age++
			if ageBucket(age) != b {
				c.advance[z][b] += w
			}
		}
	}
	return c
}

func side(up bool) int {
	if up {
		return 1
	}
	return 0
}

func (c *tally) add(o tally, scale float64) { c.addSide(o, scale, 0); c.addSide(o, scale, 1) }

func (c *tally) addSide(o tally, scale float64, z int) {
	for b := range buckets {
		c.exposure[z][b] += scale * o.exposure[z][b]
		c.end[z][b] += scale * o.end[z][b]
		c.advance[z][b] += scale * o.advance[z][b]
	}
}

// scaled is the tally at a total exposure of n plan ticks.
func (c tally) scaled(n float64) (out tally) {
	sum := 0.0
	for z := range 2 {
		for b := range buckets {
			sum += c.exposure[z][b]
		}
	}
	if sum > 0 {
		out.add(c, n/sum)
	}
	return out
}

// chances are the smoothed chances a plan tick: of an end, and of moving to the next bucket if it does not end.
type chances struct{ end, grow [2][buckets]float64 }

func (c tally) chances() (h chances) {
	for z := range 2 {
		ends, all := 0.5, 5.0
		for b := range buckets {
			ends, all = ends+c.end[z][b], all+c.exposure[z][b]
		}
		for b := range buckets {
			h.end[z][b] = (c.end[z][b] + 3*ends/all) / (c.exposure[z][b] + 3)
			if b+1 < buckets {
				width := float64(ageFrom[b+1] - ageFrom[b])
				h.grow[z][b] = math.Min(1, (c.advance[z][b]+3/width)/(c.exposure[z][b]-c.end[z][b]+3))
			}
		}
	}
	return h
}

// aged is the reference's value table: cost of the rest, in plan ticks on spot, by plan ticks left and work left
// (with outstanding warm-up) in units. +Inf is a state that can miss.
type aged struct {
	h           chances
	another     float64 // chance that another zone is up in the tick in which the followed one is lost
	f, q, delta int     // ticks a plan tick, units a plan tick, units a launch
	unit, k     float64
	left        [][][]float32 // [plan ticks left][slot][units]
}

// slot numbers the 45 pairs of mode, side and bucket.
func slot(m pool.Mode, z, b int) int {
	switch m {
	case pool.OnDemand:
		return (2+z)*buckets + b
	case pool.Spot:
		return 4*buckets + b
	}
	return z*buckets + b
}

func newAged(j pool.Job, h chances, another float64) *aged {
	f := int(math.Max(1, math.Round(planTick/j.Tick)))
	tick := float64(f) * j.Tick
	q := int(math.Max(1, math.Round(tick/workUnit)))
	a := &aged{h: h, another: another, f: f, q: q, unit: tick / float64(q), k: j.OnDemand / j.Spot}
	a.delta = int(math.Ceil(j.Delay/a.unit - 1e-9))
	for n := range j.Ticks()/f + 1 {
		a.left = append(a.left, make([][]float32, 5*buckets))
		for s := range a.left[n] {
			a.left[n][s] = make([]float32, n*q+1)
			if n > 0 {
				a.fill(n, s)
			}
		}
	}
	return a
}

// at is the value of a slot; 0 without work, +Inf beyond what can be done.
func (a *aged) at(n, s, r int) float64 {
	switch {
	case r <= 0:
		return 0
	case r > n*a.q:
		return math.Inf(1)
	}
	return float64(a.left[n][s][r])
}

func (a *aged) fill(n, s int) {
	m, z, b := pool.Idle, s/buckets, s%buckets
	switch {
	case s >= 4*buckets:
		m, z = pool.Spot, 1
	case s >= 2*buckets:
		m, z = pool.OnDemand, z-2
	}
	row := a.left[n][s]
	for r := 1; r < len(row); r++ {
		least := math.Inf(1)
		for _, x := range a.options(n, m, z, b, r, r+a.delta, r) {
			least = math.Min(least, x)
		}
		row[r] = float32(least)
	}
}

// options are the costs of idle, on-demand and spot for one plan tick with n left, given the units left when going
// on in the running mode and when launching.
func (a *aged) options(n int, m pool.Mode, z, b, stay, launch, idle int) [3]float64 {
	need := func(to pool.Mode) int {
		if to == m {
			return stay - a.q
		}
		return launch - a.q
	}
	out := [3]float64{
		a.expect(n-1, pool.Idle, z, b, idle),
		a.k + a.expect(n-1, pool.OnDemand, z, b, need(pool.OnDemand)), math.Inf(1),
	}
	if z == 1 {
		out[2] = 1 + a.expect(n-1, pool.Spot, z, b, need(pool.Spot))
	}
	return out
}

// expect is the mean of the next plan tick; what some outcome could miss is +Inf, however rare.
func (a *aged) expect(n int, m pool.Mode, z, b, r int) float64 {
	if r <= 0 {
		return 0
	}
	ended := m
	if m == pool.Spot {
		ended = pool.Idle
	}
	h, grow := a.h.end[z][b], a.h.grow[z][b]
	over := a.at(n, slot(ended, 1-z, 0), r)
	if z == 1 && a.another > 0 {
		over = (1-a.another)*over + a.another*a.at(n, slot(ended, 1, 0), r)
	}
	on := a.at(n, slot(m, z, b), r)
	if math.IsInf(over, 1) || math.IsInf(on, 1) {
		return math.Inf(1)
	}
	if grow > 0 {
		next := a.at(n, slot(m, z, b+1), r)
		if math.IsInf(next, 1) {
			return next
		}
		on = (1-grow)*on + grow*next
	}
	return h*over + (1-h)*on
}

// reference plays the table over one zone or several.
type reference struct {
	job   pool.Job
	table *aged
	ages  []int // ticks in its present state, by zone; the sign is up or down
	dark  int   // ticks since any zone was up
}

func (p *reference) see(up []bool) {
	p.dark++
	for z, u := range up {
		switch {
		case u && p.ages[z] > 0:
			p.ages[z]++
		case u:
			p.ages[z] = 1
		case p.ages[z] < 0:
			p.ages[z]--
		default:
			p.ages[z] = -1
		}
		if u {
			p.dark = 0
		}
	}
}

// Choose implements pool.Rule.
func (p *reference) Choose(v pool.View) pool.Choice {
	p.see(v.Up)
	follow := -1
	for z, age := range p.ages {
		if age > 0 && (follow < 0 || age > p.ages[follow]) {
			follow = z
		}
	}
	if v.Mode == pool.Spot {
		follow = v.Zone
	}
	return p.job.Guard(v, p.choose(v, follow))
}

func (p *reference) choose(v pool.View, follow int) pool.Choice {
	a, side, age := p.table, 0, p.dark
	if follow >= 0 {
		side, age = 1, p.ages[follow]
	}
	n := (p.job.Ticks() - v.T) / a.f
	units := func(s float64) int { return int(math.Ceil(s/a.unit - 1e-9)) }
	best, least := v.Mode, math.Inf(1)
	if v.Mode != pool.Spot {
		best = pool.OnDemand
	}
	if n > 0 {
		b := ageBucket((age + a.f - 1) / a.f)
		o := a.options(n, v.Mode, side, b, units(v.Work+v.Warmup), units(v.Work+p.job.Delay), units(v.Work))
		for _, x := range []struct {
			m    pool.Mode
			cost float64
		}{{pool.Spot, o[2]}, {pool.Idle, o[0]}, {pool.OnDemand, o[1]}} { // ties go to spot, then to waiting
			if x.cost < least {
				best, least = x.m, x.cost
			}
		}
	}
	if best == pool.Spot {
		return pool.Choice{Mode: best, Zone: follow}
	}
	return pool.Choice{Mode: best, Zone: -1}
}

// Reference is the reference policy. It keeps the tables of the last few zones.
func Reference() Policy {
	c := &cache{}
	return Policy{Name: "reference", See: func(j pool.Job, g Group, start int) pool.Rule {
		history := History(g.Up, start, j.Tick)
		p := &reference{job: j, ages: make([]int, len(g.Up))}
		up := make([]bool, len(g.Up))
		for t := range history[0] {
			for z := range history {
				up[z] = history[z][t]
			}
			p.see(up)
		}
		if len(g.Up) > 1 {
			p.table = newAged(j, together(j, history), moves(history))
			return p
		}
		p.table = c.get(cacheKey{j, g.Name}, func() *aged {
			var all tally
			for _, o := range g.Others {
				all.add(count(o, planTicks(j)).scaled(1000), 1)
			}
			return newAged(j, all.chances(), 0)
		})
		return p
	}}
}

func planTicks(j pool.Job) int { return int(math.Max(1, math.Round(planTick/j.Tick))) }

// together are the chances for several zones: of runs from every zone's last week, of outages from all zones' at once.
func together(j pool.Job, history [][]bool) chances {
	f := planTicks(j)
	c := priorTally().scaled(150)
	any := make([]bool, len(history[0]))
	for _, h := range history {
		own := count(h, f)
		c.addSide(own, 1, 1)
		for t, u := range h {
			any[t] = any[t] || u
		}
	}
	c.addSide(count(any, f), 1, 0)
	return c.chances()
}

// priorTally is what lowtide's own prior expects of a zone at level one half, as counts.
func priorTally() (c tally) {
	for z := range 2 {
		alive := 100.0
		for b := range buckets {
			width := 3 * ageFrom[b]
			if b+1 < buckets {
				width = ageFrom[b+1] - ageFrom[b]
			}
			for i := range width {
				end := alive * pool.Prior(z == 1, float64(ageFrom[b]+i))
				c.exposure[z][b] += alive
				c.end[z][b] += end
				alive -= end
			}
			if b+1 < buckets {
				c.advance[z][b] = alive
			}
		}
	}
	return c
}

// moves is the chance that when the zone that is followed is lost another is up in that same tick.
func moves(history [][]bool) float64 {
	lost, moved := 0.0, 0.0
	ages, follow := make([]int, len(history)), -1
	for t := range history[0] {
		top := -1
		for z := range history {
			ages[z]++
			if !history[z][t] {
				ages[z] = 0
			}
			if ages[z] > 0 && (top < 0 || ages[z] > ages[top]) {
				top = z
			}
		}
		if follow >= 0 && ages[follow] == 0 {
			lost++
			if top >= 0 {
				moved++
			}
			follow = -1
		}
		if follow < 0 {
			follow = top
		}
	}
	return (1 + moved) / (2 + lost)
}

// cache keeps the last few tables: a table of 70 hours takes 80 MB.
type cache struct {
	mu   sync.Mutex
	keys []cacheKey
	kept []*aged
}

type cacheKey struct {
	job  pool.Job
	zone string
}

func (c *cache) get(k cacheKey, make func() *aged) *aged {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.keys, k); i >= 0 {
		return c.kept[i]
	}
	if len(c.keys) == 3 {
		c.keys, c.kept = c.keys[1:], c.kept[1:]
	}
	a := make()
	c.keys, c.kept = append(c.keys, k), append(c.kept, a)
	return a
}
