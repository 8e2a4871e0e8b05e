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
func (c Case) corners(zone Zone) (out [4]corner, n int) {
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
	at := [3]float64{delay, place(ratios, zone.Price/c.OnDemand), place(levels, zone.Level())}
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
			out[n] = corner{h.knot(knot), share}
			n++
		}
		if i == len(order) {
			return out, n
		}
		knot[order[i]]++
	}
}

// knot is the table at a knot of the mesh.
func (h horizon) knot(at [3]int) key {
	h.delay = brief * math.Pow(apart, float64(at[0]))
	h.k = 1 / ratios[min(at[1], len(ratios)-1)]
	if h.delay > longNear*h.step {
		h.near = 40
	}
	return key{h, levels[min(at[2], len(levels)-1)]}
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

// weigh prices the actions for one zone, and says what a unit of the prices is in $. What is unsafe is what the guard
// says, not what a table of a longer delay does: that one is left out.
func (c Case) weigh(ctx context.Context, zone Zone, m moment, get func(context.Context, key) (*table, error)) (costs, float64, error) {
	var sum, seen costs
	corners, n := c.corners(zone)
	for _, x := range corners[:n] {
		t, err := get(ctx, x.key)
		if err != nil {
			return costs{}, 0, err
		}
		w := t.weigh(c.stretched(m, t), zone.loneState(t.ages(), t.step), t.step)
		sum.wait, seen.wait = sift(sum.wait, seen.wait, w.wait, x.share)
		sum.onDemand, seen.onDemand = sift(sum.onDemand, seen.onDemand, w.onDemand, x.share)
		sum.stay, seen.stay = sift(sum.stay, seen.stay, w.stay, x.share)
		sum.launch, seen.launch = sift(sum.launch, seen.launch, w.launch, x.share)
	}
	mean := func(sum, seen float64) float64 {
		if seen <= 0 {
			return math.Inf(1)
		}
		return sum / seen
	}
	return costs{mean(sum.wait, seen.wait), mean(sum.onDemand, seen.onDemand), mean(sum.stay, seen.stay), mean(sum.launch, seen.launch)},
		c.OnDemand * corners[0].step / 3600, nil
}

func sift(sum, seen, x, share float64) (float64, float64) {
	if math.IsInf(x, 1) {
		return sum, seen
	}
	return sum + x*share, seen + share
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
