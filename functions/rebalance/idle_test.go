package rebalance_test

import (
	"testing"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// lazy is a run of a workload with a policy for idle GPUs, on the dear one of two kinds of machine.
func lazy(t *testing.T, policy fleet.WhenIdle, change func(*fleet.Spec)) (w *world, machine string) {
	small := offer("z2", fleet.Spot, 0.3)
	small.Type, small.GPU, small.Speed, small.Memory = "g4dn.xlarge", "T4", fleet.Known(0.25), 16
	large := offer("z1", fleet.Spot, 1)
	large.Speed, large.Memory = fleet.Known(1.0), 16
	tiny := offer("z3", fleet.Spot, 0.2)
	tiny.Type, tiny.GPU, tiny.Speed, tiny.Memory = "p4.small", "P4", fleet.Known(0.12), 8
	w = newWorld(t, small, large, tiny, offer("z1", fleet.OnDemand, 3))
	s := job("a")
	s.Work, s.Steps, s.Deadline, s.WhenIdle = 200*time.Hour, 100_000, time.Time{}, policy
	if change != nil {
		change(&s)
	}
	p := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: s}))
	if p.Plan.Offers[0].GPU != "V100" {
		t.Fatalf("bought %+v, want the one with the cheapest useful hours", p.Plan.Offers[0])
	}
	w.buy(p)
	w.prove(p.Plan.Machine)
	w.hear(time.Second, events.WorkloadStarted{Workload: "a", Machine: p.Plan.Machine, Epoch: 1})
	w.passes(p.Plan.Machine, 30*time.Minute)
	return w, p.Plan.Machine
}

// passes lets the run go on, a step a minute, and returns what was said.
func (w *world) passes(machine string, d time.Duration) (said []events.Event) {
	w.t.Helper()
	epoch := w.fleet().Workloads["a"].Epoch
	for range int(d / (5 * time.Minute)) {
		step := int64(w.now.Sub(t0) / time.Minute)
		said = append(said, w.hear(5*time.Minute, events.MachineHeard{Machine: machine, Beat: w.seq, Workload: "a", Run: fleet.Run{Epoch: epoch, Phase: fleet.Running, Step: step}})...)
	}
	return said
}

func stops(said []events.Event) bool {
	for _, o := range pick[events.OrderGiven](said) {
		if o.Order.Stop && o.Order.Save != nil {
			return true
		}
	}
	return false
}

func idle(machine string) events.WorkloadIdle {
	return events.WorkloadIdle{Workload: "a", Machine: machine, Epoch: 1, Why: "nothing worked since 12:00"}
}

func TestAnIdleWorkloadIsWarnedThenSavedAndStoppedAndGoesOnWhenItIsResumed(t *testing.T) {
	w, machine := lazy(t, fleet.IdleStop, func(s *fleet.Spec) { s.IdleGrace = 30 * time.Minute })
	warned := one[events.WorkloadWarned](t, w.hear(time.Second, idle(machine)))
	if warned.Action != fleet.IdleStop || !warned.At.Equal(w.now.Add(30*time.Minute)) || warned.Why == "" {
		t.Errorf("warned %+v", warned)
	}
	again := append(w.passes(machine, 10*time.Minute), w.hear(time.Second, idle(machine))...)
	for _, x := range pick[events.WorkloadWarned](again) { // it is said twice, under one id
		if !x.At.Equal(warned.At) {
			t.Errorf("the same waste, told again, put its end off to %s", x.At)
		}
	}
	if said := w.passes(machine, 15*time.Minute); stops(said) {
		t.Error("stopped within the grace")
	}
	said := w.passes(machine, 10*time.Minute)
	if !stops(said) {
		t.Fatalf("not stopped after the grace: %s", list(said))
	}
	said = w.hear(10*time.Second, events.WorkloadStopped{Workload: "a", Machine: machine, Epoch: 1, Step: 10, Saved: man(1, 10)})
	if end := one[events.PlanMade](t, said); end.Plan.Action != fleet.End || end.Plan.Machine != machine {
		t.Fatalf("the machine bills on: %+v", end)
	}
	w.hear(time.Second, events.InstanceEnded{Machine: machine, ID: "id-" + machine, At: w.now})
	if p := pick[events.PlanMade](w.hear(time.Hour, events.ClockTicked{What: "tick"})); len(p) != 0 {
		t.Errorf("bought for a paused workload: %+v", p)
	}
	p := one[events.PlanMade](t, w.hear(time.Hour, events.WorkloadResumed{Workload: "a", By: "its owner"}))
	w.buy(p)
	if o := one[events.OrderGiven](t, w.prove(p.Plan.Machine)); o.Order.Start == nil || o.Order.Epoch != 2 || o.Order.Start.From != "e1-s10" {
		t.Errorf("want it to go on from its checkpoint, got %+v", o.Order)
	}
}

func TestNothingIsDoneAboutIdleGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		policy fleet.WhenIdle
		then   func(w *world, machine string)
	}{
		"by default":             {"", nil},
		"where it is to be told": {fleet.IdleNotify, nil},
		"when it works again": {fleet.IdleStop, func(w *world, m string) {
			w.hear(time.Minute, events.WorkloadBusy{Workload: "a", Machine: m, Epoch: 1})
		}},
		"when somebody objects": {fleet.IdleStop, func(w *world, _ string) { w.hear(time.Minute, events.WorkloadKept{Workload: "a", By: "its owner"}) }},
		"said of an older run": {fleet.IdleStop, func(w *world, m string) {
			w.hear(time.Minute, events.WorkloadBusy{Workload: "a", Machine: m, Epoch: 1})
			f := idle(m)
			f.Epoch = 7
			w.hear(time.Minute, f)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, machine := lazy(t, c.policy, nil)
			w.hear(time.Second, idle(machine))
			if c.then != nil {
				c.then(w, machine)
			}
			if said := w.passes(machine, 3*time.Hour); stops(said) || w.fleet().Workloads["a"].Phase != fleet.Accepted {
				t.Errorf("stopped: %s", list(said))
			}
		})
	}
}

func TestAnObjectionHoldsForADayAgainstEachNewWord(t *testing.T) {
	w, machine := lazy(t, fleet.IdleStop, nil)
	w.hear(time.Second, events.WorkloadKept{Workload: "a", By: "its owner"})
	for range 23 {
		if said := append(w.hear(time.Second, idle(machine)), w.passes(machine, time.Hour)...); stops(said) || len(pick[events.WorkloadWarned](said)) > 0 {
			t.Fatalf("%s after the objection: %s", w.now.Sub(t0), list(said))
		}
	}
	w.passes(machine, time.Hour)
	one[events.WorkloadWarned](t, w.hear(time.Second, idle(machine)))
}

func TestAnUnderusedWorkloadMovesToASmallerGPUThatIsEnough(t *testing.T) {
	w, machine := lazy(t, fleet.IdleSmaller, nil)
	// A tenth of a V100 is enough, and 12 GB: the P4 has the speed and not the memory.
	under := events.WorkloadUnderused{Workload: "a", Machine: machine, Epoch: 1, Needs: 0.1, Memory: 12, Why: "5 % of the GPU used over 1h0m0s"}
	warned := one[events.WorkloadWarned](t, w.hear(time.Second, under))
	if warned.Action != fleet.IdleSmaller {
		t.Errorf("warned %+v", warned)
	}
	var move *fleet.Plan
	for _, p := range pick[events.PlanMade](w.passes(machine, 40*time.Minute)) {
		if p.Plan.Action == fleet.Launch {
			move = &p.Plan
		}
	}
	if move == nil || move.Offers[0].GPU != "T4" {
		t.Fatalf("want the T4, got %+v: %+v", move, w.fleet().Workloads["a"])
	}
	w.buy(events.PlanMade{Plan: *move})
	said := w.prove(move.Machine)
	if !stops(said) {
		t.Fatalf("the large machine's run is not saved and stopped: %s", list(said))
	}
	said = w.hear(time.Second, events.WorkloadStopped{Workload: "a", Machine: machine, Epoch: 1, Step: 20, Saved: man(1, 20)})
	if o := one[events.OrderGiven](t, said); o.Machine != move.Machine || o.Order.Epoch != 2 || o.Order.Start.From != "e1-s20" {
		t.Errorf("got %+v", o)
	}
}

func TestAWorkloadThatIsOnlyToBeStoppedIsNotMoved(t *testing.T) {
	w, machine := lazy(t, fleet.IdleStop, nil)
	under := events.WorkloadUnderused{Workload: "a", Machine: machine, Epoch: 1, Needs: 0.1, Why: "5 %"}
	said := append(w.hear(time.Second, under), w.passes(machine, time.Hour)...)
	if len(pick[events.WorkloadWarned](said)) > 0 || len(pick[events.PlanMade](said)) > 0 {
		t.Errorf("said %s", list(said))
	}
}
