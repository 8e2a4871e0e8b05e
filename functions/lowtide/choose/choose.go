// Package choose answers which machines suit a purpose, by rules that selection guides give: what a purpose asks for, which
// offers meet it, and what the others lack.
//
// It promises that a rule is met only where the offer shows it: what is not known is unproven, which is never met. Each rule
// names its source, and where a source contradicts itself that is said.
// It buys nothing and asks nobody.
package choose

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/gonum/mathext"

	"lowtide/shared/fleet"
)

// For is what the machines are for.
type For string

// The purposes, as the guides have them.
const (
	Training   For = "training"   // of large models
	Inference  For = "inference"  // with people who wait
	Science    For = "science"    // computations that run for long
	Experiment For = "experiment" // weeks, not months, that can be interrupted
)

// Purposes are all of them.
var Purposes = []For{Training, Inference, Science, Experiment}

// Needs are the figures that offers are held against; 0 or empty asks for nothing.
type Needs struct {
	For       For
	Memory    float64        // GB of one GPU
	NVLink    float64        // GB/s of one GPU, both directions
	Cards     int            // to be had at once
	Latency   float64        // ms, answers
	QPS       float64        // answers a second
	MTBF      float64        // hours between failures
	Certified []string       // of the cloud
	Reserve   float64        // share kept for failures of strangers' machines
	Markets   []fleet.Market // none: all
}

// Usual are the figures that the guides give for a purpose.
func Usual(f For) (Needs, error) {
	n := Needs{For: f, Reserve: 0.125}
	switch f {
	case Training:
		n.Memory, n.NVLink, n.Cards = 80, 600, 16
	case Inference:
		n.Latency, n.QPS = 5, 1000
	case Science:
		n.MTBF, n.Certified = 5000, []string{"mlps3"}
	case Experiment:
		n.Markets = []fleet.Market{fleet.Spot, fleet.OnDemand}
	default:
		return n, fmt.Errorf("%q: want training, inference, science or experiment", f)
	}
	return n, nil
}

// Notes are what the guides say beside the rules of a purpose, and where they err.
func Notes(f For) []string {
	switch f {
	case Training:
		return []string{
			"memory of 80 GB, NVLink of 600 GB/s and 16 cards are a guide's rules for large models; the A800 clusters that it recommends have 400 GB/s and fail them",
			"spread over regions, training is said to lose 30 %: lowtide keeps a job on one machine",
		}
	case Inference:
		return []string{
			"answers within 5 ms at 1,000 a second are no property of an offer: unproven until they are measured there",
			"a T4 is said to give twice an A100's inference for the money: ranked here by price over the maker's FP16 rate",
		}
	case Science:
		return []string{"5,000 h between failures and MLPS level 3, 等保三级: the first is proved by machine-hours of your own (95 %), the second by your price book"}
	case Experiment:
		return []string{"weeks on spot and on strangers' machines, with 10 to 15 % kept for failures there, which is in the price here"}
	}
	return nil
}

// Board is what is known of an offer's GPU beyond the offer.
type Board struct {
	Known  bool
	TFLOPS float64
	NVLink float64 // GB/s; 0: none
}

// Verdict is how one rule came out.
type Verdict struct {
	Rule string `json:"rule"`
	Met  string `json:"met"` // yes, no, unproven
	Why  string `json:"why"`
}

// Choice is one offer, judged.
type Choice struct {
	Offer    fleet.Offer `json:"offer"`
	GPUHour  float64     `json:"usd_per_gpu_hour"` // with what is kept for failures
	PerRate  float64     `json:"usd_per_tflops_hour,omitempty"`
	Verdicts []Verdict   `json:"verdicts"`
	No       int         `json:"no"`
	Unproven int         `json:"unproven"`
}

