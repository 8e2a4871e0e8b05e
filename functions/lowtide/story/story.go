// Package story tells people what happens, one line a turn: who takes which machine and why, what is at risk, what was
// rejected, where the work went on, what it cost.
//
// It promises that every figure can be worked out from figures it printed before, or prints beside it: prices, times,
// steps. It listens and keeps what it needs to tell; it decides nothing and says no facts.
package story

import (
	"fmt"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// Teller turns facts into lines. The zero Teller is not ready: New.
type Teller struct {
	from     time.Time
	machines map[string]*machine
	works    map[string]*work
	seen     map[string]bool // turns already told: facts come twice
}

type machine struct {
	name, work string
	offer      fleet.Offer
	bought     time.Time
	ended      time.Time
	rejected   bool
	doomed     bool
}

type work struct {
	spec      fleet.Spec
	on        *machine
	epoch     uint64
	saved     fleet.Manifest
	step      int64
	started   time.Time // of this run
	startStep int64
	ended     time.Time
	outcome   string
	result    string
	baseline  fleet.Money
	runs      int
}

// ran is how long a machine was ours, to the second that is printed.
func (m *machine) ran() time.Duration { return m.ended.Sub(m.bought).Round(time.Second) }

// New tells from a moment on; lines carry the time since then.
func New(from time.Time) *Teller {
	return &Teller{from, map[string]*machine{}, map[string]*work{}, map[string]bool{}}
}

// Hear returns the line of a fact, or "" when there is nothing new to tell.
func (t *Teller) Hear(now time.Time, e events.Event) string {
	who, what := t.turn(now, e.Data)
	if what == "" {
		return ""
	}
	if e.Dry {
		what = "[dry] " + what
	}
	return t.Line(now, who, what)
}

// Line is how every line looks: time since the start, who, what.
func (t *Teller) Line(now time.Time, who, what string) string {
	d := now.Sub(t.from).Round(time.Second)
	return fmt.Sprintf("%02d:%02d:%02d  %-12s %s", int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60, who, what)
}

// once is true the first time a turn comes.
func (t *Teller) once(parts ...any) bool {
	key := fmt.Sprint(parts...)
	if t.seen[key] {
		return false
	}
	t.seen[key] = true
	return true
}

func (t *Teller) turn(now time.Time, fact events.Fact) (who, what string) {
	switch e := fact.(type) {
	case events.PriceChanged:
		return "market", e.Summary
	case events.WorkloadSubmitted:
		if t.works[e.Spec.Name] == nil {
			t.works[e.Spec.Name] = &work{spec: e.Spec}
		}
	case events.WorkloadAccepted:
		return e.Workload, t.accepted(now, e)
	case events.WorkloadRefused:
		if t.once("refused", e.Workload, e.Why) {
			return e.Workload, "refused: " + e.Why
		}
	case events.RuleActed:
		state := e.Act + " " + e.About
		if e.Act == "notify" {
			state = "tells"
		} else if !e.Done {
			state += " not done"
		}
		return "rule", e.Rule + ": " + strings.TrimSpace(state) + ": " + e.Result
	case events.RuleFailed:
		return "rule", e.Rule + " is switched off: " + e.Why
	case events.WorkloadPaused:
		return e.Workload, "paused by " + e.By
	case events.WorkloadResumed:
		return e.Workload, "resumed by " + e.By
	case events.ReservationSet:
		if r := e.Reservation; t.once("reserved", r.ID, r.Count, r.Until.UnixNano()) {
			return "lowtide", reserved(now, r)
		}
	case events.ReservationIdle:
		return "lowtide", fmt.Sprintf("%d of %d machines of reservation %s lie idle since %s ago: %s/h, %s so far", e.Idle, e.Reservation.Count, e.Reservation.ID, Short(now.Sub(e.Since)), e.Hourly, e.Wasted)
	case events.ReservationExpiring:
		return "lowtide", fmt.Sprintf("reservation %s ends in %s", e.Reservation.ID, Short(e.Reservation.Until.Sub(now)))
	case events.PlanProposed:
		return e.Plan.Workload, "would buy " + bought(e.Plan) + "; it waits for approval: lowtide approve " + e.Plan.ID
	case events.PlanMade:
		if t.once("plan", e.Plan.ID) {
			return t.planned(e.Plan)
		}
	case events.PlanFailed:
		if t.once("failed", e.Plan, e.Why) && e.Action == fleet.Launch {
			return e.Machine, "not bought: " + e.Why
		}
	case events.InstanceLaunched:
		return e.Machine, t.launched(e)
	case events.InstanceVerified:
		if t.once("verified", e.Machine) {
			return e.Machine, strings.TrimSuffix(fmt.Sprintf("verified: %.0f %% of rated speed, %s", 100*e.Ratio, e.Note), ", ")
		}
	case events.InstanceRejected:
		if t.once("rejected", e.Machine) {
			if m := t.machines[e.Machine]; m != nil {
				m.rejected = true
			}
			return e.Machine, fmt.Sprintf("REJECTED: %s (%.0f %% of rated speed); the next best is bought", e.Cause, 100*e.Ratio)
		}
	case events.InstanceInterrupted:
		return e.Machine, t.interrupted(now, e)
	case events.WorkloadStarted:
		return e.Workload, t.started(now, e)
	case events.CheckpointSaved:
		return e.Workload, t.saved(e)
	case events.CheckpointFailed:
		if t.once("unsaved", e.Workload, e.Epoch, e.Save, e.Why) {
			return e.Workload, "checkpoint not made: " + e.Why
		}
	case events.WorkloadProgressed:
		if w := t.works[e.Workload]; w != nil && e.Epoch >= w.epoch {
			w.step = max(w.step, e.Step)
		}
	case events.WorkloadStopped:
		if t.once("stopped", e.Workload, e.Epoch) {
			return e.Workload, fmt.Sprintf("stopped on %s at step %d, step %d is durable", e.Machine, e.Step, e.Saved.Step)
		}
	case events.WorkloadFailed:
		if t.once("crashed", e.Workload, e.Epoch) {
			return e.Workload, fmt.Sprintf("failed on %s at step %d with exit status %d: %s", e.Machine, e.Step, e.Code, lastLine(e.Why))
		}
	case events.WorkloadFinished:
		return e.Workload, t.finished(now, e)
	case events.InstanceEnded:
		return e.Machine, t.ended(e)
	case events.BudgetWarned:
		return e.Workload, fmt.Sprintf("has spent %s of its %s", e.Spent, e.Budget)
	case events.BudgetExhausted:
		return e.Workload, fmt.Sprintf("has spent its budget: %s of %s", e.Spent, e.Budget)
	case events.PolicySet:
		if e.Halt != "" {
			return "lowtide", "nothing is bought any more: " + e.Halt
		}
		return "lowtide", "buys again"
	}
	return "", ""
}

func reserved(now time.Time, r fleet.Reservation) string {
	if r.Count == 0 {
		return "reservation " + r.ID + " is given up"
	}
	ends := "without an end"
	if !r.Until.IsZero() {
		ends = "for " + Short(r.Until.Sub(now))
	}
	return fmt.Sprintf("reservation %s: %d × %s at %s/h each, used or not, %s", r.ID, r.Count, r.Type, r.Hourly, ends)
}

func (t *Teller) accepted(now time.Time, e events.WorkloadAccepted) string {
	if !t.once("accepted", e.Workload) {
		return ""
	}
	w := t.works[e.Workload]
	if w == nil {
		w = &work{}
		t.works[e.Workload] = w
	}
	w.baseline = e.Baseline
	due := "best effort, no deadline"
	if !e.Deadline.IsZero() {
		due = fmt.Sprintf("deadline in %s", Short(e.Deadline.Sub(now)))
	}
	return fmt.Sprintf("accepted: %s of work, %s; worst case, all on demand and %s with the slowest start, %s; if lowtide died for ever its machines would end themselves by their lease, for %s at most",
		Short(w.spec.Work), due, Short(e.Finish.Sub(now)), e.Worst, e.Bound)
}

func (t *Teller) planned(p fleet.Plan) (string, string) {
	if p.Action == fleet.End {
		return p.Machine, "is ended: " + p.Score.Reason
	}
	if t.machines[p.Machine] == nil {
		t.machines[p.Machine] = &machine{name: p.Machine, work: p.Workload, offer: p.Offers[0]}
	}
	return p.Workload, "buys " + bought(p)
}

// bought says what a plan buys, why, and what lost.
func bought(p fleet.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s at %s/h, because %s", p.Machine, p.Offers[0], p.Score.Hourly, p.Score.Reason)
	if p.Score.RunnerUp != "" {
		fmt.Fprintf(&b, "; next best %s lost: %s", p.Score.RunnerUp, p.Score.WhyLost)
	}
	fmt.Fprintf(&b, "; worst case %s", p.Score.Worst)
	return b.String()
}

func (t *Teller) launched(e events.InstanceLaunched) string {
	if !t.once("launched", e.Machine, e.ID) {
		return ""
	}
	m := t.machines[e.Machine]
	if m == nil {
		m = &machine{name: e.Machine}
		t.machines[e.Machine] = m
	}
	m.work, m.offer, m.bought = e.Workload, e.Offer, e.At
	var after strings.Builder
	for _, r := range e.Refused {
		fmt.Fprintf(&after, "; before it %s said %s", r.Pool, r.Why)
	}
	return fmt.Sprintf("bought: %s, %s/h, for %s%s", e.Offer, e.Offer.Hourly.Or(fleet.Money{}), e.Workload, after.String())
}

func (t *Teller) interrupted(now time.Time, e events.InstanceInterrupted) string {
	m := t.machines[e.Machine]
	if m == nil || m.doomed || !m.ended.IsZero() || !t.once("doomed", e.Machine, e.EndsBy.UnixNano()) {
		return ""
	}
	m.doomed = true
	s := fmt.Sprintf("WILL BE TAKEN in %s (%s, noticed by %s)", Short(e.EndsBy.Sub(now)), e.Action, e.Noticed)
	w := t.works[m.work]
	if w == nil || w.on != m {
		return s
	}
	at, step := w.saved.At, w.saved.Step
	if at.IsZero() || at.Before(w.started) {
		at, step = w.started, w.startStep
	}
	since := max(now.Sub(at), 0).Round(time.Second) // what is printed and what is reckoned with are the same
	hourly, _ := m.offer.PerHour()
	return s + fmt.Sprintf("; %s: last save step %d, %s ago, so %.4f USD of work is at risk", m.work, step, since, hourly*since.Hours())
}

func (t *Teller) started(now time.Time, e events.WorkloadStarted) string {
	w := t.works[e.Workload]
	if w == nil || !t.once("started", e.Workload, e.Epoch) {
		return ""
	}
	w.on, w.epoch, w.started, w.startStep, w.step = t.machines[e.Machine], e.Epoch, now, e.Step, e.Step
	w.runs++
	if e.From == "" {
		return fmt.Sprintf("runs on %s from the beginning (epoch %d)", e.Machine, e.Epoch)
	}
	return fmt.Sprintf("RESUMES on %s at step %d (epoch %d, restored in %s)", e.Machine, e.Step, e.Epoch, Short(e.Restore))
}

func (t *Teller) saved(e events.CheckpointSaved) string {
	w := t.works[e.Workload]
	if w == nil || e.Epoch < w.epoch || e.Manifest.Step <= w.saved.Step || !t.once("saved", e.Workload, e.Manifest.ID) {
		return ""
	}
	w.saved = e.Manifest
	return fmt.Sprintf("step %d is durable (%d kB in %s)", e.Manifest.Step, (e.Manifest.Bytes+999)/1000, Short(e.Manifest.Took))
}

func (t *Teller) finished(now time.Time, e events.WorkloadFinished) string {
	w := t.works[e.Workload]
	if w == nil || !t.once("finished", e.Workload) {
		return ""
	}
	w.ended, w.result, w.step, w.outcome = now, e.Result, e.Step, "finished"
	due := ""
	if d := w.spec.Deadline; !d.IsZero() {
		due = fmt.Sprintf(", %s before its deadline", Short(d.Sub(now)))
		if now.After(d) {
			due = fmt.Sprintf(", %s AFTER ITS DEADLINE", Short(now.Sub(d)))
		}
	}
	return fmt.Sprintf("FINISHED on %s at step %d%s", e.Machine, e.Step, due)
}

func (t *Teller) ended(e events.InstanceEnded) string {
	m := t.machines[e.Machine]
	if m == nil || !m.ended.IsZero() {
		return ""
	}
	m.ended = e.At
	if m.bought.IsZero() {
		return "ended: " + e.Why
	}
	hourly, _ := m.offer.PerHour()
	ran := m.ran()
	return fmt.Sprintf("ended (%s) after %s at %.4f USD/h: %.4f USD", e.Why, ran, hourly, hourly*ran.Hours())
}

// Outcome is one workload's end, as far as it was told.
type Outcome struct {
	Workload string
	Finished time.Time // zero: it has not
	Deadline time.Time
	Step     int64
	Runs     int
	Result   string
	Spent    float64 // USD, machines that have ended
	OnDemand float64 // USD, the work alone on demand
}

// Outcomes lists the workloads in order of names.
func (t *Teller) Outcomes() []Outcome {
	var out []Outcome
	for _, name := range fleet.Sorted(t.works) {
		w := t.works[name]
		o := Outcome{Workload: name, Finished: w.ended, Deadline: w.spec.Deadline, Step: w.step, Runs: w.runs, Result: w.result, OnDemand: w.baseline.Float()}
		for _, m := range t.machines {
			if m.work == name && !m.bought.IsZero() && !m.ended.IsZero() {
				hourly, _ := m.offer.PerHour()
				o.Spent += hourly * m.ran().Hours()
			}
		}
		out = append(out, o)
	}
	return out
}

// Machines counts what was bought, what has ended of it, and what was rejected.
func (t *Teller) Machines() (bought, ended, rejected int) {
	for _, m := range t.machines {
		if m.bought.IsZero() {
			continue
		}
		bought++
		if !m.ended.IsZero() {
			ended++
		}
		if m.rejected {
			rejected++
		}
	}
	return bought, ended, rejected
}

// Short prints a duration the way people say it: 1h23m, 4m10s, 38s.
func Short(d time.Duration) string {
	neg := ""
	if d < 0 {
		neg, d = "-", -d
	}
	switch {
	case d >= time.Hour:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%s%dh%02dm", neg, int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		d = d.Round(time.Second)
		return fmt.Sprintf("%s%dm%02ds", neg, int(d.Minutes()), int(d.Seconds())%60)
	}
	return neg + d.Round(time.Second).String()
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndex(s, "\n")+1:]
}
