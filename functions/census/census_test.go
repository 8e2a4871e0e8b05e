package census_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/census"
	"lowtide/shared/fn"
	"lowtide/shared/provider"
	"lowtide/shared/provider/claim"
	"lowtide/shared/provider/fake"
	"lowtide/shared/store"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const install = "0123456789abcdef"

// bench is a cloud, the claims as provision writes them, and census at one tick a minute.
type bench struct {
	t      *testing.T
	now    time.Time
	cloud  *fake.Cloud
	claims store.Bucket
	f      fn.Function
}

func newBench(t *testing.T, cfg fake.Config) *bench {
	t.Helper()
	b := &bench{t: t, now: start, claims: store.Memory()}
	cfg.Now = func() time.Time { return b.now }
	c, err := fake.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.cloud = c
	b.f = census.New("census", install, c, b.claims, store.Memory(), census.Options{Now: cfg.Now})
	return b
}

// buy buys as provision does: the claim first.
func (b *bench) buy(plan string, claimed bool) provider.Machine {
	b.t.Helper()
	offers, err := b.cloud.Offers(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	l := provider.Labels{Fleet: "f1", Install: install, Plan: plan, Machine: "m-" + plan, Workload: "w1"}
	m, err := b.cloud.Launch(context.Background(), provider.Request{Token: plan, Name: l.Machine, Offer: offers[0], Labels: l})
	if err != nil {
		b.t.Fatal(err)
	}
	if claimed {
		b.claim(claim.Claim{State: claim.Bought, Labels: l, ID: m.ID, Since: m.Since})
	}
	return m
}

func (b *bench) claim(c claim.Claim) {
	b.t.Helper()
	c.Cloud, c.Account = "fake", "main"
	v, err := c.Encode()
	if err == nil {
		key := claim.KeyOf(c.Labels)
		if err = b.claims.Delete(context.Background(), key); err == nil {
			_, err = b.claims.Create(context.Background(), key, v)
		}
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// tick lets a minute pass and returns what census says, in words.
func (b *bench) tick() (said []string) {
	b.t.Helper()
	evs, err := b.try()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range evs {
		if e.Fleet != "f1" {
			b.t.Errorf("said to fleet %q: %+v", e.Fleet, e.Data)
		}
		switch f := e.Data.(type) {
		case events.InstanceFound:
			said = append(said, fmt.Sprintf("found %s %d", f.ID, f.Count))
		case events.InstanceEnded:
			said = append(said, fmt.Sprintf("ended %s %s %s", f.ID, f.Why, f.At.Format("15:04:05")))
		case events.InstanceLost:
			said = append(said, "lost "+f.ID)
		case events.InstanceInterrupted:
			said = append(said, fmt.Sprintf("interrupted %s %s %s", f.ID, f.Action, f.EndsBy.Format("15:04")))
		case events.PolicySet:
			said = append(said, "halt: "+f.Halt)
		}
	}
	return said
}

func (b *bench) try() ([]events.Event, error) {
	b.now = b.now.Add(time.Minute)
	e := events.New("f1", "schedule", b.now, events.ClockTicked{What: "tick", Due: b.now})
	return b.f.Handle(context.Background(), []fn.Delivery{{Event: e, At: b.now}})
}

func (b *bench) want(want ...string) {
	b.t.Helper()
	if got := b.tick(); fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("at %s: said %q, want %q", b.now.Format("15:04"), got, want)
	}
}

func TestOursAreFoundAndOthersAreNotCounted(t *testing.T) {
	b := newBench(t, fake.Config{Foreign: 50})
	b.buy("p1", true)
	b.want("found i-000001 1")
	b.want("found i-000001 2")
	for range 14 {
		b.want()
	}
	b.want("found i-000001 17")
	for _, w := range b.cloud.Writes()[1:] {
		t.Errorf("census wrote: %+v", w)
	}
}

func TestAnEndIsToldAtTheNextListAndTwiceMore(t *testing.T) {
	b := newBench(t, fake.Config{})
	m := b.buy("p1", true)
	b.want("found i-000001 1")
	b.cloud.Interrupt(m.ID, 0)
	for range 3 {
		b.want("ended i-000001 interrupted 12:01:00")
	}
	b.want()
	self := b.buy("p2", true)
	b.cloud.PowerOff(self.ID) // between two lists
	for range 3 {
		b.want("ended i-000002 self 12:05:00")
	}
	for range 90 { // the list forgets them: no loss
		b.want()
	}
}

func TestAMachineIsLostAfterTwoCompleteLists(t *testing.T) {
	b := newBench(t, fake.Config{KeepGone: -1})
	m := b.buy("p1", true)
	b.want("found i-000001 1")
	b.cloud.PowerOff(m.ID) // this cloud forgets at once
	b.want()
	b.cloud.Script("list", fake.Throttled)
	if said, err := b.try(); !errors.Is(err, provider.ErrThrottled) || len(said) != 0 {
		t.Errorf("a list that fails: said %v and %v, want nothing and %v", said, err, provider.ErrThrottled)
	}
	for range 3 {
		b.want("lost i-000001")
	}
	for range 5 {
		b.want()
	}
}

func TestAPurchaseThatNoListEverShowedIsLostAfterTheListingDelay(t *testing.T) {
	b := newBench(t, fake.Config{ListingDelay: 3 * time.Minute})
	b.claim(claim.Claim{State: claim.Bought, Labels: provider.Labels{Fleet: "f1", Install: install, Plan: "p9", Machine: "m9"}, ID: "i-phantom", Since: b.now})
	b.claim(claim.Claim{State: claim.Bought, Labels: provider.Labels{Fleet: "f1", Install: "another", Plan: "p9", Machine: "m9"}, ID: "i-others", Since: b.now})
	b.claim(claim.Claim{State: claim.Failed, Labels: provider.Labels{Fleet: "f1", Install: install, Plan: "p8", Machine: "m8"}})
	for range 5 { // three until it must be listed, and then lists that are three minutes apart
		b.want()
	}
	b.want("lost i-phantom")
}

func TestAnEndThatProvisionToldIsNoLoss(t *testing.T) {
	b := newBench(t, fake.Config{KeepGone: -1})
	m := b.buy("p1", true)
	b.want("found i-000001 1")
	b.cloud.PowerOff(m.ID)
	b.claim(claim.Claim{State: claim.Ended, Labels: m.Labels, ID: m.ID, Since: m.Since, Until: b.now})
	for range 5 {
		b.want()
	}
}

func TestALateMachineIsFoundAgain(t *testing.T) {
	b := newBench(t, fake.Config{Seed: 5, Faults: fake.Faults{ListingLag: 10 * time.Minute}})
	m := b.buy("p1", true)
	shown := 0
	for range 30 {
		for _, s := range b.tick() {
			if strings.HasPrefix(s, "lost") {
				t.Errorf("%s within the listing delay", s)
			}
			if strings.HasPrefix(s, "found "+m.ID) {
				shown++
			}
		}
	}
	if shown < 2 {
		t.Errorf("found %d times, want at least 2", shown)
	}
}

func TestALostStoreHaltsPurchasesAndEndsNothing(t *testing.T) {
	b := newBench(t, fake.Config{Foreign: 50})
	b.buy("p1", false)
	b.buy("p2", true)
	for range 3 {
		said := b.tick()
		if last := said[len(said)-1]; !strings.HasPrefix(last, "halt: 1 machines at fake/main carry our label (i-000001)") {
			t.Errorf("said %q, want the halt with i-000001", said)
		}
	}
	for range 5 { // a person has lifted it; census does not insist
		for _, s := range b.tick() {
			if strings.HasPrefix(s, "halt") {
				t.Errorf("said again: %s", s)
			}
		}
	}
	if w := b.cloud.Writes(); len(w) != 2 {
		t.Errorf("written: %+v, want the two launches", w)
	}
}

func TestTicksThatComeTogetherListOnce(t *testing.T) {
	b := newBench(t, fake.Config{})
	b.buy("p1", true)
	b.want("found i-000001 1")
	e := events.New("f1", "schedule", b.now, events.ClockTicked{What: "tick", Due: b.now})
	said, err := b.f.Handle(t.Context(), []fn.Delivery{{Event: e, At: b.now.Add(time.Second)}})
	if err != nil || len(said) != 0 {
		t.Errorf("a tick a second later: said %v and %v, want nothing", said, err)
	}
	wake := events.New("f1", "rebalance", b.now, events.ClockTicked{What: "wake", Due: b.now})
	if said, err := b.f.Handle(t.Context(), []fn.Delivery{{Event: wake, At: b.now.Add(time.Hour)}}); err != nil || len(said) != 0 {
		t.Errorf("a fleet's own wake-up: said %v and %v, want nothing", said, err)
	}
}

// market lists some machines as stopped.
type market struct {
	provider.Provider
	why map[string]string // by id
}

func (m market) List(ctx context.Context) ([]provider.Machine, error) {
	all, err := m.Provider.List(ctx)
	for i := range all {
		if why, ok := m.why[all[i].ID]; ok {
			all[i].State, all[i].Why = provider.Stopped, why
		}
	}
	return all, err
}

func TestAMachineThatIsListedAsStoppedIsInterruptedOnceHeardThrice(t *testing.T) {
	b := newBench(t, fake.Config{})
	m := market{b.cloud, map[string]string{}}
	b.f = census.New("census", install, m, b.claims, store.Memory(), census.Options{Now: func() time.Time { return b.now }})
	spot, other := b.buy("p1", true), b.buy("p2", true)
	b.want("found "+spot.ID+" 1", "found "+other.ID+" 1")
	m.why[spot.ID], m.why[other.ID] = "interrupted", "stopped"
	b.want("interrupted "+spot.ID+" stop 12:02", "found "+spot.ID+" 2", "interrupted "+other.ID+" ended 12:02", "found "+other.ID+" 2")
	for range 2 { // a lost fact is made good; the moment stays
		b.want("interrupted "+spot.ID+" stop 12:02", "interrupted "+other.ID+" ended 12:02")
	}
	b.want()
	delete(m.why, other.ID) // it goes on, and is stopped again
	b.want()
	m.why[other.ID] = "stopped"
	b.want("interrupted " + other.ID + " ended 12:07")
}
