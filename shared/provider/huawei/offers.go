package huawei

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// keepPrices is how long a price is not asked for again: there is a limit on those calls that nobody publishes.
const keepPrices = 12 * time.Hour

// region is what was learnt of one region. It is read and written under Huawei.mu.
type region struct {
	name   string
	prices map[string]list // by flavour
	kinds  map[string]kind
	quoted provider.Quotes // a listing tells no price
}

// kind is a flavour's accelerators.
type kind struct {
	card  provider.Card
	count int
}

// list is what a flavour costs, by term; 0: by the hour. A price that is not told is not there.
type list struct {
	at     time.Time
	prices map[time.Duration]fleet.Price
}

// priced gives a listed machine its cards, also of a flavour that is not offered, and the price of its pool.
func (r *region) priced(o fleet.Offer) fleet.Offer {
	if r == nil {
		return o
	}
	if k, ok := r.kinds[o.Type]; ok {
		o.GPU, o.GPUs, o.Form, o.Memory = k.card.Model, k.count, k.card.Form, k.card.Memory
	}
	return r.quoted.Price(o)
}

// offers is what one region sells.
func (h *Huawei) offers(ctx context.Context, r *region) ([]fleet.Offer, error) {
	flavors, err := h.wire.flavors(ctx, r.name)
	if err != nil {
		return nil, err
	}
	flavors = slices.DeleteFunc(flavors, func(f flavor) bool { return f.kind().count == 0 })
	if len(flavors) == 0 {
		return nil, fmt.Errorf("%w: it lists no machine with an accelerator", provider.ErrUnavailable)
	}
	soldOut, err := h.wire.spotSoldOut(ctx, r.name)
	if err != nil {
		return nil, err
	}
	if err := h.ask(ctx, r, flavors); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r.kinds = map[string]kind{}
	var out []fleet.Offer
	for _, f := range flavors {
		k := f.kind()
		r.kinds[f.ID] = k
		out = append(out, h.sells(r, f, k, soldOut)...)
	}
	r.quoted = provider.QuotesOf(out)
	return out, nil
}

// sells is what is sold of one flavour.
func (h *Huawei) sells(r *region, f flavor, k kind, soldOut map[string]bool) []fleet.Offer {
	o := fleet.Offer{
		Cloud: Cloud, Account: h.s.Account, Region: r.name, Type: f.ID, GPU: k.card.Model, GPUs: k.count, Form: k.card.Form, Memory: k.card.Memory,
	}
	l := r.prices[f.ID].prices
	var out []fleet.Offer
	add := func(m fleet.Market, zone string, stock fleet.Maybe[int], p fleet.Price) {
		if p.Amount.Amount.Sign() > 0 {
			o.Market, o.Zone, o.Stock, o.Price = m, zone, stock, p
			o.Hourly, o.Notice = provider.Dollars(o), 0
			if m == fleet.Spot {
				o.Notice = notice
			}
			out = append(out, o)
		}
	}
	hour := zones(f.Specs["cond:operation:status"], f.Specs["cond:operation:az"])
	for _, zone := range fleet.Sorted(hour) {
		add(fleet.OnDemand, zone, hour[zone], l[0])
	}
	spot := zones("abandon", f.Specs["cond:spot:operation:az"])
	for _, zone := range fleet.Sorted(spot) {
		if h.s.SpotShare.Sign() <= 0 {
			break
		}
		p := l[0]
		p.Amount.Amount, p.Includes = p.Amount.Amount.Mul(h.s.SpotShare).Round(4), "a limit from the settings; the price is not told"
		stock := spot[zone]
		if soldOut[f.ID+"/"+zone] {
			stock = fleet.Known(0)
		}
		add(fleet.Spot, zone, stock, p)
	}
	for _, t := range terms {
		if o.Term = t.term; len(hour) > 0 {
			add(fleet.Reserved, "", fleet.Maybe[int]{}, l[t.term])
		}
	}
	return out
}

var (
	zoneStatus = regexp.MustCompile(`([\w-]+)\((\w+)\)`)
	onSale     = []string{"normal", "promotion", "obt"}
	soldOut    = []string{"sellout", "obt_sellout"}
)

