package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

// hears is all that people may be told of.
var hears = []events.Kind{
	"clock.ticked", "workload.submitted", "workload.accepted", "workload.refused", "workload.withdrawn", "workload.paused",
	"workload.resumed", "workload.started", "workload.finished", "workload.failed", "checkpoint.saved",
	"instance.interrupted", "instance.launched", "instance.verified", "instance.rejected", "instance.ended", "instance.lost",
	"plan.proposed", "plan.approved", "plan.rejected", "plan.made", "plan.failed", "approval.refused",
	"budget.warned", "budget.exhausted", "policy.set", "silence.set", "channel.failed", "channel.recovered",
	"alert.received", "rule.failed", "rule.acted",
	"workload.idle", "workload.underused", "workload.busy", "workload.warned", "workload.kept", "checkpoint.failed", "instance.found",
	"reservation.set", "reservation.expiring", "reservation.idle",
}

// Read returns a fleet's book; an empty one if nothing was ever written.
func Read(ctx context.Context, books store.Bucket, fleetName string) (*Book, uint64, error) {
	b := newBook(fleetName)
	rev, err := store.Load(ctx, books, fleetName, b)
	if err != nil {
		return nil, 0, fmt.Errorf("read notify's book of %s: %w", fleetName, err)
	}
	return b, rev, nil
}

// shelf hands the book to the senders of one process, decoded once for each revision. They only read it.
type shelf struct {
	books store.Bucket
	fleet string

	mu   sync.Mutex
	rev  uint64
	book *Book
}

func (s *shelf) read(ctx context.Context) (*Book, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	val, rev, err := s.books.Get(ctx, s.fleet)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return newBook(s.fleet), nil
	case err != nil:
		return nil, fmt.Errorf("read notify's book of %s: %w", s.fleet, err)
	case rev == s.rev:
		return s.book, nil
	}
	b := newBook(s.fleet)
	if err := json.Unmarshal(val, b); err != nil {
		return nil, fmt.Errorf("read notify's book of %s: %w", s.fleet, err)
	}
	s.rev, s.book = rev, b
	return b, nil
}

// keeper is the function that keeps the book, and the book as it wrote it last, proved by its revision.
type keeper struct {
	cfg  Config
	book *Book // nil: read it first
	rev  uint64
}

func (k *keeper) function() fn.Function { return fn.Fold("notify", 128, hears, k.fold) }

func (k *keeper) fold(ctx context.Context, batch []fn.Delivery) (_ []events.Event, err error) {
	if k.book == nil {
		if k.book, k.rev, err = Read(ctx, k.cfg.Books, k.cfg.Fleet); err != nil {
			return nil, err
		}
	}
	said, err := k.enter(ctx, batch)
	if err != nil {
		k.book = nil
	}
	return said, err
}

// enter folds a batch, saves, and wakes the senders where people should see something.
func (k *keeper) enter(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
	cfg, b := k.cfg, k.book
	before, behind, said := b.versions(), b.Behind, false
	for _, d := range batch {
		if d.Event.Fleet != cfg.Fleet {
			continue
		}
		if d.Stream == b.Applied.Stream && d.Seq <= b.Applied.Seq {
			said = true // folded before; whether the senders were woken is not known
			continue
		}
		if d.At.After(b.Now) {
			b.Now = d.At
		}
		b.hear(d.Event)
		b.Applied = fleet.Position{Stream: d.Stream, Seq: d.Seq}
	}
	b.forget()
	b.Behind = cfg.past(b.Now)
	if idle(batch) && b.versions() == before && b.Behind == behind {
		return nil, nil // the clock alone changes nothing worth a write
	}
	b.Saves++
	var err error
	if k.rev, err = store.Save(ctx, cfg.Books, cfg.Fleet, b, k.rev); err != nil {
		return nil, fmt.Errorf("save notify's book of %s: %w", cfg.Fleet, err)
	}
	if b.Behind || !said && !behind && b.versions() == before {
		return nil, nil
	}
	// Once a second is enough, and spares the senders in a storm. An alarm armed again replaces the one before it.
	return []events.Event{wake(cfg.Fleet, "notify", b.Applied.Seq, b.Now, b.Now.Truncate(time.Second).Add(time.Second))}, nil
}

