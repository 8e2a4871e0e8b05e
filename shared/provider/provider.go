// Package provider is what lowtide asks of a cloud: what it sells, one machine, a list of machines, the end of one.
//
// It promises callers a closed list of errors, and wrappers (Retry, Limit, Dry, Cap) that work for every cloud.
// An adapter promises that Launch with one token buys at most once where the cloud has tokens (Traits.Tokens), that
// List is complete or an error, and that End may be repeated.
// It does not decide what to buy, and it keeps no state: who may be ended is the caller's business.
package provider

import (
	"context"
	"errors"
	"time"

	"lowtide/shared/fleet"
)

// Provider is one account at one cloud.
type Provider interface {
	// Traits says what the cloud can do; it costs nothing and never changes.
	Traits() Traits
	// Offers lists what is sold now, to this account.
	Offers(ctx context.Context) ([]fleet.Offer, error)
	// Launch buys one machine of the offer. On error the closed list says whether anything may have been bought.
	Launch(ctx context.Context, want Request) (Machine, error)
	// List shows every machine of the account, ours and others', also those that have just ended, as far as the cloud
	// shows them. It is complete, or an error.
	List(ctx context.Context) ([]Machine, error)
	// End ends a machine for good and leaves nothing behind that bills. Ending what is gone is no error.
	// It returns when the cloud has taken the order; List shows when it is done.
	End(ctx context.Context, id string) error
}

// Traits are a cloud's fixed properties.
type Traits struct {
	Cloud        string
	Account      string
	Tokens       bool          // one token buys once, also across retries
	ListingDelay time.Duration // after which a bought machine is surely listed
	Notice       time.Duration // promised before an interruption; 0 is none
	Marketplace  bool          // strangers' machines
	HardEnd      bool          // the cloud itself can end a machine at a set time
	OffEnds      bool          // a machine that switches itself off bills no more; false also where that is not known
	Dry          bool          // nothing is bought: every fact that follows says so (wrapper Dry)
}

// Request is one purchase.
type Request struct {
	Token    string // a function of plan and offer alone, never of the attempt
	Name     string // our name of the machine
	Offer    fleet.Offer
	Labels   Labels
	UserData string    // a function of plan and offer alone
	Avoid    []string  // hosts of a marketplace not to buy from: where no other sells the offer, it is ErrNoCapacity
	HardEnd  time.Time // zero: none
}

// Labels mark a machine as ours.
type Labels struct {
	Fleet    string `json:"fleet"`
	Install  string `json:"install"`
	Plan     string `json:"plan"`
	Machine  string `json:"machine"`
	Workload string `json:"workload,omitempty"`
}

// State is a machine's state at the cloud.
type State string

// The states.
const (
	Pending State = "pending"
	Running State = "running"
	Stopped State = "stopped" // does not run and bills its disk: outbid, stopped from outside, switched off
	Ending  State = "ending"
	Gone    State = "gone" // does not bill any more
)

// Machine is a machine as a cloud lists it.
type Machine struct {
	ID     string      `json:"id"`
	Labels Labels      `json:"labels,omitzero"` // zero for others' machines
	State  State       `json:"state"`
	Offer  fleet.Offer `json:"offer"`          // what runs, as far as the listing tells: place, type, market, price
	Since  time.Time   `json:"since"`          // billing began
	Until  time.Time   `json:"until,omitzero"` // billing ended
	Why    string      `json:"why,omitempty"`  // why it ended: "asked", "interrupted", "self", …
}

// The closed list: what a caller does differently needs a value of its own.
var (
	// Nothing was bought; the pool is remembered as refused.
	ErrNoCapacity = errors.New("no capacity")
	// Nothing was bought; the account's limit is reached.
	ErrQuota = errors.New("quota reached")
	// Nothing happened; the same call may go through later.
	ErrThrottled = errors.New("throttled")
	// Nothing happened; the cloud is not well.
	ErrUnavailable = errors.New("cloud unavailable")
	// Nothing was bought; this account may not, until somebody changes that.
	ErrDenied = errors.New("not allowed")
	// Nothing was bought; the request can never work (a type that does not exist, a gone offer).
	ErrInvalid = errors.New("invalid request")
	// The call may or may not have taken effect: a lost answer.
	ErrUnknown = errors.New("outcome unknown")
	// There is no such machine (any more).
	ErrNotFound = errors.New("no such machine")
	// A wrapper refused: dry run, or a cap.
	ErrRefusedHere = errors.New("refused by lowtide itself")
)

// Word is the one word of an error of the closed list, for facts; "other" if it is none.
func Word(err error) string {
	for _, e := range []struct {
		err  error
		word string
	}{
		{ErrUnknown, "unknown_outcome"}, // first: it may hold what a later question was answered
		{ErrNoCapacity, "no_capacity"},
		{ErrQuota, "quota"},
		{ErrThrottled, "throttled"},
		{ErrUnavailable, "unavailable"},
		{ErrDenied, "denied"},
		{ErrInvalid, "invalid"},
		{ErrNotFound, "not_found"},
		{ErrRefusedHere, "refused_here"},
	} {
		if errors.Is(err, e.err) {
			return e.word
		}
	}
	return "other"
}