// zones reads "az0(normal),az1(sellout)": where a flavour is on sale, with a stock of 0 where it is sold out. Without
// zones the status of the region counts, and the vendor chooses one.
func zones(status, text string) map[string]fleet.Maybe[int] {
	out := map[string]fleet.Maybe[int]{}
	put := func(zone, status string) {
		if slices.Contains(onSale, status) {
			out[zone] = fleet.Maybe[int]{}
		} else if slices.Contains(soldOut, status) {
			out[zone] = fleet.Known(0)
		}
	}
	all := zoneStatus.FindAllStringSubmatch(text, -1)
	for _, m := range all {
		put(m[1], m[2])
	}
	if len(all) == 0 {
		put("", status)
	}
	return out
}

var gpuName = regexp.MustCompile(`^\s*(\d+)\s*\*\s*([^/]+?)\s*(?:/\s*\d+\s*\*\s*(\d+)\s*Gi?B?)?\s*$`)

// kind reads the accelerators: a list within a text, or "1 * NVIDIA T4 / 1 * 16G". A share of a card is none.
func (f flavor) kind() (none kind) {
	for _, key := range []string{"info:gpus", "info:asic_accelerators"} {
		type device struct {
			Name   string  `json:"name"`
			Memory float64 `json:"memory_mb"`
			Count  int     `json:"count"`
		}
		var all []device
		if json.Unmarshal([]byte(f.Specs[key]), &all) != nil {
			var one device
			if json.Unmarshal([]byte(f.Specs[key]), &one) != nil {
				continue
			}
			all = []device{one}
		}
		if len(all) == 1 && all[0].Count > 0 {
			return kindOf(all[0].Name, math.Round(all[0].Memory/1024), all[0].Count)
		}
	}
	if m := gpuName.FindStringSubmatch(f.Specs["info:gpu:name"]); m != nil {
		n, _ := strconv.Atoi(m[1])
		gb, _ := strconv.ParseFloat(m[3], 64)
		return kindOf(m[2], gb, n)
	}
	return none
}

func kindOf(name string, gb float64, count int) kind {
	card, _ := provider.ReadCard(name, gb)
	if card.Slice || name == "" {
		return kind{}
	}
	return kind{card, count}
}

// month is a twelfth of a year of 8,760 hours.
const month = 730 * time.Hour

// terms are the subscriptions that are shown.
var terms = []struct {
	term         time.Duration
	kind, months int64 // the vendor's kind of period, of which one is asked for
}{{month, 2, 1}, {12 * month, 3, 12}}

// atOnce is how many prices one call asks for.
const atOnce = 50

// ask makes the prices of all flavours known that were not asked for of late.
func (h *Huawei) ask(ctx context.Context, r *region, flavors []flavor) error {
	now := h.s.Now()
	var names []string
	h.mu.Lock()
	for _, f := range flavors {
		if l, ok := r.prices[f.ID]; !ok || now.Sub(l.at) >= keepPrices {
			names = append(names, f.ID)
		}
	}
	h.mu.Unlock()
	for some := range slices.Chunk(names, atOnce) {
		got := map[string]list{}
		for _, name := range some {
			got[name] = list{now, map[time.Duration]fleet.Price{}}
		}
		if err := h.each(some, func(names []string) error { return h.hours(ctx, r.name, names, got) }); err != nil {
			return err
		}
		for _, t := range terms {
			if err := h.each(some, func(names []string) error { return h.term(ctx, r.name, names, t.kind, t.months, t.term, got) }); err != nil {
				return err
			}
		}
		h.mu.Lock()
		for name, l := range got {
			r.prices[name] = l
		}
		h.mu.Unlock()
	}
	return nil
}

// each asks for all at once; where that is refused, one by one: one flavour that has no price would hide all others'.
func (h *Huawei) each(names []string, ask func([]string) error) error {
	err := ask(names)
	if !notSold(err) || len(names) == 1 {
		if notSold(err) {
			return nil
		}
		return err
	}
	for _, name := range names {
		if err := ask([]string{name}); err != nil && !notSold(err) {
			return err
		}
	}
	return nil
}

// notSold says that a price call was refused for what it asked about.
func notSold(err error) bool {
	return errors.Is(err, provider.ErrInvalid) || errors.Is(err, provider.ErrNotFound)
}

