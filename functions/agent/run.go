package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/shared/checkpoint"
	"lowtide/shared/fleet"
)

// follow brings the machine closer to what its order, its cloud and its lease want of it.
func (a *Agent) follow(ctx context.Context) error {
	r := &a.memo.Run
	if err := a.adopt(); err != nil {
		return err
	}
	switch r.Phase {
	case fleet.Starting:
		return a.starting(ctx)
	case fleet.Running:
		return a.running(ctx)
	}
	a.answerSave()
	if a.bench() {
		return nil
	}
	return a.begin()
}

// adopt makes a new run of the order, when nothing else runs.
func (a *Agent) adopt() error {
	o, r := a.memo.Order, &a.memo.Run
	if r.lives() || o.Epoch <= r.Epoch {
		return nil
	}
	if o.Stop {
		// Told to end what never began here: it is over, and an order to start it that comes late must not begin it.
		*r = run{Epoch: o.Epoch, Phase: fleet.RunStopped}
		if o.Start != nil {
			r.Workload = o.Start.Workload
		}
		return a.over(fleet.RunStopped)
	}
	return nil
}

// begin takes up the start that is ordered.
func (a *Agent) begin() error {
	o, r := a.memo.Order, &a.memo.Run
	if o.Start == nil || o.Stop || o.Epoch <= r.Epoch || !a.mayBegin() || a.ending() {
		return nil
	}
	*r = run{Workload: o.Start.Workload, Epoch: o.Epoch, Phase: fleet.Starting, Start: *o.Start}
	a.signal, a.upload = signals{}, upload{}
	a.saves = measures{} // of another workload, perhaps
	a.dirty = true
	a.place, a.startAt, a.blindAt = place{}, time.Time{}, time.Time{}
	a.known = known{}
	a.work.drop("restore")
	a.work.drop("save")
	a.work.begun++ // one more round
	return a.keep()
}

// superseded says that an order wants a later epoch on this machine: the one that lives is not worth a save.
func (a *Agent) superseded() bool {
	o, r := a.memo.Order, &a.memo.Run
	return r.Stale || o.Epoch > r.Epoch && (o.Start != nil || o.Stop)
}

// starting restores and starts. It can be interrupted anywhere and begun again.
func (a *Agent) starting(ctx context.Context) error {
	r := &a.memo.Run
	if a.seen && a.live.Epoch == r.Epoch {
		return a.started() // by an agent that did not live to note it
	}
	if !a.seen || a.live.Alive {
		return a.clear(ctx)
	}
	if want, _ := a.wantsEnd(); want {
		return a.forgo(ctx)
	}
	if a.work.busy("restore") || a.now.Before(a.startAt) || !a.mayBegin() {
		return nil
	}
	if a.place.epoch != r.Epoch {
		return a.restore(ctx)
	}
	c := Command{
		Workload: r.Workload, Epoch: r.Epoch, Run: r.Start.Run, Env: r.Start.Env, SaveEvery: r.Start.SaveEvery, Restored: a.place.dir,
		Dir: a.place.code, Setup: r.Start.Kit.Setup, Secrets: a.known.values, Image: r.Start.Kit.Image, Data: r.Start.Kit.Data.URL,
	}
	if ready, err := a.setUp(ctx, c); err != nil || !ready {
		return err
	}
	r.Restore += a.now.Sub(a.place.at)
	if err := a.keep(); err != nil { // the next agent must know from where, if this one dies after Start
		return err
	}
	if err := a.deps.Runner.Start(ctx, c); err != nil {
		r.Why, r.Code = a.mask(fmt.Sprintf("start %s: %v", first(r.Start.Run), err)), -1
		return a.over(fleet.RunFailed)
	}
	return a.started()
}

// forgo ends a run that has not started.
func (a *Agent) forgo(ctx context.Context) error {
	if len(a.memo.Run.Start.Kit.Setup) > 0 {
		if err := a.deps.Runner.Stop(ctx, true); err != nil {
			a.trouble = errors.Join(a.trouble, fmt.Errorf("end the setup: %w", err))
			return nil
		}
	}
	return a.over(fleet.RunStopped)
}

// clear ends a process of an earlier epoch that should not be there: one run at a time.
func (a *Agent) clear(ctx context.Context) error {
	if a.seen && a.live.Alive {
		if err := a.deps.Runner.Stop(ctx, true); err != nil {
			a.trouble = errors.Join(a.trouble, fmt.Errorf("end the run of epoch %d: %w", a.live.Epoch, err))
		}
	}
	return nil
}

// place is where this process of the agent restored to, for which epoch. Another process cannot know whether it is
// whole, and restores again.
type place struct {
	epoch uint64
	dir   string // "": nothing was to be restored
	code  string // directory of the workload's code; "": it brings none
	at    time.Time
}

// restored is what came of a restore.
type restored struct {
	dir      string
	code     string
	secrets  map[string]string
	manifest fleet.Manifest
	from     string
	damage   string
	err      error
	final    bool // trying again would not help
}

