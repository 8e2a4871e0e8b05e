package fn

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// What all hosts agree on when a handler fails.
const (
	// MaxAttempts is how often one message is tried before it is a dead letter.
	MaxAttempts = 10
	// FoldAttempts is how often a batch of a fold is tried before it is taken apart, and then each message of it.
	FoldAttempts = 5
	// DefaultSlow is the longest that a call may take where Function.Slow says nothing.
	DefaultSlow = 15 * time.Second
)

var steps = []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, time.Minute}

// Pace is how long to wait after the nth failed attempt, 1 the first.
func Pace(attempt int) time.Duration { return steps[max(0, min(attempt, len(steps))-1)] }

// Fate is what becomes of deliveries that could not be handled.
type Fate int

// The fates.
const (
	Again Fate = iota // try the same deliveries later, after Pace
	Alone             // try each of them on its own, in order, beginning anew
	Dead              // the single delivery is a dead letter
)

// ErrPassing marks a failure that says nothing against the message: whoever should have handled it could not be reached.
var ErrPassing = errors.New("passing failure")

// Failures are the deliveries of a batch that were not handled, by their position in the stream; the others were.
type Failures map[uint64]error

// Error names the first.
func (f Failures) Error() string {
	seq := slices.Min(slices.Collect(maps.Keys(f)))
	return fmt.Sprintf("%d not handled, the first is %d: %v", len(f), seq, f[seq])
}

// Fate judges a failed call with size deliveries at its nth attempt. A passing failure (the store is away, somebody
// else wrote) says nothing against the message: it is tried for ever.
func (f Function) Fate(size, attempt int, passing bool, err error) Fate {
	limit := MaxAttempts
	if f.Folds {
		limit = FoldAttempts
	}
	switch {
	case !errors.Is(err, ErrDead) && (passing || attempt < limit):
		return Again
	case size > 1:
		return Alone
	default:
		return Dead
	}
}

// Listens says whether f hears events with this key.
func (f Function) Listens(key string) bool { return f.Key == "" || matches(f.Key, key) }

// matches is NATS's rule for subjects: "*" is one part, ">" is all that follow.
func matches(pattern, key string) bool {
	for {
		p, prest, pmore := strings.Cut(pattern, ".")
		if p == ">" {
			return true
		}
		k, krest, kmore := strings.Cut(key, ".")
		if p != "*" && p != k || pmore != kmore {
			return false
		}
		if !pmore {
			return true
		}
		pattern, key = prest, krest
	}
}

// Counts is what a host did since it started.
type Counts struct {
	Handled     uint64 // deliveries whose handling succeeded
	Failed      uint64 // calls that returned an error
	Dead        uint64 // messages that went to the dead letters
	Published   uint64 // events stored
	Duplicates  uint64 // events that the stream already held
	Redelivered uint64 // deliveries that were not the first of their message
}
