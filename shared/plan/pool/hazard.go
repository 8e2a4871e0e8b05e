package pool

import "math"

// ages are the bounds of the age buckets, in steps: a run in its first step has age 1.
var ages = []int{1, 2, 3, 5, 9, 17, 33, 65, 129}

func bucket(age int) int {
	b := len(ages) - 1
	for b > 0 && ages[b] > age {
		b--
	}
	return b
}

// tally counts, by up (1) or down (0) and age bucket, the steps seen and how many ended the run or grew it out
// of its bucket.
type tally struct{ exposure, end, grow [2][]float64 }

func newTally() tally {
	var t tally
	for z := range 2 {
		t.exposure[z] = make([]float64, len(ages))
		t.end[z] = make([]float64, len(ages))
		t.grow[z] = make([]float64, len(ages))
	}
	return t
}

func (t tally) add(o tally, weight float64) {
	for z := range 2 {
		for b := range ages {
			t.exposure[z][b] += weight * o.exposure[z][b]
			t.end[z][b] += weight * o.end[z][b]
			t.grow[z][b] += weight * o.grow[z][b]
		}
	}
}

func (t tally) total() float64 {
	sum := 0.0
	for z := range 2 {
		for _, e := range t.exposure[z] {
			sum += e
		}
	}
	return sum
}

// count walks a sequence in steps of f ticks, in every phase.
func count(up []bool, f int) tally {
	t := newTally()
	w := 1 / float64(f)
	for phase := range f {
		age := 1
		for i := phase; i+f < len(up); i += f {
			z, b := b2i(up[i]), bucket(age)
			t.exposure[z][b] += w
			if up[i+f] != up[i] {
				t.end[z][b] += w
				age = 1
				continue
			}
			age++
			if bucket(age) != b {
				t.grow[z][b] += w
			}
		}
	}
	return t
}

// chainOf smooths a tally into the chain of one zone: state z·buckets + b.
func chainOf(t tally) chain {
	n := len(ages)
	c := chain{up: make([]bool, 2*n), edges: make([][]edge, 2*n)}
	for z := range 2 {
		var ends, seen float64
		for b := range n {
			ends, seen = ends+t.end[z][b], seen+t.exposure[z][b]
		}
		base := (ends + 0.5) / (seen + 5)
		for b := range n {
			i := z*n + b
			c.up[i] = z == 1
			h := (t.end[z][b] + 3*base) / (t.exposure[z][b] + 3)
			grow := 0.0
			if b < n-1 {
				width := float64(ages[b+1] - ages[b])
				grow = math.Min(1, (t.grow[z][b]+3/width)/(t.exposure[z][b]-t.end[z][b]+3))
			}
			c.edges[i] = []edge{{to: (1-z)*n + 0, p: float32(h), lost: z == 1}, {to: i, p: float32((1 - h) * (1 - grow))}}
			if grow > 0 {
				c.edges[i] = append(c.edges[i], edge{to: i + 1, p: float32((1 - h) * grow)})
			}
		}
	}
	return c
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
