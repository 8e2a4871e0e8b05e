// Package plan decides; it never does. From a fleet, the market, a policy and the time it makes plans: which machine
// to buy for which workload, why, what lost, and what it costs.
//
// It promises that a workload it accepted never runs out of time while on-demand capacity can be had: at every look
// the work left since the last durable checkpoint still fits on on-demand before the deadline (the exact guard), with
// the longest start-up and the longest time to the next look taken off. Under the guard it takes what is expected to
// cost least until the work is done: spot in some pool, by its price, its age and its level, waiting, or on-demand
// (package pool). Where that cannot be reckoned yet, what runs goes on, and what does not run is decided by Uniform
// Progress. The same fleet, market and time give the same plans, and a fleet that has taken the plans over gets none
// the second time.
// It reads no clock, does no I/O and does not order machines about: what a plan sets in motion is the decider's.
//
//	guard        on-demand now, or the deadline could be missed     choose.go
//	deadline     least expected cost, by the tables                 choose.go
//	best effort  the cheapest useful hour, or waiting for it        choose.go
//	places       which pools are weighed, and what is known of them places.go
//	launch       the plan: offers, money, the runner-up             plan.go
//	transfer     what it costs to take a checkpoint elsewhere       transfer.go
//	tries        one launch at a time asks a pool that refused      tries.go
package plan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/plan/pool"
)

// Policy is how careful plans are. Times are upper bounds unless they say otherwise.
type Policy struct {
	Wake     time.Duration // longest time between two looks at a workload
	StartUp  time.Duration // usual time from a launch until work goes on
	StartMax time.Duration // longest such time: boot, pull, one rejected machine, restore, one lost wake, one election
	MinStay  time.Duration // on a machine before a cheaper one is a reason to move
	Margin   float64       // a move must save this many times its one-off cost over the work left
	Silence  time.Duration // after which a silent machine is not counted on
	Lease    time.Duration // a machine without contact ends itself after this
	Grace    time.Duration // and takes this long to save
	PlanLife time.Duration // a launch that has not happened by then must not happen
	Offers   int           // alternatives in one plan
	Failures float64       // share on top of what is left to pay that a budget must hold for a marketplace's machines
	Patience time.Duration // longest that a workload without a deadline waits for spot at its usual price; 0: a day
}

// Default suits real clouds.
var Default = Policy{
	Wake: 10 * time.Minute, StartUp: 6 * time.Minute, StartMax: 25 * time.Minute, MinStay: 20 * time.Minute, Margin: 2,
	Silence: 10 * time.Minute, Lease: 6 * time.Hour, Grace: 15 * time.Minute, PlanLife: 10 * time.Minute, Offers: 4, Failures: 0.125,
}

// Oracle prices what can be done about a workload with a deadline: pool.Tables where it may be cold, or pool.Solving.
type Oracle interface {
	Decide(c pool.Case) pool.Decision
}

// Decision is what to do about one workload now. At most one of Plan, Stop and Keep is set.
type Decision struct {
	Workload string
	Plan     fleet.Plan // a zero Action: nothing to buy
	Stop     bool       // save, stop and end what runs: to wait is cheaper
	Keep     bool       // what runs goes on; what is made ready to take over is given up
	Reason   string     // always set: also why nothing is done
	Options  []Option   // what was weighed, cheapest first; none where the guard left no choice
	Review   time.Time  // look again then, at the latest
}

// Option is one thing that could be done, in words and numbers.
type Option struct {
	What     string               `json:"what"`
	Expected fleet.Maybe[float64] `json:"expected,omitzero"` // USD until the work is done: this now, then what is best; unknown: the deadline could be missed
	Hourly   float64              `json:"hourly,omitempty"`  // USD for what an hour on demand does
	Since    time.Duration        `json:"since,omitempty"`   // of a pool: it has been to be had so long
	Lost     float64              `json:"lost,omitempty"`    // and the chance that it goes within the next hour
	Chosen   bool                 `json:"chosen,omitempty"`
	Why      string               `json:"why"` // it was chosen, or lost
}