// restore fetches the checkpoint that the run starts from, and fences earlier epochs.
func (a *Agent) restore(ctx context.Context) error {
	r := a.memo.Run
	dir, err := a.deps.Runner.Prepare(ctx, r.Epoch)
	if err != nil {
		a.startAt = a.now.Add(5 * time.Second)
		a.trouble = errors.Join(a.trouble, fmt.Errorf("prepare epoch %d: %w", r.Epoch, err))
		return nil
	}
	began := a.now
	a.dirty = true
	a.work.begin("restore", func(ctx context.Context) func() {
		got := a.fetch(ctx, r, dir)
		return func() { a.fetched(r.Epoch, began, got) }
	})
	return nil
}

// fetch runs beside the agent and touches nothing of it but its Saver.
func (a *Agent) fetch(ctx context.Context, r run, dir string) restored {
	got := restored{}
	for _, id := range []string{r.Start.From, r.Start.Prior} {
		if id == "" {
			continue
		}
		m, err := a.deps.Saver.Restore(ctx, r.Workload, id, dir)
		if err == nil {
			got.dir, got.manifest, got.from = dir, m, id
			break
		}
		if !errors.Is(err, ErrDamaged) {
			got.err = err
			return got
		}
		if got.damage != "" {
			got.damage += "; "
		}
		got.damage += err.Error()
	}
	if r.Start.From != "" && got.from == "" {
		// Beginning again from nothing would throw work away that somebody may still save.
		got.err, got.final = fmt.Errorf("no checkpoint to start from: %s", got.damage), true
		return got
	}
	if got.err = a.deps.Saver.Begin(ctx, r.Workload, r.Epoch, got.from); got.err != nil {
		got.final = errors.Is(got.err, ErrStale)
		return got
	}
	if got.code, got.err = a.code(ctx, r); got.err != nil {
		got.err, got.final = fmt.Errorf("the workload's directory: %w", got.err), errors.Is(got.err, ErrDamaged)
		return got
	}
	if got.secrets, got.err = a.secrets(ctx, r); got.err != nil {
		got.final = errors.Is(got.err, ErrNoSecrets)
	}
	return got
}

// fetched notes what was restored.
func (a *Agent) fetched(epoch uint64, began time.Time, got restored) {
	r := &a.memo.Run
	if r.Epoch != epoch || r.Phase != fleet.Starting {
		return
	}
	a.dirty = true
	switch {
	case got.err != nil && got.final:
		r.Why, r.Code = a.mask(got.err.Error()), -1
		a.trouble = errors.Join(a.trouble, a.over(fleet.RunFailed))
		return
	case got.err != nil:
		a.startAt = a.now.Add(5 * time.Second)
		a.trouble = errors.Join(a.trouble, fmt.Errorf("restore for epoch %d: %w", epoch, got.err))
		return
	case got.damage != "":
		a.say(events.CheckpointFailed{
			Workload: r.Workload, Machine: a.cfg.Machine, Epoch: r.Epoch,
			Why: fmt.Sprintf("%s; started from %s", got.damage, got.from),
		})
	}
	r.From, r.FromStep, r.Step = got.from, got.manifest.Step, got.manifest.Step
	r.Restore = a.now.Sub(began)
	a.place, a.known = place{epoch, got.dir, got.code, a.now}, known{epoch, got.secrets}
}

// started notes that the process is on record.
func (a *Agent) started() error {
	r := &a.memo.Run
	r.Phase = fleet.Running
	if err := a.keep(); err != nil {
		return err
	}
	a.dirty = true
	a.progressAt, a.progressed = a.now.Add(progressEvery), r.FromStep
	a.say(a.startedFact())
	a.work.begun++ // one more round, to see it run
	a.signal = signals{}
	return nil
}

// running looks after a process: its progress, its checkpoints, its end.
func (a *Agent) running(ctx context.Context) error {
	r := &a.memo.Run
	if !a.seen {
		return nil
	}
	if a.live.Epoch != r.Epoch {
		return a.vanished(ctx)
	}
	a.progress()
	if a.live.Alive {
		a.log()
	}
	want, e := a.wantsEnd()
	if a.live.Alive && want {
		if err := a.wind(ctx, e); err != nil {
			return err
		}
	}
	a.save(e)
	a.answerSave()
	if a.live.Alive {
		return nil
	}
	if want && r.Waits.IsZero() {
		r.Waits = a.now
	}
	return a.conclude(e)
}

// vanished ends a run whose process the machine knows nothing of: it rebooted, or its holder lost its record.
func (a *Agent) vanished(ctx context.Context) error {
	if a.live.Alive { // of another epoch: not ours to leave
		return a.clear(ctx)
	}
	a.memo.Run.Why, a.memo.Run.Code = "the machine has no record of the process any more", -1
	return a.over(fleet.RunFailed)
}

