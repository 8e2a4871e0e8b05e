package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/checkpoint"
	"lowtide/shared/fleet"
)

// end is how a live run shall end.
type end struct {
	by     time.Time // everything durable by then; zero: in its own time
	save   bool      // save first
	order  string    // the save that was ordered with it
	own    bool      // nobody ordered it: the machine will be taken
	spared bool      // it is our own idea and there is no time for it: let it run to the end
	why    string
}

// wantsEnd says whether the live run shall end now, and how. Of several reasons the earliest deadline holds.
func (a *Agent) wantsEnd() (bool, end) {
	o, r := a.memo.Order, &a.memo.Run
	e := end{by: a.doom()}
	if a.superseded() {
		return true, end{why: "a later run is ordered"}
	}
	want := false
	if o.Stop && o.Epoch == r.Epoch {
		want, e.why = true, "ordered"
		if o.Save != nil {
			e.save, e.order, e.by = true, o.Save.ID, earliest(e.by, o.Save.By)
		}
	}
	if limit, why := a.limit(); why != "" {
		want, e.save, e.by, e.why = true, true, earliest(e.by, limit), cmp.Or(e.why, why)
	}
	if doom := a.doom(); !want && !doom.IsZero() && r.Phase == fleet.Running {
		if !a.now.Before(doom.Add(-a.saveNeeds() - a.cfg.Reserve)) {
			want, e.save, e.own, e.why = true, true, true, "the machine will be taken"
			e.spared = !a.now.Before(doom)
		}
	}
	if !r.Told.IsZero() {
		want = true // what was begun is carried through, also by the next agent
		e.save = e.save || !r.Asked.IsZero()
	}
	return want, e
}

// signals is what this process of the agent has told the workload.
type signals struct {
	asked    bool      // the deadline file is written
	listened bool      // and the process was signalled
	by       time.Time // with which deadline
	term     bool
	kill     time.Time // when next to kill
}

// wind ends a live process: asked to save, then told to end, then killed.
func (a *Agent) wind(ctx context.Context, e end) error {
	r := &a.memo.Run
	if r.Told.IsZero() {
		if e.spared || r.Spare != "" && e.own {
			return nil // there is no time to ask for a checkpoint: the job keeps what is left
		}
		if done, err := a.tell(e); done || err != nil {
			return err
		}
	}
	if r.Term.IsZero() && a.overdue(e) {
		r.Term = a.now
		if err := a.keep(); err != nil {
			return err
		}
	}
	if r.Term.IsZero() {
		a.ask(ctx, e)
		return nil
	}
	a.kill(ctx)
	return nil
}

// tell decides how a process that was told nothing yet shall end. done: it shall go on.
func (a *Agent) tell(e end) (done bool, err error) {
	r := &a.memo.Run
	if e.save && !e.by.IsZero() {
		v := a.fits(e.by, a.cfg.Serialise)
		if v.Known && !v.OK || !a.now.Before(e.by) {
			r.Spare = v.String()
			a.say(events.CheckpointFailed{Workload: r.Workload, Machine: a.cfg.Machine, Epoch: r.Epoch, Save: e.order, Why: r.Spare})
			if e.order != "" {
				a.memo.Answered = answered{Save: e.order, Epoch: r.Epoch, Why: r.Spare}
			}
			e.save = false
			if e.own {
				return true, a.keep()
			}
		}
	}
	r.Told = a.now
	if e.save {
		r.Asked = a.now
		if a.live.Newest != nil {
			r.Had = a.live.Newest.Step
		}
	} else {
		r.Term = a.now
	}
	a.dirty = true
	return false, a.keep()
}

// overdue says that a process that was asked to save must end now, saved or not.
func (a *Agent) overdue(e end) bool {
	r := &a.memo.Run
	switch {
	case a.superseded():
		return true
	case !a.upload.finalAt.IsZero() && !a.now.Before(a.upload.finalAt.Add(a.cfg.Serialise)):
		return true // it has saved, that is durable, and still it runs
	case e.by.IsZero():
		return !a.now.Before(r.Asked.Add(patience))
	}
	return !a.now.Before(e.by.Add(-a.uploadNeeds()))
}

// ask requests the checkpoint: the deadline first, then the signal, again when the job begins to listen.
func (a *Agent) ask(ctx context.Context, e end) {
	s := &a.signal
	if s.asked && s.by.Equal(e.by) && (s.listened || !a.live.Listening) {
		return
	}
	by := a.memo.Run.Asked.Add(patience)
	if !e.by.IsZero() {
		by = e.by.Add(-a.uploadNeeds())
	}
	if err := a.deps.Runner.Save(ctx, a.cfg.Clock.Wall(by)); err != nil {
		a.trouble = errors.Join(a.trouble, fmt.Errorf("ask epoch %d for a checkpoint: %w", a.memo.Run.Epoch, err))
		return
	}
	s.asked, s.by, s.listened = true, e.by, a.live.Listening
	a.work.begun++ // one more round: the job may have answered already
}

