package rebalance

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// Approval says which launches a person decides on, besides those of workloads whose autonomy is suggest. The zero
// Approval asks for no more than those, and buys nothing without an answer.
type Approval struct {
	Hourly fleet.Money       // a launch that may cost more an hour; zero: no bound
	Worst  fleet.Money       // one that may cost more until its hard end; zero: no bound
	Clouds []string          // any launch there
	Tags   map[string]string // any launch for a workload with one of these tags
	Wait   time.Duration     // how long an answer is waited for; 0: the plan's life
	Buy    bool              // without an answer it is bought
	// Recovery: a workload that has lost its machine gets another at no more than this an hour, or than a person has
	// approved for it before, and nobody is asked.
	Recovery fleet.Money
}

// Why says why a person is asked about a launch; "" is nobody.
func (a Approval) Why(w *fleet.Workload, p *fleet.Plan, recovery bool) string {
	most := p.Highest()
	if limit := greater(a.Recovery, w.Allowed); recovery && w.Spec.Autonomy != fleet.Observe && limit.Amount.GreaterThanOrEqual(most.Amount) && limit.Amount.IsPositive() {
		return ""
	}
	switch {
	case w.Spec.Autonomy == fleet.Observe:
		return "the workload is only observed"
	case w.Spec.Autonomy != fleet.Act:
		return "its autonomy is " + string(cmp.Or(w.Spec.Autonomy, fleet.Observe))
	case a.Hourly.Amount.IsPositive() && most.Amount.GreaterThan(a.Hourly.Amount):
		return fmt.Sprintf("%s/h is above %s/h", most, a.Hourly)
	case a.Worst.Amount.IsPositive() && p.Score.Worst.Amount.GreaterThan(a.Worst.Amount):
		return fmt.Sprintf("%s at worst is above %s", p.Score.Worst, a.Worst)
	case slices.Contains(a.Clouds, p.Cloud):
		return "it is on " + p.Cloud
	}
	for _, k := range fleet.Sorted(a.Tags) {
		if v, ok := w.Spec.Tags[k]; ok && v == a.Tags[k] {
			return fmt.Sprintf("the workload's tag %s is %s", k, v)
		}
	}
	return ""
}

func greater(a, b fleet.Money) fleet.Money {
	if a.Amount.GreaterThan(b.Amount) {
		return a
	}
	return b
}

// recovers says that a workload has run and has lost, or is about to lose, the machine it ran on.
func (d *Decider) recovers(w *fleet.Workload) bool {
	on := d.state.Machines[w.On]
	return w.Epoch > 0 && (on == nil || on.Doomed() || d.silent(on))
}

// ask proposes a launch, or lets it go ahead. Its expiry becomes the end of the wait: no later than the moment at which
// the deadline's guard would have to buy.
func (d *Decider) ask(w *fleet.Workload, p *fleet.Plan) {
	why := d.cfg.Approval.Why(w, p, d.recovers(w))
	if why == "" {
		d.buy(p)
		return
	}
	if d.cfg.Approval.Wait > 0 {
		p.Expires = d.state.Now.Add(d.cfg.Approval.Wait)
	}
	if due := w.Spec.Deadline; !due.IsZero() {
		guard := due.Add(-w.Left(w.Saved.Step) - d.cfg.Policy.StartMax - d.cfg.Policy.Wake)
		if guard.Before(p.Expires) {
			p.Expires = later(guard, d.state.Now.Add(time.Minute))
		}
	}
	e := events.PlanProposed{Plan: *p, Why: why, Until: p.Expires, Default: "reject", Observed: w.Spec.Autonomy == fleet.Observe}
	if d.cfg.Approval.Buy && !e.Observed {
		e.Default = "approve"
	}
	d.announce(e)
}

// buy lets a launch go ahead.
func (d *Decider) buy(p *fleet.Plan) {
	p.Approved = true
	p.Expires = later(p.Expires, d.state.Now.Add(d.cfg.Policy.PlanLife))
	d.open(&fleet.Item{Plan: p.ID, Expires: p.Expires})
}

// word finds the plan that a person's word is about, or says why it changes nothing.
func (d *Decider) word(id, hash, by string) (p *fleet.Plan, why string) {
	p = d.state.Plans[id]
	switch {
	case p == nil || p.Action != fleet.Launch:
		return nil, "there is no such plan any more: it was decided, or its time was over"
	case p.Approved && p.By == by:
		return nil, "" // the same word again
	case p.Approved && p.By != "":
		return nil, "already approved by " + p.By
	case p.Approved:
		return nil, "it goes ahead without approval"
	case hash != "" && hash != p.Hash():
		return nil, "the plan is another one by now; look at the newest message"
	case !d.state.Now.Before(p.Expires):
		return nil, "its time was over at " + p.Expires.UTC().Format(time.RFC3339)
	}
	w := d.state.Workloads[p.Workload]
	switch {
	case w == nil || w.Phase != fleet.Accepted || w.Next != p.Machine:
		return nil, "nothing needs it any more"
	case w.Spec.Autonomy == fleet.Observe:
		return nil, "the workload is only observed; set its autonomy to suggest or act"
	}
	return p, ""
}

func (d *Decider) approved(e events.PlanApproved) {
	p, why := d.word(e.Plan, e.Hash, e.By)
	if p == nil {
		d.unheard(e.Plan, e.By, why)
		return
	}
	p.By = e.By
	if w := d.state.Workloads[p.Workload]; w != nil {
		w.Allowed = greater(w.Allowed, p.Highest())
	}
	d.buy(p)
}

func (d *Decider) denied(e events.PlanRejected) {
	p, why := d.word(e.Plan, e.Hash, e.By)
	if p == nil {
		d.unheard(e.Plan, e.By, why)
		return
	}
	d.drop(p, d.cfg.Policy.Wake)
}

// unheard tells that a word changed nothing.
func (d *Decider) unheard(plan, by, why string) {
	if why != "" {
		d.announce(events.ApprovalRefused{Plan: plan, By: by, Why: why})
	}
}

// withdraw takes back what was proposed for a workload and nobody has decided on.
func (d *Decider) withdraw(w *fleet.Workload) {
	m := d.state.Machines[w.Next]
	if m == nil || m.Phase != fleet.Ordered {
		return
	}
	if p := d.state.Plans[m.Plan]; p != nil && p.Action == fleet.Launch && !p.Approved {
		d.closePlan(p.ID)
		delete(d.state.Machines, m.Name)
	}
}

// askAgain is how long after an unanswered question the next one may come.
const askAgain = time.Minute

// unanswered does what was chosen for it.
func (d *Decider) unanswered(p *fleet.Plan) {
	w := d.state.Workloads[p.Workload]
	if d.cfg.Approval.Buy && w != nil && w.Spec.Autonomy != fleet.Observe && w.Phase == fleet.Accepted && w.Next == p.Machine {
		d.buy(p)
		return
	}
	d.drop(p, askAgain)
}
