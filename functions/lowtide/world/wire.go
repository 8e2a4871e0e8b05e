package world

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/functions/provision"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/plan"
	"lowtide/shared/store"
)

var policy = plan.Policy{
	Wake: 5 * time.Minute, StartUp: 5 * time.Minute, StartMax: 45 * time.Minute, MinStay: 20 * time.Minute, Margin: 2,
	Silence: 10 * time.Minute, Lease: 6 * time.Hour, Grace: 15 * time.Minute, PlanLife: 10 * time.Minute, Offers: 4,
}

func (w *World) serve() {
	claims, markets := store.Memory(), store.Memory()
	w.Host.AddMade(fleetName, func() fn.Function {
		return rebalance.New(rebalance.Config{
			Fleet: fleetName, Install: "install", States: w.States, Market: markets, Policy: policy, Batch: 64,
		}).Function()
	})
	w.Host.AddMade(fleetName, func() fn.Function {
		return provision.New("provision", w.Cloud, claims, provision.Options{Now: w.Host.Now})
	})
	w.Host.AddMade(fleetName, func() fn.Function {
		return provision.Twins("provision", w.Cloud, claims, provision.Options{Now: w.Host.Now})
	})
	n := 0
	w.Host.AddMade(fleetName, func() fn.Function {
		return fn.New("verify", fn.Hear(func(ctx context.Context, b events.BenchmarkFinished) ([]events.Event, error) {
			n++
			src := fmt.Sprintf("verify/%d", n)
			if b.Verdict == "pass" {
				return []events.Event{events.New(fleetName, src, fn.Now(ctx), events.InstanceVerified{Machine: b.Machine, Nonce: b.Nonce, Ratio: 1})}, nil
			}
			return []events.Event{events.New(fleetName, src, fn.Now(ctx), events.InstanceRejected{Machine: b.Machine, Nonce: b.Nonce, Cause: "slow"})}, nil
		}))
	})
	last := ""
	w.Host.AddMade(fleetName, func() fn.Function {
		return fn.New("prices", fn.Hear(func(ctx context.Context, e events.ClockTicked) ([]events.Event, error) {
			if e.What != "tick" {
				return nil, nil
			}
			offers, err := w.Cloud.Offers(ctx)
			if err != nil {
				return nil, nil
			}
			for i := range offers {
				offers[i].Hourly = fleet.Known(offers[i].Price.Amount)
			}
			b, _ := json.Marshal(fleet.Markets{Offers: offers})
			if string(b) == last {
				return nil, nil
			}
			last = string(b)
			_, rev, err := markets.Get(ctx, rebalance.MarketKey)
			if err != nil {
				_, err = markets.Create(ctx, rebalance.MarketKey, b)
			} else {
				_, err = markets.Update(ctx, rebalance.MarketKey, b, rev)
			}
			if err != nil {
				return nil, err
			}
			return []events.Event{events.New(fleetName, "prices", fn.Now(ctx), events.PriceChanged{Cloud: "fake", Region: "r", Digest: fmt.Sprint(len(b), fn.Now(ctx))})}, nil
		}))
	})
}
