// Package world is the whole of lowtide in memory on a virtual clock: the real functions, the fake cloud, machines
// with the real agent and a real training job. Days pass in seconds, and one seed gives one history.
//
// It promises that nothing in it waits or draws chance of its own, and that what a test asks at the end comes from the
// cloud's bill and from the steps that were really executed, not from what lowtide believes.
package world

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/agent/agenttest"
	"lowtide/functions/lowtide/trainer"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/fn/memory"
	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
	"lowtide/shared/market"
	"lowtide/shared/plan/pool"
	"lowtide/shared/provider/fake"
	"lowtide/shared/store"
)

// Options make a world.
type Options struct {
	Seed   uint64
	Start  time.Time
	Traces []market.Trace
	Faults memory.Faults // of messages and functions
	Cloud  fake.Config   // Traces, Seed, Now, Launcher and OnNotice are set here
	Rate   float64       // steps a job executes in a second
	Lease  time.Duration
	Crash  float64 // chance at each outward act of an agent that its process dies there
	Holder float64 // chance a minute that a machine's workload and holder die
	Silent bool    // notices reach nobody but the machine
	Less   Less    // what lowtide is not to know
	Advice Advice
	Tables *pool.Tables // of expected costs; worlds may share them and still have one history. nil: its own
}

// World is one such world.
type World struct {
	Host     *memory.Host
	Cloud    *fake.Cloud
	Log      *agenttest.Log
	Saved    *agenttest.Store
	States   store.Bucket
	Machines map[string]*Machine // by the cloud's id; also those that are gone
	o        Options
}

// Machine is a rented machine.
type Machine struct {
	*agenttest.Machine
	Name string
	id   string
	gone bool
}

const fleetName = "f"

// New makes a world and starts its functions.
func New(o Options) (*World, error) {
	w := &World{
		Host: memory.New(o.Seed, o.Start), Log: &agenttest.Log{}, Saved: &agenttest.Store{}, States: store.Memory(),
		Machines: map[string]*Machine{}, o: o,
	}
	if w.o.Tables == nil {
		w.o.Tables = pool.NewTables(rebalance.TablesLimit)
	}
	w.Host.Faults = o.Faults
	c := o.Cloud
	c.Seed, c.Traces, c.Origin, c.Now = o.Seed, o.Traces, o.Start, w.Host.Now
	c.Launcher = fake.Callbacks{OnBoot: w.boot, OnKill: w.kill}
	c.OnNotice = w.notice
	cloud, err := fake.Open(c)
	if err != nil {
		return nil, err
	}
	w.Cloud = cloud
	w.serve()
	// The cloud lives on by itself; a tick each half minute is the net under everything.
	w.Host.Every(time.Second, func() { w.Cloud.Advance(w.Host.Now()) })
	w.Host.Every(30*time.Second, func() {
		w.Host.Publish(events.New(fleetName, "schedule", w.Host.Now(), events.ClockTicked{What: "tick", Due: w.Host.Now()}))
	})
	w.Host.Every(time.Minute, w.misfortune)
	w.advise()
	return w, nil
}

// Submit asks for a workload.
func (w *World) Submit(s fleet.Spec) {
	w.Host.Publish(events.New(fleetName, "test", w.Host.Now(), events.WorkloadSubmitted{Spec: s}))
}

// Fleet is the decider's state.
func (w *World) Fleet() (*fleet.Fleet, error) {
	f, _, err := rebalance.Fleet(context.Background(), w.States, fleetName)
	return f, err
}

// boot makes a machine of what the cloud switched on.
func (w *World) boot(b fake.Boot) {
	id := b.Machine.ID
	if w.Machines[id] != nil {
		return
	}
	m := &Machine{Name: b.Name, id: id}
	var fault func(string) bool
	if w.o.Crash > 0 {
		fault = func(string) bool { return w.Host.Rand().Float64() < w.o.Crash }
	}
	throttle := b.Throttle
	m.Machine = agenttest.New(agenttest.Options{
		Config: agent.Config{
			Machine: b.Name, ID: id, Fleet: fleetName, Cloud: b.Machine.Offer.Cloud, Account: b.Machine.Offer.Account,
			Bought: b.Machine.Since, Lease: w.o.Lease,
		},
		Store: w.Saved, Log: w.Log, Rate: w.o.Rate, Setup: 20 * time.Second, Proof: 90 * time.Second,
		Upload:  func(int64) time.Duration { return 4 * time.Second },
		Restore: func(int64) time.Duration { return 6 * time.Second },
		Job:     func(_ string, env map[string]string) agenttest.Job { return NewJob(env) },
		Fault:   fault,
		Newest: func(context.Context) (events.OrderGiven, bool, error) {
			d, ok := w.Host.Last(fleetName, "order.given", events.Token(b.Name))
			if !ok {
				return events.OrderGiven{}, false, nil
			}
			o, ok := d.Event.Data.(events.OrderGiven)
			return o, ok, nil
		},
		Bench: func(machine string, b fleet.Benchmark) (events.BenchmarkFinished, error) {
			return Proof(machine, b, throttle), nil
		},
	})
	w.Machines[id] = m
	f := m.Function()
	f.Name = "agent-" + id
	tick := f.Tick
	f.Tick = func(ctx context.Context, now time.Time) ([]events.Event, error) {
		said, err := tick(ctx, now)
		if gone, _ := m.Gone(); gone && !m.gone {
			w.Cloud.PowerOff(id)
		}
		return said, err
	}
	w.Host.AddFor(fleetName, f)
}

