package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"lowtide/events"
	"lowtide/functions/lowtide/story"
	"lowtide/functions/rebalance"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/market"
	"lowtide/shared/plan"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/store"
)

// demoPolicy suits the fake cloud, whose machines boot in half a minute, and a clock that runs some hundred times too
// fast: a second that this host is busy is minutes to the market.
var demoPolicy = plan.Policy{
	Wake: 5 * time.Minute, StartUp: 5 * time.Minute, StartMax: 30 * time.Minute, MinStay: 20 * time.Minute, Margin: 2,
	Silence: 10 * time.Minute, Lease: 6 * time.Hour, Grace: 15 * time.Minute, PlanLife: 10 * time.Minute, Offers: 4,
}

type runFlags struct {
	data, state, cloud string
	notify, bucket     string
	chatops, rules     string
	ask                askFlags
	speed              float64
	limit, lease       time.Duration
	seed               uint64
	clouds             []string
	dry                bool
	paced              bool // a speed was asked for
	reserved           []string
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Everything in one process: NATS inside, a fake cloud, real training jobs, one story",
		Long: "Starts NATS inside this process, a fake cloud with a durable bill and real training processes on its machines,\n" +
			"replays a spot market faster than it was, and tells what happens.\n\n" +
			"With --state DIR it is a lasting daemon without a story of its own: submit workloads to it.\n" +
			"Exit status: 0 every promise kept, 1 not, 2 bad input.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.cloud != "" {
				if err := f.outside(cmd); err != nil {
					return err
				}
			}
			if len(f.clouds) > 0 {
				if err := f.real(cmd); err != nil {
					return err
				}
			}
			if f.paced = cmd.Flags().Changed("speed"); !f.paced {
				f.speed = 240
				if f.state != "" {
					f.speed = 1
				}
			}
			if err := checkSpeed(f.speed); err != nil {
				return err
			}
			if f.limit <= 0 {
				return usage(fmt.Errorf("--limit %s: want a duration above zero", f.limit))
			}
			if f.state != "" {
				return daemon(cmd.Context(), cmd.OutOrStdout(), f)
			}
			return demo(cmd.Context(), cmd.OutOrStdout(), f)
		},
	}
	cmd.Flags().StringVar(&f.data, "data", "", "directory of recorded spot traces to replay; empty: the built-in market model")
	cmd.Flags().StringVar(&f.state, "state", "", "directory to keep everything in: a lasting daemon")
	cmd.Flags().StringVar(&f.cloud, "cloud", "", "URL of a fake cloud in a process of its own (lowtide fakecloud); needs --state")
	cmd.Flags().StringVar(&f.bucket, "bucket", "", "URL of the bucket that checkpoints and logs go to (file://, s3://, azblob://; see the README); empty: a directory in --state")
	cmd.Flags().StringSliceVar(&f.clouds, "clouds", nil, "real clouds to buy at instead of a fake one, such as aws,vast (lowtide offers lists them); needs --state")
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "with --clouds: read real prices, plan, and buy nothing")
	cmd.Flags().StringVar(&f.notify, "notify", os.Getenv("LOWTIDE_NOTIFY"), "file that says whom to tell what in which chat; empty: notify.yaml in --state, if it is there")
	cmd.Flags().StringVar(&f.chatops, "chatops", os.Getenv("LOWTIDE_CHATOPS"), "file that says who may command and approve from chat, and where to listen; empty: chatops.yaml in --state, if it is there")
	cmd.Flags().StringVar(&f.rules, "rules", os.Getenv("LOWTIDE_RULES"), "file with your own automations (lowtide rules); empty: rules.yaml in --state, if it is there")
	cmd.Flags().StringArrayVar(&f.reserved, "reserved", nil, "reservation file (lowtide reserve takes the same): the fake cloud's account has paid for it, once for a --state")
	f.ask.on(cmd)
	cmd.Flags().Float64Var(&f.speed, "speed", 0, "market seconds in a second; 240, and 1 with a new --state (an old one keeps its own)")
	cmd.Flags().DurationVar(&f.limit, "limit", 2*time.Minute, "longest that the story may take, in wall time")
	cmd.Flags().DurationVar(&f.lease, "lease", demoPolicy.Lease, "after this long without a word from lowtide a machine saves and ends itself, in market time")
	cmd.Flags().Uint64Var(&f.seed, "seed", 1, "of the built-in market")
	return cmd
}

