package jetstream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
)

// fragile is a server that fails when a consumer is to be made anew.
type fragile struct {
	jetstream.JetStream
	fails int
}

var errGone = errors.New("the server went away in between")

func (f *fragile) CreateOrUpdateConsumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if f.fails--; f.fails >= 0 {
		return nil, errGone
	}
	return f.JetStream.CreateOrUpdateConsumer(ctx, stream, cfg)
}

func TestAServerThatGoesWhileAConsumerIsMadeAnewIsWaitedFor(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	nc, js := natstest.Connect(t, s)
	h, err := New(nc, Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	heard := make(chan uint64, 1)
	w, err := h.worker(fn.Function{
		Name: "listener", Hears: []events.Kind{events.MachineHeard{}.Kind()},
		Handle: func(_ context.Context, ds []fn.Delivery) ([]events.Event, error) {
			heard <- ds[0].Event.Data.(events.MachineHeard).Beat
			return nil, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.ensure(ctx); err != nil {
		t.Fatal(err)
	}
	h.js = &fragile{JetStream: h.js, fails: 1}
	if err := w.ensure(ctx); !errors.Is(err, errGone) {
		t.Fatalf("ensure: %v", err)
	}
	if _, err := bus.Publish(ctx, js, events.New("f", "test", time.Time{}, events.MachineHeard{Machine: "m", Beat: 7})); err != nil {
		t.Fatal(err)
	}
	if err := w.next(ctx); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != 7 {
		t.Fatalf("heard beat %d", got)
	}
}