// product is one thing whose price is asked.
type product struct {
	ID      string `json:"id"`
	Service string `json:"cloud_service_type"`
	Kind    string `json:"resource_type"`
	Spec    string `json:"resource_spec"`
	Region  string `json:"region"`
	Factor  string `json:"usage_factor,omitempty"`
	Value   int    `json:"usage_value,omitempty"`
	Measure int    `json:"usage_measure_id,omitempty"`
	Period  int64  `json:"period_type,omitempty"`
	Periods int    `json:"period_num,omitempty"`
	Number  int    `json:"subscription_num"`
}

// products are flavours with Linux, numbered from 1.
func products(region string, names []string, more func(*product)) []product {
	var out []product
	for i, name := range names {
		p := product{
			ID: strconv.Itoa(i + 1), Service: "hws.service.type.ec2", Kind: "hws.resource.type.vm", Spec: name + ".linux", Region: region, Number: 1,
		}
		more(&p)
		out = append(out, p)
	}
	return out
}

// rating is one answer.
type rating struct {
	ID      string          `json:"id"`
	Pays    provider.Number `json:"amount"`
	List    provider.Number `json:"official_website_amount"`
	Measure int             `json:"measure_id"` // 1: whole units of the currency
}

// hours asks what an hour costs this account.
func (h *Huawei) hours(ctx context.Context, region string, names []string, into map[string]list) error {
	var out struct {
		Currency fleet.Currency `json:"currency"`
		Results  []rating       `json:"product_rating_results"`
	}
	err := h.rate(ctx, region, "/v2/bills/ratings/on-demand-resources", map[string]any{
		"project_id": h.s.Projects[region], "inquiry_precision": 1,
		"product_infos": products(region, names, func(p *product) { p.Factor, p.Value, p.Measure = "Duration", 1, 4 }), // measure 4: hours
	}, &out)
	if err != nil {
		return err
	}
	for _, r := range out.Results {
		amount := r.Pays.Decimal
		if amount.Sign() <= 0 {
			amount = r.List.Decimal
		}
		put(into, names, r, 0, fleet.Price{Amount: fleet.Money{Amount: amount, Currency: yuan(out.Currency)}, Per: fleet.PerInstanceHour})
	}
	return nil
}

// term asks what a subscription costs by its list: discounts are offered, and a person chooses.
func (h *Huawei) term(ctx context.Context, region string, names []string, kind, months int64, term time.Duration, into map[string]list) error {
	var out struct {
		Currency fleet.Currency `json:"currency"`
		Official struct {
			Results []rating `json:"product_rating_results"`
		} `json:"official_website_rating_result"`
	}
	err := h.rate(ctx, region, "/v2/bills/ratings/period-resources/subscribe-rate", map[string]any{
		"project_id": h.s.Projects[region], "product_infos": products(region, names, func(p *product) { p.Period, p.Periods = kind, 1 }),
	}, &out)
	if err != nil {
		return err
	}
	for _, r := range out.Official.Results { // the sum for the whole term
		amount := r.List.DivRound(decimal.NewFromInt(months), 8)
		put(into, names, r, term, fleet.Price{
			Amount: fleet.Money{Amount: amount, Currency: yuan(out.Currency)}, Per: fleet.PerMonth, Includes: "paid ahead for the term",
		})
	}
	return nil
}

// put keeps an answer by the number of its question. What is not in whole units of a currency is no price.
func put(into map[string]list, names []string, r rating, term time.Duration, p fleet.Price) {
	if i, err := strconv.Atoi(r.ID); err == nil && i >= 1 && i <= len(names) && r.Measure == 1 && p.Amount.Amount.Sign() > 0 {
		into[names[i-1]].prices[term] = p
	}
}

// yuan is the currency of an answer that names none.
func yuan(c fleet.Currency) fleet.Currency {
	if c == "" {
		return fleet.CNY
	}
	return c
}

func (h *Huawei) rate(ctx context.Context, region, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%w: %w", provider.ErrInvalid, err)
	}
	if err := h.wire.send(ctx, request{http.MethodPost, h.wire.bss(path), nil, body, ""}, false, out); err != nil {
		return fmt.Errorf("prices: %w", err)
	}
	return nil
}
