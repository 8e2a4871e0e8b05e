package main

import (
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/shared/provider/fake"
)

func TestAMachineLivesByTheDecidersWordAndNotByNATS(t *testing.T) {
	const lease = 40 * time.Minute
	set := func(b *bed) {
		b.policy.Lease = lease
		b.setup = func(r *rented) { r.config = func(c *agent.Config) { c.Lease = lease } }
	}
	bubble(t, fake.Config{Traces: zones([]float64{0.9})}, func(t *testing.T, b *bed) {
		s := spec("train", 1, 4000) // eleven hours
		b.say(events.WorkloadSubmitted{Spec: s})
		on := b.runs(s.Name, 1, 10, 30*time.Minute)
		b.pass(3 * lease)
		gone := func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			gone, _ := on.m.Gone()
			return gone
		}
		if gone() {
			t.Fatalf("the machine ended itself while the decider lived\n%s", b.story())
		}
		b.stop() // every function; the server and the machine live on
		b.until(lease+30*time.Minute, "the end of a machine to which nobody speaks, though NATS lives", gone)
		if saved := b.saved.Manifests(s.Name); len(saved) == 0 || saved[len(saved)-1].Step < 700 {
			t.Errorf("durable %v, want its last checkpoint", saved)
		}
	}, set)
}
