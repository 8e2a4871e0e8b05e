package pool

import "math"

// kin is how alike zones come and go, learned from what was seen of them together; it knows no names. A zone whose
// kin are up while they seldom are is safer than its own age and level say, one whose kin are gone is in danger.
// The weight was measured on the first half of five of the nine public traces: there and in the other three quarters
// it told as much of a loss as a zone's own level does.
type kin struct {
	odd    []float64   // up less level, by zone: the surprise of this moment
	shared [][]float64 // discounted hours of one surprise times another
}

const (
	kinMemory = 168.0 // hours over which likeness forgets
	kinDoubt  = 7.2   // hours of surprise that weigh as much as not being alike
	kinUp     = -1.2  // log odds of a loss for each unit of the kin's surprise
	kinDown   = 1.0   // log odds of an outage's end

	usualDoubt  = 200.0 // ticks that weigh as much as no surprise
	promptDoubt = 8.0   // steps of outages of all zones that weigh as much as the prior
)

func newKin(n int) kin {
	return kin{odd: make([]float64, n), shared: square(n)}
}

// see adds a spell of tick seconds, with the zones' memories as they are after it.
func (k *kin) see(zones []Memory, tick float64) {
	keep, h := math.Exp(-tick/3600/kinMemory), tick/3600
	for z, m := range zones {
		k.odd[z] = -m.Level()
		if m.Up {
			k.odd[z]++
		}
	}
	for z, row := range k.shared {
		for o := range row {
			row[o] = row[o]*keep + h*k.odd[z]*k.odd[o]
		}
	}
}

// surprise is how much more of a zone's kin are up than usual, in zones just like it.
func (k *kin) surprise(z int) float64 {
	sum := 0.0
	for o, both := range k.shared[z] {
		if o != z && both > 0 {
			sum += k.odd[o] * both / math.Sqrt((k.shared[z][z]+kinDoubt)*(k.shared[o][o]+kinDoubt))
		}
	}
	return sum
}
