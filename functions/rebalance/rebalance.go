// Package rebalance is the decider: it folds the facts of one fleet into its state, plans on the whole of it, saves,
// and says what follows. It alone writes a fleet.
//
// It promises that a batch of facts counts exactly once (the state holds how far it was folded), that an intent is
// saved before it is said, that what must be said is said again until the fact that closes it is heard, that one
// workload has one run at a time (epochs), and that a message that comes again after a crash makes it say again what
// may have been lost.
// It calls no cloud and no machine: provision and the agents act on what it says.
//
//	fold       a fact changes the state                        fold.go
//	ask        what a person decides on                     approve.go
//	settle     what the state demands without a choice         settle.go
//	plan.Make  what needs a choice: buying, waiting            shared/plan
//	assign     who runs on which reservation                   reserved.go
//	aside      the tables that it reckons with                 aside.go
//	outbox     what must be said now, and when to wake         outbox.go
//	renew      a word to each machine, by which it lives on    renew.go
package rebalance

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
	"lowtide/shared/store"
)

// Config is a decider's fixed part.
type Config struct {
	Fleet    string       // its name
	Install  string       // random id of the installation: labels say it, so that others' machines are never ours
	Era      string       // of a state that begins now, random: after a lost store no plan or machine has an old one's name; "" for a throw-away one
	States   store.Bucket // holds the fleet under its name
	Market   store.Bucket // written by prices: under fleet.MarketKey
	Policy   plan.Policy
	Approval Approval
	Tables   *pool.Tables  // of expected costs, shared by whoever may; nil: its own
	Margin   time.Duration // before a machine ends, beyond the time a save takes: design.md's 10 s
	Suite    string        // benchmark suite that new machines run
	Batch    int           // most facts folded at once

	Reprove      time.Duration // a machine proves itself again after so long; 7 days, below 0: never
	ReproveHosts time.Duration // and a stranger's, on a marketplace; 24 h, below 0: never
}

// hears is all that changes a fleet.
var hears = []events.Kind{
	"clock.ticked", "price.changed", "instance.interrupted", "instance.at_risk",
	"workload.submitted", "workload.changed", "workload.withdrawn", "workload.paused", "workload.resumed", "policy.set",
	"plan.approved", "plan.rejected", "plan.asked", "checkpoint.asked", "plan.failed", "instance.launched", "instance.ended", "instance.found", "instance.lost",
	"machine.heard", "instance.ready", "workload.started", "workload.progressed", "workload.stopped", "workload.finished",
	"workload.failed", "checkpoint.saved", "checkpoint.failed", "instance.verified", "instance.rejected",
	"workload.idle", "workload.underused", "workload.busy", "workload.kept", "reservation.set",
}

// Decider is the function and what it keeps in memory: the decoded fleet, proved by its revision at each save.
type Decider struct {
	cfg   Config
	state *fleet.Fleet // nil: read it first
	rev   uint64
	book  *plan.Book // nil: read it first
	enc   fleet.Encoder
	size  int  // of the state, as it was last saved
	fresh bool // nothing has been said since this process began
	aside aside

	workloads order[*fleet.Workload]
	machines  order[*fleet.Instance]
}

// NewEra is random, and short enough for the names that hold it.
func NewEra() string { return strings.ToLower(rand.Text()[:4]) }

// New makes a decider.
func New(cfg Config) *Decider {
	cfg.Margin = max(cfg.Margin, 10*time.Second)
	if cfg.Suite == "" {
		cfg.Suite = "quick"
	}
	cfg.Batch = max(cfg.Batch, 1)
	cfg.Reprove = cmp.Or(cfg.Reprove, 7*24*time.Hour)
	cfg.ReproveHosts = cmp.Or(cfg.ReproveHosts, 24*time.Hour)
	if cfg.Tables == nil {
		cfg.Tables = pool.NewTables(TablesLimit)
	}
	return &Decider{cfg: cfg, aside: aside{tables: cfg.Tables, cases: make(chan pool.Case, 64)}}
}

// TablesLimit bounds the memory of the tables of expected costs, in bytes; one takes 1 to 6 MB.
const TablesLimit = 256 << 20

// Function is what a host runs. Its durable consumer belongs to one fleet.
func (d *Decider) Function() fn.Function {
	f := fn.Fold("rebalance", d.cfg.Batch, hears, d.Handle)
	f.Beside = d.aside.run
	return f
}

// Fleet reads a fleet's state; a fleet that was never saved is empty.
func Fleet(ctx context.Context, states store.Bucket, name string) (*fleet.Fleet, uint64, error) {
	b, rev, err := states.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read fleet %s: %w", name, err)
	}
	f, err := fleet.Decode(b)
	return f, rev, err
}

