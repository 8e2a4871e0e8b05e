package provider

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"lowtide/shared/fleet"
)

// dryPrefix begins the ids of machines that were never bought.
const dryPrefix = "dry-"

// DryRun is an account that is only read. Launches answer with machines that exist here alone, at the live price, so
// that the ring goes on; they are listed and ended like others, and forgotten with the process.
type DryRun struct {
	read Provider // no writing call ever reaches it
	now  func() time.Time

	mu      sync.Mutex
	fakes   []Machine
	refused int
}

// Dry wraps an account so that nothing is ever written to it. now is lowtide's time.
func Dry(p Provider, now func() time.Time) *DryRun { return &DryRun{read: p, now: now} }

// Refused counts the writing calls that would have gone to the cloud: launches, and ends of real machines.
func (d *DryRun) Refused() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused
}

// Traits are the account's, marked dry; a token works once, whatever the cloud.
func (d *DryRun) Traits() Traits {
	t := d.read.Traits()
	t.Dry, t.Tokens = true, true
	return t
}

// Offers are the account's.
func (d *DryRun) Offers(ctx context.Context) ([]fleet.Offer, error) { return d.read.Offers(ctx) }

// Launch buys nothing: it answers with a machine at the price that the offer has now. An offer that is gone is
// ErrNoCapacity.
func (d *DryRun) Launch(ctx context.Context, want Request) (Machine, error) {
	id := dryID(want)
	d.mu.Lock()
	d.refused++
	i := d.find(id)
	d.mu.Unlock()
	if i >= 0 {
		return d.at(i), nil
	}
	offers, err := d.read.Offers(ctx)
	if err != nil {
		return Machine{}, fmt.Errorf("dry launch %s: %w", want.Offer, err)
	}
	at := slices.IndexFunc(offers, func(o fleet.Offer) bool { return o.Pool() == want.Offer.Pool() && o.Stock.Or(1) > 0 })
	if at < 0 {
		return Machine{}, fmt.Errorf("dry launch %s: %w", want.Offer, ErrNoCapacity)
	}
	live := offers[at]
	live.Stock = fleet.Maybe[int]{}
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := d.find(id); i >= 0 {
		return d.fakes[i], nil
	}
	m := Machine{ID: id, Labels: want.Labels, State: Running, Offer: live, Since: d.now().UTC()}
	d.fakes = append(d.fakes, m)
	return m, nil
}

// dryID is the same for the same purchase.
func dryID(want Request) string {
	h := sha256.Sum256([]byte(want.Token + "\x00" + want.Name + "\x00" + want.Offer.Pool()))
	return dryPrefix + hex.EncodeToString(h[:6])
}

// find is the index of a machine, -1 if it is not there; mu is held.
func (d *DryRun) find(id string) int {
	return slices.IndexFunc(d.fakes, func(m Machine) bool { return m.ID == id })
}

func (d *DryRun) at(i int) Machine {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fakes[i]
}

// List shows the account's machines and those that were not bought.
func (d *DryRun) List(ctx context.Context) ([]Machine, error) {
	real, err := d.read.List(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return append(slices.Clip(real), d.fakes...), nil
}

// End ends a machine that was never bought. A real one is refused: ErrRefusedHere.
func (d *DryRun) End(_ context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !strings.HasPrefix(id, dryPrefix) {
		d.refused++
		return fmt.Errorf("end %s: %w: dry run", id, ErrRefusedHere)
	}
	if i := d.find(id); i >= 0 && d.fakes[i].State != Gone {
		d.fakes[i].State, d.fakes[i].Until, d.fakes[i].Why = Gone, d.now().UTC(), "asked"
	}
	return nil
}
