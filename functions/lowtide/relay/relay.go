// Package relay stands beside NATS and hands messages on to functions that live elsewhere: it invokes each synchronously,
// and a message is done when its function has answered for it.
//
// It promises that only JetStream retries; that an answer which does not name a message leaves it open; that a fold gets
// its messages in stream order, one batch at a time, also where several relays share the work (shared/fn/jetstream
// holds that); that messages stay alive while their function works; and that a launch which expired before any
// function was given it is dropped with plan.failed. No checkpoint, no stop and no end is ever dropped for being late.
// It decides nothing and reads no state.
package relay

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	host "lowtide/shared/fn/jetstream"
	"lowtide/shared/fn/lambda"
)

// Invoke calls a function synchronously and returns its answer; a function that failed is an error.
type Invoke func(ctx context.Context, function string, body []byte) ([]byte, error)

// Route is one function elsewhere.
type Route struct {
	fn.Function        // Handle is the relay's
	Target      string // the function that is invoked, where it is not of this name: a program may hold several
	Concurrency int    // invocations at once; a fold has one, whatever stands here
	// Late says of a delivery that it must not be handed on any more, and what follows; nil: none is too late.
	Late func(d fn.Delivery, now time.Time) (said events.Fact, late bool)
}

// Goal is the name of what is invoked.
func (r Route) Goal() string { return cmp.Or(r.Target, r.Name) }

// Options of a relay.
type Options struct {
	Fleet string
	Clock fn.Clock
	Grace time.Duration // how long invocations may go on after a stop; 0: 25 s
	Log   *slog.Logger
	Meter *Meter // nil: nothing is counted
}

// Relay hands messages on. New makes it.
type Relay struct {
	nc     *nats.Conn
	invoke Invoke
	routes []Route
	opts   Options
}

