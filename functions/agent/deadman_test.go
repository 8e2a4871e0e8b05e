package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/agent/agenttest"
	"lowtide/shared/fleet"
)

func TestOwnNoticeSignalsWithinSixSecondsWhenNoSaveWasMeasured(t *testing.T) {
	for offset := range 5 { // of the notice within the poll
		b := newBed(t, slowUpload(5*time.Second))
		b.pass(time.Second)
		b.order(start(1, 1, "", ""))
		b.pass(30*time.Second + time.Duration(offset)*time.Second)
		at := b.now
		b.m.Interrupt(agent.Notice{Action: "terminate", Time: at.Add(2 * time.Minute)})
		b.pass(30 * time.Second)
		if b.m.Asked().IsZero() || b.m.Asked().Sub(at) > 6*time.Second {
			t.Errorf("offset %d: signalled %s after the notice, want at most 6s", offset, b.m.Asked().Sub(at))
		}
		n := one[events.InstanceInterrupted](b)
		if n.Noticed != "metadata" || !n.EndsBy.Equal(at.Add(2*time.Minute)) || n.Machine != "m1" {
			t.Errorf("interrupted %+v, want the metadata's word for m1", n)
		}
		if s := one[events.WorkloadStopped](b); !contains(durable(b), s.Saved.ID) || s.Saved.Step < 30 {
			t.Errorf("stopped with %+v, want a durable checkpoint of the end", s.Saved)
		}
	}
}

func TestOwnNoticeUsesTheWindowOnceASaveWasMeasured(t *testing.T) {
	b := newBed(t, slowUpload(10*time.Second))
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(100 * time.Second)
	ends := b.now.Add(2 * time.Minute)
	b.m.SaveNow()
	b.m.Interrupt(agent.Notice{Action: "terminate", Time: ends})
	b.pass(2*time.Minute - time.Second)
	if early := ends.Sub(b.m.Asked()); early < 40*time.Second || early > 42*time.Second { // 20 s to write + 10 s upload + 10 s reserve
		t.Errorf("asked %s before the end, want 40s", early)
	}
	if len(facts[events.CheckpointSaved](b)) != 4 { // 60, the one at the notice, 160, the last
		t.Errorf("durable %v, want the waiting one at once and the last one", durable(b))
	}
	s := one[events.WorkloadStopped](b)
	if s.Saved.Step < 170 || !s.Saved.At.Before(ends) {
		t.Errorf("stopped with %+v, want the last checkpoint durable before %s", s.Saved, ends)
	}
}

func TestNoticeWithoutTimeAsksForNothing(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(30 * time.Second)
	b.m.Interrupt(agent.Notice{Action: "terminate", Time: b.now})
	b.pass(10 * time.Second)
	one[events.InstanceInterrupted](b)
	if !b.m.Asked().IsZero() || b.m.Alive() != 1 {
		t.Errorf("asked at %s, epoch %d alive; want the job left alone", b.m.Asked(), b.m.Alive())
	}
}

func TestEarlierNoticeIsSaidAgain(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.m.Interrupt(agent.Notice{Action: "terminate", Time: t0.Add(10 * time.Minute)})
	b.pass(30 * time.Second)
	b.m.Interrupt(agent.Notice{Action: "terminate", Time: t0.Add(5 * time.Minute)})
	b.pass(30 * time.Second)
	if all := facts[events.InstanceInterrupted](b); len(all) != 2 || !all[1].EndsBy.Equal(t0.Add(5*time.Minute)) {
		t.Errorf("interrupted %+v, want both times once each", all)
	}
}

func TestMachineThatOutlivesItsNoticeGoesOnSaving(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.m.Interrupt(agent.Notice{Action: "terminate", Time: b.now}) // a false alarm
	b.pass(3 * time.Minute)
	if b.m.Alive() != 1 || !contains(durable(b), "1-120") {
		t.Errorf("epoch %d alive, durable %v; want the run to go on", b.m.Alive(), durable(b))
	}
}

func TestLeaseEndsTheMachineAfterItsLastSave(t *testing.T) {
	b := newBed(t, slowUpload(2*time.Minute), func(o *agenttest.Options) { o.Config.Lease = time.Hour })
	b.steps = 1 << 20
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(30 * time.Minute)
	b.order(start(1, 1, "", "")) // said again
	if lease := b.last().Lease; !lease.After(t0) {
		t.Errorf("lease %s, want it said", lease)
	}
	b.pass(time.Hour - 2*time.Second)
	if !b.m.Asked().IsZero() {
		t.Fatal("asked to stop before the lease was over")
	}
	last := int64(b.now.Sub(t0)/time.Second) - 2
	b.pass(4 * time.Minute)
	gone, why := b.m.Gone()
	if !gone || why != "no contact for 1h0m0s" {
		t.Fatalf("gone %v (%q), want the machine ended for want of contact", gone, why)
	}
	all := b.store.Manifests("w")
	if got := all[len(all)-1].Step; got < last {
		t.Errorf("newest durable step %d, want %d or more: the machine ended before its save was durable", got, last)
	}
	one[events.WorkloadStopped](b)
}

