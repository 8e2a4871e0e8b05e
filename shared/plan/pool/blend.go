package pool

import (
	"context"
	"math"
)

// Many cases share few tables. A table stands for one delay, one price of spot against on-demand and one level of the
// zone, all at the knots of a coarse mesh; a case is read from the knots around it, by the shares in which it lies
// between them: four tables for three measures (the corners of its simplex), and not eight. The cost of any one way to
// act is linear in the price, so between prices little is lost.

// ratios are the knots of spot's price over on-demand's. Above the last spot is no choice, and below it knots lie
// closer where spot begins to lose.
var ratios = []float64{0, 0.2, 0.4, 0.6, 0.8, 0.9, 1, 1.2}

// reaches are the steps to the deadline that tables come in; a table of one serves every shorter time, but solves longer.
var reaches = []int{128, 1024}

const (
	enough   = 288  // steps of slack beyond which more of it is taken to be worth nothing
	brief    = 60.0 // seconds: the shortest delay told apart
	apart    = 1.41 // one knot's delay over the one before
	longNear = 4    // a delay of so many steps needs a grid that is fine for longer
)

// corner is a table that a case is read from, and its share in the answer.
type corner struct {
	key
	share float64
}

// corners are the tables for a zone, at most four; their shares sum to one.
func (c Case) corners(price, level float64) (out [4]corner, n int) {
	h := horizon{step: natural, fine: 3, near: 12, thin: true, left: reaches[len(reaches)-1]}
	left := math.Min(c.Left, c.Work+c.Delay*apart+enough*h.step)
	for left/h.step > float64(h.left) {
		h.step *= 2
	}
	for i := len(reaches) - 1; i >= 0 && float64(reaches[i])*h.step >= left; i-- {
		h.left = reaches[i]
	}
	h.slack = min(h.left, enough)

	delay := math.Log(math.Max(c.Delay, brief)/brief) / math.Log(apart)
	at := [3]float64{delay, place(ratios, price/c.OnDemand), place(levels, level)}
	knot, order := [3]int{}, [3]int{0, 1, 2}
	for i, x := range at {
		knot[i] = int(x)
		at[i] = x - math.Floor(x)
	}
	sortBy(&order, at)
	before := 1.0
	for i := 0; ; i++ {
		share := before
		if i < len(order) {
			share -= at[order[i]]
			before = at[order[i]]
		}
		if share > 1e-6 {
			out[n] = corner{h.knot(knot, min(max(len(c.Zones), 1), 3)), share}
			n++
		}
		if i == len(order) {
			return out, n
		}
		knot[order[i]]++
	}
}

// knot is the table at a knot of the mesh.
func (h horizon) knot(at [3]int, zones int) key {
	h.delay = brief * math.Pow(apart, float64(at[0]))
	h.k = 1 / ratios[min(at[1], len(ratios)-1)]
	if h.delay > longNear*h.step {
		h.near = 40
	}
	return key{h, levels[min(at[2], len(levels)-1)], zones}
}

// place is where x lies among knots: the number of the one below and the share of the way to the next.
func place(knots []float64, x float64) float64 {
	last := len(knots) - 1
	if x >= knots[last] {
		return float64(last)
	}
	for i := last - 1; i >= 0; i-- {
		if x >= knots[i] {
			return float64(i) + (x-knots[i])/(knots[i+1]-knots[i])
		}
	}
	return 0
}

// sortBy puts the measures with the largest shares first.
func sortBy(order *[3]int, share [3]float64) {
	for i := 1; i < len(order); i++ {
		for k := i; k > 0 && share[order[k]] > share[order[k-1]]; k-- {
			order[k], order[k-1] = order[k-1], order[k]
		}
	}
}

// sight is a case's zones as the tables see them.
type sight struct {
	zones  []Zone
	any    bool      // some zone is up
	danger []float64 // log odds that a zone which is up is lost in the next step of natural length
	level  float64   // mean of all
	dark   float64   // since when none is up, s
	back   float64   // chance that this ends within a natural step
}

