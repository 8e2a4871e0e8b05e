package chatops

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"lowtide/shared/store"
)

// keepSeen is how long a request is remembered: longer than any signature is valid, so that no replay is ever new.
const (
	keepSeen = 26 * time.Hour
	maxSeen  = 20_000
)

type seenBook struct {
	At    map[string]time.Time `json:"at"`
	Saves uint64               `json:"saves"`
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// first says whether a request is new, and remembers it. It holds over processes: the store decides.
func (d *desk) first(ctx context.Context, via, id string) error {
	ago, err := d.recently(ctx, via+" "+digest(id), keepSeen)
	switch {
	case err != nil:
		return errAway
	case ago > 0:
		return errTwice
	}
	return nil
}

// recently is how long ago a key was seen within a time, 0 for never; then it is seen now.
func (d *desk) recently(ctx context.Context, key string, within time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	for range 20 { // others write too: try again on what they wrote
		var ago time.Duration
		if ago, err = d.look(ctx, key, within); !errors.Is(err, store.ErrConflict) {
			return ago, err
		}
	}
	return 0, err
}

func (d *desk) look(ctx context.Context, key string, within time.Duration) (time.Duration, error) {
	book, now := seenBook{At: map[string]time.Time{}}, d.Wall()
	name := d.Fleet + ".seen"
	rev, err := store.Load(ctx, d.Seen, name, &book)
	if err != nil {
		return 0, fmt.Errorf("read what was seen: %w", err)
	}
	if at, ok := book.At[key]; ok && now.Sub(at) < within {
		return max(now.Sub(at), 1), nil
	}
	for k, at := range book.At {
		if now.Sub(at) > keepSeen {
			delete(book.At, k)
		}
	}
	if len(book.At) >= maxSeen {
		return 0, errors.New("too many requests within a day")
	}
	book.At[key] = now
	book.Saves++
	_, err = store.Save(ctx, d.Seen, name, book, rev)
	return 0, err
}

// window is how far a request's time may be from ours.
const window = 5 * time.Minute

// fresh checks a timestamp in seconds or, by its size, milliseconds.
func (d *desk) fresh(text string) error {
	var n int64
	if _, err := fmt.Sscanf(text, "%d", &n); err != nil || fmt.Sprint(n) != text {
		return errTime
	}
	at := time.Unix(n, 0)
	if n > 1e11 {
		at = time.UnixMilli(n)
	}
	if d.Wall().Sub(at).Abs() > window {
		return errTime
	}
	return nil
}
