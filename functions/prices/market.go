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
)

// normalise turns quotes into USD an instance-hour, or into unknown where the quote cannot be true.
func (p *prices) normalise(b *Book, offers []fleet.Offer, now time.Time) []fleet.Offer {
	onDemand := map[string]float64{} // by type, the cheapest of what was quoted
	for i := range offers {
		o := &offers[i]
		h, err := p.opts.Rates.Hourly(o.Price, o.GPUs)
		o.Hourly = fleet.Maybe[fleet.Money]{}
		if err != nil || h.Amount.Sign() <= 0 {
			continue
		}
		o.Hourly = fleet.Known(h)
		if o.Market == fleet.OnDemand {
			key := o.Cloud + "/" + o.Type
			if was := onDemand[key]; was == 0 || h.Float() < was {
				onDemand[key] = h.Float()
			}
		}
	}
	for i := range offers {
		o := &offers[i]
		price, ok := o.PerHour()
		if !ok {
			continue
		}
		was := b.Trusted[o.Pool()]
		if off(price, was.Hourly) && now.Sub(was.At) < trustFor || o.Market != fleet.OnDemand && off(price, onDemand[o.Cloud+"/"+o.Type]) {
			o.Hourly = fleet.Maybe[fleet.Money]{}
			continue
		}
		b.Trusted[o.Pool()] = Trusted{price, now}
	}
	return offers
}

// off says that two known prices cannot both be right.
func off(price, other float64) bool {
	return other > 0 && (price > absurd*other || price < other/absurd)
}

// compare finds the regions whose offers are not what was last said, stores their offers and notes what to say.
func (p *prices) compare(ctx context.Context, b *Book, now time.Time) ([]string, error) {
	regions := map[string][]fleet.Offer{}
	for _, pool := range fleet.Sorted(b.Offers) {
		o := b.Offers[pool]
		regions[o.Cloud+"/"+o.Region] = append(regions[o.Cloud+"/"+o.Region], o)
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
