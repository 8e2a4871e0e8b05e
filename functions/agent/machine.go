package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// outlived is how long after an announced end a machine that still runs is taken to go on.
const outlived = 30 * time.Second

// watch asks for the cloud's own notice, and says it at once.
func (a *Agent) watch() {
	if a.deps.Watch == nil || a.work.busy("watch") || a.now.Before(a.pollAt) {
		return
	}
	a.pollAt = a.now.Add(a.cfg.Poll)
	a.work.begin("watch", func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		n, found, err := a.deps.Watch.Look(ctx)
		return func() {
			if err != nil {
				a.trouble = errors.Join(a.trouble, fmt.Errorf("ask for notices: %w", err))
			} else if found {
				a.noticed(n)
			}
		}
	})
}

// noticed keeps and says a notice, once for each that differs.
func (a *Agent) noticed(n Notice) {
	if n.Action == a.memo.Notice.Action && n.Time.Equal(a.memo.Notice.Time) {
		return
	}
	a.memo.Notice = n
	a.dirty = true
	a.sayNotice()
}

// doom is when this machine will be taken; zero: nobody said so, or it has outlived that.
func (a *Agent) doom() time.Time {
	t := a.memo.Notice.Time
	if t.IsZero() || a.now.After(t.Add(outlived)) {
		return time.Time{}
	}
	return t
}

// spoken notes a word from the decider, for the lease. Only an order counts that was not heard before: NATS may live on
// without anybody behind it, and hands out again what was not acknowledged.
func (a *Agent) spoken(given events.OrderGiven) {
	w, had := word{given.Order.Number, given.Attempt}, a.memo.Word
	if w.Number < had.Number || w.Number == had.Number && w.Attempt <= had.Attempt {
		return
	}
	a.memo.Word, a.heardNow = w, true
	if !a.now.IsZero() {
		a.touch()
	}
}

// touch begins the lease anew, if somebody was heard.
func (a *Agent) touch() {
	if a.heardNow {
		a.heardNow, a.memo.Contact = false, a.now
	}
	a.vow()
}

// lease is when the machine ends itself unless somebody is heard.
func (a *Agent) lease() time.Time {
	last := a.memo.Contact
	if last.Before(a.memo.Since) {
		last = a.memo.Since
	}
	return last.Add(a.cfg.Lease)
}

// limit says why this machine must end now, and until when there is time to save.
func (a *Agent) limit() (by time.Time, why string) {
	if hard := a.cfg.HardEnd; !hard.IsZero() && !a.now.Before(hard.Add(-a.cfg.Grace)) {
		return hard.Add(-a.cfg.Reserve), hardEndNear
	}
	if lease := a.lease(); !a.now.Before(lease) {
		return lease.Add(a.cfg.Grace), noContact(a.cfg.Lease)
	}
	return time.Time{}, ""
}

// ending says that the machine ends itself: nothing is begun any more.
func (a *Agent) ending() bool {
	_, why := a.limit()
	return why != ""
}

// off ends the machine when its time has come and its run is over, or the grace is. What is left to say goes out
// with the call before.
func (a *Agent) off(ctx context.Context) error {
	by, why := a.limit()
	if why == "" {
		a.offAt = time.Time{}
		return nil
	}
	r := &a.memo.Run
	settled := !r.lives() && !a.work.busy("save")
	if !settled && a.now.Before(by) {
		return nil
	}
	if a.offAt.IsZero() {
		a.offAt = a.now.Add(time.Second)
		a.dirty = true
		return nil
	}
	if a.now.Before(a.offAt) {
		return nil
	}
	a.offAt = a.now.Add(offEvery) // if it does not work, again
	ctx, cancel := context.WithTimeout(ctx, offEvery)
	defer cancel()
	if err := a.deps.Power.Off(ctx, why); err != nil {
		a.trouble = errors.Join(a.trouble, fmt.Errorf("end this machine: %w", err))
	}
	return nil
}

// bench runs the benchmark that is ordered, once more if it could not run, and says that others must wait for it.
func (a *Agent) bench() (waits bool) {
	b := a.memo.Order.Benchmark
	if b == nil || a.memo.Bench != nil && a.memo.Bench.Nonce == b.Nonce {
		return false
	}
	if a.work.busy("benchmark") || a.ending() || !a.mayBegin() {
		return true
	}
	want := *b
	a.dirty = true
	a.work.begin("benchmark", func(ctx context.Context) func() {
		got, err := a.deps.Bench.Run(ctx, a.cfg.Machine, want)
		if (err != nil || got.Error != "") && ctx.Err() == nil {
			// A driver that was still coming up is not a bad machine: whoever judges may take the second error as the last.
			got, err = a.deps.Bench.Run(ctx, a.cfg.Machine, want)
		}
		if err == nil {
			a.check(ctx, want.Check, &got)
		}
		return func() { a.proved(want, got, err) }
	})
	return true
}

// proved keeps and says a result; a benchmark that could not run is a result too.
func (a *Agent) proved(b fleet.Benchmark, got events.BenchmarkFinished, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	if err != nil {
		got.Error = clip(a.mask(err.Error()))
	}
	if got.Nonce != b.Nonce && got.Nonce != "" && got.Error == "" {
		// An answer to another question proves nothing; verify must not take it for one to this.
		got = events.BenchmarkFinished{Error: clip(fmt.Sprintf("the runner answered nonce %q", got.Nonce))}
	}
	got.Machine, got.Nonce = a.cfg.Machine, b.Nonce
	if got.Suite == "" {
		got.Suite = b.Suite
	}
	a.memo.Bench = &got
	a.dirty = true
	a.say(got)
}

// prune carries the order to prune out, once.
func (a *Agent) prune() {
	o := a.memo.Order
	if o.Prune == nil || a.memo.Pruned == o.Number || a.work.busy("prune") || a.now.Before(a.pruneAt) || !a.mayBegin() {
		return
	}
	a.work.begin("prune", func(ctx context.Context) func() {
		err := a.deps.Saver.Prune(ctx, o.Epoch, *o.Prune)
		return func() {
			if err != nil && !errors.Is(err, ErrStale) {
				a.pruneAt = a.now.Add(time.Minute)
				a.trouble = errors.Join(a.trouble, fmt.Errorf("prune %s: %w", o.Prune.Workload, err))
				return
			}
			a.memo.Pruned = o.Number
		}
	})
}
