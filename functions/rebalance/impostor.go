package rebalance

import "lowtide/events"

// impostor says that a fact speaks of a run on a machine that is not that workload's. NATS lets a machine's user speak of
// itself and of its workload alone, by the subject; one that was taken over may still name any machine in a fact about its
// own workload.
func (d *Decider) impostor(f events.Fact) bool {
	var machine, workload string
	switch e := f.(type) {
	case events.WorkloadStarted:
		machine, workload = e.Machine, e.Workload
	case events.WorkloadProgressed:
		machine, workload = e.Machine, e.Workload
	case events.WorkloadStopped:
		machine, workload = e.Machine, e.Workload
	case events.WorkloadFailed:
		machine, workload = e.Machine, e.Workload
	case events.WorkloadFinished:
		machine, workload = e.Machine, e.Workload
	case events.CheckpointSaved:
		machine, workload = e.Machine, e.Workload
	case events.CheckpointFailed:
		machine, workload = e.Machine, e.Workload
	}
	m := d.state.Machines[machine]
	return m != nil && m.Workload != workload
}
