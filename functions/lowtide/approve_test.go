package main

import (
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/provider/fake"
)

// proposal waits for the newest question.
func proposal(b *bed, n int) events.PlanProposed {
	b.t.Helper()
	b.until(15*time.Minute, "a proposal", func() bool { return len(all[events.PlanProposed](b)) >= n })
	p := all[events.PlanProposed](b)
	return p[len(p)-1]
}

func refusals(b *bed) (why []string) {
	for _, r := range all[events.ApprovalRefused](b) {
		why = append(why, r.Why)
	}
	return why
}

func TestADearMachineWaitsForAPersonAndStaleWordsChangeNothingAndSaySo(t *testing.T) {
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		job := spec("train", 3, 180)
		b.say(events.WorkloadSubmitted{Spec: job})
		p := proposal(b, 1)
		if !strings.Contains(p.Why, "is above 0.5000 USD/h") || p.Default != "reject" || p.Until.IsZero() {
			t.Errorf("asked %+v, want why, until when, and what happens without an answer", p)
		}
		b.say(events.PlanApproved{Plan: p.Plan.ID, Hash: "of-another-plan", By: "ada"}, events.PlanApproved{Plan: "p999", By: "ada"})
		b.pass(30 * time.Second)
		if n := len(b.bill()); n > 0 {
			t.Fatalf("%d machines bought on a stale word", n)
		}
		if why := strings.Join(refusals(b), "; "); !strings.Contains(why, "another one by now") || !strings.Contains(why, "no such plan") {
			t.Errorf("told %q", why)
		}
		b.say(events.PlanApproved{Plan: p.Plan.ID, Hash: p.Plan.Hash(), By: "ada"})
		first := b.runs("train", 1, 75, time.Hour)
		b.say(events.PlanApproved{Plan: p.Plan.ID, Hash: p.Plan.Hash(), By: "bob"}, events.PlanRejected{Plan: p.Plan.ID, By: "bob"})
		b.pass(time.Minute)
		if n := len(b.bill()); n != 1 {
			t.Errorf("%d machines after a second approval and a late no, want the one", n)
		}

		// The recovery costs no more than what a person approved: nobody is asked.
		b.local.Interrupt(first.id, 2*time.Minute)
		b.runs("train", 2, 76, time.Hour)
		if n := len(all[events.PlanProposed](b)); n != 1 {
			t.Errorf("%d proposals, want none for the recovery\n%s", n, b.story())
		}
		b.finishes(job, 2*time.Hour)
	}, func(b *bed) { b.ask = rebalance.Approval{Hourly: fleet.Dollars(0.5)} })
}

func TestWithoutAnAnswerTheDefaultIsDone(t *testing.T) {
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		job := spec("train", 3, 30)
		job.Tags = map[string]string{"team": "vision"}
		b.say(events.WorkloadSubmitted{Spec: job})
		p := proposal(b, 1)
		if p.Default != "approve" || p.Until.Sub(p.Plan.Made) != 3*time.Minute {
			t.Errorf("asked %+v", p)
		}
		b.pass(p.Until.Sub(b.clock.Now()) - 10*time.Second)
		if n := len(b.bill()); n > 0 {
			t.Errorf("%d machines bought before the wait was over", n)
		}
		b.until(time.Minute, "the purchase", func() bool { return len(b.bill()) == 1 })
		b.say(events.PlanRejected{Plan: p.Plan.ID, By: "ada"})
		b.finishes(job, time.Hour)
		if why := strings.Join(refusals(b), "; "); why == "" {
			t.Error("a no that came too late was not answered")
		}
	}, func(b *bed) {
		b.ask = rebalance.Approval{Tags: map[string]string{"team": "vision"}, Wait: 3 * time.Minute, Buy: true}
	})
}

func TestAnObservedWorkloadIsNeverBoughtFor(t *testing.T) {
	bubble(t, fake.Config{}, func(t *testing.T, b *bed) {
		job := spec("train", 3, 30)
		job.Autonomy = fleet.Observe
		b.say(events.WorkloadSubmitted{Spec: job})
		p := proposal(b, 1)
		b.say(events.PlanApproved{Plan: p.Plan.ID, By: "ada"})
		b.pass(time.Hour)
		if n := len(b.bill()); n > 0 || !p.Observed {
			t.Errorf("%d machines bought for a workload that is only observed (%+v)", n, p)
		}
		if why := strings.Join(refusals(b), "; "); !strings.Contains(why, "only observed") {
			t.Errorf("told %q", why)
		}
	}, func(b *bed) { b.ask = rebalance.Approval{Buy: true} })
}