// outside says what cannot be asked for beside a cloud in another process.
func (f runFlags) outside(cmd *cobra.Command) error {
	if f.state == "" {
		return usage(errors.New("--cloud needs --state DIR: machines in another process outlive this one, and somebody must remember them"))
	}
	for _, name := range []string{"speed", "data", "seed", "reserved"} {
		if cmd.Flags().Changed(name) {
			return usage(fmt.Errorf("--%s: market and clock are the cloud's; give it to lowtide fakecloud (a reservation: lowtide reserve FILE --book URL)", name))
		}
	}
	return nil
}

// origin is where the market's clock stands when a story begins.
var origin = time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)

// traces reads or makes the market.
func (f runFlags) traces() ([]market.Trace, string, error) {
	if f.data == "" {
		return market.Model(f.seed, 3, 195*time.Second, 20000), fmt.Sprintf("built-in model, seed %d", f.seed), nil
	}
	all, err := market.Load(f.data)
	if err != nil {
		return nil, "", usage(err)
	}
	return all, "recorded traces of " + f.data, nil
}

// demo is the story.
func demo(ctx context.Context, out io.Writer, f runFlags) error {
	fmt.Fprintln(out, "lowtide: starting NATS, a fake cloud and the functions in this process")
	all, name, err := f.traces()
	if err != nil {
		return err
	}
	at, ok := window(all, 24*time.Hour)
	if !ok {
		return failed("the market has no stretch in which a machine is lost within the first hours; try another --seed")
	}
	traces := cut(all, at)
	dir, err := os.MkdirTemp("", "lowtide-run-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	clock := fn.Clock{Origin: origin, Start: time.Now(), Speed: f.speed}
	d, err := begin(ctx, dir, f, place{clock: clock, traces: traces})
	if err != nil {
		return err
	}
	defer d.end(true)
	defer os.Remove(addressFile("")) // who asks later shall not look for a story that is over

	t := story.New(origin)
	say := func(who, what string) { fmt.Fprintln(out, t.Line(clock.Now(), who, what)) }
	var zones []string
	for _, tr := range traces {
		zones = append(zones, tr.Zone)
	}
	say("market", fmt.Sprintf("%s from %s on, %g times as fast: %s; on-demand %.4f USD/h; the cloud warns %s before it takes a machine",
		name, story.Short(at), f.speed, strings.Join(zones, ", "), fake.V100.OnDemand, d.cloud.Traits().Notice))
	heard, err := d.listen(ctx)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, j := range demoJobs {
		e := events.New(d.fleet, "run", clock.Now(), events.WorkloadSubmitted{Spec: j.spec(self, clock.Now(), f.speed)})
		if err := d.host.Say(ctx, e); err != nil {
			return err
		}
	}
	limit := time.After(f.limit)
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for over := false; !over; {
		select {
		case <-d.over:
			if err := d.why(); err != nil {
				return failed("stopped, every machine is ended: %v", err)
			}
			return failed("stopped; every machine is ended")
		case <-limit:
			say("lowtide", "the story takes too long; its machines are ended with it")
			over = true
		case h := <-heard:
			if line := t.Hear(h.at, h.event); line != "" {
				fmt.Fprintln(out, line)
			}
		case <-look.C:
			over = storyOver(t, d.local.Bill())
		}
	}
	v := closing(out, t, traces, d.policy, d.local.Bill(), clock.Now())
	fmt.Fprintf(out, "\nnext: lowtide run --state DIR keeps everything and takes your own workloads (lowtide submit FILE);\n"+
		"      lowtide run --data DIR replays recorded traces; lowtide simulate compares policies on them.\n")
	if !v.ok {
		return failed("a promise was not kept; see the table")
	}
	return nil
}

// storyOver says that all jobs are done and nothing bills any more.
func storyOver(t *story.Teller, bill fake.Bill) bool {
	done := t.Outcomes()
	if len(done) < len(demoJobs) || len(bill.Ours().Running()) > 0 {
		return false
	}
	for _, o := range done {
		if o.Finished.IsZero() {
			return false
		}
	}
	bought, ended, _ := t.Machines()
	return bought == ended
}

// deck is a ring with its cloud, while it runs.
type deck struct {
	*ring
	cloud provider.Provider
	local *fake.Cloud // nil: the cloud lives elsewhere
	procs *fake.Processes
	stop  context.CancelFunc
	lost  bool            // the store is empty, and should not be
	over  <-chan struct{} // closed when it stops, by itself too
	all   sync.WaitGroup
	once  sync.Once
	err   error
}

// why is what made it stop by itself; nil if it was told to.
func (d *deck) why() error {
	d.stop()
	d.all.Wait()
	return d.err
}

// leastLease is the shortest time without contact after which a machine may end itself, in market time and on the wall: an
// agent knocks once a second, and one that is only slow must not be bought again and again.
const leastLease, leastLeaseReal = 5 * time.Minute, 5 * time.Second

// leastSilence is the shortest time, on the wall, after which a machine is not counted on: an agent that lost its connection
// tries again after up to some seconds, however fast the market's clock goes.
const leastSilence = 15 * time.Second

func checkLease(lease time.Duration, c fn.Clock) error {
	if least := max(leastLease, time.Duration(float64(leastLeaseReal)*max(c.Speed, 1))); lease < least {
		return usage(fmt.Errorf("--lease %s: want %s at least, at %g market seconds in a second", lease, least, max(c.Speed, 1)))
	}
	return nil
}

// begin starts ring and functions, and the cloud where it is in this process.
func begin(ctx context.Context, dir string, f runFlags, p place) (_ *deck, err error) {
	if err := checkLease(f.lease, p.clock); err != nil {
		return nil, err
	}
	_, fresh := os.Stat(filepath.Join(dir, "installation"))
	install, err := installation(dir)
	if err != nil {
		return nil, err
	}
	d := &deck{}
	ctx, d.stop = context.WithCancel(ctx)
	d.over = ctx.Done()
	defer func() {
		if err != nil {
			d.end(true)
		}
	}()
	told, err := f.told()
	if err != nil {
		return nil, err
	}
	own, err := f.automations()
	if err != nil {
		return nil, err
	}
	ask, err := f.ask.approval()
	if err != nil {
		return nil, usage(err)
	}
	policy := demoPolicy
	policy.Lease = f.lease
	policy.Silence = max(policy.Silence, time.Duration(float64(leastSilence)*max(p.clock.Speed, 1)))
	if d.ring, err = startRing(ctx, ringOptions{dir: dir, fleet: "local", install: install, clock: p.clock, policy: policy, told: told, own: own, ask: ask, durable: f.state != ""}); err != nil {
		return nil, err
	}
	key, err := checkpointKey(dir)
	if err != nil {
		return nil, err
	}
	data, err := userData(d.ring, dir, f.bucket, key)
	if err != nil {
		return nil, err
	}
	accounts := p.accounts
	var url string
	switch {
	case len(accounts) > 0:
		for i := range accounts {
			accounts[i].data = p.told(d.ring)
		}
	case p.cloud != nil:
		d.cloud, url = p.cloud, p.cloud.URL()
	default:
		if err = d.openCloud(ctx, dir, f, p.traces); err != nil {
			return nil, err
		}
	}
	if d.cloud != nil {
		accounts = []account{{d.cloud, data}}
	}
	functions, err := d.functions(ctx, accounts, p.book)
	if err != nil {
		return nil, err
	}
	if d.lost, err = d.storeLost(ctx, fresh == nil); err != nil {
		return nil, err
	}
	if err := d.lookFirst(ctx, functions); err != nil {
		return nil, err
	}
	d.all.Go(func() {
		if err := d.host.Serve(ctx, functions...); err != nil {
			d.fault(err)
		}
	})
	d.all.Go(func() { d.tick(ctx, 30*time.Second) })
	d.all.Go(func() { d.guard(ctx) })
	d.all.Go(func() { d.notices(ctx) })
	if err = d.handSecrets(ctx, dir); err != nil {
		return nil, err
	}
	if err = d.hearPeople(ctx, f); err != nil {
		return nil, err
	}
	return d, address{
		NATS: d.server.URL(), Token: d.server.Token(), Fleet: d.fleet, Clock: p.clock.String(), Cloud: url, Bucket: data["LOWTIDE_BUCKET"], Key: key, Policy: d.policy,
	}.write(f.state)
}

// guard stops all when nothing can be stored any more: a lowtide that hears and decides nothing must not look as if it ran.
// A server whose disk was full for a moment refuses a stream's writes from then on, until it is started anew.
func (d *deck) guard(ctx context.Context) {
	const every = 30 * time.Second // of the market, between two ticks
	overdue := 0                   // looks, not time: this process itself may have been stopped for an hour
	for wait(ctx, time.Second); ctx.Err() == nil; wait(ctx, time.Second) {
		if time.Since(time.Unix(0, d.stored.Load())) < 2*d.clock.Real(every)+time.Second {
			overdue = 0
		} else {
			overdue++
		}
		err := d.server.Healthy()
		if err == nil && overdue > 15 {
			err = errors.New("NATS stores nothing any more (was the disk full? it says why above)")
		}
		if err != nil {
			d.fault(fmt.Errorf("%w; nothing is decided any more, and machines go on until their lease ends: make room and start lowtide again", err))
			return
		}
	}
}

// fault stops everything, and is remembered as the reason if it is the first.
func (d *deck) fault(err error) {
	d.once.Do(func() { d.err = err })
	d.stop()
}

// storeLost says that a directory that was used before has no fleet any more. A decider saves its fleet at its first fact.
func (d *deck) storeLost(ctx context.Context, used bool) (bool, error) {
	if !used {
		return false, nil
	}
	states, err := store.Bind(ctx, d.js, fleetsBucket)
	if err != nil {
		return false, err
	}
	f, _, err := rebalance.Fleet(ctx, states, d.fleet)
	return f == nil, err
}

// lookFirst lets census list the account before anybody decides: where the store was lost or restored from a backup, the
// stop of all purchases must come before the first of them. A cloud that does not answer now is listed at the next tick.
func (d *deck) lookFirst(ctx context.Context, functions []fn.Function) error {
	now := d.clock.Now()
	look := []fn.Delivery{{Event: events.New(d.fleet, "start", now, events.ClockTicked{What: "tick", Due: now}), At: now}}
	for _, f := range functions {
		if !strings.HasPrefix(f.Name, "census") {
			continue
		}
		said, err := f.Handle(ctx, look)
		if err != nil {
			slog.Warn("the cloud cannot be listed yet", "err", err)
			continue
		}
		if err := d.host.Say(ctx, said...); err != nil {
			return err
		}
	}
	return nil
}

// openCloud makes the fake cloud in this process.
func (d *deck) openCloud(ctx context.Context, dir string, f runFlags, traces []market.Trace) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	d.procs = &fake.Processes{Dir: filepath.Join(dir, "machines"), Command: []string{self, "agent"}}
	cfg := fake.Config{
		Dir: filepath.Join(dir, "cloud"), Seed: f.seed, Traces: traces, Now: d.clock.Now, Real: d.clock.Real,
		Launcher: d.procs, Metadata: "http://" + ln.Addr().String(),
	}
	if d.local, err = fake.Open(cfg); err != nil {
		return err
	}
	d.cloud = d.local
	for _, name := range f.reserved {
		r, err := readReservation(name, d.clock.Now())
		if err == nil {
			err = d.local.Book(r)
		}
		if err != nil {
			return usage(fmt.Errorf("--reserved: %w", err))
		}
	}
	if f.state == "" { // the story's third machine is slow
		d.local.Script("launch", append(make([]fake.Fault, badMachine-1), fake.BadGPU)...)
	}
	srv := &http.Server{Handler: fake.Serve(d.local), ReadHeaderTimeout: 5 * time.Second}
	d.all.Go(func() { _ = srv.Serve(ln) })
	d.all.Go(func() { <-ctx.Done(); _ = srv.Close() })
	d.all.Go(func() { _ = d.local.Run(ctx) })
	return nil
}

