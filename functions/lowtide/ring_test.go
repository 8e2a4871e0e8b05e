package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/plan"
	"lowtide/shared/provider/fake"
)

func TestNoticeSavesReplacesVerifiesAndRestores(t *testing.T) {
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		job := spec("train", 7, 180)
		b.say(events.WorkloadSubmitted{Spec: job})
		first := b.runs("train", 1, 75, time.Hour)
		at := b.clock.Now()
		b.local.Interrupt(first.id, 2*time.Minute)
		second := b.runs("train", 2, 76, time.Hour)
		b.finishes(job, 2*time.Hour)

		on := func(m *rented) func(string) bool { return func(name string) bool { return name == m.name } }
		if missing := b.inOrder(
			is(func(f events.InstanceInterrupted) bool { return on(first)(f.Machine) }),
			is(func(f events.OrderGiven) bool { return on(first)(f.Machine) && f.Order.Save != nil }),
			is(func(f events.CheckpointSaved) bool { return on(first)(f.Machine) }),
			is(func(f events.InstanceReady) bool { return on(second)(f.Machine) }),
			is(func(f events.BenchmarkFinished) bool { return on(second)(f.Machine) }),
			is(func(f events.InstanceVerified) bool { return on(second)(f.Machine) }),
			is(func(f events.OrderGiven) bool { return on(second)(f.Machine) && f.Order.Start != nil }),
			is(func(f events.WorkloadStarted) bool { return on(second)(f.Machine) && f.Step > 0 }),
			is[events.WorkloadFinished](),
		); missing > 0 {
			t.Errorf("%d of the facts are missing or out of order:\n%s", missing, b.story())
		}
		bought := time.Time{}
		for _, r := range b.bill() {
			if r.ID == second.id {
				bought = r.Since
			}
		}
		if took := bought.Sub(at); took > 10*time.Second {
			t.Errorf("the replacement was bought %s after the notice, want it at once and not after the save", took)
		}
		lives := b.lives()
		if len(lives) != 2 || lives[1].From < 75 {
			t.Errorf("lives %+v, want the second to go on from the last save after the notice\n%s", lives, b.story())
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if asked := first.m.Asked().Sub(at); asked > 2*time.Minute || asked < 0 {
			t.Errorf("the process was asked to save %s after the notice", asked)
		}
	})
}

func TestSuggestedPlanBuysOnlyAfterItsApproval(t *testing.T) {
	bubble(t, fake.Config{}, func(t *testing.T, b *bed) {
		job := spec("train", 3, 30)
		job.Autonomy = fleet.Suggest
		b.say(events.WorkloadSubmitted{Spec: job})
		b.until(5*time.Minute, "a proposal", func() bool { return len(all[events.PlanProposed](b)) > 0 })
		b.pass(demoPolicy.PlanLife / 2)
		if n := len(b.bill()); n > 0 {
			t.Fatalf("%d machines bought before anybody approved\n%s", n, b.story())
		}
		proposed := all[events.PlanProposed](b)
		plan := proposed[len(proposed)-1].Plan
		b.say(events.PlanApproved{Plan: plan.ID, By: "ada"})
		b.until(time.Minute, "the purchase", func() bool { return len(b.bill()) == 1 })
		if got := b.bill()[0].Labels.Plan; got != plan.ID {
			t.Errorf("bought for plan %s, want the approved %s", got, plan.ID)
		}
		b.finishes(job, time.Hour)
		if n := len(b.bill()); n != 1 {
			t.Errorf("%d machines bought, want the approved one\n%s", n, b.story())
		}
	})
}

