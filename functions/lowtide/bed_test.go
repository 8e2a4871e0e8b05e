package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/agent/agenttest"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/functions/lowtide/world"
	"lowtide/functions/rebalance"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	host "lowtide/shared/fn/jetstream"
	"lowtide/shared/market"
	"lowtide/shared/provider/fake"
	"lowtide/shared/store"
)

// bed is the whole ring as `lowtide run` wires it, on a real server and in fake time. Its machines live in memory, each
// with a connection of its own.
type bed struct {
	*deck
	t      *testing.T
	states store.Bucket
	log    *agenttest.Log
	saved  *agenttest.Store

	mu       sync.Mutex
	facts    []heard
	machines map[string]*rented // by the cloud's id
	setup    func(*rented)      // of machines that boot from now on; may be nil
}

const (
	stepEach  = 10 * time.Second
	saveEvery = 5 * time.Minute
)

// spec is a job of so many steps.
func spec(name string, seed, steps int) fleet.Spec {
	return fleet.Spec{
		Name: name, Run: []string{"train"}, Env: map[string]string{"SEED": strconv.Itoa(seed), "STEPS": strconv.Itoa(steps)},
		Steps: int64(steps), Work: time.Duration(steps) * stepEach, Autonomy: fleet.Act, SaveEvery: saveEvery,
	}
}

// bubble runs a story in fake time. The cloud's clock, launcher and names are set here.
func bubble(t *testing.T, c fake.Config, story func(t *testing.T, b *bed), before ...func(*bed)) {
	t.Helper()
	// The packer keeps channels for its life, which must not belong to the first bubble.
	packed, err := new(fleet.Encoder).Encode(fleet.New("f", "install"))
	if err == nil {
		_, err = fleet.Decode(packed)
	}
	if err != nil {
		t.Fatal(err)
	}
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) { story(t, newBed(t, s, c, before...)) })
}

func newBed(t *testing.T, s *embedded.Server, c fake.Config, before ...func(*bed)) *bed {
	nc, js := natstest.Connect(t, s)
	h, err := host.New(nc, host.Options{Fleet: "f"})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{
		t: t, log: &agenttest.Log{}, saved: &agenttest.Store{}, machines: map[string]*rented{},
		deck: &deck{ring: &ring{fleet: "f", install: "install", policy: demoPolicy, server: s, nc: nc, js: js, host: h}},
	}
	for _, set := range before {
		set(b)
	}
	c.Launcher = fake.Callbacks{OnBoot: b.boot, OnKill: b.kill}
	c.Now = b.clock.Now
	if b.local, err = fake.Open(c); err != nil {
		t.Fatal(err)
	}
	b.cloud = b.local
	if b.states, err = store.Open(t.Context(), js, fleetsBucket, 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b.stop = cancel
	t.Cleanup(func() { cancel(); b.all.Wait(); _ = b.local.Close() })
	all, err := b.listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fns, err := b.functions(ctx, []account{{Provider: b.cloud}}, fleet.Book{})
	if err != nil {
		t.Fatal(err)
	}
	b.all.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case f := <-all:
				b.mu.Lock()
				b.facts = append(b.facts, f)
				b.mu.Unlock()
			}
		}
	})
	b.all.Go(func() {
		if err := b.host.Serve(ctx, fns...); err != nil {
			t.Error(err)
		}
	})
	b.all.Go(func() { b.tick(ctx, 30*time.Second) })
	b.all.Go(func() { b.notices(ctx) })
	b.all.Go(func() { _ = b.local.Run(ctx) })
	return b
}