// end stops everything. With all, the machines of a cloud in this process are ended too.
func (d *deck) end(all bool) {
	// The functions first: what they would still buy while the machines are ended would live on.
	d.stop()
	d.all.Wait()
	if all && d.local != nil && d.procs != nil {
		for _, r := range d.local.Bill() {
			d.procs.Kill(r.ID) // the bill of a story dies with it
		}
	}
	if d.local != nil {
		_ = d.local.Close()
	}
	if d.ring != nil {
		d.close()
	}
}

// installation is the random id that marks machines as ours; it outlives the store.
func installation(dir string) (string, error) {
	file := filepath.Join(dir, "installation")
	id, err := keepOnce(file, func() string { return strings.ToLower(rand.Text()[:12]) })
	if err != nil {
		return "", err
	}
	if !plainID.MatchString(id) {
		return "", usage(fmt.Errorf("%s holds no installation id (4 to 40 of a-z, 0-9): the machines that carry it cannot be told from others'; restore it from the label of one of them", file))
	}
	return id, nil
}

// checkpointKey is what names and seals checkpoints, in hex. Without it none can be restored: it outlives the store too.
func checkpointKey(dir string) (string, error) {
	file := filepath.Join(dir, "checkpoint-key")
	text, err := keepOnce(file, func() string { return hex.EncodeToString([]byte(rand.Text())) })
	if err != nil {
		return "", err
	}
	if key, err := hex.DecodeString(text); err != nil || len(key) < 16 {
		return "", usage(fmt.Errorf("%s holds no key (32 or more of 0-9, a-f): no checkpoint can be read without it; restore it from a backup of the directory", file))
	}
	return text, nil
}

