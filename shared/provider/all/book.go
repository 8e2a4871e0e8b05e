package all

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// bookFile is a price book as a person writes it.
type bookFile struct {
	Rates  map[string]string `yaml:"rates"`
	Deals  []dealFile        `yaml:"deals"`
	Prices []priceFile       `yaml:"prices"`

	Certified map[string][]string `yaml:"certified"`
}

type dealFile struct {
	Cloud  string       `yaml:"cloud"`
	Type   string       `yaml:"type"`
	Market fleet.Market `yaml:"market"`
	Times  string       `yaml:"times"`
	VAT    string       `yaml:"vat"`
	Until  string       `yaml:"until"`
}

type priceFile struct {
	Cloud  string       `yaml:"cloud"`
	Region string       `yaml:"region"`
	Zone   string       `yaml:"zone"`
	Type   string       `yaml:"type"`
	GPU    string       `yaml:"gpu"`
	GPUs   int          `yaml:"gpus"`
	Market fleet.Market `yaml:"market"`
	Price  string       `yaml:"price"`
	Egress string       `yaml:"egress"`
	Term   string       `yaml:"term"`
	AsOf   string       `yaml:"as_of"`
	Source string       `yaml:"source"`
}

// Book reads the price book that LOWTIDE_BOOK names; the zero Book if none is named.
func Book(getenv func(string) string) (fleet.Book, error) {
	file := getenv("LOWTIDE_BOOK")
	if file == "" {
		return fleet.Book{}, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return fleet.Book{}, fmt.Errorf("LOWTIDE_BOOK: %w", err)
	}
	return ReadBook(file, b)
}

// ReadBook reads a price book:
//
//	rates: {as_of: 2026-11-30, CNY: 0.1389}   # USD for one; needed for prices in another currency
//	deals:                                    # of several that match, the one that says most counts
//	  - {cloud: aws, type: "p5*", market: on_demand, times: 0.82, vat: 0.19, until: 2027-01-01}
//	prices:                                   # what no API tells; as_of and source are needed
//	  - {cloud: huawei, region: cn-north-4, type: snt9b.8, gpu: Ascend 910B, gpus: 8, market: on_demand,
//	     price: 5 CNY/gpu-hour, as_of: 2026-11-01, source: contract 17}
//	  - {cloud: lambdalabs, region: us-east-1, type: gpu_8x_h100, gpu: H100 SXM5, gpus: 8, market: reserved,
//	     price: 12000 USD/month, term: 1y, as_of: 2026-11-01, source: contract}
//
//	certified: {aws: [iso27001, soc2]}        # what you have in writing: no API tells; for allow.certifications
//
// Every entry that is wrong has its own line in the error.
func ReadBook(file string, b []byte) (out fleet.Book, err error) {
	defer func() {
		if r := recover(); r != nil { // the library panics on some files that are not YAML
			err = fmt.Errorf("%s: not YAML", file)
		}
	}()
	var f bookFile
	if err := yaml.NewDecoder(bytes.NewReader(b), yaml.DisallowUnknownField()).Decode(&f); err != nil {
		return out, fmt.Errorf("%s: %s", file, strings.SplitN(err.Error(), "\n", 2)[0])
	}
	var errs []error
	wrong := func(what string, i int, err error) {
		errs = append(errs, fmt.Errorf("%s: %s, entry %d: %w", file, what, i+1, err))
	}
	if out.Rates, err = f.rates(); err != nil {
		errs = append(errs, fmt.Errorf("%s: rates: %w", file, err))
	}
	for cloud, words := range f.Certified {
		for _, w := range words {
			if strings.ContainsAny(w, ", ") || w == "" {
				errs = append(errs, fmt.Errorf("%s: certified: %s: %q is no single word", file, cloud, w))
			}
		}
	}
	out.Certified = f.Certified
	for i, d := range f.Deals {
		deal, err := d.read()
		if err != nil {
			wrong("deals", i, err)
		}
		out.Deals = append(out.Deals, deal)
	}
	for i, p := range f.Prices {
		o, err := p.read()
		if err != nil {
			wrong("prices", i, err)
		}
		out.Prices = append(out.Prices, o)
	}
	return out, errors.Join(errs...)
}

func (f bookFile) rates() (fleet.Rates, error) {
	r := fleet.Rates{USD: map[fleet.Currency]decimal.Decimal{}}
	if len(f.Rates) == 0 {
		return r, nil
	}
	var err error
	if r.AsOf, err = time.Parse(time.DateOnly, f.Rates["as_of"]); err != nil {
		return r, errors.New("as_of: want the day of the rates, such as 2026-11-30")
	}
	for c, v := range f.Rates {
		if c == "as_of" {
			continue
		}
		d, err := decimal.NewFromString(v)
		if err != nil || d.Sign() <= 0 || len(c) != 3 {
			return r, fmt.Errorf("%s: want a currency and how many USD one is worth", c)
		}
		r.USD[fleet.Currency(strings.ToUpper(c))] = d
	}
	return r, nil
}

