package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/plan/assign"
	"lowtide/shared/plan/pool"
)

// Assignment is who shall run on which reservation.
type Assignment struct {
	Slots map[string]string // reservation by workload; who is not in it runs elsewhere
	Leave []string          // workloads that must save and stop at once: who comes after them cannot wait until they have moved
	Again time.Time         // look again then, at the latest
}

// Assign deals the machines of all open reservations out to the workloads that would pay most elsewhere.
//
// What a machine is worth to a workload is what its cheapest alternative is expected to cost from now until the work is
// done, for the share of the work that gets done before the reservation ends or the deadline drives it off, less the move.
// A workload whose deadline could not be kept otherwise goes before all others. Who holds a machine keeps it unless the
// other gains more by the policy's margin on both moves, and in any case for the minimum stay; so the same state gives
// the same assignment, and one that has taken it over gets no other.
func Assign(f *fleet.Fleet, book *Book, by Oracle, p Policy, now time.Time) Assignment {
	a := Assignment{Slots: map[string]string{}, Again: now.Add(p.Wake)}
	open, room := offered(f, book, p, now, &a)
	if len(open) == 0 {
		return a
	}
	var takers []*taker
	var gain [][]float64
	for _, name := range fleet.Sorted(f.Workloads) {
		w := f.Workloads[name]
		if w.Phase != fleet.Accepted {
			continue
		}
		if w.Spec.Autonomy == fleet.Observe { // it is left where it is, and nobody gets its place
			if on := f.Machines[w.On]; counted(f, on, p, now) {
				if j := slices.IndexFunc(open, func(x paid) bool { return x.r.ID == on.Offer.Reservation }); j >= 0 {
					a.Slots[name], room[j] = open[j].r.ID, max(room[j]-1, 0)
				}
			}
			continue
		}
		if t := weigh(f, book, by, p, w, open, now); t != nil {
			takers, gain = append(takers, t), append(gain, t.gain)
			if !t.until.IsZero() && t.until.Before(a.Again) {
				a.Again = t.until
			}
		}
	}
	for i, j := range assign.Best(gain, room) {
		if j >= 0 {
			takers[i].gets, a.Slots[takers[i].w.Spec.Name] = &open[j], open[j].r.ID
		}
	}
	a.Leave = hurried(takers, p)
	if !a.Again.After(now) {
		a.Again = now.Add(time.Second)
	}
	return a
}

// paid is a reservation as it is dealt out.
type paid struct {
	r     *fleet.Reservation
	offer fleet.Offer
	speed float64
	left  time.Duration // until its machines must be left; endless where it is open-ended
}

const endless = 10 * 365 * 24 * time.Hour

// offered are the reservations that can be dealt out, and the machines of each. One that has just refused has those that
// run.
func offered(f *fleet.Fleet, book *Book, p Policy, now time.Time, a *Assignment) (open []paid, room []int) {
	for _, id := range fleet.Sorted(f.Reserved) {
		r := f.Reserved[id]
		if now.Before(r.From) && r.From.Before(a.Again) {
			a.Again = r.From
		}
		if !r.Open(now) {
			continue
		}
		o := book.Paid(r)
		n := r.Count
		if x := f.Refusals[o.Pool()]; x != nil && now.Before(x.Until) {
			n = min(n, f.Used(id))
			a.Again = earlier(a.Again, x.Until)
		}
		left := endless
		if !r.Until.IsZero() {
			left = r.Until.Add(-p.Grace).Sub(now) // the grace is the agent's, for a last save: it stops the run before its hard end
		}
		open, room = append(open, paid{r, o, o.Speed.Or(1), left}), append(room, n)
	}
	return open, room
}

