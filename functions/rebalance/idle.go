package rebalance

import (
	"cmp"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

const (
	wasteGrace = 15 * time.Minute // from the warning until the policy is carried out
	keepFor    = 24 * time.Hour   // an objection without a time
)

// idle takes the word that a workload does nothing.
func (d *Decider) idle(e events.WorkloadIdle) {
	stops := func(p fleet.WhenIdle) bool { return p == fleet.IdleStop || p == fleet.IdleSmaller }
	d.wastes(e.Workload, e.Machine, fleet.Waste{Idle: true, Epoch: e.Epoch, Why: e.Why}, fleet.IdleStop, stops)
}

// underused takes the word that a workload would run as well on less.
func (d *Decider) underused(e events.WorkloadUnderused) {
	m := d.state.Machines[e.Machine]
	if m == nil {
		return
	}
	speed := m.Offer.Speed.Or(1)
	needs := fleet.Needs{Speed: e.Needs * speed, Memory: e.Memory, As: speed}
	smaller := func(p fleet.WhenIdle) bool { return p == fleet.IdleSmaller }
	d.wastes(e.Workload, e.Machine, fleet.Waste{Epoch: e.Epoch, Why: e.Why, Needs: needs}, fleet.IdleSmaller, smaller)
}

// wastes notes a waste. Where the workload's policy and autonomy allow to act on it, people are told what, and when; a waste
// that is told again is the same one, and its time stands.
func (d *Decider) wastes(name, machine string, waste fleet.Waste, action fleet.WhenIdle, acts func(fleet.WhenIdle) bool) {
	w, now := d.state.Workloads[name], d.state.Now
	if w == nil || w.Phase != fleet.Accepted || w.Epoch != waste.Epoch || w.On != machine || now.Before(w.Keep) {
		return
	}
	if w.Waste.Epoch == waste.Epoch && w.Waste.Idle == waste.Idle {
		return
	}
	if acts(w.Spec.WhenIdle) && w.Spec.Autonomy == fleet.Act {
		waste.At = now.Add(cmp.Or(w.Spec.IdleGrace, wasteGrace))
		d.announce(events.WorkloadWarned{Workload: name, Action: action, Why: waste.Why, At: waste.At})
	}
	w.Waste = waste
}

// busy ends a waste.
func (d *Decider) busy(e events.WorkloadBusy) {
	if w := d.state.Workloads[e.Workload]; w != nil && w.Waste.Epoch == e.Epoch {
		w.Waste = fleet.Waste{}
	}
}

// kept is a person's objection: nothing is done about any waste until then.
func (d *Decider) kept(e events.WorkloadKept) {
	w := d.state.Workloads[e.Workload]
	if w == nil || w.Phase.Final() {
		return
	}
	w.Waste, w.Keep = fleet.Waste{}, e.Until
	if e.Until.IsZero() {
		w.Keep = d.state.Now.Add(keepFor)
	}
}

// thrift carries a warning out when its time has come and nothing has contradicted it.
func (d *Decider) thrift(w *fleet.Workload) {
	t := w.Waste
	if t.At.IsZero() || d.state.Now.Before(t.At) {
		return
	}
	w.Waste = fleet.Waste{}
	if t.Epoch != w.Epoch {
		return
	}
	if t.Idle {
		d.stopWorkload(w.Spec.Name, fleet.Paused, "it was idle: "+t.Why+"; resume it when there is work")
		return
	}
	w.Needs, w.Review = t.Needs, time.Time{} // the planner finds what is enough, and whether the move pays
}