func (d dealFile) read() (fleet.Deal, error) {
	out := fleet.Deal{Cloud: d.Cloud, Type: d.Type, Market: d.Market}
	for _, x := range []struct {
		name, text string
		to         *fleet.Maybe[decimal.Decimal]
	}{{"times", d.Times, &out.Times}, {"vat", d.VAT, &out.VAT}} {
		if x.text == "" {
			continue
		}
		v, err := decimal.NewFromString(x.text)
		if err != nil || v.Sign() < 0 || x.name == "times" && v.Sign() == 0 {
			return out, fmt.Errorf("%s: %q is not a share such as 0.82", x.name, x.text)
		}
		*x.to = fleet.Known(v)
	}
	if d.Until != "" {
		t, err := time.Parse(time.DateOnly, d.Until)
		if err != nil {
			return out, fmt.Errorf("until: %q: want a day such as 2027-01-01", d.Until)
		}
		out.Until = t
	}
	return out, marketOf(d.Market, true)
}

func marketOf(m fleet.Market, any bool) error {
	switch m {
	case fleet.OnDemand, fleet.Spot, fleet.Reserved:
		return nil
	case "":
		if any {
			return nil
		}
	}
	return fmt.Errorf("market: %q: want on_demand, spot or reserved", m)
}

func (p priceFile) read() (o fleet.Offer, err error) {
	card, _ := provider.ReadCard(p.GPU, 0)
	o = fleet.Offer{
		Cloud: p.Cloud, Region: p.Region, Zone: p.Zone, Type: p.Type, Market: p.Market,
		GPU: card.Model, Form: card.Form, Memory: card.Memory, GPUs: p.GPUs,
	}
	if p.Cloud == "" || p.Region == "" || p.Type == "" || p.Source == "" {
		return o, errors.New("cloud, region, type and source are needed")
	}
	if err := marketOf(p.Market, false); err != nil {
		return o, err
	}
	if o.Quoted, err = time.Parse(time.DateOnly, p.AsOf); err != nil {
		return o, fmt.Errorf("as_of: %q: want the day of the price, such as 2026-11-01", p.AsOf)
	}
	if o.Price, err = ReadPrice(p.Price); err != nil {
		return o, err
	}
	o.Price.Includes = "by " + p.Source
	if p.Egress != "" {
		m, err := ReadMoney(p.Egress)
		if err != nil {
			return o, fmt.Errorf("egress: %w", err)
		}
		o.Egress = fleet.Known(m)
	}
	if p.Term != "" {
		if o.Term, err = ReadTerm(p.Term); err != nil {
			return o, err
		}
	}
	return o, nil
}

// units are how a person writes what a price is for.
var units = map[string]fleet.Unit{
	"hour": fleet.PerInstanceHour, "h": fleet.PerInstanceHour, "instance-hour": fleet.PerInstanceHour,
	"gpu-hour": fleet.PerGPUHour, "card-hour": fleet.PerGPUHour, "核时": fleet.PerGPUHour, "month": fleet.PerMonth,
}

// ReadPrice reads "5 CNY/gpu-hour", "3.2 USD/hour" or "12000 USD/month".
func ReadPrice(s string) (fleet.Price, error) {
	amount, unit, ok := strings.Cut(s, "/")
	per, known := units[strings.TrimSpace(unit)]
	if !ok || !known {
		return fleet.Price{}, fmt.Errorf("price: %q: want an amount, a currency and a unit, such as 3.2 USD/gpu-hour (hour, gpu-hour, month)", s)
	}
	m, err := ReadMoney(amount)
	return fleet.Price{Amount: m, Per: per}, err
}

// ReadMoney reads "3.2 USD".
func ReadMoney(s string) (fleet.Money, error) {
	f := strings.Fields(s)
	if len(f) != 2 || len(f[1]) != 3 {
		return fleet.Money{}, fmt.Errorf("%q: want an amount and a currency, such as 3.2 USD", s)
	}
	d, err := decimal.NewFromString(f[0])
	if err != nil || d.Sign() < 0 {
		return fleet.Money{}, fmt.Errorf("%q: want an amount and a currency, such as 3.2 USD", s)
	}
	return fleet.Money{Amount: d, Currency: fleet.Currency(strings.ToUpper(f[1]))}, nil
}

// ReadTerm reads "1m", "1y", "3y": months of 730 hours, years of 8,760.
func ReadTerm(s string) (time.Duration, error) {
	var n int
	var unit string
	if _, err := fmt.Sscanf(s, "%d%s", &n, &unit); err == nil && n > 0 {
		switch unit {
		case "m":
			return time.Duration(n) * 730 * time.Hour, nil
		case "y":
			return time.Duration(n) * 8760 * time.Hour, nil
		}
	}
	return 0, fmt.Errorf("term: %q: want months or years, such as 1m or 3y", s)
}
