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

func TestWhatWasPlannedToBePaidComesBackFromATag(t *testing.T) {
	o := fleet.Offer{Cloud: "c", Type: "t", Price: fleet.Price{Amount: fleet.Dollars(1.25), Per: fleet.PerInstanceHour}}
	tags := provider.Request{Offer: o, Labels: provider.Labels{Install: "i"}}.Tags()
	got := provider.Planned(fleet.Offer{Cloud: "c", Type: "t"}, tags)
	if usd, known := got.PerHour(); !known || usd != 1.25 || provider.FromTags(tags) != (provider.Labels{Install: "i"}) {
		t.Errorf("got %+v from %v", got, tags)
	}
	o.Price.Amount = fleet.Dollars(2)
	if got := provider.Planned(o, tags); got.Price.Amount.Float() != 2 {
		t.Errorf("a price that is told is replaced: %+v", got)
	}
	tags["lowtide-price"] = "much"
	if got := provider.Planned(fleet.Offer{}, tags); got.Price.Amount.Currency != "" {
		t.Errorf("read %+v from nonsense", got)
	}
	if tags := (provider.Request{}).Tags(); len(tags) != 0 {
		t.Errorf("a purchase without a price has %v", tags)
	}
}
