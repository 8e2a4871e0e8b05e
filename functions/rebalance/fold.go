package rebalance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/plan"
)

// fold changes the state by one fact. It is total: what does not fit the state changes nothing.
func (d *Decider) fold(ev events.Event) {
	if d.impostor(ev.Data) {
		return
	}
	f := d.state
	if stirs[ev.Data.Kind()] {
		f.AssignAt = time.Time{}
	}
	switch e := ev.Data.(type) {
	case events.ReservationSet:
		d.reserve(e.Reservation)
	case events.WorkloadSubmitted:
		d.submitted(ev.ID, e.Spec)
	case events.WorkloadChanged:
		d.changed(ev.ID, e)
	case events.WorkloadWithdrawn:
		d.stopWorkload(e.Workload, fleet.Withdrawn, "withdrawn by "+e.By)
	case events.WorkloadPaused:
		d.stopWorkload(e.Workload, fleet.Paused, "paused by "+e.By)
	case events.WorkloadResumed:
		if w := f.Workloads[e.Workload]; w != nil && w.Phase == fleet.Paused {
			w.Phase, w.Why, w.Review = fleet.Accepted, "", time.Time{}
		}
	case events.PolicySet:
		f.Halted = e.Halt
		for _, name := range fleet.Sorted(f.Workloads) {
			f.Workloads[name].Review = time.Time{}
			if e.Stop {
				d.stopWorkload(name, fleet.Paused, e.Halt)
			}
		}
	case events.PlanAsked:
		if w := f.Workloads[e.Workload]; w != nil {
			w.Review = time.Time{}
		}
	case events.PlanApproved:
		d.approved(e)
	case events.PlanRejected:
		d.denied(e)
	case events.CheckpointAsked:
		if w := f.Workloads[e.Workload]; w != nil {
			d.saveNow(w)
		}
	case events.InstanceLaunched:
		d.launched(e)
	case events.PlanFailed:
		d.failed(e)
	case events.InstanceEnded:
		d.ended(e.Machine, e.ID, e.At, e.Why)
	case events.InstanceLost:
		if m := f.Machines[e.Machine]; m != nil && e.Began.Sub(m.Heard) > 90*time.Second {
			d.ended(e.Machine, e.ID, later(m.Heard, m.Bought), "not listed any more")
		}
	case events.InstanceFound:
		d.found(e)
	case events.InstanceReady:
		d.ready(f.Machines[e.Machine], e.ID)
	case events.MachineHeard:
		d.heard(e)
	case events.InstanceInterrupted:
		if m := d.machine(e.Machine, e.Cloud, e.Account, e.ID); m != nil && m.Phase.Before(fleet.Ending) {
			if !m.Doomed() && m.Offer.Market == fleet.Spot { // it may still sell: what is bought there now is taken at once
				d.refuse(m.Offer.Pool(), "interrupted")
			}
			d.doom(m, e.EndsBy, e.Action+", noticed by "+e.Noticed)
		}
	case events.WorkloadIdle:
		d.idle(e)
	case events.WorkloadUnderused:
		d.underused(e)
	case events.WorkloadBusy:
		d.busy(e)
	case events.WorkloadKept:
		d.kept(e)
	case events.InstanceVerified:
		d.verified(e)
	case events.InstanceRejected:
		d.rejected(e)
	case events.WorkloadStarted:
		if m := f.Machines[e.Machine]; m != nil && e.Restore > 0 && e.Epoch > m.Run.Epoch {
			d.startUp(m).Restore.Add(e.Restore)
		}
		d.restored(e)
		if w := f.Workloads[e.Workload]; w != nil && w.Phase == fleet.Accepted && w.Epoch == e.Epoch {
			w.Why = ""
		}
		d.ran(e.Machine, fleet.Run{Epoch: e.Epoch, Phase: fleet.Running, Step: e.Step})
	case events.WorkloadProgressed:
		if w := f.Workloads[e.Workload]; w != nil && e.Of > 0 {
			w.Of = e.Of
		}
		d.ran(e.Machine, fleet.Run{Epoch: e.Epoch, Phase: fleet.Running, Step: e.Step})
	case events.WorkloadStopped:
		d.saved(e.Workload, e.Saved)
		d.ran(e.Machine, fleet.Run{Epoch: e.Epoch, Phase: fleet.RunStopped, Step: e.Step})
	case events.WorkloadFailed:
		if w := f.Workloads[e.Workload]; w != nil && w.On == e.Machine && w.Epoch == e.Epoch {
			w.Why = lastLine(e.Why) // until it goes on; kept where it does not
		}
		d.ran(e.Machine, fleet.Run{Epoch: e.Epoch, Phase: fleet.RunFailed, Step: e.Step, Code: e.Code})
	case events.WorkloadFinished:
		d.saved(e.Workload, e.Saved)
		d.ran(e.Machine, fleet.Run{Epoch: e.Epoch, Phase: fleet.RunFinished, Step: e.Step})
		d.finished(e.Workload, e.Epoch, e.Result)
	case events.CheckpointSaved:
		d.saved(e.Workload, e.Manifest)
		d.answered(e.Machine, e.Save)
	case events.CheckpointFailed:
		d.answered(e.Machine, e.Save)
	}
}