func TestApprovalAfterThePlanExpiredBuysNothing(t *testing.T) {
	bubble(t, fake.Config{}, func(t *testing.T, b *bed) {
		job := spec("train", 3, 30)
		job.Autonomy = fleet.Suggest
		b.say(events.WorkloadSubmitted{Spec: job})
		b.until(5*time.Minute, "a proposal", func() bool { return len(all[events.PlanProposed](b)) > 0 })
		plan := all[events.PlanProposed](b)[0].Plan
		b.pass(time.Until(plan.Expires) + time.Second)
		b.say(events.PlanApproved{Plan: plan.ID, By: "ada"})
		b.pass(5 * time.Minute)
		if n := len(b.bill()) + len(all[events.PlanMade](b)); n > 0 {
			t.Errorf("the plan expired at %s and was carried out\n%s", plan.Expires.Format(time.TimeOnly), b.story())
		}
		proposed := all[events.PlanProposed](b)
		again := proposed[len(proposed)-1].Plan
		if again.ID == plan.ID || !again.Expires.After(plan.Expires) {
			t.Errorf("after plan %s expired, %s is proposed, want a new one", plan.ID, again.ID)
		}
		b.say(events.PlanRejected{Plan: again.ID, By: "ada"})
		b.pass(time.Minute)
		if n := len(b.bill()); n > 0 {
			t.Errorf("%d machines bought of a rejected plan", n)
		}
	})
}

func TestOrderThatIsLostIsSaidAgainAfterFiveSecondsAndObeyed(t *testing.T) {
	bubble(t, fake.Config{}, func(t *testing.T, b *bed) {
		lost := 0
		b.setup = func(r *rented) {
			r.drop = func(o events.OrderGiven) bool {
				lose := o.Order.Start != nil && lost == 0
				if lose {
					lost++
				}
				return lose
			}
		}
		job := spec("train", 5, 30)
		b.say(events.WorkloadSubmitted{Spec: job})
		m := b.runs("train", 1, 1, time.Hour)
		b.finishes(job, time.Hour)
		b.mu.Lock()
		defer b.mu.Unlock()
		var starts []given
		for _, o := range m.orders {
			if o.Order.Start != nil {
				starts = append(starts, o)
			}
		}
		if len(starts) < 2 {
			t.Fatalf("%d orders to start came to the machine, want the first, lost, and its repeat", len(starts))
		}
		if wait := starts[1].at.Sub(starts[0].at); wait < 5*time.Second || wait > 6*time.Second {
			t.Errorf("said again after %s, want 5s", wait)
		}
		if starts[1].Attempt <= starts[0].Attempt || starts[1].Order.Number != starts[0].Order.Number {
			t.Errorf("repeat is attempt %d of order %d, the first was attempt %d of order %d", starts[1].Attempt, starts[1].Order.Number, starts[0].Attempt, starts[0].Order.Number)
		}
	})
}

