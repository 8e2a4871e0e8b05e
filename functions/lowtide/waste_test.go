package main

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/shared/fleet"
	"lowtide/shared/provider/fake"
)

// sampled is what a driver's own samples say of a card with this much work, and of a machine that does nothing else.
func sampled(share *atomic.Uint64) func() agent.Reading {
	return func() agent.Reading {
		active := float64(share.Load()) / 100
		return agent.Reading{
			Source: "nvml", CPU: fleet.Known(0.01), Disk: fleet.Known(0.0), Network: fleet.Known(0.1),
			GPUs: []events.GPUUse{{
				UUID: "GPU-1", Active: fleet.Known(active), DRAM: fleet.Known(active / 2), Memory: fleet.Known(9000.0),
				Power: fleet.Known(60 + 200*active), PCIe: fleet.Known(0.0), Processes: fleet.Known(1.0),
			}},
		}
	}
}

func TestAnIdleGPUIsMeasuredWarnedOfSavedStoppedAndGoesOnOnDemand(t *testing.T) {
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		var share atomic.Uint64
		share.Store(90)
		b.setup = func(r *rented) { r.meter = sampled(&share) }
		job := spec("train", 11, 700)
		job.WhenIdle, job.IdleGrace = fleet.IdleStop, 10*time.Minute
		b.say(events.WorkloadSubmitted{Spec: job})
		first := b.runs("train", 1, 100, time.Hour)
		if n := len(all[events.WorkloadIdle](b)); n > 0 {
			t.Fatalf("a working GPU was called idle %d times", n)
		}
		share.Store(0)
		b.until(time.Hour, "the workload is paused and its machine ended", func() bool {
			return b.work("train").Phase == fleet.Paused && len(b.bill().Running()) == 0 && len(all[events.InstanceEnded](b)) > 0
		})
		warned := all[events.WorkloadWarned](b)
		if len(warned) == 0 || !strings.Contains(b.work("train").Why, "idle") {
			t.Fatalf("nobody was warned: %s\n%s", b.work("train").Why, b.story())
		}
		on := func(name string) bool { return name == first.name }
		if missing := b.inOrder(
			is(func(f events.WorkloadIdle) bool { return on(f.Machine) && f.Held }),
			is[events.WorkloadWarned](),
			is(func(f events.OrderGiven) bool { return on(f.Machine) && f.Order.Stop && f.Order.Save != nil }),
			is(func(f events.WorkloadStopped) bool { return on(f.Machine) && f.Saved.Step > 100 }),
			is(func(f events.InstanceEnded) bool { return on(f.Machine) }),
		); missing > 0 {
			t.Errorf("%d of the facts are missing or out of order:\n%s", missing, b.story())
		}
		if ended := b.bill()[0].Until; ended.Before(warned[0].At) {
			t.Errorf("ended at %s, before the grace was over at %s", ended, warned[0].At)
		}
		b.pass(2 * time.Hour)
		if n := len(b.bill().Running()); n > 0 {
			t.Fatalf("%d machines bill for a paused workload", n)
		}
		share.Store(90)
		b.say(events.WorkloadResumed{Workload: "train", By: "its owner"})
		b.finishes(job, 4*time.Hour)
		if lives := b.lives(); len(lives) != 2 || lives[1].From <= 100 {
			t.Errorf("lives %+v, want the second to go on from the checkpoint", lives)
		}
	})
}