// say publishes as a person or a tool would.
func (b *bed) say(facts ...events.Fact) {
	b.t.Helper()
	for _, f := range facts {
		if err := b.host.Say(b.t.Context(), events.New(b.fleet, "test", b.clock.Now(), f)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// pass lets fake time go by.
func (b *bed) pass(d time.Duration) { time.Sleep(d) }

// until lets fake time go by, second by second, until something is so.
func (b *bed) until(limit time.Duration, what string, so func() bool) {
	b.t.Helper()
	for end := time.Now().Add(limit); !so(); time.Sleep(time.Second) { // fake
		if time.Now().After(end) {
			b.t.Fatalf("not within %s: %s\n%s", limit, what, b.story())
		}
	}
}

// work is a workload as the decider knows it; empty if it does not.
func (b *bed) work(name string) fleet.Workload {
	f, _, err := rebalance.Fleet(b.t.Context(), b.states, b.fleet)
	if err != nil {
		b.t.Fatal(err)
	}
	if f == nil || f.Workloads[name] == nil {
		return fleet.Workload{}
	}
	return *f.Workloads[name]
}

// runs waits until a workload is at a step of an epoch, and returns its machine.
func (b *bed) runs(name string, epoch uint64, step int64, limit time.Duration) (on *rented) {
	b.t.Helper()
	b.until(limit, fmt.Sprintf("%s at step %d of epoch %d", name, step, epoch), func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, m := range b.machines {
			if e, s := m.at(); e == epoch && s >= step {
				on = m
			}
		}
		return on != nil
	})
	return on
}

// finishes waits until a workload is done and nothing bills, and checks what must hold of every story.
func (b *bed) finishes(s fleet.Spec, limit time.Duration) {
	b.t.Helper()
	b.until(limit, s.Name+" finished and every machine ended", func() bool {
		b.pass(10 * time.Second)
		return b.work(s.Name).Phase == fleet.Finished && len(b.bill().Running()) == 0
	})
	seed, _ := strconv.ParseUint(s.Env["SEED"], 10, 64)
	if got, want := b.work(s.Name).Result, world.Uninterrupted(seed, s.Steps); got != want {
		b.t.Errorf("%s made %s, an uninterrupted run makes %s", s.Name, got, want)
	}
	if twice := b.bill().Twice(); len(twice) > 0 {
		b.t.Errorf("bought twice: %v", twice)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.log.Overlaps() {
		b.t.Error("two at once: ", x)
	}
}

func (b *bed) bill() fake.Bill { return b.local.Bill().Ours() }

// lives are the runs of all workloads so far.
func (b *bed) lives() []agenttest.Life {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []agenttest.Life
	for _, l := range b.log.Lives {
		out = append(out, *l)
	}
	return out
}

// all facts of a type, as the stream holds them.
func all[E events.Fact](b *bed) (out []E) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range b.facts {
		if f, ok := h.event.Data.(E); ok {
			out = append(out, f)
		}
	}
	return out
}

// inOrder says what is missing of facts that must follow each other, others between.
func (b *bed) inOrder(want ...func(events.Fact) bool) (missing int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := 0
	for _, h := range b.facts {
		if i < len(want) && want[i](h.event.Data) {
			i++
		}
	}
	return len(want) - i
}

// is matches a fact of a type.
func is[E events.Fact](also ...func(E) bool) func(events.Fact) bool {
	return func(f events.Fact) bool {
		e, ok := f.(E)
		return ok && !slices.ContainsFunc(also, func(a func(E) bool) bool { return !a(e) })
	}
}

// story is what happened, for whoever reads a failure.
func (b *bed) story() (s string) {
	for _, r := range b.bill() {
		s += fmt.Sprintf("%s %s %s %s: %s to %s %s\n", r.Name, r.ID, r.Offer, r.State, r.Since.Format(time.TimeOnly), r.Until.Format(time.TimeOnly), r.Why)
	}
	for _, l := range b.lives() {
		s += fmt.Sprintf("%s epoch %d on %s: %s to %s, steps %d to %d\n", l.Workload, l.Epoch, l.Machine, l.Began.Format(time.TimeOnly), l.Ended.Format(time.TimeOnly), l.From, l.To)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range b.facts {
		switch h.event.Data.(type) {
		case events.ClockTicked, events.MachineHeard:
		default:
			s += fmt.Sprintf("%s %+v\n", h.at.Format(time.TimeOnly), h.event.Data)
		}
	}
	return s
}

// rented is one machine: agent and workload in memory, orders from the server, a tick each second.
type rented struct {
	b      *bed
	name   string
	id     string
	stop   context.CancelFunc
	config func(*agent.Config)
	meter  func() agent.Reading // how the machine is used; nil: not read

	// Under the bed's mu, as is all that the machine does: the log and the checkpoints are everybody's.
	m      *agenttest.Machine
	cut    bool                         // no word in or out
	drop   func(events.OrderGiven) bool // loses an order; may be nil
	orders []given
}

type given struct {
	at time.Time
	events.OrderGiven
}

var errCut = errors.New("cut off")

func (b *bed) boot(boot fake.Boot) {
	ctx, cancel := context.WithCancel(b.t.Context())
	r := &rented{b: b, name: boot.Name, id: boot.Machine.ID, stop: cancel}
	cfg := agent.Config{
		Machine: boot.Name, ID: boot.Machine.ID, Fleet: b.fleet, Cloud: boot.Machine.Offer.Cloud, Account: boot.Machine.Offer.Account,
		Bought: boot.Machine.Since,
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.setup != nil {
		b.setup(r)
	}
	if r.config != nil {
		r.config(&cfg)
	}
	r.m = agenttest.New(agenttest.Options{
		Config: cfg, Store: b.saved, Log: b.log, Rate: 1 / stepEach.Seconds(), Setup: 20 * time.Second, Proof: 90 * time.Second,
		Upload:  func(int64) time.Duration { return 4 * time.Second },
		Restore: func(int64) time.Duration { return 6 * time.Second },
		Job:     func(_ string, env map[string]string) agenttest.Job { return world.NewJob(env) },
		Newest:  r.newest,
		Meter:   r.meter,
		Bench: func(machine string, want fleet.Benchmark) (events.BenchmarkFinished, error) {
			return world.Proof(machine, want, boot.Throttle), nil
		},
	})
	b.machines[r.id] = r
	nc, err := b.server.Connect(bus.Options(r.name, nil)...)
	if err != nil {
		b.t.Error(err)
		return
	}
	h, err := host.New(nc, host.Options{Fleet: b.fleet})
	if err != nil {
		b.t.Error(err)
		return
	}
	f := fn.New("agent", fn.Hear(r.order))
	f.Key = events.Token(r.name)
	b.all.Go(func() { // orders
		if err := h.Serve(ctx, f); err != nil {
			b.t.Error(err)
		}
	})
	b.all.Go(func() { // the rest
		defer nc.Close()
		defer cancel()
		r.live(ctx, h)
	})
	context.AfterFunc(b.t.Context(), cancel)
}

// kill takes a machine away with all that is on it.
func (b *bed) kill(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.machines[id]
	if r == nil {
		return
	}
	r.stop()
	if gone, _ := r.m.Gone(); !gone {
		r.m.Advance(b.clock.Now())
		r.m.Die()
	}
}

// live ticks until the machine is gone.
func (r *rented) live(ctx context.Context, h *host.Host) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := r.b.clock.Now()
		ends, doomed := r.b.interruption(r.id)
		r.b.mu.Lock()
		if doomed {
			r.m.Interrupt(agent.Notice{Action: "terminate", Time: ends})
		}
		said, err := r.m.Tick(ctx, now)
		gone, _ := r.m.Gone()
		cut := r.cut
		r.b.mu.Unlock()
		if err != nil && ctx.Err() == nil && !cut {
			r.b.t.Errorf("%s: %v", r.name, err)
		}
		if gone {
			r.b.local.PowerOff(r.id)
			return
		}
		if !cut && len(said) > 0 {
			if err := h.Say(ctx, said...); err != nil && ctx.Err() == nil {
				r.b.t.Errorf("%s: %v", r.name, err)
			}
		}
	}
}

// interruption is what a machine's metadata say. Not under mu: the cloud may have a kill to tell us.
func (b *bed) interruption(id string) (time.Time, bool) {
	for _, n := range b.local.Notices(0) {
		if n.ID == id {
			return n.EndsBy, true
		}
	}
	return time.Time{}, false
}

func (r *rented) order(ctx context.Context, o events.OrderGiven) ([]events.Event, error) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if r.cut {
		return nil, errCut
	}
	r.orders = append(r.orders, given{r.b.clock.Now(), o})
	if r.drop != nil && r.drop(o) {
		return nil, nil
	}
	return r.m.Order(ctx, o)
}

func (r *rented) newest(ctx context.Context) (events.OrderGiven, bool, error) {
	if r.cut {
		return events.OrderGiven{}, false, errCut
	}
	d, err := r.b.host.Last(ctx, r.b.fleet, "order.given", events.Token(r.name))
	if errors.Is(err, bus.ErrNone) {
		return events.OrderGiven{}, false, nil
	}
	o, ok := d.Event.Data.(events.OrderGiven)
	return o, ok, err
}

// at is what runs on the machine: its epoch, and the newest step. The caller holds the bed's mu.
func (r *rented) at() (epoch uint64, step int64) {
	epoch = r.m.Alive()
	for _, s := range slices.Backward(r.b.log.Steps) {
		if s.Machine == r.name && s.Epoch == epoch {
			return epoch, s.N
		}
	}
	return epoch, 0
}

// zones are spot markets with prices by the tick of a minute; nothing is ever taken back.
func zones(prices ...[]float64) []market.Trace {
	var out []market.Trace
	for i, p := range prices {
		count := make([]int, 7*24*60)
		for j := range count {
			count[j] = 10
		}
		out = append(out, market.Trace{Zone: fmt.Sprintf("sim-1%c", 'a'+i), Gap: time.Minute, Count: count, Prices: p})
	}
	return out
}
