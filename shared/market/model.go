package market

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// ends holds, by the age a run has reached, the chance that it ends within the next step (585 s). Measured on
// the public spot traces published with "Can't Be Late" (NSDI'24), all phases pooled: a young run is some
// fifty times likelier to end than one of a day, and outages behave alike.
var ends = []struct {
	age      time.Duration // from
	run, out float64       // spot lost, spot back
}{
	{0, 0.263, 0.270},
	{10 * time.Minute, 0.196, 0.245},
	{20 * time.Minute, 0.142, 0.146},
	{39 * time.Minute, 0.079, 0.084},
	{78 * time.Minute, 0.047, 0.056},
	{156 * time.Minute, 0.033, 0.049},
	{312 * time.Minute, 0.018, 0.032},
	{624 * time.Minute, 0.015, 0.025},
	{1248 * time.Minute, 0.005, 0.008},
}

const (
	step     = 585 * time.Second   // over which ends was counted
	perZone  = 0.45                // spread of a zone's own level, in log odds: 0.17 to 0.91 were seen
	perHours = 0.35                // spread of a region's level, which moves over about a day
	fullGang = 16                  // instances in a zone that is not short
	between  = 62 * 24 * time.Hour // mean time between two changes of a GPU's spot price (GCP, 2022-2026)
)

// Model draws a market of its own: zones that come and go by the age of their run or outage, each at its own
// level, regions of three zones that share a slowly moving level (so that zones of a region fail together), and
// prices that step rarely. It is made from figures, not from a trace, and depends on its arguments alone.
//
// It returns nil when zones, gap or ticks is not above 0.
func Model(seed uint64, zones int, gap time.Duration, ticks int) []Trace {
	if zones <= 0 || gap <= 0 || ticks <= 0 {
		return nil
	}
	traces := make([]Trace, zones)
	for z := range traces {
		region := z / 3
		level := regionLevel(rand.New(rand.NewPCG(seed, uint64(region)<<32|1)), gap, ticks)
		traces[z] = drawZone(rand.New(rand.NewPCG(seed, uint64(z)<<32|2)), level, gap, ticks)
		traces[z].Zone = fmt.Sprintf("model-%d%c", region+1, 'a'+rune(z%3))
	}
	return traces
}

// regionLevel is a mean-reverting path in log odds: above 0 is a good time for spot.
func regionLevel(r *rand.Rand, gap time.Duration, ticks int) []float64 {
	keep := math.Exp(-gap.Hours() / 24)
	path := make([]float64, ticks)
	x := perHours * r.NormFloat64()
	for i := range path {
		path[i] = x
		x = keep*x + perHours*math.Sqrt(1-keep*keep)*r.NormFloat64()
	}
	return path
}

func drawZone(r *rand.Rand, level []float64, gap time.Duration, ticks int) Trace {
	t := Trace{Gap: gap, Count: make([]int, ticks), Prices: make([]float64, ticks)}
	own := perZone * r.NormFloat64()
	price := 0.9731 * math.Exp(0.2*r.NormFloat64())
	change := 1 - math.Exp(-gap.Hours()/between.Hours())
	up := r.Float64() < 0.64 // mean availability of the traces the figures come from
	room := drawRoom(r)
	age := time.Duration(r.Float64() * r.Float64() * float64(12*time.Hour))
	for i := range t.Count {
		if up {
			t.Count[i] = room
		}
		if r.Float64() < change {
			price *= math.Exp(0.02 + 0.08*r.NormFloat64())
		}
		t.Prices[i] = math.Round(price*1e4) / 1e4
		if r.Float64() < endChance(up, age, own+level[i], gap) {
			up, age, room = !up, 0, drawRoom(r)
			continue
		}
		age += gap
	}
	return t
}

// endChance is the chance that a run or an outage of this age ends within gap.
func endChance(up bool, age time.Duration, level float64, gap time.Duration) float64 {
	i := len(ends) - 1
	for ends[i].age > age {
		i--
	}
	p, sign := ends[i].out, 1.0
	if up {
		p, sign = ends[i].run, -1
	}
	odds := p / (1 - p) * math.Exp(sign*level)
	p = odds / (1 + odds)
	return 1 - math.Pow(1-p, float64(gap)/float64(step))
}

// drawRoom sizes a run: members of a gang mostly come and go together, over nine tenths of the time.
func drawRoom(r *rand.Rand) int {
	if r.Float64() < 0.92 {
		return fullGang
	}
	return 1 + r.IntN(fullGang-1)
}