// Make decides about the workloads of a fleet whose Review has come, in order of their names. Its plans have no ids or
// machine names: whoever takes one over gives those.
func Make(f *fleet.Fleet, book *Book, by Oracle, p Policy, now time.Time) []Decision {
	var due []string // few of thousands, as a rule
	for name, w := range f.Workloads {
		if w.Phase == fleet.Accepted && !now.Before(w.Review) {
			due = append(due, name)
		}
	}
	slices.Sort(due)
	out, asked := make([]Decision, 0, len(due)), triesOf(f, now)
	for _, name := range due {
		d := Decide(f, book, by, p, f.Workloads[name], now)
		asked.limit(&d, now)
		out = append(out, d)
	}
	return out
}

// situation is a workload as the rules see it.
type situation struct {
	w        *fleet.Workload
	now      time.Time
	act      *fleet.Instance // the machine that carries the work on, or is made ready to; nil: none
	mode     pool.Mode
	sure     bool          // while act is made ready, the work goes on on demand
	leaves   bool          // what runs has its place on a reservation no more: another machine takes over, or it stops
	left     time.Duration // work left if nothing more is lost
	leftSafe time.Duration // work left from the last durable checkpoint
	start    time.Duration // usual time from a launch until work goes on
	startMax time.Duration // longest such time
	warm     time.Duration // start-up still ahead of act
	until    time.Duration // time to the deadline
	promised bool          // there is a deadline
}

// Decide is what Make does for one workload.
func Decide(f *fleet.Fleet, book *Book, by Oracle, p Policy, w *fleet.Workload, now time.Time) Decision {
	s := look(f, p, w, now)
	d := Decision{Workload: w.Spec.Name, Review: now.Add(p.Wake)}
	if f.Halted != "" {
		d.Reason = "nothing is bought: " + f.Halted
		return d
	}
	m := book.around(f, &s, p)
	v, slot, paid := s.reserved(f, book, by, p, m)
	if !paid {
		v = s.choose(by, p, m)
	}
	if s.promised {
		// Look again before the guard would have to step in, not only each Wake.
		if slack := s.until - m.hours(s.leftSafe) - s.startMax - p.Wake; slack > 0 && slack < p.Wake {
			d.Review = now.Add(max(slack, time.Second))
		}
	}
	if v.cold {
		d.Review = earlier(d.Review, now.Add(coldWait))
	}
	d.Reason, d.Options, d.Keep = v.why, v.options, v.keep
	if what, why := v.next(); what != "" {
		d.Reason += "; next best, " + what + ": " + why
	}
	switch {
	case v.mode == pool.Idle:
		d.Stop = s.stoppable()
		d.Keep = !d.Stop && misplaced(w, f.Machines[w.Next])
		return d
	case v.stay:
		d.Keep = d.Keep || misplaced(w, f.Machines[w.Next])
		return d
	case slot != nil:
		d.Plan = s.launch(f, p, []fleet.Offer{*slot}, v, append(m.spotOffers(s.mode, 0), m.sure...))
		if r := f.Reserved[w.Slot]; !r.Until.IsZero() {
			d.Plan.HardEnd = earlier(d.Plan.HardEnd, r.Until)
		}
	case v.mode == pool.Spot:
		d.Plan = s.launch(f, p, m.spotOffers(s.mode, v.to), v, m.sure)
	default:
		d.Plan = s.launch(f, p, m.sure, v, m.spotOffers(s.mode, 0))
	}
	if len(d.Plan.Offers) > 0 {
		if _, priced := s.transfer(d.Plan.Offers[0]).Get(); !priced {
			d.Reason, d.Plan.Score.Reason = d.Reason+unpriced, d.Plan.Score.Reason+unpriced
		}
	} else {
		d.Plan = fleet.Plan{}
		d.Reason += "; but nothing is on offer"
		d.Review = now.Add(min(p.Wake, time.Minute))
	}
	if over := s.overBudget(f, p, d.Plan); over != "" {
		d.Plan, d.Reason = fleet.Plan{}, over
	}
	return d
}

// coldWait is after how long a decision without tables is looked at again.
const coldWait = 15 * time.Second

// stoppable says that something runs which may be stopped without asking anybody.
func (s situation) stoppable() bool {
	return (s.act != nil || s.leaves) && s.w.Spec.Autonomy == fleet.Act
}

