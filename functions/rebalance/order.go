package rebalance

import "lowtide/shared/fleet"

// order remembers the sorted keys of a map and their values, so that thousands are not sorted anew for each fact.
type order[V comparable] struct {
	keys   []string
	values []V
}

// of returns the values of m in the order of their keys. The keys it remembers are distinct: if they are as many as m's and
// m has each with its value, they are m's.
func (o *order[V]) of(m map[string]V) []V {
	same := len(o.keys) == len(m)
	for i := 0; same && i < len(o.keys); i++ {
		v, there := m[o.keys[i]]
		same = there && v == o.values[i]
	}
	if same {
		return o.values
	}
	o.keys, o.values = fleet.Sorted(m), make([]V, 0, len(m))
	for _, key := range o.keys {
		o.values = append(o.values, m[key])
	}
	return o.values
}
