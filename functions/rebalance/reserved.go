package rebalance

import (
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/plan"
)

// stirs are the facts after which reservations may belong to others.
var stirs = map[events.Kind]bool{
	"reservation.set": true, "price.changed": true, "policy.set": true,
	"workload.submitted": true, "workload.changed": true, "workload.withdrawn": true, "workload.paused": true, "workload.resumed": true,
	"workload.finished": true, "workload.failed": true, "workload.stopped": true, "workload.kept": true,
	"instance.interrupted": true, "instance.ended": true, "instance.lost": true, "instance.rejected": true, "instance.verified": true, "plan.failed": true,
}

// reserve takes a reservation over, or gives it up.
func (d *Decider) reserve(r fleet.Reservation) {
	if d.state.Watched == nil {
		d.state.Watched = map[string]*fleet.Watch{}
	}
	if r.Count <= 0 {
		delete(d.state.Reserved, r.ID)
		delete(d.state.Watched, r.ID)
		return
	}
	d.state.Reserved[r.ID], d.state.Watched[r.ID] = &r, &fleet.Watch{At: d.state.Now}
}

const (
	idleAfter = time.Hour      // until people are told
	idleAgain = 24 * time.Hour // and then
	day       = 24 * time.Hour
)

// watch notes how much of each reservation lies idle, and says when it has for an hour, and when its end comes near.
func (d *Decider) watch() {
	f := d.state
	for _, id := range fleet.Sorted(f.Reserved) {
		r, w := f.Reserved[id], f.Watched[id]
		if w == nil {
			continue
		}
		if w.Idle > 0 {
			w.Wasted = w.Wasted.Add(r.Hourly.Times(float64(w.Idle) * f.Now.Sub(w.At).Hours()))
		}
		w.At, w.Idle = f.Now, 0
		if r.Open(f.Now) {
			w.Idle = max(r.Count-f.Used(id), 0)
		}
		switch {
		case w.Idle == 0:
			w.Since, w.Wasted, w.Told = time.Time{}, fleet.Money{}, time.Time{}
		case w.Since.IsZero():
			w.Since = f.Now
		case w.Told.IsZero() && f.Now.Sub(w.Since) >= idleAfter, !w.Told.IsZero() && f.Now.Sub(w.Told) >= idleAgain:
			w.Told = f.Now
			d.announce(events.ReservationIdle{
				Reservation: *r, Idle: w.Idle, Since: w.Since, Hourly: r.Hourly.Times(float64(w.Idle)), Wasted: w.Wasted, Outside: d.outside(r),
			})
		}
		d.near(r, w)
	}
}

// outside are machines that would be of a reservation if they were not paid for beside it.
func (d *Decider) outside(r *fleet.Reservation) (all []string) {
	for _, m := range d.machines.of(d.state.Machines) {
		if o := m.Offer; o.Cloud == r.Cloud && o.Account == r.Account && o.Type == r.Type && o.Reservation == "" && m.Bills() {
			all = append(all, m.Name)
		}
	}
	return all
}

// near tells of a reservation's end, once at each mark; of one that is set late, at the last mark that has passed.
func (d *Decider) near(r *fleet.Reservation, w *fleet.Watch) {
	if r.Until.IsZero() || !r.Open(d.state.Now) {
		return
	}
	left, mark := r.Until.Sub(d.state.Now), 0
	for _, days := range []int{60, 30, 7} {
		if left <= time.Duration(days)*day {
			mark = days
		}
	}
	if mark == 0 || mark == w.Days || !r.From.IsZero() && r.Until.Sub(r.From) <= time.Duration(mark)*day {
		return // a term that is no longer than that was so from its beginning
	}
	w.Days = mark
	e := events.ReservationExpiring{Reservation: *r, Days: mark, Used: d.state.Used(r.ID), Hourly: r.Hourly.Times(float64(r.Count))}
	if d.book != nil {
		if usd, sold := d.book.OnDemand(r); sold {
			e.OnDemand = fleet.Known(fleet.Dollars(usd).Times(float64(e.Used)))
		}
	}
	d.announce(e)
}

// assign deals the reservations out, when it is time. Who has another place than before is looked at anew.
func (d *Decider) assign() {
	f := d.state
	if f.Now.Before(f.AssignAt) || f.Halted != "" {
		return
	}
	a := plan.Assignment{Again: f.Now.Add(d.cfg.Policy.Wake)}
	if len(f.Reserved) > 0 {
		a = plan.Assign(f, d.book, &d.aside, d.cfg.Policy, f.Now)
	}
	for name, w := range f.Workloads {
		if slot := a.Slots[name]; w.Slot != slot {
			w.Slot, w.Review = slot, time.Time{}
		}
	}
	for _, name := range a.Leave {
		if on := f.Machines[f.Workloads[name].On]; on != nil && !on.Order.Stop && !on.Run.Phase.Over() {
			d.saveAndStop(on, time.Time{})
		}
	}
	f.AssignAt = a.Again
}

// expire announces the end of machines whose reservation ends: those that go on elsewhere early enough for another to be
// proved, the others before the last save. Reservations that are over are forgotten with their last machine.
func (d *Decider) expire() {
	f := d.state
	p := d.cfg.Policy.Measured(f)
	for _, m := range f.Machines {
		r := f.Reserved[m.Offer.Reservation]
		if r == nil || r.Until.IsZero() || m.Phase == fleet.Ended {
			continue
		}
		lead := p.StartMax + p.Wake
		if w := f.Workloads[m.Workload]; w != nil && w.Slot == r.ID {
			lead = w.SaveTook + d.cfg.Margin + p.Wake // it is expected to be done by then
		}
		until := r.Until
		if !m.HardEnd.IsZero() && m.HardEnd.Before(until) { // bought before the reservation was extended
			until = m.HardEnd
		}
		until = until.Add(-d.cfg.Policy.Grace) // the agent keeps that for a last save, and stops the run then
		if !f.Now.Before(until.Add(-lead)) {
			d.doom(m, until, "its reservation "+r.ID+" ends")
		}
	}
	for id, r := range f.Reserved {
		if !r.Until.IsZero() && f.Now.Sub(r.Until) > evictAfter && f.Used(id) == 0 {
			delete(f.Reserved, id)
			delete(f.Watched, id)
		}
	}
}