// progress tells the steps, at most once a minute.
func (a *Agent) progress() {
	r, step := &a.memo.Run, a.step()
	if a.live.Alive && step > a.progressed && !a.now.Before(a.progressAt) {
		a.progressAt, a.progressed = a.now.Add(progressEvery), step
		a.say(events.WorkloadProgressed{Workload: r.Workload, Machine: a.cfg.Machine, Epoch: r.Epoch, Step: step, Of: a.live.Of})
	}
}

// step is the newest step of the run. It goes to disk with other news only: it changes too often.
func (a *Agent) step() int64 {
	r := &a.memo.Run
	if a.live.Epoch == r.Epoch {
		return max(r.Step, a.live.Step)
	}
	return r.Step
}

// conclude ends a run whose process is gone, once its newest checkpoint is durable or cannot become so.
func (a *Agent) conclude(e end) error {
	r := &a.memo.Run
	told := !r.Told.IsZero()
	failed := !told && a.live.Code != 0
	if !a.superseded() && a.unsaved() && !a.hopeless(e, failed) {
		return nil // the upload goes on, or is tried again
	}
	if a.blind(e) || a.lastLog(e) {
		return nil
	}
	r.Code, r.Result = a.live.Code, a.live.Result
	switch {
	case told || r.Stale:
		return a.over(fleet.RunStopped)
	case failed:
		r.Why = a.printed(a.live.Tail)
		return a.over(fleet.RunFailed)
	}
	return a.over(fleet.RunFinished)
}

// hopeless says that the newest checkpoint of a run whose process is gone will not become durable, or is not waited for any
// longer. One that finished by itself is waited for until somebody wants its machine: its result may be in there.
func (a *Agent) hopeless(e end, failed bool) bool {
	r, u, step := &a.memo.Run, &a.upload, a.live.Newest.Step
	late := !e.by.IsZero() && !a.now.Before(e.by)
	refused := !e.by.IsZero() && u.refused == step
	if late || refused || u.lost == step || failed && u.fails >= 3 {
		return true
	}
	patience := a.cfg.Insist
	if u.fails == 0 && a.work.busy("save") {
		patience = checkpoint.SaveLimit // it is on its way, and may be large
	}
	return !r.Waits.IsZero() && !a.now.Before(r.Waits.Add(patience))
}

// log keeps what is printed, now and then.
func (a *Agent) log() {
	if a.deps.Log == nil || !a.veiled() || a.work.busy("log") || a.now.Before(a.logAt) {
		return
	}
	a.logAt = a.now.Add(logEvery)
	workload, epoch := a.memo.Run.Workload, a.memo.Run.Epoch
	a.work.begin("log", func(ctx context.Context) func() {
		err := a.deps.Log(ctx, workload, epoch, false)
		return func() {
			if err != nil {
				a.trouble = errors.Join(a.trouble, fmt.Errorf("keep the log: %w", err))
			}
		}
	})
}

// blind says that the secrets that must be taken out of the end of the log are still asked for.
func (a *Agent) blind(e end) bool {
	if a.veiled() || a.superseded() || !e.by.IsZero() && !a.now.Before(e.by) {
		return false
	}
	if a.blindAt.IsZero() {
		a.blindAt = a.now
	}
	return a.now.Before(a.blindAt.Add(secretWait))
}

// lastLog says that the end of the log is on its way: a machine whose run is told to be over may be gone at once, and what
// a job printed last is what people ask for first. It is waited for once, and not past the end's deadline.
func (a *Agent) lastLog(e end) bool {
	r := &a.memo.Run
	late := !e.by.IsZero() && !a.now.Before(e.by)
	if a.deps.Log == nil || a.logged == r.Epoch || late || a.superseded() || !a.veiled() {
		return false
	}
	if !a.work.busy("log") {
		workload, epoch := r.Workload, r.Epoch
		a.work.begin("log", func(ctx context.Context) func() {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			err := a.deps.Log(ctx, workload, epoch, true)
			return func() {
				a.logged = epoch
				if err != nil {
					a.trouble = errors.Join(a.trouble, fmt.Errorf("keep the end of the log: %w", err))
				}
			}
		})
	}
	return true
}

// unsaved says that a complete checkpoint on this disk is not durable.
func (a *Agent) unsaved() bool {
	return a.live.Newest != nil && a.live.Newest.Step > a.memo.Run.base()
}

// over ends the run and says how. The save that was ordered is answered first, as it is older news.
func (a *Agent) over(phase fleet.RunPhase) error {
	r := &a.memo.Run
	r.Phase, r.Step = phase, a.step()
	a.work.drop("restore")
	if !a.unsavedInFlight() {
		a.work.drop("save")
	}
	a.answerSave()
	if err := a.keep(); err != nil {
		return err
	}
	a.dirty = true
	a.say(a.overFact())
	a.work.begun++ // one more round: the next order may wait for this
	return nil
}

func first(run []string) string {
	if len(run) == 0 {
		return "nothing"
	}
	return run[0]
}