// New makes a relay of routes.
func New(nc *nats.Conn, invoke Invoke, routes []Route, o Options) *Relay {
	if o.Grace == 0 {
		o.Grace = 25 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Meter == nil {
		o.Meter = NewMeter()
	}
	return &Relay{nc, invoke, routes, o}
}

// Serve hands messages on until ctx ends, and returns when the invocations in flight have answered or Grace is over.
func (r *Relay) Serve(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	errs := make(chan error, len(r.routes))
	for _, route := range r.routes {
		h, err := host.New(r.nc, host.Options{Clock: r.opts.Clock, Fleet: r.opts.Fleet, Grace: r.opts.Grace, Log: r.opts.Log})
		if err != nil {
			return err
		}
		r.opts.Meter.watch(route.Name, route.Key, h.Counts)
		route.Handle = r.handle(route)
		copies := max(1, route.Concurrency)
		if route.Folds {
			copies = 1
		}
		all.Go(func() {
			if err := h.Serve(ctx, slices.Repeat([]fn.Function{route.Function}, copies)...); err != nil {
				errs <- err
				stop() // one that cannot run must not look as if it did
			}
		})
	}
	all.Wait()
	close(errs)
	var found []error
	for err := range errs {
		found = append(found, err)
	}
	return errors.Join(found...)
}

// handle hands one batch on.
func (r *Relay) handle(route Route) fn.Handler {
	return func(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
		said, batch := r.dropLate(route, batch)
		failed := fn.Failures{}
		for _, part := range split(batch) {
			r.hand(ctx, route, part, failed)
			if route.Folds && len(failed) > 0 {
				return nil, failed[slices.Min(slices.Collect(maps.Keys(failed)))] // what was folded before is skipped by its position
			}
		}
		if len(failed) > 0 {
			return said, failed
		}
		return said, nil
	}
}

// dropLate takes out what must not be handed on.
func (r *Relay) dropLate(route Route, batch []fn.Delivery) (said []events.Event, rest []fn.Delivery) {
	if route.Late == nil {
		return nil, batch
	}
	now := r.opts.Clock.Now()
	for _, d := range batch {
		fact, late := route.Late(d, now)
		if !late {
			rest = append(rest, d)
			continue
		}
		r.opts.Meter.late(route.Name)
		r.opts.Log.Warn("too late, dropped", "function", route.Name, "subject", d.Event.Subject(), "seq", d.Seq)
		e := events.New(d.Event.Fleet, "relay", d.At, fact)
		e.Dry = d.Event.Dry
		said = append(said, e)
	}
	return said, rest
}

// LateLaunch is Route.Late of plans: a launch that expired while nobody had been given it has surely bought nothing. One
// that was said or delivered before may have, so its function must look.
func LateLaunch(d fn.Delivery, now time.Time) (events.Fact, bool) {
	e, ok := d.Event.Data.(events.PlanMade)
	if !ok || e.Plan.Action != fleet.Launch || e.Attempt > 1 || d.Attempt > 1 || e.Plan.Expires.IsZero() || now.Before(e.Plan.Expires) {
		return nil, false
	}
	why := fmt.Sprintf("late: it expired at %s, before any function was given it", e.Plan.Expires.Format(time.RFC3339))
	return events.PlanFailed{Plan: e.Plan.ID, Machine: e.Plan.Machine, Action: e.Plan.Action, Why: why}, true
}

// split cuts a batch so that each part fits into one invocation.
func split(batch []fn.Delivery) (parts [][]fn.Delivery) {
	size := 0
	for _, d := range batch {
		n := len(d.Body) + 512
		if len(parts) == 0 || size+n > lambda.MaxBatch {
			parts, size = append(parts, nil), 0
		}
		size += n
		parts[len(parts)-1] = append(parts[len(parts)-1], d)
	}
	return parts
}

// hand invokes once. What the answer does not name has failed.
func (r *Relay) hand(ctx context.Context, route Route, part []fn.Delivery, failed fn.Failures) {
	began := time.Now()
	answer, err := r.ask(ctx, route.Goal(), route.Name, part)
	r.opts.Meter.invoked(route.Name, len(part), time.Since(began), err)
	open := map[uint64]bool{}
	for _, d := range part {
		open[d.Seq] = true
	}
	if err != nil {
		for seq := range open {
			failed[seq] = err
		}
		return
	}
	for _, seq := range answer.Handled {
		delete(open, seq)
	}
	for _, f := range answer.Failed {
		if open[f.Seq] {
			delete(open, f.Seq)
			failed[f.Seq] = f.Err()
		}
	}
	for seq := range open {
		failed[seq] = errors.New("the function did not answer for it")
	}
}

// ask makes one invocation.
func (r *Relay) ask(ctx context.Context, target, function string, part []fn.Delivery) (lambda.Answer, error) {
	body, err := r.encode(function, part)
	if err != nil {
		return lambda.Answer{}, err
	}
	raw, err := r.invoke(ctx, target, body)
	if err != nil {
		return lambda.Answer{}, fmt.Errorf("invoke %s: %w", target, err)
	}
	answer, err := read(raw)
	if err != nil {
		return lambda.Answer{}, fmt.Errorf("invoke %s: %w", function, err)
	}
	return answer, nil
}

func (r *Relay) encode(function string, part []fn.Delivery) ([]byte, error) {
	in := lambda.Batch{Lowtide: lambda.Version, Function: function}
	for _, d := range part {
		in.Messages = append(in.Messages, lambda.Message{
			Stream: d.Stream, Seq: d.Seq, At: r.opts.Clock.Wall(d.At), Attempt: d.Attempt, Trace: fn.Span(d.Event.Trace), Body: d.Body,
		})
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(in); err != nil {
		return nil, fmt.Errorf("hand on to %s: %w", function, err)
	}
	return b.Bytes(), nil
}

// read takes nothing for an answer but an answer: an emulator, or something between, may say 200 for a failure.
func read(raw []byte) (lambda.Answer, error) {
	var got struct {
		lambda.Answer
		Handled *[]uint64 `json:"handled"`
		Type    string    `json:"errorType"`
		Message string    `json:"errorMessage"`
	}
	if err := json.Unmarshal(raw, &got); err != nil || got.Handled == nil {
		if len(raw) > 300 {
			raw = raw[:300]
		}
		return lambda.Answer{}, fmt.Errorf("no answer but %q", raw)
	}
	got.Answer.Handled = *got.Handled
	return got.Answer, nil
}
