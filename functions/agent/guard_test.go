package agent_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/shared/fleet"
)

// stuck is a machine whose disk does not answer any more once it hangs: whoever looks at its workload waits for ever.
type stuck struct {
	agent.Runner
	hangs chan struct{} // closed when it begins to
	over  chan struct{} // closed by the test's end
	off   []string
	at    time.Time
}

func (s *stuck) Status(context.Context) (agent.Status, error) {
	select {
	case <-s.hangs:
		<-s.over
	default:
	}
	return agent.Status{}, nil
}

func (s *stuck) Off(_ context.Context, why string) error {
	s.off, s.at = append(s.off, why), time.Now()
	return nil
}

func TestAMachineWhoseAgentHangsIsEndedAllTheSame(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  agent.Config
		ends time.Duration // at the latest after the beginning
		why  string
	}{
		"lease":    {agent.Config{Lease: time.Hour}, time.Hour + 30*time.Minute, "no contact for 1h0m0s"},
		"hard end": {agent.Config{Lease: 100 * time.Hour, HardEnd: time.Date(2000, 1, 1, 3, 0, 0, 0, time.UTC)}, 3*time.Hour + 15*time.Minute, "hard end"},
	} {
		for _, first := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) { // its time begins with the year 2000
				s := &stuck{hangs: make(chan struct{}), over: make(chan struct{})}
				c.cfg.Machine, c.cfg.Fleet = "m1", "f"
				dir := agent.Dir(t.TempDir())
				a, err := agent.New(c.cfg, agent.Deps{Runner: s, Saver: agent.Checkpoints{}, Bench: agent.Proof{}, Power: s, Disk: dir})
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				defer close(s.over)
				if first { // it hangs from its first look on
					close(s.hangs)
				}
				begun := time.Now()
				tick := time.NewTicker(time.Second)
				defer tick.Stop()
				var busy bool
				done := make(chan struct{}, 1)
				for len(s.off) == 0 && time.Since(begun) < 10*time.Hour {
					if !first && time.Since(begun) == 10*time.Minute {
						if _, err := a.Order(t.Context(), events.OrderGiven{Machine: "m1", Order: fleet.Order{Number: 1}}); err != nil {
							t.Fatal(err)
						}
						close(s.hangs)
					}
					if !busy {
						busy = true
						go func() { _, _ = a.Tick(context.Background(), time.Now()); done <- struct{}{} }()
					}
					if err := a.Guard(t.Context(), time.Now()); err != nil {
						t.Fatal(err)
					}
					<-tick.C
					select {
					case <-done:
						busy = false
					default:
					}
				}
				if len(s.off) != 1 || s.at.Sub(begun) > c.ends || !strings.Contains(s.off[0], c.why) {
					t.Errorf("%s, from the first look %v: ended %q after %s, want once within %s", name, first, s.off, s.at.Sub(begun), c.ends)
				}
			})
		}
	}
}
