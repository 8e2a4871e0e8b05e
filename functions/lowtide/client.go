package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"lowtide/events"
	"lowtide/functions/intake"
	"lowtide/functions/lowtide/story"
	"lowtide/functions/rebalance"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	host "lowtide/shared/fn/jetstream"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
	"lowtide/shared/store"
)

// address is how other commands find a lowtide that runs: a file beside its state, readable by its owner alone.
type address struct {
	NATS   string      `json:"nats"`
	Token  string      `json:"token"`
	Fleet  string      `json:"fleet"`
	Clock  string      `json:"clock"`
	Cloud  string      `json:"cloud"`
	Bucket string      `json:"bucket"` // of the checkpoints
	Key    string      `json:"key"`    // that seals them, in hex
	Policy plan.Policy `json:"policy"`
}

// addressFile is where a run without --state tells its address: the newest wins.
func addressFile(state string) string {
	if state != "" {
		return filepath.Join(state, "address.json")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("lowtide-%d", os.Getuid()), "address.json")
}

func (a address) write(state string) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return keep(addressFile(state), b)
}

// client is a connection to a lowtide that runs.
type client struct {
	address
	nc    *nats.Conn
	js    jetstream.JetStream
	host  *host.Host
	clock fn.Clock
}

// deployed is the address of a lowtide whose functions are elsewhere, with the admin's credentials: LOWTIDE_NATS_URL,
// LOWTIDE_NATS_CREDS, LOWTIDE_NATS_CA_FILE, LOWTIDE_FLEET.
func deployed(ctx context.Context) (*client, error) {
	f := relayFlags{
		nats: os.Getenv("LOWTIDE_NATS_URL"), creds: os.Getenv("LOWTIDE_NATS_CREDS"), ca: os.Getenv("LOWTIDE_NATS_CA_FILE"),
		fleet: cmp.Or(os.Getenv("LOWTIDE_FLEET"), "main"),
	}
	c := &client{address: address{NATS: f.nats, Fleet: f.fleet, Policy: plan.Default}}
	var err error
	if c.nc, err = f.connect(); err != nil {
		return nil, nobody(fmt.Errorf("connect to NATS at %s: %w", f.nats, err))
	}
	waiting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err = store.Guard(waiting, c.nc); err == nil {
		c.js, err = bus.JetStream(c.nc)
	}
	if err == nil {
		c.host, err = host.New(c.nc, host.Options{Fleet: c.Fleet})
	}
	if err != nil {
		c.nc.Close()
		return nil, nobody(err)
	}
	return c, nil
}

func dial(ctx context.Context, state string) (*client, error) {
	if state == "" && os.Getenv("LOWTIDE_NATS_URL") != "" {
		return deployed(ctx)
	}
	file := addressFile(state)
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, nobody(fmt.Errorf("no lowtide runs here (%s cannot be read); start one with: lowtide run --state DIR", file))
	}
	c := &client{}
	if err := json.Unmarshal(b, &c.address); err != nil {
		return nil, nobody(fmt.Errorf("%s: %w", file, err))
	}
	if c.clock, err = fn.ParseClock(c.Clock); err != nil {
		return nil, nobody(fmt.Errorf("%s: %w", file, err))
	}
	if c.nc, err = knock(ctx, c.address); err != nil {
		return nil, nobody(fmt.Errorf("the lowtide of %s does not answer at %s: %w", file, c.NATS, err))
	}
	if c.js, err = bus.JetStream(c.nc); err == nil {
		c.host, err = host.New(c.nc, host.Options{Clock: c.clock, Fleet: c.Fleet})
	}
	if err != nil {
		c.nc.Close()
		return nil, nobody(err)
	}
	return c, ctx.Err()
}

// knock connects. Where somebody listens and does not answer, it is tried again: a busy server gives a newcomer two seconds.
func knock(ctx context.Context, a address) (nc *nats.Conn, err error) {
	for end := time.Now().Add(6 * time.Second); ; wait(ctx, 200*time.Millisecond) {
		nc, err = nats.Connect(a.NATS, nats.Token(a.Token), nats.Name("lowtide"), nats.Timeout(2*time.Second))
		hopeless := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrAuthorization)
		if err == nil || hopeless || ctx.Err() != nil || time.Now().After(end) {
			return nc, err
		}
	}
}

