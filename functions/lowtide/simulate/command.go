package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"lowtide/shared/market"
	"lowtide/shared/plan/pool"
)

type options struct {
	data      string
	model     int
	seed      uint64
	zones     []string
	together  bool
	gang      int
	policies  []string
	work      float64
	deadlines []float64
	delays    []float64
	demand    float64
	spot      float64
	windows   int
	output    string
	stdio     bool
}

// Command is `lowtide simulate`: what would policies have cost on these markets?
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "simulate",
		Short: "play jobs with deadlines on spot markets and compare what policies cost",
		Long: "Play jobs with deadlines on recorded or modelled spot markets and compare what policies cost.\n" +
			"Costs are shares of on-demand without delays; closed is the share of the way from greedy to the optimum.",
		Example: "  lowtide simulate --data spot-traces/availability/1-node/aws-02-15-2023\n" +
			"  lowtide simulate --model 3 --together --deadline 52 --delay 0.2",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.stdio {
				return Serve(c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
			}
			return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.StringVar(&o.data, "data", "", "directory of traces, one <zone>_*.json a zone; without it a modelled market is played")
	f.IntVar(&o.model, "model", 9, "zones of the modelled market")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the modelled market")
	f.StringSliceVar(&o.zones, "zones", nil, "zones to take (default all)")
	f.BoolVar(&o.together, "together", false, "let each job use all zones, in place of one zone a job")
	f.IntVar(&o.gang, "gang", 1, "instances a job needs at once")
	f.StringSliceVar(&o.policies, "policies", []string{Demand, Greedy, Uniform, Lowtide, Optimum}, "policies to compare; also "+Text)
	f.Float64Var(&o.work, "work", 48, "work of a job, hours")
	f.Float64SliceVar(&o.deadlines, "deadline", []float64{52, 60, 70}, "deadlines, hours from a job's start")
	f.Float64SliceVar(&o.delays, "delay", []float64{0.05, 0.2}, "changeover delays, hours")
	f.Float64Var(&o.demand, "price-od", 3.06, "on-demand price, $/h")
	f.Float64Var(&o.spot, "price-spot", 0.9731, "spot price, $/h")
	f.IntVar(&o.windows, "windows", 40, "jobs for each group of zones, spread over the trace")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	f.BoolVar(&o.stdio, "policy-stdio", false, "be a policy: answer job and tick messages on stdin, one JSON object a line")
	return c
}

// Result is the scores of one setting, as printed by --output json.
type Result struct {
	Deadline float64 `json:"deadline_h"`
	Delay    float64 `json:"delay_h"`
	Scores   []Score `json:"scores"`
}

func (o options) run(ctx context.Context, out, log io.Writer) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if o.output != "table" && o.output != "json" {
		return fmt.Errorf("simulate: --output %q; take table or json", o.output)
	}
	policies, err := pick(Policies(), o.policies)
	if err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	settings, err := o.settings()
	if err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	results, err := Compare(ctx, settings, policies, progress(log, settings, policies))
	if err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	if o.output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(results)
	}
	return Table(out, results)
}

// settings reads the market and lays the jobs over it.
func (o options) settings() ([]Setting, error) {
	traces, err := o.traces()
	if err != nil {
		return nil, err
	}
	groups, err := o.groups(traces)
	if err != nil {
		return nil, err
	}
	var settings []Setting
	for _, r := range o.deadlines {
		for _, d := range o.delays {
			j := pool.Job{Work: o.work * 3600, Deadline: r * 3600, Delay: d * 3600, Tick: traces[0].Gap.Seconds(), OnDemand: o.demand, Spot: o.spot}
			if err := Check(j); err != nil {
				return nil, err
			}
			for _, g := range groups {
				if Starts(len(g.Up[0]), j.Ticks(), o.windows) == nil {
					return nil, fmt.Errorf("zone %s covers %d ticks of %v s and a job with a deadline of %v h needs %d; take a shorter deadline, a longer trace, or --windows above 0",
						g.Name, len(g.Up[0]), j.Tick, r, j.Ticks()+2)
				}
			}
			settings = append(settings, Setting{j, groups, o.windows})
		}
	}
	return settings, nil
}

// Check refuses a job no policy can be asked about, in one line.
func Check(j pool.Job) error {
	for _, x := range []struct {
		name string
		v    float64
		zero bool
	}{{"work", j.Work, false}, {"deadline", j.Deadline, false}, {"delay", j.Delay, true}, {"tick", j.Tick, false}, {"on-demand price", j.OnDemand, false}, {"spot price", j.Spot, false}} {
		if !(x.v > 0 || x.zero && x.v == 0) || math.IsInf(x.v, 0) {
			return fmt.Errorf("%s is %v; it must be a number above 0", x.name, x.v)
		}
	}
	if !j.Promisable() {
		return fmt.Errorf("work of %.4g h and a delay of %.4g h do not fit a deadline of %.4g h even on demand; give it more time", j.Work/3600, j.Delay/3600, j.End()/3600)
	}
	return nil
}

