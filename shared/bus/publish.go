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

// patience is how long one try waits for its answer. A leader's election takes seconds, so trying again is the rule.
const patience = 500 * time.Millisecond

// asyncWindow is how many publishes may be open; with larger ones a server that syncs always was seen to stall.
const asyncWindow = 256

// Published counts what Publish did.
type Published struct {
	Stored     int // the server had not seen the id
	Duplicates int // it had: an earlier try, or the fact was said before
}

// Publish stores events in order and returns when the server has acknowledged all of them. It repeats under the same ids
// until ctx ends; then some may be stored and some not, and to publish all again is right. An event with At is kept
// by the server until then, in place of an earlier one for the same fleet, kind and key; one that is due is published
// at once. Tries again may change the order.
//
// The first goes alone and the others together: a server that syncs every message delivers none of a heap before all of it
// is on disk, and whoever says several puts first what cannot wait.
func Publish(ctx context.Context, js jetstream.JetStream, said ...events.Event) (Published, error) {
	var done Published
	msgs := make([]*nats.Msg, len(said))
	for i, e := range said {
		m, err := message(e, time.Now())
		if err != nil {
			return done, err
		}
		msgs[i] = m
	}
	futures := make([]jetstream.PubAckFuture, len(msgs))
	for i, m := range msgs {
		if i == 1 {
			startAll(js, msgs[1:], futures[1:])
		}
		ack, err := settle(ctx, js, m, futures[i])
		if err != nil {
			return done, fmt.Errorf("publish %s: %w", m.Subject, err)
		}
		if ack.Duplicate {
			done.Duplicates++
		} else {
			done.Stored++
		}
	}
	return done, nil
}

// startAll puts messages on the way before the first answer.
func startAll(js jetstream.JetStream, msgs []*nats.Msg, futures []jetstream.PubAckFuture) {
	for i, m := range msgs {
		f, err := js.PublishMsgAsync(m, jetstream.WithStallWait(patience))
		if err != nil {
			return // settle sends the rest, one by one
		}
		futures[i] = f
	}
}

// settle waits for an answer and, where there is none, publishes again until there is.
func settle(ctx context.Context, js jetstream.JetStream, m *nats.Msg, f jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	if f != nil {
		late := time.NewTimer(2 * patience)
		defer late.Stop()
		select {
		case ack := <-f.Ok():
			return ack, nil
		case err := <-f.Err():
			if !Unanswered(err) {
				return nil, err
			}
		case <-late.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		try, cancel := context.WithTimeout(ctx, patience)
		again := &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data} // an asynchronous try sets m's reply
		ack, err := js.PublishMsg(try, again, jetstream.WithRetryAttempts(0))
		cancel()
		if err == nil || !Unanswered(err) {
			return ack, err
		}
		if perr := pause(ctx, wait); perr != nil {
			return nil, errors.Join(perr, err)
		}
	}
}

// message is e as it is published at now.
//
// A schedule has no id: its subject holds one message, so a repeat replaces itself, while an id would swallow an alarm
// that is set back to an earlier time. An event that is due takes the waiting one of its subject away with it.
func message(e events.Event, now time.Time) (*nats.Msg, error) {
	body, err := events.Encode(e)
	if err != nil {
		return nil, err
	}
	subject := Subject(e.Fleet, e.Data.Kind(), e.Data.Key())
	m := nats.NewMsg(subject)
	m.Data = body
	if e.Trace != "" {
		m.Header.Set(HeaderTrace, e.Trace)
	}
	if e.At.IsZero() {
		m.Header.Set(jetstream.MsgIDHeader, e.ID)
		return m, nil
	}
	if StreamOf(e.Data.Kind()) != Facts {
		return nil, fmt.Errorf("schedule %s: only facts can wait", subject)
	}
	alarm := later + subject[len("lowtide."):]
	if !e.At.After(now) {
		m.Header.Set(jetstream.MsgIDHeader, e.ID)
		m.Header.Set("Nats-Scheduler", alarm)
		m.Header.Set("Nats-Schedule-Next", "purge")
		return m, nil
	}
	m.Subject = alarm
	// Not WithScheduleAt: it drops the fraction of the second and fires early.
	m.Header.Set("Nats-Schedule", "@at "+e.At.UTC().Format(time.RFC3339Nano))
	m.Header.Set("Nats-Schedule-Target", subject)
	return m, nil
}

// ErrNone says that a subject has no message.
var ErrNone = errors.New("no message")

// Stored is an event as a stream holds it.
type Stored struct {
	Event  events.Event
	Stream string
	Seq    uint64
	At     time.Time // the stream's
}

// Last is the newest event of a subject, which may have wildcards, from the stream's leader; ErrNone if there is none.
func Last(ctx context.Context, js jetstream.JetStream, stream, subject string) (Stored, error) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		m, err := last(try, js, stream, subject)
		cancel()
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return Stored{}, fmt.Errorf("%w: %s", ErrNone, subject)
		case err == nil:
			e, err := events.Decode(m.Data)
			return Stored{e, stream, m.Sequence, m.Time}, err
		case !Unanswered(err):
			return Stored{}, fmt.Errorf("last of %s: %w", subject, err)
		}
		if perr := pause(ctx, wait); perr != nil {
			return Stored{}, errors.Join(perr, err)
		}
	}
}

func last(ctx context.Context, js jetstream.JetStream, stream, subject string) (*jetstream.RawStreamMsg, error) {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	return s.GetLastMsgForSubject(ctx, subject)
}