func idle(batch []fn.Delivery) bool {
	return !slices.ContainsFunc(batch, func(d fn.Delivery) bool { return d.Event.Data.Kind() != "clock.ticked" })
}

// wake makes senders look: all of them (what "notify"), or one at a time to come.
func wake(fleetName, what string, seq uint64, now, at time.Time) events.Event {
	due := at
	if due.IsZero() {
		due = now
	}
	e := events.New(fleetName, "notify", now, events.ClockTicked{What: what, Due: due})
	e.ID = fmt.Sprintf("%s-%d-%d", e.ID, seq, due.UnixNano()) // each arming is one of its own
	e.At = at
	return e
}

// versions tells whether anything changed that people see.
func (b *Book) versions() (sum int) {
	for _, i := range b.Incidents {
		sum += i.Version
	}
	return sum + b.Next*1_000_000 + len(b.Silences)
}

// hear folds one fact. It is total, and hearing the same again, or late, changes nothing that people see.
func (b *Book) hear(e events.Event) {
	b.know(e.Data)
	var i *Incident
	switch f := e.Data.(type) {
	case events.WorkloadAccepted:
		i = b.life(f.Workload, "accepted", func(l *Life) {
			l.Worst, l.Baseline, l.Bound, l.Deadline, l.Why = f.Worst, f.Baseline, f.Bound, f.Deadline, ""
		})
	case events.WorkloadRefused:
		i = b.refused(f)
	case events.WorkloadPaused:
		i = b.life(f.Workload, "paused", func(l *Life) { l.By = f.By })
		b.over(f.Workload, "paused")
	case events.WorkloadResumed:
		i = b.life(f.Workload, "accepted", func(l *Life) { l.By = f.By })
	case events.WorkloadWithdrawn:
		i = b.life(f.Workload, "withdrawn", func(l *Life) { l.By, l.End = f.By, b.Now })
		b.over(f.Workload, "withdrawn")
	case events.WorkloadFinished:
		i = b.life(f.Workload, "finished", func(l *Life) { l.Step, l.Machine, l.End = f.Step, f.Machine, b.Now })
		b.over(f.Workload, "finished")
	case events.WorkloadFailed:
		i = b.life(f.Workload, "failing", func(l *Life) { l.Step, l.Machine, l.Code, l.Why = f.Step, f.Machine, f.Code, lastLine(f.Why) })
	case events.WorkloadStarted:
		b.started(f)
	case events.CheckpointSaved:
		b.saved(f)
		b.close("checkpoint/" + f.Workload)
	case events.InstanceInterrupted:
		i = b.interrupted(f, e.Dry)
	case events.PlanProposed:
		i = b.proposed(f)
	case events.PlanApproved:
		b.decide(f.Plan, "approved", f.By, f.Hash)
	case events.PlanRejected:
		b.decide(f.Plan, "rejected", f.By, f.Hash)
	case events.ApprovalRefused:
		b.unheard(f)
	case events.PlanMade:
		b.made(f.Plan)
	case events.ReservationExpiring:
		i = b.ends(f)
	case events.ReservationIdle:
		i = b.unused(f)
	case events.ReservationSet:
		b.settled("reserved/ends/" + f.Reservation.ID)
		if f.Reservation.Count == 0 {
			b.settled("reserved/idle/" + f.Reservation.ID)
		}
	case events.InstanceLaunched:
		if id := f.Offer.Reservation; id != "" {
			b.settled("reserved/idle/" + id)
		}
		b.launched(f)
	case events.InstanceVerified:
		b.stage(f.Machine, "verified", "")
	case events.InstanceRejected:
		b.stage(f.Machine, "rejected", f.Cause)
		if m := b.Machines[f.Machine]; m != nil {
			i = b.trouble(m.Workload, fmt.Sprintf("%s rejected: %s (%.0f %%)", f.Machine, f.Cause, 100*f.Ratio))
		}
	case events.PlanFailed:
		if f.Action == fleet.Launch {
			i = b.notBought(f)
		}
	case events.InstanceEnded:
		b.gone(f.Machine)
	case events.InstanceLost:
		b.gone(f.Machine)
	case events.BudgetWarned:
		i = b.budget(f.Workload, f.Spent, f.Budget, false)
	case events.BudgetExhausted:
		i = b.budget(f.Workload, f.Spent, f.Budget, true)
	case events.PolicySet:
		i = b.policy(f)
	case events.SilenceSet:
		b.Silences[f.ID] = &Silence{Workload: f.Workload, Kind: f.What, Until: f.Until}
	case events.ChannelFailed:
		i = b.note("channel", "channel/"+f.Channel, Warning, Note{Name: f.Channel, Text: f.Why}, false)
	case events.ChannelRecovered:
		if old := b.newest("channel/" + f.Channel); old != nil && old.Closed.IsZero() {
			i = b.note("channel", "channel/"+f.Channel, Warning, Note{Name: f.Channel, Text: old.Note.Text}, true)
		}
	case events.AlertReceived:
		i = b.alert(f)
	case events.RuleFailed:
		i = b.note("rule", "rule/"+f.Rule, Warning, Note{Name: f.Rule, Text: f.Why}, false)
		b.done(i)
	case events.WorkloadIdle:
		i = b.wastes(Waste{Workload: f.Workload, Machine: f.Machine, Idle: true, Held: f.Held, Since: f.Since, Why: f.Why}, f.Epoch)
	case events.WorkloadUnderused:
		i = b.wastes(Waste{Workload: f.Workload, Machine: f.Machine, Since: f.Since, Why: f.Why}, f.Epoch)
	case events.WorkloadWarned:
		i = b.warned(f)
	case events.WorkloadBusy:
		b.wasted(f.Workload, func(w *Waste) { w.End = "busy" })
	case events.WorkloadKept:
		b.wasted(f.Workload, func(w *Waste) { w.End, w.By, w.Until = "kept", f.By, f.Until })
	case events.CheckpointFailed:
		i = b.notSaved(f)
	case events.InstanceFound:
		i = b.stray(f)
	case events.RuleActed:
		i = b.ruled(f)
	}
	if i != nil {
		i.Dry = i.Dry || e.Dry
	}
	b.expire()
}

