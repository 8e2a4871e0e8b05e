// Package fn is the life of a message: a Function hears facts and returns facts, and a host does all the rest.
//
// A handler never publishes, acks, retries or logs. Its host decodes, calls it, publishes what it returns, and only
// then acks; an error means "again, later", and what cannot be read or handled goes to the dead letters with its
// bytes. The same Function value runs on the hosts: in memory with a virtual clock (package memory), on JetStream
// (package jetstream), as a Lambda.
// fn does not say what a function is for: nothing here knows a function's name.
package fn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lowtide/events"
)

// Delivery is one message as a host hands it over.
type Delivery struct {
	Event   events.Event
	Stream  string
	Seq     uint64    // position in the stream
	At      time.Time // when the stream stored it: the only time that decides
	Attempt int       // 1 for the first
	Body    []byte    // the event as it came, for whoever hands it on; nil where the host keeps no bytes
}

// Handler treats a batch of deliveries and returns the facts that follow. Returning an error handles none of them, unless
// it is Failures, which a function that does not fold may return.
type Handler func(ctx context.Context, batch []Delivery) ([]events.Event, error)

// Say publishes events outside of a delivery, for functions that sense something of themselves. It returns when all
// are stored, and retries under the same ids until ctx ends.
type Say func(ctx context.Context, said ...events.Event) error

// Function is what lowtide does with some kinds of facts. New and Fold make it.
type Function struct {
	Name   string
	Hears  []events.Kind
	Key    string        // narrows what is heard to this key; "" hears all. It may end in ">".
	Batch  int           // most deliveries in one call; 1 unless Fold made it, or Handle tells failures apart (Failures)
	Folds  bool          // in stream order, one batch at a time, also across hosts: Fold made it
	Slow   time.Duration // longest that one call may take; the host keeps the message alive so long. 0: 15 s
	Handle Handler
	// Tick, when set, is called with the time about each Every, besides the deliveries and never beside one.
	Tick  func(ctx context.Context, now time.Time) ([]events.Event, error)
	Every time.Duration
	// Beside, when set, is run by a host that serves for long, in a goroutine beside all calls, and ends with ctx. A
	// function must do without: the memory host and Lambda have no beside.
	Beside func(ctx context.Context)
}

// On is one kind of fact and what to do with it.
type On struct {
	kind   events.Kind
	handle func(ctx context.Context, d Delivery) ([]events.Event, error)
}

// Hear makes an On from a handler of one type of fact. Now(ctx) is the time of the message, From(ctx) the delivery.
func Hear[E events.Fact](h func(ctx context.Context, fact E) ([]events.Event, error)) On {
	var zero E
	return On{zero.Kind(), func(ctx context.Context, d Delivery) ([]events.Event, error) {
		fact, ok := d.Event.Data.(E)
		if !ok {
			return nil, fmt.Errorf("%w: %s carries %T", ErrDead, zero.Kind(), d.Event.Data)
		}
		return h(ctx, fact)
	}}
}

// ErrDead marks a message that no retry can help: the host moves it to the dead letters.
var ErrDead = errors.New("dead letter")

// New makes a function that treats each fact alone.
func New(name string, ons ...On) Function {
	byKind := map[events.Kind]On{}
	f := Function{Name: name, Batch: 1}
	for _, on := range ons {
		if _, twice := byKind[on.kind]; twice {
			panic("fn: " + name + " hears " + string(on.kind) + " twice")
		}
		byKind[on.kind] = on
		f.Hears = append(f.Hears, on.kind)
	}
	f.Handle = func(ctx context.Context, batch []Delivery) ([]events.Event, error) {
		var out []events.Event
		for _, d := range batch {
			on, ok := byKind[d.Event.Data.Kind()]
			if !ok {
				continue
			}
			said, err := on.handle(context.WithValue(ctx, deliveryKey{}, d), d)
			if err != nil {
				return nil, err
			}
			out = append(out, said...)
		}
		return out, nil
	}
	return f
}

// Fold makes a function that takes whole batches in stream order, one batch at a time: all of it or nothing.
func Fold(name string, batch int, hears []events.Kind, h Handler) Function {
	return Function{Name: name, Hears: hears, Batch: batch, Folds: true, Handle: h}
}

type deliveryKey struct{}

// From is the delivery that is being handled; the zero Delivery outside of one.
func From(ctx context.Context) Delivery {
	d, _ := ctx.Value(deliveryKey{}).(Delivery)
	return d
}

// Now is the time of the message that is being handled.
func Now(ctx context.Context) time.Time { return From(ctx).At }
