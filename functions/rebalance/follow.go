package rebalance

import (
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// Follower knows a fleet from its facts alone, the decider's own among them, and decides nothing: for who reads an old
// stream. What no fact tells (when the planner looks again, what is still to be said) it does not know.
type Follower struct{ d *Decider }

// Follow begins with an empty fleet.
func Follow(name string) *Follower {
	d := New(Config{Fleet: name})
	d.state = fleet.New(name, "")
	return &Follower{d}
}

// Fleet is what is known now. It is the follower's own: read it before the next fact.
func (f *Follower) Fleet() *fleet.Fleet { return f.d.state }

// Hear folds one fact.
func (f *Follower) Hear(e events.Event, at time.Time) {
	s := f.d.state
	if at.After(s.Now) {
		s.Now = at
	}
	switch e := e.Data.(type) {
	case events.WorkloadAccepted:
		if w := s.Workloads[e.Workload]; w != nil && !w.Phase.Final() {
			w.Phase, w.Commit = fleet.Accepted, e.Worst
		}
	case events.WorkloadRefused:
		if w := s.Workloads[e.Workload]; w != nil && w.Phase == "" {
			w.Phase, w.Why, w.Ended = fleet.Refused, e.Why, s.Now
		}
	case events.PlanProposed:
		f.plan(e.Plan)
	case events.PlanMade:
		f.plan(e.Plan)
	case events.OrderGiven:
		f.ordered(e)
	case events.WorkloadStarted:
		f.started(e.Workload, e.Machine, e.Epoch)
		f.d.fold(events.Event{Data: e})
	default:
		f.d.fold(events.Event{Data: e})
	}
	clear(s.Outbox)
}

func (f *Follower) plan(p fleet.Plan) {
	s := f.d.state
	m := s.Machines[p.Machine]
	switch {
	case p.Action == fleet.End && m != nil && m.Phase.Before(fleet.Ending):
		m.Phase = fleet.Ending
	case p.Action == fleet.Launch && m == nil && len(p.Offers) > 0:
		s.Machines[p.Machine] = &fleet.Instance{Name: p.Machine, Plan: p.ID, Workload: p.Workload, Offer: p.Offers[0], Phase: fleet.Ordered, HardEnd: p.HardEnd}
	}
	if p.Action == fleet.Launch && (m == nil || m.Phase == fleet.Ordered) {
		s.Plans[p.ID] = &p
	}
}

func (f *Follower) ordered(e events.OrderGiven) {
	m := f.d.state.Machines[e.Machine]
	if m == nil || e.Order.Number <= m.Order.Number {
		return
	}
	m.Order = e.Order
	if start := e.Order.Start; start != nil {
		f.started(start.Workload, e.Machine, e.Order.Epoch)
	}
}

// started is a run that the decider has ordered.
func (f *Follower) started(workload, machine string, epoch uint64) {
	if w := f.d.state.Workloads[workload]; w != nil && epoch > w.Epoch {
		w.Epoch, w.On, w.Waiting = epoch, machine, time.Time{}
	}
}
