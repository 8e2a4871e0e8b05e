package simulate_test

import (
	"math"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/lowtide/simulate"
	"lowtide/functions/lowtide/simulate/replay"
	"lowtide/shared/fleet"
)

// One pool that was up for an hour at 1 USD, then gone for good; on demand at 3. The job of an hour was bought on demand.
func TestAReplayTellsWhatOtherPoliciesWouldHavePaid(t *testing.T) {
	began := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }
	offer := func(m fleet.Market, hourly float64, stock int) fleet.Offer {
		return fleet.Offer{
			Cloud: "fake", Account: "main", Region: "r1", Zone: "r1a", Type: "big", Market: m, GPU: "V100", GPUs: 1,
			Hourly: fleet.Known(fleet.Dollars(hourly)), Stock: fleet.Known(stock),
		}
	}
	demand := offer(fleet.OnDemand, 3, 1)
	r := replay.Record{Offers: map[string][]fleet.Offer{"up": {offer(fleet.Spot, 1, 1), demand}, "down": {offer(fleet.Spot, 1, 0), demand}}}
	say := func(minute int, f events.Fact) { r.Events = append(r.Events, events.New("f", "test", at(minute), f)) }
	submit := func(name string, deadline time.Time) {
		say(0, events.WorkloadSubmitted{Spec: fleet.Spec{Name: name, Work: time.Hour, GPUs: 1, Deadline: deadline}})
		say(0, events.WorkloadAccepted{Workload: name, Deadline: deadline})
	}
	say(0, events.PriceChanged{Cloud: "fake", Region: "r1", Digest: "up"})
	submit("w", at(150))
	submit("whenever", time.Time{})
	say(0, events.InstanceLaunched{Machine: "m1", Workload: "w", Offer: demand, At: at(0)})
	say(5, events.WorkloadStarted{Workload: "w", Machine: "m1", Epoch: 1})
	for m := 5; m < 240; m += 5 {
		say(m, events.ClockTicked{What: "tick", Due: at(m)})
		if m == 60 {
			say(m, events.PriceChanged{Cloud: "fake", Region: "r1", Digest: "down"})
		}
	}
	say(240, events.InstanceEnded{Machine: "m1", At: at(66), Why: "asked"})

	got := simulate.Replay(r, simulate.Policies())
	if len(got) != 2 || len(got[1].Lines) != 1 || len(got[1].Untold) == 0 {
		t.Fatalf("got %+v, want two workloads, the second without a policy and with the reason", got)
	}
	lines := map[string]simulate.Line{}
	for _, l := range got[0].Lines {
		lines[l.Policy] = l
	}
	for name, want := range map[string]simulate.Line{
		"as it was": {Cost: 3.3, State: "missed", Launches: 1}, // it never said finished
		"on-demand": {Cost: 65 * 3. / 60, State: "met", Launches: 1},
		// an hour of spot, 55 minutes of work; then it waits for the net, and a start and five minutes are left
		"greedy": {Cost: 1 + 10*3./60, State: "met", Launches: 2},
	} {
		l := lines[name]
		if math.Abs(l.Cost-want.Cost) > 1e-9 || l.State != want.State || l.Launches != want.Launches {
			t.Errorf("%s: got %+v, want %+v", name, l, want)
		}
	}
	if l := lines["lowtide"]; l.State != "met" || l.Cost > lines["on-demand"].Cost {
		t.Errorf("lowtide: got %+v", l)
	}
}
