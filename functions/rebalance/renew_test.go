package rebalance_test

import (
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
)

func TestEachLivingMachineHearsOfUsInEveryQuarterOfItsLease(t *testing.T) {
	w, machine := running(t)
	w.cfg.Policy.Lease = 40 * time.Minute
	w.d = rebalance.New(w.cfg)
	quarter := w.cfg.Policy.Lease / 4
	began, last, n := w.now, w.now, 0
	ids := map[string]bool{}
	attempt := 1
	for step := int64(1); w.now.Sub(began) < 2*w.cfg.Policy.Lease; step++ {
		said := w.hear(30*time.Second, events.MachineHeard{
			Machine: machine, Number: w.fleet().Machines[machine].Order.Number, Workload: "a", Lease: last.Add(w.cfg.Policy.Lease),
			Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: step}, Saved: man(1, step),
		})
		for _, e := range said {
			o, ok := e.Data.(events.OrderGiven)
			if !ok {
				continue
			}
			want := w.fleet().Machines[machine].Order
			if o.Machine != machine || o.Order.Number != want.Number || o.Order.Start == nil || o.Order.Benchmark != nil {
				t.Errorf("said %+v, want its present order without the proof that was judged", o)
			}
			if ids[e.ID] || o.Attempt <= attempt {
				t.Errorf("id %s and attempt %d were used", e.ID, o.Attempt)
			}
			ids[e.ID], attempt, last = true, o.Attempt, w.now
			n++
		}
		if silent := w.now.Sub(last); silent > quarter+time.Minute {
			t.Fatalf("nothing was said for %s, want a word each %s", silent, quarter)
		}
	}
	if n < 7 || n > 9 {
		t.Errorf("%d words in two leases, want about 8", n)
	}
}

func TestTheWakeUpIsInTimeForTheNextWord(t *testing.T) {
	w, machine := running(t)
	w.cfg.Policy.Lease = 12 * time.Minute
	w.d = rebalance.New(w.cfg)
	said := w.hear(time.Second, events.ClockTicked{What: "tick"})
	for range 3 {
		var wake events.ClockTicked
		for _, c := range pick[events.ClockTicked](said) {
			wake = c
		}
		if by := w.fleet().Machines[machine].Told.Add(3 * time.Minute); wake.Due.After(by) {
			t.Fatalf("woken at %s, want %s at the latest", wake.Due, by)
		}
		said = w.hear(3*time.Minute, events.ClockTicked{What: "wake"})
		if n := len(pick[events.OrderGiven](said)); n != 1 {
			t.Errorf("%d words, want one", n)
		}
	}
}

func TestAMachineBoughtUnderAShorterLeaseIsSpokenToInTime(t *testing.T) {
	w, machine := running(t)
	ends := w.now.Add(20 * time.Minute) // as an earlier start of lowtide was told to lease
	for range 200 {
		said := w.hear(30*time.Second, events.MachineHeard{Machine: machine, Workload: "a", Lease: ends, Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: 5}})
		if n := len(pick[events.OrderGiven](said)); n > 0 {
			ends = w.now.Add(20 * time.Minute)
		}
		if !w.now.Before(ends) {
			t.Fatal("its lease ran out while the decider lived")
		}
	}
}

func TestAMachineThatEndsIsNotSpokenTo(t *testing.T) {
	w, machine := running(t)
	w.hear(time.Minute, events.WorkloadFinished{Workload: "a", Machine: machine, Epoch: 1, Step: 100, Result: "x", Saved: man(1, 100)})
	for range 10 {
		if o := pick[events.OrderGiven](w.hear(w.cfg.Policy.Lease/4, events.ClockTicked{What: "tick"})); len(o) > 0 {
			t.Fatalf("said %+v to a machine that ends", o)
		}
	}
}
