package provision

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/claim"
)

// unknownTries is how often a call whose outcome is unknown is made under one token before the plan waits for its next
// saying.
const unknownTries = 3

// inFlight bounds a purchase on a cloud without tokens: it is given up by then, and nobody else goes on before. An
// invocation that a host takes for dead may still be asking.
const inFlight = time.Minute

// betweenLists is how long after the first list that lacks a machine the second one must begin, at most.
const betweenLists = 30 * time.Second

// launch buys the plan's machine, or finds out what became of the purchase. No fact and no error: not known yet.
func (p *provisioner) launch(ctx context.Context, s saying, seen *listing) ([]events.Fact, error) {
	key := claim.KeyOf(s.labels())
	c, rev, err := p.read(ctx, key)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return p.begin(ctx, s, key)
	}
	h := &held{c, key, rev}
	switch {
	case c.Labels.Machine != s.Plan.Machine:
		return []events.Fact{events.PlanFailed{
			Plan: s.Plan.ID, Machine: s.Plan.Machine, Action: fleet.Launch,
			Why: "a plan of this id was carried out before, for machine " + c.Labels.Machine + ": was an old state restored?",
		}}, nil
	case c.State != claim.Open:
		return outcome(h), nil
	}
	known, err := p.resolve(ctx, s, h, seen)
	if err != nil || !known {
		return nil, err
	}
	if c.State != claim.Open {
		return outcome(h), nil
	}
	return p.buy(ctx, s, h, seen)
}

// begin claims a plan that was never seen. Once this is stored, the plan is never begun again.
func (p *provisioner) begin(ctx context.Context, s saying, key string) ([]events.Fact, error) {
	data, err := p.userData(s)
	if err != nil {
		return nil, err
	}
	h := &held{&claim.Claim{
		State: claim.Open, Cloud: p.traits.Cloud, Account: p.traits.Account, Labels: s.labels(), Made: s.now, UserData: data,
	}, key, 0}
	if expired(s) {
		return p.fail(ctx, h, "it expired at "+s.Plan.Expires.Format(time.RFC3339)+", before it could be carried out")
	}
	return p.buy(ctx, s, h, nil)
}

// purchase is what is about to be bought, and what it can cost at most.
func purchase(p fleet.Plan, o fleet.Offer, t provider.Traits) string {
	hourly := "an unknown price"
	if m, known := o.Hourly.Get(); known {
		hourly = m.String() + " an hour"
	}
	end := "with no hard end"
	if !p.HardEnd.IsZero() {
		end = "until its hard end at " + p.HardEnd.UTC().Format(time.RFC3339)
	}
	if !t.OffEnds && !t.HardEnd {
		end += "; " + t.Cloud + " may bill a machine that has switched itself off until lowtide, or a person, ends it"
	}
	return fmt.Sprintf("buys %s for %s as %s: %s, at worst %s %s", o, p.Workload, p.Machine, hourly, p.Score.Worst, end)
}

func expired(s saying) bool { return !s.Plan.Expires.IsZero() && !s.now.Before(s.Plan.Expires) }

// resolve finds out what a call bought whose answer is not known. It returns false while that cannot be known. When it
// returns true the claim is no longer open, or has no call under way, or the call may be repeated under its token.
func (p *provisioner) resolve(ctx context.Context, s saying, h *held, seen *listing) (known bool, err error) {
	if h.Called.IsZero() {
		return true, nil
	}
	if adopted, err := p.adopt(ctx, s, h, seen); err != nil || adopted {
		return adopted, err
	}
	if p.traits.Tokens && !expired(s) {
		return true, nil
	}
	switch {
	case s.now.Before(h.Called.Add(inFlight + p.traits.ListingDelay)):
		return false, nil
	case h.Absent.IsZero():
		h.Absent = s.now
		return false, p.save(ctx, h)
	case s.now.Before(h.Absent.Add(min(p.traits.ListingDelay, betweenLists))):
		return false, nil
	}
	h.Called, h.Absent = time.Time{}, time.Time{} // two complete lists lack it: nothing was bought
	return true, p.save(ctx, h)
}

