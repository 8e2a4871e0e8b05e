package suite_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"lowtide/benchrunner/suite"
)

// row draws windows of a card whose true ratio is mean: deviation of one window, first-order autocorrelation rho.
type row struct {
	random        *rand.Rand
	mean, sd, rho float64
	last          float64
	ratios        []float64
}

func newRow(random *rand.Rand, mean, sd, rho float64) *row {
	return &row{random: random, mean: mean, sd: sd, rho: rho, last: random.NormFloat64()}
}

func (r *row) more(n int, fresh bool) []float64 {
	if fresh {
		r.ratios = nil
	}
	for range n {
		r.last = r.rho*r.last + math.Sqrt(1-r.rho*r.rho)*r.random.NormFloat64()
		r.ratios = append(r.ratios, r.mean+r.sd*r.last)
	}
	return r.ratios
}

// trial counts outcomes of many cards.
func trial(cards int, extend bool, mean, between, sd, rho float64) map[suite.Outcome]int {
	random := rand.New(rand.NewPCG(1, 2))
	got := map[suite.Outcome]int{}
	for range cards {
		r := newRow(random, mean+between*random.NormFloat64(), sd, rho)
		o, _ := suite.Settle(30, extend, r.more)
		got[o]++
	}
	return got
}

func TestNoneOfTenThousandHealthyCardsIsRejected(t *testing.T) {
	for _, extend := range []bool{false, true} {
		got := trial(10000, extend, 1.0, 0.02, 0.01, 0.5)
		if got[suite.Misses] != 0 {
			t.Errorf("extend %v: got %d of 10,000 rejected, want 0", extend, got[suite.Misses])
		}
		if got[suite.Reaches] < 9990 {
			t.Errorf("extend %v: got %d of 10,000 passed, want nearly all", extend, got[suite.Reaches])
		}
		t.Logf("extend %v: %d rejected, %d undecided, %d passed", extend, got[suite.Misses], got[suite.Straddles], got[suite.Reaches])
	}
}

func TestATrueRatioOf88IsRejected(t *testing.T) {
	for _, extend := range []bool{false, true} {
		got := trial(10000, extend, 0.88, 0, 0.01, 0.5)
		if got[suite.Misses] < 9900 {
			t.Errorf("extend %v: got %d of 10,000 rejected, want at least 9,900", extend, got[suite.Misses])
		}
		t.Logf("extend %v: %d of 10,000 rejected", extend, got[suite.Misses])
	}
}

func TestBelowTheGateSeldomPasses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		sd, rho float64
	}{
		{"independent windows", 0.01, 0},
		{"windows that resemble their neighbours", 0.01, 0.5},
		{"noisy windows that resemble their neighbours", 0.02, 0.5},
	} {
		got := trial(10000, false, 0.895, 0, tt.sd, tt.rho)
		if got[suite.Reaches] > 350 {
			t.Errorf("%s: got %d of 10,000 at 0.895 passed, want at most 350", tt.name, got[suite.Reaches])
		}
		t.Logf("%s: %d of 10,000 at 0.895 passed", tt.name, got[suite.Reaches])
	}
}

func TestTheBoundsCoverTheMean(t *testing.T) {
	for _, rho := range []float64{0, 0.5} {
		random := rand.New(rand.NewPCG(3, 4))
		const rows = 4000
		below, above := 0, 0
		for range rows {
			iv := suite.Estimate(newRow(random, 1, 0.01, rho).more(30, false))
			if iv.Lower > 1 {
				below++
			}
			if iv.Upper < 1 {
				above++
			}
		}
		// Each bound may miss in 5 % of rows; an estimated autocorrelation costs a little of that.
		if limit := rows * 8 / 100; below > limit || above > limit {
			t.Errorf("rho %v: got %d and %d misses of %d, want at most %d each", rho, below, above, rows, limit)
		}
	}
}

func TestTheBoundsAreStudents(t *testing.T) {
	// One-sided 95 % quantiles of Student's t, from any printed table.
	for _, tt := range []struct {
		n int
		t float64
	}{{5, 2.132}, {10, 1.833}, {20, 1.729}, {30, 1.699}, {60, 1.671}} {
		x := make([]float64, tt.n)
		for i := range x { // alternating: no positive autocorrelation, so the row is worth n
			x[i] = float64(i % 2)
		}
		iv := suite.Estimate(x)
		got := (iv.Upper - iv.Mean) / (iv.Deviation / math.Sqrt(float64(tt.n)))
		if math.Abs(got-tt.t) > 0.001 {
			t.Errorf("n = %d: got t %.4f, want %.3f", tt.n, got, tt.t)
		}
	}
}

func TestResemblingWindowsAreWorthFewer(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	sum, rows := 0.0, 500
	for range rows {
		sum += suite.Estimate(newRow(random, 1, 0.01, 0.5).more(60, false)).Effective
	}
	if mean := sum / float64(rows); mean < 15 || mean > 30 { // 60·(1-0.5)/(1+0.5) = 20
		t.Errorf("got %.1f effective windows of 60 at 0.5, want about 20", mean)
	}
}

func TestExactlyAtTheGatePasses(t *testing.T) {
	rated := 258.0
	x := []float64{rated * 0.9 / rated, rated * 0.9 / rated, rated * 0.9 / rated}
	if got := suite.Judge(suite.Estimate(x)); got != suite.Reaches {
		t.Errorf("got %v, want %v: 90 %% passes", got, suite.Reaches)
	}
}

func TestOneWindowDecidesNothing(t *testing.T) {
	for _, x := range [][]float64{nil, {0.5}, {1.5}} {
		if got := suite.Judge(suite.Estimate(x)); got != suite.Straddles {
			t.Errorf("%v: got %v, want %v", x, got, suite.Straddles)
		}
	}
}

// torn is a row that no number of windows decides: wide, and centred on the gate.
func torn() (more func(n int, fresh bool) []float64, windows, fresh *int) {
	var ratios []float64
	windows, fresh = new(int), new(int)
	return func(n int, again bool) []float64 {
		if again {
			ratios, *fresh = nil, *fresh+1
		}
		for i := range n {
			ratios = append(ratios, 0.9+0.1*float64(i%2*2-1))
		}
		*windows += n
		return ratios
	}, windows, fresh
}

func TestAnUndecidedRowIsExtendedThenRepeatedThenMisses(t *testing.T) {
	more, windows, fresh := torn()
	if o, settled := suite.Settle(30, true, more); o != suite.Misses || !settled || *windows != 120 || *fresh != 1 {
		t.Errorf("got %v, settled %v after %d windows with %d fresh starts, want a miss after 120 with 1", o, settled, *windows, *fresh)
	}
}

func TestAQuickRowIsNotExtended(t *testing.T) {
	more, windows, _ := torn()
	if o, settled := suite.Settle(30, false, more); o != suite.Straddles || settled || *windows != 30 {
		t.Errorf("got %v, settled %v after %d windows, want undecided after 30", o, settled, *windows)
	}
}
