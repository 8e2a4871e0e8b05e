package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/shared/market"
	"lowtide/shared/plan/pool"
)

// The job of the standard set: C = 48 h on one V100; prices of the traces' machine, USD an hour.
const (
	work     = 48 * time.Hour
	onDemand = 3.06
	spot     = 0.9731
)

// tableMemory bounds the value tables of a run, in bytes.
const tableMemory = 256 << 20

// Policies are all that can be compared, in the order of the table. The optimum knows the future and bounds them.
// They share value tables, which hold nothing of any job.
func Policies() []Policy {
	tables := pool.NewTables(tableMemory)
	rule := func(make func(pool.Job) pool.Rule) Maker {
		return func(j pool.Job, history [][]bool) pool.Rule { return pool.Follow(make(j), history) }
	}
	return []Policy{
		{Name: "on-demand", Make: rule(func(pool.Job) pool.Rule { return pool.Only() })},
		{Name: "greedy", Make: rule(pool.Greedy)},
		{Name: "uniform-text", Make: rule(func(j pool.Job) pool.Rule { return pool.Uniform(j, pool.LeaveText) })},
		{Name: "uniform-released", Make: rule(func(j pool.Job) pool.Rule { return pool.Uniform(j, pool.LeaveReleased) })},
		{Name: "uniform-elapsed", Make: rule(func(j pool.Job) pool.Rule { return pool.Uniform(j, pool.LeaveElapsed) })},
		{Name: "slack-wait", Make: rule(func(j pool.Job) pool.Rule { return pool.Guarded(j, pool.SlackWait(j, 0.1)) })},
		{Name: "lowtide", Make: func(j pool.Job, history [][]bool) pool.Rule { return pool.New(tables, j, history) }},
		{Name: "optimum"},
	}
}

// Table is the result of one setting.
type Table struct {
	Deadline float64  `json:"deadline_h"`
	Delay    float64  `json:"delay_h"`
	Groups   string   `json:"groups"`
	Work     float64  `json:"work_h"`
	Tick     float64  `json:"tick_s"`
	OnDemand float64  `json:"price_od"` // $/h
	Spot     float64  `json:"price_spot"`
	Gang     int      `json:"gang"`
	Windows  int      `json:"windows"` // for each of Zones
	Zones    []string `json:"zones"`   // a+b are used together
	Scores   []Score  `json:"scores"`
}

type flags struct {
	data, output     string
	policies, zones  []string
	deadlines, delay []float64
	windows, gang    int
	stdio            bool
	study, replay    string
	seeds            int
	seed             uint64
}

// Command is `lowtide simulate`.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: "simulate", Short: "Compare policies for one job with a deadline on recorded or modelled spot markets", Args: cobra.NoArgs,
		Long: "Plays a job of 48 hours in many windows of each zone, under each policy, and prints its cost as a share of\n" +
			"on-demand's, the share of the way from greedy to the optimum that it closes, missed deadlines and launches.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.stdio {
				return Serve(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			if f.replay != "" {
				return f.played(cmd.Context(), cmd.OutOrStdout())
			}
			if f.study == "ablation" {
				return f.ablate(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			traces, err := f.traces()
			if err != nil {
				return err
			}
			tables, err := f.run(cmd.Context(), traces, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), f.output, tables)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.data, "data", "", "directory of recorded traces; empty: the built-in model")
	fs.StringVar(&f.output, "output", "text", "text or json")
	fs.StringSliceVar(&f.policies, "policies", nil, "only these; beside the usual ones: live (as the decider asks, by shared tables) and reference (of the literature)")
	fs.StringSliceVar(&f.zones, "zones", nil, "only zones whose names contain one of these; joined by '+' they are used together, a+b")
	fs.Float64SliceVar(&f.deadlines, "deadlines", []float64{52, 60, 70}, "hours from the start")
	fs.Float64SliceVar(&f.delay, "delays", []float64{0.05, 0.2}, "hours from a launch until work goes on")
	fs.IntVar(&f.windows, "windows", 40, "jobs for each zone")
	fs.StringVar(&f.replay, "replay", "", "what would other policies have done? a --state directory of lowtide run, or one with files of lowtide events")
	fs.StringVar(&f.study, "study", "", "instead of the table: halves (beside the reference policy, by halves of zones and time) oracle (told parts of the future) or ablation (the ring on the fake cloud with one thing less)")
	fs.IntVar(&f.seeds, "seeds", 16, "lives of a job for each line of the ablation")
	fs.IntVar(&f.gang, "gang", 1, "instances a job needs at once, all or none")
	fs.BoolVar(&f.stdio, "policy-stdio", false, "be a policy: answer job and tick messages on stdin, one JSON object a line")
	fs.Uint64Var(&f.seed, "seed", 1, "of the built-in model")
	return cmd
}

func (f flags) traces() ([]market.Trace, error) {
	if f.data == "" {
		return market.Model(f.seed, 3, 195*time.Second, 20158), nil
	}
	return market.Load(f.data)
}

