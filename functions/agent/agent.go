// Package agent is lowtide on one rented machine: it runs the workload it is ordered to run, makes its checkpoints
// durable, says what it sees, and ends the machine when nobody speaks to it any more.
//
// It promises:
//
//   - Orders are desired state. The highest number is on disk before anything is done about it; an order that is said
//     again is answered again, under a fresh id, and done once.
//   - One run at a time, each epoch once: an epoch that ran here and is over never starts again, and a later one
//     starts only when the process of the earlier one is gone.
//   - Only what is durable is said to be saved. A run that ends, however it ends, ends with its newest complete
//     checkpoint durable, unless the machine is taken first, a deadline passes, it can never be saved as it is, or, of a
//     run that was to end, the store takes nothing for Insist.
//   - Every machine.heard holds all there is to know, so that any other fact may be lost.
//   - The machine ends itself without a word from the decider for the lease, and at its hard end, after its save or a
//     grace; also when the agent hangs, if the host calls Guard.
//
// It can be killed at any moment and started again: what it needs lies on the disk, the workload lives on under its
// holder, and New finds both.
// It does not decide what runs where, and it judges no benchmark. It has no thread of its own for deciding: Order and
// Tick do it, and the long work they begin is collected by the next Tick.
//
//	order ──► on disk ──► benchmark ──► restore ──► setup ──► start ──► running ──► stopped
//	                                                                       │   └──► finished, failed
//	                                         periodic checkpoints ─────────┴──► durable, one upload at a time, newest first
package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
)

// Config is what an agent knows about its machine and itself. All durations are lowtide's time.
type Config struct {
	Machine string // our name of the machine
	ID      string // the cloud's, if known
	Fleet   string
	Cloud   string // of the machine; with Account it names who interrupted it
	Account string
	Clock   fn.Clock
	Bought  time.Time // when billing began; zero: not known
	HardEnd time.Time // the machine is off by then; zero: none

	Lease     time.Duration // without an order, new or said again, so long, the machine ends itself; 6 h if zero
	Grace     time.Duration // most that the last save may take at the end of a lease or before a hard end; 10 min if zero
	Beat      time.Duration // between two machine.heard; 30 s if zero
	Poll      time.Duration // between two looks at the cloud's own notice; 5 s if zero
	Serialise time.Duration // what a job is given to reach a step boundary and write its files; 20 s if zero
	Look      time.Duration // between two looks at the machine's use; 5 s if zero
	Measure   time.Duration // between two utilisation.measured; a minute if zero
	Insist    time.Duration // how long the last upload of a run that was to end is tried again while it fails; 15 min if zero
	Reserve   time.Duration // left before a machine is taken, for bad luck; 10 s if zero
}

func (c Config) withDefaults() Config {
	or := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	or(&c.Lease, 6*time.Hour)
	or(&c.Grace, 10*time.Minute)
	or(&c.Beat, 30*time.Second)
	or(&c.Poll, 5*time.Second)
	or(&c.Serialise, 20*time.Second)
	or(&c.Insist, 15*time.Minute)
	or(&c.Reserve, 10*time.Second)
	or(&c.Look, 5*time.Second)
	or(&c.Measure, time.Minute)
	return c
}

const (
	progressEvery = time.Minute      // of workload.progressed, at most
	logEvery      = 5 * time.Second  // of copies of the log, at most
	termGrace     = 10 * time.Second // from SIGTERM to SIGKILL
	patience      = 10 * time.Minute // for a job that was asked to save and has no deadline
	newestWait    = 30 * time.Second // for the newest order after a start, before the one on disk is acted on
)

// Deps are what the agent works with. Runner, Saver, Bench, Power and Disk are needed; the rest may be nil.
type Deps struct {
	Runner Runner
	Saver  Saver
	Bench  Bench
	Power  Power
	Disk   Disk
	Watch  Watch
	Meter  Meter
	// Newest reads the last order said to this machine, and whether there is one.
	Newest func(ctx context.Context) (events.OrderGiven, bool, error)
	// Log keeps what the workload printed where it outlives the machine; last: the process is gone, and the run's end is told
	// when it returns. An error only means that it is tried again, or that the log ends early. Nil keeps nothing.
	Log func(ctx context.Context, workload string, epoch uint64, last bool) error
	// Code fetches the workload's packed directory by its hash; ErrDamaged if there is none. Nil: there is never one.
	Code func(ctx context.Context, workload, sum string) ([]byte, error)
	// Secrets asks for what the workload refers to, by the variables that it finds them in; ErrNoSecrets if that is for good.
	// Nil: nobody can be asked.
	Secrets func(ctx context.Context, workload string) (map[string]string, error)
	// Spawn runs long work beside the agent; nil runs a goroutine. Simulations run it at once, or when they like.
	Spawn func(func())
}