func look(zones []Zone) sight {
	s := sight{zones: zones, danger: make([]float64, len(zones)), dark: math.Inf(1)}
	none := 1.0
	for z, x := range zones {
		s.level += x.Level() / float64(len(zones))
		s.any = s.any || x.Up
		if x.Up {
			s.danger[z] = odds(upOdds, x.steps(natural)) + upLevel*tilt(x.Level())
			continue
		}
		s.dark = math.Min(s.dark, x.Age)
		none *= 1 - chance(odds(downOdds, x.steps(natural))+downLevel*tilt(x.Level()))
	}
	s.back = 1 - none
	return s
}

// state is the one of a table's market that a zone is ridden from, with what is known better of its next step.
func (s sight) state(z int, t *table) (int, []edge) {
	if len(s.zones) < 2 {
		i := s.zones[z].loneState(t.ages(), t.step)
		return i, t.chain.edges[i]
	}
	if !s.any {
		i := fewClasses.down(bucket(coarseAges, math.Max(1, math.Ceil(s.dark/t.step-1e-9))))
		return i, t.chain.bent(i, scaled(s.back, t.step))
	}
	ordinary := upLevel * tilt(s.level)
	other := 0
	for o, x := range s.zones {
		if o != z && x.Up {
			other = max(other, fewClasses.of(math.Round(ripe(s.danger[o]-ordinary))))
		}
	}
	i := fewClasses.up(bucket(coarseAges, math.Round(ripe(s.danger[z]-ordinary))), other)
	return i, t.chain.bent(i, scaled(chance(s.danger[z]), t.step))
}

// tabled gets a table, or says why there is none.
type tabled func(context.Context, key) (*table, error)

// ride is what it costs, in $, to ride a zone that is up.
func (c Case) ride(ctx context.Context, s sight, z int, v View, get tabled) (float64, error) {
	costs, err := c.blend(ctx, s, z, get, func(t *table, m moment, i int, edges []edge) [2]float64 {
		warm := t.delay
		if v.Stay() == (Choice{Spot, z}) {
			warm = m.warmup
		}
		return [2]float64{t.ride(m, i, edges, t.step, warm), math.Inf(1)}
	})
	return costs[0], err
}

// leave is what waiting and on-demand cost, in $, where a zone is what may be gone on in.
func (c Case) leave(ctx context.Context, s sight, z int, get tabled) (wait, onDemand float64, err error) {
	costs, err := c.blend(ctx, s, z, get, func(t *table, m moment, i int, edges []edge) (out [2]float64) {
		out[0], out[1] = t.leave(m, i, edges, t.step)
		return out
	})
	return costs[0], costs[1], err
}

// blend is the mean of what the tables around a zone say, in $. What is unsafe is what the guard says, not what a table
// of a longer delay does: that one is left out.
func (c Case) blend(ctx context.Context, s sight, z int, get tabled, say func(*table, moment, int, []edge) [2]float64) ([2]float64, error) {
	var sum, seen [2]float64
	corners, n := c.corners(s.zones[z].Price, s.level)
	for _, x := range corners[:n] {
		t, err := get(ctx, x.key)
		if err != nil {
			return sum, err
		}
		i, edges := s.state(z, t)
		for k, cost := range say(t, c.stretched(moment{c.Left, c.Work, c.Warmup, c.Mode}, t), i, edges) {
			if !math.IsInf(cost, 1) {
				sum[k], seen[k] = sum[k]+cost*x.share, seen[k]+x.share
			}
		}
	}
	unit := c.OnDemand * corners[0].step / 3600
	for k := range sum {
		if sum[k] *= unit / seen[k]; seen[k] == 0 {
			sum[k] = math.Inf(1)
		}
	}
	return sum, nil
}

// stretched is the moment as a table of another delay sees it: with the same work and the same slack.
func (c Case) stretched(m moment, t *table) moment {
	m.left += t.delay - c.Delay
	if c.Delay > 0 {
		m.warmup *= t.delay / c.Delay
	}
	// More slack is worth no more, and far from the work that is left the points of a table lie too wide apart.
	m.left = math.Min(m.left, m.work+t.delay+math.Min(float64(t.slack)*t.step*15/16, 2*3600+4*m.work))
	return m
}
