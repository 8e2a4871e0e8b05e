package pool

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
)

// Tables are not to be seen from outside: what a thin one says is compared with a full one here.
func TestAThinTableSaysWhatAFullOneSays(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var off, lost float64
	n, differ := 0, 0
	for _, delay := range []float64{180, 720} {
		thin := horizon{step: 600, delay: delay, k: 3, left: 256, fine: 3, near: 12, thin: true, slack: 256}
		full := thin
		full.thin, full.near = false, 40
		a, b := newTable(thin, lone(0.7, 600)), newTable(full, lone(0.7, 600))
		for _, tab := range []*table{a, b} {
			if err := tab.solve(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if a.bytes()*4 > b.bytes() {
			t.Errorf("thin takes %d bytes, full %d", a.bytes(), b.bytes())
		}
		for range 4000 {
			work := 7200 * math.Exp(2.5*r.Float64())
			m := moment{work + delay + 300*math.Exp(5*r.Float64()), work, 0, Mode(r.IntN(3))}
			i := r.IntN(len(a.chain.up))
			if m.left > 256*600 || m.mode == Spot && !a.chain.up[i] {
				continue
			}
			n++
			thinly, fully := a.weigh(m, i, 600).list(), b.weigh(m, i, 600).list()
			least, best := 0, 0
			for k := range fully {
				if math.IsInf(thinly[k], 1) != math.IsInf(fully[k], 1) {
					t.Fatalf("%+v: got %v, want %v", m, thinly, fully)
				}
				if !math.IsInf(fully[k], 1) {
					off += math.Abs(thinly[k]-fully[k]) / (work / 600) / 4
				}
				if thinly[k] < thinly[least] {
					least = k
				}
				if fully[k] < fully[best] {
					best = k
				}
			}
			if least != best {
				differ++
				lost += (fully[least] - fully[best]) / (work / 600)
			}
		}
	}
	t.Logf("%d moments: costs differ by %.5f of on-demand in the mean; %d choices differ, which costs %.7f", n, off/float64(n), differ, lost/float64(n))
	if off/float64(n) > 0.002 || lost/float64(n) > 0.0001 {
		t.Errorf("costs differ by %.5f of on-demand, want at most 0.002; choices lose %.7f, want at most 0.0001", off/float64(n), lost/float64(n))
	}
}

func (c costs) list() []float64 { return []float64{c.wait, c.onDemand, c.stay, c.launch} }
