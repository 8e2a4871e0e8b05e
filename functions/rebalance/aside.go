package rebalance

import (
	"context"
	"sync/atomic"

	"lowtide/shared/plan/pool"
)

// aside solves tables of expected costs beside the decider, so that no recovery waits for one: until it is there, plans
// go by a simple safe rule. Where nobody runs it (in memory, where a handler takes no time, and as a Lambda, which has
// no beside) tables are solved within the decision, which then depends on the state alone.
type aside struct {
	tables *pool.Tables
	cases  chan pool.Case
	runs   atomic.Bool
}

// Decide is a plan.Oracle.
func (a *aside) Decide(c pool.Case) pool.Decision {
	if !a.runs.Load() {
		return pool.Solving{Tables: a.tables}.Decide(c)
	}
	d := a.tables.Decide(c)
	if d.Cold {
		select {
		case a.cases <- c:
		default: // enough is asked for; the next look asks again
		}
	}
	return d
}

// run solves what is asked for, one case after the other, until ctx ends.
func (a *aside) run(ctx context.Context) {
	a.runs.Store(true)
	defer a.runs.Store(false)
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-a.cases:
			_ = a.tables.Warm(ctx, c) // ends early only with ctx
		}
	}
}
