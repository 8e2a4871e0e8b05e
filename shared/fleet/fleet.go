// Package fleet holds lowtide's nouns: offers, workloads, machines, reservations, plans, and the money that
// moves between them. A Fleet is one decision domain (a team, an account): everything its decider knows.
//
// It promises plain data: each type encodes to JSON and CBOR with the same names, times are UTC, money is
// decimal with its currency, and what is not known is said so (Maybe), never zero.
// It decides nothing, reads no clock and does no I/O.
package fleet

import (
	"slices"
	"time"
)

// Position is how far into its stream of facts a fleet has been folded.
// The host replays nothing at or below it, so that a redelivered batch counts once.
type Position struct {
	Stream string `json:"stream,omitempty"`
	Seq    uint64 `json:"seq,omitempty"`
}

// Fleet is all that the decider remembers. Only functions/rebalance writes it.
type Fleet struct {
	Name      string                  `json:"name"`
	Install   string                  `json:"install"`          // random id of this installation; labels say it
	Applied   Position                `json:"applied"`          // folded up to and including this
	Now       time.Time               `json:"now"`              // time of the newest fact; never goes back
	Hearing   time.Time               `json:"hearing,omitzero"` // since when facts have come without a gap; before it nobody could be heard
	Next      uint64                  `json:"next"`             // counter behind every id made here
	Era       string                  `json:"era,omitempty"`    // part of every id: a state begun anew, after a loss, gives no old name again
	WakeAt    time.Time               `json:"wake_at,omitzero"` // when the host must wake us at the latest
	Halted    string                  `json:"halted,omitempty"` // why nothing may be bought (panic, restored backup); "" is normal
	Workloads map[string]*Workload    `json:"workloads"`
	Machines  map[string]*Instance    `json:"machines"`
	Plans     map[string]*Plan        `json:"plans"`               // open plans only
	Outbox    map[string]*Item        `json:"outbox"`              // what must still be said
	Refusals  map[string]*Refusal     `json:"refusals,omitempty"`  // by pool
	Reserved  map[string]*Reservation `json:"reserved,omitempty"`  // by id
	Watched   map[string]*Watch       `json:"watched,omitempty"`   // reservations, by id
	AssignAt  time.Time               `json:"assign_at,omitzero"`  // when the reservations are dealt out again, at the latest
	StartUps  map[string]*StartUp     `json:"start_ups,omitempty"` // by cloud
}

// New returns an empty fleet.
func New(name, install string) *Fleet {
	return &Fleet{
		Name: name, Install: install,
		Workloads: map[string]*Workload{}, Machines: map[string]*Instance{}, Plans: map[string]*Plan{},
		Outbox: map[string]*Item{}, Refusals: map[string]*Refusal{}, Reserved: map[string]*Reservation{}, StartUps: map[string]*StartUp{},
	}
}

// Silent says that a machine which has been heard of before was not for longer than after, although facts came.
func (f *Fleet) Silent(m *Instance, now time.Time, after time.Duration) bool {
	last := m.Heard
	if f.Hearing.After(last) {
		last = f.Hearing
	}
	return !m.Heard.IsZero() && now.Sub(last) > after
}

// Item is something the decider must say until the fact that closes it is heard.
// Exactly one of Plan, Machine and Fact names what is said.
type Item struct {
	ID      string    `json:"id"`
	Plan    string    `json:"plan,omitempty"`    // say plan.made of this plan
	Machine string    `json:"machine,omitempty"` // say order.given, the machine's present order
	Fact    []byte    `json:"fact,omitempty"`    // say this encoded event, twice at most, under one id
	Said    int       `json:"said"`              // how often it has been said
	NextAt  time.Time `json:"next_at"`           // when to say it next
	Expires time.Time `json:"expires,omitzero"`  // when it turns into a failure
}

// Refusal remembers that a pool did not sell, so that it is not asked again at once.
type Refusal struct {
	Pool  string    `json:"pool"`
	Count int       `json:"count"`
	Until time.Time `json:"until"`
	Why   string    `json:"why"` // empty: it has sold since
}

// StartUp is how long a cloud's machines take until work goes on, as the facts told.
type StartUp struct {
	Boot    Took `json:"boot,omitzero"`    // from the purchase until the agent speaks
	Proof   Took `json:"proof,omitzero"`   // from then until the benchmark is judged
	Restore Took `json:"restore,omitzero"` // of a checkpoint
}

// Took sums a kind of duration up. The zero Took has seen none.
type Took struct {
	Count int           `json:"count"`
	Mean  time.Duration `json:"mean"` // of the last twenty or so
	Most  time.Duration `json:"most"` // slowest of late, forgotten slowly
}

// Add counts one.
func (t *Took) Add(d time.Duration) {
	t.Count++
	t.Mean += (d - t.Mean) / time.Duration(min(t.Count, 20))
	t.Most = max(d, t.Most*9/10)
}

// Sorted returns the keys of m in order; everything that decides walks maps through it, so that
// the same state gives the same plans.
func Sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
