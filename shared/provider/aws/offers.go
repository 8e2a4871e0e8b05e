package aws

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// keepFor is how long what seldom changes is not asked for again: zones, types, on-demand and reserved prices.
const keepFor = 12 * time.Hour

// region is what was learnt of one region.
type region struct {
	code  string
	zones map[string]string // name to id, of whole zones
	disks map[string][]disk // by image

	quoted provider.Quotes // a listing tells no price

	read   time.Time // when the rest was
	types  map[string]provider.Card
	counts map[string]int
	sold   [][2]string // type and zone id
	prices []quote
}

func (r *region) id(name string) string { return r.zones[name] }

// name is a zone's name in this account, by its id, or by that name: people write what their console shows.
func (r *region) name(id string) string {
	if r.zones[id] != "" {
		return id
	}
	for name, i := range r.zones {
		if i == id {
			return name
		}
	}
	return ""
}

// quote is a price of the price list.
type quote struct {
	kind   string
	price  fleet.Money
	term   time.Duration // 0: on demand
	detail string
}

// region reads a region's zones once.
func (a *AWS) region(ctx context.Context, code string) (*region, error) {
	a.mu.Lock()
	r := a.regions[code]
	a.mu.Unlock()
	if r != nil {
		return r, nil
	}
	var out struct {
		Zones []struct {
			Name string `xml:"zoneName"`
			ID   string `xml:"zoneId"`
			Kind string `xml:"zoneType"`
		} `xml:"availabilityZoneInfo>item"`
	}
	if err := a.wire.query(ctx, code, "DescribeAvailabilityZones", url.Values{}, &out); err != nil {
		return nil, err
	}
	r = &region{code: code, zones: map[string]string{}, disks: map[string][]disk{}}
	for _, z := range out.Zones {
		if z.Kind == "" || z.Kind == "availability-zone" { // a local zone has other prices
			r.zones[z.Name] = z.ID
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.regions[code] = r
	return r, nil
}

// disks are the EBS disks that an image brings along; each must go with its machine.
func (a *AWS) disks(ctx context.Context, r *region, image string) ([]disk, error) {
	a.mu.Lock()
	known, ok := r.disks[image]
	a.mu.Unlock()
	if ok {
		return known, nil
	}
	if strings.HasPrefix(image, "resolve:ssm:") {
		return nil, nil // EC2 looks the image up itself; its own settings count
	}
	var out struct {
		Images []struct {
			Disks []disk `xml:"blockDeviceMapping>item"`
		} `xml:"imagesSet>item"`
	}
	if err := a.wire.query(ctx, r.code, "DescribeImages", url.Values{"ImageId.1": {image}}, &out); err != nil {
		return nil, fmt.Errorf("image %s: %w", image, err)
	}
	var disks []disk
	for _, i := range out.Images {
		for _, d := range i.Disks {
			if d.EBS != nil {
				disks = append(disks, d)
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.disks[image] = disks
	return disks, nil
}

// offers is what one region sells.
func (a *AWS) offers(ctx context.Context, code string) ([]fleet.Offer, error) {
	r, err := a.catalogue(ctx, code)
	if err != nil {
		return nil, err
	}
	var out []fleet.Offer
	for _, q := range r.prices {
		if q.term > 0 {
			o := a.offer(r, q.kind, "", fleet.Reserved, fleet.Price{Amount: q.price, Per: fleet.PerInstanceHour, Includes: q.detail})
			o.Term = q.term
			out = append(out, o)
			continue
		}
		for _, s := range r.sold {
			if s[0] == q.kind {
				out = append(out, a.offer(r, q.kind, s[1], fleet.OnDemand, fleet.Price{Amount: q.price, Per: fleet.PerInstanceHour}))
			}
		}
	}
	spot, err := a.spot(ctx, r)
	if err != nil {
		return nil, err
	}
	blocks, err := a.blocks(ctx, r)
	if err != nil {
		return nil, err
	}
	out = append(append(out, spot...), blocks...)
	a.mu.Lock()
	defer a.mu.Unlock()
	r.quoted = provider.QuotesOf(out)
	return out, nil
}

func (a *AWS) offer(r *region, kind, zone string, m fleet.Market, p fleet.Price) fleet.Offer {
	c := r.types[kind]
	o := fleet.Offer{
		Cloud: Cloud, Account: a.s.Account, Region: r.code, Zone: zone, Type: kind, Market: m, GPU: c.Model, Form: c.Form, Memory: c.Memory,
		GPUs: r.counts[kind], Price: p,
	}
	if p.Amount.Currency == fleet.USD {
		o.Hourly = fleet.Known(p.Amount)
	}
	if m == fleet.Spot {
		o.Notice, o.Floats = notice, true
	}
	return o
}

// catalogue reads what seldom changes.
func (a *AWS) catalogue(ctx context.Context, code string) (*region, error) {
	r, err := a.region(ctx, code)
	if err != nil {
		return nil, err
	}
	now := a.s.Now()
	a.mu.Lock()
	fresh := !r.read.IsZero() && now.Sub(r.read) < keepFor
	a.mu.Unlock()
	if fresh {
		return r, nil
	}
	n := &region{types: map[string]provider.Card{}, counts: map[string]int{}}
	// Machines with GPUs are named p… or g…; the rest is not read.
	ask := url.Values{"Filter.1.Name": {"instance-type"}, "Filter.1.Value.1": {"p*"}, "Filter.1.Value.2": {"g*"}, "MaxResults": {"100"}}
	err = a.wire.pages(ctx, code, "DescribeInstanceTypes", ask, func() paged { return &typesPage{} }, func(p paged) {
		for _, t := range p.(*typesPage).Types {
			if c, count, ok := gpus(t); ok {
				n.types[t.Name], n.counts[t.Name] = c, count
			}
		}
	})
	if err != nil {
		return nil, err
	}
	if len(n.types) == 0 {
		return nil, fmt.Errorf("%w: it lists no machine with a GPU", provider.ErrUnavailable)
	}
	ask = url.Values{"LocationType": {"availability-zone-id"}, "Filter.1.Name": {"instance-type"}, "MaxResults": {"1000"}}
	for i, kind := range fleet.Sorted(n.types) {
		ask.Set("Filter.1.Value."+strconv.Itoa(i+1), kind) // under EC2's limit of 200 values
	}
	err = a.wire.pages(ctx, code, "DescribeInstanceTypeOfferings", ask, func() paged { return &offeringsPage{} }, func(p paged) {
		for _, o := range p.(*offeringsPage).Offerings {
			if _, ok := n.types[o.Type]; ok && r.name(o.Location) != "" {
				n.sold = append(n.sold, [2]string{o.Type, o.Location})
			}
		}
	})
	if err != nil {
		return nil, err
	}
	if n.prices, err = a.priceList(ctx, code, n.types); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.types, r.counts, r.sold, r.prices, r.read = n.types, n.counts, n.sold, n.prices, now
	return r, nil
}

// gpus reads a type's GPUs; false where it has none, or only shares of one, which EC2 counts as whole.
func gpus(t machineType) (provider.Card, int, bool) {
	if len(t.GPUs) == 0 || t.GPUs[0].Count <= 0 {
		return provider.Card{}, 0, false
	}
	g := t.GPUs[0]
	c, ok := provider.ReadCard(g.Name, float64(g.Memory)/1024)
	if !ok && strings.HasPrefix(t.Name, "p5e") { // EC2 has called them "NVIDIA"
		c, ok = provider.ReadCard("H200", float64(g.Memory)/1024)
	}
	if c.Form == "" && (strings.HasPrefix(t.Name, "p3") || strings.HasPrefix(t.Name, "p4") || strings.HasPrefix(t.Name, "p5") || strings.HasPrefix(t.Name, "p6")) {
		c.Form = "SXM" // the p families are the vendor's boards with NVLink
	}
	return c, g.Count, !c.Slice && (ok || c.Model != "")
}

// product is one entry of the price list.
type product struct {
	Product struct {
		Attributes struct {
			Type string `json:"instanceType"`
		} `json:"attributes"`
	} `json:"product"`
	Terms struct {
		OnDemand map[string]term `json:"OnDemand"`
		Reserved map[string]term `json:"Reserved"`
	} `json:"terms"`
}

type term struct {
	Dimensions map[string]struct {
		Unit  string            `json:"unit"`
		Price map[string]string `json:"pricePerUnit"`
	} `json:"priceDimensions"`
	Attributes struct {
		Length string `json:"LeaseContractLength"`
		Class  string `json:"OfferingClass"`
		Option string `json:"PurchaseOption"`
	} `json:"termAttributes"`
}

// lengths are the terms of reserved instances.
var lengths = map[string]time.Duration{"1yr": 8760 * time.Hour, "3yr": 3 * 8760 * time.Hour}

// priceList reads the list prices of the types, on demand and reserved (standard class, nothing paid ahead).
func (a *AWS) priceList(ctx context.Context, code string, types map[string]provider.Card) ([]quote, error) {
	type filter struct{ Type, Field, Value string }
	in := struct {
		ServiceCode, FormatVersion string
		Filters                    []filter
		MaxResults                 int
		NextToken                  string `json:",omitempty"`
	}{ServiceCode: "AmazonEC2", FormatVersion: "aws_v1", MaxResults: 100}
	for _, f := range [][2]string{
		{"regionCode", code},
		{"operatingSystem", "Linux"},
		{"preInstalledSw", "NA"},
		{"capacitystatus", "Used"},
		{"marketoption", "OnDemand"},
		{"tenancy", "Shared"},
		{"productFamily", "Compute Instance"},
	} {
		in.Filters = append(in.Filters, filter{"TERM_MATCH", f[0], f[1]})
	}
	var out []quote
	err := provider.Pages(ctx, func(token string) (string, error) {
		in.NextToken = token
		var page struct {
			PriceList []string
			NextToken string
		}
		if err := a.wire.prices(ctx, code, in, &page); err != nil {
			return "", err
		}
		for _, text := range page.PriceList {
			var p product
			if err := json.Unmarshal([]byte(text), &p); err != nil {
				return "", fmt.Errorf("GetProducts: %w: an entry that is not JSON", provider.ErrUnavailable)
			}
			if _, ok := types[p.Product.Attributes.Type]; ok {
				out = append(out, p.quotes()...)
			}
		}
		return page.NextToken, nil
	})
	if err != nil {
		return nil, err
	}
	return unambiguous(out), nil
}

// quotes are the prices of one entry; zero is no price.
func (p product) quotes() []quote {
	var out []quote
	kind := p.Product.Attributes.Type
	for _, key := range fleet.Sorted(p.Terms.OnDemand) {
		if m, ok := p.Terms.OnDemand[key].hourly(); ok {
			out = append(out, quote{kind, m, 0, ""})
		}
	}
	for _, key := range fleet.Sorted(p.Terms.Reserved) {
		t := p.Terms.Reserved[key]
		length := lengths[t.Attributes.Length]
		if length == 0 || t.Attributes.Class != "standard" || t.Attributes.Option != "No Upfront" {
			continue
		}
		if m, ok := t.hourly(); ok {
			out = append(out, quote{kind, m, length, "a reserved instance's rate: it changes the bill, and holds no capacity"})
		}
	}
	return out
}

// hourly is the one price for an hour.
func (t term) hourly() (fleet.Money, bool) {
	for _, d := range t.Dimensions {
		if d.Unit != "Hrs" {
			continue
		}
		for c, text := range d.Price {
			if amount, err := decimal.NewFromString(text); err == nil && amount.Sign() > 0 {
				return fleet.Money{Amount: amount, Currency: fleet.Currency(c)}, true
			}
		}
	}
	return fleet.Money{}, false
}

// unambiguous drops types with two different prices for one thing: which is right cannot be told.
func unambiguous(in []quote) []quote {
	type key struct {
		kind string
		term time.Duration
	}
	first, bad := map[key]quote{}, map[key]bool{}
	for _, q := range in {
		k := key{q.kind, q.term}
		was, ok := first[k]
		if !ok {
			first[k] = q
		} else if !was.price.Amount.Equal(q.price.Amount) || was.price.Currency != q.price.Currency {
			bad[k] = true
		}
	}
	var out []quote
	for _, q := range in {
		k := key{q.kind, q.term}
		if _, ok := first[k]; ok && !bad[k] {
			out = append(out, q)
			delete(first, k)
		}
	}
	return out
}

// spot reads the spot price in force of every type and zone.
func (a *AWS) spot(ctx context.Context, r *region) ([]fleet.Offer, error) {
	ask := url.Values{
		"StartTime": {a.wire.clock.Now().UTC().Format(time.RFC3339)}, "MaxResults": {"1000"},
		"ProductDescription.1": {"Linux/UNIX"}, "ProductDescription.2": {"Linux/UNIX (Amazon VPC)"},
	}
	for i, kind := range fleet.Sorted(r.types) {
		ask.Set("InstanceType."+strconv.Itoa(i+1), kind)
	}
	newest := map[[2]string]time.Time{}
	price := map[[2]string]decimal.Decimal{}
	var order [][2]string
	err := a.wire.pages(ctx, r.code, "DescribeSpotPriceHistory", ask, func() paged { return &spotPage{} }, func(p paged) {
		for _, s := range p.(*spotPage).Prices {
			zone := s.ZoneID
			if zone == "" {
				zone = r.id(s.Zone)
			}
			k := [2]string{s.Type, zone}
			amount, err := decimal.NewFromString(s.Price)
			if _, ok := r.types[s.Type]; !ok || err != nil || amount.Sign() <= 0 || r.name(zone) == "" {
				continue
			}
			at, seen := newest[k]
			if !seen {
				order = append(order, k)
			}
			if !seen || s.At.After(at) {
				newest[k], price[k] = s.At, amount
			}
		}
	})
	if err != nil {
		return nil, err
	}
	var out []fleet.Offer
	for _, k := range order {
		currency := fleet.USD
		if strings.HasPrefix(r.code, "cn-") {
			currency = fleet.CNY
		}
		out = append(out, a.offer(r, k[0], k[1], fleet.Spot, fleet.Price{Amount: fleet.Money{Amount: price[k], Currency: currency}, Per: fleet.PerInstanceHour}))
	}
	return out, nil
}

// blocks are capacity blocks of a day for the types that the settings name. Their fee is for the whole term.
func (a *AWS) blocks(ctx context.Context, r *region) ([]fleet.Offer, error) {
	var out []fleet.Offer
	for _, kind := range a.s.Blocks {
		if _, ok := r.types[kind]; !ok {
			continue
		}
		ask := url.Values{"InstanceType": {kind}, "InstanceCount": {"1"}, "CapacityDurationHours": {"24"}, "MaxResults": {"100"}}
		err := a.wire.pages(ctx, r.code, "DescribeCapacityBlockOfferings", ask, func() paged { return &blocksPage{} }, func(p paged) {
			for _, b := range p.(*blocksPage).Blocks {
				fee, err := decimal.NewFromString(b.Fee)
				if err != nil || fee.Sign() <= 0 || b.Hours <= 0 || b.Count <= 0 {
					continue
				}
				hourly := fee.DivRound(decimal.NewFromInt(int64(b.Hours*b.Count)), 6)
				o := a.offer(r, kind, r.id(b.Zone), fleet.Reserved, fleet.Price{
					Amount: fleet.Money{Amount: hourly, Currency: fleet.Currency(b.Currency)}, Per: fleet.PerInstanceHour,
					Includes: "a capacity block from " + b.Start + ", paid ahead",
				})
				o.Term = time.Duration(b.Hours) * time.Hour
				out = append(out, o)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