// Rank judges offers and puts the best first: those that lack nothing, then those that lack proof, then the others; among
// equals the cheapest useful hour. Offers without a known price, and those that must be paid for a term, are left out.
func Rank(n Needs, offers []fleet.Offer, board func(fleet.Offer) Board, past map[string]*fleet.PoolPast) []Choice {
	var out []Choice
	for _, o := range offers {
		price, ok := o.PerHour()
		if !ok || o.Term > 0 || len(n.Markets) > 0 && !slices.Contains(n.Markets, o.Market) {
			continue
		}
		b := board(o)
		c := Choice{Offer: o, GPUHour: price / float64(max(o.GPUs, 1))}
		if o.Marketplace {
			c.GPUHour *= 1 + n.Reserve
		}
		if b.TFLOPS > 0 {
			c.PerRate = c.GPUHour / b.TFLOPS
		}
		c.Verdicts = n.judge(o, b, past[o.Pool()])
		for _, v := range c.Verdicts {
			switch v.Met {
			case "no":
				c.No++
			case "unproven":
				c.Unproven++
			}
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b Choice) int {
		return cmp.Or(cmp.Compare(min(a.No, 1), min(b.No, 1)), cmp.Compare(a.Unproven+a.No, b.Unproven+b.No),
			cmp.Compare(n.rate(a), n.rate(b)), cmp.Compare(a.Offer.Pool(), b.Offer.Pool()))
	})
	return out
}

// rate is what is compared: what an hour of work costs where the work is the card's rate, and else what a card costs.
func (n Needs) rate(c Choice) float64 {
	if n.For != Training && n.For != Inference {
		return c.GPUHour
	}
	if c.PerRate <= 0 {
		return math.Inf(1)
	}
	return c.PerRate
}

func (n Needs) judge(o fleet.Offer, b Board, past *fleet.PoolPast) (out []Verdict) {
	say := func(asked bool, rule, met, why string, args ...any) {
		if asked {
			out = append(out, Verdict{rule, met, fmt.Sprintf(why, args...)})
		}
	}
	least := func(has, want float64, known bool) string {
		switch {
		case !known:
			return "unproven"
		case has >= want:
			return "yes"
		}
		return "no"
	}
	say(n.Memory > 0, "memory", least(float64(o.Memory), n.Memory, o.Memory > 0), "%d GB, %g asked", o.Memory, n.Memory)
	say(n.NVLink > 0, "nvlink", least(b.NVLink, n.NVLink, b.Known), "%g GB/s, %g asked", b.NVLink, n.NVLink)
	stock, told := o.Stock.Get()
	cards := stock * o.GPUs
	if o.GPUs >= n.Cards {
		cards, told = o.GPUs, true
	}
	say(n.Cards > 0, "cards", least(float64(cards), float64(n.Cards), told && o.GPUs > 0), "%d at once, %d asked", cards, n.Cards)
	say(n.Latency > 0, "latency", "unproven", "under %g ms: not measured", n.Latency)
	say(n.QPS > 0, "throughput", "unproven", "%g a second: not measured", n.QPS)
	if n.MTBF > 0 {
		hours, proved := between(past)
		say(true, "mtbf", map[bool]string{true: "yes", false: "unproven"}[proved && hours >= n.MTBF], "at least %.0f h by its own history, %g asked", hours, n.MTBF)
	}
	for _, c := range n.Certified {
		met := "unproven"
		if slices.Contains(strings.Split(o.Certified, ","), c) {
			met = "yes"
		}
		say(true, c, met, "the price book says of %s: %s", o.Cloud, cmp.Or(o.Certified, "nothing"))
	}
	return out
}

// between is the time between failures that a pool's history proves with 95 %: machine-hours over the most failures that so
// few may stand for (Poisson).
func between(p *fleet.PoolPast) (hours float64, proved bool) {
	if p == nil || p.Hours <= 0 {
		return 0, false
	}
	return p.Hours / mathext.GammaIncRegInv(float64(p.Interruptions)+1, 0.95), true
}
