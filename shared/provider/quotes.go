package provider

import (
	"strings"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
)

// Quotes are what a cloud last offered, by pool, for clouds whose listings tell no price. The zero Quotes are empty; whoever
// shares them between goroutines locks.
type Quotes map[string]fleet.Offer

// QuotesOf takes offers.
func QuotesOf(offers []fleet.Offer) Quotes {
	q := make(Quotes, len(offers))
	for _, o := range offers {
		q[o.Pool()] = o
	}
	return q
}

// Price gives a listed machine the GPUs and the price of its pool. Spot that is not offered any more counts as on demand,
// so that no cap is fooled; a pool that was never offered leaves the machine as it is.
func (q Quotes) Price(o fleet.Offer) fleet.Offer {
	last, ok := q[o.Pool()]
	if !ok && o.Market == fleet.Spot {
		dear := o
		dear.Market = fleet.OnDemand
		last, ok = q[dear.Pool()]
	}
	if ok {
		o.Price, o.Hourly, o.GPU, o.GPUs, o.Form, o.Memory = last.Price, last.Hourly, last.GPU, last.GPUs, last.Form, last.Memory
	}
	return o
}

// tagPrice holds what was planned to be paid for a machine, at clouds whose listings tell no price: quotes are forgotten
// with the process. A tag's value may hold no blank.
const tagPrice = "lowtide-price"

// Tags are the labels of a purchase as tags, with what was planned to be paid; Planned reads that back.
func (r Request) Tags() map[string]string {
	tags := r.Labels.Tags()
	if p := r.Offer.Price; p.Amount.Amount.Sign() > 0 && p.Per == fleet.PerInstanceHour {
		tags[tagPrice] = p.Amount.Amount.String() + "-" + string(p.Amount.Currency)
	}
	return tags
}

// Planned gives a listed machine without a price the one that its tags hold.
func Planned(o fleet.Offer, tags map[string]string) fleet.Offer {
	amount, currency, _ := strings.Cut(tags[tagPrice], "-")
	d, err := decimal.NewFromString(amount)
	if o.Price.Amount.Amount.Sign() > 0 || err != nil || len(currency) != 3 {
		return o
	}
	o.Price = fleet.Price{Amount: fleet.Money{Amount: d, Currency: fleet.Currency(currency)}, Per: fleet.PerInstanceHour}
	o.Hourly = Dollars(o)
	return o
}

// Dollars is an offer's price in USD an hour, where it is in USD: another currency needs the price book's rate.
func Dollars(o fleet.Offer) fleet.Maybe[fleet.Money] {
	if m, err := (fleet.Rates{}).Hourly(o.Price, o.GPUs); err == nil {
		return fleet.Known(m)
	}
	return fleet.Maybe[fleet.Money]{}
}
