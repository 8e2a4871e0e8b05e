// Package agenttest is a rented machine in memory, for tests and simulations: a real agent on a virtual clock, a
// workload that runs in the same process, a disk and a checkpoint store.
//
// It promises that nothing happens but in Tick, Order and Advance, in the order of the calls: the same calls give the
// same run. The workload's steps are really executed, by a Job; every one is noted in a Log. What takes time takes
// virtual time. A machine that dies takes its disk, its workload and its running uploads with it; an agent that
// crashes leaves the disk and the workload.
// It does not know of clouds: whoever launches a machine makes one, and calls Die when the cloud takes it.
package agenttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
)

// Options make a machine. Config, Store and Job are needed.
type Options struct {
	Config agent.Config
	Store  *Store
	Job    func(workload string, env map[string]string) Job
	Log    *Log    // where the steps are noted; may be nil
	Rate   float64 // steps in a second of virtual time; 1 if zero

	Newest func(ctx context.Context) (events.OrderGiven, bool, error) // may be nil

	Setup   time.Duration                                                             // from the start of the process to its first step
	Upload  func(bytes int64) time.Duration                                           // nil: at once
	Restore func(bytes int64) time.Duration                                           // nil: at once
	Proof   time.Duration                                                             // what a benchmark takes
	Bench   func(machine string, b fleet.Benchmark) (events.BenchmarkFinished, error) // nil: a pass
	Meter   func() agent.Reading                                                      // nil: the machine's use is not read
	Fault   func(point string) bool                                                   // asked before and after each outward act; true: the agent's process dies there
}

// Job is a workload's work. It is deterministic: the same steps from the same state give the same state.
type Job interface {
	Run()        // one step
	Step() int64 // done so far
	Of() int64   // all there are
	Save() []byte
	Load(saved []byte) error
	Result() string // when all are done
}

// Machine is a machine in memory. Its methods are for one goroutine.
type Machine struct {
	o        Options
	now      time.Time
	agent    *agent.Agent
	gone     bool
	off      string // why it ended itself
	notice   *agent.Notice
	values   map[string][]byte // the agent's disk
	files    map[string][]byte // the workload's disk
	proc     *process
	sleepers []*sleeper
	awake    *sleeper
	asked    time.Time // first request for a checkpoint
	crashes  int
}

// New makes a machine that was just switched on; its agent starts at the first Tick.
func New(o Options) *Machine {
	if o.Rate <= 0 {
		o.Rate = 1
	}
	if o.Log == nil {
		o.Log = &Log{}
	}
	return &Machine{o: o, values: map[string][]byte{}, files: map[string][]byte{}}
}

// Function is the machine's agent as a host runs it: the same value also after the agent crashed.
func (m *Machine) Function() fn.Function {
	f := fn.New("agent", fn.Hear(m.Order))
	f.Key = events.Token(m.o.Config.Machine)
	f.Tick = m.Tick
	f.Every = time.Second
	return f
}

// Tick moves the machine to now and lets its agent look. On a machine that is gone nothing happens.
func (m *Machine) Tick(ctx context.Context, now time.Time) ([]events.Event, error) {
	m.Advance(now)
	return m.live(func(a *agent.Agent) ([]events.Event, error) { return a.Tick(ctx, m.now) })
}

// Order hands an order to the agent. An error when the machine is gone or the agent died: nobody took it.
func (m *Machine) Order(ctx context.Context, given events.OrderGiven) ([]events.Event, error) {
	if m.gone {
		return nil, errors.New("agenttest: the machine is gone")
	}
	return m.live(func(a *agent.Agent) ([]events.Event, error) { return a.Order(ctx, given) })
}

// errCrashed is what a host sees of an agent that died while it was called.
var errCrashed = errors.New("agenttest: the agent died")

type crash struct{}

