// Package store keeps values under keys with compare-and-set: the fleets' states, the claims on plans, the market.
//
// It promises that a read is answered by the stream's leader, that a write over a revision succeeds only while that
// revision is current, that a writer recognises its own write whose answer was lost, and that both of NATS's conflict
// codes are one error. It does not lock: the revision is the fence.
package store

import (
	"context"
	"encoding/json"
	"errors"
)

// The errors that callers act on.
var (
	ErrNotFound = errors.New("no such key")
	ErrConflict = errors.New("somebody else wrote")
)

// Bucket is a set of keys: JetStream's (Open) or in memory (Memory).
type Bucket interface {
	// Get returns the value and its revision; ErrNotFound for a key that is not there or was deleted.
	Get(ctx context.Context, key string) (val []byte, rev uint64, err error)
	// Create writes a key that must not exist; ErrConflict if it does, unless it holds val already (a lost answer).
	Create(ctx context.Context, key string, val []byte) (rev uint64, err error)
	// Update writes over revision rev; ErrConflict if it is not current. val must differ from every earlier value of
	// the key, so that a write whose answer was lost is recognised as ours.
	Update(ctx context.Context, key string, val []byte, rev uint64) (next uint64, err error)
	// Delete removes a key, whatever its revision; a key that is not there is no error.
	Delete(ctx context.Context, key string) error
	// Keys lists the keys, sorted.
	Keys(ctx context.Context) ([]string, error)
}

// Put writes over revision rev; where rev is 0, a key that must not exist. It is for a value that was read before, and
// perhaps was not there; errors are those of Create and Update.
func Put(ctx context.Context, b Bucket, key string, val []byte, rev uint64) (next uint64, err error) {
	if rev == 0 {
		return b.Create(ctx, key, val)
	}
	return b.Update(ctx, key, val, rev)
}

// Load decodes the JSON under a key into v. Where there is none, v stays as it is and rev is 0.
func Load(ctx context.Context, b Bucket, key string, v any) (rev uint64, err error) {
	val, rev, err := b.Get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err == nil {
		err = json.Unmarshal(val, v)
	}
	return rev, err
}

// Save puts v as JSON over revision rev, as Put does.
func Save(ctx context.Context, b Bucket, key string, v any, rev uint64) (next uint64, err error) {
	val, err := json.Marshal(v)
	if err != nil {
		return 0, err
	}
	return Put(ctx, b, key, val, rev)
}

// Objects keeps content-addressed values that are too large for an event.
type Objects interface {
	// Put stores val and returns its digest ("sha256-" and hex). Storing the same value again is free.
	Put(ctx context.Context, val []byte) (digest string, err error)
	// Fetch returns the value of a digest, checked against it; ErrNotFound if it is not there.
	Fetch(ctx context.Context, digest string) ([]byte, error)
}
