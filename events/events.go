// Package events holds every fact that lowtide's functions say to each other: its Go type, its kind, and its wire
// form, a CloudEvents 1.0 JSON document.
//
// It promises that what it cannot read it keeps: a fact of an unknown kind, and unknown fields of a known kind,
// pass through unchanged. Decode bounds size and depth, so that no message can exhaust a function.
// Facts are plain data in the past tense; what changes their wire form changes testdata/ beside this file.
// It does not publish: hosts do (shared/fn).
package events

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// Kind names a fact: a noun and a past participle, two words.
type Kind string

// Fact is one kind's data.
type Fact interface {
	Kind() Kind
	// Key is the last part of the subject: who the fact is about. It may have several parts joined by dots.
	Key() string
}

// Event is a fact with its envelope.
type Event struct {
	ID     string    // unique per fact and content; JetStream drops a repeat within its window
	Fleet  string    // decision domain
	Source string    // who says it, "agent/m7"
	Time   time.Time // the sender's clock: informative, decides nothing
	Dry    bool      // said in a dry run
	Data   Fact
	// At, when set, asks the host to deliver the event then; a later one for the same fleet, kind and key replaces it.
	// It is not on the wire.
	At time.Time
	// Trace is the W3C traceparent that the event came with or goes with: a header of its message, not part of the document.
	Trace string

	extra []byte // data as received, when it holds more than Data does
}

// New makes an event whose id hashes who says what about whom, so that saying it again is a repeat,
// and saying something else (an earlier deadline, a second source) is not.
func New(fleet, source string, at time.Time, fact Fact) Event {
	data, err := marshal(fact)
	if err != nil {
		data = fmt.Append(nil, err) // a time past the year 9999, say: Encode will refuse it, and whoever speaks hears why
	}
	h := sha256.New()
	for _, part := range []string{fleet, source, string(fact.Kind()), fact.Key()} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	h.Write(data)
	return Event{ID: hex.EncodeToString(h.Sum(nil)[:16]), Fleet: fleet, Source: source, Time: at.UTC(), Data: fact}
}

// Subject is where the event is published: lowtide.<fleet>.<kind>.<key>.
func (e Event) Subject() string {
	return Subject(e.Fleet, e.Data.Kind(), e.Data.Key())
}

// Subject builds a subject; key may be "*" or ">" to listen.
func Subject(fleet string, k Kind, key string) string {
	return "lowtide." + Token(fleet) + "." + string(k) + "." + key
}

// Token makes s fit for one part of a subject: letters, digits, '-' and '_' stay, wildcards too,
// all else becomes '_'. An empty s is "_".
func Token(s string) string {
	if s == "" {
		return "_"
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '*', r == '>':
			return r
		}
		return '_'
	}, s)
}

// keyOf joins tokens to a key.
func keyOf(parts ...string) string {
	for i, p := range parts {
		parts[i] = Token(p)
	}
	return strings.Join(parts, ".")
}