// know takes down who is who.
func (b *Book) know(fact events.Fact) {
	switch f := fact.(type) {
	case events.WorkloadSubmitted:
		b.work(f.Spec.Name).Team = f.Spec.Tags["team"]
	case events.PlanMade:
		if f.Plan.Action == fleet.Launch && len(f.Plan.Offers) > 0 {
			b.knowOffer(f.Plan.Machine, f.Plan.Workload, f.Plan.Offers[0])
		}
	case events.InstanceLaunched:
		b.knowOffer(f.Machine, f.Workload, f.Offer)
		b.machine(f.Machine).ID = f.ID
	case events.WorkloadStarted:
		w, m := b.work(f.Workload), b.machine(f.Machine)
		m.Workload, m.Epoch = f.Workload, max(m.Epoch, f.Epoch)
		if f.Epoch > w.Epoch {
			w.Epoch, w.On, w.Began = f.Epoch, f.Machine, b.Now
			w.Step, w.SavedAt = max(w.Step, f.Step), b.Now
		}
	}
}

func (b *Book) knowOffer(machine, workload string, o fleet.Offer) {
	m := b.machine(machine)
	m.Workload, m.Offer, m.Cloud, m.Account = cmp.Or(workload, m.Workload), o.String(), o.Cloud, o.Account
	m.Hourly = o.Hourly.Or(fleet.Money{})
	for _, i := range b.Incidents { // the notice may have come first
		for _, t := range i.Taken {
			if t.Machine == machine && t.Offer == "" {
				t.Offer, t.Hourly, t.Workload = m.Offer, m.Hourly, m.Workload
				b.touch(i)
			}
		}
	}
}

func (b *Book) work(name string) *Work {
	if b.Works[name] == nil {
		b.Works[name] = &Work{}
	}
	return b.Works[name]
}

func (b *Book) machine(name string) *Machine {
	if b.Machines[name] == nil {
		b.Machines[name] = &Machine{}
	}
	return b.Machines[name]
}

