package rebalance_test

import (
	"fmt"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// spotted is a fleet of n workloads that run in one spot pool.
func spotted(t *testing.T, n int) (w *world, pool fleet.Offer, machines []string) {
	t.Helper()
	pool = offer("z1", fleet.Spot, 0.3)
	w = newWorld(t, offer("z1", fleet.OnDemand, 3), pool)
	for i := range n {
		p := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: job(fmt.Sprintf("w%d", i))}))
		w.buy(p)
		w.prove(p.Plan.Machine)
		machines = append(machines, p.Plan.Machine)
	}
	return w, pool, machines
}

func interrupted(w *world, machine string) events.InstanceInterrupted {
	return events.InstanceInterrupted{Cloud: "fake", Account: "a", Machine: machine, ID: "id-" + machine, EndsBy: w.now.Add(2 * time.Minute), Action: "terminate", Noticed: "eventbridge"}
}

func TestAPoolThatIsReclaimedAsAWholeIsLeftAloneForAMinuteAndNotForEachMachine(t *testing.T) {
	w, pool, machines := spotted(t, 8)
	for _, m := range machines {
		w.hear(time.Second, interrupted(w, m))
	}
	r := w.fleet().Refusals[pool.Pool()]
	if r == nil || r.Count != 1 || r.Until.Sub(w.now) > time.Minute {
		t.Errorf("got %+v at %s, want one refusal of a minute", r, w.now)
	}
}

func TestAPoolThatRefusesAgainAndAgainIsAskedEachQuarterOfAnHour(t *testing.T) {
	w, pool, machines := spotted(t, 1)
	w.hear(time.Second, interrupted(w, machines[0]))
	var waits []time.Duration
	for range 7 {
		w.now = w.fleet().Refusals[pool.Pool()].Until
		w.hear(0, events.PlanFailed{Plan: "gone", Refused: []events.Refused{{Pool: pool.Pool(), Why: "no_capacity"}}})
		waits = append(waits, w.fleet().Refusals[pool.Pool()].Until.Sub(w.now))
	}
	if got, want := fmt.Sprint(waits), "[2m0s 4m0s 8m0s 15m0s 15m0s 15m0s 15m0s]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.hear(3*time.Hour, events.PlanFailed{Plan: "gone", Refused: []events.Refused{{Pool: pool.Pool(), Why: "no_capacity"}}})
	if r := w.fleet().Refusals[pool.Pool()]; r.Until.Sub(w.now) != time.Minute {
		t.Errorf("after calm got %s, want a minute", r.Until.Sub(w.now))
	}
}

func TestAPoolThatWarnsOfWhatItHasJustSoldIsLeftAloneForLonger(t *testing.T) {
	pool := offer("z1", fleet.Spot, 0.3)
	w := newWorld(t, offer("z1", fleet.OnDemand, 3), pool)
	var waits []time.Duration
	for i := range 3 {
		said := w.hear(0, events.WorkloadSubmitted{Spec: job(fmt.Sprintf("w%d", i))})
		p := one[events.PlanMade](t, said)
		w.buy(p)
		w.hear(time.Second, interrupted(w, p.Plan.Machine))
		r := w.fleet().Refusals[pool.Pool()]
		waits = append(waits, r.Until.Sub(w.now))
		w.now = r.Until
		w.hear(0, events.WorkloadWithdrawn{Workload: fmt.Sprintf("w%d", i), By: "test"})
	}
	if got, want := fmt.Sprint(waits), "[1m0s 2m0s 4m0s]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPlansThatFailWithoutARefusalAreTriedLessAndLess(t *testing.T) {
	w := newWorld(t, offer("z1", fleet.OnDemand, 3))
	p := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: job("a")}))
	var waits []time.Duration
	for range 6 {
		w.hear(time.Second, events.PlanFailed{Plan: p.Plan.ID, Why: "the cloud did not answer"})
		failed := w.now
		for len(pick[events.PlanMade](w.said)) == 0 && w.now.Sub(failed) < time.Hour {
			w.hear(time.Second, events.ClockTicked{What: "wake"})
		}
		p = one[events.PlanMade](t, w.said)
		waits = append(waits, w.now.Sub(failed))
	}
	if got, want := fmt.Sprint(waits), "[5s 10s 20s 40s 1m0s 1m0s]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.buy(p)
	if refusals := w.fleet().Refusals; len(refusals) != 0 {
		t.Errorf("after a purchase got %v, want none", refusals)
	}
}

func TestAWarningHeardBeforeThePurchaseOutlastsIt(t *testing.T) {
	pool := offer("z1", fleet.Spot, 0.3)
	w := newWorld(t, offer("z1", fleet.OnDemand, 3), pool)
	p := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: job("a")}))
	w.hear(time.Second, interrupted(w, p.Plan.Machine))
	said := w.buy(p)
	if r := w.fleet().Refusals[pool.Pool()]; r == nil || !r.Until.After(w.now) {
		t.Errorf("got %+v at %s, want the pool to be left alone", r, w.now)
	}
	for _, p := range pick[events.PlanMade](said) {
		if p.Plan.Action == fleet.Launch && p.Plan.Offers[0].Pool() == pool.Pool() {
			t.Errorf("bought there again: %+v", p.Plan)
		}
	}
}
