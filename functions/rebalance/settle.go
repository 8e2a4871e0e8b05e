package rebalance

import (
	"time"

	"lowtide/shared/fleet"
)

// Times that do not depend on a cloud.
const (
	confirmAfter = 30 * time.Second // after an announced end, the cloud is asked
	evictAfter   = time.Hour        // an ended machine is forgotten
	unreadyAfter = 15 * time.Minute // a machine that never spoke is given up
	stuckAfter   = 5 * time.Minute  // after its expiry, a launch without an answer is not waited for
)

// settle draws all conclusions that need no choice: orders to machines, ends, epochs. It may run any number of times.
func (d *Decider) settle() {
	f := d.state
	d.expire()
	d.watch()
	for _, w := range d.workloads.of(f.Workloads) {
		d.settleWorkload(w)
	}
	for _, m := range d.machines.of(f.Machines) {
		d.settleMachine(m)
	}
	for _, id := range fleet.Sorted(f.Plans) {
		if p := f.Plans[id]; p.Action == fleet.Launch && !p.Approved && !f.Now.Before(p.Expires) {
			d.unanswered(p)
		}
	}
	for pool, r := range f.Refusals {
		if f.Now.Sub(r.Until) > 24*time.Hour {
			delete(f.Refusals, pool)
		}
	}
}

// settleWorkload brings run and machines together.
//
//	on           next        what follows
//	runs         –           nothing; doomed: save, at the last moment save and stop
//	runs         verified    save and stop; then the next row
//	over or none verified    a new epoch starts on next
//	any          rejected    next is given up
//	doubted      –           save and stop; then it is next, and must prove itself again
func (d *Decider) settleWorkload(w *fleet.Workload) {
	f := d.state
	if w.Phase == "" {
		d.accept(w)
	}
	d.thrift(w)
	on, next := f.Machines[w.On], f.Machines[w.Next]
	if w.On != "" && (on == nil || on.Phase == fleet.Ended) {
		w.On, on = "", nil
	}
	if next != nil && d.useless(next) || w.Next != "" && next == nil {
		w.Next, next, w.Review = "", nil, time.Time{}
	}
	switch {
	case w.Phase != fleet.Accepted || on != nil || next != nil:
		w.Waiting = time.Time{}
	case w.Waiting.IsZero():
		w.Waiting = f.Now
	}
	if w.Phase != fleet.Accepted {
		d.wind(w, on, next)
		return
	}
	if on != nil {
		d.overdue(w, on)
		d.reprove(w, on)
		on, next = f.Machines[w.On], f.Machines[w.Next]
	}
	if on != nil && on.Run.Epoch == w.Epoch && on.Run.Phase.Over() {
		d.lostSteps(w, on)
		w.On, on, w.Review = "", nil, time.Time{}
	}
	if on != nil && on.Doomed() {
		d.rescue(w, on)
	}
	if next == nil {
		return
	}
	if next.Phase == fleet.Ready && next.Order.Benchmark == nil {
		d.order(next, fleet.Order{Benchmark: &fleet.Benchmark{Nonce: d.nonce(next), Suite: d.cfg.Suite, Check: check(w.Spec)}})
	}
	if next.Phase != fleet.Verified {
		return
	}
	switch {
	case on == nil:
		d.start(w, next)
	case d.silent(on):
		d.release(on.Name, "silent, and its replacement is ready") // the cloud confirms the end; then the run is over
	case !on.Order.Stop:
		d.saveAndStop(on, on.EndsBy)
	}
}

// check is the workload's own, if it has one.
func check(s *fleet.Spec) *fleet.Check {
	if len(s.Kit.Verify) == 0 {
		return nil
	}
	return &fleet.Check{Workload: s.Name, Command: s.Kit.Verify, Env: s.Env, Code: s.Kit.Code, Image: s.Kit.Image}
}

// wind brings a workload that shall not run to rest.
func (d *Decider) wind(w *fleet.Workload, on, next *fleet.Instance) {
	if next != nil {
		d.release(next.Name, "not needed: "+string(w.Phase))
		w.Next = ""
	}
	if on == nil {
		return
	}
	running := on.Run.Epoch < w.Epoch || !on.Run.Phase.Over() // a start that was ordered may yet run
	if running && !on.Order.Stop && w.Phase != fleet.Finished {
		d.saveAndStop(on, on.EndsBy)
	}
	if !running || w.Phase == fleet.Finished {
		w.On = ""
	}
}

// rescue makes the most of a notice: a save at once, and at the last moment a save and the stop.
func (d *Decider) rescue(w *fleet.Workload, on *fleet.Instance) {
	f := d.state
	left := on.EndsBy.Sub(f.Now)
	if left <= 0 || on.Order.Stop || on.Run.Phase.Over() {
		return
	}
	if left <= w.SaveTook+d.cfg.Margin {
		d.saveAndStop(on, on.EndsBy)
		return
	}
	if on.Order.Save == nil || on.Order.Save.By.IsZero() || on.EndsBy.Before(on.Order.Save.By) {
		o := on.Order
		o.Save = &fleet.Save{ID: d.id("s"), By: on.EndsBy}
		d.order(on, o)
	}
}