var plainID = regexp.MustCompile(`^[a-z0-9]{4,40}$`)

type heard struct {
	at    time.Time
	event events.Event
}

// listen follows the facts in stream order.
func (d *deck) listen(ctx context.Context) (<-chan heard, error) {
	con, err := d.js.OrderedConsumer(ctx, bus.Facts, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{events.Subject(d.fleet, "*.*", ">")}, DeliverPolicy: jetstream.DeliverNewPolicy,
	})
	if err != nil {
		return nil, err
	}
	ch := make(chan heard, 1024)
	cc, err := con.Consume(func(m jetstream.Msg) {
		e, err := events.Decode(m.Data())
		md, merr := m.Metadata()
		if err != nil || merr != nil {
			return
		}
		select {
		case ch <- heard{d.clock.Of(md.Timestamp), e}:
		case <-ctx.Done():
		}
	})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, cc.Stop)
	return ch, nil
}

// notices hands on what the cloud tells its owner, as an event bus would.
func (d *deck) notices(ctx context.Context) {
	var feed func(after int) ([]fake.Notice, error)
	switch c := d.cloud.(type) {
	case *fake.Cloud:
		feed = func(after int) ([]fake.Notice, error) { return c.Notices(after), nil }
	case *fake.Client: // in another process
		feed = func(after int) ([]fake.Notice, error) { return c.Notices(ctx, after) }
	default:
		return
	}
	t := time.NewTicker(max(d.clock.Real(5*time.Second), 20*time.Millisecond))
	defer t.Stop()
	for after := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		fresh, err := feed(after)
		if err != nil {
			continue // the next look asks for the same
		}
		for _, n := range fresh {
			e := events.New(d.fleet, "notices", n.At, events.InstanceInterrupted{
				Cloud: n.Cloud, Account: n.Account, Machine: n.Machine, ID: n.ID, EndsBy: n.EndsBy, Action: n.Action, Noticed: "eventbridge",
			})
			if d.host.Say(ctx, e) != nil {
				break
			}
			after = n.Seq
		}
	}
}

