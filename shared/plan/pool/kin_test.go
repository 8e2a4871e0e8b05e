package pool_test

import (
	"math/rand/v2"
	"testing"

	"lowtide/shared/plan/pool"
)

// Two zones have come and gone together for a week, a third on its own. One of the two has just lost its like:
// of two equally old zones the third is then the one to ride, and the first if its like is there.
func TestAZoneWhoseLikeIsGoneIsNotTrusted(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	past := make([][]bool, 3)
	draw := func(n int) (run []bool) {
		for len(run) < n {
			up := len(run) == 0 || !run[len(run)-1]
			for range 20 + r.IntN(60) {
				run = append(run, up)
			}
		}
		return run[:n]
	}
	past[0], past[2] = draw(3000), draw(3000)
	past[1] = append([]bool(nil), past[0]...)
	for z := range past {
		for i := 2960; i < 3000; i++ {
			past[z][i] = i > 2965
		}
	}
	j := pool.Job{Work: 12 * 3600, Deadline: 14 * 3600, Delay: 600, Tick: 195, OnDemand: 3, Spot: 1}
	start := func(like bool) pool.Choice {
		p := pool.New(pool.NewTables(1<<28), j, past)
		return p.Choose(pool.View{Up: []bool{true, like, true}, Zone: -1, Work: j.Work})
	}
	if got := start(false); got.Zone != 2 {
		t.Errorf("its like is gone: got %+v, want zone 2", got)
	}
	if got := start(true); got.Zone == 2 {
		t.Errorf("its like is there: got %+v, want zone 0 or 1", got)
	}
}
