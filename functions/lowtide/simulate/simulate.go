// Package simulate plays jobs with deadlines against recorded or modelled spot markets and compares policies:
// on-demand only, greedy, Uniform Progress, lowtide's own and the offline optimum.
//
// It promises that every policy meets the same jobs under the same books, that misses are counted and shown
// first, and that no policy sees more than what was known at each tick (the optimum apart, which sees it all
// and is a bound). It starts nothing and buys nothing.
package simulate

import (
	"context"
	"runtime"
	"sort"
	"sync"

	"lowtide/shared/plan/pool"
)

// Maker makes a policy for one job, given the availability of each zone before its start (newest last, all on
// one clock, possibly empty). It is called anew for every job, so nothing learnt in one reaches the next.
type Maker func(j pool.Job, history [][]bool) pool.Rule

// Policy is a policy under its name: Make, or See for one that is told more than the history, which is a bound or a
// reference and no rival. Neither stands for the offline optimum.
type Policy struct {
	Name string
	Make Maker
	See  func(j pool.Job, g Group, start int) pool.Rule
}

// Setting is one set of jobs: every window of every group of zones, with one deadline and one delay.
type Setting struct {
	Job     pool.Job
	Groups  []Group
	Windows int    // for each group
	Done    func() // told after each job, from many goroutines; may be nil
}

// Group is the zones one job may use, with their availability by tick, equally long and on one clock.
type Group struct {
	Name   string
	Up     [][]bool
	Others [][]bool // of zones that are not used, for policies that count their hazards there
	From   int      // no window begins before this tick; what came earlier is history
}

// Played is one job of a setting under one policy.
type Played struct {
	Group   int
	Window  int
	Outcome Outcome
}

// Play runs every job of the setting under p, on all processors. The order of the results is that of groups and windows, whatever the scheduling. It stops early when ctx ends.
func (s Setting) Play(ctx context.Context, p Policy) ([]Played, error) {
	type task struct{ group, window, start int }
	var tasks []task
	for g, group := range s.Groups {
		for w, start := range Starts(len(group.Up[0])-group.From, s.Job.Ticks(), s.Windows) {
			tasks = append(tasks, task{g, w, group.From + start})
		}
	}
	out := make([]Played, len(tasks))
	next := make(chan int)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range next {
				t := tasks[i]
				out[i] = Played{t.group, t.window, s.one(p, s.Groups[t.group], t.start)}
				if s.Done != nil {
					s.Done()
				}
			}
		}()
	}
	var err error
	for i := range tasks {
		if err = ctx.Err(); err != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	return out, err
}

// one plays one job; the optimum is computed, every other policy is played.
func (s Setting) one(p Policy, g Group, start int) Outcome {
	up := g.Up
	if p.See != nil {
		return Play(s.Job, p.See(s.Job, g, start), up, start)
	}
	if p.Make != nil {
		return Play(s.Job, p.Make(s.Job, History(up, start, s.Job.Tick)), up, start)
	}
	ahead := make([][]bool, len(up))
	for z := range up {
		ahead[z] = up[z][start:]
	}
	return Outcome{Cost: pool.Optimum(s.Job, ahead)}
}

// Normal is a cost as a share of on-demand's without any delay.
func Normal(j pool.Job, cost float64) float64 { return cost / (j.OnDemand * j.Work / 3600) }

// Score sums a policy's jobs up. Costs are normalised to on-demand without any delay.
type Score struct {
	Policy   string  `json:"policy"`
	Jobs     int     `json:"jobs"`
	Missed   int     `json:"missed"`
	Cost     float64 `json:"cost"`             // mean
	Gap      float64 `json:"gap"`              // mean distance to the optimum of the same job
	Gap75    float64 `json:"gap_p75"`          // its 75th percentile over jobs
	Closed   float64 `json:"closed"`           // share of the way from greedy to the optimum, 1 = all
	Launches float64 `json:"launches"`         // a job, mean; 0 for the optimum, which is not played
	Moves    float64 `json:"moves"`            // of those, from spot in one zone to spot in another
	Invalid  int     `json:"invalid_requests"` // ticks in which spot was asked for where it was not up
}

// Sum scores a policy's jobs against greedy and the optimum of the same jobs, in the same order.
func Sum(name string, j pool.Job, jobs, greedy, optimum []Played) Score {
	s := Score{Policy: name, Jobs: len(jobs)}
	var won, all float64
	gaps := make([]float64, len(jobs))
	for i, p := range jobs {
		cost, best := Normal(j, p.Outcome.Cost), Normal(j, optimum[i].Outcome.Cost)
		floor := Normal(j, greedy[i].Outcome.Cost)
		gaps[i] = cost - best
		s.Cost += cost / float64(len(jobs))
		s.Gap += gaps[i] / float64(len(jobs))
		s.Launches += float64(p.Outcome.Launches) / float64(len(jobs))
		s.Moves += float64(p.Outcome.Moves) / float64(len(jobs))
		won, all = won+floor-cost, all+floor-best
		s.Invalid += p.Outcome.Invalid
		if p.Outcome.Missed {
			s.Missed++
		}
	}
	if all > 0 {
		s.Closed = won / all
	}
	s.Gap75 = quantile(gaps, 0.75)
	return s
}

// quantile interpolates between the order statistics; 0 for none.
func quantile(xs []float64, q float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	sorted := append([]float64(nil), xs...)
	sort.Float64s(sorted)
	at := q * float64(len(sorted)-1)
	i := min(int(at), len(sorted)-2)
	if i < 0 {
		return sorted[0]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