// kill tells the process to end, and ends it if it does not.
func (a *Agent) kill(ctx context.Context) {
	s := &a.signal
	atOnce := a.superseded() || !a.now.Before(a.memo.Run.Term.Add(termGrace))
	if atOnce && a.now.Before(s.kill) || !atOnce && s.term {
		return
	}
	if err := a.deps.Runner.Stop(ctx, atOnce); err != nil {
		a.trouble = errors.Join(a.trouble, fmt.Errorf("end epoch %d: %w", a.memo.Run.Epoch, err))
		return
	}
	s.term = true
	if atOnce {
		s.kill = a.now.Add(termGrace)
	}
	a.work.begun++ // one more round: it may be gone already
}

// upload is the state of the uploads of this process of the agent.
type upload struct {
	step    int64     // in flight
	fails   int       // in a row
	refused int64     // step whose upload was not begun: no time
	lost    int64     // step that can never be saved
	why     string    // of either, or of the last failure
	told    time.Time // when a failure was last said
	finalAt time.Time // when the checkpoint that was asked for became durable
	target  int64     // step that the open order to save waits for
	open    string    // that order
}

// save makes the newest complete checkpoint durable, one upload at a time.
func (a *Agent) save(e end) {
	r, u := &a.memo.Run, &a.upload
	switch {
	case a.superseded():
		a.work.stop("save")
		return
	case !a.unsaved():
		if !r.Asked.IsZero() && u.finalAt.IsZero() && r.Saved.Step > r.Had {
			u.finalAt = a.now
		}
		return
	}
	u.finalAt = time.Time{}
	l := *a.live.Newest
	by := a.saveBy(e)
	v := a.fits(by, 0)
	switch {
	case a.work.busy("save"):
		// A newer one is worth more than the rest of an older one, if there is time for it.
		if !by.IsZero() && l.Step > u.step && v.OK {
			a.work.stop("save")
		}
		return
	case a.now.Before(a.work.retryAt("save")) || u.lost == l.Step:
		return
	case !by.IsZero() && u.refused == l.Step:
		return
	case !by.IsZero() && (v.Known && !v.OK || !a.now.Before(by)):
		u.refused, u.why = l.Step, v.String()
		if a.openSave() == "" && r.Spare == "" {
			a.saveFailed(u.why) // else it is said with the answer, or was said
		}
		return
	}
	began := a.now
	if !r.Asked.IsZero() {
		began = r.Asked
	}
	workload, epoch, start := r.Workload, r.Epoch, a.now
	u.step = l.Step
	a.dirty = true
	a.work.begin("save", func(ctx context.Context) func() {
		m, err := a.deps.Saver.Save(ctx, workload, epoch, l)
		return func() { a.saved(epoch, began, start, l, m, err) }
	})
}

// saveBy is when a save that is not the last must be durable.
func (a *Agent) saveBy(e end) time.Time {
	if a.openSave() != "" {
		return earliest(e.by, a.memo.Order.Save.By)
	}
	return e.by
}

// saved notes the result of an upload.
func (a *Agent) saved(epoch uint64, asked, began time.Time, l Local, m fleet.Manifest, err error) {
	r, u := &a.memo.Run, &a.upload
	if r.Epoch != epoch {
		return
	}
	a.dirty = true
	switch {
	case errors.Is(err, context.Canceled):
		return
	case errors.Is(err, ErrStale):
		// A later run has begun elsewhere: what this one does counts for nothing, and costs.
		r.Stale = true
		a.saveFailed(err.Error())
		return
	case err != nil:
		u.fails++
		u.why = a.mask(err.Error())
		if errors.Is(err, ErrUnfit) || errors.Is(err, ErrChanged) && u.fails >= mostChanges {
			u.lost, u.fails = l.Step, 0
			if !a.live.Alive {
				u.told = time.Time{} // it is the last there will be
			}
			a.tellFailed()
			return
		}
		a.work.again("save", a.now.Add(min(time.Minute, 5*time.Second<<min(u.fails-1, 4))))
		a.tellFailed()
		return
	}
	u.fails, u.why = 0, ""
	m.At, m.Took = a.now, a.now.Sub(asked)
	a.saves.add(m.Bytes, a.now.Sub(began))
	if m.Step > r.Saved.Step || r.Saved.ID == "" {
		r.Saved = m
	}
	if err := a.keep(); err != nil {
		a.trouble = errors.Join(a.trouble, err)
	}
	a.answerSave()
	if a.memo.Answered.Manifest.ID != m.ID {
		a.say(a.savedFact("", m))
	}
}

// mostChanges is how often in a row a checkpoint may change while it is saved: somebody still writes to what was complete.
const mostChanges = 3

// tellFailed says why the last upload failed, at most once a minute.
func (a *Agent) tellFailed() {
	if u := &a.upload; u.told.IsZero() || !a.now.Before(u.told.Add(time.Minute)) || a.memo.Run.Phase.Over() {
		u.told = a.now
		a.saveFailed(u.why)
	}
}