// submitted accepts a workload or says why not. A name is used once: its checkpoints lie under it.
func (d *Decider) submitted(id string, s fleet.Spec) {
	f := d.state
	why := ""
	if err := s.Check(f.Now); err != nil {
		why = err.Error()
	} else if d.size > stateRoom {
		why = fmt.Sprintf("the fleet's state is full (%d bytes of %d): withdraw what has ended, or use another fleet", d.size, stateRoom)
	}
	if why != "" {
		d.announce(events.WorkloadRefused{Workload: s.Name, Asked: id, Why: why})
		return
	}
	if old := f.Workloads[s.Name]; old != nil {
		switch {
		case old.Phase == fleet.Refused: // it may be asked for anew
		case old.Spec.Same(s):
			return
		default:
			d.announce(events.WorkloadRefused{Workload: s.Name, Asked: id, Why: fmt.Sprintf("there is already a workload of this name (%s); a name is used once, since checkpoints lie under it: choose another", old.Phase)})
			return
		}
	}
	w := &fleet.Workload{Spec: &s, Since: f.Now, Asked: id}
	f.Workloads[s.Name] = w
	d.accept(w)
}

// accept promises a workload as soon as the market is known.
func (d *Decider) accept(w *fleet.Workload) {
	f := d.state
	if d.book == nil {
		return // settle tries again; the first price wakes us
	}
	pr, why := plan.Accept(d.book, *w.Spec, d.cfg.Policy.Measured(f), f.Now, slices.Collect(maps.Values(f.Reserved))...)
	asked := w.Asked
	w.Asked = ""
	if why != "" {
		w.Phase, w.Why, w.Ended = fleet.Refused, why, f.Now
		d.announce(events.WorkloadRefused{Workload: w.Spec.Name, Asked: asked, Why: why})
		return
	}
	w.Phase, w.Commit = fleet.Accepted, pr.Worst
	d.announce(events.WorkloadAccepted{
		Workload: w.Spec.Name, Asked: asked, Worst: pr.Worst, Baseline: pr.Baseline, Bound: pr.Bound, Unbooted: pr.Unbooted,
		Finish: pr.Finish, Deadline: w.Spec.Deadline, Budget: w.Spec.Budget,
	})
}

func (d *Decider) changed(id string, e events.WorkloadChanged) {
	w := d.state.Workloads[e.Workload]
	if w == nil || w.Phase.Final() {
		return
	}
	s := *w.Spec
	if !e.Deadline.IsZero() {
		s.Deadline = e.Deadline
	}
	if _, ok := e.Budget.Get(); ok {
		s.Budget = e.Budget
	}
	if why := d.broken(w, s); why != "" {
		d.announce(events.ChangeRefused{Workload: e.Workload, Change: id, Why: why})
		return
	}
	s.Autonomy = cmp.Or(e.Autonomy, s.Autonomy)
	w.Spec = &s
	w.Review = time.Time{}
}

