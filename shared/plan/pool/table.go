package pool

import (
	"context"
	"math"
	"sort"
)

// A chain is a market as a table sees it: a finite Markov chain moved once a step. While spot runs it rides the
// zone its state describes; a lost edge throws it out, even where the new state is up (another zone is).
type chain struct {
	up    []bool
	edges [][]edge
	swap  []int // state after moving from the zone in use to the other one it knows; -1 or nil: none
}

type edge struct {
	to   int
	p    float32
	lost bool
}

// horizon says how far a table reaches and how fine it is. Times are in seconds.
type horizon struct {
	step  float64 // between two decisions
	delay float64 // a launch's warm-up
	k     float64 // on-demand price over spot price
	left  int     // steps to the deadline, at most
	fine  int     // grid points a step while the slack is small
	near  int     // steps of slack up to which the grid is fine
	slack int     // steps of slack, at most; more is treated as this much
	thin  bool    // far times left and far slacks are kept at growing distances, in a tenth of the memory
}

// A table holds the least expected cost of finishing by the deadline, for every time left, slack, mode and state
// of the market, in units of one step on demand. It is never changed once solved.
//
// The grid runs over x = time left − work left − delay, the slack beyond what a fall-back needs: running keeps
// it, waiting costs a step of it, a launch costs the delay. Below 0 only on-demand to the end is safe, which
// needs no table; so no value is infinite, and neighbours may be interpolated.
type table struct {
	horizon
	chain  chain
	spots  []int     // position of an up state among the up states, -1 when down
	stages int       // steps a warm-up is spread over, less one: modes between launch and productive
	slots  int       // rows of one time left
	held   int       // the first of them that are kept: all, or in a thin table no stage of a warm-up but the first
	grid   []float64 // x of each point, s
	kept   []int     // the times left that are kept, in steps, rising
	block  []int32   // by time left: its place in kept, or -1
	val    []uint16  // [kept][held slot][grid], in parts of the time left: none costs more than on-demand all the way
	solved []float32 // while it is solved: all rows of two times left, by turns
}

// shift is where the points of a grid land when x falls by some seconds: below 0 is unsafe.
type shift struct {
	from int // first point that lands at x >= 0
	at   []int32
	frac []float32
}

func newTable(h horizon, c chain) *table {
	t := &table{horizon: h, chain: c, spots: make([]int, len(c.up))}
	ups := 0
	for i, up := range c.up {
		t.spots[i] = -1
		if up {
			t.spots[i] = ups
			ups++
		}
	}
	t.stages = max(0, int(math.Ceil(h.delay/h.step-1e-9))-1)
	t.slots = 2*len(c.up) + (1+t.stages)*ups
	t.held = t.slots
	if h.thin {
		t.held = 2*len(c.up) + (1+min(t.stages, 1))*ups
	}
	for x := 0; x < h.near*h.fine; x++ {
		t.grid = append(t.grid, float64(x)*h.step/float64(h.fine))
	}
	for x, last := h.near, max(h.slack, h.near+1); x <= last; x += max(1, min(h.gap(x), last-x)) { // the last is kept
		t.grid = append(t.grid, float64(x)*h.step)
	}
	t.block = make([]int32, h.left+1)
	for left, next := 0, 0; left <= h.left; left++ {
		t.block[left] = -1
		if left == next || left == h.left {
			t.block[left] = int32(len(t.kept))
			t.kept = append(t.kept, left)
			next = left + h.gap(left)
		}
	}
	t.val = make([]uint16, len(t.kept)*t.held*len(t.grid))
	return t
}

// gap is the distance from a kept point to the next, in steps.
func (h horizon) gap(at int) int {
	if !h.thin {
		return 1
	}
	return max(1, at/8)
}

// ages are the buckets of a lone zone.
func (h horizon) ages() []int {
	if h.thin {
		return fewAges
	}
	return fineAges
}

// bytes is the memory of a solved table.
func (t *table) bytes() int { return 2*len(t.val) + 8*len(t.grid) }

// row is a slot's values at a time left, while the table is solved.
func (t *table) row(left, slot int) []float32 {
	n := len(t.grid)
	at := (left%2*t.slots + slot) * n
	return t.solved[at : at+n]
}

// keep stores what is held of a time left.
func (t *table) keep(left int) {
	b, size, at := int(t.block[left]), t.held*len(t.grid), left%2*t.slots*len(t.grid)
	if b < 0 {
		return
	}
	to, parts := t.val[b*size:(b+1)*size], whole/float32(left)
	for i, v := range t.solved[at : at+size] {
		to[i] = uint16(v*parts + 0.5)
	}
}

