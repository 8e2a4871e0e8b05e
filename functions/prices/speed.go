package prices

import (
	"lowtide/events"
	"lowtide/shared/fleet"
)

// Speed is what benchmarks have measured in one pool: the worst device's share of its rated speed, machine by machine.
type Speed struct {
	Sum   float64 `json:"sum"`
	Count int     `json:"count"`
	Type  string  `json:"type"` // cloud/type
}

// sure is how many machines of a pool weigh as much as all that is known of its type.
const sure = 2

// proved counts a benchmark's result, also of a machine that was rejected: a pool of slow machines is a dear one.
func (b *Book) proved(key, nonce string, ratio float64) {
	l, known := b.Live[key]
	if !known || ratio <= 0 || l.Proof == nonce {
		return // nothing was rated, or it was counted
	}
	l.Proof = nonce
	b.Live[key] = l
	s := b.Speeds[l.Pool]
	if s == nil {
		s = &Speed{Type: l.Type}
		b.Speeds[l.Pool] = s
	}
	s.Sum, s.Count = s.Sum+min(ratio, 1), s.Count+1
}

// speed of an offer: what its cloud or we said of the type, times what was measured. Pools of one type lean on each other,
// so that one that nobody has bought from looks neither better nor worse than the rest.
func (b *Book) speed(o fleet.Offer, types map[string]Speed) fleet.Maybe[float64] {
	all := types[typeOf(o)]
	if all.Count == 0 {
		return o.Speed
	}
	mean := all.Sum / float64(all.Count)
	own := Speed{}
	if s := b.Speeds[o.Pool()]; s != nil {
		own = *s
	}
	return fleet.Known(o.Speed.Or(1) * (own.Sum + sure*mean) / float64(own.Count+sure))
}

// types sums the pools up by type.
func (b *Book) types() map[string]Speed {
	sums := map[string]Speed{}
	for _, pool := range fleet.Sorted(b.Speeds) {
		s := sums[b.Speeds[pool].Type]
		s.Sum, s.Count = s.Sum+b.Speeds[pool].Sum, s.Count+b.Speeds[pool].Count
		sums[b.Speeds[pool].Type] = s
	}
	return sums
}

func typeOf(o fleet.Offer) string { return o.Cloud + "/" + o.Type }

// countProof takes a verdict of verify's.
func (b *Book) countProof(fleetName string, f events.Fact) {
	switch e := f.(type) {
	case events.InstanceVerified:
		b.proved(fleetName+"/"+e.Machine, e.Nonce, e.Ratio)
	case events.InstanceRejected:
		b.proved(fleetName+"/"+e.Machine, e.Nonce, e.Ratio)
	}
}
