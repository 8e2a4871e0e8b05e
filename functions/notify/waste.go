package notify

import (
	"lowtide/events"
	"lowtide/shared/fleet"
)

// wastes is one incident a workload while it does little with its GPUs; an hour later the same is told by changing it.
func (b *Book) wastes(w Waste, epoch uint64) *Incident {
	if known := b.Works[w.Workload]; known != nil && (known.Over != "" || epoch < known.Epoch) {
		return nil // of a run that is over
	}
	key := "waste/" + w.Workload
	old := b.newest(key)
	if old != nil && !old.Closed.IsZero() && w.Since.Before(old.Closed) {
		return nil // heard late: it worked again, or somebody wants it left as it is, since
	}
	if m := b.Machines[w.Machine]; m != nil {
		w.Hourly = m.Hourly
	}
	sev := Info
	if w.Idle {
		sev = Warning
	}
	i := b.open("waste", key, sev)
	if i.Waste != nil {
		w.Action, w.At = i.Waste.Action, i.Waste.At
		if same(*i.Waste, w) {
			return nil
		}
	}
	i.Team, i.Severity, i.Waste = b.teamOf(w.Workload), sev, &w
	b.touch(i)
	return i
}

// warned notes what will be done about it, and when.
func (b *Book) warned(f events.WorkloadWarned) *Incident {
	i := b.newest("waste/" + f.Workload)
	switch {
	case i == nil: // heard before what it is about
		i = b.open("waste", "waste/"+f.Workload, Warning)
		i.Team, i.Waste = b.teamOf(f.Workload), &Waste{Workload: f.Workload, Idle: f.Action == fleet.IdleStop, Since: b.Now, Why: f.Why}
	case !i.Closed.IsZero() || i.Waste.At.Equal(f.At):
		return nil
	}
	i.Severity, i.Waste.Action, i.Waste.At = Warning, string(f.Action), f.At
	b.touch(i)
	return i
}

// wasted ends it.
func (b *Book) wasted(workload string, end func(*Waste)) {
	if i := b.newest("waste/" + workload); i != nil && i.Closed.IsZero() {
		end(i.Waste)
		b.done(i)
		b.touch(i)
	}
}

// close ends an incident that needs no other words.
func (b *Book) close(key string) {
	if i := b.newest(key); i != nil && i.Closed.IsZero() {
		b.done(i)
		b.touch(i)
	}
}

// notSaved is a checkpoint that did not become durable: what is done since the last one would be lost. Where a machine is
// being taken, it is told there.
func (b *Book) notSaved(f events.CheckpointFailed) *Incident {
	known := b.Works[f.Workload]
	if known != nil && (known.Over != "" || f.Epoch < known.Epoch) {
		return nil
	}
	told := false
	b.each(f.Workload, func(t *Taken) bool {
		told = true
		changed := t.Trouble != f.Why
		t.Trouble = f.Why
		return changed
	})
	if told {
		return nil
	}
	i := b.open("checkpoint", "checkpoint/"+f.Workload, Warning)
	if i.Fault == nil {
		i.Fault = &Fault{Workload: f.Workload, Since: b.Now}
	}
	i.Team, i.Fault.Machine, i.Fault.Why = b.teamOf(f.Workload), f.Machine, lastLine(f.Why)
	if known != nil {
		i.Fault.Step, i.Fault.SavedAt = known.Step, known.SavedAt
	}
	i.Fault.Count++
	b.touch(i)
	return i
}

// stray is a machine with our mark that bills and that no plan holds, seen twice. What the book knows to run is none.
func (b *Book) stray(f events.InstanceFound) *Incident {
	if m := b.Machines[f.Machine]; f.Count < 2 || m != nil && m.Gone.IsZero() && m.Offer != "" {
		return nil
	}
	key := "stray/" + f.Machine
	if i := b.newest(key); i != nil {
		return nil
	}
	i := b.open("stray", key, Warning)
	i.Fault = &Fault{Workload: f.Workload, Machine: f.Machine, ID: f.ID, Offer: f.Offer.String(), Hourly: f.Offer.Hourly.Or(fleet.Money{}), Since: f.Since, Count: 1}
	b.touch(i)
	return i
}
