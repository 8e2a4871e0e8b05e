package simulate

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"lowtide/functions/lowtide/world"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/market"
	"lowtide/shared/plan/pool"
	"lowtide/shared/provider/fake"
)

// Ablation plays one job in the whole ring in memory (the real functions, agents and trainer, the fake cloud) and takes
// one thing away at a time. The cloud's list does not show what has run out, as most do not: a launch does.
//
// A run of an arm on a seed meets the same market as every other arm's; losses come at the same moment whatever the
// notice.
type arm struct {
	name   string
	less   world.Less
	advice world.Advice
}

// Advice comes ten minutes before three losses in five and once in a day without one: assumed, no cloud says so.
var (
	unlisted = world.Less{Stock: true}
	advice   = world.Advice{Before: 10 * time.Minute, Share: 0.6, False: 1. / 24}
	arms     = []arm{
		{name: "as it is", less: unlisted},
		{name: "prices unknown", less: world.Less{Stock: true, Prices: true}},
		{name: "refusals forgotten", less: world.Less{Stock: true, Refusals: true}},
		{name: "stock listed", less: world.Less{}},
		{name: "advice heard", less: unlisted, advice: advice},
		{name: "advice acted on", less: unlisted, advice: world.Advice{Before: advice.Before, Share: advice.Share, False: advice.False, Act: true}},
	}
	noticesOf = []time.Duration{0, 30 * time.Second, 120 * time.Second, 300 * time.Second}
)

// Worth is one arm at one notice, over all seeds. Cost is the bill over the work alone on demand; the differences are
// to "as it is" at a notice of 120 s, seed by seed; the intervals are 95 %.
type Worth struct {
	Notice   float64 `json:"notice_s"`
	Arm      string  `json:"arm"`
	Seeds    int     `json:"seeds"`
	Missed   int     `json:"missed"`
	Cost     float64 `json:"cost"`
	Change   float64 `json:"cost_change"`
	Within   float64 `json:"cost_change_within"`
	Again    float64 `json:"minutes_made_again"`
	AgainBy  float64 `json:"minutes_change"`
	AgainIn  float64 `json:"minutes_change_within"`
	Machines float64 `json:"machines"`
}

// Ablation says how much is played: Seeds lives of a job of Work for each of Lives arms and notices.
type Ablation struct {
	Seeds int
	Work  time.Duration // the deadline is half as much later
	Done  func()        // told after each life, from many goroutines; may be nil
}

// Lives is how many lives will be told to Done.
func (b Ablation) Lives() int { return b.Seeds * len(noticesOf) * len(arms) }

// Play plays every arm at every notice on seeds 1 to Seeds. It ends within a moment of ctx, or of the first life that fails.
func (b Ablation) Play(ctx context.Context) ([]Worth, error) {
	results := make([][][]ring, len(noticesOf))
	for i := range results {
		results[i] = make([][]ring, len(arms))
		for a := range results[i] {
			results[i][a] = make([]ring, b.Seeds)
		}
	}
	tables := pool.NewTables(rebalance.TablesLimit)
	lives, ctx := errgroup.WithContext(ctx)
	lives.SetLimit(runtime.GOMAXPROCS(0))
	for seed := range b.Seeds {
		for i, notice := range noticesOf {
			for a, arm := range arms {
				lives.Go(func() error {
					r, err := b.live(ctx, uint64(seed+1), notice, arm, tables)
					if err != nil {
						return fmt.Errorf("%s, notice %s, seed %d: %w", arm.name, notice, seed+1, err)
					}
					results[i][a][seed] = r
					if b.Done != nil {
						b.Done()
					}
					return nil
				})
			}
		}
	}
	if err := lives.Wait(); err != nil {
		return nil, err
	}
	base := results[2][0] // 120 s, as it is
	var out []Worth
	for i, notice := range noticesOf {
		for a := range arms {
			out = append(out, worth(notice, arms[a].name, results[i][a], base))
		}
	}
	return out, nil
}

func worth(notice time.Duration, name string, runs, base []ring) Worth {
	w := Worth{Notice: notice.Seconds(), Arm: name, Seeds: len(runs)}
	n := float64(len(runs))
	var cost, again []float64
	for i, r := range runs {
		w.Cost, w.Again, w.Machines = w.Cost+r.cost/n, w.Again+r.again/n, w.Machines+float64(r.machines)/n
		cost, again = append(cost, r.cost-base[i].cost), append(again, r.again-base[i].again)
		if r.missed {
			w.Missed++
		}
	}
	w.Change, w.Within = interval(cost)
	w.AgainBy, w.AgainIn = interval(again)
	return w
}

// interval is the mean and half the width of its 95 % interval.
func interval(xs []float64) (mean, within float64) {
	n := float64(len(xs))
	for _, x := range xs {
		mean += x / n
	}
	if n < 2 {
		return mean, math.Inf(1)
	}
	sum := 0.0
	for _, x := range xs {
		sum += (x - mean) * (x - mean)
	}
	return mean, 1.96 * math.Sqrt(sum/(n-1)/n)
}

// ring is what one life of the job came to.
type ring struct {
	cost     float64 // over the work alone on demand
	again    float64 // minutes of work made a second time
	machines int
	missed   bool
}

const (
	ringRate      = 0.1 // steps a second
	ablationZones = 2   // of the modelled market: with more, something is nearly always to be had, and little is worth knowing
)

func (b Ablation) live(ctx context.Context, seed uint64, notice time.Duration, a arm, tables *pool.Tables) (ring, error) {
	if ctx.Err() != nil { // many may still wait for their turn
		return ring{}, ctx.Err()
	}
	work, limit := b.Work, b.Work+b.Work/2
	begin := time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)
	if notice == 0 {
		notice = -1 // the fake cloud's word for none
	}
	w, err := world.New(world.Options{
		Seed: seed, Start: begin, Traces: market.Model(seed, ablationZones, 195*time.Second, 1000), Rate: ringRate, Lease: 6 * time.Hour,
		Cloud: fake.Config{Notice: notice, Ahead: true}, Less: a.less, Advice: a.advice, Tables: tables,
	})
	if err != nil {
		return ring{}, err
	}
	steps := int64(ringRate * work.Seconds())
	const name = "job"
	w.Submit(fleet.Spec{
		Name: name, Run: []string{"train"}, Env: map[string]string{"SEED": "1", "STEPS": strconv.FormatInt(steps, 10)}, Steps: steps,
		Work: work, Deadline: begin.Add(limit), Autonomy: fleet.Act, SaveEvery: 10 * time.Minute,
	})
	for end := begin.Add(2 * limit); w.Host.Now().Before(end); {
		for range 10 {
			if ctx.Err() != nil {
				return ring{}, ctx.Err()
			}
			w.Host.Run(w.Host.Now().Add(time.Minute))
		}
		f, err := w.Fleet()
		if err != nil {
			return ring{}, err
		}
		if f != nil && f.Workloads[name] != nil && f.Workloads[name].Phase.Final() && len(w.Cloud.Bill().Ours().Running()) == 0 {
			j := f.Workloads[name]
			bill := w.Cloud.Bill().Ours()
			r := ring{machines: len(bill), cost: bill.Total(w.Host.Now()).Float() / (fake.V100.OnDemand * work.Hours())}
			r.missed = j.Phase != fleet.Finished || j.Ended.After(begin.Add(limit))
			for _, l := range w.Lost(name) {
				r.again += float64(l.Steps) / ringRate / 60
			}
			return r, nil
		}
	}
	return ring{missed: true}, fmt.Errorf("the job did not end in %s", 2*limit)
}
