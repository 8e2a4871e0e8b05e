package rebalance_test

import (
	"context"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/plan/pool"
)

func TestHowLongMachinesTakeIsKeptByCloud(t *testing.T) {
	w, _ := running(t)
	s := w.fleet().StartUps["fake"]
	if s == nil || s.Boot.Count != 1 || s.Boot.Mean != 61*time.Second || s.Proof.Count != 1 || s.Proof.Mean != time.Minute || s.Restore.Count != 0 {
		t.Errorf("got %+v, want a boot of 61 s and a proof of a minute, no restore", s)
	}
	w.hear(time.Second, events.WorkloadStarted{Workload: "a", Machine: w.fleet().Workloads["a"].On, Epoch: 1, Restore: 9 * time.Second})
	if s := w.fleet().StartUps["fake"]; s.Restore.Count != 0 {
		t.Errorf("a fact said again counts: %+v", s.Restore)
	}
}

func TestWhereToWaitIsCheaperTheRunIsSavedStoppedAndItsMachineEndedOnce(t *testing.T) {
	od := offer("z1", fleet.OnDemand, 3)
	w := newWorld(t, od)
	spec := job("a")
	spec.Deadline = t0.Add(60 * time.Hour)
	p := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: spec}))
	w.buy(p)
	w.prove(p.Plan.Machine)
	m := p.Plan.Machine
	w.hear(time.Second, events.WorkloadStarted{Workload: "a", Machine: m, Epoch: 1})
	// A market with cheap spot appears that is away just now, and has been to be had for most of the day.
	spot := offer("z2", fleet.Spot, 0.3)
	spot.Stock = fleet.Known(0)
	w.market(fleet.Markets{AsOf: w.now, Offers: []fleet.Offer{od, spot}, Pools: map[string]*fleet.PoolPast{
		spot.Pool(): {Since: w.now, At: w.now, Good: 20, Seen: 21, Usual: 0.3},
	}})
	said := w.hear(30*time.Minute, events.MachineHeard{Machine: m, Beat: 1, Workload: "a", Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: 100}}, events.PriceChanged{Cloud: "fake", Region: "r"})
	o := one[events.OrderGiven](t, said)
	if o.Machine != m || !o.Order.Stop || o.Order.Save == nil || len(pick[events.PlanMade](said)) != 0 {
		t.Fatalf("got %s, want the run to be saved and stopped", list(said))
	}
	if again := pick[events.OrderGiven](w.hear(time.Second, events.ClockTicked{What: "wake"})); len(again) != 0 {
		t.Errorf("ordered again: %+v", again)
	}
	said = w.hear(time.Second, events.WorkloadStopped{Workload: "a", Machine: m, Epoch: 1, Step: 101, Saved: man(1, 101)})
	if end := one[events.PlanMade](t, said); end.Plan.Action != fleet.End || end.Plan.Machine != m {
		t.Errorf("got %+v, want the machine to be ended", end.Plan)
	}
	w.hear(time.Second, events.InstanceEnded{Cloud: "fake", Account: "a", Machine: m, ID: "id-" + m, At: w.now})
	if a := w.fleet().Workloads["a"]; a.Waiting.IsZero() || a.Saved.Step != 101 {
		t.Errorf("got %+v, want a workload that waits, with its checkpoint", a)
	}
	// It is back: the run goes on there, from the checkpoint.
	spot.Stock = fleet.Known(3)
	w.market(fleet.Markets{AsOf: w.now, Offers: []fleet.Offer{od, spot}, Pools: map[string]*fleet.PoolPast{
		spot.Pool(): {Up: true, Since: w.now.Add(-20 * time.Hour), At: w.now, Good: 20, Seen: 21, Usual: 0.3},
	}})
	p = one[events.PlanMade](t, w.hear(time.Minute, events.PriceChanged{Cloud: "fake", Region: "r"}))
	if p.Plan.Offers[0].Pool() != spot.Pool() {
		t.Fatalf("got %+v, want spot", p.Plan)
	}
	w.buy(p)
	if o := one[events.OrderGiven](t, w.prove(p.Plan.Machine)); o.Order.Epoch != 2 || o.Order.Start.From != "e1-s101" {
		t.Errorf("got %+v, want epoch 2 from step 101", o.Order)
	}
	if a := w.fleet().Workloads["a"]; !a.Waiting.IsZero() {
		t.Errorf("it runs and waits since %s", a.Waiting)
	}
}

func TestWithABesideTheFirstDecisionIsASafeRulesAndALaterOneTheTables(t *testing.T) {
	w := newWorld(t, offer("z1", fleet.Spot, 1), offer("z1", fleet.OnDemand, 3))
	w.cfg.Tables = pool.NewTables(64 << 20)
	w.d = rebalance.New(w.cfg)
	ctx, cancel := context.WithCancel(context.Background())
	over, begun := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		close(begun)
		w.d.Function().Beside(ctx)
	}()
	defer func() { cancel(); <-over }()
	<-begun
	one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: job("a")}))                                // nothing waits for a table
	for deadline := time.Now().Add(30 * time.Second); w.cfg.Tables.Count() == 0; time.Sleep(time.Millisecond) { // it is solved in its own time
		if time.Now().After(deadline) {
			t.Fatal("no table was solved beside the decider")
		}
	}
	w.hear(time.Second, events.ClockTicked{What: "wake"})
	if f := w.fleet(); len(f.Machines) != 1 {
		t.Errorf("%d machines, want one whichever rule decided", len(f.Machines))
	}
}
