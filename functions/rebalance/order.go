package rebalance

import "lowtide/shared/fleet"

// order remembers the sorted keys of a map, so that thousands are not sorted anew for each fact.
type order[V any] struct{ keys []string }

// of returns what fleet.Sorted does. The keys it remembers are distinct: if they are as many as m's and m has each, they
// are m's.
func (o *order[V]) of(m map[string]V) []string {
	same := len(o.keys) == len(m)
	for i := 0; same && i < len(o.keys); i++ {
		_, same = m[o.keys[i]]
	}
	if !same {
		o.keys = fleet.Sorted(m)
	}
	return o.keys
}
