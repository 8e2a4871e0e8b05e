package events

import "cmp"

// Kind and Key of every fact: what it is called and whom it is about.

// Kind is clock.ticked.
func (ClockTicked) Kind() Kind { return "clock.ticked" }

// Key is whom it is about.
func (f ClockTicked) Key() string { return keyOf(f.What) }

// Kind is price.changed.
func (PriceChanged) Kind() Kind { return "price.changed" }

// Key is whom it is about.
func (f PriceChanged) Key() string { return keyOf(f.Cloud, f.Region) }

// Kind is notice.received.
func (NoticeReceived) Kind() Kind { return "notice.received" }

// Key is whom it is about.
func (f NoticeReceived) Key() string { return keyOf(f.Cloud) }

// Kind is instance.interrupted.
func (InstanceInterrupted) Kind() Kind { return "instance.interrupted" }

// Key is whom it is about.
func (f InstanceInterrupted) Key() string { return keyOf(cmp.Or(f.Machine, f.ID)) }

// Kind is instance.at_risk.
func (InstanceAtRisk) Kind() Kind { return "instance.at_risk" }

// Key is whom it is about.
func (f InstanceAtRisk) Key() string { return keyOf(cmp.Or(f.Machine, f.ID)) }

// Kind is workload.submitted.
func (WorkloadSubmitted) Kind() Kind { return "workload.submitted" }

// Key is whom it is about.
func (f WorkloadSubmitted) Key() string { return keyOf(f.Spec.Name) }

// Kind is workload.changed.
func (WorkloadChanged) Kind() Kind { return "workload.changed" }

// Key is whom it is about.
func (f WorkloadChanged) Key() string { return keyOf(f.Workload) }

// Kind is workload.withdrawn.
func (WorkloadWithdrawn) Kind() Kind { return "workload.withdrawn" }

// Key is whom it is about.
func (f WorkloadWithdrawn) Key() string { return keyOf(f.Workload) }

// Kind is workload.paused.
func (WorkloadPaused) Kind() Kind { return "workload.paused" }

// Key is whom it is about.
func (f WorkloadPaused) Key() string { return keyOf(f.Workload) }

// Kind is workload.resumed.
func (WorkloadResumed) Kind() Kind { return "workload.resumed" }

// Key is whom it is about.
func (f WorkloadResumed) Key() string { return keyOf(f.Workload) }

// Kind is workload.accepted.
func (WorkloadAccepted) Kind() Kind { return "workload.accepted" }

// Key is whom it is about.
func (f WorkloadAccepted) Key() string { return keyOf(f.Workload) }

// Kind is workload.refused.
func (WorkloadRefused) Kind() Kind { return "workload.refused" }

// Key is whom it is about.
func (f WorkloadRefused) Key() string { return keyOf(f.Workload) }

// Kind is policy.set.
func (PolicySet) Kind() Kind { return "policy.set" }

// Key is the fleet itself.
func (PolicySet) Key() string { return "fleet" }

// Kind is budget.warned.
func (BudgetWarned) Kind() Kind { return "budget.warned" }

// Key is whom it is about.
func (f BudgetWarned) Key() string { return keyOf(f.Workload) }

// Kind is budget.exhausted.
func (BudgetExhausted) Kind() Kind { return "budget.exhausted" }

// Key is whom it is about.
func (f BudgetExhausted) Key() string { return keyOf(f.Workload) }

// Kind is plan.proposed.
func (PlanProposed) Kind() Kind { return "plan.proposed" }

// Key is whom it is about.
func (f PlanProposed) Key() string { return keyOf(f.Plan.ID) }

// Kind is plan.approved.
func (PlanApproved) Kind() Kind { return "plan.approved" }

// Key is whom it is about.
func (f PlanApproved) Key() string { return keyOf(f.Plan) }

// Kind is plan.rejected.
func (PlanRejected) Kind() Kind { return "plan.rejected" }

// Key is whom it is about.
func (f PlanRejected) Key() string { return keyOf(f.Plan) }

// Kind is plan.made.
func (PlanMade) Kind() Kind { return "plan.made" }

// Key is whom it is about.
func (f PlanMade) Key() string { return keyOf(f.Plan.Cloud, f.Plan.Account, f.Plan.ID) }

// Kind is plan.failed.
func (PlanFailed) Kind() Kind { return "plan.failed" }

// Key is whom it is about.
func (f PlanFailed) Key() string { return keyOf(f.Plan) }

// Kind is instance.launched.
func (InstanceLaunched) Kind() Kind { return "instance.launched" }

// Key is whom it is about.
func (f InstanceLaunched) Key() string { return keyOf(f.Machine) }

