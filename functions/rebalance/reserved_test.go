package rebalance_test

import (
	"testing"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

func cr(count int, until time.Duration) fleet.Reservation {
	return fleet.Reservation{
		ID: "cr-1", Cloud: "fake", Account: "a", Region: "r", Zone: "z1", Type: "p3.2xlarge", Count: count, Until: t0.Add(until), Hourly: fleet.Dollars(2),
	}
}

func tick() events.Fact { return events.ClockTicked{What: "tick"} }

func TestPaidCapacityThatLiesIdleForAnHourIsToldWithItsMoneyAndThenEachDay(t *testing.T) {
	w := newWorld(t, offer("z1", fleet.OnDemand, 3), offer("z1", fleet.Spot, 1))
	r := cr(2, 400*24*time.Hour)
	w.hear(0, events.ReservationSet{Reservation: r})
	w.hear(0, events.WorkloadSubmitted{Spec: job("a")})
	p := one[events.PlanMade](t, w.said)
	if p.Plan.Offers[0].Reservation != "cr-1" {
		t.Fatalf("got %+v, want what is paid for", p.Plan)
	}
	w.buy(p)
	w.prove(p.Plan.Machine)
	w.hear(0, events.WorkloadStarted{Workload: "a", Machine: p.Plan.Machine, Epoch: 1})
	w.hear(t0.Sub(w.now)+10*time.Minute, tick())
	if n := w.fleet().Used("cr-1"); n != 1 {
		t.Fatalf("%d machines of it are used, want 1", n)
	}
	for range 4 {
		if said := pick[events.ReservationIdle](w.hear(10*time.Minute, tick())); len(said) > 0 {
			t.Fatalf("told after %s: %+v", w.now.Sub(t0), said)
		}
	}
	e := one[events.ReservationIdle](t, w.hear(10*time.Minute, tick()))
	if e.Idle != 1 || e.Hourly.Float() != 2 || e.Wasted.Float() < 1.99 || e.Wasted.Float() > 2.01 || !e.Since.Equal(t0) {
		t.Errorf("got %+v, want one machine that has cost 2 USD in an hour", e)
	}
	for range 23 {
		w.hear(time.Second, tick()) // it is said once more under the same id
		if said := pick[events.ReservationIdle](w.hear(time.Hour-time.Second, tick())); len(said) > 0 && said[0].Wasted.Float() > 2.01 {
			t.Fatalf("told again after %s", w.now.Sub(t0))
		}
	}
	again := pick[events.ReservationIdle](w.hear(time.Hour+time.Minute, tick()))
	if len(again) != 1 || again[0].Wasted.Float() < 45 {
		t.Errorf("got %+v, want it told again after a day", again)
	}
}

func TestTheEndOfPaidCapacityIsToldAt60And30And7Days(t *testing.T) {
	const day = 24 * time.Hour
	for name, x := range map[string]struct {
		from, until time.Duration
		want        []int
	}{
		"a year":                      {-300 * day, 65 * day, []int{60, 30, 7}},
		"set late":                    {-300 * day, 20 * day, []int{30, 7}},
		"a block of ten days":         {0, 10 * day, []int{7}},
		"a block of two":              {0, 2 * day, nil},
		"ends before the next mark":   {-300 * day, 5 * day, []int{7}},
		"not before it has begun yet": {200 * day, 220 * day, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, offer("z1", fleet.OnDemand, 3))
			r := cr(2, x.until)
			r.From = t0.Add(x.from)
			seen, ids := []int{}, map[string]bool{}
			for at := 0; at < 70; at++ {
				facts := []events.Fact{tick()}
				if at == 0 {
					facts = append(facts, events.ReservationSet{Reservation: r})
				}
				for _, e := range w.hear(day, facts...) {
					if f, ok := e.Data.(events.ReservationExpiring); ok && !ids[e.ID] {
						ids[e.ID] = true
						seen = append(seen, f.Days)
						if f.Hourly.Float() != 4 {
							t.Errorf("got %s/h, want 4 USD for both machines", f.Hourly)
						}
					}
				}
			}
			if len(seen) != len(x.want) {
				t.Fatalf("told at %v days, want %v", seen, x.want)
			}
			for i := range seen {
				if seen[i] != x.want[i] {
					t.Errorf("told at %v days, want %v", seen, x.want)
				}
			}
		})
	}
}

func TestAReservationThatIsGivenUpIsLeft(t *testing.T) {
	w := newWorld(t, offer("z1", fleet.OnDemand, 3), offer("z1", fleet.Spot, 1))
	w.hear(0, events.ReservationSet{Reservation: cr(1, 1000*time.Hour)})
	p := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: job("a")}))
	w.buy(p)
	w.prove(p.Plan.Machine)
	w.hear(time.Second, events.WorkloadStarted{Workload: "a", Machine: p.Plan.Machine, Epoch: 1})
	w.hear(time.Hour, events.MachineHeard{Machine: p.Plan.Machine, Beat: 1, Workload: "a", Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: 100}})
	gone := cr(0, 1000*time.Hour)
	next := one[events.PlanMade](t, w.hear(time.Second, events.ReservationSet{Reservation: gone}))
	if next.Plan.Action != fleet.Launch || next.Plan.Offers[0].Market != fleet.Spot {
		t.Fatalf("got %+v, want another machine", next.Plan)
	}
	if f := w.fleet(); len(f.Reserved) != 0 || len(f.Watched) != 0 || f.Machines[p.Plan.Machine].Order.Stop {
		t.Errorf("left before the other is proved: %+v", f.Machines[p.Plan.Machine])
	}
}
