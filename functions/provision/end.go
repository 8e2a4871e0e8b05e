package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/provider"
	"lowtide/shared/provider/claim"
	"lowtide/shared/store"
)

// endAll ends the machines of all end plans of a batch with two lists: one to see whose they are, one to see whether
// they are gone.
func (p *provisioner) endAll(ctx context.Context, said []saying, seen *listing) ([]events.Event, error) {
	var out []events.Event
	var errs []error
	var taken []saying // the cloud has taken the order, or had
	for _, s := range said {
		if s.Plan.Action != fleet.End {
			continue
		}
		facts, err := p.order(ctx, s, seen)
		if err != nil {
			errs = append(errs, err)
		} else if facts != nil {
			out = append(out, p.say(s, facts)...)
		} else {
			taken = append(taken, s)
		}
	}
	if len(taken) == 0 {
		return out, errors.Join(errs...)
	}
	seen.stale()
	for _, s := range taken {
		facts, err := p.confirm(ctx, s, seen)
		out, errs = append(out, p.say(s, facts)...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// order asks the cloud for an end, if the machine is ours and lives. A fact is the last word on the plan for now.
func (p *provisioner) order(ctx context.Context, s saying, seen *listing) ([]events.Fact, error) {
	if f, err := p.before(ctx, s); f != nil || err != nil {
		return f, err
	}
	all, err := seen.all(ctx)
	if err != nil {
		return nil, err
	}
	m, listed := find(all, s)
	if !listed {
		return nil, nil
	}
	if m.Labels.Install != s.Install || m.Labels.Fleet != s.fleet || m.Labels.Machine != s.Plan.Machine || s.Install == "" {
		return p.refuse(s, "not ours: the machine does not carry this fleet's label and name"), nil
	}
	c, _, err := p.read(ctx, claim.KeyOf(m.Labels))
	if err != nil {
		return nil, err
	}
	if c == nil || c.Labels.Machine != m.Labels.Machine {
		return p.refuse(s, "not ours: the machine carries our label, and our own store has no intent to buy it"), nil
	}
	if m.State == provider.Gone || m.State == provider.Ending {
		return nil, nil
	}
	switch err := p.cloud.End(ctx, m.ID); {
	case err == nil, errors.Is(err, provider.ErrNotFound), errors.Is(err, provider.ErrUnknown):
		return nil, nil // the list has the last word
	case refusal(err):
		return p.refuse(s, provider.Word(err)+": "+err.Error()), nil
	default:
		return nil, fmt.Errorf("end %s for plan %s: %w", m.ID, s.Plan.ID, err)
	}
}

func (p *provisioner) refuse(s saying, why string) []events.Fact {
	return []events.Fact{events.PlanFailed{Plan: s.Plan.ID, Machine: s.Plan.Machine, Action: fleet.End, Why: why}}
}

// find is the machine that an end is about: by the cloud's id, or by our name where the id was never learnt.
func find(all []provider.Machine, s saying) (provider.Machine, bool) {
	for _, m := range all {
		byName := s.Plan.Instance == "" && m.Labels.Machine == s.Plan.Machine && m.Labels.Fleet == s.fleet && m.Labels.Install == s.Install
		if m.ID == s.Plan.Instance || byName {
			return m, true
		}
	}
	return provider.Machine{}, false
}

// confirm says that a machine has ended when the cloud says so, or has not listed it for the listing delay.
func (p *provisioner) confirm(ctx context.Context, s saying, seen *listing) ([]events.Fact, error) {
	all, err := seen.all(ctx)
	if err != nil {
		return nil, err
	}
	m, listed := find(all, s)
	if !listed {
		return p.absent(ctx, s)
	}
	if m.State != provider.Gone {
		return nil, nil // not yet: the plan is said again
	}
	why := cmp.Or(m.Why, "asked")
	if err := p.close(ctx, m, why); err != nil {
		return nil, err
	}
	return p.done(ctx, s, ending{ID: m.ID, At: m.Until, Why: why})
}

// close writes the end into the claim of the purchase. A second machine of a plan does not end the claim of the first.
func (p *provisioner) close(ctx context.Context, m provider.Machine, why string) error {
	key := claim.KeyOf(m.Labels)
	c, rev, err := p.read(ctx, key)
	if err != nil || c == nil || c.State == claim.Ended || c.ID != "" && c.ID != m.ID {
		return err
	}
	if c.ID == "" {
		return nil // its own plan tells the purchase first
	}
	c.State, c.Until, c.Why = claim.Ended, m.Until, why
	return p.save(ctx, &held{c, key, rev})
}

// ending is what is remembered of an end plan: since when the machine is not listed, or the end itself.
type ending struct {
	Version uint64    `json:"version"`
	Absent  time.Time `json:"absent,omitzero"`
	Done    bool      `json:"done,omitempty"`
	ID      string    `json:"id,omitempty"`
	At      time.Time `json:"at,omitzero"`
	Why     string    `json:"why,omitempty"`
}

const endPrefix = "end."

func endKey(s saying) string { return endPrefix + claim.KeyOf(s.labels()) }

func (p *provisioner) readEnding(ctx context.Context, s saying) (ending, uint64, error) {
	var e ending
	rev, err := store.Load(ctx, p.claims, endKey(s), &e)
	if err != nil {
		return e, 0, fmt.Errorf("read end of plan %s: %w", s.Plan.ID, err)
	}
	return e, rev, nil
}

func (p *provisioner) writeEnding(ctx context.Context, s saying, e ending, rev uint64) error {
	e.Version++
	if _, err := store.Save(ctx, p.claims, endKey(s), e, rev); err != nil {
		return fmt.Errorf("save end of plan %s: %w", s.Plan.ID, err)
	}
	return nil
}

// before answers a plan that was carried out before.
func (p *provisioner) before(ctx context.Context, s saying) ([]events.Fact, error) {
	e, _, err := p.readEnding(ctx, s)
	if err != nil || !e.Done {
		return nil, err
	}
	return p.endedFact(s, e), nil
}

// absent counts a machine that is not listed as gone once the listing delay has passed over it. Asking to end it would
// need its label, and there is none to be seen.
func (p *provisioner) absent(ctx context.Context, s saying) ([]events.Fact, error) {
	e, rev, err := p.readEnding(ctx, s)
	if err != nil {
		return nil, err
	}
	if e.Absent.IsZero() {
		e.Absent = s.now
		return nil, p.writeEnding(ctx, s, e, rev)
	}
	if wait := max(p.traits.ListingDelay, time.Second); s.now.Before(e.Absent.Add(wait)) {
		return nil, nil
	}
	return p.done(ctx, s, ending{ID: s.Plan.Instance, At: e.Absent, Why: "gone"})
}

func (p *provisioner) done(ctx context.Context, s saying, e ending) ([]events.Fact, error) {
	old, rev, err := p.readEnding(ctx, s)
	if err != nil {
		return nil, err
	}
	e.Done, e.Version = true, old.Version
	if err := p.writeEnding(ctx, s, e, rev); err != nil {
		return nil, err
	}
	return p.endedFact(s, e), nil
}

func (p *provisioner) endedFact(s saying, e ending) []events.Fact {
	return []events.Fact{events.InstanceEnded{
		Plan: s.Plan.ID, Cloud: p.traits.Cloud, Account: p.traits.Account, Machine: s.Plan.Machine, ID: e.ID, At: e.At, Why: e.Why,
	}}
}

// found ends a machine whose plan has another one.
func (p *provisioner) found(ctx context.Context, e events.InstanceFound) ([]events.Event, error) {
	if e.Cloud != p.traits.Cloud || e.Account != p.traits.Account {
		return nil, nil
	}
	seen := &listing{cloud: p.cloud}
	all, err := seen.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if m.ID != e.ID || m.State == provider.Gone || m.State == provider.Ending || m.Labels.Plan != e.Plan || m.Labels.Install == "" {
			continue
		}
		c, _, err := p.read(ctx, claim.KeyOf(m.Labels))
		if err != nil {
			return nil, err
		}
		if c == nil || c.ID == "" || c.ID == m.ID || c.Labels != m.Labels {
			continue
		}
		if err := p.cloud.End(ctx, m.ID); err != nil && !errors.Is(err, provider.ErrNotFound) {
			return nil, fmt.Errorf("end %s, a second machine of plan %s, which has %s: %w", m.ID, e.Plan, c.ID, err)
		}
	}
	return nil, nil
}

// ended closes the claim of a machine that somebody else saw end. A list that does not show it any more leaves the claim as
// it is.
func (p *provisioner) ended(ctx context.Context, e events.InstanceEnded) ([]events.Event, error) {
	d := fn.From(ctx)
	if e.Cloud != p.traits.Cloud || e.Account != p.traits.Account || d.Event.Source == p.source || e.ID == "" {
		return nil, nil
	}
	all, err := (&listing{cloud: p.cloud}).all(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if m.ID == e.ID && m.State == provider.Gone && m.Labels.Install != "" && m.Labels.Fleet == d.Event.Fleet {
			return nil, p.close(ctx, m, cmp.Or(m.Why, "gone"))
		}
	}
	return nil, nil
}
