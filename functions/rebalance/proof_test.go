package rebalance_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// steps lets a run go on at a pace, a word every five minutes, until the decider orders its machine about or time is up.
func (w *world) steps(machine string, from int64, perMinute float64, during time.Duration) (step int64, order *events.OrderGiven) {
	w.t.Helper()
	epoch := w.fleet().Workloads["a"].Epoch
	for i := range int(during / (5 * time.Minute)) {
		step = from + int64(float64(5*(i+1))*perMinute)
		said := w.hear(5*time.Minute, events.MachineHeard{Machine: machine, Beat: w.seq, Workload: "a", Run: fleet.Run{Epoch: epoch, Phase: fleet.Running, Step: step}})
		for _, given := range pick[events.OrderGiven](said) {
			if given.Attempt == 1 { // not the present one said again
				return step, &given
			}
		}
	}
	return step, nil
}

// patient is running, with a workload that has time.
func patient(t *testing.T, o fleet.Offer) (w *world, machine string) {
	w = newWorld(t, o, offer("z9", fleet.Spot, 2), offer("z1", fleet.OnDemand, 3))
	s := job("a")
	s.Work, s.Steps, s.Deadline = 100*time.Hour, 1_000_000, time.Time{}
	p := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: s}))
	bought := p.Plan.Offers[0]
	bought.Host = "host-7"
	w.hear(time.Second, events.InstanceLaunched{Plan: p.Plan.ID, Machine: p.Plan.Machine, ID: "id-" + p.Plan.Machine, Workload: "a", Offer: bought, At: w.now})
	w.prove(p.Plan.Machine)
	w.hear(time.Second, events.WorkloadStarted{Workload: "a", Machine: p.Plan.Machine, Epoch: 1})
	return w, p.Plan.Machine
}

// stopped answers an order to save and stop, and returns what follows.
func (w *world) stopped(machine string, o events.OrderGiven, step int64) []events.Event {
	w.t.Helper()
	if !o.Order.Stop || o.Order.Save == nil {
		w.t.Fatalf("want an order to save and stop, got %+v", o.Order)
	}
	return w.hear(20*time.Second, events.WorkloadStopped{Workload: "a", Machine: machine, Epoch: o.Order.Epoch, Step: step, Saved: man(o.Order.Epoch, step)})
}

func TestAWorkloadThatSlowsDownHasItsMachineProveItselfAgainAndGoesOn(t *testing.T) {
	w, machine := patient(t, offer("z1", fleet.Spot, 1))
	first := w.fleet().Machines[machine].Order.Benchmark.Nonce
	at, order := w.steps(machine, 0, 100, 2*time.Hour)
	if order != nil {
		t.Fatalf("a steady run was stopped: %+v", order)
	}
	at, order = w.steps(machine, at, 80, 30*time.Minute)
	if order != nil {
		t.Fatalf("80 %% of the usual pace is no doubt: %+v", order)
	}
	at, order = w.steps(machine, at, 15, time.Hour)
	if order == nil {
		t.Fatal("15 % of the usual pace for an hour, and nobody doubts the machine")
	}
	said := w.stopped(machine, *order, at)
	again := one[events.OrderGiven](t, said)
	if again.Machine != machine || again.Order.Benchmark == nil || again.Order.Benchmark.Nonce == first || again.Order.Start != nil {
		t.Fatalf("want a benchmark with another nonce, alone, got %+v", again.Order)
	}
	said = w.hear(90*time.Second, events.InstanceVerified{Machine: machine, Nonce: again.Order.Benchmark.Nonce, Ratio: 1, Took: 90 * time.Second})
	start := one[events.OrderGiven](t, said)
	if start.Machine != machine || start.Order.Start == nil || start.Order.Epoch != 2 || start.Order.Start.From == "" {
		t.Fatalf("want the next epoch on the same machine from its checkpoint, got %+v", start.Order)
	}
	if got := w.fleet().Workloads["a"].Proofs.Float(); got < 0.0249 || got > 0.0251 {
		t.Errorf("90 s at 1 USD/h were counted as %v USD", got)
	}
	w.hear(time.Second, events.WorkloadStarted{Workload: "a", Machine: machine, Epoch: 2, Step: at})
	if _, order = w.steps(machine, at, 15, 3*time.Hour); order != nil {
		t.Errorf("the machine is good, so the pace is the job's own, and it was doubted again: %+v", order.Order)
	}
}

func TestAMachineThatFailsItsSecondProofIsEndedAndItsHostNotBoughtFromAgain(t *testing.T) {
	w, machine := patient(t, offer("z1", fleet.Spot, 1))
	at, _ := w.steps(machine, 0, 100, 2*time.Hour)
	at, order := w.steps(machine, at, 15, time.Hour)
	if order == nil {
		t.Fatal("no doubt")
	}
	again := one[events.OrderGiven](t, w.stopped(machine, *order, at))
	said := w.hear(90*time.Second, events.InstanceRejected{Machine: machine, Nonce: again.Order.Benchmark.Nonce, Cause: "performance: cooling", Ratio: 0.6, Took: 90 * time.Second})
	var ended bool
	var next *fleet.Plan
	for _, p := range pick[events.PlanMade](said) {
		ended = ended || p.Plan.Action == fleet.End && p.Plan.Machine == machine
		if p.Plan.Action == fleet.Launch {
			next = &p.Plan
		}
	}
	if !ended || next == nil {
		t.Fatalf("want it ended and another bought: %s", list(said))
	}
	if !slices.Equal(next.Avoid, []string{"host-7"}) || next.Offers[0].Zone != "z1" {
		t.Errorf("want the same market, without host-7, got %+v", next)
	}
	w.hear(time.Second, events.PlanFailed{Plan: next.ID, Machine: next.Machine, Action: fleet.Launch, Why: "no capacity", Refused: []events.Refused{{Pool: next.Offers[0].Pool(), Why: "no_capacity"}}})
	for range 20 {
		w.hear(24*time.Hour, events.ClockTicked{What: "tick"})
	}
	for _, p := range w.fleet().Plans {
		if p.Action == fleet.Launch && !slices.Contains(p.Avoid, "host-7") {
			t.Errorf("three weeks later host-7 is forgotten: %+v", p)
		}
	}
}

