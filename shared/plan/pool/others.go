package pool

import "math"

// Several zones are planned as one ridden zone by its age and the best of the others by its class, or, when
// none is up, by the age of that outage. On a loss the job may go on in the other zone at that one's age.

// classes sort the best other zone by its age in steps: 0 is none up, class k begins at from[k] and age[k] stands for it.
type classes struct {
	from []int
	age  []float64
}

var (
	manyClasses = classes{[]int{0, 1, 3, 9, 33}, []float64{0, 1, 5, 18, 80}}
	fewClasses  = classes{[]int{0, 1, 7}, []float64{0, 2, 30}} // where many cases share the tables
)

func (c classes) of(age float64) int {
	k := 0
	for k+1 < len(c.from) && age >= float64(c.from[k+1]) {
		k++
	}
	return k
}

// up and down are the states of a group: the ridden zone's age by the class of the best other, then outages by age.
func (c classes) up(b, other int) int { return b*len(c.from) + other }
func (c classes) down(b int) int      { return len(coarseAges)*len(c.from) + b }

// weights of the prior against what was counted, in steps
const (
	trustStay = 30.0
	trustLost = 10.0
	trustDown = 10.0
	together  = 0.25 // chance that the other is lost in the same step
)

// group is what a history says of zones together.
type group struct {
	classes
	stay, lost [][]float64 // class of the best other now and a step on, if the ridden zone lasts, if it does not
	back       float64     // how much faster any zone comes back than a lone one
}

// priorGroup takes n zones as nearly independent.
func priorGroup(c classes, n int) group {
	k := len(c.from)
	g := group{classes: c, stay: square(k), lost: square(k)}
	back := 1 - math.Pow(1-0.07, math.Pow(float64(n-1), 0.7))
	spare := 0.0 // yet another is up when the best other goes
	if n > 2 {
		spare = 1 - math.Pow(0.6, float64(n-2))
	}
	g.stay[0][0], g.stay[0][1] = 1-back, back
	for a := 1; a < k; a++ {
		end, grow := chance(odds(upOdds, c.age[a])), 0.0
		if a+1 < k {
			grow = 1 / float64(c.from[a+1]-c.from[a])
			g.stay[a][a+1] += (1 - end) * grow
		}
		g.stay[a][min(a, 2)] += end * spare
		g.stay[a][0] += end * (1 - spare)
		g.stay[a][a] += (1 - end) * (1 - grow)
	}
	for a := range k {
		for b := range k {
			p := g.stay[a][b]
			if a > 0 {
				p *= 1 - together
			}
			g.stay[a][b], g.lost[a][b] = trustStay*g.stay[a][b], trustLost*p
		}
		if a > 0 {
			g.lost[a][0] += trustLost * together
		}
	}
	return g
}

func square(n int) [][]float64 {
	m := make([][]float64, n)
	for i := range m {
		m[i] = make([]float64, n)
	}
	return m
}

// countGroup adds what a history shows to the prior. ages holds, tick by tick, each zone's age in steps of f
// ticks, 0 when down.
func countGroup(ages [][]float64, n, f int) group {
	g := priorGroup(manyClasses, n)
	var expected, seen float64
	w, down := 1/float64(f), 0
	for t, now := range ages {
		any := best(now, -1) > 0
		if t >= f {
			was := ages[t-f]
			if best(was, -1) == 0 {
				expected += w * chance(odds(downOdds, math.Ceil(float64(down)/float64(f))))
				if any {
					seen += w
				}
			}
			for z := range was {
				if was[z] > 0 {
					g.watch(g.of(best(was, z)), g.of(best(now, z)), now[z] >= was[z], w, n)
				}
			}
		}
		down++
		if any {
			down = 0
		}
	}
	g.normalise()
	g.back = (seen + trustDown*math.Pow(float64(n), 0.6)) / (expected + trustDown)
	return g
}

func (g group) normalise() {
	for _, m := range [][][]float64{g.stay, g.lost} {
		for a := range m {
			normalise(m[a])
		}
	}
}

// strangers is a group of n zones of which nothing was seen together.
func strangers(n int) group {
	g := priorGroup(fewClasses, n)
	g.normalise()
	g.back = math.Pow(float64(n), 0.6)
	return g
}

// watch counts one step of the best other, seen from one ridden zone. Zones see much the same, so a stay counts less.
func (g group) watch(from, to int, stayed bool, w float64, n int) {
	if stayed {
		g.stay[from][to] += 1.5 * w / float64(n)
		return
	}
	g.lost[from][to] += w
}

// best is the age of the oldest zone up but one; 0 for none.
func best(ages []float64, but int) float64 {
	top := 0.0
	for z, a := range ages {
		if z != but {
			top = math.Max(top, a)
		}
	}
	return top
}

func normalise(row []float64) {
	sum := 0.0
	for _, x := range row {
		sum += x
	}
	for i := range row {
		row[i] /= sum
	}
}

// several is the chain of a group of zones at a mean level.
func several(g group, level float64, usual []float64, step float64) chain {
	n, k := len(coarseAges), len(g.from)
	c := chain{up: make([]bool, n*k+n), edges: make([][]edge, n*k+n)}
	long := math.Max(1, step/natural)
	for b := range n {
		grow := grows(coarseAges, b)
		for m := range k {
			end := scaled(chance(odds(upOdds, middle(coarseAges, b)*long)+upLevel*tilt(level)+kinUp*usual[m]), step)
			i := g.up(b, m)
			c.up[i] = true
			for to := range k {
				c.edge(i, g.up(b, to), (1-end)*(1-grow)*g.stay[m][to], false)
				if grow > 0 {
					c.edge(i, g.up(b+1, to), (1-end)*grow*g.stay[m][to], false)
				}
				next := g.down(0)
				if to > 0 {
					next = g.up(bucket(coarseAges, g.age[to]), 0)
				}
				c.edge(i, next, end*g.lost[m][to], true)
			}
		}
		back := 1 - math.Pow(1-scaled(chance(odds(downOdds, middle(coarseAges, b)*long)), step), g.back)
		c.age(g.down(b), g.up(0, 0), back, grow, false)
	}
	return c
}