func (b *Book) teamOf(workload string) string {
	if w := b.Works[workload]; w != nil {
		return w.Team
	}
	return ""
}

// rank orders the phases of a workload, so that an older one never follows a newer one.
var rank = map[string]int{"": 0, "refused": 1, "accepted": 2, "failing": 2, "paused": 2, "finished": 3, "withdrawn": 3}

// life is a workload's one message, from its acceptance to its end.
func (b *Book) life(name, phase string, set func(*Life)) *Incident {
	key := "workload/" + name
	i := b.newest(key)
	if i != nil && rank[i.Life.Phase] > rank[phase] || i != nil && rank[phase] == 3 && i.Life.Phase == phase {
		return nil
	}
	if i == nil {
		i = b.open("workload", key, Info)
		i.Life = &Life{Workload: name}
	}
	was := *i.Life
	i.Team, i.Life.Phase = b.teamOf(name), phase
	set(i.Life)
	i.Severity = Info
	if phase == "failing" {
		i.Severity = Warning
	}
	if rank[phase] == 3 {
		b.work(name).Over = phase
		b.done(i)
	}
	if same(was, *i.Life) {
		return i
	}
	b.touch(i)
	return i
}

func same(a, b any) bool {
	x, errx := json.Marshal(a)
	y, erry := json.Marshal(b)
	return errx == nil && erry == nil && string(x) == string(y)
}

// refused is told once for each reason; a workload that was accepted before is still that.
func (b *Book) refused(f events.WorkloadRefused) *Incident {
	key := "refused/" + f.Workload
	if old := b.newest(key); old != nil && old.Life.Why == f.Why && b.Now.Sub(old.Changed) < time.Hour {
		return nil
	}
	b.Next++
	i := &Incident{Number: b.Next, Kind: "workload", Key: key, Severity: Warning, Opened: b.Now, Team: b.teamOf(f.Workload), Life: &Life{Workload: f.Workload, Phase: "refused", Why: f.Why}}
	b.Incidents[i.Number] = i
	b.done(i)
	b.touch(i)
	return i
}

// joinWithin is how close notices must be to be one incident.
const joinWithin = 2 * time.Minute

// interrupted opens an incident, or adds to one: a reclaim of many machines is one thing that happens.
func (b *Book) interrupted(f events.InstanceInterrupted, dry bool) *Incident {
	name := b.named(f)
	if i, t := b.taken(name); t != nil {
		if f.EndsBy.Before(t.EndsBy) {
			t.EndsBy = f.EndsBy
			b.touch(i)
		}
		return nil
	}
	m := b.Machines[name]
	if m == nil {
		m = &Machine{}
	}
	if !m.Gone.IsZero() {
		return nil // heard late: it has ended
	}
	t := &Taken{
		Machine: name, Workload: m.Workload, Offer: m.Offer, Hourly: m.Hourly, At: b.Now, EndsBy: f.EndsBy, Epoch: m.Epoch,
	}
	w := b.Works[m.Workload]
	switch {
	case w == nil:
	case w.Over != "":
		t.End = w.Over
	case w.On == name:
		t.Step, t.SavedAt = w.Step, w.SavedAt
		t.Risk = m.Hourly.Times(max(b.Now.Sub(w.SavedAt), 0).Hours())
	case w.Epoch > 0 && w.Epoch > m.Epoch && m.Epoch > 0:
		t.End, t.From = "resumed", w.Step // its work went on elsewhere before we heard
	}
	i := b.join("interrupted", b.teamOf(m.Workload), dry)
	i.Taken = append(i.Taken, t)
	b.settle(i)
	return i
}

// named is our name of a machine that a notice tells of; the cloud's id where we do not know it.
func (b *Book) named(f events.InstanceInterrupted) string {
	if f.Machine != "" {
		return f.Machine
	}
	for name, m := range b.Machines {
		if m.ID == f.ID && m.Cloud == f.Cloud && m.Account == f.Account {
			return name
		}
	}
	return f.ID
}

func (b *Book) taken(machine string) (*Incident, *Taken) {
	for _, i := range b.Incidents {
		for _, t := range i.Taken {
			if t.Machine == machine {
				return i, t
			}
		}
	}
	return nil, nil
}

