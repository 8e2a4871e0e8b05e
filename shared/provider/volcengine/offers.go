package volcengine

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// How long what was read is not asked for again: there is a call for each type.
const (
	keepTypes = 12 * time.Hour // types and list prices
	keepSpot  = 15 * time.Minute
)

// look is how far back the last spot price is looked for.
const look = 24 * time.Hour

// region is what was learnt of one region. It is read and written under Volcengine.mu.
type region struct {
	read   time.Time // when types were
	types  map[string]kind
	spot   map[string]history
	lists  map[string]list
	quoted provider.Quotes // a listing tells no price
}

// kind is a machine type's GPUs.
type kind struct {
	card  provider.Card
	count int
}

// history is the newest spot price by zone.
type history struct {
	at   time.Time
	rows map[string]spotRow
}

// list is what a type costs where the zone does not matter, by term; 0: on demand. A price that is not told is not there.
type list struct {
	at     time.Time
	prices map[time.Duration]fleet.Price
}

func (v *Volcengine) region(name string) *region {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.regions[name]
	if r == nil {
		r = &region{spot: map[string]history{}, lists: map[string]list{}}
		v.regions[name] = r
	}
	return r
}

// priced gives a listed machine its GPUs, also of a type that is not offered, and the price of its pool.
func (r *region) priced(o fleet.Offer) fleet.Offer {
	if r == nil {
		return o
	}
	if k, ok := r.types[o.Type]; ok {
		o.GPU, o.GPUs, o.Form, o.Memory = k.card.Model, k.count, k.card.Form, k.card.Memory
	}
	return r.quoted.Price(o)
}