// adopt takes a listed machine with the plan's label as the one that was bought, and ends others beside it.
func (p *provisioner) adopt(ctx context.Context, s saying, h *held, seen *listing) (bool, error) {
	all, err := seen.all(ctx)
	if err != nil {
		return false, err
	}
	var mine []provider.Machine
	for _, m := range all {
		if ours(m, s.labels()) {
			mine = append(mine, m)
		}
	}
	if len(mine) == 0 {
		return false, nil
	}
	slices.SortFunc(mine, func(a, b provider.Machine) int { // those that live come first, the oldest before the others
		gone := func(m provider.Machine) int {
			if m.State == provider.Gone {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(gone(a), gone(b)), a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
	for _, m := range mine[1:] {
		if m.State == provider.Gone || m.State == provider.Ending {
			continue
		}
		seen.stale()
		if err := p.cloud.End(ctx, m.ID); err != nil && !errors.Is(err, provider.ErrNotFound) {
			return false, fmt.Errorf("end %s, a second machine of plan %s: %w", m.ID, s.Plan.ID, err)
		}
	}
	asked := mine[0].Offer
	if h.Try < len(s.Plan.Offers) {
		asked = s.Plan.Offers[h.Try]
	}
	return true, p.bought(ctx, h, mine[0], asked)
}

// buy asks for the offers in order, from the one that the claim is at.
func (p *provisioner) buy(ctx context.Context, s saying, h *held, seen *listing) ([]events.Fact, error) {
	for h.Try < len(s.Plan.Offers) {
		repeat := !h.Called.IsZero()
		if !repeat {
			if expired(s) {
				return p.fail(ctx, h, "it expired at "+s.Plan.Expires.Format(time.RFC3339)+", with "+refusals(h.Refused))
			}
			h.Called = s.now
			if err := p.save(ctx, h); err != nil {
				return nil, err
			}
		}
		offer := s.Plan.Offers[h.Try]
		if seen != nil {
			seen.stale()
		}
		if p.opts.Say != nil && !repeat {
			p.opts.Say(purchase(s.Plan, offer, p.traits))
		}
		m, repeat, err := p.ask(ctx, s, h, offer, repeat)
		if err == nil {
			if err := p.bought(ctx, h, m, offer); err != nil {
				return nil, err
			}
			return outcome(h), nil
		}
		switch {
		case passing(err):
			if !repeat { // nothing happened, also not by a call before
				h.Called = time.Time{}
				if e := p.save(ctx, h); e != nil {
					return nil, e
				}
			}
			return nil, fmt.Errorf("launch %s for plan %s: %w", offer, s.Plan.ID, err)
		case !refusal(err), repeat && errors.Is(err, provider.ErrInvalid):
			// It may have been bought. An "invalid" to a repeat may only say that the two calls differ.
			return nil, ctx.Err()
		}
		h.Refused = append(h.Refused, claim.Refused{Pool: offer.Pool(), Why: provider.Word(err)})
		h.Try++
		h.Called = time.Time{}
	}
	return p.fail(ctx, h, refusals(h.Refused))
}

// ask makes one purchase, and again under its token while the outcome is unknown. repeat says whether a call before the
// last one may have taken effect.
func (p *provisioner) ask(ctx context.Context, s saying, h *held, offer fleet.Offer, before bool) (m provider.Machine, repeat bool, err error) {
	want := provider.Request{
		Token: token(h.Labels, offer), Name: h.Labels.Machine, Offer: offer, Labels: h.Labels, UserData: h.UserData, Avoid: s.Plan.Avoid, HardEnd: s.Plan.HardEnd,
	}
	if !p.traits.Tokens {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, inFlight)
		defer cancel()
	}
	repeat = before
	for try := 1; ; try++ {
		m, err = p.cloud.Launch(ctx, want)
		if err == nil || !p.traits.Tokens || try == unknownTries || ctx.Err() != nil || !unknown(err) {
			return m, repeat, err
		}
		repeat = true
	}
}

// token names a purchase: the plan of this installation, and the offer.
func token(l provider.Labels, o fleet.Offer) string {
	h := sha256.New()
	for _, part := range []string{l.Install, l.Fleet, l.Plan, l.Machine, o.Pool()} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return "lt-" + hex.EncodeToString(h.Sum(nil)[:20])
}

// refusal says that nothing was bought and nothing will be by asking for the same again: the next offer may be tried. An
// outcome that is not known is none, whatever else its error holds: the refusal may be a later question's.
func refusal(err error) bool {
	if errors.Is(err, provider.ErrUnknown) {
		return false
	}
	for _, e := range []error{
		provider.ErrNoCapacity, provider.ErrQuota, provider.ErrDenied, provider.ErrInvalid, provider.ErrRefusedHere,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// unknown says that a call may have taken effect. An error outside the closed list is treated so.
func unknown(err error) bool {
	return errors.Is(err, provider.ErrUnknown) || !refusal(err) && !passing(err)
}

// passing says that the call had no effect, and may be made again.
func passing(err error) bool {
	return !errors.Is(err, provider.ErrUnknown) && (errors.Is(err, provider.ErrThrottled) || errors.Is(err, provider.ErrUnavailable))
}

// bought records a machine as it was read back.
func (p *provisioner) bought(ctx context.Context, h *held, m provider.Machine, asked fleet.Offer) error {
	h.State, h.ID, h.Since, h.Offer = claim.Bought, m.ID, m.Since, readBack(m.Offer, asked)
	h.Called, h.Absent = time.Time{}, time.Time{}
	if m.State == provider.Gone {
		h.State, h.Until, h.Why = claim.Ended, m.Until, cmp.Or(m.Why, "gone")
	}
	return p.save(ctx, h)
}

// readBack is what the cloud says runs, with what its list does not tell taken from the offer that was asked for.
func readBack(got, asked fleet.Offer) fleet.Offer {
	if got.Type == "" || got.Pool() == asked.Pool() && got.Hourly.IsZero() {
		return asked
	}
	got.GPU, got.GPUs = cmp.Or(got.GPU, asked.GPU), cmp.Or(got.GPUs, asked.GPUs)
	if got.Speed.IsZero() {
		got.Speed = asked.Speed
	}
	got.Host, got.Marketplace = cmp.Or(got.Host, asked.Host), got.Marketplace || asked.Marketplace
	if got.Hazard.IsZero() {
		got.Hazard = asked.Hazard
	}
	return got
}

// fail closes a plan that bought nothing.
func (p *provisioner) fail(ctx context.Context, h *held, why string) ([]events.Fact, error) {
	h.State, h.Why, h.Called = claim.Failed, why, time.Time{}
	if err := p.save(ctx, h); err != nil {
		return nil, err
	}
	return outcome(h), nil
}

// refusals counts refusals in words.
func refusals(list []claim.Refused) string {
	if len(list) == 0 {
		return "no offer asked for"
	}
	count := map[string]int{}
	for _, r := range list {
		count[r.Why]++
	}
	var words []string
	for _, w := range fleet.Sorted(count) {
		words = append(words, fmt.Sprintf("%s ×%d", w, count[w]))
	}
	return "every offer asked for refused: " + strings.Join(words, ", ")
}

// outcome is what a claim that is no longer open says.
func outcome(h *held) []events.Fact {
	var refused []events.Refused
	for _, r := range h.Refused {
		refused = append(refused, events.Refused{Pool: r.Pool, Why: r.Why})
	}
	if h.State == claim.Failed {
		return []events.Fact{events.PlanFailed{Plan: h.Labels.Plan, Machine: h.Labels.Machine, Action: fleet.Launch, Why: h.Why, Refused: refused}}
	}
	facts := []events.Fact{events.InstanceLaunched{
		Plan: h.Labels.Plan, Machine: h.Labels.Machine, ID: h.ID, Workload: h.Labels.Workload, Offer: h.Offer, At: h.Since, Refused: refused,
	}}
	if h.State == claim.Ended {
		facts = append(facts, events.InstanceEnded{
			Plan: h.Labels.Plan, Cloud: h.Cloud, Account: h.Account, Machine: h.Labels.Machine, ID: h.ID, At: h.Until, Why: h.Why,
		})
	}
	return facts
}
