package fleet_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
)

func TestTheDealThatSaysMostCounts(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	share := func(s string) fleet.Maybe[decimal.Decimal] { return fleet.Known(decimal.RequireFromString(s)) }
	b := fleet.Book{
		Rates: fleet.Rates{AsOf: now, USD: map[fleet.Currency]decimal.Decimal{fleet.CNY: decimal.RequireFromString("0.1")}},
		Deals: []fleet.Deal{
			{Cloud: "aws", Times: share("0.9"), VAT: share("0.2")},
			{Cloud: "aws", Type: "p5*", Times: share("0.5")},
			{Cloud: "aws", Type: "p5.48xlarge", Market: fleet.Spot, Times: share("1")},
			{Cloud: "aws", Type: "g5*", Times: share("0.1"), Until: now}, // a coupon that is over
		},
	}
	offer := func(cloud, kind string, m fleet.Market, amount int64, c fleet.Currency, per fleet.Unit) fleet.Offer {
		return fleet.Offer{Cloud: cloud, Type: kind, Market: m, GPUs: 8, Price: fleet.Price{Amount: fleet.Money{Amount: decimal.NewFromInt(amount), Currency: c}, Per: per}}
	}
	for _, c := range []struct {
		o          fleet.Offer
		list, mine string
	}{
		{offer("vast", "x", fleet.Spot, 10, fleet.USD, fleet.PerInstanceHour), "10.00 USD", "10.00 USD"},
		{offer("aws", "g5.xlarge", fleet.OnDemand, 10, fleet.USD, fleet.PerInstanceHour), "10.00 USD", "10.80 USD"},
		{offer("aws", "p5.4xlarge", fleet.OnDemand, 10, fleet.USD, fleet.PerInstanceHour), "10.00 USD", "6.0000 USD"},
		{offer("aws", "p5.48xlarge", fleet.Spot, 10, fleet.USD, fleet.PerInstanceHour), "10.00 USD", "12.00 USD"},
		{offer("huawei", "snt9b", fleet.OnDemand, 5, fleet.CNY, fleet.PerGPUHour), "4.0000 USD", "4.0000 USD"},
	} {
		list, mine, err := b.Hourly(c.o, now)
		if err != nil || list.String() != c.list || mine.String() != c.mine {
			t.Errorf("%s: got %s and %s (%v), want %s and %s", c.o, list, mine, err, c.list, c.mine)
		}
	}
	for _, amount := range []int64{0, -1} {
		if _, _, err := b.Hourly(offer("aws", "x", fleet.Spot, amount, fleet.USD, fleet.PerInstanceHour), now); !errors.Is(err, fleet.ErrNoPrice) {
			t.Errorf("a price of %d: got %v, want %v", amount, err, fleet.ErrNoPrice)
		}
	}
	if _, _, err := b.Hourly(offer("aws", "x", fleet.Spot, 1, "EUR", fleet.PerInstanceHour), now); err == nil {
		t.Error("a currency without a rate has a price")
	}
	if b.Rates.Stale(now.Add(6*24*time.Hour)) || !b.Rates.Stale(now.Add(8*24*time.Hour)) {
		t.Error("a table is stale after a week, and not before")
	}
}
