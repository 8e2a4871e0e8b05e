package natstest_test

import (
	"context"
	"testing"
	"time"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/fn"
	live "lowtide/shared/fn/jetstream"
)

func TestAnHourPassesInABubble(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		nc, _ := natstest.Connect(t, s)
		h, err := live.New(nc, live.Options{})
		if err != nil {
			t.Fatal(err)
		}
		heard := make(chan fn.Delivery, 10)
		f := fn.New("hear", fn.Hear(func(ctx context.Context, _ events.ClockTicked) ([]events.Event, error) {
			heard <- fn.From(ctx)
			return nil, nil
		}))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.Serve(ctx, f) }()
		start := time.Now()
		soon := events.New("f", "test", start, events.ClockTicked{What: "now"})
		later := events.New("f", "test", start, events.ClockTicked{What: "wake"})
		later.At = start.Add(time.Hour + 300*time.Millisecond)
		if err := h.Say(ctx, soon, later); err != nil {
			t.Fatal(err)
		}
		d := <-heard
		if got := d.At.Sub(start); got > time.Second {
			t.Errorf("the first came after %v", got)
		}
		d = <-heard
		if got := d.At.Sub(start); got < time.Hour+300*time.Millisecond || got > time.Hour+2*time.Second {
			t.Errorf("the alarm came after %v, want an hour and 300 ms", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
