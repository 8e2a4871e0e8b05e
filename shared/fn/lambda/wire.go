package lambda

import (
	"encoding/json"
	"errors"
	"time"

	"lowtide/events"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

// Version of the form in which the relay hands messages on. Fields may be added without raising it: relay and functions
// are not deployed at once.
const Version = 1

// MaxBatch bounds one invocation: AWS takes 6 MB in a synchronous request.
const MaxBatch = 5 << 20

// Batch is what the relay sends.
type Batch struct {
	Lowtide  int       `json:"lowtide"`
	Function string    `json:"function"`
	Messages []Message `json:"messages"`
}

// Message is one message of a stream.
type Message struct {
	Stream  string          `json:"stream"`
	Seq     uint64          `json:"seq"`
	At      time.Time       `json:"at"` // when the stream stored it, wall time
	Attempt int             `json:"attempt"`
	Trace   string          `json:"trace,omitempty"`
	Body    json.RawMessage `json:"body"` // the event, as it came
}

// Answer says what became of a batch. A message that it does not name was not handled.
type Answer struct {
	Handled []uint64  `json:"handled"`
	Failed  []Failure `json:"failed,omitempty"`
	Said    int       `json:"said,omitempty"` // facts stored, of a document that came directly
}

// Failure is one message that was not handled.
type Failure struct {
	Seq     uint64 `json:"seq"`
	Why     string `json:"why"`
	Passing bool   `json:"passing,omitempty"` // it says nothing against the message
	Dead    bool   `json:"dead,omitempty"`    // no retry can help
}

// Err is the failure as the relay's host reads it.
func (f Failure) Err() error {
	err := errors.New(f.Why)
	switch {
	case f.Dead:
		return errors.Join(fn.ErrDead, err)
	case f.Passing:
		return errors.Join(fn.ErrPassing, err)
	}
	return err
}

func (a *Answer) fail(seq uint64, err error) {
	a.Failed = append(a.Failed, Failure{
		Seq: seq, Why: err.Error(), Dead: errors.Is(err, fn.ErrDead),
		Passing: errors.Is(err, fn.ErrPassing) || errors.Is(err, store.ErrConflict) || bus.Unanswered(err),
	})
}

func (m Message) delivery(c fn.Clock) (fn.Delivery, error) {
	e, err := events.Decode(m.Body)
	if err != nil {
		return fn.Delivery{}, errors.Join(fn.ErrDead, err)
	}
	e.Trace = m.Trace
	return fn.Delivery{Event: e, Stream: m.Stream, Seq: m.Seq, At: c.Of(m.At), Attempt: m.Attempt, Body: m.Body}, nil
}
