// Package plan decides; it never does. From a fleet, the market, a policy and the time it makes plans: which machine
// to buy for which workload, why, what lost, and what it costs.
//
// It promises that a workload it accepted never runs out of time while on-demand capacity can be had: at every look
// the work left since the last durable checkpoint still fits on on-demand before the deadline (the exact guard), with
// the longest start-up and the longest time to the next look taken off. The same fleet, market and time give the same
// plans, and a fleet that has taken the plans over gets none the second time.
// It reads no clock, does no I/O and does not order machines about: what a plan sets in motion is the decider's.
package plan

import (
	"fmt"
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
}

// Default suits real clouds.
var Default = Policy{
	Wake: 10 * time.Minute, StartUp: 6 * time.Minute, StartMax: 25 * time.Minute, MinStay: 20 * time.Minute, Margin: 2,
	Silence: 10 * time.Minute, Lease: 6 * time.Hour, Grace: 15 * time.Minute, PlanLife: 10 * time.Minute, Offers: 4,
}

// Decision is what to do about one workload now. A zero Plan.Action means: nothing to buy.
type Decision struct {
	Plan   fleet.Plan
	Reason string    // always set: also why nothing is done
	Review time.Time // look again then, at the latest
}

// Make returns the launches that the fleet needs now, in order of workloads' names, without ids or machine names:
// whoever takes a plan over gives those. Workloads whose Review lies ahead are left alone.
func Make(f *fleet.Fleet, book *Book, p Policy, now time.Time) (plans []fleet.Plan, reviews map[string]time.Time) {
	reviews = map[string]time.Time{}
	for _, name := range fleet.Sorted(f.Workloads) {
		w := f.Workloads[name]
		if w.Phase != fleet.Accepted || now.Before(w.Review) {
			continue
		}
		d := Decide(f, book, p, w, now)
		reviews[name] = d.Review
		if d.Plan.Action != "" {
			plans = append(plans, d.Plan)
		}
	}
	return plans, reviews
}

// situation is a workload as the rules see it.
type situation struct {
	w        *fleet.Workload
	now      time.Time
	act      *fleet.Instance // the machine that carries the work on, or is made ready to; nil: none
	mode     pool.Mode
	left     time.Duration // work left if nothing more is lost
	leftSafe time.Duration // work left from the last durable checkpoint
	warm     time.Duration // start-up still ahead of act
	until    time.Duration // time to the deadline
	promised bool          // there is a deadline
}

// Decide is what Make does for one workload.
func Decide(f *fleet.Fleet, book *Book, p Policy, w *fleet.Workload, now time.Time) Decision {
	s := look(f, p, w, now)
	d := Decision{Review: now.Add(p.Wake)}
	if f.Halted != "" {
		d.Reason = "nothing is bought: " + f.Halted
		return d
	}
	spot := book.pick(fleet.Spot, f, w, now, p.Offers)
	sure := book.pick(fleet.OnDemand, f, w, now, p.Offers)
	want, why := s.choose(p, spot, sure)
	if s.promised {
		// Look again before the guard would have to step in, not only each Wake.
		if slack := s.until - s.leftSafe - p.StartMax - p.Wake; slack > 0 && slack < p.Wake {
			d.Review = now.Add(max(slack, time.Second))
		}
	}
	d.Reason = why
	switch {
	case want == pool.Idle:
		return d
	case want == s.mode:
		if offers, move, gain := s.cheaper(p, spot); move {
			d.Plan = s.launch(f, p, offers, sure, gain)
			d.Reason = gain
		}
		return d
	case want == pool.Spot:
		d.Plan = s.launch(f, p, spot, sure, why)
	default:
		d.Plan = s.launch(f, p, sure, spot, why)
	}
	if len(d.Plan.Offers) == 0 {
		d.Plan = fleet.Plan{}
		d.Reason = why + "; but nothing is on offer"
		d.Review = now.Add(min(p.Wake, time.Minute))
	}
	if over := s.overBudget(f, d.Plan); over != "" {
		d.Plan, d.Reason = fleet.Plan{}, over
	}
	return d
}

// look reads off the fleet what carries the workload.
func look(f *fleet.Fleet, p Policy, w *fleet.Workload, now time.Time) situation {
	s := situation{w: w, now: now, leftSafe: w.Left(w.Saved.Step), promised: !w.Spec.Deadline.IsZero()}
	s.left = s.leftSafe
	if s.promised {
		s.until = w.Spec.Deadline.Sub(now)
	}
	on, next := f.Machines[w.On], f.Machines[w.Next]
	if counted(on, p, now) && on.Run.Epoch == w.Epoch && on.Run.Phase == fleet.Running {
		s.left = w.Left(max(on.Run.Step, w.Saved.Step))
		s.act = on
	}
	if counted(next, p, now) {
		s.act = next
	} else if s.act == nil && counted(on, p, now) && !on.Run.Phase.Over() {
		s.act = on // restoring
	}
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
		s.warm = max(p.StartUp-now.Sub(since), p.StartUp/10)
	}
	return s
}

// counted says that a machine can be relied on to go on.
func counted(m *fleet.Instance, p Policy, now time.Time) bool {
	if m == nil || m.Doomed() || m.Phase == fleet.Rejected || m.Phase == fleet.Ending || m.Phase == fleet.Ended {
		return false
	}
	return m.Heard.IsZero() || now.Sub(m.Heard) < p.Silence
}

