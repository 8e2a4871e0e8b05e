package rebalance

import (
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// renew says to each living machine its present order again when nothing was said to it for a quarter of the lease. A
// machine takes only that for life: NATS may go on though nobody decides any more. Nothing waits for an answer: a word
// that is lost is made good by the next.
func (d *Decider) renew() (out []events.Event) {
	f := d.state
	for _, m := range d.machines.of(f.Machines) {
		if at := d.renewAt(m); at.IsZero() || f.Now.Before(at) {
			continue
		}
		d.spoke(m)
		e := events.New(f.Name, "rebalance", f.Now, events.OrderGiven{Machine: m.Name, Order: standing(m), Attempt: int(f.Now.Unix())})
		e.ID = fmt.Sprintf("%s/%s/%s/%d/%d", f.Install, f.Name, m.Name, m.Order.Number, f.Now.UnixNano())
		out = append(out, e)
	}
	return out
}

// spoke notes that something is said to a machine. Whole seconds keep the state small.
func (d *Decider) spoke(m *fleet.Instance) {
	if m != nil {
		m.Told = d.state.Now.Truncate(time.Second)
	}
}

// renewAt is when a machine must hear of us again; zero: never. One that was never told a time, of an older state, at once.
func (d *Decider) renewAt(m *fleet.Instance) time.Time {
	if d.cfg.Policy.Lease <= 0 || m.Order.Number == 0 || m.Phase == fleet.Ending || m.Phase == fleet.Ended {
		return time.Time{}
	}
	return m.Told.Add(d.cfg.Policy.Lease / 4)
}

// leased hears when a machine ends itself: one that was bought under a shorter lease than today's is spoken to more often.
func (d *Decider) leased(m *fleet.Instance, ends time.Time) {
	f := d.state
	left := ends.Sub(f.Now)
	if m == nil || ends.IsZero() || left <= 0 || left >= d.cfg.Policy.Lease/4 || f.Now.Sub(m.Told) < max(left/4, time.Minute) {
		return
	}
	m.Told = time.Time{}
}

// standing is what a machine shall still do: a proof that was judged is not asked for again, since verify forgets, nor a
// save that was answered.
func standing(m *fleet.Instance) fleet.Order {
	o := m.Order
	if !m.Phase.Before(fleet.Verified) {
		o.Benchmark = nil
	}
	if o.Save != nil && o.Save.ID == m.Answered && !o.Stop {
		o.Save = nil
	}
	return o
}
