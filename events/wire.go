package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"
	"unicode/utf8"
)

// Bounds of a message. Larger values go by reference.
const (
	MaxBytes = 256 << 10
	MaxDepth = 32
)

// ErrMalformed is what Decode wraps: the message goes to the dead letters with its bytes.
var ErrMalformed = errors.New("malformed event")

// typePrefix makes our kinds unique among CloudEvents types; the number is the version of the data.
const typePrefix = "lowtide."

// wire is CloudEvents 1.0 in structured JSON. fleet, dry and dataversion are extension attributes.
type wire struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Type        string          `json:"type"`
	Source      string          `json:"source"`
	Subject     string          `json:"subject"`
	Time        time.Time       `json:"time"`
	ContentType string          `json:"datacontenttype"`
	Version     int             `json:"dataversion"`
	Fleet       string          `json:"fleet"`
	Dry         bool            `json:"dry,omitempty"`
	Data        json.RawMessage `json:"data"`
}

// version is the version of every kind's data; a field may be added without raising it.
const version = 1

// ErrUnsayable is wrapped by Encode's errors: this event cannot be said, now or later.
var ErrUnsayable = errors.New("events: cannot be encoded")

// Encode writes e as one JSON document, or wraps ErrUnsayable.
func Encode(e Event) ([]byte, error) {
	data := json.RawMessage(e.extra)
	if data == nil {
		var err error
		if data, err = marshal(e.Data); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrUnsayable, e.Data.Kind(), err)
		}
	}
	b, err := json.Marshal(wire{
		SpecVersion: "1.0", ID: e.ID, Type: typePrefix + string(e.Data.Kind()), Source: e.Source, Subject: e.Data.Key(),
		Time: e.Time.UTC(), ContentType: "application/json", Version: version, Fleet: e.Fleet, Dry: e.Dry, Data: data,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnsayable, e.Data.Kind(), err)
	}
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("%w: %s for %s: %d bytes, the limit is %d; pass the large part by reference", ErrUnsayable, e.Data.Kind(), e.Data.Key(), len(b), MaxBytes)
	}
	return b, nil
}

// Decode reads one document. An unknown kind becomes Unknown; what cannot be read wraps ErrMalformed.
func Decode(b []byte) (Event, error) {
	if err := bounds(b); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	switch {
	case w.SpecVersion != "1.0":
		return Event{}, fmt.Errorf("%w: specversion %q, want 1.0", ErrMalformed, w.SpecVersion)
	case w.ID == "" || w.Fleet == "" || len(w.Type) <= len(typePrefix) || w.Type[:len(typePrefix)] != typePrefix:
		return Event{}, fmt.Errorf("%w: id, fleet or type is missing or not ours (type %q)", ErrMalformed, w.Type)
	case len(w.Data) == 0:
		return Event{}, fmt.Errorf("%w: no data", ErrMalformed)
	}
	e := Event{ID: w.ID, Fleet: w.Fleet, Source: w.Source, Time: w.Time, Dry: w.Dry}
	kind := Kind(w.Type[len(typePrefix):])
	known, ok := kinds[kind]
	if !ok {
		e.Data, e.extra = Unknown{Name: kind, About: w.Subject, Raw: w.Data}, w.Data
		return e, nil
	}
	p := reflect.New(known)
	if err := json.Unmarshal(w.Data, p.Interface()); err != nil {
		return Event{}, fmt.Errorf("%w: %s: %w", ErrMalformed, kind, err)
	}
	e.Data = p.Elem().Interface().(Fact)
	if again, err := marshal(e.Data); err != nil || !bytes.Equal(again, w.Data) {
		e.extra = w.Data // newer fields, or another spelling: keep them for whoever gets it next
	}
	return e, nil
}

// marshal keeps <, > and & as they are: commands are full of them.
func marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// bounds refuses what is too large, too deep or not UTF-8 before any of it is decoded.
func bounds(b []byte) error {
	if len(b) > MaxBytes {
		return fmt.Errorf("%d bytes, the limit is %d", len(b), MaxBytes)
	}
	if !utf8.Valid(b) {
		return errors.New("not UTF-8")
	}
	depth, quoted, escaped := 0, false, false
	for _, c := range b {
		switch {
		case escaped:
			escaped = false
		case quoted:
			escaped, quoted = c == '\\', c != '"'
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return fmt.Errorf("deeper than %d levels", MaxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// Unknown is a fact of a kind that this version does not know, kept as it came.
type Unknown struct {
	Name  Kind            `json:"-"`
	About string          `json:"-"`
	Raw   json.RawMessage `json:"-"`
}

// Kind is the kind it came with.
func (u Unknown) Kind() Kind { return u.Name }

// Key is the subject it came with.
func (u Unknown) Key() string { return u.About }