func (o options) traces() ([]market.Trace, error) {
	if o.data != "" {
		return market.Load(o.data)
	}
	if o.model < 1 || o.model > 1000 {
		return nil, fmt.Errorf("--model %d; take 1 to 1000 zones", o.model)
	}
	const gap = 195 * time.Second
	return market.Model(o.seed, o.model, gap, int(45*24*time.Hour/gap)), nil
}

func (o options) groups(traces []market.Trace) ([]Group, error) {
	want := map[string]bool{}
	for _, z := range o.zones {
		want[z] = true
	}
	var names []string
	var ups [][]bool
	for _, t := range traces {
		if len(o.zones) == 0 || want[t.Zone] {
			names, ups = append(names, t.Zone), append(ups, t.Up(o.gang))
			delete(want, t.Zone)
		}
	}
	for z := range want {
		return nil, fmt.Errorf("no zone %q in the market; it has %s", z, strings.Join(zonesOf(traces), ", "))
	}
	if o.together {
		short := len(ups[0])
		for _, up := range ups {
			short = min(short, len(up))
		}
		for z := range ups {
			ups[z] = ups[z][:short]
		}
		return []Group{{strings.Join(names, "+"), ups}}, nil
	}
	groups := make([]Group, len(ups))
	for i := range ups {
		groups[i] = Group{names[i], ups[i : i+1]}
	}
	return groups, nil
}

func zonesOf(traces []market.Trace) []string {
	var zones []string
	for _, t := range traces {
		zones = append(zones, t.Zone)
	}
	return zones
}

// Compare plays every setting under every policy. Greedy and the optimum, by which the others are scored, are
// always played. done, if not nil, is told after each job.
func Compare(ctx context.Context, settings []Setting, policies []Policy, done func()) ([]Result, error) {
	var results []Result
	for _, s := range settings {
		greedy, err := s.Play(ctx, Policy{Greedy, func(j pool.Job, h [][]bool) pool.Rule { return pool.Follow(pool.Greedy(j), h) }}, nil)
		if err != nil {
			return nil, err
		}
		optimum, err := s.Play(ctx, Policy{Name: Optimum}, done)
		if err != nil {
			return nil, err
		}
		r := Result{Deadline: s.Job.Deadline / 3600, Delay: s.Job.Delay / 3600}
		for _, p := range policies {
			jobs := optimum
			if p.Make != nil {
				if jobs, err = s.Play(ctx, p, done); err != nil {
					return nil, err
				}
			}
			r.Scores = append(r.Scores, Sum(p.Name, s.Job, jobs, greedy, optimum))
		}
		results = append(results, r)
	}
	return results, nil
}

// Table prints results for people.
func Table(out io.Writer, results []Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "deadline\tdelay\tpolicy\tmissed\tcost\tclosed\tgap\tgap p75\tlaunches\tjobs")
	for _, r := range results {
		for _, s := range r.Scores {
			launches := fmt.Sprintf("%.1f", s.Launches)
			if s.Policy == Optimum {
				launches = "-"
			}
			fmt.Fprintf(w, "%g h\t%g h\t%s\t%d\t%.4f\t%.1f%%\t%.4f\t%.4f\t%s\t%d\n",
				r.Deadline, r.Delay, s.Policy, s.Missed, s.Cost, 100*s.Closed, s.Gap, s.Gap75, launches, s.Jobs)
		}
	}
	return w.Flush()
}

// progress draws a bar on a terminal, and nothing elsewhere.
func progress(log io.Writer, settings []Setting, policies []Policy) func() {
	f, ok := log.(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	played := 1 // the optimum
	for _, p := range policies {
		if p.Make != nil {
			played++
		}
	}
	total := 0
	for _, s := range settings {
		total += s.Windows * len(s.Groups) * played
	}
	var done atomic.Int64
	return func() {
		n := int(done.Add(1))
		if step := max(1, total/200); n%step != 0 && n != total {
			return
		}
		bar := strings.Repeat("=", 40*n/max(1, total))
		fmt.Fprintf(f, "\r[%-40s] %d/%d jobs", bar, n, total)
		if n == total {
			fmt.Fprint(f, "\r\033[K")
		}
	}
}
