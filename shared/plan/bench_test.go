package plan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
)

// crowd is n workloads on spot, at different places of their lives, and offers of 500 types in 40 zones.
func crowd(n, offers int) (*fleet.Fleet, *fleet.Markets) {
	m := &fleet.Markets{AsOf: t0, Pools: map[string]*fleet.PoolPast{}}
	for i := range offers {
		o := offer(fmt.Sprintf("z%d", i%40), fleet.Spot, 1+0.25*float64(i%7)/7)
		if i%10 == 0 {
			o.Market, o.Hourly = fleet.OnDemand, fleet.Known(fleet.Dollars(3))
		}
		o.Type, o.GPU = fmt.Sprintf("t%d", i/40), []string{"V100", "A100", "H100", "L4", "T4"}[i/40%5]
		m.Offers = append(m.Offers, o)
		if o.Market == fleet.Spot {
			m.Pools[o.Pool()] = &fleet.PoolPast{Up: i%3 > 0, Since: t0.Add(-time.Duration(i%300) * time.Minute), At: t0, Good: float64(i % 20), Seen: 20, Usual: 1}
		}
	}
	f := fleet.New("f", "i")
	for i := range n {
		name := fmt.Sprintf("w%05d", i)
		o := m.Offers[1+40*(i%100)]
		spec := &fleet.Spec{
			Name: name, Work: 48 * time.Hour, Steps: 1000, Deadline: t0.Add(time.Duration(12+i%48) * time.Hour), Autonomy: fleet.Act, Models: []string{o.GPU}, GPUs: 1,
		}
		step := int64(1000 - (12+i%48)*16)
		f.Machines["m"+name] = &fleet.Instance{
			Name: "m" + name, Workload: name, Offer: o, Phase: fleet.Verified, Bought: t0.Add(-3 * time.Hour), ReadyAt: t0.Add(-3 * time.Hour), Heard: t0,
			Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: step},
		}
		f.Workloads[name] = &fleet.Workload{
			Spec: spec, Phase: fleet.Accepted, Since: t0.Add(-10 * time.Hour), On: "m" + name, Epoch: 1, Saved: fleet.Manifest{ID: "s", Epoch: 1, Step: step},
		}
	}
	return f, m
}

// BenchmarkPlan plans with warm tables: a fleet as a whole, and one workload of it after an event.
func BenchmarkPlan(b *testing.B) {
	by := pool.Solving{Tables: pool.NewTables(256 << 20)}
	for _, n := range []int{1000, 2000, 5000, 10000} {
		f, m := crowd(n, 20000)
		book := plan.NewBook(m)
		plan.Make(f, book, by, plan.Default, t0)
		b.Run(fmt.Sprintf("whole/workloads=%d", n), func(b *testing.B) {
			for b.Loop() {
				plan.Make(f, book, by, plan.Default, t0)
			}
			b.ReportMetric(float64(by.Count()), "tables")
			b.ReportMetric(float64(by.Bytes())/(1<<20), "MB")
		})
		b.Run(fmt.Sprintf("one/workloads=%d", n), func(b *testing.B) {
			for _, w := range f.Workloads {
				w.Review = t0.Add(time.Hour)
			}
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				w := f.Workloads[fmt.Sprintf("w%05d", i%n)]
				w.Review = time.Time{}
				began := time.Now()
				plan.Make(f, book, by, plan.Default, t0)
				took = append(took, time.Since(began))
				w.Review = t0.Add(time.Hour)
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2].Seconds()*1e3, "p50-ms")
			b.ReportMetric(took[len(took)*99/100].Seconds()*1e3, "p99-ms")
			for _, w := range f.Workloads {
				w.Review = time.Time{}
			}
		})
	}
}