// Agent is the agent of one machine. Make it with New; its methods may be called at once from several goroutines.
type Agent struct {
	cfg  Config
	deps Deps

	mu        sync.Mutex
	memo      memo // what must outlive the process
	written   memo // as it is on disk
	now       time.Time
	began     time.Time // first Tick
	live      Status    // the process as last seen
	seen      bool      // live is known
	wrongAt   time.Time // since when live.Wrong is what it is
	wrongTold string    // the last that was told
	trouble   error     // to be returned by a Tick that has nothing to say

	out    []events.Event // to be said by the call that is running
	again  *fleet.Order   // said again
	dirty  bool           // something changed: machine.heard is due
	serial uint64         // of events
	beats  uint64
	beatAt time.Time // when the next beat is due
	ready  bool      // instance.ready was said
	read   bool      // the newest order was read, or is not to be waited for

	heardNow bool // the decider was heard, and the lease does not count it yet

	progressAt time.Time // of the next workload.progressed
	progressed int64
	place      place
	known      known
	blindAt    time.Time // since when the end waits for secrets
	signal     signals
	upload     upload
	saves      measures
	pollAt     time.Time
	logAt      time.Time // of the next copy of the log
	logged     uint64    // epoch whose log is kept to its end
	pruneAt    time.Time
	startAt    time.Time
	offAt      time.Time // when Power may be asked
	lookAt     time.Time // when the machine's use is looked at next
	readFrom   time.Time // since when it was looked at for the next fact
	readings   []Reading

	work  work
	guard guard
}

// New reads what an earlier process on this machine left on the disk. It starts nothing; the first Tick does.
func New(cfg Config, deps Deps) (*Agent, error) {
	if cfg.Machine == "" || cfg.Fleet == "" {
		return nil, errors.New("agent: machine and fleet must have names")
	}
	if deps.Runner == nil || deps.Saver == nil || deps.Bench == nil || deps.Power == nil || deps.Disk == nil {
		return nil, errors.New("agent: runner, saver, bench, power and disk are needed")
	}
	a := &Agent{cfg: cfg.withDefaults(), deps: deps}
	a.work.init(deps.Spawn)
	if err := a.recall(); err != nil {
		return nil, fmt.Errorf("agent of %s: %w", cfg.Machine, err)
	}
	a.vow()
	return a, nil
}

// Function is the agent as a host runs it: it hears its own machine's orders and ticks each second of lowtide's time.
func (a *Agent) Function() fn.Function {
	f := fn.New("agent", fn.Hear(a.Order))
	f.Key = events.Token(a.cfg.Machine)
	f.Tick = a.Tick
	f.Every = time.Second
	return f
}

// Close cancels the long work and waits for it. The workload and everything on disk stay as they are.
func (a *Agent) Close() { a.work.close() }

