package alibaba

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// How long what was read is not asked for again: the price calls are throttled hard.
const (
	keepTypes = 12 * time.Hour // types and list prices
	keepSpot  = 15 * time.Minute
)

// region is what was learnt of one region. Its maps are read and written under Alibaba.mu.
type region struct {
	code   string
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

// history is what a type costs by zone, spot and on demand.
type history struct {
	at       time.Time
	currency fleet.Currency
	rows     map[string]historyRow
}

// list is what a type costs where the zone does not matter. A price that is not told is not there.
type list struct {
	at     time.Time
	prices map[time.Duration]fleet.Price // by term; 0: on demand
}

func (a *Alibaba) region(code string) *region {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.regions[code]
	if r == nil {
		r = &region{code: code, spot: map[string]history{}, lists: map[string]list{}}
		a.regions[code] = r
	}
	return r
}

// offers is what one region sells.
func (a *Alibaba) offers(ctx context.Context, code string) ([]fleet.Offer, error) {
	r := a.region(code)
	types, err := a.types(ctx, r)
	if err != nil {
		return nil, err
	}
	onDemand, err := a.sold(ctx, r, "NoSpot")
	if err != nil {
		return nil, err
	}
	spot, err := a.sold(ctx, r, "SpotAsPriceGo")
	if err != nil {
		return nil, err
	}
	var out []fleet.Offer
	for _, name := range fleet.Sorted(types) {
		if len(onDemand[name]) == 0 && len(spot[name]) == 0 {
			continue
		}
		h, err := a.history(ctx, r, name)
		if err != nil {
			return nil, err
		}
		l, err := a.list(ctx, r, name)
		if err != nil {
			return nil, err
		}
		out = append(out, a.hourly(r, name, types[name], onDemand[name], spot[name], h, l)...)
		if len(onDemand[name]) > 0 {
			out = append(out, a.terms(r, name, types[name], l)...)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.quoted = provider.QuotesOf(out)
	return out, nil
}

// hourly are a type's offers by the hour. A price that is missing or zero is no offer. On demand, what the history says of
// a zone is newer than the list.
func (a *Alibaba) hourly(r *region, name string, k kind, onDemand, spot map[string]fleet.Maybe[int], h history, l list) []fleet.Offer {
	var out []fleet.Offer
	for _, zone := range fleet.Sorted(onDemand) {
		p := l.prices[0]
		if row, ok := h.rows[zone]; ok && row.Origin.Sign() > 0 && h.currency != "" {
			p = fleet.Price{Amount: fleet.Money{Amount: row.Origin.Decimal, Currency: h.currency}, Per: fleet.PerInstanceHour}
		}
		if p.Amount.Amount.Sign() > 0 {
			o := a.offer(r, name, zone, k, fleet.OnDemand, p)
			o.Stock = onDemand[zone]
			out = append(out, o)
		}
	}
	for _, zone := range fleet.Sorted(spot) {
		row, ok := h.rows[zone]
		if !ok || row.Spot.Sign() <= 0 || h.currency == "" {
			continue
		}
		o := a.offer(r, name, zone, k, fleet.Spot, fleet.Price{Amount: fleet.Money{Amount: row.Spot.Decimal, Currency: h.currency}, Per: fleet.PerInstanceHour})
		o.Stock = spot[zone]
		out = append(out, o)
	}
	return out
}

// terms are a type's subscriptions.
func (a *Alibaba) terms(r *region, name string, k kind, l list) []fleet.Offer {
	var out []fleet.Offer
	for _, term := range slices.Sorted(maps.Keys(l.prices)) {
		if term == 0 {
			continue
		}
		o := a.offer(r, name, "", k, fleet.Reserved, l.prices[term])
		o.Term = term
		if o.Price.Amount.Currency == fleet.USD {
			o.Hourly = fleet.Known(fleet.Money{Amount: o.Price.Amount.Amount.DivRound(decimal.NewFromInt(730), 8), Currency: fleet.USD})
		}
		out = append(out, o)
	}
	return out
}

func (a *Alibaba) offer(r *region, name, zone string, k kind, m fleet.Market, p fleet.Price) fleet.Offer {
	o := fleet.Offer{
		Cloud: Cloud, Account: a.s.Account, Region: r.code, Zone: zone, Type: name, Market: m,
		GPU: k.card.Model, GPUs: k.count, Form: k.card.Form, Memory: k.card.Memory, Price: p,
	}
	if m == fleet.Spot {
		o.Notice = notice
	}
	if p.Amount.Currency == fleet.USD && p.Per == fleet.PerInstanceHour {
		o.Hourly = fleet.Known(p.Amount)
	}
	return o
}

// priced gives a listed machine its GPUs, also of a type that is not offered, and the price of its pool.
func (r *region) priced(o fleet.Offer) fleet.Offer {
	if k, ok := r.types[o.Type]; ok {
		o.GPU, o.GPUs, o.Form, o.Memory = k.card.Model, k.count, k.card.Form, k.card.Memory
	}
	return r.quoted.Price(o)
}

// types are the machine types with whole GPUs.
func (a *Alibaba) types(ctx context.Context, r *region) (map[string]kind, error) {
	now := a.s.Now()
	a.mu.Lock()
	types, fresh := r.types, !r.read.IsZero() && now.Sub(r.read) < keepTypes
	a.mu.Unlock()
	if fresh {
		return types, nil
	}
	types = map[string]kind{}
	err := a.wire.pages(ctx, r.code, "DescribeInstanceTypes", url.Values{"MaxResults": {"100"}}, func() page { return &typesPage{} }, func(p page) {
		for _, t := range p.(*typesPage).InstanceTypes.InstanceType {
			count := int(t.GPUs.IntPart())
			if count <= 0 || t.GPU == "" {
				continue
			}
			if card, _ := provider.ReadCard(t.GPU, t.Memory.InexactFloat64()); !card.Slice {
				types[t.ID] = kind{card, count}
			}
		}
	})
	if err != nil {
		return nil, err
	}
	if len(types) == 0 {
		return nil, fmt.Errorf("%w: it lists no machine with a GPU", provider.ErrUnavailable)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.types, r.read = types, now
	return types, nil
}

type resources struct {
	Zones struct {
		Zone []struct {
			ID        string `json:"ZoneId"`
			Available struct {
				Resource []struct {
					Type      string
					Supported struct {
						Resource []struct{ Value, Status, StatusCategory string } `json:"SupportedResource"`
					} `json:"SupportedResources"`
				} `json:"AvailableResource"`
			} `json:"AvailableResources"`
		} `json:"AvailableZone"`
	} `json:"AvailableZones"`
}

// sold says which types are sold in which zones, with a stock of 0 where they are sold out, and unknown elsewhere.
func (a *Alibaba) sold(ctx context.Context, r *region, strategy string) (map[string]map[string]fleet.Maybe[int], error) {
	var got resources
	err := a.wire.call(ctx, r.code, "DescribeAvailableResource", url.Values{
		"DestinationResource": {"InstanceType"}, "InstanceChargeType": {"PostPaid"}, "SpotStrategy": {strategy}, "IoOptimized": {"optimized"},
	}, &got)
	if err != nil {
		return nil, err
	}
	out := map[string]map[string]fleet.Maybe[int]{}
	for _, z := range got.Zones.Zone {
		for _, res := range z.Available.Resource {
			if res.Type != "InstanceType" {
				continue
			}
			for _, s := range res.Supported.Resource {
				if out[s.Value] == nil {
					out[s.Value] = map[string]fleet.Maybe[int]{}
				}
				out[s.Value][z.ID] = stock(s.Status, s.StatusCategory)
			}
		}
	}
	return out, nil
}

// stock reads two words. ClosedWithStock, what is left of a type that is being withdrawn, is tried.
func stock(status, category string) fleet.Maybe[int] {
	if status == "SoldOut" || category == "WithoutStock" || category == "ClosedWithoutStock" {
		return fleet.Known(0)
	}
	return fleet.Maybe[int]{}
}

type historyPage struct {
	Currency   string
	NextOffset number
	Prices     struct {
		Row []historyRow `json:"SpotPriceType"`
	} `json:"SpotPrices"`
}

type historyRow struct {
	Zone   string `json:"ZoneId"`
	Type   string `json:"InstanceType"`
	Spot   number `json:"SpotPrice"`
	Origin number `json:"OriginPrice"` // on demand
	At     string `json:"Timestamp"`
}

// history is the newest price by zone of the last hours. A type that is not sold as spot has none.
func (a *Alibaba) history(ctx context.Context, r *region, name string) (history, error) {
	now := a.s.Now()
	a.mu.Lock()
	h, ok := r.spot[name]
	a.mu.Unlock()
	if ok && now.Sub(h.at) < keepSpot {
		return h, nil
	}
	h = history{at: now, rows: map[string]historyRow{}}
	err := provider.Pages(ctx, func(offset string) (string, error) {
		v := url.Values{"InstanceType": {name}, "NetworkType": {"vpc"}, "OSType": {"linux"}}
		if offset != "" {
			v.Set("Offset", offset)
		}
		var p historyPage
		if err := a.wire.call(ctx, r.code, "DescribeSpotPriceHistory", v, &p); err != nil {
			return "", err
		}
		h.currency = fleet.Currency(p.Currency)
		for _, row := range p.Prices.Row {
			if was, ok := h.rows[row.Zone]; row.Type == name && (!ok || moment(row.At).After(moment(was.At))) {
				h.rows[row.Zone] = row
			}
		}
		if len(p.Prices.Row) == 0 || p.NextOffset.Sign() <= 0 {
			return "", nil
		}
		return p.NextOffset.String(), nil
	})
	if err != nil && !notSold(err) {
		return h, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.spot[name] = h
	return h, nil
}

// notSold says that a price call was refused for what it asked about: there is no such price. Accounts without the right
// to ask for prices are told that there is no such action.
func notSold(err error) bool {
	var p *provider.Problem
	return errors.As(err, &p) && (errors.Is(p, provider.ErrInvalid) || errors.Is(p, provider.ErrNoCapacity) ||
		errors.Is(p, provider.ErrNotFound) || p.Code == "InvalidAction")
}

// month is a twelfth of a year of 8,760 hours.
const month = 730 * time.Hour

// list reads what a type costs by the hour, month and year.
func (a *Alibaba) list(ctx context.Context, r *region, name string) (list, error) {
	now := a.s.Now()
	a.mu.Lock()
	l, ok := r.lists[name]
	a.mu.Unlock()
	if ok && now.Sub(l.at) < keepTypes {
		return l, nil
	}
	l = list{at: now, prices: map[time.Duration]fleet.Price{}}
	for _, q := range []struct {
		term   time.Duration
		unit   string
		months int64
	}{{0, "Hour", 1}, {month, "Month", 1}, {12 * month, "Year", 12}} {
		m, err := a.quote(ctx, r, name, q.unit)
		switch {
		case notSold(err):
			continue
		case err != nil:
			return l, err
		case m.Amount.Sign() <= 0 || m.Currency == "":
			continue
		}
		p := fleet.Price{Amount: m, Per: fleet.PerInstanceHour}
		if q.term > 0 { // the sum for the whole term
			p.Amount.Amount, p.Per = m.Amount.DivRound(decimal.NewFromInt(q.months), 8), fleet.PerMonth
			p.Includes = "paid ahead for the term"
		}
		l.prices[q.term] = p
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.lists[name] = l
	return l, nil
}

// quote is the list price of one machine for one unit of time, without its disk; zero if it is not told apart.
func (a *Alibaba) quote(ctx context.Context, r *region, name, unit string) (none fleet.Money, err error) {
	var out struct {
		Info struct {
			Price struct {
				Currency string
				Details  struct {
					Detail []struct {
						Resource      string
						OriginalPrice number
					} `json:"DetailInfo"`
				} `json:"DetailInfos"`
			}
		} `json:"PriceInfo"`
	}
	err = a.wire.call(ctx, r.code, "DescribePrice", url.Values{
		"ResourceType": {"instance"}, "InstanceType": {name}, "PriceUnit": {unit}, "Period": {"1"}, "Amount": {"1"}, "SystemDisk.Category": {diskKind},
	}, &out)
	if err != nil {
		return none, err
	}
	for _, d := range out.Info.Price.Details.Detail {
		if d.Resource == "instanceType" {
			return fleet.Money{Amount: d.OriginalPrice.Decimal, Currency: fleet.Currency(out.Info.Price.Currency)}, nil
		}
	}
	return none, nil
}
