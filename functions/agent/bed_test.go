package agent_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/agent/agenttest"
	"lowtide/shared/fleet"
)

// chain is a job whose state depends on every step in its order.
type chain struct {
	n, of int64
	state uint64
}

func (c *chain) Run() {
	c.n++
	c.state = (c.state ^ uint64(c.n)) * 0x9E3779B97F4A7C15
	c.state ^= c.state >> 29
}
func (c *chain) Step() int64    { return c.n }
func (c *chain) Of() int64      { return c.of }
func (c *chain) Result() string { return fmt.Sprintf("%016x", c.state) }
func (c *chain) Save() []byte {
	b := make([]byte, 16, 1000) // 1000 bytes make a checkpoint that takes some time
	binary.BigEndian.PutUint64(b, uint64(c.n))
	binary.BigEndian.PutUint64(b[8:], c.state)
	return b[:1000]
}

func (c *chain) Load(b []byte) error {
	if len(b) < 16 {
		return errors.New("short checkpoint")
	}
	c.n, c.state = int64(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:])
	return nil
}

// whole is the result of a chain that nobody interrupts.
func whole(of int64) string {
	c := &chain{of: of}
	for c.n < of {
		c.Run()
	}
	return c.Result()
}

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// bed is one machine, its store, and all that it said.
type bed struct {
	t     *testing.T
	store *agenttest.Store
	log   *agenttest.Log
	opts  agenttest.Options
	m     *agenttest.Machine
	now   time.Time
	said  []events.Event
	steps int64
	words int // said to the machine
}

func newBed(t *testing.T, change ...func(*agenttest.Options)) *bed {
	b := &bed{t: t, store: &agenttest.Store{}, log: &agenttest.Log{}, now: t0, steps: 1000}
	b.opts = agenttest.Options{
		Config: agent.Config{Machine: "m1", ID: "i-1", Fleet: "f", Cloud: "fake", Account: "a"},
		Store:  b.store, Log: b.log, Rate: 1,
		Job: func(string, map[string]string) agenttest.Job { return &chain{of: b.steps} },
	}
	for _, c := range change {
		c(&b.opts)
	}
	b.m = agenttest.New(b.opts)
	return b
}

func (b *bed) ctx() context.Context { return context.Background() }

// pass lets time pass, a tick each second.
func (b *bed) pass(d time.Duration) {
	b.t.Helper()
	for end := b.now.Add(d); b.now.Before(end); {
		b.now = b.now.Add(time.Second)
		b.tick()
	}
}

func (b *bed) tick() {
	b.t.Helper()
	out, err := b.m.Tick(b.ctx(), b.now)
	if err != nil && b.opts.Fault == nil {
		b.t.Fatalf("tick at %s: %v", b.now.Sub(t0), err)
	}
	b.said = append(b.said, out...)
}

func (b *bed) order(o fleet.Order) {
	b.t.Helper()
	b.words++
	out, err := b.m.Order(b.ctx(), events.OrderGiven{Machine: "m1", Order: o, Attempt: b.words})
	if err != nil && b.opts.Fault == nil {
		b.t.Fatalf("order %d: %v", o.Number, err)
	}
	b.said = append(b.said, out...)
}

// start is an order to run the chain.
func start(number, epoch uint64, from, prior string) fleet.Order {
	return fleet.Order{Number: number, Epoch: epoch, Start: &fleet.Start{
		Workload: "w", Run: []string{"chain"}, SaveEvery: time.Minute, From: from, Prior: prior,
	}}
}

// facts are the facts of a type that were said, in order.
func facts[F events.Fact](b *bed) []F {
	var out []F
	for _, e := range b.said {
		if f, ok := e.Data.(F); ok {
			out = append(out, f)
		}
	}
	return out
}

// one is the only fact of a type.
func one[F events.Fact](b *bed) F {
	b.t.Helper()
	all := facts[F](b)
	if len(all) != 1 {
		var zero F
		b.t.Fatalf("%s was said %d times, want once: %+v\n%s", zero.Kind(), len(all), all, b.story())
	}
	return all[0]
}

// last is the newest machine.heard.
func (b *bed) last() events.MachineHeard {
	b.t.Helper()
	all := facts[events.MachineHeard](b)
	if len(all) == 0 {
		b.t.Fatal("the agent was never heard")
	}
	return all[len(all)-1]
}

// story is all that was said but the beats, for failures.
func (b *bed) story() string {
	s := ""
	for _, e := range b.said {
		if e.Data.Kind() != "machine.heard" && e.Data.Kind() != "workload.progressed" {
			s += fmt.Sprintf("%8s %s %+v\n", e.Time.Sub(t0), e.Data.Kind(), e.Data)
		}
	}
	return s
}

func (b *bed) forget() { b.said = nil }

func (b *bed) noOverlap() {
	b.t.Helper()
	if o := b.log.Overlaps(); len(o) > 0 {
		b.t.Errorf("runs overlap: %q\n%s", o, b.story())
	}
}

func (b *bed) freshIDs() {
	b.t.Helper()
	seen := map[string]bool{}
	for _, e := range b.said {
		if seen[e.ID] {
			b.t.Errorf("id %s of %s was used twice", e.ID, e.Data.Kind())
		}
		seen[e.ID] = true
	}
}

func durable(b *bed) []string {
	var ids []string
	for _, m := range b.store.Manifests("w") {
		ids = append(ids, m.ID)
	}
	return ids
}

func slowUpload(d time.Duration) func(*agenttest.Options) {
	return func(o *agenttest.Options) { o.Upload = func(int64) time.Duration { return d } }
}

func contains(ids []string, id string) bool { return slices.Contains(ids, id) }

// seed makes checkpoint 1-1 of a workload durable, by another machine.
func (b *bed) seed(workload string) (string, error) {
	other := newBed(b.t)
	other.opts.Store = b.store
	other.m = agenttest.New(other.opts)
	other.pass(time.Second)
	o := start(1, 1, "", "")
	o.Start.Workload, o.Start.SaveEvery = workload, time.Second
	other.order(o)
	other.pass(2 * time.Second)
	if len(b.store.Manifests(workload)) == 0 {
		return "", errors.New("nothing durable")
	}
	return b.store.Manifests(workload)[0].ID, nil
}
