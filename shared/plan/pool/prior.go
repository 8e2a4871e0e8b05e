package pool

import "math"

// The prior: how likely a run or an outage is to end, by its age, and how that moves with the zone's level (the
// share of the last day or so in which spot was up). Log odds a step of about ten minutes, at level one half;
// measured on the first half of five of the nine public spot traces published with "Can't Be Late" (NSDI'24),
// smoothed and rounded by hand. The other zones and the later half gave the same figures within their error.
// Counting a zone's own week on top of the level made decisions no better, so nothing else is learned of a lone zone.
var (
	knots    = []float64{1, 2, 3.5, 6.5, 12.5, 24.5, 48.5, 96.5, 220} // ages, in steps
	upOdds   = []float64{-1.1, -1.3, -1.7, -2.3, -2.8, -3.05, -3.5, -3.7, -4.4}
	downOdds = []float64{-1.15, -1.15, -1.8, -2.4, -2.9, -3.0, -3.3, -3.5, -4.0}
)

const (
	upLevel   = -0.43 // log odds of a loss for each log odds of the level
	downLevel = 0.32  // log odds of an outage's end
	memory    = 24.0  // hours over which the level forgets
	unknown   = 0.6   // level of a zone never seen
	belief    = 6.0   // hours of history that weigh as much as unknown does
	natural   = 600.0 // seconds of a step; shorter ones would learn the rhythm of the probing, not of the market
)

// Bounds of the age buckets, in steps: fine for a lone zone, fewer where many cases share the tables, coarse where a
// state also holds other zones.
var (
	fineAges   = []int{1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 23, 33, 46, 65, 92, 129, 182, 257}
	fewAges    = []int{1, 2, 3, 4, 6, 9, 14, 23, 40, 70, 129, 257}
	coarseAges = []int{1, 2, 3, 5, 9, 17, 33, 65, 129}
)

func bucket(ages []int, age float64) int {
	b := len(ages) - 1
	for b > 0 && float64(ages[b]) > age {
		b--
	}
	return b
}

// middle is an age that stands for a bucket; the last, open one is taken well past its start.
func middle(ages []int, b int) float64 {
	if b == len(ages)-1 {
		return 1.7 * float64(ages[b])
	}
	return float64(ages[b]+ages[b+1]-1) / 2
}

// grows is the chance that a run which goes on leaves its bucket.
func grows(ages []int, b int) float64 {
	if b == len(ages)-1 {
		return 0
	}
	return 1 / float64(ages[b+1]-ages[b])
}

// odds reads a prior at an age in steps, log-linear between the knots.
func odds(prior []float64, age float64) float64 {
	if age <= knots[0] {
		return prior[0]
	}
	for k := 1; k < len(knots); k++ {
		if age <= knots[k] {
			f := math.Log(age/knots[k-1]) / math.Log(knots[k]/knots[k-1])
			return prior[k-1]*(1-f) + prior[k]*f
		}
	}
	return prior[len(prior)-1]
}

// ripe is the inverse of odds for upOdds: the age at which an ordinary run has these odds.
func ripe(w float64) float64 {
	if w >= upOdds[0] {
		return 1
	}
	for k := 1; k < len(knots); k++ {
		if w >= upOdds[k] {
			f := (w - upOdds[k-1]) / (upOdds[k] - upOdds[k-1])
			return knots[k-1] * math.Pow(knots[k]/knots[k-1], f)
		}
	}
	return 1.5 * knots[len(knots)-1]
}

func chance(logOdds float64) float64 { return 1 / (1 + math.Exp(-logOdds)) }

// Prior is the chance that a run (up) or an outage of this age, in steps of ten minutes, ends within the next step, in
// a zone that is up half of the time.
func Prior(up bool, age float64) float64 {
	if up {
		return chance(odds(upOdds, age))
	}
	return chance(odds(downOdds, age))
}

// tilt is a level in log odds, kept finite.
func tilt(level float64) float64 { return math.Log((level + 0.02) / (1.02 - level)) }

// scaled turns a chance a natural step into one for a step of another length.
func scaled(p, step float64) float64 {
	if step <= 1.5*natural {
		return p
	}
	return 1 - math.Pow(1-p, step/natural)
}

// Memory is what is known of one zone: whether it is up, for how long, and its level. The zero value is a zone
// never seen. It is a value: copy it to keep a state.
type Memory struct {
	Up   bool
	Age  float64 // seconds in this state, the present tick counted
	good float64 // hours up, discounted
	all  float64 // hours seen, discounted
}

// See adds a spell of tick seconds.
func (m *Memory) See(up bool, tick float64) {
	if up != m.Up {
		m.Up, m.Age = up, 0
	}
	m.Age += tick
	keep, h := math.Exp(-tick/3600/memory), tick/3600
	m.good, m.all = m.good*keep, m.all*keep+h
	if up {
		m.good += h
	}
}

// Level is the share of the recent past in which the zone was up, between 0 and 1.
func (m Memory) Level() float64 { return (m.good + unknown*belief) / (m.all + belief) }

// steps is the age in steps, rounded up.
func (m Memory) steps(step float64) float64 { return math.Max(1, math.Ceil(m.Age/step-1e-9)) }

// lone is the chain of one zone that keeps its level: outages by age, then runs by age.
func lone(ages []int, level, step float64) chain {
	n := len(ages)
	c := chain{up: make([]bool, 2*n), edges: make([][]edge, 2*n)}
	for b := range n {
		age := middle(ages, b) * math.Max(1, step/natural)
		down := scaled(chance(odds(downOdds, age)+downLevel*tilt(level)), step)
		up := scaled(chance(odds(upOdds, age)+upLevel*tilt(level)), step)
		c.up[n+b] = true
		c.age(b, n, down, grows(ages, b), false)
		c.age(n+b, 0, up, grows(ages, b), true)
	}
	return c
}

// loneState is the state of lone's chain that a zone is in.
func (m Memory) loneState(ages []int, step float64) int {
	i := bucket(ages, m.steps(step))
	if m.Up {
		i += len(ages)
	}
	return i
}

// age gives a state its three ways on: the run ends and leads to another state, or it goes on in its bucket or
// in the next.
func (c *chain) age(i, to int, end, grow float64, lost bool) {
	c.edge(i, to, end, lost)
	c.edge(i, i, (1-end)*(1-grow), false)
	c.edge(i, i+1, (1-end)*grow, false)
}

func (c *chain) edge(i, to int, p float64, lost bool) {
	if p > 0 {
		c.edges[i] = append(c.edges[i], edge{to, float32(p), lost})
	}
}
