package prices

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"lowtide/shared/fleet"
)

const (
	absurd      = 20             // times off: not a price
	trustFor    = 24 * time.Hour // a price before is compared with for so long
	hazardAfter = 10.0           // machine-hours of a pool before its hazard is told
	leastGPU    = 0.01           // USD for an hour of one GPU: less is no price
	mostGPU     = 150.0
	rounding    = 0.01 // spot may be so much above on demand
)

// normalise turns quotes into what this user pays, or into unknown where the quote cannot be true, or has not been
// near what was trusted a while ago.
func (p *prices) normalise(b *Book, offers []fleet.Offer, now time.Time) []fleet.Offer {
	offers, _ = Judge(p.opts.Book, offers, now)
	for i := range offers {
		o := &offers[i]
		price, ok := o.PerHour()
		if !ok {
			continue
		}
		was := b.Trusted[o.Pool()]
		if off(price, was.Hourly) && now.Sub(was.At) < trustFor {
			o.Hourly = fleet.Maybe[fleet.Money]{}
			continue
		}
		b.Trusted[o.Pool()] = Trusted{price, now}
	}
	return offers
}

// Judge sets what each offer costs this user an hour, in USD, and says by pool why a quote is not believed: its Hourly
// is unknown then, and it must not be planned on. It judges one cloud's offers together:
//
//   - a price that is not above zero, in no currency, or in one without an exchange rate;
//   - less than 0.01 or more than 150 USD for an hour of one GPU;
//   - spot or reserved that is 20 times off what the type costs on demand anywhere;
//   - spot above on demand in the same place, by more than rounding: a fault of data, as a rule;
//   - all spot, where most of ten or more spot prices equal on demand to the cent: the column was copied.
func Judge(book fleet.Book, offers []fleet.Offer, now time.Time) ([]fleet.Offer, map[string]string) {
	why := map[string]string{}
	onDemand, here := map[string]float64{}, map[string]float64{} // cheapest by type; by type and place
	for i := range offers {
		o := &offers[i]
		_, mine, err := book.Hourly(*o, now)
		o.Hourly = fleet.Maybe[fleet.Money]{}
		if err != nil {
			why[o.Pool()] = err.Error()
			continue
		}
		if each := mine.Float() / float64(max(o.GPUs, 1)); o.GPUs > 0 && (each < leastGPU || each > mostGPU) {
			why[o.Pool()] = fmt.Sprintf("%.4f USD for an hour of one GPU is not plausible", each)
			continue
		}
		o.Hourly = fleet.Known(mine)
		if o.Market == fleet.OnDemand {
			lowest(onDemand, o.Cloud+"/"+o.Type, mine.Float())
			lowest(here, place(*o), mine.Float())
		}
	}
	spot, equal := 0, 0
	for i := range offers {
		o := &offers[i]
		price, ok := o.PerHour()
		if !ok || o.Market == fleet.OnDemand {
			continue
		}
		there := here[place(*o)]
		if o.Market == fleet.Spot && there > 0 {
			spot++
			if math.Abs(price-there) < 0.00005 {
				equal++
			}
		}
		switch {
		case off(price, onDemand[o.Cloud+"/"+o.Type]):
			why[o.Pool()] = fmt.Sprintf("%.4f USD/h is %d times off what the type costs on demand", price, absurd)
		case o.Market == fleet.Spot && there > 0 && price > there*(1+rounding):
			why[o.Pool()] = fmt.Sprintf("spot at %.4f USD/h is above on demand at %.4f", price, there)
		default:
			continue
		}
		o.Hourly = fleet.Maybe[fleet.Money]{}
	}
	if spot >= 10 && equal > spot/2 {
		for i := range offers {
			if o := &offers[i]; o.Market == fleet.Spot {
				o.Hourly = fleet.Maybe[fleet.Money]{}
				why[o.Pool()] = fmt.Sprintf("%d of %d spot prices equal on demand to the cent: the spot feed is not believed", equal, spot)
			}
		}
	}
	return offers, why
}