// broken says why a stricter deadline or budget cannot be promised for the work that is left; "" promises it. What is
// easier to keep than before is not looked at: lowtide may be late already.
func (d *Decider) broken(w *fleet.Workload, s fleet.Spec) string {
	if err := s.Check(d.state.Now); err != nil {
		return err.Error()
	}
	old, left := *w.Spec, s
	if !old.Deadline.IsZero() && !s.Deadline.Before(old.Deadline) {
		left.Deadline = time.Time{}
	}
	had, bounded := old.Budget.Get()
	budget, asked := s.Budget.Get()
	spent := plan.Spent(d.state, w, d.state.Now)
	switch {
	case !asked || bounded && !budget.Amount.LessThan(had.Amount):
		left.Budget = fleet.Maybe[fleet.Money]{}
	case spent.Amount.GreaterThanOrEqual(budget.Amount):
		return fmt.Sprintf("%s is spent already", spent)
	default:
		left.Budget = fleet.Known(fleet.Money{Amount: budget.Amount.Sub(spent.Amount), Currency: budget.Currency})
	}
	if _, strict := left.Budget.Get(); left.Deadline.IsZero() && !strict {
		return ""
	}
	if d.book == nil {
		return "no price is known yet; try again later"
	}
	left.Work = w.Left(w.Saved.Step)
	_, why := plan.Accept(d.book, left, d.cfg.Policy.Measured(d.state), d.state.Now)
	return why
}

// stopWorkload asks for a save and a stop; settle carries it out.
func (d *Decider) stopWorkload(name string, to fleet.WorkloadPhase, why string) {
	w := d.state.Workloads[name]
	if w == nil || w.Phase.Final() || w.Phase == to {
		return
	}
	w.Phase, w.Why = to, why
	if to.Final() {
		w.Ended = d.state.Now
	}
}

func (d *Decider) launched(e events.InstanceLaunched) {
	f := d.state
	d.refused(e.Refused)
	if m := f.Machines[e.Machine]; m == nil || !m.Doomed() { // a warning may be heard before the purchase
		d.sold(e.Offer.Pool())
	}
	delete(f.Refusals, blamelessKey(e.Workload))
	d.closePlan(e.Plan)
	m := f.Machines[e.Machine]
	if m == nil { // the state does not know it (any more): it is listed, and ends as a stray
		m = &fleet.Instance{Name: e.Machine, Plan: e.Plan, Workload: e.Workload}
		f.Machines[e.Machine] = m
	}
	if m.Phase == fleet.Ended {
		return
	}
	m.ID, m.Offer, m.Bought = e.ID, e.Offer, e.At
	if m.Phase == "" || m.Phase.Before(fleet.Launched) {
		m.Phase = fleet.Launched
	}
}

func (d *Decider) failed(e events.PlanFailed) {
	f := d.state
	d.refused(e.Refused)
	p := f.Plans[e.Plan]
	if p == nil {
		return
	}
	if p.Action == fleet.End {
		return // it stays open: it is said again until the machine is gone
	}
	wait := time.Duration(0)
	if len(e.Refused) == 0 { // nothing to avoid next time: the same plan would fail again at once, and for ever
		wait = d.blameless(p.Workload)
	}
	d.drop(p, wait)
}

// blameless is how long a workload waits after a plan that failed without anybody's refusal: five seconds, doubled for
// each such failure in a row, up to a minute.
func (d *Decider) blameless(workload string) time.Duration {
	key := blamelessKey(workload)
	r := d.state.Refusals[key]
	if r == nil {
		r = &fleet.Refusal{Pool: key, Why: "plans failed, and nobody refused"}
		d.state.Refusals[key] = r
	}
	wait := doubled(5*time.Second, r.Count, time.Minute)
	r.Count, r.Until = r.Count+1, d.state.Now.Add(wait)
	return wait
}