func TestOnlyAWordThatWasNotHeardBeforeRenewsTheLease(t *testing.T) {
	b := newBed(t, func(o *agenttest.Options) { o.Config.Lease = 10 * time.Minute })
	said := events.OrderGiven{Machine: "m1", Order: fleet.Order{Number: 1}}
	hear := func() {
		if _, err := b.m.Order(b.ctx(), said); err != nil {
			t.Fatal(err)
		}
	}
	for range 6 {
		b.pass(9 * time.Minute)
		said.Attempt++ // as the decider says an order again
		hear()
	}
	if gone, why := b.m.Gone(); gone {
		t.Fatalf("the machine ended itself in contact: %s", why)
	}
	b.pass(6 * time.Minute)
	hear() // a server may hand out again what nobody said again
	b.pass(5 * time.Minute)
	if gone, _ := b.m.Gone(); !gone {
		t.Error("the machine lives on though nobody speaks to it")
	}
}

func TestLeaseCountsAcrossRestartsOfTheAgent(t *testing.T) {
	b := newBed(t, func(o *agenttest.Options) { o.Config.Lease = 10 * time.Minute })
	b.pass(time.Second)
	b.order(fleet.Order{Number: 1})
	for range 12 {
		b.pass(time.Minute)
		if gone, _ := b.m.Gone(); gone {
			return
		}
		b.m.Crash()
		b.words = 0
		b.order(fleet.Order{Number: 1}) // the same saying, handed out again
	}
	t.Error("an agent that restarts each minute keeps its machine for ever")
}

func TestGraceBoundsTheLastSave(t *testing.T) {
	b := newBed(t, slowUpload(time.Hour), func(o *agenttest.Options) {
		o.Config.Lease, o.Config.Grace = 30*time.Minute, 10*time.Minute
	})
	b.steps = 1 << 20
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(30*time.Minute + 9*time.Minute)
	if gone, _ := b.m.Gone(); gone {
		t.Fatal("the machine ended before its grace was over, with a save running")
	}
	b.pass(2 * time.Minute)
	if gone, _ := b.m.Gone(); !gone {
		t.Error("the machine lives after lease and grace: nothing bounds its bill")
	}
}

func TestHardEndSavesAndEndsBeforeIt(t *testing.T) {
	hard := t0.Add(2 * time.Hour)
	b := newBed(t, slowUpload(20*time.Second), func(o *agenttest.Options) { o.Config.HardEnd = hard })
	b.steps = 1 << 20
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(2*time.Hour - time.Second - 10*time.Minute - time.Second)
	if !b.m.Asked().IsZero() {
		t.Fatal("asked long before the hard end")
	}
	b.pass(2 * time.Minute)
	if gone, why := b.m.Gone(); !gone || why != "the machine's hard end is near" {
		t.Errorf("gone %v (%q), want the machine ended", gone, why)
	}
	if s := one[events.WorkloadStopped](b); s.Saved.Step < 6500 {
		t.Errorf("stopped with %+v, want the last checkpoint", s.Saved)
	}
	c := newBed(t, func(o *agenttest.Options) { o.Config.HardEnd = hard })
	c.pass(2*time.Hour - 5*time.Minute)
	if gone, _ := c.m.Gone(); !gone {
		t.Error("an idle machine waits for its hard end")
	}
}

func TestAgentCutOffGoesOnTrainingAndUploading(t *testing.T) {
	b := newBed(t, func(o *agenttest.Options) { o.Newest = nil })
	b.steps = 1 << 20
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(time.Hour)
	b.forget() // nothing of it arrived
	b.pass(time.Minute)
	if h := b.last(); h.Run.Step < 3600 || h.Saved.Step < 3540 || h.Run.Phase != fleet.Running {
		t.Errorf("heard %+v, want all that happened in the hour", h)
	}
}

func TestNewestOrderIsReadBeforeTheOneOnDiskIsBegun(t *testing.T) {
	var newest events.OrderGiven
	var err error
	b := newBed(t)
	b.opts.Newest = func(context.Context) (events.OrderGiven, bool, error) { return newest, newest.Order.Number > 0, err }
	takes := time.Minute
	b.opts.Restore = func(int64) time.Duration { return takes }
	b.m = agenttest.New(b.opts)
	if _, e := b.seed("w"); e != nil {
		t.Fatal(e)
	}
	b.pass(time.Second)
	b.order(start(1, 2, "1-1", ""))
	b.pass(10 * time.Second) // restoring
	b.m.Crash()
	newest = events.OrderGiven{Machine: "m1", Order: fleet.Order{Number: 2, Epoch: 2, Stop: true}}
	b.pass(2 * time.Minute)
	if len(b.log.Lives) != 0 {
		t.Error("an order that was taken back while the agent was away was begun")
	}
	b.m.Crash()
	err, takes = errors.New("nats is away"), 0
	b.order(start(3, 3, "1-1", ""))
	b.m.Crash()
	b.pass(20 * time.Second)
	if b.m.Alive() != 0 {
		t.Error("began before it was known whether there is a newer order")
	}
	b.pass(2 * time.Minute)
	if b.m.Alive() != 3 {
		t.Error("an agent cut off waits for ever for a newer order")
	}
}