func place(o fleet.Offer) string {
	return o.Cloud + "/" + o.Account + "/" + o.Region + "/" + o.Zone + "/" + o.Type
}

func lowest(m map[string]float64, key string, v float64) {
	if was, ok := m[key]; !ok || v < was {
		m[key] = v
	}
}

// off says that two known prices cannot both be right.
func off(price, other float64) bool {
	return other > 0 && (price > absurd*other || price < other/absurd)
}

// compare finds the regions whose offers are not what was last said, stores their offers and notes what to say.
func (p *prices) compare(ctx context.Context, b *Book, now time.Time) ([]string, error) {
	count, regions := map[string]int{}, map[string][]fleet.Offer{}
	for _, o := range b.Offers {
		count[o.Cloud+"/"+o.Region]++
	}
	for _, pool := range fleet.Sorted(b.Offers) {
		o := b.Offers[pool]
		r := o.Cloud + "/" + o.Region
		if regions[r] == nil {
			regions[r] = make([]fleet.Offer, 0, count[r]) // they are large, and many
		}
		regions[r] = append(regions[r], o)
	}
	for r := range b.Said {
		if _, ok := regions[r]; !ok {
			regions[r] = nil // nothing is sold there any more
		}
	}
	var changed []string
	for _, r := range fleet.Sorted(regions) {
		was, known := b.Said[r]
		is := tell(regions[r])
		matters, summary := p.differ(was.Offers, is)
		if known && !matters {
			continue
		}
		raw, err := json.Marshal(regions[r])
		if err != nil {
			return nil, fmt.Errorf("encode offers of %s: %w", r, err)
		}
		digest, err := p.objects.Put(ctx, raw)
		if err != nil {
			return nil, fmt.Errorf("store offers of %s: %w", r, err)
		}
		c := was.Change
		if len(regions[r]) > 0 {
			c.Cloud, c.Region = regions[r][0].Cloud, regions[r][0].Region
		}
		c.Digest, c.Offers, c.Summary = digest, len(regions[r]), summary
		b.Said[r] = Said{c, is, b.Version + 1}
		changed = append(changed, r)
	}
	return changed, nil
}

func tell(offers []fleet.Offer) []told {
	out := []told{}
	for _, o := range offers {
		price, _ := o.PerHour()
		out = append(out, told{o.Pool(), price, o.Stock.Or(1) > 0})
	}
	return out
}

// differ says whether a change matters, and names the one that matters most.
func (p *prices) differ(was, is []told) (matters bool, summary string) {
	before := map[string]told{}
	for _, t := range was {
		before[t.Pool] = t
	}
	most := -1.0
	note := func(weight float64, text string) {
		matters = true
		if weight > most {
			most, summary = weight, text
		}
	}
	for _, t := range is {
		b, known := before[t.Pool]
		delete(before, t.Pool)
		switch {
		case !known && t.Hourly == 0:
			note(3, t.Pool+" is sold, at a price that cannot be trusted")
		case !known:
			note(1, fmt.Sprintf("%s is sold at %.4f USD/h", t.Pool, t.Hourly))
		case t.Hourly == 0 && b.Hourly != 0:
			note(3, fmt.Sprintf("%s: the price cannot be trusted any more, it was %.4f USD/h", t.Pool, b.Hourly))
		case b.Hourly == 0 && t.Hourly != 0:
			note(2, fmt.Sprintf("%s costs %.4f USD/h", t.Pool, t.Hourly))
		case t.Had != b.Had && t.Had:
			note(2, t.Pool+" is to be had again")
		case t.Had != b.Had:
			note(2, t.Pool+" has run out")
		case b.Hourly > 0 && math.Abs(t.Hourly/b.Hourly-1) >= p.opts.Matters:
			note(math.Abs(t.Hourly/b.Hourly-1), fmt.Sprintf("%s: %.4f USD/h, was %.4f", t.Pool, t.Hourly, b.Hourly))
		}
	}
	for _, pool := range fleet.Sorted(before) {
		note(2, pool+" is not sold any more")
	}
	return matters, summary
}
