// Package census compares what runs, and bills, with what was bought: it lists each account at every tick and says
// what it sees of ours.
//
// It promises:
//
//   - Only complete lists count. A list that fails changes nothing.
//   - instance.found is said for each machine with our label (fleet and installation) and a claim in our own store: at the
//     first and the second list that shows it, and every 15 minutes.
//   - instance.ended is said at the first list that shows a machine gone, and twice more: a lost fact is made good.
//   - instance.interrupted is said, three times, when a list shows a machine stopped that lives on as a disk that bills: where
//     a cloud gives no notice, its list is the notice. Who stopped it is told apart: the market, or somebody else.
//   - instance.lost is said when two complete lists, the listing delay apart or more, lack a machine that a list
//     has shown or a claim says was bought.
//   - A machine of ours without a claim in our own store means that the store is not the one that bought it: lost, or
//     restored from a backup. Then policy.set halts all purchases until a person looks, and nobody hears of the machine
//     otherwise: it is not ours to end.
//
// It ends nothing and buys nothing; others' machines are not even counted.
package census

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/provider"
	"lowtide/shared/provider/claim"
	"lowtide/shared/store"
)

// Options are what need not be said. The zero Options work.
type Options struct {
	Now   func() time.Time // lowtide's time; time.Now
	Every time.Duration    // least time between two lists; 20 s
	Fleet string           // says facts of this fleet only; "": of all fleets of the installation
}

const (
	sayAgain   = 3                // so often a fact is said that nothing answers
	foundAgain = 15 * time.Minute // between two words of a machine that runs
)

// New makes the function for one account. claims is read, state is census's own bucket; it may be the same for several
// accounts.
func New(source, install string, cloud provider.Provider, claims, state store.Bucket, opts Options) fn.Function {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.Every = cmp.Or(opts.Every, 20*time.Second)
	c := &census{source, install, cloud, cloud.Traits(), claims, state, opts}
	return fn.New("census", fn.Hear(c.tick))
}

type census struct {
	source  string
	install string
	cloud   provider.Provider
	traits  provider.Traits
	claims  store.Bucket
	state   store.Bucket
	opts    Options
}

// memory is what census remembers of an account.
type memory struct {
	Version  uint64            `json:"version"`
	Began    time.Time         `json:"began"` // of the last complete list
	Machines map[string]*known `json:"machines"`
	Settled  map[string]bool   `json:"settled"` // claims that need not be read again
}

// known is a machine of ours, by the cloud's id.
type known struct {
	Labels provider.Labels `json:"labels"`
	Claim  string          `json:"claim,omitempty"` // key of its claim, once read
	Shown  int             `json:"shown,omitempty"` // complete lists that showed it alive
	Said   time.Time       `json:"said,omitzero"`   // last found
	Absent time.Time       `json:"absent,omitzero"` // begin of the first of the last lists in a row that lack it
	Missed int             `json:"missed,omitempty"`
	Told   int             `json:"told,omitempty"` // how often its end or loss was said
	Orphan int             `json:"orphan,omitempty"`

	Stopped time.Time `json:"stopped,omitzero"` // when a list first showed it stopped
	Stops   int       `json:"stops,omitempty"`  // how often that was said
}

func (c *census) tick(ctx context.Context, e events.ClockTicked) ([]events.Event, error) {
	if e.What == "wake" {
		return nil, nil // a fleet's own
	}
	now := fn.Now(ctx)
	if n := c.opts.Now(); n.After(now) {
		now = n
	}
	key := "census." + events.Token(c.traits.Cloud) + "." + events.Token(c.traits.Account)
	m, rev, err := c.load(ctx, key)
	if err != nil {
		return nil, err
	}
	if now.Sub(m.Began) < c.opts.Every {
		return nil, nil
	}
	listed, err := c.cloud.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("census of %s/%s: %w", c.traits.Cloud, c.traits.Account, err)
	}
	v := &visit{census: c, memory: m, now: now, shown: map[string]provider.Machine{}}
	if err := v.compare(ctx, listed); err != nil {
		return nil, err
	}
	m.Began = now
	return v.said, c.save(ctx, key, m, rev)
}