func (a *Agent) saveFailed(why string) {
	r := &a.memo.Run
	a.say(events.CheckpointFailed{Workload: r.Workload, Machine: a.cfg.Machine, Epoch: r.Epoch, Why: a.mask(why)})
}

// openSave is the order to save this run that is not answered yet.
func (a *Agent) openSave() string {
	if o := a.memo.Order; o.Save != nil && o.Epoch == a.memo.Run.Epoch && a.memo.Answered.Save != o.Save.ID {
		return o.Save.ID
	}
	return ""
}

func (a *Agent) unsavedInFlight() bool { return a.work.busy("save") && !a.superseded() }

// answerSave answers the open order to save, once it can.
func (a *Agent) answerSave() {
	o, r, u := a.memo.Order, &a.memo.Run, &a.upload
	if o.Save == nil || a.memo.Answered.Save == o.Save.ID || o.Epoch > r.Epoch && o.Start != nil {
		return // none, answered, or of a run that is still to begin
	}
	ans := answered{Save: o.Save.ID, Epoch: o.Epoch}
	switch {
	case o.Epoch != r.Epoch:
		ans.Why = fmt.Sprintf("epoch %d does not run here", o.Epoch)
	case r.lives() && o.Stop:
		return // when the process is gone
	case r.lives():
		if u.open != o.Save.ID && a.live.Newest != nil && a.live.Epoch == r.Epoch {
			u.open, u.target = o.Save.ID, a.live.Newest.Step
		}
		switch done := u.open == o.Save.ID && r.Saved.ID != "" && r.Saved.Step >= u.target; {
		case done:
			ans.Manifest = r.Saved
		case u.open == o.Save.ID && u.refused == u.target && u.target > 0:
			ans.Why = u.why
		case u.open == o.Save.ID && u.lost >= u.target && u.lost > 0:
			ans.Why = u.why
		case !o.Save.By.IsZero() && !a.now.Before(o.Save.By):
			ans.Why = fmt.Sprintf("nothing durable by %s", o.Save.By.UTC().Format(time.RFC3339))
		default:
			return
		}
	case r.Saved.ID != "" && !a.leftBehind():
		ans.Manifest = r.Saved
	default:
		ans.Why = cmp.Or(r.Spare, strings.TrimSuffix("the run ended without a durable checkpoint of its end: "+u.why, ": "))
	}
	a.memo.Answered = ans
	a.dirty = true
	a.sayAnswer()
}

// leftBehind says that a run that is over has a checkpoint on this disk that did not become durable.
func (a *Agent) leftBehind() bool { return a.seen && a.live.Epoch == a.memo.Run.Epoch && a.unsaved() }

// fits reckons whether a save of the newest size is durable by a time. A zero time always fits.
func (a *Agent) fits(by time.Time, serialise time.Duration) checkpoint.Verdict {
	b := checkpoint.Budget{Bytes: a.saves.bytes, PerSecond: a.saves.rate(), Serialise: serialise, Window: math.MaxInt64 / 4}
	if a.live.Newest != nil {
		b.Bytes = max(b.Bytes, a.live.Newest.Bytes)
	}
	if !by.IsZero() {
		b.Window = by.Sub(a.now)
	}
	return checkpoint.CanFinish(b)
}

// uploadNeeds is how long the last upload will take, on the careful side.
func (a *Agent) uploadNeeds() time.Duration { return cmp.Or(a.saves.p95(), 5*time.Second) }

// saveNeeds is how long it takes from the request to durable. Before anything was measured it is for ever: better to
// save at once than to find out too late.
func (a *Agent) saveNeeds() time.Duration {
	if a.saves.n == 0 {
		return math.MaxInt64 / 4
	}
	return a.cfg.Serialise + a.saves.p95()
}

// measures is what uploads of this run took.
type measures struct {
	n     int
	bytes int64 // of the last one
	took  []time.Duration
	rates []float64
}

const mostMeasures = 20

func (m *measures) add(bytes int64, took time.Duration) {
	took = max(took, time.Second) // the agent looks once a second: anything shorter is not known better
	m.n, m.bytes = m.n+1, bytes
	m.took, m.rates = append(m.took, took), append(m.rates, float64(bytes)/took.Seconds())
	if len(m.took) > mostMeasures {
		m.took, m.rates = m.took[1:], m.rates[1:]
	}
}

// rate is the median in bytes a second; 0: not measured. Small checkpoints that reuse most of the store tell more
// than the link can carry, hence not the best.
func (m *measures) rate() float64 {
	if len(m.rates) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(m.rates))
	return s[(len(s)-1)/2]
}

func (m *measures) p95() time.Duration {
	if len(m.took) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(m.took))
	return s[(len(s)*95+99)/100-1]
}

// earliest is the earlier of two times of which either may be unset.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
