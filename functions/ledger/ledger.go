// Package ledger keeps the account: what each workload's machines cost, and what the same work would have cost on
// demand from the first second.
//
// It promises that a fact counts once, however often it is heard (its state holds how far it was folded), that a
// machine bills from the purchase to the end that the cloud confirmed, and that budget.warned and budget.exhausted are
// said once each. It is the second witness: rebalance reckons its own spend and stops by it.
package ledger

import (
	"context"
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

// warnAt is the share of a budget at which people are told.
const warnAt = 0.8

// Book is one fleet's account.
type Book struct {
	Applied   fleet.Position       `json:"applied"`
	Workloads map[string]*Account  `json:"workloads"`
	Machines  map[string]*Receipt  `json:"machines"`
	Strays    map[string]time.Time `json:"strays,omitempty"` // ended without a purchase that we heard of: its end
}

// Account is one workload's.
type Account struct {
	Baseline  fleet.Money              `json:"baseline,omitzero"` // the work alone, on demand
	Worst     fleet.Money              `json:"worst,omitzero"`
	Budget    fleet.Maybe[fleet.Money] `json:"budget,omitzero"`
	Warned    bool                     `json:"warned,omitempty"`
	Exhausted bool                     `json:"exhausted,omitempty"`
}

// Receipt is one machine's.
type Receipt struct {
	Workload string      `json:"workload"`
	Offer    fleet.Offer `json:"offer"`
	From     time.Time   `json:"from"`
	To       time.Time   `json:"to,omitzero"`
}

// Cost is what the machine has cost until now; an unknown price is not known to cost anything.
func (r *Receipt) Cost(now time.Time) fleet.Money {
	end := now
	if !r.To.IsZero() {
		end = r.To
	}
	hourly, ok := r.Offer.Hourly.Get()
	if !ok || end.Before(r.From) {
		return fleet.Money{}
	}
	return hourly.Times(end.Sub(r.From).Hours())
}

// Spent is what a workload has cost until now.
func (b *Book) Spent(workload string, now time.Time) fleet.Money {
	sum := fleet.Money{Currency: fleet.USD}
	for _, r := range b.Machines {
		if r.Workload == workload {
			sum = sum.Add(r.Cost(now))
		}
	}
	return sum
}

// Read returns a fleet's account; an empty one if nothing was ever written.
func Read(ctx context.Context, books store.Bucket, fleetName string) (*Book, uint64, error) {
	b := &Book{Workloads: map[string]*Account{}, Machines: map[string]*Receipt{}, Strays: map[string]time.Time{}}
	rev, err := store.Load(ctx, books, fleetName, b)
	if err != nil {
		return nil, 0, fmt.Errorf("read ledger of %s: %w", fleetName, err)
	}
	return b, rev, nil
}

type keeper struct {
	fleet string
	books store.Bucket
}

// New is the function for one fleet; books holds its account under the fleet's name.
func New(fleetName string, books store.Bucket) fn.Function {
	k := keeper{fleetName, books}
	return fn.Fold("ledger", 64, []events.Kind{
		"clock.ticked", "workload.accepted", "instance.launched", "instance.ended",
	}, k.fold)
}

func (k keeper) fold(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
	b, rev, err := Read(ctx, k.books, k.fleet)
	if err != nil {
		return nil, err
	}
	var now time.Time
	for _, d := range batch {
		if d.Event.Fleet != k.fleet || d.Stream == b.Applied.Stream && d.Seq <= b.Applied.Seq {
			continue
		}
		b.enter(d.Event.Data)
		b.Applied, now = fleet.Position{Stream: d.Stream, Seq: d.Seq}, d.At
	}
	if now.IsZero() {
		return nil, nil
	}
	said := b.warn(k.fleet, now)
	if _, err := store.Save(ctx, k.books, k.fleet, b, rev); err != nil {
		return nil, fmt.Errorf("save ledger of %s: %w", k.fleet, err)
	}
	return said, nil
}

// enter books one fact.
func (b *Book) enter(fact events.Fact) {
	switch e := fact.(type) {
	case events.WorkloadAccepted:
		if b.Workloads[e.Workload] == nil {
			b.Workloads[e.Workload] = &Account{Baseline: e.Baseline, Worst: e.Worst, Budget: e.Budget}
		}
	case events.InstanceLaunched:
		key := e.Machine + "/" + e.ID
		if b.Machines[key] == nil {
			b.Machines[key] = &Receipt{Workload: e.Workload, Offer: e.Offer, From: e.At, To: b.Strays[key]}
			delete(b.Strays, key)
		}
	case events.InstanceEnded:
		key := e.Machine + "/" + e.ID
		if r := b.Machines[key]; r == nil {
			b.Strays[key] = e.At // the purchase may be heard after the end
		} else if r.To.IsZero() || e.At.Before(r.To) {
			r.To = e.At
		}
	}
}

// warn says once what a budget has come to. The sums are right at each tick.
func (b *Book) warn(fleetName string, now time.Time) []events.Event {
	var out []events.Event
	names := fleet.Sorted(b.Workloads)
	for _, name := range names {
		a := b.Workloads[name]
		budget, ok := a.Budget.Get()
		if !ok || a.Exhausted {
			continue
		}
		spent := b.Spent(name, now)
		switch {
		case spent.Amount.GreaterThanOrEqual(budget.Amount):
			a.Exhausted = true
			out = append(out, events.New(fleetName, "ledger", now, events.BudgetExhausted{Workload: name, Spent: spent, Budget: budget}))
		case !a.Warned && spent.Amount.GreaterThanOrEqual(budget.Times(warnAt).Amount):
			a.Warned = true
			out = append(out, events.New(fleetName, "ledger", now, events.BudgetWarned{Workload: name, Spent: spent, Budget: budget}))
		}
	}
	return out
}