// blamelessKey is where a workload's failed plans are kept among the refusals; no pool begins so.
func blamelessKey(workload string) string { return "workload:" + workload }

// drop closes a launch that will not be, with its machine.
func (d *Decider) drop(p *fleet.Plan, wait time.Duration) {
	f := d.state
	d.closePlan(p.ID)
	if m := f.Machines[p.Machine]; m != nil && m.Phase == fleet.Ordered {
		delete(f.Machines, p.Machine)
	}
	if w := f.Workloads[p.Workload]; w != nil {
		if w.Next == p.Machine {
			w.Next = ""
		}
		w.Review = time.Time{}
		if wait > 0 {
			w.Review = f.Now.Add(wait)
		}
	}
}

func (d *Decider) refused(list []events.Refused) {
	for _, r := range list {
		d.refuse(r.Pool, r.Why)
	}
}

// How long a pool that refused, warned or sold a bad machine is not asked again: a minute, doubled each time it does so
// again, up to a quarter of an hour. On the recorded markets, with nothing listed of what is to be had, that costs 0.1 %
// of on-demand more than asking each few minutes does and 0.3 % less than an hour would.
const (
	refusalLeast = time.Minute
	refusalMost  = 15 * time.Minute
	refusalCalm  = time.Hour // after which a new refusal is the first again
)

// refuse remembers that a pool did not serve. What is said while the time-out stands is the same trouble told once more, by
// another launch or another machine: it does not make it longer.
func (d *Decider) refuse(pool, why string) {
	f := d.state
	r := f.Refusals[pool]
	switch {
	case r == nil:
		r = &fleet.Refusal{Pool: pool}
		f.Refusals[pool] = r
	case f.Now.Before(r.Until):
		r.Why = why
		return
	case f.Now.Sub(r.Until) > refusalCalm:
		r.Count = 0
	}
	r.Count, r.Why = r.Count+1, why
	r.Until = f.Now.Add(doubled(refusalLeast, r.Count-1, refusalMost))
}

// sold takes a pool's time-out off, and the reason. How often it refused is kept for a while: a pool that warns of what it
// has just sold is to be left alone for longer and longer.
func (d *Decider) sold(pool string) {
	r := d.state.Refusals[pool]
	if r == nil {
		return
	}
	r.Why = ""
	if d.state.Now.Before(r.Until) {
		r.Until = d.state.Now
	}
}

// doubled is a wait that has doubled n times, at most most.
func doubled(least time.Duration, n int, most time.Duration) time.Duration {
	return min(least<<min(n, 16), most)
}

// ended takes a machine off, with what it cost; the run on it is over.
func (d *Decider) ended(name, id string, at time.Time, why string) {
	f := d.state
	m := f.Machines[name]
	if m == nil || m.Phase == fleet.Ended || id != "" && m.ID != "" && id != m.ID {
		return
	}
	if m.Phase == fleet.Ordered { // it was bought and is gone before we heard of the purchase
		m.ID = id
		if p := f.Plans[m.Plan]; p != nil && p.Action == fleet.Launch {
			return // the purchase is still to be told; its price with it
		}
	}
	if unseen := why == "gone" || why == "not listed any more"; unseen && m.Doomed() && m.EndsBy.Before(at) {
		at = later(m.EndsBy, m.Bought) // the cloud took it as announced, and we only looked later
	}
	m.Phase, m.Gone = fleet.Ended, at
	m.Cause = cmp.Or(m.Cause, why)
	for _, id := range fleet.Sorted(f.Plans) {
		if p := f.Plans[id]; p.Machine == name && (p.Action == fleet.End || !p.Approved) {
			d.closePlan(id)
		}
	}
	d.closeItems(func(i *fleet.Item) bool { return i.Machine == name })
	w := f.Workloads[m.Workload]
	if w == nil {
		return
	}
	w.Spent = w.Spent.Add(m.Cost(f.Now))
	if w.Next == name {
		w.Next, w.Review = "", time.Time{}
	}
	if w.On == name {
		d.lostSteps(w, m)
		w.On, w.Review = "", time.Time{}
	}
}

