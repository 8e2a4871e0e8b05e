package azure

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// row is one price of the Retail Prices API. What is wanted is told from what is not by names alone: of a size that
// costs 0.673 there are rows of 0.747 (Windows), 0.747 (Cloud Services), 0.135 (Low Priority) and 0.673 (DevTest).
//
//	type           skuName            productName                                     is
//	Consumption    "… Spot"           no " Windows", no "Cloud Services"              spot, an hour
//	Consumption    no suffix          the same                                        on demand, an hour
//	Reservation    no suffix          the same                                        the whole term, though the unit says "1 Hour"
//	else           " Low Priority", "Dedicated", DevTestConsumption                   nothing
type row struct {
	Size     string              `json:"armSkuName"`
	Product  string              `json:"productName"`
	SKU      string              `json:"skuName"`
	Region   string              `json:"armRegionName"`
	Type     string              `json:"type"`
	Term     string              `json:"reservationTerm"`
	Price    decimal.NullDecimal `json:"retailPrice"`
	Currency fleet.Currency      `json:"currencyCode"`
	Unit     string              `json:"unitOfMeasure"`
	Tier     decimal.NullDecimal `json:"tierMinimumUnits"`
}

// sold is what a price is for.
type sold struct {
	size   string
	market fleet.Market
	term   time.Duration
}

// terms are the reservations: their words, and how many months.
var terms = map[string]int64{"1 Year": 12, "3 Years": 36, "5 Years": 60}

// month is a twelfth of a year of 8,760 hours.
const month = 730 * time.Hour

// read is what a row is for, and its price; false for what is not wanted.
func (r row) read() (s sold, p fleet.Price, ok bool) {
	windows := strings.HasSuffix(r.Product, " Windows") || strings.HasSuffix(r.Product, " Win")
	services := strings.Contains(r.Product, "Cloud Services") || strings.Contains(r.Product, "CloudServices")
	other := strings.HasSuffix(r.SKU, " Low Priority") || strings.Contains(r.SKU, "Dedicated") || strings.Contains(r.Product, "Dedicated")
	if windows || services || other || r.Size == "" || r.Price.Decimal.Sign() <= 0 || r.Currency == "" || r.Unit != "1 Hour" || r.Tier.Decimal.Sign() > 0 {
		return s, p, false
	}
	s.size, p = r.Size, fleet.Price{Amount: fleet.Money{Amount: r.Price.Decimal, Currency: r.Currency}, Per: fleet.PerInstanceHour}
	spot := strings.HasSuffix(r.SKU, " Spot")
	switch months := terms[r.Term]; {
	case r.Type == "Consumption" && spot:
		s.market = fleet.Spot
	case r.Type == "Consumption":
		s.market = fleet.OnDemand
	case r.Type == "Reservation" && months > 0 && !spot: // the sum for the whole term
		s.market, s.term = fleet.Reserved, time.Duration(months)*month
		p.Amount.Amount, p.Per, p.Includes = r.Price.Decimal.DivRound(decimal.NewFromInt(months), 8), fleet.PerMonth, "a discount on the bill, paid for the term; it holds no capacity"
	default:
		return s, p, false
	}
	return s, p, true
}

// priceList is what a region's sizes cost. A price that two rows tell differently is not known: the rule above has aged.
type priceList struct {
	at     time.Time
	prices map[sold]fleet.Price
}

func readPrices(rows []row) map[sold]fleet.Price {
	out, twice := map[sold]fleet.Price{}, map[sold]bool{}
	for _, r := range rows {
		s, p, ok := r.read()
		if !ok {
			continue
		}
		if was, seen := out[s]; seen && !was.Amount.Amount.Equal(p.Amount.Amount) {
			twice[s] = true
		}
		out[s] = p
	}
	for s := range twice {
		delete(out, s)
	}
	return out
}

// list reads the prices of a region, one page after the other: pages shift while prices change.
func (a *Azure) list(ctx context.Context, region string) (map[sold]fleet.Price, error) {
	now := a.s.Now()
	a.mu.Lock()
	l, ok := a.prices[region]
	a.mu.Unlock()
	if ok && now.Sub(l.at) < a.s.Keep {
		return l.prices, nil
	}
	var rows []row
	first := url.Values{
		"api-version": {pricesVersion}, "$filter": {"serviceName eq 'Virtual Machines' and armRegionName eq '" + region + "'"},
	}.Encode()
	err := provider.Pages(ctx, func(token string) (string, error) {
		if token == "" {
			token = first
		}
		page, err := a.wire.retail(ctx, token)
		if err != nil {
			return "", err
		}
		rows = append(rows, page.Items...)
		return query(page.Next)
	})
	if err != nil {
		return nil, fmt.Errorf("prices: %w", err)
	}
	l = priceList{now, readPrices(rows)}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.prices[region] = l
	return l.prices, nil
}

type retailPage struct {
	Items []row  `json:"Items"`
	Next  string `json:"NextPageLink"`
}

