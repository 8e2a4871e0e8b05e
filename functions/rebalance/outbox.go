package rebalance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// saySteps is when an item is said again: 5 s, 15 s and 60 s after, then each minute.
var saySteps = []time.Duration{5 * time.Second, 15 * time.Second, time.Minute}

// open puts an item into the outbox, due at once.
func (d *Decider) open(i *fleet.Item) {
	i.ID = d.id("o")
	i.NextAt = d.state.Now
	d.state.Outbox[i.ID] = i
}

// announce says a fact that nothing answers: at once, and once more under the same id.
func (d *Decider) announce(fact events.Fact) {
	i := &fleet.Item{}
	d.open(i)
	e := events.New(d.state.Name, "rebalance", d.state.Now, fact)
	e.ID = d.sayID(i)
	b, err := events.Encode(e)
	if err != nil {
		delete(d.state.Outbox, i.ID) // too large to be said at all; the state still shows it
		return
	}
	i.Fact = b
}

// closeItems takes items off.
func (d *Decider) closeItems(which func(*fleet.Item) bool) {
	for id, i := range d.state.Outbox {
		if which(i) {
			delete(d.state.Outbox, id)
		}
	}
}

func (d *Decider) closePlan(id string) {
	delete(d.state.Plans, id)
	d.closeItems(func(i *fleet.Item) bool { return i.Plan == id })
}

// order gives a machine its next desired state.
func (d *Decider) order(m *fleet.Instance, o fleet.Order) {
	o.Number = m.Order.Number + 1
	m.Order = o
	d.closeItems(func(i *fleet.Item) bool { return i.Machine == m.Name })
	d.open(&fleet.Item{Machine: m.Name})
}

// nonce cannot be guessed before it is given, and is the same when the batch is folded again.
func (d *Decider) nonce(m *fleet.Instance) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%s/%d", d.cfg.Install, m.Name, m.ID, m.Plan, d.state.Applied.Seq))
	return hex.EncodeToString(h[:12])
}

// obeyed says that all an order asks for has come about.
func obeyed(m *fleet.Instance) bool {
	o := m.Order
	over := m.Run.Epoch >= o.Epoch && m.Run.Phase.Over()
	switch {
	case o.Stop:
		return over
	case o.Save != nil:
		return m.Answered == o.Save.ID || over
	case o.Start != nil:
		return m.Run.Epoch >= o.Epoch && m.Run.Phase != fleet.Starting
	case o.Benchmark != nil:
		return !m.Phase.Before(fleet.Verified)
	}
	return m.Acked >= o.Number
}

// due returns what must be said now and arms the next wake-up. With again, everything open is said under the id it was
// last said under: where that arrived, the stream drops the repeat.
func (d *Decider) due(again bool) []events.Event {
	f := d.state
	d.closeItems(func(i *fleet.Item) bool {
		m := f.Machines[i.Machine]
		return i.Machine != "" && (m == nil || m.Phase == fleet.Ending || m.Phase == fleet.Ended || obeyed(m))
	})
	var out []events.Event
	for _, i := range d.inOrder() {
		repeat := again && i.Said > 0
		if !repeat && f.Now.Before(i.NextAt) {
			continue
		}
		if !repeat {
			i.NextAt = f.Now.Add(saySteps[min(i.Said, len(saySteps)-1)])
			i.Said++
			d.spoke(f.Machines[i.Machine])
		}
		if e, ok := d.say(i); ok {
			out = append(out, e)
		}
		if i.Fact != nil && i.Said >= 2 {
			delete(f.Outbox, i.ID)
		}
	}
	out = append(out, d.renew()...)
	if wake := d.wake(); !wake.Equal(f.WakeAt) || again {
		f.WakeAt = wake
		e := events.New(f.Name, "rebalance", f.Now, events.ClockTicked{What: "wake", Due: wake})
		e.At = wake
		// Unique for each arming: the same time armed again, after an earlier one replaced it, is not a repeat.
		e.ID = fmt.Sprintf("%s/%s/wake/%d/%d", f.Install, f.Name, f.Applied.Seq, wake.UnixNano())
		out = append(out, e)
	}
	return out
}

// inOrder is the outbox as it is said: orders before all else, since a machine that is about to be taken waits for its
// own, and each kind as it was opened.
func (d *Decider) inOrder() []*fleet.Item {
	rank := func(i *fleet.Item) int {
		if i.Machine != "" {
			return 0
		}
		return 1
	}
	return slices.SortedFunc(maps.Values(d.state.Outbox), func(a, b *fleet.Item) int {
		return cmp.Or(rank(a)-rank(b), len(a.ID)-len(b.ID), cmp.Compare(a.ID, b.ID)) // "o9" before "o10"
	})
}

// say makes the event of an item, under an id that tells attempts apart.
func (d *Decider) say(i *fleet.Item) (events.Event, bool) {
	f := d.state
	var fact events.Fact
	switch {
	case i.Fact != nil:
		e, err := events.Decode(i.Fact)
		return e, err == nil
	case i.Plan != "":
		p := f.Plans[i.Plan]
		if p == nil {
			return events.Event{}, false
		}
		fact = events.PlanMade{Plan: *p, Install: f.Install, Attempt: i.Said}
	default:
		fact = events.OrderGiven{Machine: i.Machine, Order: f.Machines[i.Machine].Order, Attempt: i.Said}
	}
	e := events.New(f.Name, "rebalance", f.Now, fact)
	e.ID = fmt.Sprintf("%s/%d", d.sayID(i), i.Said)
	return e, true
}

// sayID is unique in the stream: install and fleet tell this outbox from all others.
func (d *Decider) sayID(i *fleet.Item) string {
	return d.state.Install + "/" + d.state.Name + "/" + i.ID
}

// wake is when something falls due at the latest.
func (d *Decider) wake() time.Time {
	f := d.state
	at := f.Now.Add(d.cfg.Policy.Wake)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	for _, i := range f.Outbox {
		sooner(i.NextAt)
	}
	if len(f.Reserved) > 0 {
		sooner(f.AssignAt)
	}
	for _, p := range f.Plans {
		if p.Action == fleet.Launch && !p.Approved {
			sooner(p.Expires)
		}
	}
	for _, w := range f.Workloads {
		if w.Phase == fleet.Accepted {
			sooner(w.Review)
			sooner(w.Waste.At)
		}
	}
	for _, m := range f.Machines {
		sooner(d.renewAt(m))
		switch {
		case m.Phase == fleet.Ending || m.Phase == fleet.Ended:
		case m.Doomed():
			sooner(m.EndsBy.Add(confirmAfter + time.Second))
			if w := f.Workloads[m.Workload]; w != nil && w.On == m.Name && !m.Order.Stop {
				sooner(m.EndsBy.Add(-w.SaveTook - d.cfg.Margin))
			}
		case m.Phase == fleet.Verified && m.Doubt == "":
			sooner(d.proofDue(m))
		case m.Phase == fleet.Launched && !m.Bought.IsZero():
			sooner(m.Bought.Add(unreadyAfter + time.Second))
		}
	}
	if !at.After(f.Now) {
		at = f.Now.Add(time.Second)
	}
	return at
}
