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
	if r.Count <= 0 {
		delete(d.state.Reserved, r.ID)
		return
	}
	d.state.Reserved[r.ID] = &r
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
		if !f.Now.Before(r.Until.Add(-lead)) {
			d.doom(m, r.Until, "its reservation "+r.ID+" ends")
		}
	}
	for id, r := range f.Reserved {
		if !r.Until.IsZero() && f.Now.Sub(r.Until) > evictAfter && f.Used(id) == 0 {
			delete(f.Reserved, id)
		}
	}
}