// lostSteps counts what must be done again.
func (d *Decider) lostSteps(w *fleet.Workload, m *fleet.Instance) {
	if m.Run.Epoch == w.Epoch && !w.Phase.Final() && m.Run.Step > w.Saved.Step {
		w.Lost += m.Run.Step - w.Saved.Step
	}
	w.Step = w.Saved.Step
}

// found takes a listed machine of ours over, or marks it for its end.
func (d *Decider) found(e events.InstanceFound) {
	f := d.state
	m := f.Machines[e.Machine]
	switch {
	case m != nil && m.Phase == fleet.Ended && m.ID == e.ID:
		if e.Began.After(m.Gone) { // we believed it gone, and it bills
			m.Phase, m.Gone, m.Cause = fleet.Launched, time.Time{}, "listed although it was said to have ended"
		}
	case m != nil && m.ID == "":
		m.ID, m.Offer = e.ID, e.Offer // the purchase is told by provision; this is the first we see of it
	case m == nil && e.Count >= 2 && f.Plans[e.Plan] == nil && e.Began.Sub(e.Since) > 15*time.Minute:
		f.Machines[e.Machine] = &fleet.Instance{
			Name: e.Machine, ID: e.ID, Plan: e.Plan, Offer: e.Offer, Bought: e.Since, Phase: fleet.Launched, Cause: "stray: labelled ours, no plan holds it",
		}
	}
}

func (d *Decider) ready(m *fleet.Instance, id string) {
	if m == nil {
		return
	}
	m.Heard = d.state.Now
	m.ID = cmp.Or(m.ID, id)
	if m.Phase.Before(fleet.Ready) {
		m.Phase, m.ReadyAt = fleet.Ready, d.state.Now
		if !m.Bought.IsZero() {
			d.startUp(m).Boot.Add(m.ReadyAt.Sub(m.Bought))
		}
	}
}

// startUp is what is known of how long the machines of this one's cloud take to start.
func (d *Decider) startUp(m *fleet.Instance) *fleet.StartUp {
	cloud := m.Offer.Cloud
	if d.state.StartUps[cloud] == nil {
		d.state.StartUps[cloud] = &fleet.StartUp{}
	}
	return d.state.StartUps[cloud]
}

// heard takes all that an agent knows, so that no other fact of it need have arrived.
func (d *Decider) heard(e events.MachineHeard) {
	m := d.state.Machines[e.Machine]
	if m == nil {
		return
	}
	d.ready(m, e.ID)
	m.Acked = max(m.Acked, e.Number)
	d.leased(m, e.Lease)
	if e.Workload == "" || e.Workload != m.Workload {
		return
	}
	d.saved(e.Workload, e.Saved)
	d.ran(e.Machine, e.Run)
	if e.Run.Phase == fleet.RunFinished {
		d.finished(e.Workload, e.Run.Epoch, e.Result)
	}
}

// ran takes over what a machine's process does. A run only goes forward, and an older epoch says nothing.
func (d *Decider) ran(machine string, r fleet.Run) {
	m := d.state.Machines[machine]
	if m == nil || r.Epoch == 0 || r.Epoch < m.Run.Epoch || r.Epoch == m.Run.Epoch && m.Run.Phase.Over() && !r.Phase.Over() {
		return
	}
	if r.Epoch == m.Run.Epoch {
		r.Step = max(r.Step, m.Run.Step)
	}
	m.Run = r
	w := d.state.Workloads[m.Workload]
	if w == nil || r.Epoch != w.Epoch || w.On != machine {
		return
	}
	w.Step = max(w.Step, r.Step)
	if r.Phase == fleet.Running {
		d.pace(w, m, r.Step)
	}
	if r.Phase == fleet.RunFailed {
		d.crashed(w, m)
	}
}