// choose takes the rule's answer and puts the guard under it.
func (s situation) choose(p Policy, spot, sure []fleet.Offer) (pool.Mode, string) {
	up := len(spot) > 0 || s.mode == pool.Spot
	if !s.promised {
		if up {
			return pool.Spot, "best effort: spot is to be had"
		}
		if s.mode == pool.OnDemand {
			return pool.OnDemand, "best effort: it runs"
		}
		return pool.Idle, "best effort: waiting for spot"
	}
	if need, room := s.leftSafe+p.StartMax, s.until-p.Wake; need > room {
		why := fmt.Sprintf("guard: %s of work since the last checkpoint and %s to start must fit into %s, less the next look in %s",
			short(s.leftSafe), short(p.StartMax), short(s.until), short(p.Wake))
		if len(sure) == 0 && s.mode != pool.OnDemand && up {
			return pool.Spot, why + "; no on-demand is on offer, so spot"
		}
		return pool.OnDemand, why
	}
	job := pool.Job{
		Work: s.w.Spec.Work.Seconds(), Deadline: s.w.Spec.Deadline.Sub(s.w.Since).Seconds(),
		Delay: p.StartUp.Seconds(), Tick: p.Wake.Seconds(), OnDemand: price(sure, 1), Spot: price(spot, 0.5),
	}
	elapsed := s.now.Sub(s.w.Since)
	view := pool.View{
		T: int((elapsed + p.Wake - 1) / p.Wake), Up: []bool{up}, Mode: s.mode, Zone: -1,
		Work: s.left.Seconds(), Warmup: s.warm.Seconds(),
	}
	if s.mode == pool.Spot {
		view.Zone = 0
	}
	c := pool.Uniform(job, pool.LeaveReleased).Choose(view)
	even := time.Duration(float64(s.w.Spec.Work) * float64(elapsed) / float64(s.w.Spec.Deadline.Sub(s.w.Since)))
	done := s.w.Spec.Work - s.left
	pace := fmt.Sprintf("%s of %s done, even pace is %s, slack %s", short(done), short(s.w.Spec.Work), short(even), short(s.until-s.left))
	switch c.Mode {
	case pool.Spot:
		return pool.Spot, "spot is to be had: " + pace
	case pool.OnDemand:
		return pool.OnDemand, "behind even pace without spot: " + pace
	}
	return pool.Idle, "ahead of even pace, waiting for spot: " + pace
}

// cheaper finds whether another spot pool pays for a move.
func (s situation) cheaper(p Policy, spot []fleet.Offer) (offers []fleet.Offer, move bool, why string) {
	on := s.act
	if s.mode != pool.Spot || on == nil || on.Run.Phase != fleet.Running || s.now.Sub(on.ReadyAt) < p.MinStay || len(spot) == 0 {
		return nil, false, ""
	}
	was, ok1 := on.Offer.PerHour()
	is, ok2 := spot[0].PerHour()
	if !ok1 || !ok2 || spot[0].Pool() == on.Offer.Pool() || is >= was {
		return nil, false, ""
	}
	once := (was + is) * p.StartUp.Hours() // both machines bill while the new one starts
	saved := (was - is) * s.left.Hours()
	if saved < p.Margin*once {
		return nil, false, ""
	}
	return spot, true, fmt.Sprintf("%.4f instead of %.4f USD/h saves %.2f USD over %s; the move costs %.2f USD, paid back in %s",
		is, was, saved, short(s.left), once, short(time.Duration(once/(was-is)*float64(time.Hour))))
}

// launch writes the plan down.
func (s situation) launch(f *fleet.Fleet, p Policy, offers, others []fleet.Offer, why string) fleet.Plan {
	if len(offers) == 0 {
		return fleet.Plan{}
	}
	o := offers[0]
	pl := fleet.Plan{
		Action: fleet.Launch, Cloud: o.Cloud, Account: o.Account, Workload: s.w.Spec.Name, Made: s.now,
		Expires: s.now.Add(p.PlanLife), HardEnd: hardEnd(s, p),
		Score: fleet.Score{Reason: why, Hourly: o.Hourly.Or(fleet.Money{})},
	}
	for _, alt := range offers {
		if alt.Cloud == o.Cloud && alt.Account == o.Account {
			pl.Offers = append(pl.Offers, alt)
		}
	}
	pl.Score.Worst = pl.Score.Hourly.Times((p.Lease + p.Grace).Hours())
	if on := f.Machines[s.w.On]; on != nil {
		pl.Score.HourlyNow = on.Offer.Hourly.Or(fleet.Money{})
		if was, is := pl.Score.HourlyNow.Float(), pl.Score.Hourly.Float(); is < was {
			once := (was + is) * p.StartUp.Hours()
			pl.Score.OneOff = fleet.Dollars(once)
			pl.Score.Payback = time.Duration(once / (was - is) * float64(time.Hour))
		}
	}
	runnerUp(&pl.Score, o, offers[1:], others)
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
func (s situation) overBudget(f *fleet.Fleet, pl fleet.Plan) string {
	budget, ok := s.w.Spec.Budget.Get()
	if !ok || pl.Action == "" || s.w.Spec.DeadlineOverBudget {
		return ""
	}
	spent := Spent(f, s.w, s.now)
	after := spent.Add(pl.Score.Hourly.Times(s.left.Hours()))
	if after.Amount.LessThanOrEqual(budget.Amount) {
		return ""
	}
	return fmt.Sprintf("budget: %s spent and %s of work left at %s/h come to %s, more than %s", spent, short(s.left), pl.Score.Hourly, after, budget)
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

func price(offers []fleet.Offer, other float64) float64 {
	if len(offers) == 0 {
		return other
	}
	if p, ok := offers[0].PerHour(); ok && p > 0 {
		return p
	}
	return other
}

// short prints a duration in whole minutes, or seconds when that is all there is.
func short(d time.Duration) string {
	if d.Abs() < 10*time.Minute {
		return d.Round(time.Second).String()
	}
	s := d.Round(time.Minute).String()
	return s[:len(s)-2] // without "0s"
}
