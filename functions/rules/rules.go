// Package rules carries out users' own automations: when a fact is heard, or the fleet is so for a while, or the clock
// says so, do something.
//
// It promises that what a rule does goes through the doors that people's words go through (shared/order: the role it has,
// workloads that live), that nothing is spent without a bound and no plan approved, and that each act, done or refused, is
// the fact rule.acted. A file that is wrong is refused whole, with its lines. A rule that errs, or that wakes itself
// through others, is switched off alone, until it is changed, and people are told; the others go on. What happened while
// nobody was here is not acted on later than ten minutes after.
// It holds no state of workloads and machines: it reads the decider's, which is up to a second old and may not know yet
// of the fact that is heard. It posts nothing itself but what Hooks does.
//
//	file, compile   text → rules, with lines        file.go, compile.go, clock.go
//	fields, view    facts and fleet → expressions   fields.go, view.go, scene.go
//	hear            facts and time → what is due    hear.go, book.go
//	act             what is due → facts             act.go
//	hooks           webhook.asked → a POST          hooks.go
package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

// Config makes the functions of one fleet.
type Config struct {
	Fleet  string
	Books  store.Bucket     // rules' own, under the fleet's name
	States store.Bucket     // rebalance's, read only
	Market store.Bucket     // prices', read only; nil: no price is known
	Now    func() time.Time // lowtide's: what is read up from the past is not acted on; nil: all is of now
}

const (
	fresh = time.Second      // how old the view of the fleet may be, on the wall
	late  = 10 * time.Minute // how long after a fact it is still acted on
	batch = 256
)

// Functions are the names that New gives.
var Functions = []string{"rules", "rules-hooks"}

// New makes the functions that a set of rules needs; none without rules.
func New(cfg Config, s *Set) []fn.Function {
	if len(s.rules) == 0 {
		return nil
	}
	fns := []fn.Function{newKeeper(cfg, s).function()}
	if h := Hooks(cfg, s, nil); h.Name != "" {
		fns = append(fns, h)
	}
	return fns
}

// keeper is the function that keeps the book.
type keeper struct {
	cfg  Config
	set  *Set
	book *Book // nil: read it first
	rev  uint64

	prices map[string]float64
	view   *View
	seen   uint64    // revision of the fleet that view shows
	looked time.Time // on the wall
}

func newKeeper(cfg Config, s *Set) *keeper { return &keeper{cfg: cfg, set: s} }

func (k *keeper) function() fn.Function { return fn.Fold("rules", batch, k.set.Hears(), k.fold) }

func (k *keeper) fold(ctx context.Context, batch []fn.Delivery) (_ []events.Event, err error) {
	if err := k.market(ctx, batch); err != nil {
		return nil, err
	}
	if err := k.look(ctx); err != nil {
		return nil, err
	}
	k.view.Prices = k.prices
	if k.book == nil {
		if k.book, k.rev, err = Read(ctx, k.cfg.Books, k.cfg.Fleet); err != nil {
			return nil, err
		}
	}
	said, err := k.enter(ctx, batch)
	if err != nil {
		k.book = nil
	}
	return said, err
}

// enter hears a batch, saves, and returns what is done. What a batch before this has done and perhaps not said, because
// the process died, is said again under the same ids.
func (k *keeper) enter(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
	t := &turn{set: k.set, book: k.book, view: k.view, fleet: k.cfg.Fleet}
	again := false
	for _, d := range batch {
		if d.Event.Fleet != k.cfg.Fleet {
			continue
		}
		if d.Stream == k.book.Applied.Stream && d.Seq <= k.book.Applied.Seq {
			again = true
			continue
		}
		t.begin(d, k.cfg.Now != nil && k.cfg.Now().Sub(d.At) > late)
		k.book.Applied = fleet.Position{Stream: d.Stream, Seq: d.Seq}
	}
	t.arm()
	said := t.said
	if again {
		old, err := k.book.last()
		if err != nil {
			return nil, err
		}
		said = append(old, said...)
	}
	if !t.changed {
		return said, nil // the facts were nobody's business: nothing is worth a write
	}
	if err := k.book.keep(t.said); err != nil {
		return nil, err
	}
	k.book.forget(k.set)
	var err error
	if k.rev, err = store.Save(ctx, k.cfg.Books, k.cfg.Fleet, k.book, k.rev); err != nil {
		return nil, fmt.Errorf("save the book of rules of %s: %w", k.cfg.Fleet, err)
	}
	return said, nil
}

// market reads what is sold, where a rule asks for prices and they have changed.
func (k *keeper) market(ctx context.Context, batch []fn.Delivery) error {
	changed := k.prices == nil || slices.ContainsFunc(batch, func(d fn.Delivery) bool { return d.Event.Data.Kind() == "price.changed" })
	if !k.set.prices || !changed || k.cfg.Market == nil {
		return nil
	}
	b, _, err := k.cfg.Market.Get(ctx, fleet.MarketKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	var m fleet.Markets
	if err == nil {
		err = fleet.Unpack(b, &m)
	}
	if err != nil {
		return fmt.Errorf("read market: %w", err)
	}
	k.prices = cheapest(m.Offers)
	return nil
}

// look reads the fleet where what is known of it is old.
func (k *keeper) look(ctx context.Context) error {
	if k.view != nil && time.Since(k.looked) < fresh {
		return nil
	}
	b, rev, err := k.cfg.States.Get(ctx, k.cfg.Fleet)
	switch {
	case errors.Is(err, store.ErrNotFound):
		k.view = see(fleet.New(k.cfg.Fleet, ""))
	case err != nil:
		return fmt.Errorf("read fleet %s: %w", k.cfg.Fleet, err)
	case rev != k.seen || k.view == nil:
		f, err := fleet.Decode(b)
		if err != nil {
			return fmt.Errorf("read fleet %s: %w", k.cfg.Fleet, err)
		}
		k.view, k.seen = see(f), rev
	}
	k.looked = time.Now()
	return nil
}