// Kind is instance.ended.
func (InstanceEnded) Kind() Kind { return "instance.ended" }

// Key is whom it is about.
func (f InstanceEnded) Key() string { return keyOf(f.Machine) }

// Kind is instance.found.
func (InstanceFound) Kind() Kind { return "instance.found" }

// Key is whom it is about.
func (f InstanceFound) Key() string { return keyOf(f.Machine) }

// Kind is instance.lost.
func (InstanceLost) Kind() Kind { return "instance.lost" }

// Key is whom it is about.
func (f InstanceLost) Key() string { return keyOf(f.Machine) }

// Kind is order.given.
func (OrderGiven) Kind() Kind { return "order.given" }

// Key is whom it is about.
func (f OrderGiven) Key() string { return keyOf(f.Machine) }

// Kind is machine.heard.
func (MachineHeard) Kind() Kind { return "machine.heard" }

// Key is whom it is about.
func (f MachineHeard) Key() string { return keyOf(f.Machine) }

// Kind is instance.ready.
func (InstanceReady) Kind() Kind { return "instance.ready" }

// Key is whom it is about.
func (f InstanceReady) Key() string { return keyOf(f.Machine) }

// Kind is workload.started.
func (WorkloadStarted) Kind() Kind { return "workload.started" }

// Key is whom it is about.
func (f WorkloadStarted) Key() string { return keyOf(f.Workload) }

// Kind is workload.progressed.
func (WorkloadProgressed) Kind() Kind { return "workload.progressed" }

// Key is whom it is about.
func (f WorkloadProgressed) Key() string { return keyOf(f.Workload) }

// Kind is workload.stopped.
func (WorkloadStopped) Kind() Kind { return "workload.stopped" }

// Key is whom it is about.
func (f WorkloadStopped) Key() string { return keyOf(f.Workload) }

// Kind is workload.finished.
func (WorkloadFinished) Kind() Kind { return "workload.finished" }

// Key is whom it is about.
func (f WorkloadFinished) Key() string { return keyOf(f.Workload) }

// Kind is workload.failed.
func (WorkloadFailed) Kind() Kind { return "workload.failed" }

// Key is whom it is about.
func (f WorkloadFailed) Key() string { return keyOf(f.Workload) }

// Kind is checkpoint.saved.
func (CheckpointSaved) Kind() Kind { return "checkpoint.saved" }

// Key is whom it is about.
func (f CheckpointSaved) Key() string { return keyOf(f.Workload) }

// Kind is checkpoint.failed.
func (CheckpointFailed) Kind() Kind { return "checkpoint.failed" }

// Key is whom it is about.
func (f CheckpointFailed) Key() string { return keyOf(f.Workload) }

// Kind is benchmark.finished.
func (BenchmarkFinished) Kind() Kind { return "benchmark.finished" }

// Key is whom it is about.
func (f BenchmarkFinished) Key() string { return keyOf(f.Machine) }

// Kind is instance.verified.
func (InstanceVerified) Kind() Kind { return "instance.verified" }

// Key is whom it is about.
func (f InstanceVerified) Key() string { return keyOf(f.Machine) }

// Kind is instance.rejected.
func (InstanceRejected) Kind() Kind { return "instance.rejected" }

// Key is whom it is about.
func (f InstanceRejected) Key() string { return keyOf(f.Machine) }

// Kind is utilisation.measured.
func (UtilisationMeasured) Kind() Kind { return "utilisation.measured" }

// Key is whom it is about.
func (f UtilisationMeasured) Key() string { return keyOf(f.Machine) }

// Kind is workload.idle.
func (WorkloadIdle) Kind() Kind { return "workload.idle" }

// Key is whom it is about.
func (f WorkloadIdle) Key() string { return keyOf(f.Workload) }

// Kind is workload.underused.
func (WorkloadUnderused) Kind() Kind { return "workload.underused" }

// Key is whom it is about.
func (f WorkloadUnderused) Key() string { return keyOf(f.Workload) }

// Kind is workload.busy.
func (WorkloadBusy) Kind() Kind { return "workload.busy" }

// Key is whom it is about.
func (f WorkloadBusy) Key() string { return keyOf(f.Workload) }

// Kind is workload.warned.
func (WorkloadWarned) Kind() Kind { return "workload.warned" }

// Key is whom it is about.
func (f WorkloadWarned) Key() string { return keyOf(f.Workload) }

// Kind is workload.kept.
func (WorkloadKept) Kind() Kind { return "workload.kept" }

// Key is whom it is about.
func (f WorkloadKept) Key() string { return keyOf(f.Workload) }
