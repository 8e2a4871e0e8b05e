// Package prices asks each cloud what it sells, and keeps the market: every offer in USD an hour, and what the facts of
// all fleets say about each pool. It alone writes the market.
//
// It promises:
//
//   - price.changed is said for a change that matters: a price that moved by Options.Matters, a pool that came, went, ran
//     out or has stock again. Its digest is that of the region's offers in the object store.
//   - A cloud that cannot be asked keeps its last offers; their age is told by Book.Age.
//   - A price that cannot be true is never planned on (Judge, and 20 times off what the pool cost a day before). Its
//     Hourly is unknown, and the summary says so. What must be paid for a term, used or not, is not planned on either.
//   - An account that sold something and now answers with nothing is not believed: it keeps its last offers.
//   - Purchases, refusals, hours and interruptions are counted once each, by their place in the stream.
//   - Of each spot pool it is known since when it is to be had, or not, how much of the last day it was, how often it went
//     against what is ordinary, and its usual price. A stock that a cloud does not tell is taken from purchases,
//     refusals, interruptions and machines that live.
//   - What benchmarks measured goes into each offer's speed, and so into its price per hour of useful work.
//
// It does not choose. A fact that it could not publish is said again when its message comes again.
package prices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/provider"
	"lowtide/shared/store"
)

// bookKey is beside fleet.MarketKey in the bucket: Book as fleet.Pack writes it, what prices remembers.
const bookKey = "prices"

// Options are what need not be said. The zero Options work.
type Options struct {
	Now     func() time.Time // lowtide's time; time.Now
	Every   time.Duration    // least time between two questions to one account; 20 s
	Matters float64          // a price change that is told, as a share; 0.005
	Book    fleet.Book       // exchange rates, the user's deals and own quotes; the zero Book pays what is quoted, in USD
	Batch   int              // most facts in one call; 100
}

// New makes the function. fleets are told of changes; accounts are asked, through their wrappers. Its consumer must be
// serial and in stream order.
func New(source string, fleets []string, accounts []provider.Provider, market store.Bucket, offers store.Objects, opts Options) fn.Function {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.Every = cmp.Or(opts.Every, 20*time.Second)
	opts.Matters = cmp.Or(opts.Matters, 0.005)
	opts.Batch = cmp.Or(max(opts.Batch, 0), 100)
	p := &prices{source, fleets, accounts, market, offers, opts}
	f := fn.Fold("prices", opts.Batch, []events.Kind{
		"clock.ticked", "instance.launched", "instance.ended", "instance.interrupted", "plan.failed", "instance.verified", "instance.rejected",
	}, p.handle)
	f.Slow = time.Minute
	return f
}

type prices struct {
	source   string
	fleets   []string
	accounts []provider.Provider
	market   store.Bucket
	objects  store.Objects
	opts     Options
}

// Book is what prices remembers.
type Book struct {
	Version uint64                     `json:"version"`
	Applied map[string]uint64          `json:"applied"`          // stream to the last sequence counted
	Asked   map[string]time.Time       `json:"asked"`            // cloud/account to when it last answered
	Failed  map[string]string          `json:"failed,omitempty"` // cloud/account that did not answer last: provider.Word
	Offers  map[string]fleet.Offer     `json:"offers"`           // by pool
	Trusted map[string]Trusted         `json:"trusted"`
	Said    map[string]Said            `json:"said"`             // cloud/region
	Pools   map[string]*fleet.PoolPast `json:"pools"`            // machines that have ended
	Live    map[string]Live            `json:"live"`             // machines that run, by fleet/machine
	Done    map[string]time.Time       `json:"done"`             // machines that have ended lately: their facts may come again
	Speeds  map[string]*Speed          `json:"speeds,omitempty"` // by pool
}

// Trusted is the last price of a pool that could be true, USD an hour.
type Trusted struct {
	Hourly float64   `json:"hourly"`
	At     time.Time `json:"at"`
}

// Said is the last price.changed of a region.
type Said struct {
	Change  events.PriceChanged `json:"change"`
	Offers  []told              `json:"offers"`
	Version uint64              `json:"version"` // of the book that said it: a market that swings back says something new
}

// told is what a fact said about one pool.
type told struct {
	Pool   string  `json:"pool"`
	Hourly float64 `json:"hourly"` // 0: not known
	Had    bool    `json:"had"`    // it was to be had
}

// Live is a machine that runs.
type Live struct {
	ID          string    `json:"id"` // the cloud's
	Pool        string    `json:"pool"`
	Type        string    `json:"type,omitempty"`  // cloud/type
	Proof       string    `json:"proof,omitempty"` // nonce of the last benchmark that was counted: verdicts are said again
	Since       time.Time `json:"since"`
	Interrupted bool      `json:"interrupted,omitempty"`
}

// Age is how old the offers of an account are; false if it never answered.
func (b *Book) Age(cloud, account string, now time.Time) (time.Duration, bool) {
	at, ok := b.Asked[cloud+"/"+account]
	return now.Sub(at), ok
}

// Read returns what prices remembers; an empty book if it has not begun.
func Read(ctx context.Context, market store.Bucket) (*Book, uint64, error) {
	b := &Book{}
	v, rev, err := market.Get(ctx, bookKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return nil, 0, fmt.Errorf("read prices: %w", err)
	default:
		if err := fleet.Unpack(v, b); err != nil {
			return nil, 0, fmt.Errorf("read prices: %w", err)
		}
	}
	make0(&b.Applied)
	make0(&b.Asked)
	make0(&b.Offers)
	make0(&b.Trusted)
	make0(&b.Said)
	make0(&b.Pools)
	make0(&b.Live)
	make0(&b.Done)
	make0(&b.Speeds)
	return b, rev, nil
}

