package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/functions/rebalance"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	host "lowtide/shared/fn/jetstream"
	"lowtide/shared/store"
)

// BenchmarkNoticeToOrder is how long a spot notice takes from its publication until the order that follows is at the
// agent's subject: folded by the real decider into a fleet of so many running workloads, planned, saved over its
// revision, published. Each notice dooms a machine that is not doomed yet. The bars are p99 <= 10 ms relaxed and
// <= 50 ms with a disk that is flushed for every message.
func BenchmarkNoticeToOrder(b *testing.B) {
	for _, sync := range []bool{false, true} {
		for _, n := range []int{10, 1000} {
			b.Run(fmt.Sprintf("SyncAlways=%v/Workloads=%d", sync, n), func(b *testing.B) { noticeToOrder(b, sync, n) })
		}
	}
}

// running is a fleet in which every workload runs on a spot machine of its own.
func running(n int, now time.Time, o fleet.Offer) *fleet.Fleet {
	f := fleet.New("f", "install")
	f.Now = now
	for i := range n {
		name, machine := fmt.Sprintf("w%d", i), machineName(i)
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

// decider serves rebalance alone on a fleet and a market that were written for it.
func decider(b *testing.B, s *embedded.Server, f *fleet.Fleet, market fleet.Markets) {
	b.Helper()
	nc, js := natstest.Connect(b, s)
	h, err := host.New(nc, host.Options{Fleet: f.Name})
	if err != nil {
		b.Fatal(err)
	}
	open := func(name, key string, val []byte, err error) store.Bucket {
		if err != nil {
			b.Fatal(err)
		}
		bucket, err := store.Open(b.Context(), js, name, 1)
		if err == nil {
			_, err = bucket.Create(b.Context(), key, val)
		}
		if err != nil {
			b.Fatal(err)
		}
		return bucket
	}
	state, err := new(fleet.Encoder).Encode(f)
	states := open(fleetsBucket, f.Name, state, err)
	offers, err := json.Marshal(market)
	prices := open(marketBucket, fleet.MarketKey, offers, err)
	ctx, cancel := context.WithCancel(b.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		err := h.Serve(ctx, rebalance.New(rebalance.Config{
			Fleet: f.Name, Install: f.Install, States: states, Market: prices, Policy: demoPolicy, Batch: 128,
		}).Function())
		if err != nil {
			b.Error(err)
		}
	}()
	b.Cleanup(func() { cancel(); <-over })
}

func noticeToOrder(b *testing.B, sync bool, n int) {
	s := natstest.Start(b, embedded.Options{SyncAlways: sync})
	nc, js := natstest.Connect(b, s)
	orders, err := nc.SubscribeSync(bus.Subject("f", "order.given", ">"))
	if err != nil {
		b.Fatal(err)
	}
	offer := fleet.Offer{
		Cloud: "fake", Account: "main", Region: "sim-1", Zone: "sim-1a", Type: "p3.2xlarge", Market: fleet.Spot, GPU: "V100", GPUs: 1,
		Hourly: fleet.Known(fleet.Dollars(1)),
	}
	now := time.Now().UTC()
	decider(b, s, running(n, now, offer), fleet.Markets{AsOf: now, Offers: []fleet.Offer{offer}})
	notice := func(i int) time.Duration {
		m := machineName(i % n)
		// A machine is doomed anew by an earlier end: each round over the fleet comes a little earlier.
		ends := time.Now().Add(2*time.Hour - time.Duration(i/n)*time.Minute).UTC()
		e := events.New("f", "notices", time.Now(), events.InstanceInterrupted{
			Cloud: "fake", Account: "main", Machine: m, EndsBy: ends, Action: "terminate", Noticed: "eventbridge",
		})
		began := time.Now()
		if _, err := bus.Publish(b.Context(), js, e); err != nil {
			b.Fatal(err)
		}
		for {
			msg, err := orders.NextMsg(10 * time.Second)
			if err != nil {
				b.Fatalf("order for %s: %v", m, err)
			}
			took := time.Since(began)
			said, err := events.Decode(msg.Data)
			if err != nil {
				b.Fatal(err)
			}
			o := said.Data.(events.OrderGiven)
			if o.Machine != m || o.Order.Save == nil || o.Order.Save.By.Sub(ends).Abs() > time.Millisecond {
				continue // another's, said again
			}
			// The agent answers, or a long benchmark would measure hundreds of orders that wait for their repeats.
			answer := events.New("f", m, time.Now(), events.CheckpointSaved{
				Workload: fmt.Sprintf("w%d", i%n), Machine: m, Epoch: 1, Save: o.Order.Save.ID,
				Manifest: fleet.Manifest{ID: fmt.Sprintf("1-%d", 200+i), Epoch: 1, Step: int64(200 + i), At: time.Now().UTC()},
			})
			if _, err := bus.Publish(b.Context(), js, answer); err != nil {
				b.Fatal(err)
			}
			time.Sleep(30 * time.Millisecond) // the answer is folded: each notice is measured alone
			return took
		}
	}
	notice(0) // the first wakes everything up and reads the state
	var took []time.Duration
	i := 1
	for b.Loop() {
		took = append(took, notice(i))
		i++
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1e3, "p50-ms")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1e3, "p99-ms")
}