// look reads off the fleet what carries the workload.
func look(f *fleet.Fleet, p Policy, w *fleet.Workload, now time.Time) situation {
	s := situation{w: w, now: now, leftSafe: w.Left(w.Saved.Step), promised: !w.Spec.Deadline.IsZero()}
	s.left = s.leftSafe
	if s.promised {
		s.until = w.Spec.Deadline.Sub(now)
	}
	on, next := f.Machines[w.On], f.Machines[w.Next]
	runs := counted(f, on, p, now) && on.Run.Epoch == w.Epoch && on.Run.Phase == fleet.Running
	if runs {
		s.left = w.Left(max(on.Run.Step, w.Saved.Step))
	}
	s.leaves = runs && misplaced(w, on) && !on.Order.Stop
	switch {
	case counted(f, next, p, now) && !misplaced(w, next):
		s.act = next
		s.sure = runs && on.Offer.Market != fleet.Spot && !on.Order.Stop && !misplaced(w, on)
	case counted(f, on, p, now) && !misplaced(w, on) && !on.Run.Phase.Over() && (!on.Order.Stop || on.Doubt != ""):
		s.act = on // one that stops to prove itself goes on after that
	}
	s.start, s.startMax = starts(f, p, s.act)
	if s.act == nil {
		return s
	}
	s.mode = pool.OnDemand
	if s.act.Offer.Market == fleet.Spot {
		s.mode = pool.Spot
	}
	if s.act.Run.Phase != fleet.Running {
		since := s.act.Bought
		if since.IsZero() {
			since = now
		}
		s.warm = max(s.start-now.Sub(since), s.start/10)
	}
	return s
}

// begun says that act does the work, and not only will.
func (s situation) begun() bool { return s.act != nil && s.act.Run.Phase == fleet.Running }

// settled says that act has done so for the minimum stay.
func (s situation) settled(p Policy) bool { return s.begun() && s.now.Sub(s.act.ReadyAt) >= p.MinStay }

// starts is how long a launch takes, usually and at most. What was measured weighs against the policy's figures; it
// makes the longest longer and never shorter.
func starts(f *fleet.Fleet, p Policy, on *fleet.Instance) (usual, most time.Duration) {
	usual, most = p.StartUp, p.StartMax
	var sum time.Duration
	n := 0
	for _, cloud := range fleet.Sorted(f.StartUps) {
		if on != nil && on.Offer.Cloud != cloud {
			continue
		}
		x := f.StartUps[cloud]
		k := min(x.Boot.Count, x.Proof.Count, 20)
		n += k
		sum += time.Duration(k) * (x.Boot.Mean + x.Proof.Mean + x.Restore.Mean)
		most = max(most, 2*(x.Boot.Most+x.Proof.Most)+x.Restore.Most+p.Wake+election)
	}
	return (ordinaryStarts*usual + sum) / time.Duration(ordinaryStarts+n), most
}

// Measured is the policy with the longest start-up that any of a fleet's clouds has shown.
func (p Policy) Measured(f *fleet.Fleet) Policy {
	_, p.StartMax = starts(f, p, nil)
	return p
}

const (
	ordinaryStarts = 3                // that the policy's usual start-up counts for
	election       = 10 * time.Second // of a NATS leader
)

// counted says that a machine can be relied on to go on.
func counted(f *fleet.Fleet, m *fleet.Instance, p Policy, now time.Time) bool {
	if m == nil || m.Doomed() || m.Phase == fleet.Rejected || m.Phase == fleet.Ending || m.Phase == fleet.Ended {
		return false
	}
	return !f.Silent(m, now, p.Silence)
}

