package ledger_test

import (
	"context"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/ledger"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestAFactCountsOnceAndABudgetIsWarnedOfOnce(t *testing.T) {
	books := store.Memory()
	seq := uint64(0)
	hear := func(at time.Time, facts ...events.Fact) (batch []fn.Delivery, said []events.Event) {
		t.Helper()
		for _, f := range facts {
			seq++
			batch = append(batch, fn.Delivery{Event: events.New("f", "test", at, f), Stream: "S", Seq: seq, At: at})
		}
		said, err := ledger.New("f", books).Handle(context.Background(), batch)
		if err != nil {
			t.Fatal(err)
		}
		return batch, said
	}
	hour := fleet.Offer{Cloud: "fake", Market: fleet.Spot, Hourly: fleet.Known(fleet.Dollars(2))}
	hear(t0, events.WorkloadAccepted{Workload: "a", Baseline: fleet.Dollars(12), Budget: fleet.Known(fleet.Dollars(10))},
		// The end of the second machine is heard before its purchase.
		events.InstanceEnded{Machine: "m2", ID: "i2", At: t0.Add(time.Hour)})
	again, _ := hear(t0, events.InstanceLaunched{Machine: "m1", ID: "i1", Workload: "a", Offer: hour, At: t0},
		events.InstanceLaunched{Machine: "m2", ID: "i2", Workload: "a", Offer: hour, At: t0})
	if _, err := ledger.New("f", books).Handle(context.Background(), again); err != nil {
		t.Fatal(err)
	}
	spent := func(at time.Time) float64 {
		t.Helper()
		b, _, err := ledger.Read(context.Background(), books, "f")
		if err != nil {
			t.Fatal(err)
		}
		return b.Spent("a", at).Float()
	}
	if got := spent(t0.Add(2 * time.Hour)); got != 6 {
		t.Errorf("after two hours: got %v, want 4 for m1 and 2 for m2", got)
	}
	count := func(hours int) (n int) {
		at := t0.Add(time.Duration(hours) * time.Hour)
		_, said := hear(at, events.ClockTicked{What: "tick", Due: at})
		return len(said)
	}
	if early, warned, twice, gone, after := count(2), count(3), count(3), count(4), count(9); early != 0 || warned != 1 || twice != 0 || gone != 1 || after != 0 {
		t.Errorf("said %d at 6, %d at 8, %d at 8 again, %d at 10, %d after, of 10 USD; want 0 1 0 1 0", early, warned, twice, gone, after)
	}
	hear(t0.Add(10*time.Hour), events.InstanceEnded{Machine: "m1", ID: "i1", At: t0.Add(5 * time.Hour)})
	if got := spent(t0.Add(20 * time.Hour)); got != 12 {
		t.Errorf("in the end: got %v, want 12", got)
	}
}