// talk connects to the lowtide that the flags name, for as long as do takes.
func (o *common) talk(cmd *cobra.Command, do func(*client) error) error {
	c, err := dial(cmd.Context(), o.state)
	if err != nil {
		return err
	}
	defer c.nc.Close()
	return do(c)
}

// say publishes facts as a person.
func (c *client) say(ctx context.Context, facts ...events.Fact) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, f := range facts {
		e := events.New(c.Fleet, "cli/"+user(), c.clock.Now(), f)
		e.ID = fmt.Sprintf("%s-%d", e.ID, time.Now().UnixNano()) // a person who says it twice means it twice
		if err := c.host.Say(ctx, e); err != nil {
			return nobody(fmt.Errorf("say %s: %w", f.Kind(), err))
		}
	}
	return nil
}

func user() string { return cmp.Or(os.Getenv("USER"), "unknown") }

// fleet reads the decider's state.
func (c *client) fleet(ctx context.Context) (*fleet.Fleet, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var f *fleet.Fleet
	states, err := store.Bind(ctx, c.js, fleetsBucket)
	if err == nil {
		f, _, err = rebalance.Fleet(ctx, states, c.Fleet)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, nobody(err)
	}
	if f == nil {
		f = fleet.New(c.Fleet, "")
	}
	return f, nil
}

// flags that most commands share.
type common struct {
	state, output string
}

func (o *common) on(cmd *cobra.Command, out bool) *cobra.Command {
	cmd.Flags().StringVar(&o.state, "state", os.Getenv("LOWTIDE_STATE"), "directory of the lowtide to talk to; empty: the newest run on this machine")
	if out {
		cmd.Flags().StringVar(&o.output, "output", "text", "text or json")
	}
	return cmd
}

// print writes v as JSON, or calls text.
func (o *common) print(w io.Writer, v any, text func(io.Writer)) error {
	switch o.output {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	case "", "text":
		tab := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		text(tab)
		return tab.Flush()
	}
	return usage(fmt.Errorf("--output %q: want text or json", o.output))
}

func submitCommand() *cobra.Command {
	var o common
	cmd := &cobra.Command{
		Use: "submit FILE", Short: "Ask for a workload; says whether it was accepted, and what it can cost at most", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := readBounded(args[0])
			if err != nil {
				return usage(err)
			}
			// The file is judged before anybody is asked: a bad one changes nothing, also where nothing runs.
			if _, err := intake.Parse(args[0], b, time.Now()); err != nil {
				return usage(err)
			}
			return o.talk(cmd, func(c *client) error {
				spec, err := intake.Parse(args[0], b, c.clock.Now())
				if err != nil {
					return usage(err)
				}
				return c.submit(cmd, &o, spec)
			})
		},
	}
	return o.on(cmd, true)
}

// readBounded reads a file, and of a file that is too large only enough to refuse it.
func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, intake.MaxBytes+1))
}

func (c *client) submit(cmd *cobra.Command, o *common, spec fleet.Spec) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), 30*time.Second)
	defer cancel()
	heard := make(chan events.Event, 16)
	sub, err := c.nc.Subscribe(events.Subject(c.Fleet, "*.*", events.Token(spec.Name)), func(m *nats.Msg) {
		if e, err := events.Decode(m.Data); err == nil {
			heard <- e
		}
	})
	if err != nil {
		return nobody(err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection closes with the command
	if err := c.say(ctx, events.WorkloadSubmitted{Spec: spec}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nobody(fmt.Errorf("%s was submitted, but nobody has answered yet; see lowtide status", spec.Name))
		case e := <-heard:
			switch f := e.Data.(type) {
			case events.WorkloadRefused:
				return failed("%s is refused: %s", spec.Name, f.Why)
			case events.WorkloadAccepted:
				return o.print(cmd.OutOrStdout(), f, func(w io.Writer) {
					fmt.Fprintf(w, "%s is accepted: worst case, all on demand, %s; if lowtide died for ever its machines would end themselves by %s\n", f.Workload, f.Worst, f.Bound)
				})
			}
		}
	}
}

func statusCommand() *cobra.Command {
	var o common
	cmd := &cobra.Command{
		Use: "status", Short: "What runs where, what is safe, what it costs", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.talk(cmd, func(c *client) error {
				f, err := c.fleet(cmd.Context())
				if err != nil {
					return err
				}
				return o.print(cmd.OutOrStdout(), f, func(w io.Writer) { printStatus(w, f, c.clock.Now()) })
			})
		},
	}
	return o.on(cmd, true)
}

