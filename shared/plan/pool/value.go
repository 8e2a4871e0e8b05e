package pool

import "math"

// moment is where a job stands, for a table: seconds to the deadline, of work and of warm-up left.
type moment struct {
	left, work, warmup float64
	mode               Mode
}

// spare is the slack beyond what a fall-back needs, the table's x.
func (t *table) spare(m moment) float64 {
	if m.mode == OnDemand {
		return m.left - m.work - m.warmup - t.delay
	}
	return m.left - m.work - t.delay
}

// where is where a time left and a slack lie among the points of a table: between two kept times, and for each between
// two points of the grid.
type where struct {
	unsafe        bool    // no slack: +Inf in every slot
	lo            int     // the earlier kept time
	before, after float32 // weights of the parts kept there and at the next
	below, above  int     // the point below at each
	f0, f1        float32 // and the share of the point above
}

// locate finds steps left and slack x.
func (t *table) locate(left, x float64) where {
	if x < -slop {
		return where{unsafe: true}
	}
	left = math.Min(math.Max(left, 0), float64(t.left))
	lo := t.before(left)
	from, to := float64(t.kept[lo]), float64(t.kept[lo+1])
	f := (left - from) / (to - from)
	s := where{lo: lo, before: float32(from * (1 - f) / whole), after: float32(to * f / whole)}
	if t.thin && left*t.step-t.delay-x < x {
		// Less work than slack: between kept times the same work is the better guide, since at the same slack one of
		// them may have none left.
		s.below, s.f0 = t.point(x - (left-from)*t.step)
		s.above, s.f1 = t.point(x + (to-left)*t.step)
		return s
	}
	s.below, s.f0 = t.point(x)
	s.above, s.f1 = s.below, s.f0
	return s
}

// point is place in the precision of the table.
func (t *table) point(x float64) (int, float32) {
	i, f := t.place(x)
	return i, float32(f)
}

// value interpolates a slot.
func (t *table) value(s where, slot int) float64 {
	if s.unsafe {
		return math.Inf(1)
	}
	n := len(t.grid)
	at := (s.lo*t.held + slot) * n
	lo, hi := t.val[at+s.below:at+s.below+2], t.val[at+t.held*n+s.above:at+t.held*n+s.above+2]
	a := float32(lo[0])*(1-s.f0) + float32(lo[1])*s.f0
	b := float32(hi[0])*(1-s.f1) + float32(hi[1])*s.f1
	return float64(a*s.before + b*s.after)
}

// read is value at steps left and slack x.
func (t *table) read(slot int, left, x float64) float64 { return t.value(t.locate(left, x), slot) }

// before is the last kept time left at or before left, but one with another after it.
func (t *table) before(left float64) int {
	at := min(int(left), t.left-1)
	for t.block[at] < 0 {
		at--
	}
	return int(t.block[at])
}

// ridden is the value of an instance on spot in state i with some warm-up left: between the stages the table has.
func (t *table) ridden(s where, i int, warmup float64) float64 {
	if warmup < 1e-3 || s.unsafe { // unsafe is +Inf, and a share of that would be no number
		return t.value(s, t.spot(i, 0))
	}
	less, slot := 0.0, t.spot(i, 0)
	from := t.stages
	if t.held < t.slots { // between the first and productive nothing is kept
		from = 1
	}
	for k := from; k >= 0; k-- {
		more, next := t.delay-float64(k)*t.step, t.idle(i)
		if k > 0 {
			next = t.spot(i, k)
		}
		if warmup <= more+1e-9 || k == 0 {
			f := math.Min(1, (warmup-less)/(more-less))
			return t.value(s, slot)*(1-f) + t.value(s, next)*f
		}
		less, slot = more, next
	}
	return t.value(s, slot)
}

// costs are the expected costs of the actions open at a moment, in steps on demand, +Inf where not safe.
type costs struct{ wait, onDemand, stay, launch float64 }