// Proof is what a benchmark measures on a GPU that gives a share of its speed; 0 gives all.
func Proof(machine string, b fleet.Benchmark, throttle float64) events.BenchmarkFinished {
	ratio, verdict := 0.98, "pass"
	var causes []string
	if throttle > 0 {
		ratio, verdict, causes = throttle, "fail", []string{"slow"}
	}
	usual := gpu.ProfileOf("cpu")
	return events.BenchmarkFinished{
		Machine: machine, Nonce: b.Nonce, Backend: "cpu", Suite: b.Suite, Size: usual.Size, Elapsed: 90 * time.Second, Verdict: verdict, Causes: causes,
		Devices: []events.Device{{
			Name: "V100", Measured: 100 * ratio, Rated: 100, Ratio: ratio, Lower: ratio - 0.01, Upper: ratio + 0.01,
			Work: usual.Measure, Checksum: product.Expected(b.Nonce, usual.Size),
		}},
	}
}

func (w *World) kill(id string) {
	m := w.Machines[id]
	if m == nil || m.gone {
		return
	}
	m.Advance(w.Host.Now())
	m.gone = true
	m.Die()
	w.Host.Remove("agent-" + id)
}

// notice tells the machine, and the owner as a cloud's event bus does.
func (w *World) notice(n fake.Notice) {
	if m := w.Machines[n.ID]; m != nil {
		m.Interrupt(agent.Notice{Action: n.Action, Time: n.EndsBy})
	}
	if !w.o.Silent {
		w.Host.Publish(events.New(fleetName, "notices", n.At, events.InstanceInterrupted{
			Cloud: n.Cloud, Account: n.Account, Machine: n.Machine, ID: n.ID, EndsBy: n.EndsBy, Action: n.Action, Noticed: "eventbridge",
		}))
	}
}

// misfortune lets workloads die with their holders.
func (w *World) misfortune() {
	for _, r := range w.Cloud.Bill() {
		m := w.Machines[r.ID]
		if m == nil || m.gone || w.o.Holder == 0 || w.Host.Rand().Float64() >= w.o.Holder {
			continue
		}
		m.Advance(w.Host.Now())
		m.CrashHolder()
	}
}

// job is the trainer's model, as machines in memory run it.
type job struct{ m *trainer.Model }

func (j *job) Run()           { j.m.Step() }
func (j *job) Step() int64    { return j.m.At() }
func (j *job) Of() int64      { return j.m.Of() }
func (j *job) Save() []byte   { return j.m.Marshal() }
func (j *job) Result() string { return j.m.Sum() }

func (j *job) Load(saved []byte) error {
	m, err := trainer.Unmarshal(saved)
	if err == nil {
		j.m = m
	}
	return err
}

// NewJob is the training job that machines in memory run; SEED and STEPS say which.
func NewJob(env map[string]string) agenttest.Job {
	var seed uint64
	var of int64
	fmt.Sscan(env["SEED"], &seed) //nolint:errcheck // an unreadable number stays 0
	fmt.Sscan(env["STEPS"], &of)  //nolint:errcheck // an unreadable number stays 0
	return &job{trainer.New(seed, of)}
}

// Uninterrupted is what a job makes if nothing ever stops it.
func Uninterrupted(seed uint64, steps int64) string {
	m := trainer.New(seed, steps)
	for range steps {
		m.Step()
	}
	return m.Sum()
}

// Lost is a run that ended early, and where the next began.
type Lost struct {
	Epoch uint64 // of the next
	Steps int64  // made and not kept
	From  int64  // where the next began
	Saved bool   // some checkpoint was durable
}

// Lost tells for each run after the first what the one before it lost.
func (w *World) Lost(workload string) (out []Lost) {
	var before *agenttest.Life
	saved := false
	for _, l := range w.Log.Lives {
		if l.Workload != workload {
			continue
		}
		if before != nil {
			saved = saved || l.From > 0
			out = append(out, Lost{l.Epoch, before.To - l.From, l.From, saved})
		}
		before = l
	}
	return out
}

// Foreign says that a machine is somebody else's.
func (w *World) Foreign(id string) bool {
	for _, r := range w.Cloud.Bill() {
		if r.ID == id {
			return r.Foreign
		}
	}
	return false
}

// Story is the bill and the runs, to compare and to read.
func (w *World) Story() string {
	var b strings.Builder
	for _, r := range w.Cloud.Bill() {
		if !r.Foreign {
			fmt.Fprintf(&b, "%s %s %s %s: %s to %s %s\n", r.Name, r.ID, r.Offer, r.State, r.Since.Format(time.TimeOnly), r.Until.Format(time.TimeOnly), r.Why)
		}
	}
	for _, l := range w.Log.Lives {
		fmt.Fprintf(&b, "%s epoch %d on %s: %s to %s, steps %d to %d\n", l.Workload, l.Epoch, l.Machine, l.Began.Format(time.TimeOnly), l.Ended.Format(time.TimeOnly), l.From, l.To)
	}
	return b.String()
}
