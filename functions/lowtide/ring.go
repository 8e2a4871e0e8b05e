package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	"lowtide/functions/census"
	"lowtide/functions/intake"
	"lowtide/functions/ledger"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/notify"
	"lowtide/functions/notify/settings"
	"lowtide/functions/prices"
	"lowtide/functions/provision"
	"lowtide/functions/rebalance"
	"lowtide/functions/rules"
	idle "lowtide/functions/usage"
	"lowtide/functions/verify"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	host "lowtide/shared/fn/jetstream"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
	"lowtide/shared/provider"
	"lowtide/shared/store"
)

// The buckets; each has one writer.
const (
	fleetsBucket = "fleets" // rebalance
	marketBucket = "market" // prices
)

// ring is lowtide in one process: NATS and all functions.
type ring struct {
	fleet   string
	install string
	era     string
	clock   fn.Clock
	policy  plan.Policy
	tables  *pool.Tables
	ask     rebalance.Approval
	told    settings.Settings // whom to tell what
	own     *rules.Set        // users' automations; nil: none
	server  *embedded.Server
	nc      *nats.Conn
	js      jetstream.JetStream
	host    *host.Host
	stored  atomic.Int64 // when a tick was stored last, Unix nanoseconds
}

// ringOptions make a ring.
type ringOptions struct {
	dir     string
	fleet   string
	install string
	clock   fn.Clock
	policy  plan.Policy
	told    settings.Settings
	own     *rules.Set
	ask     rebalance.Approval
	durable bool // every message is on disk before it is acknowledged
}

// startRing starts NATS and the streams.
func startRing(ctx context.Context, o ringOptions) (r *ring, err error) {
	r = &ring{fleet: o.fleet, install: o.install, clock: o.clock, policy: o.policy, told: o.told, own: o.own, ask: o.ask}
	door := door{}
	if o.durable {
		r.era = rebalance.NewEra()
		if door, err = readDoor(o.dir); err != nil {
			return nil, err
		}
	}
	opts := embedded.Options{SyncAlways: o.durable, Listen: true, Port: door.Port, Token: door.Token}
	if r.server, err = embedded.Start(filepath.Join(o.dir, "nats"), opts); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if o.durable {
		if err = keepDoor(o.dir, r.server); err != nil {
			return nil, err
		}
	}
	if r.nc, err = r.server.Connect(bus.Options("lowtide", nil)...); err != nil {
		return nil, err
	}
	if r.js, err = bus.JetStream(r.nc); err != nil {
		return nil, err
	}
	if err = bus.Setup(ctx, r.js, 1); err != nil {
		return nil, err
	}
	r.host, err = host.New(r.nc, host.Options{Clock: o.clock, Fleet: o.fleet, Alone: true})
	return r, err
}

// plans are the tables of expected costs that decider and chat share.
func (r *ring) plans() *pool.Tables {
	if r.tables == nil {
		r.tables = pool.NewTables(rebalance.TablesLimit)
	}
	return r.tables
}

func (r *ring) close() {
	if r.nc != nil {
		r.nc.Close()
	}
	r.server.Shutdown()
}

// account is one account at a cloud, and what every machine that is bought there is told.
type account struct {
	provider.Provider
	data map[string]string
}

// suffix tells the functions of one account from another's. The fake cloud's have none.
func (a account) suffix() string {
	t := a.Traits()
	if t.Cloud == "fake" {
		return ""
	}
	return "-" + events.Token(t.Cloud) + "-" + events.Token(t.Account)
}

// functions wires what one process serves, in the order of the ring.
func (r *ring) functions(ctx context.Context, accounts []account, book fleet.Book) ([]fn.Function, error) {
	var firstErr error
	bucket := func(name string) store.Bucket {
		b, err := store.Open(ctx, r.js, name, 1)
		if err != nil && firstErr == nil {
			firstErr = fmt.Errorf("bucket %s: %w", name, err)
		}
		return b
	}
	objects, err := store.OpenObjects(ctx, r.js, "offers", 1)
	if err != nil {
		return nil, fmt.Errorf("bucket offers: %w", err)
	}
	market, claims := bucket(marketBucket), bucket("claims")
	seen := bucket("census")
	var asked []provider.Provider
	var each []fn.Function
	for _, a := range accounts {
		asked = append(asked, a.Provider)
		carry := provision.Options{Now: r.clock.Now, UserData: a.data}
		if r.era != "" { // a story tells it in its own words
			carry.Say = func(line string) { slog.Info(line) }
		}
		own := []fn.Function{
			census.New("census", r.install, a.Provider, claims, seen, census.Options{Now: r.clock.Now, Fleet: r.fleet}),
			provision.New("provision", a.Provider, claims, carry),
			provision.Twins("provision-twins", a.Provider, claims, carry),
		}
		for _, f := range own {
			f.Name += a.suffix()
			each = append(each, f)
		}
	}
	fns := append([]fn.Function{
		prices.New("prices", []string{r.fleet}, asked, market, objects, prices.Options{Now: r.clock.Now, Book: book}),
		idle.New(bucket("usage"), idle.Options{}),
		verify.New(bucket("benchmarks"), verify.Options{Real: r.clock.Real}),
		rebalance.New(rebalance.Config{
			Fleet: r.fleet, Install: r.install, Era: r.era, States: bucket(fleetsBucket), Market: market, Policy: r.policy, Approval: r.ask, Tables: r.plans(), Batch: 128,
		}).Function(),
		ledger.New(r.fleet, bucket("ledger")),
		intake.Function(),
	}, each...)
	tell, err := notify.New(notify.Config{
		Fleet: r.fleet, Books: bucket("notify"), Places: r.told.Places, Words: r.told.Words, Links: r.told.Links, Now: r.clock.Now, Real: r.clock.Real,
	})
	if err != nil {
		return nil, err
	}
	fns = append(fns, tell...)
	if r.own != nil {
		fns = append(fns, rules.New(rules.Config{Fleet: r.fleet, Books: bucket("rules"), States: bucket(fleetsBucket), Market: market, Now: r.clock.Now}, r.own)...)
	}
	return fns, firstErr
}

// tick says clock.ticked at once, so that nobody waits for the first prices, and then until ctx ends.
func (r *ring) tick(ctx context.Context, every time.Duration) {
	t := time.NewTicker(max(r.clock.Real(every), 50*time.Millisecond))
	defer t.Stop()
	for r.stored.Store(time.Now().UnixNano()); ctx.Err() == nil; {
		now := r.clock.Now()
		err := r.host.Say(ctx, events.New(r.fleet, "schedule", now, events.ClockTicked{What: "tick", Due: now}))
		if err == nil { // else the next tick makes it good
			r.stored.Store(time.Now().UnixNano())
		}
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
}
