// Package provision carries plans out at a cloud: it buys one machine for a launch, ends one machine for an end, and
// says what came of it.
//
// It promises:
//
//   - One plan buys one machine. The plan is claimed in the store before the cloud is asked, token and user-data are
//     functions of plan and offer alone, and the next offer is asked for only after a known refusal. It can be killed at
//     any point; the next saying of the plan finds the claim, and by the plan's label the machine.
//   - An unknown outcome is never guessed at: where one token buys once it is repeated, elsewhere the call's
//     own bound (a minute) and the listing delay are waited for, and two complete lists must lack the machine before
//     anything else is bought. Invocations may overlap.
//   - Nothing is ended without both our label (fleet and installation) on the machine and a claim in our own store.
//   - What is said was read back. A plan that is said again is answered again, under a new id.
//
// It decides nothing, and it never waits inside a call: what is not yet known is looked at again when the plan is said
// again, as the decider does until it is answered.
//
//	claim   open ──► bought ──► ended
//	          └────► failed
package provision

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	Batch int              // most plans carried out in one call; 100
	// UserData is given to every machine as KEY=value lines, beside the machine's own names. It may change between two
	// runs of this program: what a machine is told is fixed when its plan is claimed.
	UserData map[string]string
	// PerPlan adds what depends on the plan, a one-use token for example. It must be a function of its arguments alone.
	PerPlan func(l provider.Labels, p fleet.Plan) map[string]string
	// Say is told in a line what is about to be bought and what that can cost at most, before the cloud is asked. Nil: nobody.
	Say func(line string)
}

// New makes the function for one account. claims is shared with New's other accounts and with census. Names or values
// in opts that do not fit on one line are a programmer's mistake and panic.
// Its consumer must be serial: one call an account at a time.
func New(source string, cloud provider.Provider, claims store.Bucket, opts Options) fn.Function {
	p := newProvisioner(source, cloud, claims, opts)
	tr := cloud.Traits()
	f := fn.Fold("provision", p.opts.Batch, []events.Kind{events.PlanMade{}.Kind()}, p.handle)
	f.Key = events.Token(tr.Cloud) + "." + events.Token(tr.Account) + ".>"
	f.Slow = 5 * time.Minute
	return f
}

// Twins makes the function that ends a second machine of a plan: one that a cloud without tokens bought after its
// answer was lost and two lists had not shown it. It also closes the claim of a machine that ended without a plan to end
// it: taken by the market, or by itself. It hears instance.found and instance.ended of every account and acts on its own.
func Twins(source string, cloud provider.Provider, claims store.Bucket, opts Options) fn.Function {
	p := newProvisioner(source, cloud, claims, opts)
	return fn.New("provision-twins", fn.Hear(p.found), fn.Hear(p.ended))
}

func newProvisioner(source string, cloud provider.Provider, claims store.Bucket, opts Options) *provisioner {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.Batch = cmp.Or(max(opts.Batch, 0), 100)
	if _, err := lines(opts.UserData); err != nil {
		panic("provision: " + err.Error())
	}
	return &provisioner{source, cloud, cloud.Traits(), store.Expiring(claims, life), opts}
}

type provisioner struct {
	source string
	cloud  provider.Provider
	traits provider.Traits
	claims store.Bucket
	opts   Options
}

// saying is one plan as it was said, and when it is looked at.
type saying struct {
	events.PlanMade
	fleet string
	now   time.Time
}

func (s saying) labels() provider.Labels {
	return provider.Labels{Fleet: s.fleet, Install: s.Install, Plan: s.Plan.ID, Machine: s.Plan.Machine, Workload: s.Plan.Workload}
}

// handle carries out a batch: purchases first, they are waited for. Of one plan the newest saying counts. A plan that
// meets a cloud that is not well beside others that were served is looked at again at its next saying; the call is an
// error only if nothing was achieved.
func (p *provisioner) handle(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
	var out []events.Event
	var errs []error
	said := p.newest(batch)
	seen := &listing{cloud: p.cloud}
	for _, s := range said {
		if s.Plan.Action != fleet.Launch {
			continue
		}
		facts, err := p.launch(ctx, s, seen)
		out, errs = append(out, p.say(s, facts)...), append(errs, err)
	}
	ended, err := p.endAll(ctx, said, seen)
	out, errs = append(out, ended...), append(errs, err)
	if len(out) > 0 {
		return out, nil
	}
	return nil, errors.Join(errs...)
}

