package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// guard ends the machine when the agent itself cannot: its Tick may hang in a disk that does not answer, and holds the
// lock then. So it shares nothing with it but a value that is replaced whole.
type guard struct {
	vow   atomic.Pointer[vow]
	retry time.Time
}

// vow is when the agent will have ended the machine, as far as it knows.
type vow struct {
	lease time.Time // begins the last grace; zero: the agent has not begun
	hard  time.Time // zero: none
}

const (
	offEvery    = 10 * time.Second // between two tries to end the machine; none takes longer
	guardMargin = time.Minute      // beyond the grace: until then it is the agent's to act
)

const hardEndNear = "the machine's hard end is near"

func noContact(lease time.Duration) string { return fmt.Sprintf("no contact for %s", lease) }

// vow tells the guard what holds now.
func (a *Agent) vow() {
	v := vow{hard: a.cfg.HardEnd}
	if !a.memo.Since.IsZero() {
		v.lease = a.lease()
	}
	a.guard.vow.Store(&v)
}

// Guard ends the machine if its lease or its hard end has passed by more than the grace, whatever Tick and Order do
// meanwhile. The host calls it about once a second of lowtide's time from one goroutine of its own; now is lowtide's time.
func (a *Agent) Guard(ctx context.Context, now time.Time) error {
	v := a.guard.vow.Load()
	if v.lease.IsZero() { // not even the first Tick came to its end: the lease begins here
		begun := vow{lease: now.Add(a.cfg.Lease), hard: v.hard}
		a.guard.vow.CompareAndSwap(v, &begun)
		return nil
	}
	why, wait := "", a.cfg.Grace+guardMargin
	switch {
	case !now.Before(v.lease.Add(wait)):
		why = noContact(a.cfg.Lease)
	case !v.hard.IsZero() && !now.Before(v.hard.Add(wait)):
		why = hardEndNear
	}
	if why == "" || now.Before(a.guard.retry) {
		return nil
	}
	a.guard.retry = now.Add(offEvery)
	ctx, cancel := context.WithTimeout(ctx, offEvery)
	defer cancel()
	if err := a.deps.Power.Off(ctx, why+", and the agent hangs"); err != nil {
		return fmt.Errorf("end this machine, whose agent hangs: %w", err)
	}
	return nil
}