// daemon runs until it is told to stop. Machines in the cloud go on without it.
func daemon(ctx context.Context, out io.Writer, f runFlags) error {
	free, err := alone(f.state)
	if err != nil {
		return err
	}
	defer free()
	fmt.Fprintf(out, "lowtide: starting on %s\n", f.state)
	m, err := f.market(ctx)
	if err != nil {
		return err
	}
	d, err := begin(ctx, f.state, f, m)
	if err != nil {
		return err
	}
	defer d.end(false)
	if d.lost {
		fmt.Fprintf(out, "lowtide: the store in %s is empty, although the directory was used before: workloads and purchases of then are not known any more; machines that still run are told by status\n", f.state)
	}
	for _, n := range m.notes {
		fmt.Fprintln(out, "lowtide: "+n)
	}
	fmt.Fprintf(out, "lowtide: ready (%s, %g times as fast); lowtide submit --state %s FILE, lowtide status --state %s\n", m.name, max(m.clock.Speed, 1), f.state, f.state)
	<-d.over
	err = d.why()
	d.farewell(out, f.state)
	if err != nil {
		return failed("%w", err)
	}
	return nil
}

// farewell says what goes on without lowtide, and what that costs.
func (d *deck) farewell(out io.Writer, state string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	states, err := store.Bind(ctx, d.js, fleetsBucket)
	if err != nil {
		return // nothing was saved yet
	}
	f, _, err := rebalance.Fleet(ctx, states, d.fleet)
	if err != nil || f == nil {
		return
	}
	bills, hourly := 0, 0.0
	for _, m := range f.Machines {
		if m.Phase != fleet.Ended && m.Phase != fleet.Ordered {
			usd, _ := m.Offer.PerHour()
			bills, hourly = bills+1, hourly+usd
		}
	}
	if bills == 0 {
		fmt.Fprintln(out, "lowtide: stopped; no machine of ours runs")
		return
	}
	fmt.Fprintf(out, "lowtide: stopped; %s %.2f USD/h until they have heard nothing for %s (%s from now); to go on: lowtide run --state %s; to end them: the same, and lowtide panic --state %s\n",
		counted(bills, "machine goes on and bills", "machines go on and bill"), hourly, story.Short(d.policy.Lease), d.clock.Real(d.policy.Lease).Round(time.Second), state, state)
}

