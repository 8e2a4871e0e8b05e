package tencent

import (
	"context"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// charges are the vendor's words for the markets.
var charges = map[fleet.Market]string{fleet.OnDemand: "POSTPAID_BY_HOUR", fleet.Spot: "SPOTPAID", fleet.Reserved: "PREPAID"}

// market reads a charge type. What is neither spot nor a subscription is billed as on demand, by us or by another's host.
func market(charge string) fleet.Market {
	for m, c := range charges {
		if c == charge {
			return m
		}
	}
	return fleet.OnDemand
}

// families says which GPU a family of machines has: no answer does. Only what the vendor's product pages say is here;
// families that they call "NVIDIA GPU", or that are told in two ways, are not.
var families = map[string]string{
	"GI3X": "T4", "GN6S": "P4", "GN7": "T4", "GN7VI": "T4", "GN7VW": "T4", "GN8": "P40", "GN10X": "V100 SXM2 32GB", "GN10XP": "V100 SXM2 32GB",
	"GNV4": "A10", "PNV4": "A10", "GT4": "A100 SXM4 40GB",
}

// row is one type in one zone on one market, with its price and stock.
type row struct {
	Zone     string          `json:"Zone"`
	Type     string          `json:"InstanceType"`
	Family   string          `json:"InstanceFamily"`
	Charge   string          `json:"InstanceChargeType"`
	GPUs     decimal.Decimal `json:"GpuCount"` // below 1: a share of one
	Status   string          `json:"Status"`
	Category string          `json:"StatusCategory"`
	Price    prices          `json:"Price"`
}

// prices are filled with zeros where they do not apply, and with sums of another market: read them by the charge type.
type prices struct {
	Unit     decimal.NullDecimal `json:"UnitPrice"`         // list, an hour
	UnitPays decimal.NullDecimal `json:"UnitPriceDiscount"` // payable, an hour; the first 96 hours where it is stepped
	Month    decimal.NullDecimal `json:"DiscountPrice"`
	Year     decimal.NullDecimal `json:"DiscountPriceOneYear"`
	Three    decimal.NullDecimal `json:"DiscountPriceThreeYear"`
}

// Offers implements provider.Provider. A region that fails fails all: half a market is worse than yesterday's.
// What is sold out is listed with a stock of 0; how many there are otherwise is not told.
func (t *Tencent) Offers(ctx context.Context) ([]fleet.Offer, error) {
	out, err := provider.Across(Cloud, "offers", t.s.Regions, func(region string) (out []fleet.Offer, err error) {
		var page struct {
			Rows []row `json:"InstanceTypeQuotaSet"`
		}
		ask := query{Filters: []filter{{Name: "instance-charge-type", Values: []string{"POSTPAID_BY_HOUR", "SPOTPAID", "PREPAID"}}}}
		err = t.wire.call(ctx, region, "DescribeZoneInstanceConfigInfos", ask, &page)
		for _, r := range page.Rows {
			out = append(out, t.offers(region, r)...)
		}
		return out, err
	})
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.quoted = provider.QuotesOf(out)
	return out, nil
}

// offers are what one row sells: nothing where it has no whole GPU, no price of its market, or needs a cluster of the
// vendor's first (the HCC families, bare metal).
func (t *Tencent) offers(region string, r row) []fleet.Offer {
	if r.GPUs.LessThan(decimal.NewFromInt(1)) || !r.GPUs.IsInteger() || strings.HasPrefix(r.Family, "HCC") {
		return nil
	}
	o := fleet.Offer{
		Cloud: Cloud, Account: t.s.Account, Region: region, Zone: r.Zone, Type: r.Type, Market: market(r.Charge), GPUs: int(r.GPUs.IntPart()),
	}
	if o.Market == fleet.Spot {
		o.Notice = notice
	}
	if name := families[strings.ToUpper(r.Family)]; name != "" {
		c, _ := provider.ReadCard(name, 0)
		o.GPU, o.Form, o.Memory = c.Model, c.Form, c.Memory
	}
	if r.Status != "SELL" || r.Category == "WithoutStock" {
		o.Stock = fleet.Known(0)
	}
	switch r.Charge {
	case charges[fleet.OnDemand], charges[fleet.Spot]:
		return t.at(o, r.Price.hour(), 1, fleet.PerInstanceHour, 0)
	case charges[fleet.Reserved]:
		var out []fleet.Offer
		for _, s := range []struct {
			sum    decimal.NullDecimal
			months int64
		}{{r.Price.Month, 1}, {r.Price.Year, 12}, {r.Price.Three, 36}} {
			out = append(out, t.at(o, s.sum, s.months, fleet.PerMonth, time.Duration(s.months)*month)...)
		}
		return out
	}
	return nil
}

const month = 730 * time.Hour

// hour is what an hour costs this account. A payable price that is missing leaves the list price; a discount is never
// above it.
func (p prices) hour() decimal.NullDecimal {
	if p.UnitPays.Decimal.Sign() > 0 {
		return p.UnitPays
	}
	return p.Unit
}

// at puts a price on an offer: a sum for a number of units. Missing and zero is no offer.
func (t *Tencent) at(o fleet.Offer, sum decimal.NullDecimal, units int64, per fleet.Unit, term time.Duration) []fleet.Offer {
	if !sum.Valid || sum.Decimal.Sign() <= 0 {
		return nil
	}
	amount := sum.Decimal.DivRound(decimal.NewFromInt(units), 8)
	o.Price, o.Term = fleet.Price{Amount: fleet.Money{Amount: amount, Currency: t.s.Currency}, Per: per}, term
	if m, err := (fleet.Rates{}).Hourly(o.Price, o.GPUs); err == nil { // USD; another currency needs the price book's rate
		o.Hourly = fleet.Known(m)
	}
	return []fleet.Offer{o}
}