// live calls the agent, made anew if it is not there. A crash on the way loses what it was about to say.
func (m *Machine) live(call func(*agent.Agent) ([]events.Event, error)) (out []events.Event, err error) {
	if m.gone {
		return nil, nil
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case crash:
			m.Crash()
			out, err = nil, errCrashed
		default:
			panic(p)
		}
		if m.gone { // it ended itself: nobody hears its last call
			out, err = nil, nil
		}
	}()
	if m.agent == nil {
		deps := agent.Deps{
			Runner: runner{m}, Saver: saver{m}, Bench: bench{m}, Power: power{m}, Disk: disk{m}, Watch: watch{m},
			Newest: m.o.Newest, Spawn: m.spawn,
		}
		if m.o.Meter != nil {
			deps.Meter = meter(m.o.Meter)
		}
		m.agent, err = agent.New(m.o.Config, deps)
		if err != nil {
			return nil, err
		}
	}
	return call(m.agent)
}

// Advance moves the workload and what sleeps to now, without the agent.
func (m *Machine) Advance(now time.Time) {
	if m.gone || now.Before(m.now) {
		return
	}
	m.now = now
	if m.proc != nil {
		m.proc.advance(m)
	}
	m.wake()
}

// Crash kills the agent's process; the next call starts another one. Workload and disk stay.
func (m *Machine) Crash() {
	m.agent = nil
	m.crashes++
	m.drop()
}

// CrashHolder kills the workload and its holder: the exit status is not known to anybody.
func (m *Machine) CrashHolder() {
	if m.proc != nil && m.proc.alive {
		m.proc.exit(m, -1)
	}
}

// Interrupt makes the machine's own endpoint tell of a notice.
func (m *Machine) Interrupt(n agent.Notice) { m.notice = &n }

// Die takes the machine away, with all that is on it.
func (m *Machine) Die() {
	m.CrashHolder()
	m.gone, m.agent = true, nil
	m.drop()
}

// Gone says that the machine is no more, and why if it ended itself.
func (m *Machine) Gone() (gone bool, why string) { return m.gone, m.off }

// Asked is when the workload was first asked for a checkpoint and to stop; zero: never.
func (m *Machine) Asked() time.Time { return m.asked }

// Alive says which run the machine executes; 0: none.
func (m *Machine) Alive() (epoch uint64) {
	if m.proc == nil || !m.proc.alive {
		return 0
	}
	return m.proc.cmd.Epoch
}

// fault is a place where the agent may die.
func (m *Machine) fault(point string) {
	if m.o.Fault != nil && m.o.Fault(point) {
		panic(crash{})
	}
}

// sleeper is a piece of the agent's work that waits for virtual time.
type sleeper struct {
	next func() (time.Time, bool)
	stop func()
	due  time.Time
	ctx  context.Context
	wait func(time.Time) bool
}

// spawn runs f until it sleeps or ends, and the rest in later calls of Advance.
func (m *Machine) spawn(f func()) {
	m.fault("spawn")
	s := &sleeper{}
	s.next, s.stop = iter.Pull(func(yield func(time.Time) bool) {
		s.wait = yield
		f()
	})
	m.resume(s)
	m.fault("spawned")
}

// resume lets s go on, and keeps it if it sleeps again.
func (m *Machine) resume(s *sleeper) {
	before := m.awake
	m.awake = s
	due, sleeps := s.next()
	m.awake = before
	if sleeps {
		s.due = due
		m.sleepers = append(m.sleepers, s)
	}
}

// wake resumes who is due or was cancelled, in order of their times.
func (m *Machine) wake() {
	for {
		slices.SortStableFunc(m.sleepers, func(a, b *sleeper) int { return a.due.Compare(b.due) })
		i := slices.IndexFunc(m.sleepers, func(s *sleeper) bool { return !s.due.After(m.now) || s.ctx.Err() != nil })
		if i < 0 {
			return
		}
		s := m.sleepers[i]
		m.sleepers = slices.Delete(m.sleepers, i, i+1)
		m.resume(s)
	}
}