func TestMachineCutOffFromEverybodyEndsItselfAfterItsLease(t *testing.T) {
	const lease, grace = 30 * time.Minute, 5 * time.Minute
	bubble(t, fake.Config{}, func(t *testing.T, b *bed) {
		b.setup = func(r *rented) { r.config = func(c *agent.Config) { c.Lease, c.Grace = lease, grace } }
		job := spec("train", 9, 720) // two hours
		b.say(events.WorkloadSubmitted{Spec: job})
		m := b.runs("train", 1, 10, time.Hour)
		b.mu.Lock()
		m.cut = true
		cut := b.clock.Now()
		b.mu.Unlock()
		b.stop() // nor does anybody else live: lowtide is gone, the cloud's clock goes on
		for b.local.Bill().Ours()[0].Bills() && b.clock.Now().Sub(cut) < lease+grace+time.Minute {
			b.pass(time.Second)
		}
		r := b.local.Bill().Ours()[0]
		ends := r.Until // lowtide's last word came at most a quarter of the lease before
		if r.Bills() || r.Why != "self" || ends.Sub(cut) < lease-lease/4 || ends.Sub(cut) > lease+grace {
			t.Errorf("%s ended %s after it was cut off, because %q; want by itself between %s and %s", r.Name, ends.Sub(cut), r.Why, lease-lease/4, lease+grace)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		life := *b.log.Lives[0]
		saved := b.saved.Manifests("train")
		if n := len(saved); n == 0 || saved[n-1].Step != life.To {
			t.Errorf("the run ended at step %d, durable are %v", life.To, saved)
		}
	})
}

func TestMachineThatFallsSilentIsReplacedAndLosesOnlyWhatWasNotSaved(t *testing.T) {
	bubble(t, fake.Config{}, func(t *testing.T, b *bed) {
		job := spec("train", 9, 150)
		b.say(events.WorkloadSubmitted{Spec: job})
		m := b.runs("train", 1, 40, time.Hour)
		b.mu.Lock()
		m.cut = true
		b.mu.Unlock()
		b.finishes(job, 3*time.Hour)
		lives := b.lives()
		if len(lives) != 2 || lives[1].From != 30 {
			t.Errorf("lives %+v, want the second to begin at the last checkpoint that was heard of\n%s", lives, b.story())
		}
	})
}

func TestMachineEndsItselfBeforeItsHardEnd(t *testing.T) {
	bubble(t, fake.Config{NoHardEnd: true}, func(t *testing.T, b *bed) { // a cloud that cannot: the agent must
		job := spec("train", 9, 150)
		n := 0
		var hard time.Time
		b.setup = func(r *rented) {
			if n++; n == 1 {
				hard = b.clock.Now().Add(15 * time.Minute)
				r.config = func(c *agent.Config) { c.HardEnd, c.Grace = hard, 2*time.Minute }
			}
		}
		b.say(events.WorkloadSubmitted{Spec: job})
		m := b.runs("train", 1, 61, time.Hour)
		b.mu.Lock()
		m.cut = true // nobody tells it to end, nor hears that it did
		b.mu.Unlock()
		b.finishes(job, 3*time.Hour)
		first := b.bill()[0]
		if first.Why != "self" || !first.Until.Before(hard) || hard.Sub(first.Until) > 2*time.Minute {
			t.Errorf("%s ended at %s because %q, its hard end is %s\n%s", first.Name, first.Until, first.Why, hard, b.story())
		}
		lives := b.lives()
		if len(lives) != 2 || lives[1].From != 60 {
			t.Fatalf("lives %+v, want the second to begin at the last checkpoint that was heard of\n%s", lives, b.story())
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		durable := false
		for _, man := range b.saved.Manifests("train") {
			durable = durable || man.Epoch == 1 && man.Step == lives[0].To
		}
		if !durable {
			t.Errorf("the first run ended at step %d, and that was not saved", lives[0].To)
		}
	})
}

func TestRunThatEndsUnaskedIsReplacedAtOnce(t *testing.T) {
	bubble(t, fake.Config{}, func(t *testing.T, b *bed) {
		job := spec("train", 9, 90)
		n := 0
		b.setup = func(r *rented) {
			if n++; n == 1 {
				hard := b.clock.Now().Add(12 * time.Minute)
				r.config = func(c *agent.Config) { c.HardEnd, c.Grace = hard, 2*time.Minute }
			}
		}
		b.say(events.WorkloadSubmitted{Spec: job})
		b.finishes(job, time.Hour)
		lives, bill := b.lives(), b.bill()
		if len(lives) != 2 || lives[1].From != lives[0].To {
			t.Fatalf("lives %+v, want the second to begin where the first ended\n%s", lives, b.story())
		}
		if wait := bill[1].Since.Sub(lives[0].Ended); wait > 10*time.Second {
			t.Errorf("%s from the end of the run to the next purchase, want it at once", wait)
		}
	})
}

func TestMalformedEventIsADeadLetterAndTheRingGoesOn(t *testing.T) {
	bubble(t, fake.Config{}, func(t *testing.T, b *bed) {
		bad := []byte(`{"id":"x","kind":"workload.submitted","data":{"spec":`)
		if _, err := b.js.Publish(t.Context(), bus.Subject("f", "workload.submitted", "bad"), bad); err != nil {
			t.Fatal(err)
		}
		job := spec("train", 5, 30)
		b.say(events.WorkloadSubmitted{Spec: job})
		b.finishes(job, time.Hour)
		dead, err := b.js.Stream(t.Context(), bus.Dead)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := dead.GetLastMsgForSubject(t.Context(), "dead.rebalance")
		if err != nil {
			t.Fatal(err)
		}
		l, _ := bus.ReadLetter(raw)
		if !bytes.Equal(l.Body, bad) || l.Reason == "" || l.Function != "rebalance" || l.Subject != bus.Subject("f", "workload.submitted", "bad") {
			t.Errorf("dead letter %+v, want the bytes and the reason", l)
		}
		if n := b.host.Counts().Dead; n != 1 {
			t.Errorf("%d dead letters counted, want 1", n)
		}
	})
}

// falling is dearer than 1 USD/h for half an hour, and then less.
func falling(to float64) []float64 {
	p := make([]float64, 7*24*60)
	for i := range p {
		p[i] = 1.05
		if i >= 30 {
			p[i] = to
		}
	}
	return p
}

func TestPriceThatFallsElsewhereMovesTheWorkloadWhenItPays(t *testing.T) {
	bubble(t, fake.Config{Traces: zones([]float64{1}, falling(0.3))}, func(t *testing.T, b *bed) {
		job := spec("train", 11, 360)
		b.say(events.WorkloadSubmitted{Spec: job})
		first := b.runs("train", 1, 1, time.Hour)
		second := b.runs("train", 2, 1, 3*time.Hour)
		b.finishes(job, 6*time.Hour)
		var move fleet.Plan
		for _, p := range all[events.PlanMade](b) {
			if p.Plan.Machine == second.name && p.Plan.Action == fleet.Launch {
				move = p.Plan
			}
		}
		if move.Score.Payback <= 0 || move.Score.OneOff.Float() <= 0 || move.Score.Hourly.Float() != 0.3 || move.Score.HourlyNow.Float() != 1 {
			t.Errorf("plan to move %+v, want its price before and after, its cost and when that is paid back", move.Score)
		}
		if missing := b.inOrder(
			is(func(f events.PlanMade) bool { return f.Plan.ID == move.ID }),
			is(func(f events.InstanceVerified) bool { return f.Machine == second.name }),
			is(func(f events.OrderGiven) bool { return f.Machine == first.name && f.Order.Stop }),
			is(func(f events.WorkloadStopped) bool { return f.Machine == first.name && f.Saved.ID != "" }),
			is(func(f events.WorkloadStarted) bool { return f.Machine == second.name && f.Step > 0 }),
		); missing > 0 {
			t.Errorf("%d of the facts are missing or out of order\n%s", missing, b.story())
		}
		lives := b.lives()
		if len(lives) != 2 || lives[1].From != lives[0].To {
			t.Errorf("lives %+v, want one move and no step lost", lives)
		}
		if n := len(b.bill()); n != 2 {
			t.Errorf("%d machines bought, want 2", n)
		}
	})
}

// billed plays a job of an hour, due in four, on zones of which the second is dearer until its price falls to some level
// after half an hour, and returns what the cloud billed and on how many machines.
func billed(t *testing.T, p plan.Policy, to float64, look func(*testing.T, *bed)) (usd float64, machines int) {
	bubble(t, fake.Config{Traces: zones([]float64{1}, falling(to))}, func(t *testing.T, b *bed) {
		job := spec("train", 13, 360)
		job.Deadline = b.clock.Now().Add(4 * time.Hour).UTC()
		b.say(events.WorkloadSubmitted{Spec: job})
		b.finishes(job, 6*time.Hour)
		if ended := b.work("train").Ended; ended.After(job.Deadline) {
			t.Errorf("finished %s after the deadline", ended.Sub(job.Deadline))
		}
		usd, machines = b.bill().Total(b.clock.Now()).Float(), len(b.bill())
		if look != nil {
			look(t, b)
		}
	}, func(b *bed) { b.policy = p })
	return usd, machines
}

func TestAMoveForAPriceIsBilledLessThanStayingAndASmallerFallMovesNothing(t *testing.T) {
	stays := demoPolicy
	stays.Margin = 1e9 // no move pays that
	moved, machines := billed(t, demoPolicy, 0.3, func(t *testing.T, b *bed) {
		var move fleet.Plan
		for _, p := range all[events.PlanMade](b) {
			if p.Plan.Action == fleet.Launch {
				move = p.Plan
			}
		}
		lives := b.lives()
		if len(lives) != 2 || lives[1].From != lives[0].To || move.Score.Payback <= 0 || !strings.Contains(move.Score.Reason, "paid back in") {
			t.Fatalf("lives %+v, plan %+v, want one move that is paid back, and no step lost\n%s", lives, move.Score, b.story())
		}
		if missing := b.inOrder(
			is(func(f events.PriceChanged) bool { return strings.Contains(f.Summary, "0.3000 USD/h") }),
			is(func(f events.PlanMade) bool { return f.Plan.ID == move.ID }),
			is(func(f events.InstanceVerified) bool { return f.Machine == move.Machine }),
			is(func(f events.OrderGiven) bool {
				return f.Machine == lives[0].Machine && f.Order.Save != nil && f.Order.Stop
			}),
			is(func(f events.WorkloadStopped) bool { return f.Machine == lives[0].Machine && f.Saved.ID != "" }),
			is(func(f events.WorkloadStarted) bool { return f.Machine == move.Machine && f.Step > 0 }),
			is[events.WorkloadFinished](),
		); missing > 0 {
			t.Errorf("%d of the facts are missing or out of order\n%s", missing, b.story())
		}
	})
	stayed, one := billed(t, stays, 0.3, nil)
	if machines != 2 || one != 1 {
		t.Errorf("%d machines with the move and %d without, want 2 and 1", machines, one)
	}
	t.Logf("billed %.4f USD with the move, %.4f without", moved, stayed)
	if moved >= stayed {
		t.Errorf("the move was billed %.4f USD, staying %.4f", moved, stayed)
	}
	if _, n := billed(t, demoPolicy, 0.9, nil); n != 1 {
		t.Errorf("%d machines where the price fell by a tenth, want 1", n)
	}
}

func TestPriceThatFallsTooLittleMovesNothing(t *testing.T) {
	bubble(t, fake.Config{Traces: zones([]float64{1}, falling(0.95))}, func(t *testing.T, b *bed) {
		job := spec("train", 11, 360)
		b.say(events.WorkloadSubmitted{Spec: job})
		b.finishes(job, 6*time.Hour)
		if n := len(b.bill()); n != 1 {
			t.Errorf("%d machines bought, want 1\n%s", n, b.story())
		}
	})
}

func TestPriceThatFallsWithinTheMinimumStayWaitsForItsEnd(t *testing.T) {
	prices := falling(0.3)
	for i := 5; i < 30; i++ {
		prices[i] = 0.3
	}
	bubble(t, fake.Config{Traces: zones([]float64{1}, prices)}, func(t *testing.T, b *bed) {
		job := spec("train", 11, 360)
		b.say(events.WorkloadSubmitted{Spec: job})
		first := b.runs("train", 1, 1, time.Hour)
		b.runs("train", 2, 1, 3*time.Hour)
		var ready, moved time.Time
		b.mu.Lock()
		for _, h := range b.facts {
			switch f := h.event.Data.(type) {
			case events.InstanceReady:
				if f.Machine == first.name && ready.IsZero() {
					ready = h.at
				}
			case events.PlanMade:
				if f.Plan.Machine != first.name && moved.IsZero() {
					moved = h.at
				}
			}
		}
		b.mu.Unlock()
		if stay := moved.Sub(ready); stay < demoPolicy.MinStay || stay > demoPolicy.MinStay+demoPolicy.Wake {
			t.Errorf("moved after %s, want after %s and by the next look", stay, demoPolicy.MinStay)
		}
		b.finishes(job, 6*time.Hour)
	})
}
