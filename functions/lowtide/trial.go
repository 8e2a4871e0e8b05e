package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"lowtide/events"
	"lowtide/functions/lowtide/story"
	"lowtide/functions/prices"
	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// The shape of a trial: a short training job that saves often, fails of itself once, and goes on from its checkpoint.
const (
	trialSteps  = 60
	trialSave   = 15    // steps between saves
	trialHidden = 16384 // of the job's network, its most: 4.7 MB a checkpoint
	trialFails  = 75    // the exit status of the first run, half way: what follows is a restore
	trialEnding = 10 * time.Minute
)

type trialFlags struct {
	state, cloud, bucket string
	budget               float64
	limit, work, wait    time.Duration
	dry                  bool
}

func trialCommand() *cobra.Command {
	var f trialFlags
	cmd := &cobra.Command{
		Use:   "trial CLOUD[=WORDS]…",
		Short: "Buy one machine a cloud, measure it, end it, and print the bill",
		Long: "Buys the cheapest machine of each cloud whose offer has all the WORDS (GPU, type, place or market, with commas:\n" +
			"aws=A100,spot), proves its GPUs, trains on it for a while, saves, fails once, restores, and ends it. Prints how long it\n" +
			"booted, its TFLOPS, how fast its checkpoints go to the bucket and come back, how far it is away, and what it cost.\n\n" +
			"Nothing is bought if all machines for the whole --limit would cost more than --budget. When the limit has passed\n" +
			"everything is ended; if this command dies, machines end themselves after an hour without contact.\n" +
			"Settings are in the environment, as for lowtide run --clouds.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), args)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.state, "state", "", "a directory of its own, new for each trial (needed)")
	fl.Float64Var(&f.budget, "budget", 0, "USD that all machines together may cost at most (needed)")
	fl.DurationVar(&f.limit, "limit", 45*time.Minute, "how long a machine may run, in the cloud's time")
	fl.DurationVar(&f.work, "work", 5*time.Minute, "how long the training takes, in the cloud's time")
	fl.DurationVar(&f.wait, "wait", 5*time.Minute, "how long to wait at the end until nothing bills, in wall time")
	fl.StringVar(&f.cloud, "cloud", "", "URL of a fake cloud in a process of its own (lowtide fakecloud), named fake")
	fl.StringVar(&f.bucket, "bucket", "", "with --cloud: URL of the bucket; empty: a directory in --state")
	fl.BoolVar(&f.dry, "dry-run", false, "show what would be bought and what that may cost at most, and buy nothing")
	_ = cmd.MarkFlagRequired("state")
	_ = cmd.MarkFlagRequired("budget")
	return cmd
}

// wish is one argument: a cloud, and words that its offer must have.
type wish struct {
	cloud string
	words []string
}

func wishes(args []string) (out []wish, err error) {
	for _, a := range args {
		cloud, words, _ := strings.Cut(a, "=")
		if slices.ContainsFunc(out, func(w wish) bool { return w.cloud == cloud }) {
			return nil, usage(fmt.Errorf("%s is asked for twice: one trial a cloud at a time", cloud))
		}
		out = append(out, wish{cloud, strings.FieldsFunc(words, func(r rune) bool { return r == ',' })})
	}
	return out, nil
}

// fits says that an offer is what was wished for.
func (w wish) fits(o fleet.Offer) bool {
	text := strings.ToLower(strings.Join([]string{o.GPU, o.Form, o.Type, o.Region, o.Zone, string(o.Market)}, " "))
	return !slices.ContainsFunc(w.words, func(word string) bool { return !strings.Contains(text, strings.ToLower(word)) })
}

// choose is the cheapest machine that can be had by the hour at a price that is believed.
func (w wish) choose(offers []fleet.Offer) (best fleet.Offer, ok bool) {
	for _, o := range offers {
		price, known := o.PerHour()
		if !known || o.Term > 0 || o.Market == fleet.Reserved || o.Stock.Or(1) <= 0 || !w.fits(o) {
			continue
		}
		if was, _ := best.PerHour(); !ok || price < was {
			best, ok = o, true
		}
	}
	return best, ok
}

// only is an account that shows one pool alone, so that nothing else can be bought.
type only struct {
	provider.Provider
	pool string
}

func (p only) Offers(ctx context.Context) ([]fleet.Offer, error) {
	all, err := p.Provider.Offers(ctx)
	return slices.DeleteFunc(all, func(o fleet.Offer) bool { return o.Pool() != p.pool }), err
}

// tried is what a trial learnt about one machine.
type tried struct {
	offer         fleet.Offer
	machine       string
	bought, ended time.Time
	boot          time.Duration
	proof         events.BenchmarkFinished
	gate          time.Duration // what the proof took
	verdict       string
	saved         fleet.Manifest // the largest save
	restore       time.Duration
	rtt           time.Duration
	outcome       string // "" while it goes on
	refused       []string
}

func (f trialFlags) run(ctx context.Context, out io.Writer, args []string) error {
	wants, err := wishes(args)
	if err != nil {
		return err
	}
	if f.budget <= 0 || f.limit <= 0 || f.work <= 0 {
		return usage(errors.New("--budget, --limit and --work must be above zero"))
	}
	free, err := alone(f.state)
	if err != nil {
		return err
	}
	defer free()
	p, rf, err := f.market(ctx, wants)
	if err != nil {
		return err
	}
	for _, n := range p.notes {
		fmt.Fprintln(out, "lowtide: "+n)
	}
	all, err := f.plan(ctx, out, wants, &p)
	if err != nil || f.dry {
		return err
	}
	for _, a := range p.accounts {
		if a.Traits().Dry {
			return failed("nothing is bought: no machine could reach this lowtide; see above")
		}
	}
	return f.measure(ctx, out, rf, p, all)
}

// market opens the clouds that are asked for, and no others.
func (f trialFlags) market(ctx context.Context, wants []wish) (p place, rf runFlags, err error) {
	rf = runFlags{state: f.state, cloud: f.cloud, bucket: f.bucket, dry: f.dry, lease: time.Hour, ask: askFlags{otherwise: "reject"}}
	if f.cloud == "" {
		for _, w := range wants {
			rf.clouds = append(rf.clouds, w.cloud)
		}
		p, err = rf.market(ctx)
		return p, rf, err
	}
	if len(wants) != 1 || wants[0].cloud != "fake" {
		return p, rf, usage(errors.New("--cloud: the fake cloud is named fake, and there is one"))
	}
	if p, err = rf.market(ctx); err != nil {
		return p, rf, err
	}
	p.accounts = []account{{Provider: p.cloud}}
	p.told = func(r *ring) map[string]string {
		key, err := checkpointKey(f.state)
		if err != nil {
			return nil // begin has read it already
		}
		data, err := userData(r, f.state, f.bucket, key)
		if err != nil {
			return nil
		}
		return data
	}
	return p, rf, nil
}

// plan chooses an offer for each wish, prints them with what they may cost at most, and narrows the accounts to them.
func (f trialFlags) plan(ctx context.Context, out io.Writer, wants []wish, p *place) (map[string]*tried, error) {
	all, sum := map[string]*tried{}, 0.0
	now := p.clock.Now()
	for i := range p.accounts {
		a := &p.accounts[i]
		w := wants[slices.IndexFunc(wants, func(w wish) bool { return w.cloud == a.Traits().Cloud })]
		offers, err := a.Offers(ctx)
		if err != nil {
			return nil, nobody(err)
		}
		offers, _ = prices.Judge(p.book, offers, now)
		o, ok := w.choose(offers)
		if !ok {
			return nil, failed("%s sells nothing now that has %q and a price that is believed; see lowtide offers --cloud %s", w.cloud, w.words, w.cloud)
		}
		usd, _ := o.PerHour()
		most := usd * (f.limit + trialEnding).Hours()
		fmt.Fprintf(out, "%-12s %s at %.4f USD/h: %.2f USD at most, for %s and %s to end\n", w.cloud, o, usd, most, f.limit, trialEnding)
		if t := a.Traits(); !t.OffEnds && !t.HardEnd {
			fmt.Fprintf(out, "%-12s   if this command dies it may bill on after its machine has switched itself off: lowtide panic --clouds %s ends it\n", w.cloud, w.cloud)
		}
		all[w.cloud], sum = &tried{offer: o}, sum+most
		a.Provider = provider.Cap(only{a.Provider, o.Pool()}, provider.Caps{Machines: 1, Launches: 3}, p.clock.Now)
	}
	fmt.Fprintf(out, "together %.2f USD at most, disks and traffic apart; the budget is %.2f\n", sum, f.budget)
	if sum > f.budget {
		return nil, failed("nothing is bought: it may cost more than the budget; give a shorter --limit, fewer clouds, or more")
	}
	return all, nil
}

// spec is the job of a trial at a cloud.
func (f trialFlags) spec(cloud string, speed float64) (fleet.Spec, error) {
	program := "/var/lib/lowtide/lowtide"
	if f.cloud != "" {
		self, err := os.Executable()
		if err != nil {
			return fleet.Spec{}, err
		}
		program = self
	}
	step := time.Duration(float64(f.work) / trialSteps / max(speed, 1))
	return fleet.Spec{
		Name: "trial-" + cloud, Work: f.work, Steps: trialSteps, Autonomy: fleet.Act, SaveEvery: f.work / 4, Clouds: []string{cloud},
		Run: []string{
			"sh", "-c", `steps=$1; shift; [ "$LOWTIDE_EPOCH" = 1 ] || exec "$0" "$@" --steps "$steps"; "$0" "$@" --steps $((steps/2)) && exit ` + strconv.Itoa(trialFails),
			program, strconv.Itoa(trialSteps), "trainer", "--step-time", step.String(), "--save-every", strconv.Itoa(trialSave), "--hidden", strconv.Itoa(trialHidden),
		},
	}, nil
}

// measure runs the trial, ends everything, and prints what was learnt.
func (f trialFlags) measure(ctx context.Context, out io.Writer, rf runFlags, p place, all map[string]*tried) (err error) {
	d, err := begin(ctx, f.state, rf, p)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "lowtide: if this command dies: lowtide panic %s --installation %s\n", f.panics(rf), d.install)
	began := d.clock.Now()
	defer func() {
		d.end(false)
		err = cmp.Or(f.close(out, p.accounts, d.install), err)
		f.report(out, all, began, p.clock.Now())
	}()
	heard, err := d.listen(ctx)
	if err != nil {
		return err
	}
	for cloud := range all {
		spec, err := f.spec(cloud, p.clock.Speed)
		if err != nil {
			return err
		}
		if err := d.host.Say(ctx, events.New(d.fleet, "trial", began, events.WorkloadSubmitted{Spec: spec})); err != nil {
			return err
		}
	}
	t := story.New(began)
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for left := true; left && d.clock.Now().Sub(began) < f.limit; {
		select {
		case <-d.over:
			return cmp.Or(d.why(), failed("stopped"))
		case h := <-heard:
			if line := t.Hear(h.at, h.event); line != "" {
				fmt.Fprintln(out, line)
			}
			learn(all, h)
		case <-look.C:
		}
		left = false
		for _, r := range all {
			r.near(d)
			left = left || r.outcome == ""
		}
	}
	for _, r := range all {
		if r.outcome != "finished" {
			err = failed("not every machine did its work; see the table")
			r.outcome = cmp.Or(r.outcome, "the limit passed")
		}
	}
	return err
}

