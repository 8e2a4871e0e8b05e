package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/functions/rebalance"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	host "lowtide/shared/fn/jetstream"
	"lowtide/shared/store"
)

// samples is how many notices are timed, whatever -benchtime says: fewer make no 99th percentile.
const samples = 1000

// BenchmarkNoticeToOrder is how long a spot notice takes from its publication until the order that follows is in its
// agent's hands: folded by the real decider into a fleet of so many running workloads, planned, saved over its revision,
// published, consumed. Each notice dooms a machine of its own; when all of a fleet have had theirs, a fresh fleet
// follows. The bars are p99 <= 10 ms relaxed and <= 50 ms with a disk that is flushed for every message.
//
// For scale, between any two notices one bare order is published and consumed by the same agents; a notice's way is two such
// ways with a fold and a save between.
func BenchmarkNoticeToOrder(b *testing.B) {
	for _, sync := range []bool{false, true} {
		for _, n := range []int{10, 1000} {
			b.Run(fmt.Sprintf("SyncAlways=%v/Workloads=%d", sync, n), func(b *testing.B) { noticeToOrder(b, sync, n) })
		}
	}
}

// running is a fleet in which every workload runs on a spot machine of its own.
func running(fleetName string, n int, now time.Time, o fleet.Offer) *fleet.Fleet {
	f := fleet.New(fleetName, "install")
	f.Now = now
	for i := range n {
		name, machine := workloadName(i), machineName(i)
		s := spec(name, i, 3600)
		man := fleet.Manifest{ID: "1-100", Epoch: 1, Step: 100, At: now, Bytes: 1 << 30, Took: 20 * time.Second}
		f.Workloads[name] = &fleet.Workload{
			Spec: &s, Phase: fleet.Accepted, Since: now.Add(-time.Hour), Epoch: 1, On: machine, Step: 110, Saved: man,
			SaveTook: man.Took, Review: now.Add(time.Hour),
		}
		f.Machines[machine] = &fleet.Instance{
			Name: machine, ID: fmt.Sprintf("i-%06d", i), Workload: name, Offer: o, Phase: fleet.Verified, Bought: now.Add(-time.Hour),
			ReadyAt: now.Add(-time.Hour), Heard: now, Acked: 2, Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: 110},
			Order: fleet.Order{
				Number: 2, Epoch: 1, Benchmark: &fleet.Benchmark{Nonce: "n", Suite: "quick"},
				Start: &fleet.Start{Workload: name, Run: s.Run, Env: s.Env, SaveEvery: s.SaveEvery},
			},
		}
	}
	return f
}

func machineName(i int) string { return fmt.Sprintf("f-m%d", i) }

func workloadName(i int) string { return fmt.Sprintf("w%d", i) }

// surroundings is everything around the decider: one consumer stands for the agents and for provision.
type surroundings struct {
	b              *testing.B
	nc             *nats.Conn
	js             jetstream.JetStream
	states, market store.Bucket
	offer          fleet.Offer
	heard          chan came
}

// came is a fact and when it was in its consumer's hands.
type came struct {
	fact events.Fact
	at   time.Time
}