// maxFails is how often a workload may fail of itself, in a row and without a new checkpoint, before it is given up.
const maxFails = 3

func (d *Decider) crashed(w *fleet.Workload, m *fleet.Instance) {
	w.On, w.Review = "", time.Time{} // the machine is free; settle puts the next run on it
	d.lostSteps(w, m)
	if w.Fails++; w.Fails >= maxFails {
		w.Phase, w.Ended = fleet.Failed, d.state.Now
		w.Why = strings.TrimSuffix(fmt.Sprintf("failed %d times without a new checkpoint, last with exit status %d: %s", w.Fails, m.Run.Code, w.Why), ": ")
		return
	}
	if w.Next == "" && m.Phase == fleet.Verified && !m.Doomed() {
		w.Next = m.Name
	}
}

// restored notes which checkpoint a run began from: where the newest was damaged, the one before it.
func (d *Decider) restored(e events.WorkloadStarted) {
	w := d.state.Workloads[e.Workload]
	if w == nil || e.Epoch != w.Epoch || e.From == "" || e.From != w.Prior.ID || w.Saved.Epoch == w.Epoch {
		return
	}
	w.Lost += max(0, w.Saved.Step-w.Prior.Step)
	w.Saved, w.Prior, w.Step = w.Prior, fleet.Manifest{}, e.Step
}

// saved takes over a durable checkpoint of the present epoch; others are kept aside by their epoch.
func (d *Decider) saved(workload string, man fleet.Manifest) {
	w := d.state.Workloads[workload]
	if w == nil || man.ID == "" || man.Epoch != w.Epoch || man.ID == w.Saved.ID {
		return
	}
	if man.Epoch == w.Saved.Epoch && man.Step < w.Saved.Step {
		return // of a later epoch it counts also with fewer steps: that run began from an older checkpoint
	}
	if man.Step > w.Saved.Step {
		w.Fails = 0
	}
	w.Prior, w.Saved = w.Saved, man
	w.SaveTook = max(man.Took, w.SaveTook*9/10) // slowest of late, forgotten slowly
	w.Step = max(w.Step, man.Step)
}

func (d *Decider) answered(machine, save string) {
	if m := d.state.Machines[machine]; m != nil && save != "" {
		m.Answered = save
	}
}

func (d *Decider) finished(workload string, epoch uint64, result string) {
	w := d.state.Workloads[workload]
	if w == nil || epoch != w.Epoch || w.Phase.Final() {
		return
	}
	w.Phase, w.Result, w.Ended, w.On = fleet.Finished, result, d.state.Now, ""
}

// doom marks the earliest announced end.
func (d *Decider) doom(m *fleet.Instance, endsBy time.Time, cause string) {
	if m.Doomed() && !endsBy.Before(m.EndsBy) {
		return
	}
	m.EndsBy, m.Cause = endsBy, cause
	if w := d.state.Workloads[m.Workload]; w != nil {
		w.Review = time.Time{}
	}
}

// machine finds one by our name, or by the cloud's id.
func (d *Decider) machine(name, cloud, account, id string) *fleet.Instance {
	if m := d.state.Machines[name]; m != nil || id == "" {
		return m
	}
	for _, m := range d.state.Machines {
		if m.ID == id && m.Offer.Cloud == cloud && m.Offer.Account == account {
			return m
		}
	}
	return nil
}

func asked(m *fleet.Instance, nonce string) bool {
	return m.Order.Benchmark != nil && m.Order.Benchmark.Nonce == nonce
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// lastLine is what a person reads first of a log's end, bounded.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	s = s[strings.LastIndexByte(s, '\n')+1:]
	return strings.ToValidUTF8(s[:min(len(s), 200)], "")
}