// panics are the flags by which lowtide panic finds the machines.
func (f trialFlags) panics(rf runFlags) string {
	if f.cloud != "" {
		return "--cloud " + f.cloud
	}
	return "--clouds " + strings.Join(rf.clouds, ",")
}

// near notes how far the machine is away, while it is connected.
func (r *tried) near(d *deck) {
	if rtt, ok := d.server.RTT("agent " + r.machine); ok && r.machine != "" {
		r.rtt = rtt
	}
}

// learn takes a fact of a trial.
func learn(all map[string]*tried, h heard) {
	at := func(machine string) *tried {
		for _, r := range all {
			if r.machine == machine {
				return r
			}
		}
		return &tried{} // another's
	}
	of := func(workload string) *tried {
		if r := all[strings.TrimPrefix(workload, "trial-")]; r != nil {
			return r
		}
		return &tried{}
	}
	switch e := h.event.Data.(type) {
	case events.WorkloadRefused:
		of(e.Workload).outcome = "refused: " + e.Why
	case events.PlanFailed:
		for _, r := range all {
			for _, x := range e.Refused {
				if x.Pool == r.offer.Pool() {
					r.refused = append(r.refused, x.Why)
				}
			}
		}
	case events.InstanceLaunched:
		r := of(e.Workload)
		r.machine, r.offer, r.bought = e.Machine, e.Offer, e.At
	case events.InstanceReady:
		if r := at(e.Machine); r.boot == 0 {
			r.boot = h.at.Sub(r.bought)
		}
	case events.BenchmarkFinished:
		at(e.Machine).proof = e
	case events.InstanceVerified:
		at(e.Machine).verdict, at(e.Machine).gate = "verified", e.Took
	case events.InstanceRejected:
		at(e.Machine).verdict, at(e.Machine).gate = "rejected: "+e.Cause, e.Took
	case events.CheckpointSaved:
		if r := of(e.Workload); e.Manifest.Bytes > r.saved.Bytes {
			r.saved = e.Manifest
		}
	case events.WorkloadStarted:
		if e.From != "" {
			of(e.Workload).restore = e.Restore
		}
	case events.WorkloadFailed:
		if e.Code != trialFails || e.Epoch > 1 {
			of(e.Workload).outcome = fmt.Sprintf("failed with exit status %d: %s", e.Code, e.Why)
		}
	case events.WorkloadFinished:
		of(e.Workload).outcome = "finished"
	case events.InstanceEnded:
		at(e.Machine).ended = e.At
	}
}

