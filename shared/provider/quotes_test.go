package provider_test

import (
	"testing"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

func TestAListedMachineIsPricedAsItsPoolWasOfferedAndGoneSpotAsOnDemand(t *testing.T) {
	offer := func(zone string, m fleet.Market, price float64) fleet.Offer {
		return fleet.Offer{Cloud: "c", Region: "r", Zone: zone, Type: "t", Market: m, GPU: "V100", GPUs: 1, Hourly: fleet.Known(fleet.Dollars(price))}
	}
	q := provider.QuotesOf([]fleet.Offer{offer("a", fleet.Spot, 1), offer("a", fleet.OnDemand, 3), offer("b", fleet.OnDemand, 4)})
	for _, c := range []struct {
		what, zone string
		market     fleet.Market
		want       float64 // 0: not known
	}{
		{"spot that is sold", "a", fleet.Spot, 1},
		{"spot that is not sold any more", "b", fleet.Spot, 4},
		{"on demand", "a", fleet.OnDemand, 3},
		{"what was never offered", "c", fleet.Spot, 0},
	} {
		listed := fleet.Offer{Cloud: "c", Region: "r", Zone: c.zone, Type: "t", Market: c.market}
		got := q.Price(listed)
		if price, _ := got.PerHour(); price != c.want || got.Market != c.market {
			t.Errorf("%s: got %.2f USD/h as %s, want %.2f as %s", c.what, price, got.Market, c.want, c.market)
		}
	}
}