// whole is the time left, in the parts that values are kept in.
const whole = 65535

func (t *table) idle(i int) int     { return i }
func (t *table) onDemand(i int) int { return len(t.chain.up) + i }

// spot is the slot of a spot instance in state i with warm steps of warm-up begun; warm > stages: productive.
func (t *table) spot(i, warm int) int {
	ups := (t.slots - 2*len(t.chain.up)) / (1 + t.stages)
	if warm > t.stages {
		warm = 0
	}
	return 2*len(t.chain.up) + warm*ups + t.spots[i]
}

// place finds x on the grid: the point at or below it and the share of the next.
func (t *table) place(x float64) (int, float64) {
	last := len(t.grid) - 1
	if x <= 0 {
		return 0, 0
	}
	if x >= t.grid[last] {
		return last - 1, 1
	}
	var i int
	if edge := float64(t.near) * t.step; x < edge {
		i = int(x / t.step * float64(t.fine))
	} else if t.thin {
		i = sort.SearchFloat64s(t.grid, x)
	} else {
		i = t.near*t.fine + int(x/t.step) - t.near
	}
	for i > 0 && t.grid[i] > x {
		i--
	}
	for i < last-1 && t.grid[i+1] <= x {
		i++
	}
	return i, (x - t.grid[i]) / (t.grid[i+1] - t.grid[i])
}

func (t *table) shift(by float64) shift {
	s := shift{from: len(t.grid), at: make([]int32, len(t.grid)), frac: make([]float32, len(t.grid))}
	for i, x := range t.grid {
		to := x - by
		if to < -slop {
			continue
		}
		s.from = min(s.from, i)
		at, frac := t.place(to + 1e-9)
		s.at[i], s.frac[i] = int32(at), float32(math.Max(0, frac))
		if s.frac[i] < 1e-5 {
			s.frac[i] = 0
		}
	}
	return s
}

// solve fills the table from the deadline backwards. It gives up when ctx ends.
func (t *table) solve(ctx context.Context) error {
	sw := &sweep{table: t, wait: t.shift(t.step), launch: t.shift(t.delay)}
	n := len(t.grid)
	t.solved = make([]float32, 2*t.slots*n)
	sw.ei, sw.eo = make([]float32, n), make([]float32, n)
	for k := 0; k <= t.stages; k++ {
		left := t.delay - float64(k)*t.step
		sw.burn = append(sw.burn, t.shift(math.Min(left, t.step)))
		sw.es = append(sw.es, make([]float32, n))
		sw.warm = append(sw.warm, left)
	}
	for left := 1; left <= t.left; left++ {
		if left%16 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		sw.launched(left)
		for i := range t.chain.up {
			sw.expect(left, i)
			sw.state(left, i)
		}
		sw.moves(left)
		t.keep(left)
	}
	t.solved = nil
	return nil
}

// sweep is the working memory of one solve.
type sweep struct {
	*table
	wait, launch shift
	burn         []shift     // of the step that begins stage k of a warm-up
	warm         []float64   // warm-up left at the start of stage k, s; stage 0 is a launch
	ei, eo       []float32   // expected next value when idle and on demand
	es           [][]float32 // on spot: [0] productive, [k] in stage k of the warm-up
	od           []float32   // cost of on-demand launched at each point with too little slack to leave it again
}

// launched prices on-demand to the end for every point, which is all that is safe below a delay of slack.
func (sw *sweep) launched(left int) {
	if sw.od == nil {
		sw.od = make([]float32, len(sw.grid))
	}
	for x, at := range sw.grid {
		sw.od[x] = float32(math.Max(0, float64(left)-at/sw.step))
	}
}

// expect averages the values one step on, given the market's state now.
func (sw *sweep) expect(left, i int) {
	clear(sw.ei)
	clear(sw.eo)
	for k := range sw.es {
		clear(sw.es[k])
	}
	for _, e := range sw.chain.edges[i] {
		idle := sw.row(left-1, sw.idle(e.to))
		add(sw.ei, idle, e.p)
		add(sw.eo, sw.row(left-1, sw.onDemand(e.to)), e.p)
		if !sw.chain.up[i] {
			continue
		}
		for k := range sw.es {
			if e.lost || !sw.chain.up[e.to] {
				add(sw.es[k], idle, e.p)
				continue
			}
			add(sw.es[k], sw.row(left-1, sw.spot(e.to, k)), e.p)
		}
	}
}

func add(sum, v []float32, p float32) {
	v = v[:len(sum)]
	for x := range sum {
		sum[x] += p * v[x]
	}
}