func TestAStrangersMachineProvesItselfEachDayAndOthersEachWeek(t *testing.T) {
	for name, c := range map[string]struct {
		strangers bool
		after     time.Duration
	}{"marketplace": {true, 24 * time.Hour}, "cloud": {false, 7 * 24 * time.Hour}} {
		o := offer("z1", fleet.Spot, 1)
		o.Marketplace = c.strangers
		w, machine := patient(t, o)
		began := w.now
		_, order := w.steps(machine, 0, 10, 8*24*time.Hour)
		if order == nil || w.now.Sub(began) < c.after-time.Hour || w.now.Sub(began) > c.after+time.Hour {
			t.Errorf("%s: asked after %s (%+v), want %s", name, w.now.Sub(began), order, c.after)
			continue
		}
		if why := w.fleet().Machines[machine].Doubt; !strings.Contains(why, "last proved") {
			t.Errorf("%s: for %q", name, why)
		}
	}
}

func TestAPromiseThatIsTightIsNotStoppedForAProof(t *testing.T) {
	w, machine := running(t) // 4 h of work in 8 h
	w.hear(time.Minute, events.WorkloadChanged{Workload: "a", Deadline: w.now.Add(5 * time.Hour)})
	at, _ := w.steps(machine, 0, 4, 100*time.Minute)
	if _, order := w.steps(machine, at, 0.5, 40*time.Minute); order != nil && order.Order.Stop && w.fleet().Machines[machine].Doubt != "" {
		t.Errorf("stopped for a proof with 40 minutes to spare: %+v", order)
	}
}

func TestACheckThatNoMachinePassesEndsTheWorkloadAndNotTheMoney(t *testing.T) {
	w := newWorld(t, offer("z1", fleet.Spot, 1), offer("z2", fleet.Spot, 1.1), offer("z3", fleet.Spot, 1.2), offer("z1", fleet.OnDemand, 3))
	s := job("a")
	s.Kit.Verify = []string{"python", "-c", "import torch"}
	said := w.hear(0, events.WorkloadSubmitted{Spec: s})
	for range 3 {
		p := one[events.PlanMade](t, slices.DeleteFunc(said, func(e events.Event) bool {
			made, is := e.Data.(events.PlanMade)
			return is && made.Plan.Action == fleet.End
		}))
		m := p.Plan.Machine
		w.buy(p)
		o := one[events.OrderGiven](t, w.hear(time.Second, events.InstanceReady{Machine: m}))
		if c := o.Order.Benchmark.Check; c == nil || c.Workload != "a" || len(c.Command) != 3 {
			t.Fatalf("the check is not ordered: %+v", o.Order.Benchmark)
		}
		said = w.hear(time.Second, events.InstanceRejected{Machine: m, Nonce: o.Order.Benchmark.Nonce, Cause: events.CauseFramework + ": verify.command ended with status 1:\nno CUDA"})
	}
	if a := w.fleet().Workloads["a"]; a.Phase != fleet.Failed || !strings.Contains(a.Why, "no CUDA") {
		t.Errorf("got %s: %s", a.Phase, a.Why)
	}
}

func TestAWorkloadThatRunsIsNotEndedByWhatItsCheckRejectsElsewhere(t *testing.T) {
	w, first := running(t)
	said := w.hear(time.Minute, events.InstanceInterrupted{Machine: first, EndsBy: w.now.Add(90 * time.Minute), Action: "terminate", Noticed: "metadata"})
	for range 4 {
		p := one[events.PlanMade](t, slices.DeleteFunc(said, func(e events.Event) bool {
			made, is := e.Data.(events.PlanMade)
			return is && (made.Plan.Action == fleet.End || made.Attempt > 1)
		}))
		w.buy(p)
		o := one[events.OrderGiven](t, slices.DeleteFunc(w.hear(time.Second, events.InstanceReady{Machine: p.Plan.Machine}), func(e events.Event) bool {
			o, is := e.Data.(events.OrderGiven)
			return is && o.Machine == first
		}))
		w.hear(time.Second, events.InstanceRejected{Machine: p.Plan.Machine, Nonce: o.Order.Benchmark.Nonce, Cause: events.CauseFramework + ": no CUDA"})
		said = w.hear(16*time.Minute, events.MachineHeard{Machine: first, Workload: "a", Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: 5}}, events.PriceChanged{Cloud: "fake", Region: "r"})
	}
	if a := w.fleet().Workloads["a"]; a.Phase != fleet.Accepted || a.On != first {
		t.Errorf("got %s on %q (%s), want it to run where its check passed", a.Phase, a.On, a.Why)
	}
}
