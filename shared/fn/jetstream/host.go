// Package jetstream is the host on JetStream: it runs functions on durable consumers.
//
// It promises that a message is acknowledged only after its handler succeeded and all that it said is stored; that a
// fold sees its messages in stream order, one batch at a time, also when several hosts serve it or one died with a
// batch in hand; that what cannot be read or handled goes to the dead letters with its bytes and the reason; and that
// it goes on by itself after the server was away or a consumer was deleted.
// Delivery is at least once: what must happen once is the function's to know, by the delivery's position.
// It is the one place where errors of functions are logged.
package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

// Options of a host. The zero value serves all fleets in wall time.
type Options struct {
	Clock fn.Clock      // maps the stream's times and all delays
	Fleet string        // serve this fleet alone, on consumers of its own
	Alone bool          // nobody else serves these functions: what a process before this one had in hand is taken at once
	Grace time.Duration // how long a call may go on after its host was told to stop; 0: one second
	Log   *slog.Logger  // nil: slog.Default()
}

// Host runs functions. New makes it; it may serve several times, also at once.
type Host struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	opts   Options
	counts counts

	mu   sync.Mutex
	back chan struct{} // closed and replaced when the connection comes back
}

type counts struct {
	handled, failed, dead, published, duplicates, redelivered atomic.Uint64
}

// New makes a host on a connection (bus.Options). The streams must be there (bus.Setup).
func New(nc *nats.Conn, o Options) (*Host, error) {
	js, err := bus.JetStream(nc)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Grace == 0 {
		o.Grace = time.Second
	}
	return &Host{nc: nc, js: js, opts: o, back: make(chan struct{})}, nil
}

// Serve runs functions until ctx ends, and returns nil when all their calls have. It returns an error at once if the server
// or a consumer is not as it must be; then nothing runs.
func (h *Host) Serve(ctx context.Context, functions ...fn.Function) error {
	if err := store.Guard(ctx, h.nc); err != nil {
		return unless(ctx, err)
	}
	workers := make([]*worker, len(functions))
	for i, f := range functions {
		w, err := h.worker(f)
		if err == nil {
			err = w.ensure(ctx)
		}
		if err != nil {
			return unless(ctx, fmt.Errorf("serve %s: %w", f.Name, err))
		}
		workers[i] = w
	}
	if h.opts.Alone {
		if err := reclaim(ctx, workers); err != nil {
			return unless(ctx, err)
		}
	}
	changed := h.nc.StatusChanged(nats.CONNECTED)
	defer h.nc.RemoveStatusListener(changed)
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() { w.run(ctx) })
		if w.f.Tick != nil {
			all.Go(func() { w.ticks(ctx) })
		}
		if w.f.Beside != nil {
			all.Go(func() { w.f.Beside(ctx) })
		}
	}
	for {
		select {
		case <-ctx.Done():
			all.Wait()
			return nil
		case <-changed:
			h.wakeAll()
		}
	}
}

// Forget deletes a function's consumer and with it its position: for a function that will never be served again.
func (h *Host) Forget(ctx context.Context, f fn.Function) error {
	w, err := h.worker(f)
	if err != nil {
		return err
	}
	if err := h.js.DeleteConsumer(ctx, w.stream, w.cfg.Durable); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("forget %s: %w", f.Name, err)
	}
	return nil
}

// Say publishes events and returns when all are stored; it is an fn.Say. At is in lowtide's time.
func (h *Host) Say(ctx context.Context, said ...events.Event) error {
	if len(said) == 0 {
		return nil
	}
	said = slices.Clone(said) // the caller's stay as they are
	for i := range said {
		if !said[i].At.IsZero() {
			said[i].At = h.opts.Clock.Wall(said[i].At)
		}
	}
	p, err := bus.Publish(ctx, h.js, said...)
	h.counts.published.Add(uint64(p.Stored))
	h.counts.duplicates.Add(uint64(p.Duplicates))
	return err
}

// Last is the newest event of a fleet, kind and key, which may be a wildcard, from the stream's leader; bus.ErrNone if
// there is none.
func (h *Host) Last(ctx context.Context, fleet string, k events.Kind, key string) (fn.Delivery, error) {
	s, err := bus.Last(ctx, h.js, bus.StreamOf(k), bus.Subject(fleet, k, key))
	if err != nil {
		return fn.Delivery{}, err
	}
	return fn.Delivery{Event: s.Event, Stream: s.Stream, Seq: s.Seq, At: h.opts.Clock.Of(s.At), Attempt: 1}, nil
}

// Counts is what the host did since New.
func (h *Host) Counts() fn.Counts {
	c := &h.counts
	return fn.Counts{
		Handled: c.handled.Load(), Failed: c.failed.Load(), Dead: c.dead.Load(),
		Published: c.published.Load(), Duplicates: c.duplicates.Load(), Redelivered: c.redelivered.Load(),
	}
}

// unless makes an error that comes of being told to stop none.
func unless(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// reconnected is closed when the connection next comes back.
func (h *Host) reconnected() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.back
}

func (h *Host) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.back)
	h.back = make(chan struct{})
}

// real is how long d of lowtide's time is on the wall, and never so short that a failure spins.
func (h *Host) real(d time.Duration) time.Duration {
	return max(h.opts.Clock.Real(d), 20*time.Millisecond)
}

// passing says that an error tells about the world, not about the message.
func passing(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, context.Canceled) || errors.Is(err, fn.ErrPassing) || bus.Unanswered(err)
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
