package world_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"lowtide/functions/lowtide/world"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/fn/memory"
	"lowtide/shared/market"
	"lowtide/shared/plan/pool"
	"lowtide/shared/provider/fake"
)

var start = time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)

const (
	saveEvery = 10 * time.Minute
	rate      = 0.1 // steps a second
)

// jobs are what each round runs.
func jobs() []fleet.Spec {
	job := func(name string, seed, steps int, deadline time.Duration) fleet.Spec {
		s := fleet.Spec{
			Name: name, Run: []string{"train"}, Env: map[string]string{"SEED": strconv.Itoa(seed), "STEPS": strconv.Itoa(steps)},
			Steps: int64(steps), Work: time.Duration(float64(steps) / rate * float64(time.Second)), Autonomy: fleet.Act, SaveEvery: saveEvery,
		}
		if deadline > 0 {
			s.Deadline = start.Add(deadline)
		}
		return s
	}
	return []fleet.Spec{job("tight", 1, 900, 6*time.Hour), job("loose", 2, 700, 20*time.Hour), job("best-effort", 3, 500, 0)}
}

// tables are shared by all rounds, which run side by side: what is decided depends on none of the others.
var tables = pool.NewTables(rebalance.TablesLimit)

// chaos is a world in which everything goes wrong that may go wrong.
func chaos(seed uint64) world.Options {
	return world.Options{
		Seed: seed, Start: start, Traces: market.Model(seed, 3, 195*time.Second, 3000), Rate: rate, Lease: 6 * time.Hour, Tables: tables,
		Faults: memory.Faults{Lose: 0.4, Double: 0.2, Reorder: 0.2, CrashAfterHandle: 0.03, CrashBeforeAck: 0.03},
		Crash:  0.002, Holder: 0.002,
		Cloud: fake.Config{
			Foreign: 5, NoTokens: seed%2 == 1,
			Faults: fake.Faults{
				NoCapacity: 0.1, Throttled: 0.1, Unavailable: 0.05, LostAnswer: 0.15, LostBefore: 0.1, NeverReady: 0.05, BadGPU: 0.1,
				ShortNotice: 0.2, NoNotice: 0.2, ListingLag: 20 * time.Second,
			},
		},
	}
}

// play runs a round to its end and says what is wrong with it.
func play(t *testing.T, o world.Options, specs []fleet.Spec, limit time.Duration) (w *world.World, wrong []string) {
	t.Helper()
	w, err := world.New(o)
	if err != nil {
		t.Fatal(err)
	}
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	submitted := map[string]bool{}
	for end := start.Add(limit); w.Host.Now().Before(end); {
		f, err := w.Fleet()
		if err != nil {
			t.Fatal(err)
		}
		done := f != nil && len(w.Cloud.Bill().Ours().Running()) == 0
		for _, s := range specs {
			if f == nil || f.Workloads[s.Name] == nil {
				w.Submit(s) // a person who hears nothing asks again
				submitted[s.Name] = true
				done = false
				continue
			}
			done = done && f.Workloads[s.Name].Phase.Final()
		}
		if done {
			break
		}
		w.Host.Run(w.Host.Now().Add(10 * time.Minute))
	}
	f, err := w.Fleet()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		j := f.Workloads[s.Name]
		if j == nil || j.Phase != fleet.Finished {
			bad("%s is stuck: %+v", s.Name, j)
			continue
		}
		if !s.Deadline.IsZero() && j.Ended.After(s.Deadline) {
			bad("%s missed its deadline by %s", s.Name, j.Ended.Sub(s.Deadline))
		}
		var seed uint64
		fmt.Sscan(s.Env["SEED"], &seed)
		if want := world.Uninterrupted(seed, s.Steps); j.Result != want {
			bad("%s made %s, an uninterrupted run makes %s", s.Name, j.Result, want)
		}
		for _, x := range w.Lost(s.Name) {
			// What a run lost was made since its last checkpoint, or while that was on its way and unheard of.
			if most := int64(rate * (saveEvery + 3*time.Minute).Seconds()); x.Steps > most {
				bad("%s: the run of epoch %d lost %d steps, more than the %d since its last checkpoint", s.Name, x.Epoch, x.Steps, most)
			}
			if x.From == 0 && x.Saved {
				bad("%s: epoch %d began from nothing although a checkpoint was durable", s.Name, x.Epoch)
			}
		}
	}
	for plan, ids := range w.Cloud.Bill().Ours().Twice() {
		if !o.Cloud.NoTokens { // without tokens a second one is possible, and must be ended
			bad("plan %s bought %v", plan, ids)
		}
	}
	for _, r := range w.Cloud.Bill().Ours().Running() {
		bad("%s (%s) still bills at the end", r.Name, r.ID)
	}
	for _, x := range w.Log.Overlaps() {
		bad("two at once: %s", x)
	}
	for _, x := range w.Cloud.Writes() {
		if w.Foreign(x.ID) {
			bad("%s was called on %s, which is not ours", x.Call, x.ID)
		}
	}
	return w, wrong
}

