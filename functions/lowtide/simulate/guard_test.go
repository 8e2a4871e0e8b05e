package simulate_test

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"lowtide/functions/lowtide/simulate"
	"lowtide/shared/plan/pool"
)

// coin is a policy without any sense, which the guard must save.
type coin struct{ rng *rand.Rand }

func (c coin) Choose(v pool.View) pool.Choice {
	switch c.rng.IntN(3) {
	case 0:
		return pool.Choice{Mode: pool.OnDemand, Zone: -1}
	case 1:
		return pool.Choice{Mode: pool.Spot, Zone: c.rng.IntN(len(v.Up))}
	}
	return pool.Choice{Mode: pool.Idle, Zone: -1}
}

func TestUnderTheGuardNoPolicyMissesAndNothingBeatsTheOptimum(t *testing.T) {
	worlds := 120
	if os.Getenv("LOWTIDE_LONG") != "" {
		worlds = 10_000
	}
	t.Logf("%d random worlds; LOWTIDE_LONG=1 plays 10000", worlds)
	for seed := range uint64(worlds) {
		rng := rand.New(rand.NewPCG(seed, 1))
		j := pool.Job{Work: float64(1+rng.IntN(20)) * 600, Tick: 600, Delay: float64(rng.IntN(5)) * 300, OnDemand: 3, Spot: 0.2 + 2.7*rng.Float64()}
		j.Deadline = j.Work + j.Delay + float64(rng.IntN(20))*600 + 599
		if !j.Promisable() {
			continue
		}
		up := make([][]bool, 1+rng.IntN(3))
		stay := rng.Float64()
		for z := range up {
			up[z] = make([]bool, j.Ticks()+2)
			for i := range up[z] {
				up[z][i] = i > 0 && up[z][i-1]
				if rng.Float64() > stay {
					up[z][i] = rng.IntN(2) == 0
				}
			}
		}
		best := pool.Optimum(j, up)
		for name, r := range map[string]pool.Rule{
			"coin": coin{rng}, "greedy": pool.Greedy(j), "uniform": pool.Uniform(j, pool.LeaveElapsed), "slack-wait": pool.SlackWait(j, 0.1),
		} {
			got := simulate.Play(j, pool.Guarded(j, pool.Follow(r, nil)), up, 0)
			if got.Missed {
				t.Errorf("world %d: %s missed: %+v", seed, name, j)
			}
			if got.Cost < best-1e-9 {
				t.Errorf("world %d: %s cost %v, less than the optimum %v", seed, name, got.Cost, best)
			}
		}
	}
}

// A vector for any simulator: spot if up, else wait, under the guard, costs 2 spot and 3 on-demand ticks of 600 s.
func TestTheGuardStepsInAtTheLastMoment(t *testing.T) {
	j := pool.Job{Work: 2400, Deadline: 5000, Delay: 300, Tick: 600, OnDemand: 3.06, Spot: 0.9731}
	up := [][]bool{{false, true, true, false, false, true, true, true, true}}
	got := simulate.Play(j, pool.Guarded(j, pool.Follow(spotOrWait{}, nil)), up, 0)
	if want := (2*0.9731 + 3*3.06) / 6; math.Abs(got.Cost-want) > 1e-9 || got.Missed {
		t.Errorf("got %+v, want a cost of %v", got, want)
	}
}

type spotOrWait struct{}

func (spotOrWait) Choose(v pool.View) pool.Choice {
	for z, up := range v.Up {
		if up {
			return pool.Choice{Mode: pool.Spot, Zone: z}
		}
	}
	return pool.Choice{Mode: pool.Idle, Zone: -1}
}
