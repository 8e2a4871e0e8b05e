package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osuser "os/user"
	"path/filepath"
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
// LOWTIDE_NATS_CREDS, LOWTIDE_NATS_CA_FILE, LOWTIDE_FLEET; LOWTIDE_AGENT_BUCKET, where logs and code lie.
func deployed(ctx context.Context) (*client, error) {
	f := relayFlags{
		nats: os.Getenv("LOWTIDE_NATS_URL"), creds: os.Getenv("LOWTIDE_NATS_CREDS"), ca: os.Getenv("LOWTIDE_NATS_CA_FILE"),
		fleet: cmp.Or(os.Getenv("LOWTIDE_FLEET"), "main"),
	}
	c := &client{address: address{NATS: f.nats, Fleet: f.fleet, Bucket: os.Getenv("LOWTIDE_AGENT_BUCKET"), Policy: plan.Default}}
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
		return nil, nobody(nowhere(state, file))
	}
	c := &client{}
	if err := json.Unmarshal(b, &c.address); err != nil {
		return nil, nobody(fmt.Errorf("%s: %w", file, err))
	}
	if c.clock, err = fn.ParseClock(c.Clock); err != nil {
		return nil, nobody(fmt.Errorf("%s: %w", file, err))
	}
	if c.nc, err = knock(ctx, c.address); err != nil {
		return nil, nobody(fmt.Errorf("the lowtide of %s does not answer at %s (%w); if it has stopped, start it again as before: lowtide run --state DIR", file, c.NATS, err))
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

// nowhere says why no address is found, and what would be one.
func nowhere(state, file string) error {
	if state != "" {
		return fmt.Errorf("no lowtide has run on %s (%s cannot be read); start one with: lowtide run --state %s", state, file, state)
	}
	return errors.New("no story runs now; a lasting lowtide is named by its directory: --state DIR (or LOWTIDE_STATE), as in lowtide run --state DIR")
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
		if err := c.host.Say(ctx, c.event(f)); err != nil {
			return nobody(fmt.Errorf("say %s: %w", f.Kind(), err))
		}
	}
	return nil
}

// event is a fact as a person says it: who says it twice means it twice.
func (c *client) event(f events.Fact) events.Event {
	e := events.New(c.Fleet, "cli/"+user(), c.clock.Now(), f)
	e.ID = fmt.Sprintf("%s-%d", e.ID, time.Now().UnixNano())
	return e
}

func user() string {
	if name := os.Getenv("USER"); name != "" {
		return name
	}
	if u, err := osuser.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

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
	cmd.Flags().StringVar(&o.state, "state", os.Getenv("LOWTIDE_STATE"), "directory of the lowtide to talk to; empty: a story that runs now")
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
	var from foreign
	cmd := &cobra.Command{
		Use: "submit FILE", Short: "Ask for a workload; says whether it was accepted, and what it can cost at most", Args: from.args,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := from.name(args)
			b, err := readBounded(name)
			if err != nil {
				return usage(err)
			}
			// The file is judged before anything is asked, and also where nobody is there to ask; by the market's clock if
			// there is one.
			now := time.Now()
			c, away := dial(cmd.Context(), o.state)
			if away == nil {
				defer c.nc.Close()
				now = c.clock.Now()
			}
			asked, err := from.parse(cmd, name, b, now)
			if err != nil {
				return usage(err)
			}
			code, err := packed(name, asked.Workdir)
			if err != nil {
				return usage(err)
			}
			if away != nil {
				return away
			}
			if err := asked.At(c.Bucket); err != nil {
				return usage(fmt.Errorf("%s: %w", name, err))
			}
			if err := c.bring(cmd, &asked.Spec, code); err != nil {
				return err
			}
			return c.submit(cmd, &o, asked.Spec)
		},
	}
	from.on(cmd)
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
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	if w := f.Workloads[spec.Name]; w != nil && w.Phase != fleet.Refused {
		spec.Deadline = w.Spec.Deadline // given from now, it is another at each look
		if w.Spec.Same(spec) {
			return o.print(cmd.OutOrStdout(), w, func(out io.Writer) {
				fmt.Fprintf(out, "%s is there already, as in this file: %s; nothing is changed (lowtide change moves its deadline)\n", spec.Name, stands(f, w))
			})
		}
	}
	asked := c.event(events.WorkloadSubmitted{Spec: spec})
	return c.await(ctx, spec.Name, asked, reply{about: events.Token(spec.Name), heard: func(f events.Fact) (bool, error) {
		switch f := f.(type) { // the name may have been asked for, and refused, before
		case events.WorkloadRefused:
			if f.Asked == asked.ID {
				return true, failed("%s is refused: %s", spec.Name, f.Why)
			}
		case events.WorkloadAccepted:
			if f.Asked == asked.ID {
				return true, o.print(cmd.OutOrStdout(), f, func(w io.Writer) {
					fmt.Fprintf(w, "%s is accepted: worst case, all on demand, %s; if lowtide died for ever its machines would end themselves by their lease, for %s at most (one that never boots: by its hard end, for %s)\n", f.Workload, f.Worst, f.Bound, f.Unbooted)
					fmt.Fprintln(w, meaning(spec.Autonomy))
				})
			}
		}
		return false, nil
	}})
}

