package intake

import (
	"context"
	"errors"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
)

// Function reads the workload files that users' rules ask for, as it reads people's: what cannot be taken is refused with
// the reason.
func Function() fn.Function { return fn.New("intake", fn.Hear(asked)) }

func asked(ctx context.Context, a events.WorkloadAsked) ([]events.Event, error) {
	d := fn.From(ctx)
	var fact events.Fact
	spec, err := AskedFor(a, d.At)
	if err != nil {
		fact = events.WorkloadRefused{Workload: a.Name, Why: a.By + ": " + err.Error()}
	} else {
		fact = events.WorkloadSubmitted{Spec: spec}
	}
	e := events.New(d.Event.Fleet, "intake", d.At, fact)
	e.Dry = d.Event.Dry
	return []events.Event{e}, nil
}

// AskedFor is the workload of a file under the name that was asked for, at that budget or the file's own, whichever is less.
func AskedFor(a events.WorkloadAsked, now time.Time) (fleet.Spec, error) {
	var f file
	if err := check(a.File); err != nil {
		return fleet.Spec{}, err
	}
	if err := decode(a.File, &f); err != nil {
		return fleet.Spec{}, err
	}
	if f.Workdir != "" {
		return fleet.Spec{}, field("workdir", errors.New("a rule cannot bring a directory along; name an image, or submit the file yourself"))
	}
	f.Name = a.Name
	s, err := f.spec(now)
	ask := Asked{Spec: s, border: f.Border}
	if err == nil {
		err = ask.At("") // which bucket it goes to is not known here: outside, unless the file says china
	}
	if s = ask.Spec; err != nil {
		return s, err
	}
	most, bounded := a.Budget.Get()
	own, given := s.Budget.Get()
	if bounded && (!given || own.Amount.GreaterThan(most.Amount)) {
		s.Budget = a.Budget
	}
	return s, nil
}
