package world

import (
	"time"

	"lowtide/functions/census"
	"lowtide/functions/ledger"
	"lowtide/functions/prices"
	"lowtide/functions/provision"
	"lowtide/functions/rebalance"
	"lowtide/functions/usage"
	"lowtide/functions/verify"
	"lowtide/shared/fn"
	"lowtide/shared/plan"
	"lowtide/shared/provider"
	"lowtide/shared/store"
)

// policy reckons with what this world does to a start: machines that are slow, dark or refused, and lost messages.
var policy = plan.Policy{
	Wake: 5 * time.Minute, StartUp: 5 * time.Minute, StartMax: 45 * time.Minute, MinStay: 20 * time.Minute, Margin: 2,
	Silence: 10 * time.Minute, Lease: 6 * time.Hour, Grace: 15 * time.Minute, PlanLife: 10 * time.Minute, Offers: 4,
}

// serve starts the functions as main does. Each is made anew after a crash, with nothing but what the stores hold.
func (w *World) serve() {
	const install = "install"
	claims, markets, objects := store.Memory(), store.Memory(), store.MemoryObjects()
	orders, listings, books, uses := store.Memory(), store.Memory(), store.Memory(), store.Memory()
	carry := provision.Options{Now: w.Host.Now}
	for _, made := range []func() fn.Function{
		func() fn.Function {
			return prices.New("prices", []string{fleetName}, []provider.Provider{listed{w.Cloud, w.o.Less}}, markets, objects, prices.Options{Now: w.Host.Now})
		},
		func() fn.Function {
			return census.New("census", install, w.Cloud, claims, listings, census.Options{Now: w.Host.Now, Fleet: fleetName})
		},
		func() fn.Function { return usage.New(uses, usage.Options{}) },
		func() fn.Function { return verify.New(orders, verify.Options{}) },
		func() fn.Function {
			return w.o.Less.hears(rebalance.New(rebalance.Config{
				Fleet: fleetName, Install: install, States: w.States, Market: markets, Policy: policy, Tables: w.o.Tables, Batch: 64,
			}).Function())
		},
		func() fn.Function { return provision.New("provision", w.Cloud, claims, carry) },
		func() fn.Function { return provision.Twins("provision-twins", w.Cloud, claims, carry) },
		func() fn.Function { return ledger.New(fleetName, books) },
	} {
		w.Host.AddMade(fleetName, made)
	}
}