// state sets the values of one state of the market for one time left.
func (sw *sweep) state(left, i int) {
	t := sw.table
	idle, od := t.row(left, t.idle(i)), t.row(left, t.onDemand(i))
	// Launching on demand: beyond a delay of slack the table knows it, below that it is for good.
	for x := range idle {
		idle[x] = sw.od[x]
	}
	for x := sw.launch.from; x < len(idle); x++ {
		if v := 1 + sw.launch.read(sw.eo, x); v < idle[x] {
			idle[x] = v
		}
	}
	done := float64(left) * t.step
	for x, at := range t.grid { // on demand: run on, at least to the end of the work
		work := done - t.delay - at
		switch {
		case work <= 0:
			od[x], idle[x] = 0, 0
		case work <= t.step:
			od[x] = float32(work / t.step)
		default:
			od[x] = 1 + sw.eo[x]
		}
	}
	sw.lower(od, sw.ei, sw.wait, 0)
	sw.lower(idle, sw.ei, sw.wait, 0)
	if !t.chain.up[i] {
		sw.done(left, i)
		return
	}
	spot := float32(1 / t.k)
	next := 0
	if t.stages > 0 {
		next = 1
	}
	launch := t.row(left, t.spot(i, 0)) // used as scratch, then set
	for x := range launch {
		launch[x] = float32(math.Inf(1))
	}
	sw.lower(launch, sw.es[next], sw.burn[0], spot)
	sw.short(launch, left, t.delay, spot)
	for x := range launch {
		idle[x] = min(idle[x], launch[x])
		od[x] = min(od[x], launch[x])
	}
	base := idle // on spot one may always wait or take on-demand; a new launch in place never pays
	for k := 1; k <= t.stages; k++ {
		row := t.row(left, t.spot(i, k))
		copy(row, base)
		to := k + 1
		if to > t.stages {
			to = 0
		}
		sw.lower(row, sw.es[to], sw.burn[k], spot)
		sw.short(row, left, sw.warm[k], spot)
	}
	row := t.row(left, t.spot(i, 0))
	copy(row, base)
	es := sw.es[0]
	for x := range row {
		if v := spot + es[x]; v < row[x] {
			row[x] = v
		}
	}
	sw.short(row, left, 0, spot)
	sw.done(left, i)
}

// short prices the last step on spot, which costs only what it runs.
func (sw *sweep) short(row []float32, left int, warm float64, spot float32) {
	for x, at := range sw.grid {
		need := float64(left)*sw.step - sw.delay - at + warm
		if need <= sw.step {
			row[x] = min(row[x], float32(need/sw.step)*spot)
		}
	}
}

// done sets 0 where no work is left.
func (sw *sweep) done(left, i int) {
	from := len(sw.grid)
	for from > 0 && float64(left)*sw.step-sw.delay-sw.grid[from-1] <= 0 {
		from--
	}
	clear(sw.row(left, sw.idle(i))[from:])
	clear(sw.row(left, sw.onDemand(i))[from:])
	if !sw.chain.up[i] {
		return
	}
	for k := 0; k <= sw.stages; k++ {
		clear(sw.row(left, sw.spot(i, k))[from:])
	}
}

// moves lets a job on spot change to the other zone its state knows, by a launch there.
func (sw *sweep) moves(left int) {
	if sw.chain.swap == nil {
		return
	}
	next := 0
	if sw.stages > 0 {
		next = 1
	}
	for i, to := range sw.chain.swap {
		if to < 0 || !sw.chain.up[i] || !sw.chain.up[to] {
			continue
		}
		sw.expect(left, to)
		for k := 0; k <= sw.stages; k++ {
			sw.lower(sw.row(left, sw.spot(i, k)), sw.es[next], sw.burn[0], float32(1/sw.k))
		}
		sw.lower(sw.row(left, sw.idle(i)), sw.es[next], sw.burn[0], float32(1/sw.k))
		sw.lower(sw.row(left, sw.onDemand(i)), sw.es[next], sw.burn[0], float32(1/sw.k))
	}
}

// lower lowers row to the cost of a step and then the shifted expectation, wherever that is safe.
func (sw *sweep) lower(row, next []float32, by shift, cost float32) {
	for x := by.from; x < len(row); x++ {
		if v := cost + by.read(next, x); v < row[x] {
			row[x] = v
		}
	}
}

func (s shift) read(v []float32, x int) float32 {
	at := s.at[x]
	f := s.frac[x]
	if f == 0 {
		return v[at]
	}
	return v[at]*(1-f) + v[at+1]*f
}