// Paid is the offer of a reservation's machines: what the market tells of the type, at no price.
func (b *Book) Paid(r *fleet.Reservation) fleet.Offer {
	o := fleet.Offer{Cloud: r.Cloud, Type: r.Type}
	if like := b.typed()[r.Cloud+"/"+r.Type]; like != nil {
		o = *like
	}
	o.Account, o.Region, o.Zone, o.Market, o.Reservation = r.Account, r.Region, r.Zone, fleet.Reserved, r.ID
	o.GPU, o.GPUs = cmp.Or(r.GPU, o.GPU), cmp.Or(r.GPUs, o.GPUs)
	o.Price, o.Hourly = fleet.Price{Per: fleet.PerInstanceHour}, fleet.Known(fleet.Dollars(0))
	o.Term, o.Quoted, o.Stock, o.Hazard, o.Notice, o.Host = 0, time.Time{}, fleet.Maybe[int]{}, fleet.Maybe[float64]{}, 0, ""
	return o
}

// OnDemand is what a machine like those of a reservation costs an hour on demand, if it is sold.
func (b *Book) OnDemand(r *fleet.Reservation) (usd float64, sold bool) {
	o := b.typed()[r.Cloud+"/"+r.Type]
	if o == nil || o.Market != fleet.OnDemand {
		return 0, false
	}
	return o.PerHour()
}

// typed is one offer of each type of a cloud.
func (b *Book) typed() map[string]*fleet.Offer {
	if b.types == nil {
		b.types = map[string]*fleet.Offer{}
		for _, market := range []fleet.Market{fleet.Spot, fleet.Reserved, fleet.OnDemand} { // the last wins
			for i := range b.byMarket[market] {
				o := &b.byMarket[market][i].offer
				b.types[o.Cloud+"/"+o.Type] = o
			}
		}
	}
	return b.types
}

// taker is a workload that could run on a reservation.
type taker struct {
	w     *fleet.Workload
	gain  []float64     // USD, by reservation; 0: none
	holds string        // reservation of the machine that it has, or is about to get
	runs  bool          // on that machine, or on another
	until time.Time     // when this must be weighed again; zero: at the usual time
	slack time.Duration // what is left of the deadline before on-demand must be bought; endless without one
	moves time.Duration // how long it takes to move
	gets  *paid
}

// What goes before all money: a workload is not moved within its minimum stay, and a promise is not broken.
const (
	settles = 1e6
	keeps   = 1e9
)

// weigh reckons what each reservation is worth to a workload; nil: none suits it.
func weigh(f *fleet.Fleet, book *Book, by Oracle, p Policy, w *fleet.Workload, open []paid, now time.Time) *taker {
	if !slices.ContainsFunc(open, func(x paid) bool { return fits(&x.offer, w.Spec) }) {
		return nil
	}
	on, next := f.Machines[w.On], f.Machines[w.Next]
	t := &taker{w: w, gain: make([]float64, len(open)), slack: endless}
	s := lookPast(f, p, w, now) // as if it held no reservation
	var held *fleet.Instance
	for _, m := range []*fleet.Instance{on, next} { // the next one counts, if both are paid
		if counted(f, m, p, now) && m.Offer.Reservation != "" {
			t.holds, held = m.Offer.Reservation, m
		}
	}
	t.runs = counted(f, on, p, now) && on.Run.Phase == fleet.Running
	m := book.around(f, &s, p)
	alt, hourly := s.alternative(by, p, m)
	if s.promised {
		t.slack = s.until - m.hours(s.leftSafe) - s.startMax - p.Wake
	}
	t.moves = s.start
	stays := held == nil && s.act != nil && !proposed(f, s.act) && (!s.settled(p) || now.Before(w.Keep))
	if stays && s.begun() {
		t.until = later(s.act.ReadyAt.Add(p.MinStay), w.Keep)
	}
	for j := range open {
		x := &open[j]
		if !fits(&x.offer, w.Spec) || stays && !math.IsInf(alt, 1) {
			continue
		}
		here := x.r.ID == t.holds
		if here && !held.HardEnd.IsZero() { // bought before the reservation was extended
			bound := *x
			bound.left = min(x.left, held.HardEnd.Add(-p.Grace).Sub(now))
			x = &bound
		}
		t.gain[j] = s.worth(p, m, x, here, alt, hourly, t)
		if here && t.gain[j] > 0 && s.promised && t.slack < t.moves+p.Wake {
			t.gain[j] += keeps // to leave would break its own promise, whatever the other gains
		}
		if here && t.gain[j] > 0 && (held.ReadyAt.IsZero() || now.Sub(held.ReadyAt) < p.MinStay || now.Before(w.Keep) || w.Spec.Autonomy != fleet.Act) {
			t.gain[j] += settles
		}
	}
	return t
}