// Handle folds a batch, plans once, saves, and returns what must be said.
func (d *Decider) Handle(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
	if err := d.load(ctx, batch); err != nil {
		return nil, err
	}
	whole := false
	defer func() {
		if !whole { // also after a panic: what is half folded is read again
			d.state, d.rev = nil, 0
		}
	}()
	f := d.state
	again := d.fresh // a process that begins says again what the last one may not have said
	for _, m := range batch {
		if m.Event.Fleet != d.cfg.Fleet {
			continue
		}
		if m.Stream == f.Applied.Stream && m.Seq <= f.Applied.Seq {
			again = true // folded before, but its consequences may be lost
			continue
		}
		d.passed(m.At)
		d.fold(m.Event)
		f.Applied = fleet.Position{Stream: m.Stream, Seq: m.Seq}
	}
	d.settle()
	for _, w := range d.plan() {
		d.settleWorkload(w)
	}
	said := d.due(again)
	if err := d.save(ctx); err != nil {
		return nil, err
	}
	d.fresh, whole = false, true
	return said, nil
}

// passed moves the fleet's time on. A gap longer than any between two ticks means that nobody was heard, whoever spoke:
// lowtide itself was away, and its machines' silence counts from its return.
func (d *Decider) passed(at time.Time) {
	f := d.state
	if !at.After(f.Now) {
		return
	}
	if at.Sub(f.Now) > d.cfg.Policy.Silence/3 {
		f.Hearing = at
	}
	f.Now = at
}

// load reads state and market where they are not known, and the market again when it has changed.
func (d *Decider) load(ctx context.Context, batch []fn.Delivery) error {
	if d.state == nil {
		f, rev, err := Fleet(ctx, d.cfg.States, d.cfg.Fleet)
		if err != nil {
			return err
		}
		if f == nil {
			f = fleet.New(d.cfg.Fleet, d.cfg.Install)
			f.Era = d.cfg.Era
		}
		d.state, d.rev, d.fresh = f, rev, true
	}
	changed := d.book == nil
	for _, m := range batch {
		changed = changed || m.Event.Data.Kind() == "price.changed"
	}
	if !changed {
		return nil
	}
	b, _, err := d.cfg.Market.Get(ctx, fleet.MarketKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read market: %w", err)
	}
	var m fleet.Markets
	if err := fleet.Unpack(b, &m); err != nil {
		return fmt.Errorf("read market: %w", err)
	}
	if len(m.Offers) == 0 {
		return nil // no cloud has answered yet: nothing can be promised or refused on that
	}
	d.book = plan.NewBook(&m)
	for _, w := range d.state.Workloads {
		w.Review = time.Time{} // everything is looked at again under new prices
	}
	return nil
}

// stateRoom is the size of the state, compressed, beyond which no workload is taken any more: the store takes 8 MiB, and
// what is there must go on to be saved.
const stateRoom = 4 << 20

func (d *Decider) save(ctx context.Context) error {
	b, err := d.enc.Encode(d.state)
	if err != nil {
		return err
	}
	d.size = len(b)
	if d.rev, err = store.Put(ctx, d.cfg.States, d.cfg.Fleet, b, d.rev); err != nil {
		return fmt.Errorf("save fleet %s: %w", d.cfg.Fleet, err)
	}
	return nil
}

// plan takes the planner's decisions over, gives its launches ids and machines, and returns the workloads that it changed.
func (d *Decider) plan() (changed []*fleet.Workload) {
	f := d.state
	if d.book == nil {
		return nil
	}
	d.assign()
	for _, x := range plan.Make(f, d.book, &d.aside, d.cfg.Policy, f.Now) {
		w := f.Workloads[x.Workload]
		w.Review = x.Review
		switch {
		case x.Plan.Action != "":
			d.adopt(&x.Plan)
		case x.Stop:
			d.saveAndStop(f.Machines[w.On], time.Time{})
		case x.Keep:
			d.withdraw(w)
			d.release(w.Next, "given up: "+x.Reason)
			w.Next = ""
		default:
			continue
		}
		changed = append(changed, w)
	}
	return changed
}

// adopt makes a launch ours: the plan and its machine are in the state before anybody hears of them.
func (d *Decider) adopt(p *fleet.Plan) {
	f := d.state
	w := f.Workloads[p.Workload]
	p.ID = d.id("p")
	p.Machine = d.id(f.Name + "-m")
	p.Avoid = d.avoid(p.Cloud)
	if w.Next != "" {
		d.withdraw(w)
		d.release(w.Next, "superseded: "+p.Score.Reason)
	}
	w.Next = p.Machine
	f.Plans[p.ID] = p
	f.Machines[p.Machine] = &fleet.Instance{
		Name: p.Machine, Plan: p.ID, Workload: p.Workload, Offer: p.Offers[0], Phase: fleet.Ordered, HardEnd: p.HardEnd,
	}
	d.ask(w, p)
}

// id makes a name from the state's counter and its era.
func (d *Decider) id(prefix string) string {
	d.state.Next++
	if d.state.Era == "" {
		return fmt.Sprintf("%s%d", prefix, d.state.Next)
	}
	return fmt.Sprintf("%s%d-%s", prefix, d.state.Next, d.state.Era)
}
