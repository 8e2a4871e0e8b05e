package pool

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
)

// Tables are not to be seen from outside: what a case is told from the shared ones is compared here with full tables made
// for it alone, at the case's own delay, price and level, and with every age, time and slack.
func TestSharedTablesSayWhatTheCasesOwnWouldSay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	shared := NewTables(256 << 20)
	var off, lost float64
	n, differ := 0, 0
	for range 8 {
		c := Case{Delay: 120 * math.Exp(2.3*r.Float64()), Wake: 600, OnDemand: 3}
		zone := Zone{Price: 3 * (0.08 + r.Float64()), Memory: Recall(true, 0, 24*r.Float64(), 24)}
		own := horizon{step: natural, delay: c.Delay, k: c.OnDemand / zone.Price, left: 256, slack: 256, fine: 3, near: 40}
		table := newTable(own, lone(fineAges, zone.Level(), natural))
		if err := table.solve(context.Background()); err != nil {
			t.Fatal(err)
		}
		for range 1200 {
			c.Work = 7200 * math.Exp(2.5*r.Float64())
			c.Left = c.Work + c.Delay + 300*math.Exp(5*r.Float64())
			zone.Up, zone.Age = r.IntN(2) == 0, 600*math.Exp(5*r.Float64())
			m := moment{c.Left, c.Work, 0, Mode(r.IntN(3))}
			if c.Left > float64(own.left)*natural || m.mode == Spot && !zone.Up {
				continue
			}
			c.Mode = m.mode
			v := View{Mode: m.mode, Zone: -1}
			if m.mode == Spot {
				v.Zone = 0
			}
			said, truth := make([]float64, 3), table.weigh(m, zone.loneState(fineAges, natural), natural).list()
			truth[2] = min(truth[2], truth[3]) // one of them is open
			truth = truth[:3]
			seen := look([]Zone{zone})
			var err, failed error
			said[0], said[1], err = c.leave(context.Background(), seen, 0, shared.solved)
			said[2], failed = c.ride(context.Background(), seen, 0, v, shared.solved)
			if err != nil || failed != nil {
				t.Fatal(err, failed)
			}
			for k := range said {
				said[k] /= c.OnDemand * natural / 3600
			}
			n++
			least, best := 0, 0
			for k := range truth {
				if math.IsInf(truth[k], 1) {
					said[k] = truth[k] // the guard is asked before and after
				}
				if !math.IsInf(truth[k], 1) && !math.IsInf(said[k], 1) {
					off += math.Abs(said[k]-truth[k]) / (c.Work / natural) / 3
				}
				if said[k] < said[least] {
					least = k
				}
				if truth[k] < truth[best] {
					best = k
				}
			}
			if least != best {
				differ++
				lost += (truth[least] - truth[best]) / (c.Work / natural)
			}
		}
	}
	t.Logf("%d moments: costs differ by %.5f of on-demand in the mean; %d choices differ, which costs %.7f; %d tables, %.1f MB",
		n, off/float64(n), differ, lost/float64(n), shared.Count(), float64(shared.Bytes())/(1<<20))
	if off/float64(n) > 0.01 || lost/float64(n) > 0.0005 {
		t.Errorf("costs differ by %.5f of on-demand, want at most 0.01; choices lose %.7f, want at most 0.0005", off/float64(n), lost/float64(n))
	}
}

func (c costs) list() []float64 { return []float64{c.wait, c.onDemand, c.stay, c.launch} }