// proposed says that a machine is not bought, and waits for a person.
func proposed(f *fleet.Fleet, m *fleet.Instance) bool {
	p := f.Plans[m.Plan]
	return m.Phase == fleet.Ordered && p != nil && !p.Approved
}

// lookPast is a workload without what it holds of any reservation.
func lookPast(f *fleet.Fleet, p Policy, w *fleet.Workload, now time.Time) situation {
	past := *w
	past.Slot = ""
	return look(f, p, &past, now)
}

// worth is what a machine of a reservation is worth to a workload, USD; 0 or less: it had better run elsewhere.
func (s situation) worth(p Policy, m around, x *paid, here bool, alt, hourly float64, t *taker) float64 {
	start := s.start
	if here {
		start = 0
	}
	need := time.Duration(float64(s.left)/x.speed) + start
	room := x.left
	if need > room { // it must leave again: in time for another machine to be proved
		room -= s.startMax + p.Wake
	}
	if s.promised && (need+p.Wake > s.until) { // not in time here: until the guard drives it off
		lag := 1 - x.speed/m.speed // of the slack, lost an hour
		if lag <= 0 {
			room = min(room, s.until-p.Wake)
		} else {
			room = min(room, time.Duration(float64(s.until-p.Wake-s.startMax-m.hours(s.leftSafe))/lag))
		}
	}
	if here && room < need && room > 0 {
		t.until = s.now.Add(room)
	}
	if room <= 0 || !here && room < min(need, p.MinStay+start) {
		return 0
	}
	if math.IsInf(alt, 1) {
		return keeps
	}
	once := p.Margin * hourly * s.start.Hours() // of a move: the other machine bills while this one starts, or the other way round
	value := max(alt, 1e-6) * min(1, float64(room)/float64(max(need, 1)))
	switch {
	case here:
		return value + once
	case s.begun():
		return value - once
	}
	return value
}

// alternative is what the work left is expected to cost without a reservation, USD, and the price of the machine that it
// runs on, or would; +Inf: the deadline could not be kept.
func (s situation) alternative(by Oracle, p Policy, m around) (cost, hourly float64) {
	hourly = m.fallback
	switch {
	case s.act != nil:
		hourly, _ = s.act.Offer.PerHour()
	case len(m.places) > 0 && m.places[0].zone.Up:
		hourly = m.places[0].zone.Price
	}
	if s.promised {
		if need := m.hours(s.leftSafe) + s.startMax; need > s.until-p.Wake { // the guard
			if len(m.sure) == 0 && !(s.act != nil && s.mode == pool.OnDemand) {
				return math.Inf(1), hourly
			}
			return m.fallback * (m.hours(s.left) + s.start).Hours(), hourly
		}
		if d := by.Decide(s.weighed(p, m)); !d.Cold {
			best := math.Inf(1)
			for _, o := range d.Options {
				best = min(best, o.Cost)
			}
			if !math.IsInf(best, 1) {
				return best, hourly
			}
		}
	}
	if ways := s.ways(m); len(ways) > 0 && !math.IsInf(ways[0].cost, 1) {
		return ways[0].cost, hourly
	}
	return m.fallback * (m.hours(s.left) + s.start).Hours(), hourly
}