// close ends every machine of the trial at the clouds themselves, all at once, whatever the functions had still to do.
func (f trialFlags) close(out io.Writer, accounts []account, install string) error {
	said, errs := make([]bytes.Buffer, len(accounts)), make([]error, len(accounts))
	var all sync.WaitGroup
	for i, a := range accounts {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), f.wait+time.Minute)
			defer cancel()
			errs[i] = endAll(ctx, &said[i], a.Provider, install, f.wait)
		})
	}
	all.Wait()
	for i, a := range accounts {
		for line := range strings.Lines(said[i].String()) {
			fmt.Fprintf(out, "%s: %s", a.Traits().Cloud, line)
		}
	}
	return errors.Join(errs...)
}

// report is the table and the bill.
func (f trialFlags) report(out io.Writer, all map[string]*tried, began, now time.Time) {
	sum := 0.0
	for _, cloud := range fleet.Sorted(all) {
		r := all[cloud]
		fmt.Fprintf(out, "\n%s: %s\n", cloud, r.offer)
		row := func(what, format string, args ...any) {
			fmt.Fprintf(out, "  %-18s %s\n", what, fmt.Sprintf(format, args...))
		}
		if r.machine == "" {
			row("bought", "nothing (%s); refused: %s", r.outcome, cmp.Or(strings.Join(r.refused, ", "), "-"))
			continue
		}
		row("booted in", "%s", spent(r.boot))
		for i, g := range r.proof.Devices {
			row("device "+strconv.Itoa(i), "%s: %.2f TFLOPS measured, %.2f rated", g.Name, g.Measured, g.Rated)
		}
		row("proof", "%s in %s, by %s (%s)", cmp.Or(r.verdict, "none"), spent(r.gate), cmp.Or(r.proof.Backend, "-"), cmp.Or(r.proof.Ran, "-"))
		row("framework", "not checked: the proof needs none")
		if took := r.saved.Took.Seconds(); took > 0 {
			row("to the bucket", "%.1f MB in %s, %.1f MB/s", float64(r.saved.Bytes)/1e6, spent(r.saved.Took), float64(r.saved.Bytes)/1e6/took)
		} else {
			row("to the bucket", "nothing was saved")
		}
		row("restored in", "%s", spent(r.restore))
		row("round trip", "%s", spent(r.rtt))
		until := r.ended
		if until.IsZero() {
			until = now
		}
		usd, _ := r.offer.PerHour()
		cost := usd * max(until.Sub(r.bought), 0).Hours()
		sum += cost
		row("cost", "%.4f USD: %s at %.4f USD/h", cost, until.Sub(r.bought).Round(time.Second), usd)
		row("outcome", "%s", r.outcome)
	}
	fmt.Fprintf(out, "\ntogether %.4f USD by lowtide's reckoning, of %.2f; the clouds' own bills come later and hold disks and traffic. %s in all. State: %s\n",
		sum, f.budget, now.Sub(began).Round(time.Second), filepath.Clean(f.state))
}

// spent is a duration for people; unknown if it was not measured.
func spent(d time.Duration) string {
	if d <= 0 {
		return "not measured"
	}
	if d < time.Second {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