// weigh prices every action for the next dt seconds (at most a step) in state i; stay is for a job on spot.
func (t *table) weigh(m moment, i int, dt float64) costs {
	return t.weighBent(m, i, t.chain.edges[i], dt)
}

// weighBent is weigh where the next step's chances are better known than the chain's: edges stand for those of i.
func (t *table) weighBent(m moment, i int, edges []edge, dt float64) costs {
	c := costs{stay: math.Inf(1), launch: t.ride(m, i, edges, dt, t.delay)}
	c.wait, c.onDemand = t.leave(m, i, edges, dt)
	if m.mode == Spot {
		c.stay = t.ride(m, i, edges, dt, m.warmup)
	}
	return c
}

// leave prices waiting and on-demand.
func (t *table) leave(m moment, i int, edges []edge, dt float64) (wait, onDemand float64) {
	left, share := (m.left-dt)/t.step, dt/t.step
	plain := m.left - m.work - t.delay // slack if what runs is given up
	wait = math.Inf(1)
	if waited := t.locate(left, plain-dt); !waited.unsafe {
		wait = t.mean(i, edges, share, func(j int, _ bool) float64 { return t.value(waited, t.idle(j)) })
	}
	warm, x := m.warmup, t.spare(m)
	if m.mode != OnDemand {
		warm, x = t.delay, x-t.delay
	}
	onDemand = math.Min(share, (m.work+warm)/t.step)
	switch {
	case m.work+warm <= dt:
	case x < 0: // it must run to the end
		onDemand += math.Max(0, left-(x+t.delay)/t.step)
	default:
		ran := t.locate(left, x)
		onDemand += t.mean(i, edges, share, func(j int, _ bool) float64 { return t.value(ran, t.onDemand(j)) })
	}
	return wait, onDemand
}

// ride prices spot with so much warm-up ahead; +Inf where it is not up.
func (t *table) ride(m moment, i int, edges []edge, dt, warmup float64) float64 {
	if !t.chain.up[i] {
		return math.Inf(1)
	}
	share := dt / t.step
	cost := math.Min(share, (m.work+warmup)/t.step) / t.k
	if m.work+warmup <= dt {
		return cost
	}
	burn := math.Min(warmup, dt)
	rode := t.locate((m.left-dt)/t.step, m.left-m.work-t.delay-burn)
	return cost + t.mean(i, edges, share, func(j int, lost bool) float64 {
		if lost || !t.chain.up[j] {
			return t.value(rode, t.idle(j))
		}
		return t.ridden(rode, j, warmup-burn)
	})
}

// demanded is the value of a running on-demand instance; below 0 it must run to the end.
func (t *table) demanded(i int, left, x float64) float64 {
	if x < 0 {
		return math.Max(0, left-(x+t.delay)/t.step)
	}
	return t.read(t.onDemand(i), left, x)
}

// mean averages f over where the market may be after a share of a step.
func (t *table) mean(i int, edges []edge, share float64, f func(to int, lost bool) float64) float64 {
	sum, moved := 0.0, 0.0
	for _, e := range edges {
		if e.to == i && !e.lost {
			continue
		}
		p := float64(e.p)
		if share < 1 {
			p = 1 - math.Pow(1-math.Min(p, 1-1e-9), share)
		}
		moved += p
		sum += p * f(e.to, e.lost)
	}
	if moved >= 1 {
		return sum / moved
	}
	return sum + (1-moved)*f(i, false)
}

// bent are the edges of state i with the chance that its run, or its outage, ends set to end.
func (c chain) bent(i int, end float64) []edge {
	ends := func(e edge) bool { return e.lost || c.up[e.to] != c.up[i] }
	was := 0.0
	for _, e := range c.edges[i] {
		if ends(e) {
			was += float64(e.p)
		}
	}
	if was <= 0 || was >= 1 {
		return c.edges[i]
	}
	out := append([]edge(nil), c.edges[i]...)
	for k, e := range out {
		if ends(e) {
			out[k].p *= float32(end / was)
		} else {
			out[k].p *= float32((1 - end) / (1 - was))
		}
	}
	return out
}
