package advise_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize/convex/lp"

	"lowtide/functions/lowtide/advise"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6*max(1, math.Abs(b)) }

// least tries every way to commit, by whole machines.
func least(demand []float64, slots int, fee, price float64, t int, cover []float64) float64 {
	if t == len(demand) {
		return 0
	}
	best := math.Inf(1)
	for buy := 0.0; buy <= 3; buy++ {
		now := append([]float64{}, cover...)
		for i := t; i < min(t+slots, len(demand)); i++ {
			now[i] += buy
		}
		if now[t] > 4 {
			break
		}
		best = min(best, buy*fee+price*max(demand[t]-now[t], 0)+least(demand, slots, fee, price, t+1, now))
	}
	return best
}

// programme solves the same as a linear programme: commitments from each slot on, what is bought, what is left over.
func programme(t *testing.T, demand []float64, slots int, fee float64) float64 {
	n := len(demand)
	a, cost, basis := mat.NewDense(n, 3*n, nil), make([]float64, 3*n), make([]int, n)
	for i := range demand {
		cost[i], cost[n+i], basis[i] = fee, 1, n+i
		for j := max(i-slots+1, 0); j <= i; j++ {
			a.Set(i, j, 1)
		}
		a.Set(i, n+i, 1)
		a.Set(i, 2*n+i, -1)
	}
	least, _, err := lp.Simplex(cost, a, demand, 1e-9, basis)
	if err != nil {
		t.Fatal(err)
	}
	return least
}

func TestTheOptimumIsWhatTryingEveryWayFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 30 {
		demand := make([]float64, 5)
		for i := range demand {
			demand[i] = float64(r.IntN(4))
		}
		slots, fee := 2+r.IntN(2), 1+2*r.Float64()
		got, want := advise.Optimum(demand, slots, fee, 1), least(demand, slots, fee, 1, 0, make([]float64, len(demand)))
		if solved := programme(t, demand, slots, fee); !near(got, want) || !near(got, solved) {
			t.Fatalf("%v, term %d, fee %g: got %g, trying finds %g, the linear programme %g", demand, slots, fee, got, want, solved)
		}
	}
}

func TestTheRuleWithoutForesightStaysWithinItsBound(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 200 {
		demand := make([]float64, 80)
		level := 3.0
		for i := range demand {
			level = max(0, level+float64(r.IntN(3)-1))
			demand[i] = level
		}
		slots, fee := 5+r.IntN(30), 2+10*r.Float64()
		best := advise.Optimum(demand, slots, fee, 1)
		if got := advise.Online(demand, slots, fee, 1, 1); got > advise.Bound*best+1e-9 || got < best-1e-6 {
			t.Errorf("term %d, fee %g: pays %g, at least %g, at most twice that", slots, fee, got, best)
		}
	}
}

func TestTheCommitmentIsTheQuantileOfDemand(t *testing.T) {
	demand := make([]float64, 100) // 1 to 100 machines
	for i := range demand {
		demand[i] = float64(i + 1)
	}
	for r, want := range map[float64]float64{0.63: 37, 0.35: 65, 1: 0, 1.2: 0} {
		if got := advise.Quantile(demand, r); got != want {
			t.Errorf("at %g of the alternative: %g, want %g", r, got, want)
		}
	}
	a, err := advise.For(advise.Case{Demand: demand, Slot: 24 * time.Hour, Price: 1, Terms: []advise.Term{{"30d", 30 * 24 * time.Hour, 0.63}}})
	if err != nil || a[0].Commit != 37 || !near(a[0].BreakEven, 0.63) {
		t.Fatalf("got %+v, %v", a, err)
	}
	for _, c := range []float64{30, 36, 38, 50} { // no other level is cheaper
		cost := 0.0
		for _, x := range demand {
			cost += 24 * (c*0.63 + max(x-c, 0))
		}
		if cost < a[0].Cost-1e-6 {
			t.Errorf("%g machines cost %g, the advice %g", c, cost, a[0].Cost)
		}
	}
}

func TestAFallingPriceMakesCommitmentsDearer(t *testing.T) {
	flat := advise.Case{Demand: []float64{10, 10, 10, 10}, Slot: 24 * time.Hour, Price: 3.06, Terms: []advise.Term{{"3y", 3 * 365 * 24 * time.Hour, 1.8}}}
	falls := flat
	falls.Decline = 0.4
	a, err := advise.For(flat)
	b, err2 := advise.For(falls)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	// Over three years, 40 % a year leave 0.5116 of the price on the mean: (1-0.6³)/(-3·ln 0.6).
	if !near(b[0].Against, 3.06*(1-0.216)/(-3*math.Log(0.6))) || a[0].Commit != 10 || b[0].Commit != 0 {
		t.Errorf("flat %+v, falling %+v: want ten machines, and none", a[0], b[0])
	}
}

func TestTheDocumentsMixSavesWhatItSaysOnlyAtAnotherDiscount(t *testing.T) {
	if got := advise.Mix(0.6, 0.4375); !near(got, 0.2625) {
		t.Errorf("60 %% at 43.75 %% less saves %g, want 26.25 %%", got)
	}
	if d, ok := advise.Discount(0.6, 0.38); !ok || math.Round(1000*d) != 633 {
		t.Errorf("38 %% needs a discount of %g, want 63.3 %%", d)
	}
	if _, ok := advise.Discount(0.3, 0.38); ok {
		t.Error("30 % reserved cannot save 38 %")
	}
}

func TestALongHistoryIsTakenByParts(t *testing.T) {
	demand := make([]float64, 24*180)
	for i := range demand {
		demand[i] = 10 + 4*math.Sin(float64(i)/24*2*math.Pi/30)
	}
	a, err := advise.For(advise.Case{Demand: demand, Slot: time.Hour, Price: 3.06, Terms: []advise.Term{{"30d", 30 * 24 * time.Hour, 1.9}, {"1y", 365 * 24 * time.Hour, 1.9}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range a {
		if x.Best <= 0 || x.Cost < 0.97*x.Best || x.Online > 2.05*x.Best || x.Cost > x.Alone {
			t.Errorf("%+v: want the least below the advice, and the rule within twice of it", x)
		}
	}
	if a[0].Prorated || !a[1].Prorated {
		t.Errorf("a history of half a year is shorter than one term and not the other: %+v", a)
	}
}
