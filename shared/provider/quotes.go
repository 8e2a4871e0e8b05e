package provider

import "lowtide/shared/fleet"

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
