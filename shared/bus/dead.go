package bus

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
)

// The headers of a dead letter; its body is the message as it came.
const (
	HeaderFunction = "lowtide-function"
	HeaderReason   = "lowtide-reason"
	HeaderSubject  = "lowtide-subject"
	HeaderStream   = "lowtide-stream"
	HeaderSeq      = "lowtide-seq"
	HeaderBytes    = "lowtide-bytes" // length as it came, when the body was cut
)

// MaxReason bounds the reason in a dead letter.
const MaxReason = 1024

// Letter is a message that its function could not read or handle.
type Letter struct {
	Function string
	Reason   string
	Subject  string
	Stream   string
	Seq      uint64
	Body     []byte
}

// Bury stores a dead letter, once however often it is tried, and returns when the server has acknowledged it.
// The body is cut at events.MaxBytes.
func Bury(ctx context.Context, js jetstream.JetStream, l Letter) error {
	m := nats.NewMsg("dead." + events.Token(l.Function))
	m.Data = l.Body
	if len(m.Data) > events.MaxBytes {
		m.Data = m.Data[:events.MaxBytes]
		m.Header.Set(HeaderBytes, strconv.Itoa(len(l.Body)))
	}
	// Its own headers only: those of the message, an id or a schedule, would act again.
	m.Header.Set(HeaderFunction, l.Function)
	m.Header.Set(HeaderReason, oneLine(l.Reason))
	m.Header.Set(HeaderSubject, l.Subject)
	m.Header.Set(HeaderStream, l.Stream)
	m.Header.Set(HeaderSeq, strconv.FormatUint(l.Seq, 10))
	m.Header.Set(jetstream.MsgIDHeader, fmt.Sprintf("%s/%s/%d", l.Function, l.Stream, l.Seq))
	if _, err := settle(ctx, js, m, nil); err != nil {
		return fmt.Errorf("bury %s %d: %w", l.Stream, l.Seq, err)
	}
	return nil
}

// ReadLetter reads a dead letter from its stored form.
func ReadLetter(m *jetstream.RawStreamMsg) (Letter, time.Time) {
	seq, _ := strconv.ParseUint(m.Header.Get(HeaderSeq), 10, 64)
	return Letter{
		Function: m.Header.Get(HeaderFunction), Reason: m.Header.Get(HeaderReason), Subject: m.Header.Get(HeaderSubject),
		Stream: m.Header.Get(HeaderStream), Seq: seq, Body: m.Data,
	}, m.Time
}

// oneLine makes a reason fit for a header.
func oneLine(s string) string {
	b := []byte(s)
	if len(b) > MaxReason {
		b = append(b[:MaxReason], "..."...)
	}
	for i, c := range b {
		if c < ' ' {
			b[i] = ' '
		}
	}
	return string(b)
}