// offers is what one region sells.
func (v *Volcengine) offers(ctx context.Context, name string) ([]fleet.Offer, error) {
	r := v.region(name)
	types, err := v.types(ctx, name, r)
	if err != nil {
		return nil, err
	}
	var stock [2]map[string]map[string]fleet.Maybe[int]
	markets := []fleet.Market{fleet.OnDemand, fleet.Spot}
	for i, m := range markets {
		if stock[i], err = v.sold(ctx, name, m); err != nil {
			return nil, err
		}
	}
	var out []fleet.Offer
	for _, kind := range fleet.Sorted(types) {
		l, err := v.list(ctx, name, r, kind)
		if err != nil {
			return nil, err
		}
		base := fleet.Offer{
			Cloud: Cloud, Account: v.s.Account, Region: name, Type: kind, GPU: types[kind].card.Model, GPUs: types[kind].count,
			Form: types[kind].card.Form, Memory: types[kind].card.Memory,
		}
		for i, m := range markets {
			zones := stock[i][kind]
			if len(zones) == 0 {
				continue
			}
			prices := func(string) fleet.Price { return l.prices[0] }
			if m == fleet.Spot {
				h, err := v.history(ctx, name, r, kind)
				if err != nil {
					return nil, err
				}
				prices = func(zone string) fleet.Price { return v.yuan(h.rows[zone].Price.Decimal) }
			}
			out = append(out, at(base, m, zones, prices)...)
		}
		if len(stock[0][kind]) > 0 {
			out = append(out, terms(base, l)...)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	r.quoted = provider.QuotesOf(out)
	return out, nil
}

// at is a type in the zones that sell it. A price that is missing or zero is no offer.
func at(o fleet.Offer, m fleet.Market, zones map[string]fleet.Maybe[int], price func(zone string) fleet.Price) []fleet.Offer {
	var out []fleet.Offer
	for _, zone := range fleet.Sorted(zones) {
		o.Zone, o.Market, o.Stock, o.Price = zone, m, zones[zone], price(zone)
		if o.Price.Amount.Amount.Sign() <= 0 || o.Price.Amount.Currency == "" {
			continue
		}
		o.Hourly = provider.Dollars(o)
		if m == fleet.Spot {
			o.Notice = notice
		}
		out = append(out, o)
	}
	return out
}

// terms are a type's subscriptions: shown, and not bought.
func terms(o fleet.Offer, l list) []fleet.Offer {
	var out []fleet.Offer
	for _, term := range []time.Duration{month, 12 * month} {
		if p, ok := l.prices[term]; ok {
			o.Market, o.Term, o.Price = fleet.Reserved, term, p
			o.Hourly = provider.Dollars(o)
			out = append(out, o)
		}
	}
	return out
}

// yuan is a spot price, which comes without its currency.
func (v *Volcengine) yuan(amount decimal.Decimal) fleet.Price {
	return fleet.Price{Amount: fleet.Money{Amount: amount, Currency: v.s.Currency}, Per: fleet.PerInstanceHour}
}

// typeRow is a machine type.
type typeRow struct {
	ID  string `json:"InstanceTypeId"`
	GPU struct {
		Devices []struct {
			Count  int
			Name   string `json:"ProductName"`
			Memory struct {
				Size float64 // MiB of one GPU (unverified)
			}
		} `json:"GpuDevices"`
	} `json:"Gpu"`
}

// types are the machine types with whole GPUs of one kind.
func (v *Volcengine) types(ctx context.Context, name string, r *region) (map[string]kind, error) {
	now := v.s.Now()
	v.mu.Lock()
	types, fresh := r.types, !r.read.IsZero() && now.Sub(r.read) < keepTypes
	v.mu.Unlock()
	if fresh {
		return types, nil
	}
	rows, err := pages[typeRow](ctx, v.wire, name, "DescribeInstanceTypes", "InstanceTypes", url.Values{"MaxResults": {"100"}})
	if err != nil {
		return nil, err
	}
	types = map[string]kind{}
	for _, t := range rows {
		if len(t.GPU.Devices) != 1 || t.GPU.Devices[0].Count <= 0 {
			continue
		}
		d := t.GPU.Devices[0]
		if card, _ := provider.ReadCard(d.Name, d.Memory.Size/1024); !card.Slice {
			types[t.ID] = kind{card, d.Count}
		}
	}
	if len(types) == 0 {
		return nil, fmt.Errorf("%w: it lists no machine with a GPU", provider.ErrUnavailable)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	r.types, r.read = types, now
	return types, nil
}

// sold says in which zones which types are sold, with a stock of 0 where they are sold out, and unknown elsewhere.
func (v *Volcengine) sold(ctx context.Context, name string, m fleet.Market) (map[string]map[string]fleet.Maybe[int], error) {
	var got struct {
		Zones []struct {
			ID        string `json:"ZoneId"`
			Resources []struct {
				Type      string
				Supported []struct{ Value, Status string } `json:"SupportedResources"`
			} `json:"AvailableResources"`
		} `json:"AvailableZones"`
	}
	err := v.wire.call(ctx, name, "DescribeAvailableResource", url.Values{
		"DestinationResource": {"InstanceType"}, "InstanceChargeType": {"PostPaid"}, "SpotStrategy": {strategies[m]},
	}, &got)
	if err != nil {
		return nil, err
	}
	out := map[string]map[string]fleet.Maybe[int]{}
	for _, z := range got.Zones {
		for _, res := range z.Resources {
			if res.Type != "InstanceType" {
				continue
			}
			for _, s := range res.Supported {
				if out[s.Value] == nil {
					out[s.Value] = map[string]fleet.Maybe[int]{}
				}
				out[s.Value][z.ID] = fleet.Maybe[int]{}
				if s.Status == "SoldOut" {
					out[s.Value][z.ID] = fleet.Known(0)
				}
			}
		}
	}
	return out, nil
}

type spotRow struct {
	Zone  string              `json:"ZoneId"`
	Type  string              `json:"InstanceTypeId"`
	Price decimal.NullDecimal `json:"SpotPrice"`
	At    string              `json:"Timestamp"`
}

// history is the newest price by zone. A type that is not sold as spot has none.
func (v *Volcengine) history(ctx context.Context, name string, r *region, kind string) (history, error) {
	now := v.s.Now()
	v.mu.Lock()
	h, ok := r.spot[kind]
	v.mu.Unlock()
	if ok && now.Sub(h.at) < keepSpot {
		return h, nil
	}
	at := v.wire.clock.Now().UTC()
	rows, err := pages[spotRow](ctx, v.wire, name, "DescribeSpotPriceHistory", "SpotPrices", url.Values{
		"InstanceTypeId": {kind}, "TimestampStart": {at.Add(-look).Format(time.RFC3339)}, "TimestampEnd": {at.Format(time.RFC3339)}, "MaxResults": {"100"},
	})
	if err != nil && !notSold(err) {
		return h, err
	}
	h = history{at: now, rows: map[string]spotRow{}}
	for _, row := range rows {
		if was, ok := h.rows[row.Zone]; row.Type == kind && (!ok || moment(row.At).After(moment(was.At))) {
			h.rows[row.Zone] = row
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	r.spot[kind] = h
	return h, nil
}

// notSold says that a price call was refused for what it asked about: there is no such price.
func notSold(err error) bool {
	return errors.Is(err, provider.ErrInvalid) || errors.Is(err, provider.ErrNoCapacity) || errors.Is(err, provider.ErrNotFound)
}

// month is a twelfth of a year of 8,760 hours.
const month = 730 * time.Hour

// list reads what a type costs by the hour, month and year, if the account's codes are known.
func (v *Volcengine) list(ctx context.Context, name string, r *region, kind string) (list, error) {
	if v.s.Config == "" || v.s.Item == "" {
		return list{}, nil
	}
	now := v.s.Now()
	v.mu.Lock()
	l, ok := r.lists[kind]
	v.mu.Unlock()
	if ok && now.Sub(l.at) < keepTypes {
		return l, nil
	}
	l = list{at: now, prices: map[time.Duration]fleet.Price{}}
	for _, q := range []struct {
		term   time.Duration
		action string
		months int64
	}{{0, "QueryPriceForPayAsYouGo", 1}, {month, "QueryPriceForSubscription", 1}, {12 * month, "QueryPriceForSubscription", 12}} {
		p, err := v.quote(ctx, name, kind, q.action, q.months)
		switch {
		case notSold(err):
			continue
		case err != nil:
			return l, err
		case p.Amount.Amount.Sign() <= 0 || p.Amount.Currency == "":
			continue
		}
		if q.term > 0 { // the sum for the whole term
			p.Amount.Amount, p.Per, p.Includes = p.Amount.Amount.DivRound(decimal.NewFromInt(q.months), 8), fleet.PerMonth, "paid ahead for the term"
		}
		l.prices[q.term] = p
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	r.lists[kind] = l
	return l, nil
}

type priced struct {
	Config   string `json:"ConfigurationCode"`
	Item     string `json:"ChargeItemCode"`
	Count    string
	Quantity int
	Duration int64 `json:"UseDuration"`
}

// quote is what this account pays for one machine for an hour, or for a number of months. The unit of the duration is
// not published: hours for what is paid by the hour, months for subscriptions (unverified).
func (v *Volcengine) quote(ctx context.Context, name, kind, action string, duration int64) (none fleet.Price, err error) {
	fill := func(s string) string { return strings.ReplaceAll(s, "{type}", kind) }
	in := struct {
		Product string
		List    []priced `json:"ConfigList"`
	}{v.s.Product, []priced{{fill(v.s.Config), fill(v.s.Item), "1", 1, duration}}}
	var out struct {
		Currency fleet.Currency
		Original decimal.NullDecimal `json:"TotalOriginalAmount"`
		Pays     decimal.NullDecimal `json:"TotalDiscountAmount"`
	}
	if err := v.wire.bill(ctx, name, action, in, &out); err != nil {
		return none, err
	}
	amount := out.Pays.Decimal
	if amount.Sign() <= 0 {
		amount = out.Original.Decimal
	}
	return fleet.Price{Amount: fleet.Money{Amount: amount, Currency: out.Currency}, Per: fleet.PerInstanceHour}, nil
}
