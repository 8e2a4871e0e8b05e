package world

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/provider"
)

// Less is what lowtide is not to know, to measure what knowing it is worth. The bill stays the true one.
type Less struct {
	Stock    bool // the price list does not show what has run out; a launch does
	Prices   bool // every spot offer is listed at their mean price
	Refusals bool // who refused is forgotten at once
}

// listed is a cloud whose price list says less.
type listed struct {
	provider.Provider
	less Less
}

// Offers implements provider.Provider.
func (l listed) Offers(ctx context.Context) ([]fleet.Offer, error) {
	offers, err := l.Provider.Offers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list less: %w", err)
	}
	sum, n := 0.0, 0.0
	for _, o := range offers {
		if p, ok := o.PerHour(); ok && o.Market == fleet.Spot {
			sum, n = sum+p, n+1
		}
	}
	for i := range offers {
		if l.less.Stock {
			offers[i].Stock = fleet.Maybe[int]{}
		}
		if l.less.Prices && offers[i].Market == fleet.Spot {
			offers[i].Price.Amount = fleet.Dollars(sum / n)
			offers[i].Hourly = fleet.Known(fleet.Dollars(sum / n))
		}
	}
	return offers, nil
}

// hears lets a function hear less.
func (l Less) hears(f fn.Function) fn.Function {
	if !l.Refusals {
		return f
	}
	whole := f.Handle
	f.Handle = func(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
		less := append([]fn.Delivery(nil), batch...)
		for i := range less {
			switch e := less[i].Event.Data.(type) {
			case events.InstanceLaunched:
				e.Refused = nil
				less[i].Event.Data = e
			case events.PlanFailed:
				e.Refused = nil
				less[i].Event.Data = e
			}
		}
		return whole(ctx, less)
	}
	return f
}

// Advice is what a cloud says of machines that may be taken soon (rebalance recommendations). The zero value is none.
type Advice struct {
	Before time.Duration // a loss
	Share  float64       // of losses that are advised
	False  float64       // chance an hour of advice without a loss
	Act    bool          // it is taken for a notice of the same length; else it is only heard
}

// advise gives advice, by dice of its own, so that a world is the same with it and without.
func (w *World) advise() {
	a := w.o.Advice
	if a.Before <= 0 {
		return
	}
	dice := rand.New(rand.NewPCG(w.o.Seed, 7))
	asked := map[string]bool{}
	w.Host.Every(time.Minute, func() {
		for _, r := range w.Cloud.Bill().Ours().Running() {
			if r.Offer.Market != fleet.Spot || r.Noticed {
				continue
			}
			soon := !r.KillAt.IsZero() && r.KillAt.Sub(w.Host.Now()) <= a.Before
			said := dice.Float64() < a.False/60
			if soon && !asked[r.ID] {
				asked[r.ID] = true
				said = dice.Float64() < a.Share
			}
			if !said {
				continue
			}
			var fact events.Fact = events.InstanceAtRisk{Cloud: r.Offer.Cloud, Account: r.Offer.Account, Machine: r.Name, ID: r.ID, Noticed: "advice"}
			if a.Act {
				fact = events.InstanceInterrupted{
					Cloud: r.Offer.Cloud, Account: r.Offer.Account, Machine: r.Name, ID: r.ID,
					EndsBy: w.Host.Now().Add(a.Before), Action: "terminate", Noticed: "advice",
				}
			}
			w.Host.Publish(events.New(fleetName, "notices", w.Host.Now(), fact))
		}
	})
}