func make0[V any](m *map[string]V) {
	if *m == nil {
		*m = map[string]V{}
	}
}

// handle counts facts and asks the clouds, once a batch. Everything is stored before anything is said.
func (p *prices) handle(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
	b, rev, err := Read(ctx, p.market)
	if err != nil {
		return nil, err
	}
	now, tick, again := time.Time{}, false, false
	for _, d := range batch {
		if d.At.After(now) {
			now = d.At
		}
		if d.Seq <= b.Applied[d.Stream] {
			again = true // counted before; what was said then may be lost
			continue
		}
		b.Applied[d.Stream] = d.Seq
		if t, ok := d.Event.Data.(events.ClockTicked); ok {
			tick = tick || t.What != "wake"
			continue
		}
		b.count(d)
	}
	if n := p.opts.Now(); n.After(now) {
		now = n
	}
	var changed []string
	if tick {
		p.ask(ctx, b, now)
		if changed, err = p.compare(ctx, b, now); err != nil {
			return nil, err
		}
	}
	if again {
		changed = fleet.Sorted(b.Said)
	}
	if err := p.save(ctx, b, rev, now); err != nil {
		return nil, err
	}
	return p.say(b, changed, now), nil
}

// ask puts each account's offers into the book. An account that does not answer keeps what it had.
func (p *prices) ask(ctx context.Context, b *Book, now time.Time) {
	b.Failed = map[string]string{}
	for _, a := range p.accounts {
		tr := a.Traits()
		key := tr.Cloud + "/" + tr.Account
		if now.Sub(b.Asked[key]) < p.opts.Every {
			continue
		}
		offers, err := a.Offers(ctx)
		if err != nil {
			b.Failed[key] = provider.Word(err)
			continue
		}
		if len(offers) == 0 && b.sells(tr.Cloud, tr.Account) {
			b.Failed[key] = "empty"
			continue
		}
		for _, o := range p.opts.Book.Prices {
			if o.Cloud == tr.Cloud {
				o.Account = tr.Account
				offers = append(offers, o)
			}
		}
		seen := map[string]fleet.Offer{} // sold now, or before
		for pool, o := range b.Offers {
			if o.Cloud == tr.Cloud && o.Account == tr.Account {
				seen[pool] = o
				delete(b.Offers, pool)
			}
		}
		for _, o := range p.normalise(b, offers, now) {
			o.Certified = strings.Join(p.opts.Book.Certified[o.Cloud], ",")
			b.Offers[o.Pool()], seen[o.Pool()] = o, o
		}
		b.looks(seen, now)
		b.Asked[key] = now
	}
}

func (b *Book) sells(cloud, account string) bool {
	for _, o := range b.Offers {
		if o.Cloud == cloud && o.Account == account {
			return true
		}
	}
	return false
}

// save writes the book, and then the market that follows from it. A crash between the two is made good by the next
// call, since the book is what counts.
func (p *prices) save(ctx context.Context, b *Book, rev uint64, now time.Time) error {
	b.Version++
	v, err := fleet.Pack(b)
	if err == nil {
		_, err = store.Put(ctx, p.market, bookKey, v, rev)
	}
	if err != nil {
		return fmt.Errorf("save prices: %w", err)
	}
	if v, err = fleet.Pack(b.markets(now)); err != nil {
		return fmt.Errorf("save market: %w", err)
	}
	_, rev, err = p.market.Get(ctx, fleet.MarketKey)
	if errors.Is(err, store.ErrNotFound) {
		rev, err = 0, nil
	}
	if err == nil {
		_, err = store.Put(ctx, p.market, fleet.MarketKey, v, rev)
	}
	if err != nil {
		return fmt.Errorf("save market: %w", err)
	}
	return nil
}

// markets is what the decider plans on. It is as old as the account that answered longest ago.
func (b *Book) markets(now time.Time) fleet.Markets {
	m, types := fleet.Markets{AsOf: now, Pools: b.past(now)}, b.types()
	for _, at := range b.Asked {
		if at.Before(m.AsOf) {
			m.AsOf = at
		}
	}
	if len(b.Offers) > 0 {
		m.Offers = make([]fleet.Offer, 0, len(b.Offers)) // they are large, and many
	}
	for _, pool := range fleet.Sorted(b.Offers) {
		o := b.Offers[pool]
		if o.Term > 0 {
			continue // nobody commits to months by a plan
		}
		o.Speed = b.speed(o, types)
		if past := m.Pools[pool]; past != nil && past.Hours >= hazardAfter {
			o.Hazard = fleet.Known(float64(past.Interruptions) / past.Hours)
		}
		m.Offers = append(m.Offers, o)
	}
	return m
}

// say makes price.changed of regions, for each fleet.
func (p *prices) say(b *Book, regions []string, now time.Time) []events.Event {
	var out []events.Event
	for _, r := range slices.Compact(slices.Sorted(slices.Values(regions))) {
		for _, f := range p.fleets {
			e := events.New(f, p.source, now, b.Said[r].Change)
			e.ID = fmt.Sprintf("%s/%d", e.ID, b.Said[r].Version)
			out = append(out, e)
		}
	}
	return out
}