// meaning is what a workload's autonomy lets lowtide do.
func meaning(a fleet.Autonomy) string {
	switch a {
	case fleet.Act:
		return "autonomy is act: machines are bought as planned; follow it with lowtide status, lowtide logs -f"
	case fleet.Suggest:
		return "autonomy is suggest: each purchase waits for a person (lowtide status shows it, lowtide approve PLAN lets it)"
	}
	return "autonomy is observe: nothing is bought, lowtide plan shows what would be; to let it: autonomy: act in the file, or lowtide change WORKLOAD --autonomy act"
}

// stands says where a workload stands, in a word: an accepted one runs, moves, waits, or is only watched.
func stands(f *fleet.Fleet, w *fleet.Workload) string {
	on, next := f.Machines[w.On], f.Machines[w.Next]
	switch {
	case w.Phase == "":
		return "submitted"
	case w.Phase != fleet.Accepted:
		return string(w.Phase)
	case on != nil && next != nil && !proposed(f, next):
		return "moving"
	case on != nil && on.Run.Epoch == w.Epoch && on.Run.Phase == fleet.Running:
		return "running"
	case on != nil || next != nil && !proposed(f, next):
		return "starting"
	case w.Spec.Autonomy == fleet.Observe:
		return "observed"
	case next != nil:
		return "asking"
	}
	return "waiting"
}

// proposed says that a machine is a plan that a person has not approved: nothing was bought.
func proposed(f *fleet.Fleet, m *fleet.Instance) bool {
	p := f.Plans[m.Plan]
	return m.Phase == fleet.Ordered && p != nil && !p.Approved
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
		on := cmp.Or(x.On, x.Next, "-")
		if m := f.Machines[on]; m != nil && proposed(f, m) {
			on = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", name, stands(f, x), on, x.Step, x.Saved.Step, plan.Spent(f, x, now), due, x.Why)
	}
	printReserved(w, f, now)
	fmt.Fprintln(w, "\nMACHINE\tPHASE\tOFFER\tUSD/H\tAGE\tFOR\tNOTE")
	for _, name := range fleet.Sorted(f.Machines) {
		m := f.Machines[name]
		if m.Phase == fleet.Ended {
			continue
		}
		phase, note := string(m.Phase), m.Cause
		if proposed(f, m) {
			phase, note = "proposed", waitsFor(f, m)
		}
		age := "-"
		if !m.Bought.IsZero() {
			age = story.Short(now.Sub(m.Bought))
		}
		hourly, _ := m.Offer.PerHour()
		fmt.Fprintf(w, "%s\t%s\t%s\t%.4f\t%s\t%s\t%s\n", name, phase, m.Offer, hourly, age, cmp.Or(m.Workload, "-"), note)
	}
}

// waitsFor says what a proposed machine waits for.
func waitsFor(f *fleet.Fleet, m *fleet.Instance) string {
	if w := f.Workloads[m.Workload]; w != nil && w.Spec.Autonomy == fleet.Observe {
		return "not bought: only observed"
	}
	return "not bought yet: lowtide approve " + m.Plan
}