func (c *census) load(ctx context.Context, key string) (*memory, uint64, error) {
	m := &memory{}
	rev, err := store.Load(ctx, c.state, key, m)
	if err != nil {
		return nil, 0, fmt.Errorf("read census: %w", err)
	}
	if m.Machines == nil {
		m.Machines = map[string]*known{}
	}
	if m.Settled == nil {
		m.Settled = map[string]bool{}
	}
	return m, rev, nil
}

func (c *census) save(ctx context.Context, key string, m *memory, rev uint64) error {
	m.Version++
	if _, err := store.Save(ctx, c.state, key, m, rev); err != nil {
		return fmt.Errorf("save census: %w", err)
	}
	return nil
}

// visit is one complete list and what follows from it.
type visit struct {
	*census
	*memory
	now     time.Time
	shown   map[string]provider.Machine // ours, by id
	orphans []provider.Machine          // first seen without a claim
	said    []events.Event
}

func (v *visit) compare(ctx context.Context, listed []provider.Machine) error {
	for _, m := range listed {
		if m.Labels.Install == v.install && v.install != "" && (v.opts.Fleet == "" || m.Labels.Fleet == v.opts.Fleet) {
			v.shown[m.ID] = m
		}
	}
	if err := v.readClaims(ctx); err != nil {
		return err
	}
	for _, id := range fleet.Sorted(v.shown) {
		if err := v.see(ctx, v.shown[id]); err != nil {
			return err
		}
	}
	for _, id := range fleet.Sorted(v.Machines) {
		if _, ok := v.shown[id]; ok {
			continue
		}
		if err := v.miss(ctx, id, v.Machines[id]); err != nil {
			return err
		}
	}
	v.alarm()
	return nil
}

// readClaims learns of machines that were bought and that no list has shown.
func (v *visit) readClaims(ctx context.Context) error {
	keys, err := v.claims.Keys(ctx)
	if err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	have := map[string]bool{}
	for _, k := range v.Machines {
		have[k.Claim] = true
	}
	kept := map[string]bool{}
	for _, key := range keys {
		kept[key] = true
		if have[key] || v.Settled[key] {
			continue
		}
		c, err := v.read(ctx, key)
		if err != nil {
			return err
		}
		switch {
		case c == nil || c.State == claim.Failed || c.State == claim.Ended || c.Cloud != v.traits.Cloud || c.Account != v.traits.Account,
			c.Labels.Install != v.install, v.opts.Fleet != "" && c.Labels.Fleet != v.opts.Fleet:
			v.Settled[key] = true
		case c.State == claim.Bought && !v.now.Before(c.Since.Add(v.traits.ListingDelay)):
			if v.Machines[c.ID] == nil {
				v.Machines[c.ID] = &known{Labels: c.Labels}
			}
			v.Machines[c.ID].Claim = key
		}
	}
	for key := range v.Settled {
		if !kept[key] {
			delete(v.Settled, key)
		}
	}
	return nil
}

// read returns a claim; nil if there is none under the key, or something else.
func (c *census) read(ctx context.Context, key string) (*claim.Claim, error) {
	if strings.HasPrefix(key, "end.") {
		return nil, nil
	}
	b, _, err := c.claims.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read claim %s: %w", key, err)
	}
	return claim.Decode(b)
}

// see takes in a machine that the list shows.
func (v *visit) see(ctx context.Context, m provider.Machine) error {
	k := v.Machines[m.ID]
	if k == nil {
		k = &known{Labels: m.Labels}
		v.Machines[m.ID] = k
	}
	k.Absent, k.Missed = time.Time{}, 0
	if m.State == provider.Gone {
		v.ended(m, k)
		return nil
	}
	k.Told = 0
	v.stopped(m, k)
	if k.Claim == "" {
		key := claim.KeyOf(m.Labels)
		c, err := v.read(ctx, key)
		if err != nil {
			return err
		}
		if c != nil && (c.ID == "" || c.ID == m.ID) {
			k.Claim = key
		}
		if c == nil {
			if k.Orphan < sayAgain {
				v.orphans = append(v.orphans, m)
			}
			k.Orphan++
			return nil // people are told; nobody may act on it
		}
	}
	k.Shown++
	if k.Shown <= 2 || v.now.Sub(k.Said) >= foundAgain {
		k.Said = v.now
		v.say(m.Labels.Fleet, 0, events.InstanceFound{
			Cloud: v.traits.Cloud, Account: v.traits.Account, Machine: m.Labels.Machine, ID: m.ID, Plan: m.Labels.Plan, Workload: m.Labels.Workload,
			Offer: m.Offer, Since: m.Since, Began: v.now, Count: k.Shown,
		})
	}
	return nil
}