// join finds the incident of a kind that began just now, for a team, or opens one.
func (b *Book) join(kind, team string, dry bool) *Incident {
	key := kind + "/" + team
	if i := b.newest(key); i != nil && i.Dry == dry && b.Now.Sub(i.lastAt()) <= joinWithin {
		i.Closed = time.Time{}
		return i
	}
	b.Next++
	i := &Incident{Number: b.Next, Kind: kind, Key: key, Severity: Warning, Opened: b.Now, Team: team, Dry: dry}
	b.Incidents[i.Number] = i
	return i
}

func (i *Incident) lastAt() (at time.Time) {
	at = i.Opened
	for _, t := range i.Taken {
		if t.At.After(at) {
			at = t.At
		}
	}
	return at
}

// settle closes an interruption when all its work has gone on or come to rest.
func (b *Book) settle(i *Incident) {
	b.touch(i)
	if !slices.ContainsFunc(i.Taken, func(t *Taken) bool { return t.End == "" }) {
		b.done(i)
	}
}

// each calls do for what was taken of a workload and is still open; do says whether it changed it.
func (b *Book) each(workload string, do func(*Taken) bool) {
	if workload == "" {
		return
	}
	for _, n := range b.numbers() {
		i := b.Incidents[n]
		changed := false
		for _, t := range i.Taken {
			if t.Workload == workload && t.End == "" {
				changed = do(t) || changed
			}
		}
		if changed {
			b.settle(i)
		}
	}
}

func (b *Book) started(f events.WorkloadStarted) {
	b.each(f.Workload, func(t *Taken) bool {
		if t.Machine == f.Machine || f.Epoch <= t.Epoch {
			return false
		}
		t.End, t.From = "resumed", f.Step
		if m := b.Machines[f.Machine]; m != nil {
			t.Next, t.NextIs, t.For, t.Stage = f.Machine, m.Offer, m.Hourly, "verified"
		}
		return true
	})
	b.clear(f.Workload)
	if i := b.newest("workload/" + f.Workload); i != nil && i.Life.Phase == "failing" {
		b.life(f.Workload, "accepted", func(*Life) {})
	}
}

func (b *Book) saved(f events.CheckpointSaved) {
	w := b.work(f.Workload)
	if f.Epoch < w.Epoch || f.Manifest.Step < w.Step {
		return
	}
	w.Step, w.SavedAt = f.Manifest.Step, b.Now
	b.each(f.Workload, func(t *Taken) bool {
		if f.Machine != t.Machine || f.Manifest.Step < t.Step || t.Saved && f.Manifest.Step == t.Step {
			return false
		}
		t.Step, t.SavedAt, t.Saved = f.Manifest.Step, b.Now, true
		return true
	})
}

// over ends what is open of a workload that shall not run.
func (b *Book) over(workload, how string) {
	b.wasted(workload, func(w *Waste) { w.End = how })
	b.close("checkpoint/" + workload)
	b.each(workload, func(t *Taken) bool { t.End = how; return true })
	b.clear(workload)
	if i := b.newest("budget/" + workload); i != nil && i.Closed.IsZero() && how != "paused" {
		b.done(i)
		b.touch(i)
	}
	if i := b.newest("approval/" + workload); i != nil && i.Closed.IsZero() {
		i.Ask.State = "expired"
		b.done(i)
		b.touch(i)
	}
}

// gone ends what is open of a machine that carried nothing.
func (b *Book) gone(machine string) {
	b.close("stray/" + machine)
	m := b.machine(machine)
	if m.Gone.IsZero() {
		m.Gone = b.Now
	}
	i, t := b.taken(machine)
	if t == nil || t.End != "" {
		return
	}
	if w := b.Works[t.Workload]; t.Workload == "" || w == nil || w.On != machine {
		t.End = "idle"
		b.settle(i)
	}
}

func (b *Book) made(p fleet.Plan) {
	if p.Action != fleet.Launch || len(p.Offers) == 0 {
		return
	}
	if d := b.Decided[p.ID]; d == nil || d.State == "expired" {
		b.decide(p.ID, "approved", "", "")
	}
	b.each(p.Workload, func(t *Taken) bool {
		if t.Next == p.Machine || t.Machine == p.Machine || p.Made.Before(t.At.Add(-joinWithin)) {
			return false
		}
		t.Next, t.NextIs, t.For, t.Stage = p.Machine, p.Offers[0].String(), p.Score.Hourly, "planned"
		return true
	})
}