// newest keeps the last saying of each plan that is for this account, in order.
func (p *provisioner) newest(batch []fn.Delivery) []saying {
	var out []saying
	for _, d := range batch {
		e, ok := d.Event.Data.(events.PlanMade)
		if !ok || e.Plan.Cloud != p.traits.Cloud || e.Plan.Account != p.traits.Account {
			continue
		}
		s := saying{e, d.Event.Fleet, d.At}
		// A message may have waited for hours: its own time must not make an expired plan look fresh.
		if now := p.opts.Now(); now.After(s.now) {
			s.now = now
		}
		out = slices.DeleteFunc(out, func(o saying) bool { return o.labels() == s.labels() })
		out = append(out, s)
	}
	return out
}

// say makes events of facts. The same facts to another saying have another id, so that they are heard again.
func (p *provisioner) say(s saying, facts []events.Fact) []events.Event {
	var out []events.Event
	for _, f := range facts {
		e := events.New(s.fleet, p.source, s.now, f)
		e.ID = fmt.Sprintf("%s/%d", e.ID, s.Attempt)
		e.Dry = p.traits.Dry
		out = append(out, e)
	}
	return out
}

// read returns a claim and its revision; nil if there is none.
func (p *provisioner) read(ctx context.Context, key string) (*claim.Claim, uint64, error) {
	b, rev, err := p.claims.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read claim %s: %w", key, err)
	}
	c, err := claim.Decode(b)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", key, err)
	}
	return c, rev, nil
}

// kept is how long what is over is remembered: longer than the facts (30 days), so that a plan that is said again is known.
const kept = 45 * 24 * time.Hour

// life keeps claims and ends that are over for a while, and others for ever: what may run must never be forgotten.
func life(key string, val []byte) time.Duration {
	if strings.HasPrefix(key, endPrefix) {
		if e := (ending{}); json.Unmarshal(val, &e) == nil && e.Done {
			return kept
		}
		return 0
	}
	if c, err := claim.Decode(val); err == nil && (c.State == claim.Failed || c.State == claim.Ended) {
		return kept
	}
	return 0
}

// held is a claim as it lies in the store.
type held struct {
	*claim.Claim
	key string
	rev uint64 // 0: not in the store yet
}

// save writes the claim over the version that was read; the first write must find nothing.
func (p *provisioner) save(ctx context.Context, h *held) error {
	b, err := h.Encode()
	if err != nil {
		return err
	}
	if h.rev, err = store.Put(ctx, p.claims, h.key, b, h.rev); err != nil {
		return fmt.Errorf("save claim %s: %w", h.key, err)
	}
	return nil
}

// listing is one complete list, read when it is first needed and again after something was changed.
type listing struct {
	cloud    provider.Provider
	machines []provider.Machine
	read     bool
}

func (l *listing) all(ctx context.Context) ([]provider.Machine, error) {
	if l.read {
		return l.machines, nil
	}
	machines, err := l.cloud.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	l.machines, l.read = machines, true
	return machines, nil
}

func (l *listing) stale() { l.read = false }

// userData is what a machine is told: a function of plan and options alone.
func (p *provisioner) userData(s saying) (string, error) {
	l := s.labels()
	all := map[string]string{}
	for k, v := range p.opts.UserData {
		all[k] = v
	}
	if p.opts.PerPlan != nil {
		for k, v := range p.opts.PerPlan(l, s.Plan) {
			all[k] = v
		}
	}
	all["LOWTIDE_FLEET"], all["LOWTIDE_INSTALL"], all["LOWTIDE_PLAN"] = l.Fleet, l.Install, l.Plan
	all["LOWTIDE_MACHINE"], all["LOWTIDE_CLOUD"], all["LOWTIDE_ACCOUNT"] = l.Machine, p.traits.Cloud, p.traits.Account
	if !s.Plan.HardEnd.IsZero() {
		all["LOWTIDE_HARD_END"] = s.Plan.HardEnd.UTC().Format(time.RFC3339Nano)
	}
	return lines(all)
}

// lines writes KEY=value lines, sorted.
func lines(env map[string]string) (string, error) {
	var b strings.Builder
	for _, k := range fleet.Sorted(env) {
		if k == "" || strings.ContainsAny(k, "=\n\r\x00") || strings.ContainsAny(env[k], "\n\r\x00") {
			return "", fmt.Errorf("user-data %q does not fit on one line", k)
		}
		fmt.Fprintf(&b, "%s=%s\n", k, env[k])
	}
	return b.String(), nil
}

// ours says that a machine carries the label of a plan.
func ours(m provider.Machine, l provider.Labels) bool {
	return l.Install != "" && m.Labels.Install == l.Install && m.Labels.Fleet == l.Fleet && m.Labels.Plan == l.Plan
}
