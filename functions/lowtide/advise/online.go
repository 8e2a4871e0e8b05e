package advise

import (
	"container/heap"
	"math"
	"slices"
)

// Online is what the rule pays that knows nothing of what comes: it commits to one more machine as soon as what was spent
// beside the commitments in the last term comes to z fees, z = 1 being the best there is (a machine in use costs no more).
// Commitments count backwards too, so that no hour is a reason twice. slots is the term; fee and price are of one machine.
func Online(demand []float64, slots int, fee, price, z float64) (cost float64) {
	cover, real := make([]float64, len(demand)+slots), make([]float64, len(demand)+slots)
	for t, x := range demand {
		for {
			uncovered := 0
			for i := max(t-slots+1, 0); i <= t; i++ {
				if demand[i] > cover[i] {
					uncovered++
				}
			}
			if price*float64(uncovered) <= z*fee {
				break
			}
			cost += fee
			for i := max(t-slots+1, 0); i < t+slots; i++ {
				cover[i]++
				if i >= t {
					real[i]++
				}
			}
		}
		cost += price * max(x-real[t], 0)
	}
	return cost
}

// randomised is what the rule pays on the mean when z is drawn from its density e^z/(e-1) on 0 to 1, by twenty equal
// parts of it.
func randomised(demand []float64, slots int, fee, price float64) (mean float64) {
	const parts = 20
	for i := range parts {
		z := math.Log(1 + (float64(i)+0.5)/parts*(math.E-1))
		mean += Online(demand, slots, fee, price, z) / parts
	}
	return mean
}

// coarse is a history in no more than so many equal parts, each by its mean, and how many slots one has.
func coarse(demand []float64, most int) (parts []float64, per int) {
	per = max((len(demand)+most-1)/most, 1)
	for i := 0; i < len(demand); i += per {
		sum := 0.0
		for _, x := range demand[i:min(i+per, len(demand))] {
			sum += x
		}
		parts = append(parts, sum/float64(per))
	}
	return parts, per
}

// Optimum is the least that could have been paid, exactly. As a linear programme: minimise the fees and what is bought beside
// them, so that each slot has what it needs; every column is one block of ones, so it is the cheapest flow through the
// history instead. As many units as the peak go from its beginning to its end, each by slots: free where the slot needs
// fewer, at the price where one is bought, or over a whole term at its fee. The cheapest paths are sent one after the other.
// (gonum's simplex, which tests compare it with, does not come to an end on histories of a hundred slots.)
func Optimum(demand []float64, slots int, fee, price float64) float64 {
	peak := slices.Max(demand)
	f := flow{nodes: len(demand) + 1}
	for t, x := range demand {
		f.arc(t, t+1, peak-x, 0)
		f.arc(t, t+1, peak, price)
		f.arc(t, min(t+slots, len(demand)), peak, fee)
	}
	return f.cheapest(peak)
}

// flow is a network; arcs come in pairs, each beside its way back.
type flow struct {
	nodes int
	arcs  []arc
	from  [][]int // arcs by node
}

type arc struct {
	to         int
	room, cost float64
}

func (f *flow) arc(from, to int, room, cost float64) {
	if f.from == nil {
		f.from = make([][]int, f.nodes)
	}
	f.from[from], f.from[to] = append(f.from[from], len(f.arcs)), append(f.from[to], len(f.arcs)+1)
	f.arcs = append(f.arcs, arc{to, room, cost}, arc{from, 0, -cost})
}

const nothing = 1e-9

// cheapest sends so many units from the first node to the last.
func (f *flow) cheapest(units float64) (cost float64) {
	price := make([]float64, f.nodes) // of reaching each node: with it no arc has a negative cost
	for units > nothing {
		dist, by := f.paths(price)
		for i := range price {
			price[i] += dist[i]
		}
		send := units
		for at := f.nodes - 1; at != 0; at = f.arcs[by[at]^1].to {
			send = min(send, f.arcs[by[at]].room)
		}
		for at := f.nodes - 1; at != 0; at = f.arcs[by[at]^1].to {
			f.arcs[by[at]].room -= send
			f.arcs[by[at]^1].room += send
			cost += send * f.arcs[by[at]].cost
		}
		units -= send
	}
	return cost
}

// paths are the cheapest ways from the first node (Dijkstra), and the arc by which each node is reached.
func (f *flow) paths(price []float64) (dist []float64, by []int) {
	dist, by = make([]float64, f.nodes), make([]int, f.nodes)
	for i := range dist {
		dist[i] = math.Inf(1)
	}
	dist[0] = 0
	q := &queue{{0, 0}}
	for q.Len() > 0 {
		n := heap.Pop(q).(near)
		if n.dist > dist[n.node] {
			continue
		}
		for _, i := range f.from[n.node] {
			a := &f.arcs[i]
			if a.room <= nothing {
				continue
			}
			if d := n.dist + max(a.cost+price[n.node]-price[a.to], 0); d < dist[a.to]-1e-12 {
				dist[a.to], by[a.to] = d, i
				heap.Push(q, near{a.to, d})
			}
		}
	}
	return dist, by
}

type near struct {
	node int
	dist float64
}

// queue gives the nearest first.
type queue []near

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].dist < q[j].dist }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(near)) }
func (q *queue) Pop() any {
	n := len(*q) - 1
	x := (*q)[n]
	*q = (*q)[:n]
	return x
}
