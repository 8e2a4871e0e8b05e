package jetstream_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

// BenchmarkNoticeToOrder is the way of one spot notice: published, folded, the state saved over its revision, the order
// published and heard by the agent of that machine, among as many agents as there are workloads.
func BenchmarkNoticeToOrder(b *testing.B) {
	for _, sync := range []bool{false, true} {
		for _, agents := range []int{10, 1000} {
			b.Run(fmt.Sprintf("SyncAlways=%v/Agents=%d", sync, agents), func(b *testing.B) { noticeToOrder(b, sync, agents) })
		}
	}
}

func noticeToOrder(b *testing.B, sync bool, agents int) {
	s := natstest.Start(b, embedded.Options{SyncAlways: sync})
	_, js := natstest.Connect(b, s)
	bucket, err := store.Open(b.Context(), js, "state", 1)
	if err != nil {
		b.Fatal(err)
	}
	rev, err := bucket.Create(b.Context(), "f", make([]byte, 16<<10))
	if err != nil {
		b.Fatal(err)
	}
	decide := fn.Fold("rebalance", 256, []events.Kind{"instance.interrupted"}, func(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
		state := make([]byte, 16<<10)
		copy(state, fmt.Sprint(batch[len(batch)-1].Seq))
		if rev, err = bucket.Update(ctx, "f", state, rev); err != nil {
			return nil, err
		}
		var orders []events.Event
		for _, d := range batch {
			notice := d.Event.Data.(events.InstanceInterrupted)
			orders = append(orders, events.New("f", "rebalance", d.At, events.OrderGiven{Machine: notice.Machine, Attempt: int(d.Seq)}))
		}
		return orders, nil
	})
	arrived := make(chan struct{}, 1)
	functions := []fn.Function{}
	for i := range agents {
		name := fmt.Sprintf("m%d", i)
		f := fn.New("agent", fn.Hear(func(context.Context, events.OrderGiven) ([]events.Event, error) {
			arrived <- struct{}{}
			return nil, nil
		}))
		f.Key = name
		functions = append(functions, f)
	}
	serve(b, s, decide)
	serve(b, s, functions...)
	time.Sleep(100*time.Millisecond + time.Duration(agents)*time.Millisecond) // until all have asked for messages
	var took []time.Duration
	b.ResetTimer()
	for i := range b.N {
		e := events.New("f", "notices", time.Now(), events.InstanceInterrupted{Machine: fmt.Sprintf("m%d", i%agents), EndsBy: time.Now()})
		start := time.Now()
		if _, err := bus.Publish(b.Context(), js, e); err != nil {
			b.Fatal(err)
		}
		<-arrived
		took = append(took, time.Since(start))
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1e3, "p50-ms")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1e3, "p99-ms")
}
