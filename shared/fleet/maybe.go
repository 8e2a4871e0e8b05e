package fleet

import (
	"bytes"
	"encoding/json"

	"github.com/fxamacker/cbor/v2"
)

// Maybe is a value or "not known"; unknown is never zero. On the wire unknown is null.
// The zero Maybe is unknown.
type Maybe[T any] struct {
	v     T
	known bool
}

// Known says that v is known.
func Known[T any](v T) Maybe[T] { return Maybe[T]{v, true} }

// Get returns the value and whether it is known.
func (m Maybe[T]) Get() (T, bool) { return m.v, m.known }

// Or returns the value, or other where it is not known.
func (m Maybe[T]) Or(other T) T {
	if m.known {
		return m.v
	}
	return other
}

// IsZero is true for unknown; omitzero leaves the field out.
func (m Maybe[T]) IsZero() bool { return !m.known }

// MarshalJSON writes the value, or null for unknown.
func (m Maybe[T]) MarshalJSON() ([]byte, error) {
	if !m.known {
		return []byte("null"), nil
	}
	return json.Marshal(m.v)
}

// UnmarshalJSON reads the value, or unknown from null.
func (m *Maybe[T]) UnmarshalJSON(b []byte) error {
	*m = Maybe[T]{}
	if bytes.Equal(bytes.TrimSpace(b), []byte("null")) {
		return nil
	}
	if err := json.Unmarshal(b, &m.v); err != nil {
		return err
	}
	m.known = true
	return nil
}

// MarshalCBOR writes the value, or null for unknown.
func (m Maybe[T]) MarshalCBOR() ([]byte, error) {
	if !m.known {
		return []byte{0xf6}, nil
	}
	return encoding.Marshal(m.v)
}

// UnmarshalCBOR reads the value, or unknown from null.
func (m *Maybe[T]) UnmarshalCBOR(b []byte) error {
	*m = Maybe[T]{}
	if len(b) == 1 && (b[0] == 0xf6 || b[0] == 0xf7) {
		return nil
	}
	if err := cbor.Unmarshal(b, &m.v); err != nil {
		return err
	}
	m.known = true
	return nil
}