// counted is a number with its noun.
func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// place is where machines are bought, and in what time.
type place struct {
	name   string
	clock  fn.Clock
	traces []market.Trace // of a cloud in this process
	cloud  *fake.Client   // in another one; nil: in this process

	accounts []account                     // at real clouds; none: a fake one
	told     func(*ring) map[string]string // what their machines are told
	book     fleet.Book
	notes    []string // what a person should know before anything is bought
}

// market finds the state's market.
func (f runFlags) market(ctx context.Context) (p place, err error) {
	if real, err := f.realClouds(); err != nil {
		return p, err
	} else if real {
		return f.realMarket(ctx)
	}
	cloud, about, err := dialOutside(ctx, f.state, f.cloud)
	if err != nil {
		return p, err
	}
	if cloud == nil {
		if p.clock, err = keptClock(f.state, f.speed); err == nil {
			p.traces, p.name, err = f.traces()
		}
		if kept := max(p.clock.Speed, 1); f.paced && kept != f.speed {
			p.notes = append(p.notes, fmt.Sprintf("--speed %g is not heard: the market of %s goes %g times as fast, as when it was begun", f.speed, f.state, kept))
		}
		return p, err
	}
	p.cloud, p.name = cloud, "cloud "+about.ID+" at "+cloud.URL()
	if p.clock, err = fn.ParseClock(about.Clock); err != nil {
		err = nobody(fmt.Errorf("cloud %s: %w", cloud.URL(), err))
	}
	return p, err
}