func (b *Book) launched(f events.InstanceLaunched) {
	b.each(f.Workload, func(t *Taken) bool {
		if t.Machine == f.Machine || t.Next == f.Machine && t.Stage != "planned" || f.At.Before(t.At.Add(-joinWithin)) {
			return false
		}
		t.Next, t.NextIs, t.For, t.Stage = f.Machine, f.Offer.String(), f.Offer.Hourly.Or(fleet.Money{}), "bought"
		return true
	})
	b.clear(f.Workload)
}

// stage moves the replacement on.
func (b *Book) stage(machine, stage, why string) {
	m := b.Machines[machine]
	if m == nil {
		return
	}
	b.each(m.Workload, func(t *Taken) bool {
		if t.Next != machine || t.Stage == stage {
			return false
		}
		t.Stage = stage
		if why != "" {
			t.Trouble = why
		}
		return true
	})
}

// trouble is one incident for all that stands in the way of purchases now. Where an interruption of the workload is
// open, it is told there.
func (b *Book) trouble(workload, why string) *Incident {
	inhibited := false
	b.each(workload, func(t *Taken) bool {
		inhibited = true
		changed := t.Trouble != why
		t.Trouble = why
		return changed
	})
	if inhibited || workload == "" {
		return nil
	}
	team := b.teamOf(workload)
	i := b.open("trouble", "trouble/"+team, Warning)
	i.Team = team
	b.touch(i)
	for _, t := range i.Trouble {
		if t.Workload == workload {
			t.Why, t.Over = why, false
			t.Count++
			return i
		}
	}
	i.Trouble = append(i.Trouble, &Trouble{Workload: workload, Why: why, Count: 1})
	return i
}

func (b *Book) notBought(f events.PlanFailed) *Incident {
	workload := ""
	if m := b.Machines[f.Machine]; m != nil {
		workload = m.Workload
	}
	return b.trouble(workload, f.Why)
}

// clear ends a workload's trouble.
func (b *Book) clear(workload string) {
	for _, i := range b.Incidents {
		changed, open := false, false
		for _, t := range i.Trouble {
			if t.Workload == workload && !t.Over {
				t.Over, changed = true, true
			}
			open = open || !t.Over
		}
		if changed {
			b.touch(i)
			if !open {
				b.done(i)
			}
		}
	}
}

// proposed is one message a workload: who proposes again changes it.
func (b *Book) proposed(f events.PlanProposed) *Incident {
	key := "approval/" + f.Plan.Workload
	ask := Ask{Plan: f.Plan, Hash: f.Plan.Hash(), Why: f.Why, Until: f.Until, Default: f.Default, Only: f.Observed}
	if ask.Until.IsZero() {
		ask.Until = f.Plan.Expires
	}
	i := b.newest(key)
	if i != nil && (i.Ask.Plan.ID == f.Plan.ID || f.Plan.Made.Before(i.Ask.Plan.Made)) {
		return nil // the same again, or an older one heard late
	}
	if i != nil && (i.Closed.IsZero() || i.Ask.State == "expired" && b.Now.Sub(i.Closed) < time.Hour) {
		i.Closed = time.Time{}
	} else {
		i = b.open("approval", key, Warning)
	}
	if f.Observed {
		i.Severity = Info
	}
	i.Team, i.Ask = b.teamOf(f.Plan.Workload), &ask
	if d := b.Decided[f.Plan.ID]; d != nil {
		i.Ask.State, i.Ask.By = d.State, d.By
		b.done(i)
	}
	b.touch(i)
	return i
}

// decide closes a question. The first word counts.
func (b *Book) decide(plan, state, by, hash string) {
	i := b.asking(plan)
	if i != nil && hash != "" && i.Ask.Hash != hash {
		return // about another plan than this; the decider says so
	}
	if d := b.Decided[plan]; d == nil || d.State == "expired" {
		b.Decided[plan] = &Decision{state, by, b.Now}
	}
	if i == nil || i.Ask.State != "" && i.Ask.State != "expired" {
		return
	}
	i.Ask.State, i.Ask.By = state, by
	b.done(i)
	b.touch(i)
}