func eventsCommand() *cobra.Command {
	var o common
	var follow bool
	var last time.Duration
	cmd := &cobra.Command{
		Use: "events", Short: "The facts, one JSON document a line", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.talk(cmd, func(c *client) error {
				return c.facts(cmd, time.Now().Add(-last), follow)
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is said from now")
	cmd.Flags().DurationVar(&last, "last", time.Hour, "how far to go back, in wall time")
	return o.on(cmd, false)
}

// facts prints what was said since a moment of wall time, up to what is there now; with follow it goes on, also after
// lowtide was away.
func (c *client) facts(cmd *cobra.Command, since time.Time, follow bool) error {
	ctx := cmd.Context()
	defer context.AfterFunc(ctx, c.nc.Close)() // a fetch that waits for a server that is gone ends with it
	from := jetstream.ConsumerConfig{
		FilterSubject: events.Subject(c.Fleet, "*.*", ">"), DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since,
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Minute,
	}
	for told := false; ; wait(ctx, time.Second) {
		seen, err := c.read(ctx, cmd.OutOrStdout(), from, follow)
		switch {
		case ctx.Err() != nil || err == nil && !follow:
			return nil
		case err != nil && !follow:
			return nobody(err)
		case seen > 0: // where it goes on
			from.DeliverPolicy, from.OptStartSeq, from.OptStartTime = jetstream.DeliverByStartSequencePolicy, seen+1, nil
			told = false
		}
		if !told {
			fmt.Fprintf(cmd.ErrOrStderr(), "lowtide: waiting for lowtide to come back (%v)\n", err)
			told = true
		}
	}
}

// read prints facts until it has the last that was there when it began, or with follow until it fails; seen is the last
// position that it printed.
func (c *client) read(ctx context.Context, out io.Writer, from jetstream.ConsumerConfig, follow bool) (seen uint64, err error) {
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stream, err := c.js.Stream(asking, bus.Facts)
	if err != nil {
		return 0, err
	}
	last := stream.CachedInfo().State.LastSeq
	con, err := stream.CreateConsumer(asking, from)
	if err != nil {
		return 0, err
	}
	for ctx.Err() == nil {
		batch, err := con.Fetch(256, jetstream.FetchMaxWait(500*time.Millisecond))
		if err != nil {
			return seen, err
		}
		n := 0
		for m := range batch.Messages() {
			n++
			if _, err := fmt.Fprintf(out, "%s\n", m.Data()); err != nil {
				return seen, err
			}
			if md, err := m.Metadata(); err == nil {
				seen = md.Sequence.Stream
			}
			if seen >= last && !follow {
				return seen, nil // others speak all the time: an empty fetch may never come
			}
		}
		if err := batch.Error(); err != nil {
			return seen, err
		}
		switch {
		case n == 0 && !follow:
			return seen, nil
		case n == 0 && !c.nc.IsConnected():
			return seen, nats.ErrDisconnected
		}
	}
	return seen, nil
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
	m, err := c.market(cmd.Context())
	if err != nil {
		return err
	}
	book, by := plan.NewBook(m), pool.Solving{Tables: pool.NewTables(rebalance.TablesLimit)}
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
		if m := f.Machines[w.Next]; m != nil && proposed(f, m) { // decided before, and nothing has come of it
			e.Plan = f.Plans[m.Plan]
			e.Reason = e.Plan.Score.Reason + "; " + waitsFor(f, m)
		}
		if e.Plan != nil || e.Stop || explain {
			out = append(out, e)
		}
	}
	return o.print(cmd.OutOrStdout(), out, func(w io.Writer) {
		if len(out) == 0 {
			fmt.Fprintln(w, idleWords(explain))
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

// market reads what is sold.
func (c *client) market(ctx context.Context) (*fleet.Markets, error) {
	var val []byte
	b, err := store.Bind(ctx, c.js, marketBucket)
	if err == nil {
		val, _, err = b.Get(ctx, fleet.MarketKey)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, failed("no price is known yet")
	}
	m := &fleet.Markets{}
	if err == nil {
		err = fleet.Unpack(val, m)
	}
	if err != nil {
		return nil, nobody(fmt.Errorf("read market: %w", err))
	}
	return m, nil
}

func idleWords(explained bool) string {
	if explained {
		return "no workload is open: there is nothing to decide"
	}
	return "nothing to do; --explain says why"
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
