package suite

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Gate is the share of the rated throughput that a device must reach.
const Gate = 0.90

// confidence of each one-sided bound.
const confidence = 0.95

// strongest autocorrelation that a row of tens of windows can show.
const strongest = 0.8

// closeTo forgives the last bits of a division: 0.90 of the rating passes.
const closeTo = 1e-9

// Interval is what a row of windows says about the mean they were drawn from.
type Interval struct {
	N               int     `json:"n"`
	Mean            float64 `json:"mean"`
	Deviation       float64 `json:"deviation"`       // of one window
	Autocorrelation float64 `json:"autocorrelation"` // lag 1, corrected for the bias of short rows, in [0, 0.8]
	Effective       float64 `json:"effective_n"`     // how many independent windows the row is worth
	Lower           float64 `json:"lower95"`         // one-sided
	Upper           float64 `json:"upper95"`         // one-sided
}

// Estimate gives one-sided 95 % bounds of the mean by Student's t.
//
// Neighbouring windows of a warm device resemble each other, so the row is worth fewer than n independent ones: for a
// first-order process n(1-ρ)/(1+ρ) (G. Box, G. Jenkins, "Time Series Analysis"). The estimate of ρ from a short row is
// low by about (1+3ρ)/n (M. Kendall, 1954), which is added back. It is held to 0.8: thirty windows cannot tell a stronger
// resemblance from a drift, which the warm-up has to catch.
func Estimate(windows []float64) Interval {
	n := len(windows)
	if n == 0 {
		return Interval{Lower: 0, Upper: math.MaxFloat64}
	}
	mean, deviation := stat.MeanStdDev(windows, nil)
	iv := Interval{N: n, Mean: mean, Deviation: deviation, Effective: float64(n), Lower: mean, Upper: mean}
	if n < 2 {
		iv.Deviation, iv.Lower, iv.Upper = 0, 0, math.MaxFloat64
		return iv
	}
	if deviation == 0 {
		return iv
	}
	iv.Autocorrelation = autocorrelation(windows, mean)
	iv.Effective = max(2, float64(n)*(1-iv.Autocorrelation)/(1+iv.Autocorrelation))
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: iv.Effective - 1}.Quantile(confidence)
	half := t * deviation / math.Sqrt(iv.Effective)
	iv.Lower, iv.Upper = mean-half, mean+half
	return iv
}

func autocorrelation(x []float64, mean float64) float64 {
	n := float64(len(x))
	var with, without float64
	for i, v := range x {
		without += (v - mean) * (v - mean)
		if i > 0 {
			with += (v - mean) * (x[i-1] - mean)
		}
	}
	r := with / without
	return min(strongest, max(0, r+(1+3*r)/n))
}

// over scales an interval of throughputs into one of ratios.
func (iv Interval) over(rated float64) Interval {
	iv.Mean, iv.Deviation, iv.Lower, iv.Upper = iv.Mean/rated, iv.Deviation/rated, iv.Lower/rated, iv.Upper/rated
	return iv
}

// Outcome is what the statistics alone say of an interval of ratios.
type Outcome int

// The outcomes.
const (
	Straddles Outcome = iota
	Reaches
	Misses
)

// Judge holds an interval of ratios against the gate: it reaches it when the lower bound does, and misses it when the
// upper bound is below.
func Judge(iv Interval) Outcome {
	switch {
	case iv.Lower >= Gate-closeTo:
		return Reaches
	case iv.Upper < Gate-closeTo:
		return Misses
	}
	return Straddles
}

// Settle is the stop rule. It asks for n windows and judges them. With extend an undecided row grows to 2n, and one still
// undecided is measured afresh, to 2n again; if that does not decide either, the device misses: it had two chances to be
// clearly good, and settled is true. more adds n windows, to none when fresh, and gives all so far as ratios; fewer than
// two end the measurement undecided.
func Settle(n int, extend bool, more func(n int, fresh bool) []float64) (o Outcome, settled bool) {
	for _, fresh := range []bool{false, true} {
		for _, first := range []bool{fresh, false} {
			ratios := more(n, first)
			if len(ratios) < 2 {
				return Straddles, false
			}
			if o = Judge(Estimate(ratios)); o != Straddles || !extend {
				return o, false
			}
		}
	}
	return Misses, true
}

// median of x, which is not changed; NaN for none.
func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(x))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