func (b *Book) asking(plan string) *Incident {
	for _, i := range b.Incidents {
		if i.Ask != nil && i.Ask.Plan.ID == plan {
			return i
		}
	}
	return nil
}

// unheard notes a word that changed nothing.
func (b *Book) unheard(f events.ApprovalRefused) {
	i := b.asking(f.Plan)
	if i == nil || i.Ask.Plan.ID != f.Plan {
		return
	}
	line := f.By + ": " + f.Why
	if !slices.Contains(i.Ask.Refused, line) && len(i.Ask.Refused) < 10 {
		i.Ask.Refused = append(i.Ask.Refused, line)
		b.touch(i)
	}
}

// expire closes questions whose time is over.
func (b *Book) expire() {
	for _, i := range b.Incidents {
		if i.Ask != nil && i.Ask.State == "" && i.Closed.IsZero() && b.Now.After(i.Ask.Until.Add(10*time.Second)) {
			i.Ask.State = "expired"
			b.done(i)
			b.touch(i)
		}
	}
}

func (b *Book) budget(workload string, spent, budget fleet.Money, gone bool) *Incident {
	i := b.open("budget", "budget/"+workload, Warning)
	if i.Budget != nil && (i.Budget.Gone || i.Budget.Gone == gone && i.Budget.Spent.String() == spent.String()) {
		return nil
	}
	i.Team, i.Budget = b.teamOf(workload), &Budget{workload, spent, budget, gone}
	if gone {
		i.Severity = Critical
	}
	b.touch(i)
	return i
}

func (b *Book) policy(f events.PolicySet) *Incident {
	if f.Halt == "" {
		if old := b.newest("halted"); old != nil && old.Closed.IsZero() {
			return b.note("halted", "halted", Critical, Note{Text: old.Note.Text, By: f.By}, true)
		}
		return nil
	}
	return b.note("halted", "halted", Critical, Note{Text: f.Halt, By: f.By}, false)
}

func (b *Book) alert(f events.AlertReceived) *Incident {
	sev := Warning
	if s, err := ParseSeverity(f.Severity); err == nil && f.Severity != "" {
		sev = s
	}
	key := "alert/" + f.Group
	if old := b.newest(key); !f.Firing && (old == nil || !old.Closed.IsZero()) {
		return nil
	}
	return b.note("alert", key, sev, Note{Name: f.Name, Text: cmp.Or(f.Annotations["summary"], f.Annotations["description"], f.Name), By: f.From}, !f.Firing)
}

// How a rule's words stand in a Note's By: news, or a state that lasts.
const (
	byRule  = "rule"
	byState = "state"
)

// ruled is what a user's rule has to tell, and what it could not do.
func (b *Book) ruled(f events.RuleActed) *Incident {
	key := "rule/" + f.Rule + "/" + f.About
	sev, err := ParseSeverity(f.Severity)
	switch old := b.newest(key); {
	case f.Act == "notify" && f.Over:
		if old == nil || !old.Closed.IsZero() {
			return nil
		}
		return b.note("rule", key, old.Severity, *old.Note, true)
	case f.Act == "notify" && err == nil:
		by := byRule
		if f.Lasts {
			by = byState
		}
		return b.note("rule", key, sev, Note{Name: f.Rule, Text: f.Result, By: by}, !f.Lasts)
	case !f.Done && (f.Act == "webhook" || f.Act == "schedule"):
		return b.note("rule", key+"/"+f.Act, Warning, Note{Name: f.Rule, Text: f.Act + ": " + f.Result, By: byRule}, true)
	}
	return nil
}

// note opens, changes or closes news in words.
func (b *Book) note(kind, key string, s Severity, n Note, over bool) *Incident {
	i := b.open(kind, key, s)
	changed := i.Note == nil || *i.Note != n
	i.Note, i.Severity = &n, s
	if over {
		b.done(i)
		changed = true
	}
	if changed {
		b.touch(i)
	}
	return i
}