// stopped says that a machine does not run any more although it is listed.
func (v *visit) stopped(m provider.Machine, k *known) {
	if m.State != provider.Stopped {
		k.Stopped, k.Stops = time.Time{}, 0
		return
	}
	if k.Stops == 0 {
		k.Stopped = v.now
	}
	if k.Stops >= sayAgain {
		return
	}
	k.Stops++
	action := "stop"
	if m.Why != "interrupted" {
		action = events.ActionEnded // nothing that the market did
	}
	v.say(m.Labels.Fleet, k.Stops, events.InstanceInterrupted{
		Cloud: v.traits.Cloud, Account: v.traits.Account, Machine: m.Labels.Machine, ID: m.ID, EndsBy: k.Stopped, Action: action, Noticed: "listing",
	})
}

func (v *visit) ended(m provider.Machine, k *known) {
	if k.Told >= sayAgain {
		return
	}
	k.Told++
	at := m.Until
	if at.IsZero() {
		at = v.now
	}
	v.say(m.Labels.Fleet, k.Told, events.InstanceEnded{
		Plan: m.Labels.Plan, Cloud: v.traits.Cloud, Account: v.traits.Account, Machine: m.Labels.Machine, ID: m.ID, At: at, Why: cmp.Or(m.Why, "gone"),
	})
	if k.Claim != "" {
		v.Settled[k.Claim] = true
	}
}

// miss takes in that the list lacks a machine.
func (v *visit) miss(ctx context.Context, id string, k *known) error {
	if k.Told >= sayAgain {
		delete(v.Machines, id)
		return nil
	}
	if k.Missed++; k.Missed == 1 {
		k.Absent = v.now
	}
	if k.Claim != "" {
		c, err := v.read(ctx, k.Claim)
		if err != nil {
			return err
		}
		if c != nil && c.State == claim.Ended { // provision has told it
			v.Settled[k.Claim] = true
			delete(v.Machines, id)
			return nil
		}
	}
	if k.Missed < 2 || v.now.Sub(k.Absent) < v.traits.ListingDelay {
		return nil
	}
	k.Told++
	if k.Claim != "" {
		v.Settled[k.Claim] = true
	}
	v.say(k.Labels.Fleet, k.Told, events.InstanceLost{
		Cloud: v.traits.Cloud, Account: v.traits.Account, Machine: k.Labels.Machine, ID: id, Began: v.now,
	})
	return nil
}

// alarm stops all purchases of the fleets whose machines nobody remembers to have bought.
func (v *visit) alarm() {
	ids := map[string][]string{}
	for _, m := range v.orphans {
		ids[m.Labels.Fleet] = append(ids[m.Labels.Fleet], m.ID)
	}
	for _, name := range fleet.Sorted(ids) {
		v.say(name, int(v.Version), events.PolicySet{
			By: "census",
			Halt: fmt.Sprintf("%d machines at %s/%s carry our label (%s), and our own store has no record of buying them: "+
				"was it lost, or restored from a backup? Nothing is bought until a person lifts this",
				len(ids[name]), v.traits.Cloud, v.traits.Account, some(ids[name])),
		})
	}
}

// some names up to three.
func some(ids []string) string {
	if len(ids) > 3 {
		return strings.Join(ids[:3], ", ") + ", …"
	}
	return strings.Join(ids, ", ")
}

// say makes an event; times tells the repeats of one fact apart.
func (v *visit) say(fleetName string, times int, f events.Fact) {
	e := events.New(fleetName, v.source, v.now, f)
	if times > 0 {
		e.ID = fmt.Sprintf("%s/%d", e.ID, times)
	}
	e.Dry = v.traits.Dry
	v.said = append(v.said, e)
}
