// Package assign deals places out to those who gain most by them: a minimum-cost assignment, exact.
//
// It promises the largest sum of what is gained, over every way to give each of n takers one place or none and each
// column no more takers than it has room for; and the same answer for the same numbers. It knows nothing of machines or
// money, reads no clock and keeps nothing.
//
// Takers come one after the other, each by the cheapest chain of those who move up for it (Jonker and Volgenant's
// shortest augmenting paths, Computing 38, 1987), with columns of more than one place: a chain leads from column to
// column, and whom it moves is the one who loses least by it. What each pair of columns costs is kept, so that a chain is
// looked for among columns and not among takers.
package assign

import (
	"math"
	"slices"
)

// Best returns the column of each row, or -1. gain[i][j] is what row i gains in column j; nothing is given for no gain,
// which is also how to say that a column does not suit. room[j] is how many rows column j takes.
//
// It takes O(rows × columns²) at worst, and rows × columns where there is room enough.
func Best(gain [][]float64, room []int) []int {
	d := dealer{gain: gain, room: room, at: make([]int, len(gain)), none: len(room)}
	d.price, d.dist = make([]float64, len(room)+1), make([]float64, len(room)+1)
	d.from, d.seen = make([]int, len(room)+1), make([]bool, len(room)+1)
	d.in, d.step = make([][]int, len(room)), make([][]move, len(room))
	for j := range d.step {
		d.step[j] = make([]move, len(room)+1)
		d.step[j][j] = move{math.Inf(1), -1}
		d.learn(j)
	}
	for i := range gain {
		d.place(i)
	}
	for i, j := range d.at {
		if j == d.none {
			d.at[i] = -1
		}
	}
	return d.at
}

type dealer struct {
	gain  [][]float64
	room  []int
	none  int       // the column of those who get nothing: endless room, no gain
	at    []int     // column of each row
	in    [][]int   // rows of each column
	price []float64 // of each column: what its last place is worth to those who do not have it, negative
	step  [][]move  // from column to column
	dist  []float64 // of the search: what it costs that the new row gets into a column
	from  []int
	seen  []bool
}

// move is whom it costs least to move from one column to another, and what it costs.
type move struct {
	cost float64
	row  int
}

// cost is what it costs a row to be in a column; +Inf where it cannot.
func (d *dealer) cost(i, j int) float64 {
	switch {
	case j == d.none:
		return 0
	case d.gain[i][j] > 0 && d.room[j] > 0:
		return -d.gain[i][j]
	}
	return math.Inf(1)
}

// place gives a row the column that is best for all placed so far.
func (d *dealer) place(i int) {
	for j := range d.dist {
		d.dist[j], d.from[j], d.seen[j] = d.cost(i, j)-d.price[j], -1, false
	}
	end, gone := d.search(), -1
	last := d.dist[end]
	for j := range d.price {
		if d.seen[j] {
			d.price[j] += d.dist[j] - last
		}
	}
	for j := end; ; j = d.from[j] {
		row := i
		if before := d.from[j]; before >= 0 {
			row = d.step[before][j].row
		}
		d.at[row] = j
		if j != d.none {
			d.take(j, row, gone)
		}
		if d.from[j] < 0 {
			return
		}
		gone = row
	}
}

// take puts a row into a column in the place of one that has gone on; -1: of none.
func (d *dealer) take(j, row, gone int) {
	if gone < 0 {
		if d.in[j] = append(d.in[j], row); len(d.in[j]) == d.room[j] {
			d.learn(j)
		}
		return
	}
	d.in[j][slices.Index(d.in[j], gone)] = row
	here := d.cost(row, j)
	for k := range d.step[j] {
		switch m := &d.step[j][k]; {
		case k == j:
		case m.row == gone:
			*m = d.cheapest(j, k)
		default:
			if x := d.cost(row, k) - here; x < m.cost {
				*m = move{x, row}
			}
		}
	}
}

// search returns the nearest column with room for one more.
func (d *dealer) search() int {
	for {
		j := -1
		for k, x := range d.dist {
			if !d.seen[k] && (j < 0 || x < d.dist[j]) {
				j = k
			}
		}
		if j == d.none || len(d.in[j]) < d.room[j] {
			return j
		}
		d.seen[j] = true
		base := d.dist[j] + d.price[j]
		for k, m := range d.step[j] {
			if x := base + m.cost - d.price[k]; x < d.dist[k] && !d.seen[k] {
				d.dist[k], d.from[k] = x, j
			}
		}
	}
}

// learn finds who would move from a column to each other one.
func (d *dealer) learn(j int) {
	for k := range d.step[j] {
		if k != j {
			d.step[j][k] = d.cheapest(j, k)
		}
	}
}

// cheapest is who would move from one column to another.
func (d *dealer) cheapest(j, k int) move {
	best := move{math.Inf(1), -1}
	for _, row := range d.in[j] {
		if x := d.cost(row, k) - d.cost(row, j); x < best.cost {
			best = move{x, row}
		}
	}
	return best
}