func surround(b *testing.B, sync bool) *surroundings {
	s := natstest.Start(b, embedded.Options{SyncAlways: sync})
	nc, js := natstest.Connect(b, s)
	w := &surroundings{b: b, nc: nc, js: js, heard: make(chan came, 64), offer: fleet.Offer{
		Cloud: "fake", Account: "main", Region: "sim-1", Zone: "sim-1a", Type: "p3.2xlarge", Market: fleet.Spot, GPU: "V100", GPUs: 1,
		Hourly: fleet.Known(fleet.Dollars(1)),
	}}
	for name, bucket := range map[string]*store.Bucket{fleetsBucket: &w.states, marketBucket: &w.market} {
		var err error
		if *bucket, err = store.Open(b.Context(), js, name, 1); err != nil {
			b.Fatal(err)
		}
	}
	other := w.offer // the pool that warns is not bought from again at once
	other.Zone = "sim-1b"
	offers, err := json.Marshal(fleet.Markets{AsOf: time.Now(), Offers: []fleet.Offer{w.offer, other}})
	if err == nil {
		_, err = w.market.Create(b.Context(), fleet.MarketKey, offers)
	}
	if err != nil {
		b.Fatal(err)
	}
	h, err := host.New(nc, host.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(w.serve(h, fn.New("surroundings",
		fn.Hear(func(_ context.Context, o events.OrderGiven) ([]events.Event, error) {
			w.heard <- came{o, time.Now()}
			return nil, nil
		}),
		fn.Hear(func(_ context.Context, p events.PlanMade) ([]events.Event, error) {
			w.heard <- came{p, time.Now()}
			return nil, nil
		}),
	)))
	return w
}

// serve runs a function until stop is called.
func (w *surroundings) serve(h *host.Host, f fn.Function) (stop func()) {
	ctx, cancel := context.WithCancel(w.b.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := h.Serve(ctx, f); err != nil {
			w.b.Error(err)
		}
	}()
	return func() { cancel(); <-over }
}

func (w *surroundings) publish(fleetName, source string, facts ...events.Fact) {
	w.b.Helper()
	var said []events.Event
	for _, f := range facts {
		said = append(said, events.New(fleetName, source, time.Now(), f))
	}
	if _, err := bus.Publish(w.b.Context(), w.js, said...); err != nil {
		w.b.Fatal(err)
	}
}

// next waits for a fact that is so.
func (w *surroundings) next(what string, so func(events.Fact) bool) came {
	w.b.Helper()
	late := time.After(10 * time.Second)
	for {
		select {
		case c := <-w.heard:
			if so(c.fact) {
				return c
			}
		case <-late:
			w.b.Fatalf("no %s came", what)
		}
	}
}

// bare is one order's way: stored, and in the agent's hands.
func (w *surroundings) bare(i int) time.Duration {
	machine := fmt.Sprintf("bare-%d", i)
	began := time.Now()
	w.publish("bare", "bench", events.OrderGiven{Machine: machine, Order: fleet.Order{
		Number: 3, Epoch: 1, Save: &fleet.Save{ID: "s1", By: began}, Start: &fleet.Start{Workload: "w", Run: []string{"train"}},
	}})
	c := w.next("bare order", func(f events.Fact) bool { o, ok := f.(events.OrderGiven); return ok && o.Machine == machine })
	return c.at.Sub(began)
}

// decider serves a fleet of n running workloads with the real decider, which has read its state when this returns.
func (w *surroundings) decider(name string, n int) (h *host.Host, stop func()) {
	h, err := host.New(w.nc, host.Options{Fleet: name})
	if err != nil {
		w.b.Fatal(err)
	}
	state, err := new(fleet.Encoder).Encode(running(name, n, time.Now().UTC(), w.offer))
	if err == nil {
		_, err = w.states.Create(w.b.Context(), name, state)
	}
	if err != nil {
		w.b.Fatal(err)
	}
	decide := rebalance.New(rebalance.Config{
		Fleet: name, Install: "install", States: w.states, Market: w.market, Policy: demoPolicy, Batch: 128,
	}).Function()
	rest := w.serve(h, decide)
	w.publish(name, "bench", events.ClockTicked{What: "tick"})
	w.handled(h, 1)
	return h, func() {
		rest()
		if err := h.Forget(context.WithoutCancel(w.b.Context()), decide); err != nil {
			w.b.Error(err)
		}
	}
}

// handled waits until a host has handled so many messages.
func (w *surroundings) handled(h *host.Host, n uint64) {
	w.b.Helper()
	for late := time.Now().Add(10 * time.Second); h.Counts().Handled < n; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			w.b.Fatalf("the decider handled %d messages, want %d", h.Counts().Handled, n)
		}
	}
}

// notice times one, and then answers its order and its plan and waits until that is folded: each notice is measured alone.
func (w *surroundings) notice(h *host.Host, name string, i int) time.Duration {
	m, before := machineName(i), h.Counts().Handled
	began := time.Now()
	w.publish(name, "notices", events.InstanceInterrupted{
		Cloud: "fake", Account: "main", Machine: m, EndsBy: began.Add(2 * time.Hour).UTC(), Action: "terminate", Noticed: "eventbridge",
	})
	c := w.next("order for "+m, func(f events.Fact) bool {
		o, ok := f.(events.OrderGiven)
		return ok && o.Machine == m && o.Order.Save != nil
	})
	save := c.fact.(events.OrderGiven).Order.Save.ID
	// The order is said first, so the plan has not been passed over.
	p := w.next("plan for "+m, func(f events.Fact) bool {
		p, ok := f.(events.PlanMade)
		return ok && p.Plan.Action == fleet.Launch && p.Plan.Workload == workloadName(i)
	}).fact.(events.PlanMade).Plan
	now := time.Now().UTC()
	w.publish(name, "bench",
		events.CheckpointSaved{Workload: workloadName(i), Machine: m, Epoch: 1, Save: save, Manifest: fleet.Manifest{ID: "1-200", Epoch: 1, Step: 200, At: now}},
		events.InstanceLaunched{Plan: p.ID, Machine: p.Machine, ID: fmt.Sprintf("j-%06d", i), Workload: p.Workload, Offer: p.Offers[0], At: now},
	)
	w.handled(h, before+3)
	return c.at.Sub(began)
}

func noticeToOrder(b *testing.B, sync bool, n int) {
	w := surround(b, sync)
	var took, bare []time.Duration
	for len(took) < samples {
		name := fmt.Sprintf("f%d", len(took)/n)
		h, stop := w.decider(name, n)
		for i := range min(n, samples) {
			bare = append(bare, w.bare(len(bare)))
			took = append(took, w.notice(h, name, i))
		}
		stop()
	}
	for range b.N { // all is measured already
	}
	for what, list := range map[string][]time.Duration{"": took, "bare-": bare} {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2].Seconds()*1e3, what+"p50-ms")
		b.ReportMetric(list[len(list)*99/100].Seconds()*1e3, what+"p99-ms")
	}
	b.ReportMetric(0, "ns/op")
}
