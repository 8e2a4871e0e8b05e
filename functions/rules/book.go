package rules

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/store"
)

// Book is what the rules of one fleet remember. Their fold alone writes it.
type Book struct {
	Applied fleet.Position    `json:"applied"`
	Now     time.Time         `json:"now"`
	Held    map[string]*Held  `json:"held,omitempty"`   // by rule and key: a condition that is true
	Counts  map[string]*Count `json:"counts,omitempty"` // by rule, and by rule and key: acts of late
	Off     map[string]*Off   `json:"off,omitempty"`    // by rule: switched off
	Next    map[string]*Next  `json:"next,omitempty"`   // by rule: when its schedule comes
	Asked   map[string]*Asked `json:"asked,omitempty"`  // workloads that the decider does not know yet
	Seen    map[string]*Seen  `json:"seen,omitempty"`   // by rule and key: facts that were acted on
	WakeAt  time.Time         `json:"wake_at,omitzero"` // armed
	Last    [][]byte          `json:"last,omitempty"`   // what the newest batch said
	Saves   uint64            `json:"saves"`
}

// Held is a condition that is true, for one key.
type Held struct {
	Since time.Time `json:"since"`
	Fact  []byte    `json:"fact,omitempty"` // that made it so; none: the fleet
	Done  bool      `json:"done,omitempty"` // it was long enough, and acted on
	Depth int       `json:"depth,omitempty"`
}

// Count is how often a rule acted, within a stretch.
type Count struct {
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
	N     int       `json:"n"`
}

// Off is a rule that is switched off, as it was then.
type Off struct {
	Why    string    `json:"why"`
	At     time.Time `json:"at"`
	Digest string    `json:"digest"`
}

// Next is when a schedule comes, as it was then.
type Next struct {
	At     time.Time `json:"at"`
	Digest string    `json:"digest"`
}

// Asked is a workload that a rule asked for.
type Asked struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// Seen are facts about one key that a rule has acted on: facts are said again until they are heard, and the same is no news.
type Seen struct {
	Last   string               `json:"last,omitempty"` // the newest, while nothing else was heard since
	Recent map[string]time.Time `json:"recent,omitempty"`
	At     time.Time            `json:"at"`
}

// repeats says that a fact was acted on: it is the last one, or one of a moment ago that comes out of its order.
func (s *Seen) repeats(digest string, now time.Time) bool {
	at, recent := s.Recent[digest]
	return digest == s.Last || recent && now.Sub(at) <= stretch
}

// note takes a fact down.
func (s *Seen) note(digest string, now time.Time) {
	for d, at := range s.Recent {
		if now.Sub(at) > stretch {
			delete(s.Recent, d)
		}
	}
	s.Last, s.At = digest, now
	s.Recent[digest] = now
}

// keepSeen is how long a fact is known that nothing else has followed.
const keepSeen = 24 * time.Hour

// Read returns a fleet's book; an empty one if nothing was ever written.
func Read(ctx context.Context, books store.Bucket, fleetName string) (*Book, uint64, error) {
	b := newBook()
	rev, err := store.Load(ctx, books, fleetName, b)
	if err != nil {
		return nil, 0, fmt.Errorf("read the book of rules of %s: %w", fleetName, err)
	}
	return b, rev, nil
}

func newBook() *Book {
	return &Book{Held: map[string]*Held{}, Counts: map[string]*Count{}, Off: map[string]*Off{}, Next: map[string]*Next{}, Asked: map[string]*Asked{}, Seen: map[string]*Seen{}}
}

// keep takes down what is said, for the case that it has to be said again.
func (b *Book) keep(said []events.Event) error {
	b.Saves++
	b.Last = nil
	for _, e := range said {
		if !e.At.IsZero() {
			continue // an alarm: the schedule makes it good
		}
		doc, err := events.Encode(e)
		if err != nil {
			return err
		}
		b.Last = append(b.Last, doc)
	}
	return nil
}

func (b *Book) last() (said []events.Event, err error) {
	for _, doc := range b.Last {
		e, err := events.Decode(doc)
		if err != nil {
			return nil, err
		}
		said = append(said, e)
	}
	return said, nil
}

// forget drops what is over, and what belongs to rules that are gone or were changed.
func (b *Book) forget(s *Set) {
	for key, c := range b.Counts {
		r := s.byName[ruleOf(key)]
		if r == nil || b.Now.Sub(c.Last) > max(stretch, r.every) {
			delete(b.Counts, key)
		}
	}
	for key, seen := range b.Seen {
		if s.byName[ruleOf(key)] == nil || b.Now.Sub(seen.At) > keepSeen {
			delete(b.Seen, key)
		}
	}
	for key := range b.Held {
		if s.byName[ruleOf(key)] == nil {
			delete(b.Held, key)
		}
	}
	for name, o := range b.Off {
		if r := s.byName[name]; r == nil || r.digest != o.Digest {
			delete(b.Off, name)
		}
	}
	for name := range b.Next {
		if s.byName[name] == nil {
			delete(b.Next, name)
		}
	}
	for name, a := range b.Asked {
		if b.Now.Sub(a.At) > late {
			delete(b.Asked, name)
		}
	}
}

// off says whether a rule, as it is now, is switched off.
func (b *Book) off(r *rule) bool {
	o := b.Off[r.name]
	return o != nil && o.Digest == r.digest
}

func heldKey(r *rule, key string) string { return r.name + " " + key }

func ruleOf(key string) string {
	name, _, _ := strings.Cut(key, " ")
	return name
}