// groups are the zones asked for, each alone, or together where they are joined by '+'.
func (f flags) groups(traces []market.Trace) ([]Group, error) {
	find := func(part string) (out []market.Trace) {
		for _, t := range traces {
			if strings.Contains(t.Zone, part) {
				out = append(out, t)
			}
		}
		return out
	}
	asked := f.zones
	if len(asked) == 0 {
		asked = []string{""}
	}
	var out []Group
	for _, a := range asked {
		parts := strings.Split(a, "+")
		var together Group
		used := map[string]bool{}
		for _, p := range parts {
			found := find(p)
			if len(found) == 0 {
				return nil, fmt.Errorf("--zones %q: no trace has that in its name", p)
			}
			for _, t := range found {
				if len(parts) == 1 {
					out = append(out, Group{Name: t.Zone, Up: [][]bool{t.Up(f.gang)}, Others: f.others(traces, map[string]bool{t.Zone: true})})
					continue
				}
				if !used[t.Zone] {
					together.Up, used[t.Zone] = append(together.Up, t.Up(f.gang)), true
				}
			}
		}
		if len(parts) > 1 {
			together.Name, together.Others = a, f.others(traces, used)
			out = append(out, together)
		}
	}
	return out, nil
}

// others are the zones that a group does not use.
func (f flags) others(traces []market.Trace, used map[string]bool) (out [][]bool) {
	for _, t := range traces {
		if !used[t.Zone] {
			out = append(out, t.Up(f.gang))
		}
	}
	return out
}

// chosen are the policies asked for; greedy and the optimum are always played, since the others are measured by them.
func (f flags) chosen() ([]Policy, error) {
	if len(f.policies) == 0 {
		return Policies(), nil
	}
	want := map[string]bool{"greedy": true, "optimum": true}
	for _, p := range f.policies {
		want[p] = true
	}
	var out []Policy
	for _, p := range append(Policies(), Live(), Reference()) {
		if want[p.Name] {
			out = append(out, p)
			delete(want, p.Name)
		}
	}
	for name := range want {
		return nil, fmt.Errorf("--policies %q: there is no such policy", name)
	}
	return out, nil
}

func (f flags) run(ctx context.Context, traces []market.Trace, log io.Writer) ([]Table, error) {
	if f.study != "" {
		study := studies[f.study]
		if study == nil {
			return nil, fmt.Errorf("--study %q: want halves, oracle or ablation", f.study)
		}
		return study(ctx, f, traces, log)
	}
	groups, err := f.groups(traces)
	if err != nil {
		return nil, err
	}
	policies, err := f.chosen()
	if err != nil {
		return nil, err
	}
	return f.compare(ctx, groups, policies, traces[0].Gap.Seconds(), log)
}

// compare plays policies on every setting asked for.
func (f flags) compare(ctx context.Context, groups []Group, policies []Policy, tick float64, log io.Writer) ([]Table, error) {
	if f.windows < 1 {
		return nil, errors.New("--windows: at least 1")
	}
	if f.gang < 1 {
		return nil, errors.New("--gang: at least 1")
	}
	tell := bar(log, f.windows*len(groups)*len(policies)*len(f.delay)*len(f.deadlines))
	var out []Table
	for _, delay := range f.delay {
		for _, deadline := range f.deadlines {
			j := pool.Job{Work: work.Seconds(), Deadline: deadline * 3600, Delay: delay * 3600, Tick: tick, OnDemand: onDemand, Spot: spot}
			if !j.Promisable() {
				return nil, fmt.Errorf("--deadlines %g: %s of work and a start of %g h do not fit", deadline, work, delay)
			}
			if len(groups[0].Up[0])-groups[0].From < j.Ticks()+2 {
				return nil, fmt.Errorf("--deadlines %g: the traces are shorter", deadline)
			}
			scores, err := Compare(ctx, Setting{Job: j, Groups: groups, Windows: f.windows, Done: tell}, policies)
			if err != nil {
				return nil, err
			}
			var names []string
			for _, g := range groups {
				names = append(names, g.Name)
			}
			out = append(out, Table{
				Deadline: deadline, Delay: delay, Groups: fmt.Sprintf("%d × %d windows", len(groups), f.windows), Work: work.Hours(), Tick: tick,
				OnDemand: j.OnDemand, Spot: j.Spot, Gang: f.gang, Windows: f.windows, Zones: names, Scores: scores,
			})
		}
	}
	return out, nil
}

// Compare plays every policy on the same jobs. Greedy and the optimum must be among them.
func Compare(ctx context.Context, s Setting, policies []Policy) ([]Score, error) {
	played := map[string][]Played{}
	for _, p := range policies {
		jobs, err := s.Play(ctx, p)
		if err != nil {
			return nil, err
		}
		played[p.Name] = jobs
	}
	if played["greedy"] == nil || played["optimum"] == nil {
		return nil, errors.New("greedy and the optimum must be played: the others are measured by them")
	}
	var out []Score
	for _, p := range policies {
		out = append(out, Sum(p.Name, s.Job, played[p.Name], played["greedy"], played["optimum"]))
	}
	return out, nil
}

func write(w io.Writer, format string, tables []Table) error {
	switch format {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(tables)
	case "text":
		for _, t := range tables {
			fmt.Fprintf(w, "deadline %g h, delay %g h, %s\n", t.Deadline, t.Delay, t.Groups)
			fmt.Fprintf(w, "  %-19s %8s %8s %8s %8s %9s\n", "policy", "missed", "cost", "closed", "gap p75", "launches")
			for _, s := range t.Scores {
				fmt.Fprintf(w, "  %-19s %8d %8.4f %7.1f%% %8.3f %9.1f\n", s.Policy, s.Missed, s.Cost, 100*s.Closed, s.Gap75, s.Launches)
			}
		}
		return nil
	}
	return fmt.Errorf("--output %q: want text or json", format)
}