// retail asks for a page of prices. It takes no key.
func (w *wire) retail(ctx context.Context, query string) (out retailPage, err error) {
	req, err := provider.JSON(ctx, http.MethodGet, w.prices+"/api/retail/prices?"+query, nil)
	if err != nil {
		return out, err
	}
	a, err := provider.Exchange(w.s.Client, req, false)
	switch {
	case err != nil:
		return out, err
	case a.Status >= 300:
		return out, explain(a, false)
	case json.Unmarshal(a.Body, &out) != nil || out.Items == nil:
		return out, fmt.Errorf("%w: a page that is not as described", provider.ErrUnavailable)
	}
	return out, nil
}

// place is where a size may be used: a zone, "" where the region has none of it, and whether the subscription may.
type place struct {
	zone string
	may  bool
}

// Offers implements provider.Provider. A region that fails fails all: half a market is worse than yesterday's.
func (a *Azure) Offers(ctx context.Context) ([]fleet.Offer, error) {
	kinds := map[string]kind{}
	out, err := provider.Across(Cloud, "offers", a.s.Regions, func(name string) ([]fleet.Offer, error) { return a.offers(ctx, name, kinds) })
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.quoted, a.kinds = provider.QuotesOf(out), kinds
	return out, nil
}

// sizeList is which sizes with GPUs a region has for this subscription, and where.
type sizeList struct {
	at     time.Time
	kinds  map[string]kind
	places map[string][]place
}

// sizes reads the sizes of a region; without an account there are none to read. They are kept as long as prices: the answer is of
// megabytes.
func (a *Azure) sizes(ctx context.Context, name string) (sizeList, error) {
	now := a.s.Now()
	a.mu.Lock()
	l, ok := a.regions[name]
	a.mu.Unlock()
	if ok && now.Sub(l.at) < a.s.Keep || a.s.Subscription == "" {
		return l, nil
	}
	skus, err := a.wire.skus(ctx, name)
	if err != nil {
		return l, fmt.Errorf("sizes: %w", err)
	}
	l = sizeList{now, map[string]kind{}, map[string][]place{}}
	for _, s := range skus {
		if k, ok := kindOf(s.Name, s.gpus()); ok && s.Kind == "virtualMachines" {
			l.kinds[s.Name], l.places[s.Name] = k, s.places(name)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.regions[name] = l
	return l, nil
}

// offers is what one region sells. Without an account nobody tells where: a size is then offered once.
func (a *Azure) offers(ctx context.Context, name string, kinds map[string]kind) ([]fleet.Offer, error) {
	sizes, err := a.sizes(ctx, name)
	if err != nil {
		return nil, err
	}
	places := map[string][]place{}
	for size, k := range sizes.kinds {
		kinds[size], places[size] = k, sizes.places[size]
	}
	prices, err := a.list(ctx, name)
	if err != nil {
		return nil, err
	}
	if a.s.Subscription == "" {
		for s := range prices {
			if k, ok := kindOf(s.size, 0); ok {
				kinds[s.size], places[s.size] = k, []place{{may: true}}
			}
		}
	}
	var out []fleet.Offer
	for _, size := range fleet.Sorted(places) {
		o := kinds[size].of(fleet.Offer{Cloud: Cloud, Account: a.s.Account, Region: name, Type: size})
		out = append(out, sells(o, places[size], prices)...)
	}
	return out, nil
}

// sells is what is sold of one size: by the hour in each zone, reservations in the region.
func sells(o fleet.Offer, places []place, prices map[sold]fleet.Price) []fleet.Offer {
	var out []fleet.Offer
	add := func(m fleet.Market, term time.Duration, at place) {
		p, ok := prices[sold{o.Type, m, term}]
		if !ok {
			return
		}
		o.Market, o.Term, o.Price, o.Zone, o.Stock = m, term, p, "", fleet.Maybe[int]{}
		if at.zone != "" {
			o.Zone = o.Region + "-" + at.zone
		}
		if !at.may {
			o.Stock = fleet.Known(0)
		}
		o.Hourly, o.Notice = provider.Dollars(o), 0
		if m == fleet.Spot {
			o.Notice = notice
		}
		out = append(out, o)
	}
	for _, m := range []fleet.Market{fleet.OnDemand, fleet.Spot} {
		for _, at := range places {
			add(m, 0, at)
		}
	}
	for _, t := range []int64{12, 36, 60} {
		add(fleet.Reserved, time.Duration(t)*month, place{may: true})
	}
	return out
}

// gpus is how many GPUs the API says that a size has.
func (s sku) gpus() int {
	for _, c := range s.Capabilities {
		if c.Name == "GPUs" {
			n, _ := strconv.Atoi(c.Value)
			return n
		}
	}
	return 0
}

// places are the zones of a region that have the size, and the region itself where there are none.
func (s sku) places(name string) []place {
	closed, all := map[string]bool{}, false
	for _, r := range s.Restrictions {
		all = all || r.Kind == "Location"
		for _, z := range r.Info.Zones {
			closed[z] = closed[z] || r.Kind == "Zone"
		}
	}
	var out []place
	for _, p := range s.Places {
		if region(p.Location) != name {
			continue
		}
		for _, z := range slices.Sorted(slices.Values(p.Zones)) {
			out = append(out, place{z, !all && !closed[z]})
		}
	}
	if len(out) == 0 {
		return []place{{"", !all}}
	}
	return out
}
