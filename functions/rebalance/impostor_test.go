package rebalance_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lowtide/events"
	"lowtide/shared/fleet"
)

func TestACompromisedMachineCanSayNothingOfAnotherWorkloadOrMachine(t *testing.T) {
	w := newWorld(t, offer("z1", fleet.Spot, 1), offer("z2", fleet.Spot, 1.1), offer("z1", fleet.OnDemand, 3))
	machine := map[string]string{}
	for _, name := range []string{"mine", "theirs"} {
		p := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: job(name)}))
		machine[name] = p.Plan.Machine
		w.buy(p)
		w.prove(p.Plan.Machine)
		w.hear(0, events.WorkloadStarted{Workload: name, Machine: p.Plan.Machine, Epoch: 1})
	}
	mine, theirs := machine["mine"], machine["theirs"]
	if mine == theirs {
		t.Fatal("one machine")
	}
	forged := fleet.Manifest{ID: "e1-s999", Epoch: 1, Step: 999}
	for _, f := range []events.Fact{ // what NATS lets the user of my machine publish, with whatever in it
		events.MachineHeard{Machine: mine, Beat: 9, Workload: "theirs", Saved: forged, Run: fleet.Run{Epoch: 1, Phase: fleet.RunFinished}, Result: "mine"},
		events.WorkloadFailed{Workload: "mine", Machine: theirs, Epoch: 99, Code: 1},
		events.WorkloadStopped{Workload: "mine", Machine: theirs, Epoch: 1},
		events.CheckpointSaved{Workload: "mine", Machine: theirs, Epoch: 1, Save: "s1", Manifest: forged},
		events.WorkloadFinished{Workload: "mine", Machine: theirs, Epoch: 1, Result: "mine"},
		events.CheckpointFailed{Workload: "mine", Machine: theirs, Epoch: 1, Save: "s1"},
	} {
		before := *w.fleet()
		was, at := *before.Workloads["theirs"], *before.Machines[theirs]
		if said := pick[events.PlanMade](w.hear(0, f)); len(said) > 0 {
			t.Errorf("%s: something was bought or ended: %+v", f.Kind(), said)
		}
		after := w.fleet()
		if d := cmp.Diff(*after.Workloads["theirs"], was, money); d != "" {
			t.Errorf("%s changes their workload: %s", f.Kind(), d)
		}
		if d := cmp.Diff(*after.Machines[theirs], at, money); d != "" {
			t.Errorf("%s changes their machine: %s", f.Kind(), d)
		}
	}
}

// money compares what decimals mean.
var money = cmp.Options{
	cmp.Comparer(func(a, b fleet.Money) bool { return a.Amount.Equal(b.Amount) && a.Currency == b.Currency }),
	cmp.Comparer(func(a, b fleet.Maybe[fleet.Money]) bool { return fmt.Sprint(a.Get()) == fmt.Sprint(b.Get()) }),
	cmp.Comparer(func(a, b fleet.Maybe[int]) bool { return a == b }),
	cmp.Comparer(func(a, b fleet.Maybe[float64]) bool { return a == b }),
}
