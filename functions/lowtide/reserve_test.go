package main

import (
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/provider/fake"
)

// four is a type that is not sold as spot: what needs its four GPUs pays dearly elsewhere.
var four = fake.Type{Name: "p3.8xlarge", GPU: "V100", GPUs: 4, OnDemand: 12.24}

// cr1 is one such machine, paid for so many hours.
func cr1(hours int) fleet.Reservation {
	return fleet.Reservation{
		ID: "cr-1", Cloud: "fake", Account: "main", Region: "sim-1", Zone: "sim-1a", Type: four.Name, Count: 1,
		From: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2000, 1, 1, hours, 0, 0, 0, time.UTC), Hourly: fleet.Dollars(4.2),
	}
}

// reserved runs a story at a cloud where r is paid for.
func reserved(t *testing.T, r fleet.Reservation, story func(*testing.T, *bed)) {
	bubble(t, fake.Config{Traces: zones(nil, nil), Types: []fake.Type{fake.V100, four}, Reservations: []fleet.Reservation{r}}, story)
}

// on says which offers a workload's runs were on, in order.
func (b *bed) on(name string) (out []string) {
	offers := map[string]string{}
	for _, r := range b.bill() {
		offers[r.Name] = string(r.Offer.Market)
	}
	for _, l := range b.lives() {
		if l.Workload == name {
			out = append(out, offers[l.Machine])
		}
	}
	return out
}

// urgent is a job for four GPUs that is due so long after it could be done.
func (b *bed) urgent(spare time.Duration) fleet.Spec {
	s := spec("urgent", 8, 240)
	s.GPUs, s.Deadline = 4, b.clock.Now().Add(s.Work+spare)
	b.say(events.WorkloadSubmitted{Spec: s})
	return s
}

// kept checks that a workload is done in time.
func (b *bed) kept(s fleet.Spec) {
	b.t.Helper()
	b.until(3*time.Hour, s.Name+" has finished", func() bool { return b.work(s.Name).Phase == fleet.Finished })
	if done := b.work(s.Name).Ended; done.After(s.Deadline) {
		b.t.Errorf("%s finished %s after its deadline\n%s", s.Name, done.Sub(s.Deadline), b.story())
	}
}

// shares is the story of one machine that two workloads could have: lowtide is told of it, or not.
func shares(t *testing.T, told bool) (spent fleet.Money, paid fake.Booked) {
	r := cr1(48)
	reserved(t, r, func(t *testing.T, b *bed) {
		long := spec("long", 7, 900)
		b.say(events.WorkloadSubmitted{Spec: long})
		b.runs("long", 1, 10, time.Hour)
		if told {
			b.say(events.ReservationSet{Reservation: r, By: "ada"})
			b.runs("long", 2, 20, time.Hour)
		}
		b.pass(25 * time.Minute)
		soon := b.urgent(2 * time.Hour)
		b.kept(soon)
		b.finishes(long, 4*time.Hour)
		b.finishes(soon, time.Hour)
		spent, paid = b.bill().Total(b.clock.Now()), b.local.Booked()[0]
		if !told {
			return
		}
		if got := strings.Join(b.on("urgent"), " "); got != "reserved" {
			t.Errorf("urgent ran on %s, want what is paid for: elsewhere it is dear\n%s", got, b.story())
		}
		if got := strings.Join(b.on("long"), " "); got != "spot reserved spot reserved" {
			t.Errorf("long ran on %s, want what is paid for but while the other needs it\n%s", got, b.story())
		}
		third := b.lives()[2].Machine
		if missing := b.inOrder(
			is[events.ReservationSet](),
			is(func(f events.WorkloadStarted) bool { return f.Workload == "long" && f.Epoch == 2 }),
			is(func(f events.InstanceVerified) bool { return f.Machine == third }), // before it leaves
			is(func(f events.WorkloadStopped) bool { return f.Workload == "long" && f.Epoch == 2 }),
			is(func(f events.WorkloadStarted) bool { return f.Workload == "urgent" }),
			is(func(f events.WorkloadFinished) bool { return f.Workload == "urgent" }),
			is(func(f events.WorkloadStarted) bool { return f.Workload == "long" && f.Epoch == 4 }),
		); missing > 0 {
			t.Errorf("%d of the facts are missing or out of order:\n%s", missing, b.story())
		}
		if lost := b.work("long").Lost; lost > 0 {
			t.Errorf("%d steps were lost", lost)
		}
	})
	return spent, paid
}

func TestASpotWorkloadMovesOntoThePaidMachineAndMakesRoomForOneThatNeedsItMore(t *testing.T) {
	with, used := shares(t, true)
	without, idle := shares(t, false)
	t.Logf("paid for either way: %s; used, it lies idle for %s and all else costs %s; unused, for %s, and all else costs %s",
		used.Cost, used.Idle, with, idle.Idle, without)
	if with.Float() > 0.2*without.Float() || used.Idle.Float() >= idle.Idle.Float() {
		t.Errorf("%s spent beside the reservation, %s without using it; idle for %s, %s", with, without, used.Idle, idle.Idle)
	}
}

func TestWhoCannotWaitGetsThePaidMachineAtOnce(t *testing.T) {
	r := cr1(48)
	reserved(t, r, func(t *testing.T, b *bed) {
		b.say(events.ReservationSet{Reservation: r})
		long := spec("long", 7, 900)
		b.say(events.WorkloadSubmitted{Spec: long})
		b.runs("long", 1, 150, 2*time.Hour)
		soon := b.urgent(demoPolicy.StartMax + demoPolicy.Wake + 4*time.Minute) // before long could have moved, it would have to buy
		asked := b.clock.Now()
		b.kept(soon)
		b.finishes(long, 4*time.Hour)
		if got := strings.Join(b.on("urgent"), " "); got != "reserved" {
			t.Errorf("urgent ran on %s, want what is paid for\n%s", got, b.story())
		}
		for _, l := range b.lives() {
			if l.Workload == "long" && l.Epoch == 1 && l.Ended.Sub(asked) > time.Minute {
				t.Errorf("long left %s after it had to, want at once\n%s", l.Ended.Sub(asked), b.story())
			}
		}
		if lost := b.work("long").Lost; lost > 0 {
			t.Errorf("%d steps were lost", lost)
		}
	})
}

func TestWhoRunsOnAReservationIsElsewhereBeforeItEnds(t *testing.T) {
	r := cr1(2)
	reserved(t, r, func(t *testing.T, b *bed) {
		b.say(events.ReservationSet{Reservation: r})
		job := spec("train", 5, 1200) // more than three hours
		b.say(events.WorkloadSubmitted{Spec: job})
		b.finishes(job, 6*time.Hour)
		if got := strings.Join(b.on("train"), " "); got != "reserved spot" {
			t.Errorf("ran on %s, want on what is paid for and then on spot\n%s", got, b.story())
		}
		first := b.bill()[0]
		if !first.Until.Before(r.Until) || first.Why != "asked" {
			t.Errorf("%s ended at %s because %q, want it left before %s", first.Name, first.Until, first.Why, r.Until)
		}
		if lost := b.work("train").Lost; lost > 0 {
			t.Errorf("%d steps were lost\n%s", lost, b.story())
		}
	})
}