// Order takes an order, and answers one that is said again. It returns an error only if the order could not be kept;
// then nothing was done about it. Before the first Tick it only keeps the order.
func (a *Agent) Order(ctx context.Context, given events.OrderGiven) ([]events.Event, error) {
	if given.Machine != a.cfg.Machine {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.take(given.Order); err != nil {
		return nil, err
	}
	a.spoken(given)
	if a.now.IsZero() {
		return nil, nil
	}
	return a.advance(ctx)
}

// take keeps the order if it is the highest.
func (a *Agent) take(o fleet.Order) error {
	a.dirty = true // also a stale order is answered with what is
	switch {
	case o.Number < a.memo.Order.Number || o.Number == 0:
		return nil
	case o.Number == a.memo.Order.Number:
		a.again = &o
		return nil
	}
	before := a.memo.Order
	a.memo.Order = o
	if err := a.keep(); err != nil {
		a.memo.Order = before
		return fmt.Errorf("keep order %d: %w", o.Number, err)
	}
	a.read = true
	a.pruneAt, a.startAt = time.Time{}, time.Time{}
	return nil
}

// Tick looks at the machine and does what is due now, lowtide's time. Facts that the host cannot publish may be
// dropped: the next machine.heard holds them.
func (a *Agent) Tick(ctx context.Context, now time.Time) ([]events.Event, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.After(a.now) {
		a.now = now
	}
	if a.began.IsZero() {
		a.began = a.now
	}
	a.touch()
	return a.advance(ctx)
}

// advance does all there is to do. Inline work may make more of it, hence the rounds.
func (a *Agent) advance(ctx context.Context) ([]events.Event, error) {
	a.trouble = nil
	err := a.arrive(ctx)
	for range 8 {
		if err != nil {
			break
		}
		a.work.collect()
		before := a.work.begun
		if err = a.round(ctx); err == nil && a.work.begun == before && !a.work.waiting() {
			break
		}
	}
	if err == nil {
		err = a.keep()
	}
	if err != nil {
		return nil, err // what was to be said stays for the next call
	}
	a.answer()
	a.heard()
	out := a.out
	a.out = nil
	if len(out) == 0 {
		return nil, a.trouble
	}
	return out, nil
}

// arrive is the first thing a new process does: its word, and the newest order.
func (a *Agent) arrive(ctx context.Context) error {
	if a.ready {
		return nil
	}
	a.memo.Incarnation++
	if a.memo.Since.IsZero() {
		a.memo.Since = a.now
		a.vow()
	}
	if err := a.keep(); err != nil {
		a.memo.Incarnation--
		return err
	}
	a.ready, a.dirty = true, true
	ready := events.InstanceReady{Machine: a.cfg.Machine, ID: a.cfg.ID}
	if !a.cfg.Bought.IsZero() && a.now.After(a.cfg.Bought) {
		ready.Boot = a.memo.Since.Sub(a.cfg.Bought)
	}
	a.say(ready)
	if a.deps.Newest == nil {
		a.read = true
	}
	return nil
}

// round looks once and does once.
func (a *Agent) round(ctx context.Context) error {
	a.look(ctx)
	a.readNewest()
	a.watch()
	a.measure()
	a.veil()
	if err := a.follow(ctx); err != nil {
		return err
	}
	a.prune()
	return a.off(ctx)
}

// look sees what the process does.
func (a *Agent) look(ctx context.Context) {
	st, err := a.deps.Runner.Status(ctx)
	if err != nil {
		a.trouble = errors.Join(a.trouble, fmt.Errorf("look at the workload: %w", err))
		a.seen = false
		return
	}
	if r := &a.memo.Run; st.Newest != nil && st.Epoch == r.Epoch && st.Newest.Step < r.FromStep {
		st.Newest, st.Wrong = nil, fmt.Sprintf("READY names a step below %d, which the run was restored at: it is never made durable; count on from there", r.FromStep)
	}
	if st.Wrong != a.live.Wrong {
		a.wrongAt = a.now
	}
	a.live, a.seen = st, true
	if st.Wrong != "" && a.wrongTold != st.Wrong && a.now.Sub(a.wrongAt) >= wrongFor {
		a.wrongTold = st.Wrong
		a.say(events.CheckpointFailed{Workload: a.memo.Run.Workload, Machine: a.cfg.Machine, Epoch: st.Epoch, Why: a.mask(st.Wrong)})
	}
}

// wrongFor is how long a wrong mark stands before it is told: a job may have dropped what the next mark replaces.
const wrongFor = 10 * time.Second

// readNewest asks for the newest order until it is answered, so that an old one on the disk is not acted on.
func (a *Agent) readNewest() {
	if a.read || a.work.busy("newest") || a.now.Before(a.work.retryAt("newest")) {
		return
	}
	a.work.begin("newest", func(ctx context.Context) func() {
		given, ok, err := a.deps.Newest(ctx)
		return func() {
			switch {
			case err != nil:
				a.work.again("newest", a.now.Add(5*time.Second))
			case ok && given.Machine == a.cfg.Machine:
				a.trouble = errors.Join(a.trouble, a.take(given.Order))
				a.read = true
			default:
				a.read = true
			}
		}
	})
}

// mayBegin says that no newer order is to be waited for.
func (a *Agent) mayBegin() bool {
	return a.read || !a.now.Before(a.began.Add(newestWait))
}
