package plan_test

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/market"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
)

// quote is one snapshot of a series.
type quote struct {
	at       time.Time
	od, spot float64
}

// history reads the recorded list prices with spot in them: by machine type and region, in order of time.
func history(t *testing.T) map[string]map[string][]quote {
	t.Helper()
	name := filepath.Join(cmp.Or(os.Getenv("LOWTIDE_SHARED"), "../../../shared"), "data", "gcp_gpu_price_history.csv.gz")
	f, err := os.Open(name)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("the recorded prices are not here (set LOWTIDE_SHARED): %v", err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string][]quote{}
	for _, r := range rows[1:] {
		at, err := time.Parse("2006-01-02T15:04:05", r[0])
		od, oderr := strconv.ParseFloat(r[3], 64)
		spot, none := strconv.ParseFloat(r[4], 64)
		if err != nil || oderr != nil {
			t.Fatalf("%v: %v, %v", r, err, oderr)
		}
		if none != nil {
			continue // there is no spot, as everywhere before 8 May 2023
		}
		if out[r[1]] == nil {
			out[r[1]] = map[string][]quote{}
		}
		out[r[1]][r[2]] = append(out[r[1]][r[2]], quote{at, od, spot})
	}
	return out
}

// then is the price known by a time.
func then(all []quote, at time.Time) (quote, bool) {
	i, _ := slices.BinarySearchFunc(all, at, func(q quote, at time.Time) int { return q.at.Compare(at) })
	if i == len(all) || !all[i].at.Equal(at) {
		i--
	}
	if i < 0 {
		return quote{}, false
	}
	return all[i], true
}

// past is one of many mixed jobs at some time of the recorded prices: a type of machine in up to three regions, whose spot
// comes and goes as the seeded model has it.
func past(prices map[string]map[string][]quote, seed uint64) *world {
	r := rand.New(rand.NewPCG(31, seed))
	from, to := time.Date(2023, 5, 8, 0, 0, 0, 0, time.UTC), time.Date(2026, 7, 20, 0, 0, 0, 0, time.UTC)
	for {
		begin := from.Add(time.Duration(r.Int64N(int64(to.Sub(from)))))
		kinds := fleet.Sorted(prices)
		regions := prices[kinds[r.IntN(len(kinds))]]
		names := fleet.Sorted(regions)
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		work := []time.Duration{3, 8, 24, 48}[r.IntN(4)] * time.Hour
		w := &world{rng: r, notice: 2 * time.Minute, save: 45 * time.Second, starts: 5 * time.Minute, policy: plan.Default}
		w.spec = fleet.Spec{
			Name: "job", Work: work, Steps: int64(work / time.Second), Autonomy: fleet.Act, SaveEvery: 10 * time.Minute,
			Deadline: t0.Add(time.Duration(float64(work)*[]float64{1.1, 1.4, 2}[r.IntN(3)]) + w.policy.StartMax + 2*w.policy.Wake),
		}
		n := warmup + w.minutes()
		ups := market.Model(seed+1, 3, time.Minute*3, n/3+1)
		for i, name := range names[:min(3, len(names))] {
			q, ok := then(regions[name], begin)
			if !ok {
				continue
			}
			if w.od == 0 || q.od < w.od {
				w.od = q.od
			}
			z := zone{speed: 1}
			for m := range n {
				now, _ := then(regions[name], begin.Add(time.Duration(m-warmup)*time.Minute))
				z.up, z.price = append(z.up, ups[i].Count[m/3] > 0), append(z.price, cmp.Or(now.spot, q.spot))
			}
			w.zones = append(w.zones, z)
		}
		if len(w.zones) > 0 {
			w.refuse = make([]bool, n)
			return w
		}
	}
}

// relaxed is the least that could have been paid if a job could be split as one likes, and started at no cost: the linear
// programme's relaxation, which the cheapest minutes solve.
func (w *world) relaxed() float64 {
	var minutes []float64
	for m := warmup; m < warmup+int(w.spec.Deadline.Sub(t0)/time.Minute); m++ {
		least := w.od
		for _, z := range w.zones {
			if z.up[m] {
				least = min(least, z.price[m]/z.speed)
			}
		}
		minutes = append(minutes, least)
	}
	slices.Sort(minutes)
	sum := 0.0
	for _, p := range minutes[:int(w.spec.Work/time.Minute)] {
		sum += p / 60
	}
	return sum
}

// TestOnRecordedPricesTheJobsCostLessThanGreedyAndNoneIsLate plays mixed jobs at times of three years of list prices.
func TestOnRecordedPricesTheJobsCostLessThanGreedyAndNoneIsLate(t *testing.T) {
	prices := history(t)
	n := 8
	if os.Getenv("LOWTIDE_LONG") != "" {
		n = 100
	}
	by := pool.Solving{Tables: pool.NewTables(512 << 20)}
	sum := map[string]float64{}
	for seed := range uint64(n) {
		w := past(prices, seed)
		sum["on demand"] += w.od * (w.spec.Work + w.starts).Hours()
		sum["relaxed"] += w.relaxed()
		for name, d := range map[string]decide{"ours": w.ours(by), "greedy": w.simple(false)} {
			r := w.play(t, d)
			if r.job.Phase != fleet.Finished || r.job.Ended.After(w.spec.Deadline) {
				t.Errorf("job %d: %s missed: %s, ended %s, deadline %s", seed, name, r.job.Phase, r.job.Ended.Sub(t0), w.spec.Deadline.Sub(t0))
			}
			sum[name] += r.cost
		}
	}
	t.Logf("%d jobs, seeds 0 to %d: all on demand %.2f USD, greedy %.2f, ours %.2f, the relaxation %.2f: %.1f %% of on demand, %.1f %% of the way from greedy to the relaxation",
		n, n-1, sum["on demand"], sum["greedy"], sum["ours"], sum["relaxed"], 100*sum["ours"]/sum["on demand"], 100*(sum["greedy"]-sum["ours"])/(sum["greedy"]-sum["relaxed"]))
	if sum["ours"] > sum["greedy"] || sum["ours"] < sum["relaxed"] || math.IsNaN(sum["ours"]) {
		t.Errorf("ours %.2f, greedy %.2f, the relaxation %.2f", sum["ours"], sum["greedy"], sum["relaxed"])
	}
}