// hurried are who hold what another gets who does not run and cannot wait until they have moved.
func hurried(takers []*taker, p Policy) (leave []string) {
	for _, t := range takers {
		if t.gets == nil || t.runs || t.holds == t.gets.r.ID {
			continue
		}
		for _, x := range takers {
			goes := x.runs && x.holds == t.gets.r.ID && (x.gets == nil || x.gets.r.ID != x.holds)
			may := x.w.Spec.Autonomy == fleet.Act && x.slack >= x.moves+p.Wake // and still keeps what it was promised
			if goes && may && t.slack < x.moves+p.Wake && !slices.Contains(leave, x.w.Spec.Name) {
				leave = append(leave, x.w.Spec.Name)
				break
			}
		}
	}
	return leave
}

// misplaced says that a machine is of a reservation that its workload has not, or no more: it is not counted on.
func misplaced(w *fleet.Workload, m *fleet.Instance) bool {
	return m != nil && m.Offer.Reservation != "" && m.Offer.Reservation != w.Slot
}

// reserved is the choice of a workload that has a place on a reservation: to stay there, or to go there when a machine is
// free, and until then to go on as it does. It says false where it must be decided as ever: there is no place, or no time
// to wait for it.
func (s situation) reserved(f *fleet.Fleet, book *Book, by Oracle, p Policy, m around) (verdict, *fleet.Offer, bool) {
	r := f.Reserved[s.w.Slot]
	if r == nil {
		return verdict{}, nil, false
	}
	v := verdict{mode: pool.OnDemand, stay: true}
	if s.act != nil && s.act.Offer.Reservation == r.ID {
		v.why = "on " + r.ID + ", which is paid for"
		return v, nil, true
	}
	on := f.Machines[s.w.On]
	runs := counted(f, on, p, s.now) && !on.Order.Stop
	if runs && on.Offer.Reservation == r.ID { // it has its place back while its next machine is made ready
		v.keep, v.why = true, "on "+r.ID+", which is paid for; what was to follow is given up"
		return v, nil, true
	}
	if !free(f, s.w, r, p, s.now) {
		forced := s.promised && m.hours(s.leftSafe)+s.startMax > s.until-p.Wake
		v.why = "waits for its place on " + r.ID + ", which another leaves"
		if s.act == nil && !runs { // what runs goes on where it is: the other may never leave
			v.mode, v.stay = pool.Idle, false
		}
		return v, nil, !forced
	}
	alt, hourly := s.alternative(by, p, m)
	if math.IsInf(alt, 1) {
		v.why = r.ID + " is paid for and idle, and nothing else would keep the deadline"
	} else {
		v.why = fmt.Sprintf("%s is paid for and idle; elsewhere the work left is expected to cost %s", r.ID, dollars(alt))
	}
	if s.begun() {
		v.why += fmt.Sprintf("; the move costs %s", dollars(hourly*s.start.Hours()))
	}
	v.stay = false
	o := book.Paid(r)
	return v, &o, true
}

// free says that a machine of a reservation is left for a workload, others before it served.
func free(f *fleet.Fleet, w *fleet.Workload, r *fleet.Reservation, p Policy, now time.Time) bool {
	left := r.Count - f.Used(r.ID)
	if left <= 0 {
		return false
	}
	before := 0
	for name, x := range f.Workloads {
		if x.Slot == r.ID && x.Phase == fleet.Accepted && name < w.Spec.Name && !has(f, x, r.ID, p, now) {
			before++
		}
	}
	return before < left
}

// has says that a workload has a machine of a reservation that can be counted on, or is about to get it.
func has(f *fleet.Fleet, w *fleet.Workload, reservation string, p Policy, now time.Time) bool {
	for _, name := range []string{w.On, w.Next} {
		if m := f.Machines[name]; counted(f, m, p, now) && m.Offer.Reservation == reservation {
			return true
		}
	}
	return false
}
