package agent_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent/agenttest"
	"lowtide/shared/fleet"
)

// decider gives one machine its orders as rebalance does: each again every five seconds, until what it hears says
// that it was done. It knows only what was said.
type decider struct {
	b      *bed
	stage  int
	saidAt time.Time
	heard  events.MachineHeard
	proof  bool
	saved  fleet.Manifest
	saves  int
}

func (d *decider) order() fleet.Order {
	switch d.stage {
	case 0:
		return fleet.Order{Number: 1, Benchmark: &fleet.Benchmark{Nonce: "n1", Suite: "quick"}}
	case 1:
		return start(2, 1, "", "")
	case 2:
		o := start(3, 1, "", "")
		o.Save = &fleet.Save{ID: "s1"}
		return o
	case 3:
		o := start(4, 1, "", "")
		o.Save, o.Stop = &fleet.Save{ID: "s2"}, true
		return o
	default:
		return start(5, 2, d.saved.ID, "")
	}
}

func (d *decider) hear(all []events.Event) {
	for _, e := range all {
		switch f := e.Data.(type) {
		case events.BenchmarkFinished:
			d.proof = d.proof || f.Nonce == "n1"
		case events.MachineHeard:
			if f.Beat > d.heard.Beat {
				d.heard = f
			}
		case events.CheckpointSaved:
			if f.Save == "s1" {
				d.saves++
			}
		}
	}
	run := d.heard.Run
	switch {
	case d.stage == 0 && d.proof,
		d.stage == 1 && run.Epoch == 1 && run.Step >= 80,
		d.stage == 2 && d.saves > 0:
		d.next()
	case d.stage == 3 && run.Epoch == 1 && run.Phase.Over():
		d.saved = d.heard.Saved
		d.next()
	}
}

func (d *decider) next() { d.stage, d.saidAt = d.stage+1, time.Time{} }

func (d *decider) tick() (done bool) {
	b := d.b
	n := len(b.said)
	b.now = b.now.Add(time.Second)
	b.tick()
	if b.now.Sub(d.saidAt) >= 5*time.Second {
		d.saidAt = b.now
		b.order(d.order())
	}
	d.hear(b.said[n:])
	return d.stage == 4 && d.heard.Run.Epoch == 2 && d.heard.Run.Phase.Over()
}

// play runs the decider to its end, at most half an hour.
func (d *decider) play(t *testing.T) {
	t.Helper()
	for range 1800 {
		if d.tick() {
			return
		}
	}
	t.Fatalf("stuck in stage %d, heard %+v\n%s", d.stage, d.heard, d.b.story())
}

func (d *decider) check(t *testing.T) {
	t.Helper()
	b := d.b
	b.noOverlap()
	b.freshIDs()
	if d.heard.Run.Phase != fleet.RunFinished || d.heard.Result != whole(b.steps) {
		t.Errorf("ended %s with %q, want finished with %q\n%s", d.heard.Run.Phase, d.heard.Result, whole(b.steps), b.story())
	}
	if !contains(durable(b), d.heard.Saved.ID) || d.heard.Saved.Step != b.steps {
		t.Errorf("saved %+v, durable %v; want the end durable", d.heard.Saved, durable(b))
	}
	if d.saved.Step < 80 || !contains(durable(b), d.saved.ID) {
		t.Errorf("epoch 1 ended with %+v, want a durable checkpoint of its end", d.saved)
	}
	if n := b.log.Executed("w"); int64(n) != b.steps {
		t.Errorf("%d steps were executed, want %d: a planned move loses none\n%s", n, b.steps, b.story())
	}
	if len(b.log.Lives) != 2 {
		t.Errorf("%d processes, want 2", len(b.log.Lives))
	}
}

func crashBed(t *testing.T, fault func(string) bool) *bed {
	b := newBed(t, slowUpload(3*time.Second), func(o *agenttest.Options) {
		o.Fault = fault
		o.Setup = 5 * time.Second
		o.Proof = 20 * time.Second
		o.Restore = func(int64) time.Duration { return 4 * time.Second }
	})
	b.steps = 200
	return b
}

func TestAgentMayDieAtAnyPoint(t *testing.T) {
	total := 0
	d := &decider{b: crashBed(t, func(string) bool { total++; return false })}
	d.play(t)
	d.check(t)
	if total < 60 {
		t.Fatalf("only %d points to die at: the scenario is too poor", total)
	}
	for at := 1; at <= total; at++ {
		n, died := 0, ""
		d := &decider{b: crashBed(t, func(p string) bool {
			n++
			if n == at {
				died = p
			}
			return n == at
		})}
		d.play(t)
		d.check(t)
		if died == "" {
			t.Errorf("point %d of %d was not reached", at, total)
		}
		if t.Failed() {
			t.Fatalf("died at point %d, %s", at, died)
		}
	}
	t.Logf("died at %d points", total)
}

func TestAgentMayDieAgainAndAgain(t *testing.T) {
	crashes := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		d := &decider{b: crashBed(t, func(string) bool {
			if r.IntN(12) == 0 {
				crashes++
				return true
			}
			return false
		})}
		d.play(t)
		d.check(t)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if crashes < 300 {
		t.Errorf("only %d crashes in 60 rounds", crashes)
	}
	t.Logf("%d crashes", crashes)
}