func rounds(t *testing.T, short, long int) int {
	if os.Getenv("LOWTIDE_LONG") != "" {
		return long
	}
	t.Logf("%d rounds; LOWTIDE_LONG=1 plays %d", short, long)
	return short
}

// tally sums rounds up, so that a run shows what it has been through.
type tally struct {
	sync.Mutex
	rounds, machines, runs, restores int
	lost, steps                      int64
	hours                            float64
}

func (s *tally) add(w *world.World, specs []fleet.Spec) {
	s.Lock()
	defer s.Unlock()
	s.rounds++
	s.machines += len(w.Cloud.Bill().Ours())
	s.runs += len(w.Log.Lives)
	s.hours += w.Host.Now().Sub(start).Hours()
	s.steps += int64(len(w.Log.Steps))
	for _, j := range specs {
		for _, x := range w.Lost(j.Name) {
			s.lost += x.Steps
			if x.From > 0 {
				s.restores++
			}
		}
	}
}

func TestChaos(t *testing.T) {
	var sum tally
	t.Cleanup(func() {
		t.Logf("%d rounds, %.0f hours: %d machines, %d runs, %d restores, %d steps of which %d were made again",
			sum.rounds, sum.hours, sum.machines, sum.runs, sum.restores, sum.steps, sum.lost)
	})
	for seed := range uint64(rounds(t, 12, 300)) {
		if only := os.Getenv("LOWTIDE_SEED"); only != "" && only != fmt.Sprint(seed) {
			continue
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w, wrong := play(t, chaos(seed), jobs(), 72*time.Hour)
			sum.add(w, jobs())
			for _, x := range wrong {
				t.Error(x)
			}
			if t.Failed() {
				t.Logf("bill:\n%s", w.Story())
			}
		})
	}
}

func TestOneSeedGivesOneHistory(t *testing.T) {
	history := func() string {
		w, _ := play(t, chaos(4), jobs(), 72*time.Hour)
		h := sha256.Sum256([]byte(w.Story()))
		return hex.EncodeToString(h[:])
	}
	if a, b := history(), history(); a != b {
		t.Error("the same seed gave two histories")
	}
}

func TestInACalmWorldThreeJobsTakeOneMachineEachAndAMoveForEachLoss(t *testing.T) {
	o := chaos(3)
	o.Faults, o.Crash, o.Holder = memory.Faults{}, 0, 0
	o.Cloud = fake.Config{}
	w, wrong := play(t, o, jobs(), 72*time.Hour)
	for _, x := range wrong {
		t.Error(x)
	}
	if got, want := len(w.Cloud.Bill().Ours()), len(w.Log.Lives); got != want {
		t.Errorf("%d machines for %d runs:\n%s", got, want, w.Story())
	}
}