func TestAnUnderusedGPUGivesWayToASmallerOneThatIsEnough(t *testing.T) {
	large, small := fake.V100, fake.Type{Name: "g4dn.xlarge", GPU: "T4", GPUs: 1, OnDemand: 0.9, Spot: 0.3, Speed: 0.25}
	large.Speed = 1
	bubble(t, fake.Config{Traces: zones(nil, nil), Types: []fake.Type{large, small}}, func(t *testing.T, b *bed) {
		var share atomic.Uint64
		share.Store(6)
		b.setup = func(r *rented) { r.meter = sampled(&share) }
		job := spec("train", 12, 1500)
		job.WhenIdle = fleet.IdleSmaller
		b.say(events.WorkloadSubmitted{Spec: job})
		first := b.runs("train", 1, 10, time.Hour)
		second := b.runs("train", 2, 520, 4*time.Hour)
		share.Store(60) // of the small one
		b.finishes(job, 12*time.Hour)
		types := map[string]string{}
		for _, r := range b.bill() {
			types[r.Name] = r.Offer.Type
		}
		if types[first.name] != large.Name || types[second.name] != small.Name {
			t.Errorf("ran on %v, want the large and then the small one\n%s", types, b.story())
		}
		if missing := b.inOrder(
			is(func(f events.WorkloadUnderused) bool { return f.Needs < 0.25 }),
			is(func(f events.WorkloadWarned) bool { return f.Action == fleet.IdleSmaller }),
			is(func(f events.PlanMade) bool { return f.Plan.Machine == second.name }),
			is(func(f events.WorkloadStopped) bool { return f.Machine == first.name && f.Saved.Step > 0 }),
			is(func(f events.WorkloadStarted) bool { return f.Machine == second.name && f.Step > 0 }),
			is[events.WorkloadFinished](),
		); missing > 0 {
			t.Errorf("%d of the facts are missing or out of order:\n%s", missing, b.story())
		}
	})
}

func TestWithOneBadMachineInFiveEveryWorkloadEndsOnVerifiedOnesWithinItsBudget(t *testing.T) {
	var hosts []fake.Host
	for i := range 15 {
		h := fake.Host{Name: fmt.Sprintf("host-%02d", i)}
		if i%5 == 1 {
			h.Throttle = 0.6
		}
		hosts = append(hosts, h)
	}
	bubble(t, fake.Config{Traces: zones(nil, nil), Hosts: hosts}, func(t *testing.T, b *bed) {
		budget := fleet.Dollars(4) // the worst case, all on demand, of half an hour's work and the longest start
		var jobs []fleet.Spec
		submit := func(n int) {
			for range n {
				j := spec(fmt.Sprintf("train-%d", len(jobs)), len(jobs), 120)
				j.Budget = fleet.Known(budget)
				jobs = append(jobs, j)
				b.say(events.WorkloadSubmitted{Spec: j})
			}
		}
		submit(6)
		for _, j := range jobs {
			b.finishes(j, 6*time.Hour)
		}
		submit(6) // the bad hosts are free again, and known
		for _, j := range jobs[6:] {
			b.finishes(j, 6*time.Hour)
		}
		bad, spent, names := map[string]int{}, map[string]fleet.Money{}, map[string]bool{}
		for _, r := range b.bill() {
			if r.Throttle > 0 {
				bad[r.Offer.Host]++
				names[r.Name] = true
			}
			spent[r.Labels.Workload] = spent[r.Labels.Workload].Add(r.Cost(b.clock.Now()))
		}
		for host, times := range bad {
			if times > 1 {
				t.Errorf("%s was bought from %d times", host, times)
			}
		}
		if len(bad) == 0 {
			t.Error("no bad machine was ever bought: the story shows nothing")
		}
		for _, l := range b.lives() {
			if names[l.Machine] {
				t.Errorf("%s ran on %s, which is bad", l.Workload, l.Machine)
			}
		}
		for _, j := range jobs {
			if spent[j.Name].Float() > budget.Float() {
				t.Errorf("%s cost %s, more than %s", j.Name, spent[j.Name], budget)
			}
		}
		rejected := all[events.InstanceRejected](b)
		if len(rejected) < len(bad) {
			t.Errorf("%d bad machines, %d rejections", len(bad), len(rejected))
		}
		var gate fleet.Money
		for _, j := range jobs {
			gate = gate.Add(b.work(j.Name).Proofs)
		}
		proofs := len(all[events.InstanceVerified](b)) + len(rejected)
		t.Logf("%d machines, %d of them bad; %d proofs cost %s, %.4f USD each", len(b.bill()), len(names), proofs, gate, gate.Float()/float64(max(proofs, 1)))
	})
}