// saveNow asks for a checkpoint of a run that goes on.
func (d *Decider) saveNow(w *fleet.Workload) {
	on := d.state.Machines[w.On]
	if on == nil || on.Run.Epoch != w.Epoch || on.Run.Phase != fleet.Running || on.Order.Stop || on.Doomed() {
		return // it does not run, or saves anyway
	}
	o := on.Order
	o.Save = &fleet.Save{ID: d.id("s")}
	d.order(on, o)
}

// saveAndStop ends a run with its checkpoint.
func (d *Decider) saveAndStop(on *fleet.Instance, by time.Time) {
	o := on.Order
	o.Save, o.Stop = &fleet.Save{ID: d.id("s"), By: by}, true
	d.order(on, o)
}

// start begins a run: a new epoch, from the newest durable checkpoint. The epoch is raised in the save that orders it.
func (d *Decider) start(w *fleet.Workload, m *fleet.Instance) {
	w.Epoch++
	if w.Epoch > 1 {
		w.Moves++
	}
	w.On, w.Next = m.Name, ""
	w.Waste = fleet.Waste{}
	w.Review = time.Time{}
	w.Step = w.Saved.Step
	m.Workload = w.Spec.Name
	keep := []string{}
	for _, man := range []fleet.Manifest{w.Saved, w.Prior} {
		if man.ID != "" {
			keep = append(keep, man.ID)
		}
	}
	d.order(m, fleet.Order{
		Benchmark: m.Order.Benchmark,
		Epoch:     w.Epoch,
		Start: &fleet.Start{
			Workload: w.Spec.Name, Run: w.Spec.Run, Env: w.Spec.Env, SaveEvery: w.Spec.SaveEvery, From: w.Saved.ID, Prior: w.Prior.ID,
			Kit: w.Spec.Kit,
		},
		Prune: &fleet.Prune{Workload: w.Spec.Name, Keep: keep},
	})
}

// settleMachine ends what nobody needs and asks after what should have ended.
func (d *Decider) settleMachine(m *fleet.Instance) {
	f := d.state
	switch {
	case m.Phase == fleet.Ended:
		if f.Now.Sub(m.Gone) > evictAfter {
			delete(f.Machines, m.Name)
		}
	case m.Phase == fleet.Ending:
	case m.Doomed() && f.Now.After(m.EndsBy.Add(confirmAfter)):
		d.release(m.Name, "its announced end has passed")
	case m.Phase == fleet.Rejected:
		d.release(m.Name, "rejected: "+m.Cause)
	case m.Phase == fleet.Launched && !m.Bought.IsZero() && f.Now.Sub(m.Bought) > unreadyAfter:
		d.refuse(m.Offer.Pool(), "never became ready")
		d.release(m.Name, "never became ready")
	case m.Phase != fleet.Ordered && !d.needed(m):
		d.release(m.Name, "not needed any more")
	}
}

// needed says that a workload holds the machine, or that its process may still run there.
func (d *Decider) needed(m *fleet.Instance) bool {
	w := d.state.Workloads[m.Workload]
	if w == nil {
		return false
	}
	return w.On == m.Name || w.Next == m.Name
}

// useless says that a machine cannot take a workload over any more.
func (d *Decider) useless(m *fleet.Instance) bool {
	f := d.state
	switch m.Phase {
	case fleet.Rejected, fleet.Ending, fleet.Ended:
		return true
	case fleet.Ordered:
		p := f.Plans[m.Plan]
		return p == nil || f.Now.After(p.Expires.Add(stuckAfter))
	case fleet.Launched:
		if !m.Bought.IsZero() && f.Now.Sub(m.Bought) > unreadyAfter {
			return true
		}
	default:
		if d.silent(m) {
			return true
		}
	}
	return m.Doomed()
}

func (d *Decider) silent(m *fleet.Instance) bool {
	return d.state.Silent(m, d.state.Now, d.cfg.Policy.Silence)
}

// release plans the end of a machine, once.
func (d *Decider) release(name, why string) {
	f := d.state
	m := f.Machines[name]
	if m == nil || m.Phase == fleet.Ending || m.Phase == fleet.Ended || m.Phase == fleet.Ordered {
		return // what was only ordered is ended when its purchase is told
	}
	m.Phase = fleet.Ending
	if m.Cause == "" {
		m.Cause = why
	}
	d.closeItems(func(i *fleet.Item) bool { return i.Machine == name })
	p := &fleet.Plan{
		ID: d.id("p"), Action: fleet.End, Machine: name, Instance: m.ID, Cloud: m.Offer.Cloud, Account: m.Offer.Account,
		Workload: m.Workload, Made: f.Now, Approved: true, Score: fleet.Score{Reason: why},
	}
	f.Plans[p.ID] = p
	d.open(&fleet.Item{Plan: p.ID})
}
