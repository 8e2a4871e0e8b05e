package plan_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/market"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
)

// recorded reads the public traces in place.
func recorded(t *testing.T) []market.Trace {
	t.Helper()
	shared := os.Getenv("LOWTIDE_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "shared") // beside the repository
	}
	traces, err := market.Load(filepath.Join(shared, "data", "spot-traces"))
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("the recorded traces are not here (set LOWTIDE_SHARED): %v", err)
	}
	return traces
}

// replayed is a job of 48 hours with 4 to spare on recorded zones, from the share at of the room that they leave. A start
// takes 12 minutes; the old machine works on while the next one starts, as real ones do.
func replayed(traces []market.Trace, at float64) *world {
	const start = 12 * time.Minute
	w := &world{od: 3.06, starts: start, notice: 2 * time.Minute, save: time.Second, policy: plan.Default}
	w.policy.StartUp, w.policy.StartMax, w.policy.Wake = start, start+2*time.Minute, 10*time.Minute
	w.spec = fleet.Spec{Name: "job", Work: 48 * time.Hour, Steps: 48 * 3600, Autonomy: fleet.Act, SaveEvery: 10 * time.Minute, Deadline: t0.Add(52 * time.Hour)}
	n := warmup + w.minutes()
	for _, tr := range traces {
		up := tr.Up(1)
		first := int(at * float64(len(up)-1-int(float64(n)*60/tr.Gap.Seconds())))
		z := zone{speed: 1}
		for m := range n {
			z.up = append(z.up, up[first+int(float64(m)*60/tr.Gap.Seconds())])
			z.price = append(z.price, 0.9731)
		}
		w.zones = append(w.zones, z)
	}
	w.refuse = make([]bool, n)
	return w
}

func TestOnRecordedZonesThePlansCostLessThanUniformProgressAndNeverMiss(t *testing.T) {
	traces := recorded(t)
	windows, alone := 4, 0
	if os.Getenv("LOWTIDE_LONG") != "" {
		windows, alone = 20, len(traces)
	}
	groups := [][]int{{0, 1}, {0, 1, 2, 3}, {3, 5}, {0, 5, 8}}
	for z := range alone {
		groups = append(groups, []int{z})
	}
	by := pool.Solving{Tables: pool.NewTables(256 << 20)}
	var ours, uniform, greedy float64
	for _, g := range groups {
		var zones []market.Trace
		name := ""
		for _, z := range g {
			zones = append(zones, traces[z])
			name += " " + traces[z].Zone
		}
		mean := map[string]float64{}
		for i := range windows {
			w := replayed(zones, float64(i)/float64(windows-1))
			for rule, d := range map[string]decide{"ours": w.ours(by), "greedy": w.simple(false), "uniform": w.simple(true)} {
				r := w.play(t, d)
				if r.job.Phase != fleet.Finished || r.job.Ended.After(w.spec.Deadline) {
					t.Errorf("%s: %s missed, window %d", name, rule, i)
				}
				mean[rule] += r.cost / (w.od * w.spec.Work.Hours()) / float64(windows)
			}
		}
		t.Logf("%d windows of%s: ours %.4f of on-demand, uniform progress %.4f, greedy %.4f", windows, name, mean["ours"], mean["uniform"], mean["greedy"])
		n := float64(len(groups))
		ours, uniform, greedy = ours+mean["ours"]/n, uniform+mean["uniform"]/n, greedy+mean["greedy"]/n
	}
	t.Logf("mean: ours %.4f, uniform progress %.4f, greedy %.4f", ours, uniform, greedy)
	if ours > uniform {
		t.Errorf("the mean is %.4f of on-demand, Uniform Progress makes it %.4f", ours, uniform)
	}
}