func printStatus(w io.Writer, f *fleet.Fleet, now time.Time) {
	if f.Halted != "" {
		fmt.Fprintf(w, "nothing is bought: %s\n", f.Halted)
	}
	fmt.Fprintln(w, "WORKLOAD\tPHASE\tON\tSTEP\tDURABLE\tSPENT\tDEADLINE IN\tWHY")
	for _, name := range fleet.Sorted(f.Workloads) {
		x := f.Workloads[name]
		due := "-"
		if d := x.Spec.Deadline; !d.IsZero() && !x.Phase.Final() {
			due = story.Short(d.Sub(now))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", name, cmp.Or(string(x.Phase), "submitted"), cmp.Or(x.On, x.Next, "-"), x.Step, x.Saved.Step, plan.Spent(f, x, now), due, x.Why)
	}
	fmt.Fprintln(w, "\nMACHINE\tPHASE\tOFFER\tUSD/H\tAGE\tFOR\tNOTE")
	for _, name := range fleet.Sorted(f.Machines) {
		m := f.Machines[name]
		if m.Phase == fleet.Ended {
			continue
		}
		age := "-"
		if !m.Bought.IsZero() {
			age = story.Short(now.Sub(m.Bought))
		}
		hourly, _ := m.Offer.PerHour()
		fmt.Fprintf(w, "%s\t%s\t%s\t%.4f\t%s\t%s\t%s\n", name, m.Phase, m.Offer, hourly, age, cmp.Or(m.Workload, "-"), m.Cause)
	}
}

func eventsCommand() *cobra.Command {
	var o common
	var follow bool
	var last time.Duration
	cmd := &cobra.Command{
		Use: "events", Short: "The facts, one JSON document a line", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.talk(cmd, func(c *client) error {
				stream, err := c.js.Stream(cmd.Context(), bus.Facts)
				if err != nil {
					return nobody(err)
				}
				start := time.Now().Add(-last)
				con, err := c.js.OrderedConsumer(cmd.Context(), bus.Facts, jetstream.OrderedConsumerConfig{
					FilterSubjects: []string{events.Subject(c.Fleet, "*.*", ">")}, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &start,
				})
				if err != nil {
					return nobody(err)
				}
				return tail(cmd, con, stream.CachedInfo().State.LastSeq, follow)
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is said from now")
	cmd.Flags().DurationVar(&last, "last", time.Hour, "how far to go back, in wall time")
	return o.on(cmd, false)
}

// tail prints facts up to the last that was there when it began; with follow it goes on.
func tail(cmd *cobra.Command, con jetstream.Consumer, last uint64, follow bool) error {
	for cmd.Context().Err() == nil {
		batch, err := con.Fetch(256, jetstream.FetchMaxWait(500*time.Millisecond))
		if err != nil {
			return nobody(err)
		}
		n := 0
		for m := range batch.Messages() {
			n++
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n", m.Data())
			if md, err := m.Metadata(); err == nil && md.Sequence.Stream >= last && !follow {
				return nil // others speak all the time: an empty fetch may never come
			}
		}
		if n == 0 && !follow {
			return nil
		}
	}
	return nil
}

func planCommand() *cobra.Command {
	var o common
	var explain bool
	cmd := &cobra.Command{
		Use: "plan", Short: "What lowtide would do now, and why; changes nothing", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.talk(cmd, func(c *client) error {
				return c.plan(cmd, &o, explain)
			})
		},
	}
	cmd.Flags().BoolVar(&explain, "explain", false, "also say why nothing is done")
	return o.on(cmd, true)
}

// explained is one workload's decision.
type explained struct {
	Workload string        `json:"workload"`
	Reason   string        `json:"reason"`
	Plan     *fleet.Plan   `json:"plan,omitempty"`
	Stop     bool          `json:"stop,omitempty"` // it would be saved and stopped, to wait
	Options  []plan.Option `json:"options,omitempty"`
}

func (c *client) plan(cmd *cobra.Command, o *common, explain bool) error {
	f, err := c.fleet(cmd.Context())
	if err != nil {
		return err
	}
	var val []byte
	b, err := store.Bind(cmd.Context(), c.js, marketBucket)
	if err == nil {
		val, _, err = b.Get(cmd.Context(), fleet.MarketKey)
	}
	if errors.Is(err, store.ErrNotFound) {
		return failed("no price is known yet")
	}
	var m fleet.Markets
	if err == nil {
		err = fleet.Unpack(val, &m)
	}
	if err != nil {
		return nobody(fmt.Errorf("read market: %w", err))
	}
	book, by := plan.NewBook(&m), pool.Solving{Tables: pool.NewTables(rebalance.TablesLimit)}
	out := []explained{}
	for _, name := range fleet.Sorted(f.Workloads) {
		w := f.Workloads[name]
		if w.Phase != fleet.Accepted {
			continue
		}
		d := plan.Decide(f, book, by, c.Policy, w, c.clock.Now())
		e := explained{Workload: name, Reason: d.Reason, Stop: d.Stop, Options: d.Options}
		if d.Plan.Action != "" {
			e.Plan = &d.Plan
		}
		if e.Plan != nil || e.Stop || explain {
			out = append(out, e)
		}
	}
	return o.print(cmd.OutOrStdout(), out, func(w io.Writer) {
		if len(out) == 0 {
			fmt.Fprintln(w, "nothing to do; --explain says why")
		}
		for _, e := range out {
			what := "stays as it is"
			switch {
			case e.Plan != nil:
				what = "would buy " + e.Plan.Offers[0].String()
			case e.Stop:
				what = "would save and stop, to wait"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", e.Workload, what, e.Reason)
			if explain {
				printOptions(w, e.Options)
			}
		}
	})
}

// printOptions shows what was weighed.
func printOptions(w io.Writer, options []plan.Option) {
	if len(options) == 0 {
		return
	}
	fmt.Fprintln(w, "\tOPTION\tEXPECTED USD\tUSD/H\tTO BE HAD OR AWAY FOR\tENDS WITHIN 1 H\t")
	for _, o := range options {
		cost, hourly, since, ends := "-", "-", "-", "-"
		if c, known := o.Expected.Get(); known {
			cost = fmt.Sprintf("%.3f", c)
		}
		if o.Hourly > 0 {
			hourly = fmt.Sprintf("%.4f", o.Hourly)
		}
		if o.Since > 0 {
			since, ends = story.Short(o.Since), fmt.Sprintf("%.0f %%", 100*o.Lost)
		}
		fmt.Fprintf(w, "\t%s\t%s\t%s\t%s\t%s\t%s\n", o.What, cost, hourly, since, ends, o.Why)
	}
}

func pauseCommand() *cobra.Command {
	return sayCommand("pause", "Save and stop a workload; nothing is bought for it until it is resumed", func(w string) events.Fact {
		return events.WorkloadPaused{Workload: w, By: user()}
	})
}

func keepCommand() *cobra.Command {
	return sayCommand("keep", "Leave a workload as it is for a day, however idle it is", func(w string) events.Fact {
		return events.WorkloadKept{Workload: w, By: user()}
	})
}

func resumeCommand() *cobra.Command {
	cmd := sayCommand("resume", "End a pause; without a workload, let lowtide buy again after a panic or an alarm", func(w string) events.Fact {
		return events.WorkloadResumed{Workload: w, By: user()}
	})
	cmd.Use, cmd.Args = "resume [WORKLOAD]", cobra.MaximumNArgs(1)
	return cmd
}

func sayCommand(name, short string, fact func(workload string) events.Fact) *cobra.Command {
	var o common
	cmd := &cobra.Command{
		Use: name + " WORKLOAD", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.talk(cmd, func(c *client) error {
				f, err := c.fleet(cmd.Context())
				if err != nil {
					return err
				}
				if len(args) == 0 {
					return c.lift(cmd, f)
				}
				if f.Workloads[args[0]] == nil {
					return failed("there is no workload %q; there are: %s", args[0], strings.Join(names(f), ", "))
				}
				if err := c.say(cmd.Context(), fact(args[0])); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: said\n", args[0])
				return nil
			})
		},
	}
	return o.on(cmd, false)
}

// lift ends a halt of all purchases.
func (c *client) lift(cmd *cobra.Command, f *fleet.Fleet) error {
	if f.Halted == "" {
		return failed("purchases are not halted; name a workload to resume: lowtide status lists them")
	}
	if err := c.say(cmd.Context(), events.PolicySet{By: user()}); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "lowtide may buy again; it was halted: %s\n", f.Halted)
	return nil
}

// names lists the workloads, for whoever asked for one that is not there.
func names(f *fleet.Fleet) []string {
	if len(f.Workloads) == 0 {
		return []string{"none"}
	}
	return fleet.Sorted(f.Workloads)
}
