package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"lowtide/functions/lowtide/story"
	"lowtide/functions/lowtide/trainer"
	"lowtide/shared/fleet"
	"lowtide/shared/market"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
	"lowtide/shared/provider/fake"
)

// demoLength is the market time that the story may take.
const demoLength = 6 * time.Hour

// demoJob is one workload of the story.
type demoJob struct {
	name     string
	work     time.Duration
	deadline time.Duration // from the start; 0: best effort
	steps    int64
	seed     uint64
}

// demoJobs are a job with a deadline, one without, and one whose first machine fails its benchmark: the cloud slows
// down the third machine that it sells.
var demoJobs = []demoJob{
	{"deadline", 150 * time.Minute, 5 * time.Hour, 600, 1},
	{"best-effort", 80 * time.Minute, 0, 320, 2},
	{"picky", 60 * time.Minute, 4 * time.Hour, 240, 3},
}

// badMachine is which machine, in order of sale, has a GPU that is too slow.
const badMachine = 3

// spec is the workload file of a job, as intake would have read it.
func (j demoJob) spec(self string, start time.Time, speed float64) fleet.Spec {
	step := time.Duration(float64(j.work) / float64(j.steps) / speed)
	s := fleet.Spec{
		Name: j.name, Work: j.work, Steps: j.steps, Autonomy: fleet.Act, SaveEvery: 10 * time.Minute,
		Run: []string{
			self, "trainer", "--steps", strconv.FormatInt(j.steps, 10), "--seed", strconv.FormatUint(j.seed, 10),
			"--step-time", step.String(), "--save-every", "40",
		},
	}
	if j.deadline > 0 {
		s.Deadline = start.Add(j.deadline)
	}
	return s
}

// uninterrupted is what the job makes when nothing stops it: trained here, in one go.
func (j demoJob) uninterrupted() string {
	m := trainer.New(j.seed, j.steps)
	for !m.Done() {
		m.Step()
	}
	return m.Sum()
}

// window finds a moment, after skip, from which a story has something to tell: every zone that is to be had is lost within
// the hours that a job runs, so that whichever is bought, one machine is. Where a market has no such moment, one from
// which the first zone is lost will do.
func window(traces []market.Trace, skip time.Duration) (time.Duration, bool) {
	if len(traces) == 0 {
		return 0, false
	}
	for _, all := range []bool{true, false} {
		for at := skip; at+demoLength < traces[0].Length(); at += traces[0].Gap {
			if tells(traces, at, all) {
				return at, true
			}
		}
	}
	return 0, false
}

// tells says that the first zone to be had at a moment, or with all each of them, is lost between 40 and 80 minutes later.
func tells(traces []market.Trace, at time.Duration, all bool) bool {
	some := false
	for _, t := range traces {
		if !t.At(at) {
			continue
		}
		lost := t.Gap
		for lost < 2*time.Hour && t.At(at+lost) {
			lost += t.Gap
		}
		if lost <= 40*time.Minute || lost >= 80*time.Minute {
			return false
		}
		some = true
		if !all {
			break
		}
	}
	return some
}

// cut makes traces that begin at a moment.
func cut(traces []market.Trace, at time.Duration) []market.Trace {
	var out []market.Trace
	for _, t := range traces {
		skip := int(at / t.Gap)
		t.Count = t.Count[min(skip, len(t.Count)):]
		if len(t.Prices) > 0 {
			t.Prices = t.Prices[min(skip, len(t.Prices)):]
		}
		out = append(out, t)
	}
	return out
}

// optimum is a bound under what a workload could have cost by somebody who knew the market's future: on-demand and spot
// in all zones, a usual start-up for each launch, spot at the lowest price that any zone had while the story ran. USD;
// +Inf if even that could not make it. Best effort has the time that it took.
func optimum(j demoJob, took time.Duration, traces []market.Trace, p plan.Policy, onDemand, spot float64) float64 {
	gap := traces[0].Gap
	deadline := j.deadline
	if deadline == 0 {
		deadline = took + gap
	}
	for _, t := range traces {
		for _, price := range t.Prices[:min(len(t.Prices), int(max(deadline, demoLength)/gap))] {
			spot = min(spot, price)
		}
	}
	ticks := int(deadline / gap)
	job := pool.Job{
		Work: j.work.Seconds(), Deadline: deadline.Seconds(), Delay: p.StartUp.Round(15 * time.Second).Seconds(),
		Tick: gap.Seconds(), OnDemand: onDemand, Spot: spot,
	}
	var up [][]bool
	for _, t := range traces {
		u := t.Up(1)
		row := make([]bool, ticks)
		copy(row, u)
		up = append(up, row)
	}
	return pool.Optimum(job, up)
}

// verdict is the end of the story, and whether it is a good one.
type verdict struct {
	ok bool
}

// closing prints the table under the story.
func closing(w io.Writer, t *story.Teller, traces []market.Trace, p plan.Policy, bill fake.Bill, now time.Time) verdict {
	v := verdict{ok: true}
	fail := func(s string) string { v.ok = false; return s }
	fmt.Fprintf(w, "\n%-12s %-10s %-26s %9s %9s %9s  %s\n", "workload", "end", "deadline", "spent", "on demand", "bound", "weights")
	outcomes := map[string]story.Outcome{}
	for _, o := range t.Outcomes() {
		outcomes[o.Workload] = o
	}
	for _, j := range demoJobs {
		o := outcomes[j.name]
		end, due, weights := "finished", "none", "equal to an uninterrupted run"
		switch {
		case o.Finished.IsZero():
			end = fail("NOT DONE")
		case !o.Deadline.IsZero() && o.Finished.After(o.Deadline):
			due = fail("MISSED by " + story.Short(o.Finished.Sub(o.Deadline)))
		case !o.Deadline.IsZero():
			due = "met, " + story.Short(o.Deadline.Sub(o.Finished)) + " to spare"
		}
		if o.Result != j.uninterrupted() {
			weights = fail("NOT EQUAL to an uninterrupted run")
		}
		best, took := "-", o.Finished.Sub(origin)
		if o.Finished.IsZero() {
			took = now.Sub(origin)
		}
		if b := optimum(j, took, traces, p, fake.V100.OnDemand, fake.V100.Spot); !math.IsInf(b, 0) {
			best = fmt.Sprintf("%.4f", b)
		}
		fmt.Fprintf(w, "%-12s %-10s %-26s %9.4f %9.4f %9s  %s\n", j.name, end, due, o.Spent, o.OnDemand, best, weights)
	}
	ours := bill.Ours()
	running, twice := len(ours.Running()), len(ours.Twice())
	if running > 0 || twice > 0 {
		v.ok = false
	}
	_, _, rejected := t.Machines()
	fmt.Fprintf(w, "\nby the cloud's own bill: %d machines bought, %d ended, %d running, %d bought twice; %d rejected; %s in all\n",
		len(ours), len(ours)-running, running, twice, rejected, ours.Total(now))
	fmt.Fprintf(w, "spent counts machines from purchase until lowtide hears of their end, the cloud's bill until it ends them, which is seconds\nof the market earlier; on demand is the work alone at %.4f USD/h;\nbound is the least that anybody who knew the market's future could have paid\n", fake.V100.OnDemand)
	return v
}
