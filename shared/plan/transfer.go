package plan

import "lowtide/shared/fleet"

// transfer is what it costs to take a workload's checkpoint, once, from the region that it runs in to an offer's, in USD.
// Within a region nothing is charged for. It is not known where the cloud does not say what a gigabyte out costs, or says
// it in another currency.
func (s situation) transfer(to fleet.Offer) fleet.Maybe[float64] {
	if s.act == nil || s.w.Saved.Bytes == 0 {
		return fleet.Known(0.0)
	}
	from := s.act.Offer
	if from.Cloud == to.Cloud && from.Region == to.Region {
		return fleet.Known(0.0)
	}
	gigabyte, told := from.Egress.Get()
	if !told || gigabyte.Currency != fleet.USD && !gigabyte.Amount.IsZero() {
		return fleet.Maybe[float64]{}
	}
	return fleet.Known(gigabyte.Float() * float64(s.w.Saved.Bytes) / 1e9)
}

// carried says what a transfer costs, where that is something.
func carried(usd fleet.Maybe[float64]) string {
	if x := usd.Or(0); x > 0 {
		return ", " + dollars(x) + " of it for the transfer"
	}
	return ""
}

// unpriced is said of a launch whose transfer may cost what nobody tells.
const unpriced = "; transfer not priced"