// launch writes the plan down.
func (s situation) launch(f *fleet.Fleet, p Policy, offers []fleet.Offer, v verdict, others []fleet.Offer) fleet.Plan {
	if len(offers) == 0 {
		return fleet.Plan{}
	}
	o := offers[0]
	pl := fleet.Plan{
		Action: fleet.Launch, Cloud: o.Cloud, Account: o.Account, Workload: s.w.Spec.Name, Made: s.now,
		Expires: s.now.Add(p.PlanLife), HardEnd: hardEnd(s, p),
		Score: fleet.Score{Reason: v.why, Hourly: o.Hourly.Or(fleet.Money{})},
	}
	for _, alt := range offers[:min(len(offers), max(p.Offers, 1))] {
		if alt.Cloud == o.Cloud && alt.Account == o.Account {
			pl.Offers = append(pl.Offers, alt)
		}
	}
	pl.Score.Worst = pl.Score.Hourly.Times((p.Lease + p.Grace).Hours())
	if on := f.Machines[s.w.On]; on != nil {
		pl.Score.HourlyNow = on.Offer.Hourly.Or(fleet.Money{})
		if was, is := pl.Score.HourlyNow.Float(), pl.Score.Hourly.Float(); is < was {
			once := (was+is)*s.start.Hours() + s.transfer(o).Or(0) // both machines bill while the new one starts
			pl.Score.OneOff = fleet.Dollars(once)
			pl.Score.Payback = time.Duration(once / (was - is) * float64(time.Hour))
		}
	}
	if pl.Score.RunnerUp, pl.Score.WhyLost = v.next(); pl.Score.RunnerUp == "" {
		runnerUp(&pl.Score, o, offers[1:], others)
	}
	return pl
}

// runnerUp names the next best offer and why it lost.
func runnerUp(sc *fleet.Score, o fleet.Offer, same, others []fleet.Offer) {
	better, _ := o.PerHour()
	for _, alts := range [][]fleet.Offer{same, others} {
		if len(alts) == 0 {
			continue
		}
		p, _ := alts[0].PerHour()
		sc.RunnerUp = alts[0].String()
		switch diff := p - better; {
		case diff > 0:
			sc.WhyLost = fmt.Sprintf("%.4f USD/h dearer", diff)
		case diff < 0:
			sc.WhyLost = fmt.Sprintf("%.4f USD/h cheaper, but it can be taken and the deadline cannot wait", -diff)
		default:
			sc.WhyLost = "the same price; the first in order was taken"
		}
		return
	}
}

// hardEnd is when the machine ends itself whatever happens: after the work must be done, with room for a repeat.
func hardEnd(s situation, p Policy) time.Time {
	end := s.now.Add(2*s.left + p.Lease)
	if s.promised && s.w.Spec.Deadline.Add(p.Lease).After(end) {
		return s.w.Spec.Deadline.Add(p.Lease)
	}
	return end
}

// overBudget says why a plan must not be: what is spent and what the work left costs at its price exceed the budget.
func (s situation) overBudget(f *fleet.Fleet, p Policy, pl fleet.Plan) string {
	budget, ok := s.w.Spec.Budget.Get()
	if !ok || pl.Action == "" || s.w.Spec.DeadlineOverBudget || pl.Score.Hourly.Amount.IsZero() {
		return ""
	}
	spent, left, kept := Spent(f, s.w, s.now), pl.Score.Hourly.Times(s.left.Hours()), ""
	if share := p.Failures; share > 0 && slices.ContainsFunc(pl.Offers, func(o fleet.Offer) bool { return o.Marketplace }) {
		left, kept = left.Times(1+share), fmt.Sprintf(", with %g %% kept for failures of strangers' machines,", 100*share)
	}
	after := spent.Add(left)
	if after.Amount.LessThanOrEqual(budget.Amount) {
		return ""
	}
	return fmt.Sprintf("budget: %s spent and %s of work left at %s/h%s come to %s, more than %s", spent, short(s.left), pl.Score.Hourly, kept, after, budget)
}

// Spent is what a workload's machines have cost until now.
func Spent(f *fleet.Fleet, w *fleet.Workload, now time.Time) fleet.Money {
	sum := w.Spent
	for _, m := range f.Machines {
		if m.Workload == w.Spec.Name && m.Phase != fleet.Ended {
			sum = sum.Add(m.Cost(now))
		}
	}
	return sum
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// dollars prints an amount that is expected and not billed.
func dollars(x float64) string {
	if math.Abs(x) < 1 {
		return fmt.Sprintf("%.3f USD", x)
	}
	return fmt.Sprintf("%.2f USD", x)
}

// short prints a duration in whole minutes, or seconds when that is all there is.
func short(d time.Duration) string {
	if d.Abs() < 10*time.Minute {
		return d.Round(time.Second).String()
	}
	s := d.Round(time.Minute).String()
	return s[:len(s)-2] // without "0s"
}