// drop ends what sleeps: its process is gone.
func (m *Machine) drop() {
	sleeping := m.sleepers
	m.sleepers = nil
	for _, s := range sleeping {
		s.stop()
	}
}

// sleep passes virtual time; an error when it was cut short.
func (m *Machine) sleep(ctx context.Context, d time.Duration) error {
	if d > 0 && m.awake != nil {
		m.awake.ctx = ctx
		if !m.awake.wait(m.now.Add(d)) {
			return context.Canceled
		}
	}
	return ctx.Err()
}

type disk struct{ m *Machine }

func (d disk) Load(name string) ([]byte, error) {
	v, ok := d.m.values[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(v), nil
}

func (d disk) Store(name string, val []byte) error {
	d.m.fault("store")
	d.m.values[name] = slices.Clone(val)
	d.m.fault("stored")
	return nil
}

type watch struct{ m *Machine }

func (w watch) Look(context.Context) (agent.Notice, bool, error) {
	if w.m.notice == nil {
		return agent.Notice{}, false, nil
	}
	return *w.m.notice, true, nil
}

type power struct{ m *Machine }

func (p power) Off(_ context.Context, why string) error {
	p.m.off = why
	p.m.Die()
	return nil
}

type meter func() agent.Reading

func (r meter) Read(context.Context) agent.Reading { return r() }

type bench struct{ m *Machine }

func (b bench) Run(ctx context.Context, machine string, want fleet.Benchmark) (events.BenchmarkFinished, error) {
	if err := b.m.sleep(ctx, b.m.o.Proof); err != nil {
		return events.BenchmarkFinished{}, err
	}
	if b.m.o.Bench != nil {
		return b.m.o.Bench(machine, want)
	}
	usual := gpu.ProfileOf("cpu")
	return events.BenchmarkFinished{
		Machine: machine, Nonce: want.Nonce, Backend: "cpu", Suite: want.Suite, Size: usual.Size, Elapsed: max(b.m.o.Proof, time.Second), Verdict: "pass",
		Devices: []events.Device{{
			Name: "virtual", Measured: 1, Rated: 1, Ratio: 1, Lower: 0.99, Upper: 1.01,
			Work: usual.Measure, Checksum: product.Expected(want.Nonce, usual.Size),
		}},
	}, nil
}

// saver is the store as this machine reaches it.
type saver struct{ m *Machine }

func (s saver) Save(ctx context.Context, workload string, epoch uint64, l agent.Local) (fleet.Manifest, error) {
	if f := s.m.o.Upload; f != nil {
		if err := s.m.sleep(ctx, f(l.Bytes)); err != nil {
			return fleet.Manifest{}, err
		}
	}
	val, ok := s.m.files[l.Path]
	if !ok {
		return fleet.Manifest{}, fmt.Errorf("%s: %w", l.Path, fs.ErrNotExist)
	}
	return s.m.o.Store.save(workload, epoch, l.Step, val)
}

func (s saver) Restore(ctx context.Context, workload, manifest, dir string) (fleet.Manifest, error) {
	val, m, err := s.m.o.Store.load(workload, manifest)
	if err != nil {
		return m, err
	}
	if f := s.m.o.Restore; f != nil {
		if err := s.m.sleep(ctx, f(int64(len(val)))); err != nil {
			return m, err
		}
	}
	s.m.files[dir] = val
	return m, nil
}

func (s saver) Begin(ctx context.Context, workload string, epoch uint64, from string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.m.o.Store.begin(workload, epoch, from)
}

func (s saver) Prune(_ context.Context, epoch uint64, p fleet.Prune) error {
	return s.m.o.Store.prune(epoch, p)
}

// clear empties a directory of the workload's disk.
func (m *Machine) clear(dir string) {
	maps.DeleteFunc(m.files, func(path string, _ []byte) bool { return strings.HasPrefix(path, dir) })
}
