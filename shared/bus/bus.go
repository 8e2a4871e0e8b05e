// Package bus is lowtide's use of JetStream: the streams, publishing, scheduling, and what a connection must be like.
//
// It promises that an event whose Publish returned nil is stored, once within the duplicate window however often it
// was tried; that a scheduled event replaces the earlier one for the same fleet, kind and key; and that reads are
// answered by the stream's leader. It does not consume: the hosts do (shared/fn).
package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
)

// The streams.
const (
	Facts      = "LOWTIDE"            // lowtide.<fleet>.<kind>.<key>, 30 days
	Telemetry  = "LOWTIDE_TELEMETRY"  // telemetry.<fleet>.<kind>.<key>, one hour, in memory
	Dead       = "LOWTIDE_DEAD"       // dead.<function>.<kind>: what could not be read or handled
	Advisories = "LOWTIDE_ADVISORIES" // the server's word on messages given up
)

// HeaderTrace is the header of a message that carries a W3C traceparent. NATS keeps the case of headers.
const HeaderTrace = "traceparent"

// later is where scheduled events wait. It is a root of its own, so that nobody who listens to facts hears one early.
const later = "later."

// window is how long JetStream knows an id.
const window = 10 * time.Minute

// streams are what Setup makes.
//
// The facts have no limit in bytes or messages: at a limit the oldest would be dropped unseen (schedules exclude
// "discard new"). What bounds them is their age, and then the server's store, which refuses the publisher.
func streams(replicas int) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
		{
			Name: Facts, Subjects: []string{"lowtide.>", later + ">"},
			Storage: jetstream.FileStorage, Replicas: replicas, MaxAge: 30 * 24 * time.Hour, Duplicates: window,
			// Each agent has a consumer; the server's own limit is 1,000 a stream, and it cannot be raised later.
			MaxConsumers: 100_000, AllowMsgSchedules: true, AllowRollup: true, AllowMsgTTL: true, Discard: jetstream.DiscardOld,
		},
		{
			Name: Telemetry, Subjects: []string{"telemetry.>"},
			Storage: jetstream.MemoryStorage, Replicas: 1, MaxAge: time.Hour, MaxBytes: 64 << 20, Duplicates: window,
			Discard: jetstream.DiscardOld,
		},
		{
			Name: Dead, Subjects: []string{"dead.>"},
			Storage: jetstream.FileStorage, Replicas: replicas, MaxAge: 90 * 24 * time.Hour, Duplicates: window,
		},
		{
			Name: Advisories,
			Subjects: []string{
				"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." + Facts + ".>", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED." + Facts + ".>",
				"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." + Telemetry + ".>", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED." + Telemetry + ".>",
			},
			Storage: jetstream.FileStorage, Replicas: replicas, MaxAge: 30 * 24 * time.Hour,
		},
	}
}

// Setup makes the streams, or brings them up to date. It retries each for 20 s: a young cluster may refuse, or never
// answer, before its leaders are known.
func Setup(ctx context.Context, js jetstream.JetStream, replicas int) error {
	for _, cfg := range streams(replicas) {
		if err := setup(ctx, js, cfg); err != nil {
			return fmt.Errorf("stream %s: %w", cfg.Name, err)
		}
	}
	return nil
}

func setup(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) error {
	for deadline := time.Now().Add(20 * time.Second); ; {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		s, err := js.CreateOrUpdateStream(try, cfg)
		cancel()
		switch {
		case err == nil && s.CachedInfo().Config.AllowDirect:
			return errors.New("reads may be answered by a follower (allow_direct is on)")
		case err == nil || !Unanswered(err) || time.Now().After(deadline):
			return err
		}
		if perr := pause(ctx, 200*time.Millisecond); perr != nil {
			return errors.Join(perr, err)
		}
	}
}

// Options are for every connection of lowtide's: it never gives up, and it never buffers what it cannot send, so that
// whoever publishes knows. failed hears what has no caller, such as a refused publish; it may be nil.
func Options(name string, failed func(error)) []nats.Option {
	return []nats.Option{
		nats.Name(name), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.PingInterval(20 * time.Second),
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			if failed == nil {
				return
			}
			if s != nil {
				err = fmt.Errorf("nats: %s: %w", s.Subject, err)
			}
			failed(err)
		}),
	}
}

// JetStream is the client that Publish needs: it forgets what is not answered in time, so that a lost answer does not
// fill its window.
func JetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	return jetstream.New(nc, jetstream.WithPublishAsyncTimeout(patience), jetstream.WithPublishAsyncMaxPending(asyncWindow))
}

// StreamOf is the stream that holds a kind.
func StreamOf(k events.Kind) string {
	if k == "utilisation.measured" {
		return Telemetry
	}
	return Facts
}

// Belongs says whether an event may stand where it was found: who may publish what is granted by subject, so an event on
// another's subject says what its sender may not.
func Belongs(subject string, e events.Event) error {
	if own := Subject(e.Fleet, e.Data.Kind(), e.Data.Key()); own != subject {
		return fmt.Errorf("%s holds an event that belongs to %s", subject, own)
	}
	return nil
}

// Subject is where events are published; fleet and key may be wildcards.
func Subject(fleet string, k events.Kind, key string) string {
	s := events.Subject(fleet, k, key)
	if StreamOf(k) == Telemetry {
		return "telemetry." + s[len("lowtide."):]
	}
	return s
}

// Unanswered says of an error that we do not know whether the server did what we asked, or know that it soon can.
func Unanswered(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.Code == 503 && api.ErrorCode != storeFull
	}
	for _, e := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, jetstream.ErrNoStreamResponse,
		nats.ErrDisconnected, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded,
		jetstream.ErrAsyncPublishTimeout, jetstream.ErrTooManyStalledMsgs,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// storeFull is the server's code for a message that its limits refuse.
const storeFull = 10077

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
