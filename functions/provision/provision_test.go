package provision_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/functions/provision"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/market"
	"lowtide/shared/provider"
	"lowtide/shared/provider/claim"
	"lowtide/shared/provider/fake"
	"lowtide/shared/store"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const install = "0123456789abcdef"

// bench is a cloud, a store, and a decider's outbox that says plans.
type bench struct {
	t      *testing.T
	now    time.Time
	cloud  *fake.Cloud
	via    provider.Provider // what provision gets
	claims store.Bucket
	opts   provision.Options
	seq    uint64
}

func newBench(t *testing.T, cfg fake.Config) *bench {
	t.Helper()
	b := &bench{t: t, now: start, claims: store.Memory()}
	cfg.Now = func() time.Time { return b.now }
	c, err := fake.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.cloud, b.via = c, c
	b.opts = provision.Options{Now: cfg.Now, UserData: map[string]string{"LOWTIDE_NATS_URL": "nats://127.0.0.1:4222"}}
	return b
}

func (b *bench) offers(markets ...fleet.Market) []fleet.Offer {
	b.t.Helper()
	all, err := b.cloud.Offers(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	var out []fleet.Offer
	for _, m := range markets {
		for _, o := range all {
			if o.Market == m {
				out = append(out, o)
			}
		}
	}
	return out
}

func (b *bench) launchPlan(id string, offers ...fleet.Offer) fleet.Plan {
	return fleet.Plan{
		ID: id, Action: fleet.Launch, Machine: "f1-m" + id, Cloud: "fake", Account: "main", Workload: "w1", Offers: offers,
		Made: b.now, Expires: b.now.Add(10 * time.Minute), HardEnd: b.now.Add(24 * time.Hour), Approved: true,
	}
}

func (b *bench) endPlan(id, machine, instance string) fleet.Plan {
	return fleet.Plan{ID: id, Action: fleet.End, Machine: machine, Instance: instance, Cloud: "fake", Account: "main", Made: b.now, Approved: true}
}

func (b *bench) delivery(p fleet.Plan, attempt int) fn.Delivery {
	b.seq++
	return fn.Delivery{
		Event: events.New("f1", "rebalance", b.now, events.PlanMade{Plan: p, Install: install, Attempt: attempt}), Stream: "FACTS", Seq: b.seq, At: b.now, Attempt: 1,
	}
}

func (b *bench) handle(ds ...fn.Delivery) ([]events.Event, error) {
	return provision.New("provision", b.via, b.claims, b.opts).Handle(context.Background(), ds)
}

// carry says plans as the outbox does, until each is answered, for at most an hour.
func (b *bench) carry(plans ...fleet.Plan) map[string]events.Fact {
	b.t.Helper()
	answers := map[string]events.Fact{}
	waits := []time.Duration{0, 5 * time.Second, 15 * time.Second, time.Minute}
	for attempt := 1; attempt < 60; attempt++ {
		if len(answers) == len(plans) {
			return answers
		}
		b.now = b.now.Add(waits[min(attempt, len(waits))-1])
		var ds []fn.Delivery
		for _, p := range plans {
			if answers[p.ID] == nil {
				ds = append(ds, b.delivery(p, attempt))
			}
		}
		for redelivery := 0; redelivery < 5; redelivery++ { // the host's, of the same messages
			said, err := b.handle(ds...)
			for _, e := range said {
				switch f := e.Data.(type) {
				case events.InstanceLaunched:
					answers[f.Plan] = f
				case events.PlanFailed:
					answers[f.Plan] = f
				case events.InstanceEnded:
					if answers[f.Plan] == nil {
						answers[f.Plan] = f
					}
				}
			}
			if err == nil {
				break
			}
			b.now = b.now.Add(time.Second)
		}
	}
	b.t.Fatalf("not all of %d plans were answered within an hour: %v", len(plans), answers)
	return nil
}

func as[F events.Fact](t *testing.T, f events.Fact) F {
	t.Helper()
	got, ok := f.(F)
	if !ok {
		t.Fatalf("got %T %+v, want %T", f, f, got)
	}
	return got
}

func (b *bench) alive() (ids []string) {
	for _, r := range b.cloud.Bill().Ours().Running() {
		if r.State != provider.Ending {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func TestALaunchTakesTheNextOfferOnlyAfterARefusal(t *testing.T) {
	b := newBench(t, fake.Config{})
	b.cloud.Script("launch", fake.NoCapacity, fake.None)
	offers := b.offers(fleet.Spot, fleet.OnDemand)
	got := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", offers...))["p1"])
	if got.Offer.Market != fleet.OnDemand || got.ID != "i-000001" || !got.At.Equal(start) || got.Workload != "w1" {
		t.Errorf("launched %+v, want the on-demand machine i-000001 at %v", got, start)
	}
	if len(got.Refused) != 1 || got.Refused[0] != (events.Refused{Pool: offers[0].Pool(), Why: "no_capacity"}) {
		t.Errorf("refused %+v, want the spot pool with no_capacity", got.Refused)
	}
	r := b.cloud.Bill()[0]
	for _, line := range []string{"LOWTIDE_MACHINE=f1-mp1\n", "LOWTIDE_FLEET=f1\n", "LOWTIDE_NATS_URL=nats://127.0.0.1:4222\n", "LOWTIDE_HARD_END=2026-03-02T12:00:00Z\n"} {
		if !strings.Contains(r.UserData, line) {
			t.Errorf("user-data lacks %q:\n%s", line, r.UserData)
		}
	}
}

func TestWhatAPurchaseCanCostAtMostIsSaidBeforeIt(t *testing.T) {
	b := newBench(t, fake.Config{})
	var lines []string
	before := 0
	b.opts.Say = func(line string) {
		if n := len(b.cloud.Bill()); n != before {
			t.Errorf("said after %d machines were bought, want %d", n, before)
		}
		lines = append(lines, line)
	}
	p := b.launchPlan("p1", b.offers(fleet.OnDemand)[0])
	p.Score.Worst = fleet.Dollars(73.44)
	b.carry(p)
	if len(lines) != 1 || !strings.Contains(lines[0], "3.0600 USD an hour, at worst 73.44 USD until its hard end at "+p.HardEnd.UTC().Format(time.RFC3339)) {
		t.Errorf("said %q", lines)
	}
	lines, before = nil, 1
	b.via = bills{b.cloud} // a cloud that goes on billing what is off
	b.carry(b.launchPlan("p2", b.offers(fleet.OnDemand)[0]))
	if len(lines) != 1 || !strings.Contains(lines[0], "may bill a machine that has switched itself off") {
		t.Errorf("said %q", lines)
	}
}

type bills struct{ provider.Provider }

func (b bills) Traits() provider.Traits {
	t := b.Provider.Traits()
	t.OffEnds, t.HardEnd = false, false
	return t
}

func TestRefusedEverywhereIsOneFailureWithEachPool(t *testing.T) {
	b := newBench(t, fake.Config{Quota: 1})
	b.carry(b.launchPlan("p0", b.offers(fleet.OnDemand)...))
	got := as[events.PlanFailed](t, b.carry(b.launchPlan("p1", b.offers(fleet.Spot, fleet.OnDemand)...))["p1"])
	if len(got.Refused) != 2 || got.Why != "every offer asked for refused: quota ×2" {
		t.Errorf("got %q with %+v, want two refusals for quota", got.Why, got.Refused)
	}
	if _, err := b.handle(b.delivery(b.launchPlan("p1", b.offers(fleet.OnDemand)...), 9)); err != nil || len(b.cloud.Bill()) != 1 {
		t.Errorf("a plan that failed bought at a later saying: %d machines, %v", len(b.cloud.Bill()), err)
	}
}

func TestAnExpiredPlanIsNotBoughtEvenIfItsMessageLooksFresh(t *testing.T) {
	b := newBench(t, fake.Config{})
	d := b.delivery(b.launchPlan("p1", b.offers(fleet.OnDemand)...), 1)
	b.now = b.now.Add(2 * time.Hour) // provision was down
	said, err := b.handle(d)
	if err != nil || len(said) != 1 {
		t.Fatalf("got %v and %v, want one fact", said, err)
	}
	if got := as[events.PlanFailed](t, said[0].Data); !strings.Contains(got.Why, "expired at 2026-03-01T12:10:00Z") {
		t.Errorf("why %q, want when it expired", got.Why)
	}
	if w := b.cloud.Writes(); len(w) != 0 {
		t.Errorf("the cloud was written to: %+v", w)
	}
}

func TestAPlanSaidAgainIsAnsweredAgainUnderANewID(t *testing.T) {
	b := newBench(t, fake.Config{})
	p := b.launchPlan("p1", b.offers(fleet.OnDemand)...)
	ids := map[string]bool{}
	var facts []string
	for attempt := range 3 {
		said, err := b.handle(b.delivery(p, attempt+1))
		if err != nil || len(said) != 1 {
			t.Fatalf("saying %d: got %d facts and %v", attempt+1, len(said), err)
		}
		ids[said[0].ID] = true
		facts = append(facts, fmt.Sprint(said[0].Data))
		b.now = b.now.Add(time.Minute)
	}
	if len(ids) != 3 || len(slices.Compact(facts)) != 1 || len(b.cloud.Writes()) != 1 {
		t.Errorf("%d ids, facts %v, %d calls; want 3 ids, one fact, one call", len(ids), facts, len(b.cloud.Writes()))
	}
}

func TestALostAnswerIsRepeatedUnderItsTokenAndBuysOnce(t *testing.T) {
	b := newBench(t, fake.Config{Faults: fake.Faults{ListingLag: time.Minute}})
	b.cloud.Script("launch", fake.LostAnswer, fake.LostBefore, fake.LostAnswer, fake.LostAnswer)
	got := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", b.offers(fleet.Spot, fleet.OnDemand)...))["p1"])
	if len(b.cloud.Bill()) != 1 || got.ID != b.cloud.Bill()[0].ID || got.Offer.Market != fleet.Spot {
		t.Errorf("launched %s of %d on the bill, want the one spot machine", got.ID, len(b.cloud.Bill()))
	}
}

func TestWithoutTokensALostAnswerIsLookedForBeforeAnythingElseIsBought(t *testing.T) {
	for name, c := range map[string]struct {
		fault fake.Fault
		calls int
		after time.Duration
	}{
		"it was bought":     {fake.LostAnswer, 1, 0},
		"it was not bought": {fake.LostBefore, 2, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, fake.Config{NoTokens: true, ListingDelay: 2 * time.Minute, Faults: fake.Faults{ListingLag: 2 * time.Minute}})
			b.cloud.Script("launch", c.fault)
			got := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", b.offers(fleet.OnDemand)...))["p1"])
			if bill := b.cloud.Bill(); len(bill) != 1 || bill[0].ID != got.ID || bill[0].Since.Sub(start) < c.after {
				t.Errorf("%d on the bill, the first since %v; want one, not before %v", len(bill), bill[0].Since.Sub(start), c.after)
			}
			if got := len(b.cloud.Writes()); got != c.calls {
				t.Errorf("%d purchases were asked for, want %d", got, c.calls)
			}
		})
	}
}

func TestATemplateThatChangesDoesNotChangeARepeat(t *testing.T) {
	b := newBench(t, fake.Config{Faults: fake.Faults{ListingLag: time.Hour}})
	p := b.launchPlan("p1", b.offers(fleet.Spot, fleet.OnDemand)...)
	b.cloud.Script("launch", fake.LostAnswer, fake.LostAnswer, fake.LostAnswer)
	if said, err := b.handle(b.delivery(p, 1)); err != nil || len(said) != 0 {
		t.Fatalf("an unknown outcome: got %v and %v, want nothing yet", said, err)
	}
	b.opts.UserData = map[string]string{"LOWTIDE_NATS_URL": "nats://127.0.0.1:5555"} // the program was restarted
	got := as[events.InstanceLaunched](t, b.carry(p)["p1"])
	if len(b.cloud.Bill()) != 1 || got.Offer.Market != fleet.Spot {
		t.Errorf("bought %d, told %s; want the one spot machine", len(b.cloud.Bill()), got.Offer)
	}
}

func TestAThrottledLaunchIsAnErrorAndNeitherARefusalNorBought(t *testing.T) {
	b := newBench(t, fake.Config{})
	b.cloud.Script("launch", fake.Throttled)
	p := b.launchPlan("p1", b.offers(fleet.Spot, fleet.OnDemand)...)
	if _, err := b.handle(b.delivery(p, 1)); !errors.Is(err, provider.ErrThrottled) {
		t.Fatalf("got %v, want %v", err, provider.ErrThrottled)
	}
	got := as[events.InstanceLaunched](t, b.carry(p)["p1"])
	if len(got.Refused) != 0 || got.Offer.Market != fleet.Spot {
		t.Errorf("launched %s after %v, want the first offer and no refusal", got.Offer, got.Refused)
	}
}

func TestAPlanIDThatComesBackForAnotherMachineBuysNothing(t *testing.T) {
	b := newBench(t, fake.Config{})
	b.carry(b.launchPlan("p1", b.offers(fleet.OnDemand)...))
	p := b.launchPlan("p1", b.offers(fleet.OnDemand)...)
	p.Machine = "f1-m77" // the decider's state was restored from a backup, and counts from there
	got := as[events.PlanFailed](t, b.carry(p)["p1"])
	if len(b.cloud.Bill()) != 1 || got.Machine != "f1-m77" {
		t.Errorf("bought %d, failed for %s; want nothing more for f1-m77", len(b.cloud.Bill()), got.Machine)
	}
}

func TestAnEndIsToldWhenTheListShowsItAndNotBefore(t *testing.T) {
	b := newBench(t, fake.Config{Ending: 3 * time.Minute})
	got := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", b.offers(fleet.OnDemand)...))["p1"])
	end := b.endPlan("p2", got.Machine, got.ID)
	if said, err := b.handle(b.delivery(end, 1)); err != nil || len(said) != 0 {
		t.Fatalf("while it ends: got %v and %v, want nothing yet", said, err)
	}
	told := as[events.InstanceEnded](t, b.carry(end)["p2"])
	if want := start.Add(3 * time.Minute); !told.At.Equal(want) || told.ID != got.ID || told.Why != "asked" {
		t.Errorf("ended %+v, want %s at %v", told, got.ID, want)
	}
	if ends := len(b.cloud.Writes()) - 1; ends != 1 {
		t.Errorf("asked to end it %d times, want once", ends)
	}
	b.now = b.now.Add(10 * time.Hour) // the list has forgotten it
	if again := as[events.InstanceEnded](t, b.carry(end)["p2"]); !again.At.Equal(told.At) {
		t.Errorf("said again: ended at %v, was %v", again.At, told.At)
	}
}

func TestAMachineThatIsNotListedYetIsNotToldEnded(t *testing.T) {
	b := newBench(t, fake.Config{Seed: 3, Faults: fake.Faults{ListingLag: 5 * time.Minute}})
	got := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", b.offers(fleet.OnDemand)...))["p1"])
	told := as[events.InstanceEnded](t, b.carry(b.endPlan("p2", got.Machine, got.ID))["p2"])
	if bill := b.cloud.Bill(); bill[0].Bills() || told.Why != "asked" {
		t.Errorf("told %+v while the bill says %s; want it ended because we asked", told, bill[0].State)
	}
}

func TestWhatTheCloudForgotIsGoneAfterTheListingDelay(t *testing.T) {
	b := newBench(t, fake.Config{KeepGone: -1, ListingDelay: time.Minute})
	got := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", b.offers(fleet.OnDemand)...))["p1"])
	b.cloud.PowerOff(got.ID)
	asked := b.now
	told := as[events.InstanceEnded](t, b.carry(b.endPlan("p2", got.Machine, got.ID))["p2"])
	if told.Why != "gone" || told.ID != got.ID || b.now.Sub(asked) < time.Minute {
		t.Errorf("told %+v after %v, want gone after a minute", told, b.now.Sub(asked))
	}
	if ends := len(b.cloud.Writes()) - 1; ends != 0 {
		t.Errorf("asked to end it %d times, want never: its label could not be seen", ends)
	}
}

func TestNothingIsEndedWithoutLabelAndIntent(t *testing.T) {
	b := newBench(t, fake.Config{Foreign: 50})
	ours := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", b.offers(fleet.OnDemand)...))["p1"])
	other, err := b.cloud.Launch(t.Context(), provider.Request{ // another installation of ours, the same fleet
		Token: "x", Offer: b.offers(fleet.OnDemand)[0], Labels: provider.Labels{Fleet: "f1", Install: "another", Plan: "p1", Machine: "f1-mp1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	writes := len(b.cloud.Writes())
	refuse := func(machine, id string) {
		t.Helper()
		got := as[events.PlanFailed](t, b.carry(b.endPlan("e-"+id, machine, id))["e-"+id])
		if !strings.HasPrefix(got.Why, "not ours") {
			t.Errorf("%s: refused because %q, want not ours", id, got.Why)
		}
	}
	refuse("f1-mp1", "x-000001")
	refuse("theirs-x-000002", "x-000002")
	refuse("f1-mp1", other.ID)
	refuse("f1-mp9", ours.ID)
	b.claims = store.Memory() // the store is lost
	refuse("f1-mp1", ours.ID)
	if got := len(b.cloud.Writes()); got != writes {
		t.Errorf("%d writing calls, want none", got-writes)
	}
}

func TestASecondMachineOfAPlanIsEndedAndTheFirstStays(t *testing.T) {
	b := newBench(t, fake.Config{NoTokens: true})
	p := b.launchPlan("p1", b.offers(fleet.OnDemand)...)
	twin := func(name string) provider.Machine {
		m, err := b.cloud.Launch(t.Context(), provider.Request{Offer: p.Offers[0], Labels: provider.Labels{
			Fleet: "f1", Install: install, Plan: "p1", Machine: p.Machine, Workload: "w1",
		}})
		if err != nil {
			t.Fatal(name, err)
		}
		b.now = b.now.Add(time.Second)
		return m
	}
	b.cloud.Script("launch", fake.LostBefore)
	if _, err := b.handle(b.delivery(p, 1)); err != nil {
		t.Fatal(err)
	}
	first, second := twin("first"), twin("second") // a cloud that retries by itself
	got := as[events.InstanceLaunched](t, b.carry(p)["p1"])
	if got.ID != first.ID || !slices.Equal(b.alive(), []string{first.ID}) {
		t.Errorf("launched %s, alive %v; want %s alone, not %s", got.ID, b.alive(), first.ID, second.ID)
	}
	late := twin("late")
	census := func(id string) {
		t.Helper()
		e := events.New("f1", "census", b.now, events.InstanceFound{Cloud: "fake", Account: "main", Machine: p.Machine, ID: id, Plan: "p1"})
		if _, err := provision.Twins("provision", b.via, b.claims, b.opts).Handle(t.Context(), []fn.Delivery{{Event: e, At: b.now}}); err != nil {
			t.Fatal(err)
		}
	}
	census(first.ID)
	census(late.ID)
	if !slices.Equal(b.alive(), []string{first.ID}) {
		t.Errorf("alive %v after the late twin was found, want %s alone", b.alive(), first.ID)
	}
}

func TestFactsOfADryRunSaySo(t *testing.T) {
	b := newBench(t, fake.Config{})
	b.via = provider.Dry(b.cloud, func() time.Time { return b.now })
	said, err := b.handle(b.delivery(b.launchPlan("p1", b.offers(fleet.OnDemand)...), 1))
	if err != nil || len(said) != 1 || !said[0].Dry {
		t.Fatalf("got %+v and %v, want one dry fact", said, err)
	}
	got := as[events.InstanceLaunched](t, said[0].Data)
	as[events.InstanceEnded](t, b.carry(b.endPlan("p2", got.Machine, got.ID))["p2"])
	if len(b.cloud.Writes()) != 0 {
		t.Errorf("written: %+v", b.cloud.Writes())
	}
}

func TestFourHundredEndsTakeTwoListsABatchAndAllAreConfirmed(t *testing.T) {
	b := newBench(t, fake.Config{})
	b.opts.Batch = 100
	lists := &counting{Provider: b.cloud}
	b.via = lists
	var launches, ends []fleet.Plan
	for i := range 400 {
		launches = append(launches, b.launchPlan(fmt.Sprintf("p%d", i), b.offers(fleet.OnDemand)...))
	}
	for id, f := range b.carry(launches...) {
		l := as[events.InstanceLaunched](t, f)
		ends = append(ends, b.endPlan("e"+id, l.Machine, l.ID))
	}
	lists.lists = 0
	b.cloud.Script("end", fake.None, fake.None, fake.Throttled, fake.LostAnswer, fake.LostBefore)
	for chunk := range slices.Chunk(ends, 100) {
		b.carry(chunk...)
	}
	if alive := b.cloud.Bill().Running(); len(alive) != 0 {
		t.Errorf("%d machines bill still, want none", len(alive))
	}
	if lists.lists > 20 {
		t.Errorf("%d lists for 400 ends, want at most 20", lists.lists)
	}
}

type counting struct {
	provider.Provider
	lists int
}

func (c *counting) List(ctx context.Context) ([]provider.Machine, error) {
	c.lists++
	return c.Provider.List(ctx)
}

var errCrash = errors.New("the process was killed")

// crasher kills the process at the nth thing it does to the outside, before or after it took effect.
type crasher struct {
	provider.Provider
	store.Bucket
	n     int
	after bool
}

func (c *crasher) at(do func() error) error {
	c.n--
	if c.n == 0 && !c.after {
		return errCrash
	}
	err := do()
	if c.n == 0 {
		return errCrash
	}
	if c.n < 0 {
		return errCrash // it stays dead until it is started again
	}
	return err
}

func (c *crasher) Launch(ctx context.Context, w provider.Request) (m provider.Machine, err error) {
	err = c.dead(func() error { m, err = c.Provider.Launch(ctx, w); return err })
	return m, err
}

func (c *crasher) End(ctx context.Context, id string) error {
	return c.dead(func() error { return c.Provider.End(ctx, id) })
}

func (c *crasher) List(ctx context.Context) (m []provider.Machine, err error) {
	err = c.dead(func() error { m, err = c.Provider.List(ctx); return err })
	return m, err
}

func (c *crasher) Create(ctx context.Context, k string, v []byte) (rev uint64, err error) {
	err = c.dead(func() error { rev, err = c.Bucket.Create(ctx, k, v); return err })
	return rev, err
}

func (c *crasher) Update(ctx context.Context, k string, v []byte, r uint64) (rev uint64, err error) {
	err = c.dead(func() error { rev, err = c.Bucket.Update(ctx, k, v, r); return err })
	return rev, err
}

// dead does nothing any more after the crash.
func (c *crasher) dead(do func() error) error {
	if c.n <= 0 {
		return errCrash
	}
	return c.at(do)
}

func TestACrashAtAnyPointBuysOnceAndEndsAll(t *testing.T) {
	points := 0
	for _, cfg := range []fake.Config{
		{},
		{Faults: fake.Faults{ListingLag: 40 * time.Second}},
		{NoTokens: true, Faults: fake.Faults{ListingLag: 40 * time.Second}},
	} {
		for _, script := range [][]fake.Fault{{}, {fake.NoCapacity}, {fake.LostAnswer}, {fake.LostBefore}, {fake.NoCapacity, fake.LostAnswer, fake.LostAnswer, fake.LostAnswer}} {
			for _, after := range []bool{false, true} {
				for n := 1; ; n++ {
					b := newBench(t, cfg)
					b.cloud.Script("launch", script...)
					name := fmt.Sprintf("tokens %v, lag %v, %v, at %d, after %v", !cfg.NoTokens, cfg.Faults.ListingLag, script, n, after)
					if !crashOnce(t, b, name, n, after) {
						break
					}
					points++
				}
			}
		}
	}
	if points < 150 {
		t.Errorf("only %d points of crash, want at least 150", points)
	}
	t.Logf("%d points of crash", points)
}

// crashOnce buys and ends one machine with one crash in it. It says whether the crash came to pass.
func crashOnce(t *testing.T, b *bench, name string, n int, after bool) bool {
	t.Helper()
	c := &crasher{Provider: b.cloud, Bucket: b.claims, n: n, after: after}
	whole := b.claims
	crashing := func(p fleet.Plan) {
		if c.n <= 0 {
			return
		}
		b.via, b.claims = c, c
		said, err := b.handle(b.delivery(p, 1))
		if c.n <= 0 && len(said) > 0 {
			t.Fatalf("%s: a dead process said %v (%v)", name, said, err)
		}
		b.via, b.claims = b.cloud, whole
	}
	p := b.launchPlan("p1", b.offers(fleet.Spot, fleet.OnDemand)...)
	crashing(p)
	answer := b.carry(p)["p1"]
	launched, ok := answer.(events.InstanceLaunched)
	if !ok {
		t.Errorf("%s: got %+v, want it launched", name, answer)
		return false
	}
	if got := b.alive(); len(got) != 1 || got[0] != launched.ID || len(b.cloud.Bill().Twice()) != 0 {
		t.Errorf("%s: alive %v, bought twice %v, told %s; want one machine", name, got, b.cloud.Bill().Twice(), launched.ID)
	}
	end := b.endPlan("p2", launched.Machine, launched.ID)
	crashing(end)
	b.carry(end)
	if got := b.cloud.Bill().Running(); len(got) != 0 {
		t.Errorf("%s: %d run after the end was told", name, len(got))
	}
	v, _, err := whole.Get(t.Context(), claim.Key(install, "f1", "p1"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := claim.Decode(v); err != nil || got.State != claim.Ended {
		t.Errorf("%s: the claim says %+v (%v), want ended", name, got, err)
	}
	return c.n <= 0
}

func TestUnderManyFaultsNothingIsBoughtTwiceOrLeftRunning(t *testing.T) {
	bought, failed := 0, 0
	for seed := range uint64(40) {
		cfg := fake.Config{
			Seed: seed, NoTokens: seed%2 == 1, Foreign: 50, Traces: market.Model(seed, 3, 195*time.Second, 400),
			Faults: fake.Faults{
				NoCapacity: .2, Throttled: .1, Unavailable: .05, LostAnswer: .15, LostBefore: .1, ListingLag: time.Minute, NoNotice: .2, ShortNotice: .2,
			},
		}
		b := newBench(t, cfg)
		for i := range 12 {
			offers, err := b.cloud.Offers(t.Context())
			if err != nil {
				b.now = b.now.Add(time.Minute)
				continue
			}
			p := b.launchPlan(fmt.Sprintf("p%d", i), offers...)
			got := b.carry(p)[p.ID]
			l, ok := got.(events.InstanceLaunched)
			if !ok {
				failed++
				continue
			}
			bought++
			b.now = b.now.Add(7 * time.Minute)
			b.carry(b.endPlan("e"+p.ID, l.Machine, l.ID))
		}
		bill := b.cloud.Bill()
		if len(bill.Twice()) != 0 || len(bill.Ours().Running()) != 0 {
			t.Errorf("seed %d: bought twice %v, running %d; want none", seed, bill.Twice(), len(bill.Ours().Running()))
		}
		for _, w := range b.cloud.Writes() {
			if strings.HasPrefix(w.ID, "x-") {
				t.Errorf("seed %d: somebody else's machine was written to: %+v", seed, w)
			}
		}
	}
	t.Logf("%d bought, %d failed", bought, failed)
	if bought < 300 {
		t.Errorf("only %d purchases, want at least 300", bought)
	}
}

// strict is a cloud whose promises differ from what it does.
type strict struct {
	provider.Provider
	delay   time.Duration
	invalid bool // a repeated token is invalid
	blind   bool // the second call's answer is not known, and what was asked about it is denied
	before  func()
	calls   int
}

func (s *strict) Traits() provider.Traits {
	t := s.Provider.Traits()
	t.ListingDelay = s.delay
	return t
}

func (s *strict) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	if s.before != nil {
		s.before()
	}
	if s.calls++; s.invalid && s.calls > 1 {
		return provider.Machine{}, fmt.Errorf("strict: %w", provider.ErrInvalid)
	}
	if s.blind && s.calls == 2 {
		return provider.Machine{}, fmt.Errorf("strict: %w: read what is there: %w", provider.ErrUnknown, provider.ErrDenied)
	}
	return s.Provider.Launch(ctx, want)
}

func TestARefusalInsideAnUnknownOutcomeIsNone(t *testing.T) {
	b := newBench(t, fake.Config{})
	b.via = &strict{Provider: b.cloud, blind: true}
	b.cloud.Script("launch", fake.LostAnswer)
	got := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", b.offers(fleet.Spot, fleet.OnDemand)...))["p1"])
	if len(b.cloud.Bill()) != 1 || len(got.Refused) != 0 {
		t.Errorf("bought %d after refusals %v, want one and none", len(b.cloud.Bill()), got.Refused)
	}
}

func TestOneListThatLacksAMachineIsNotBelieved(t *testing.T) {
	b := newBench(t, fake.Config{NoTokens: true, Seed: 9, Faults: fake.Faults{ListingLag: 195 * time.Second}})
	b.via = &strict{Provider: b.cloud, delay: 30 * time.Second}
	b.cloud.Script("launch", fake.LostAnswer)
	b.carry(b.launchPlan("p1", b.offers(fleet.OnDemand)...))
	lag := b.cloud.Bill()[0].ListedAt.Sub(start)
	if len(b.cloud.Bill()) != 1 || lag < 140*time.Second { // when the first list that counts is read
		t.Errorf("bought %d, the first listed after %v; want one, listed later than promised", len(b.cloud.Bill()), lag)
	}
}

func TestAnInvalidRepeatDoesNotProveThatNothingWasBought(t *testing.T) {
	b := newBench(t, fake.Config{Faults: fake.Faults{ListingLag: time.Minute}})
	b.via = &strict{Provider: b.cloud, delay: time.Minute, invalid: true}
	b.cloud.Script("launch", fake.LostAnswer)
	got := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", b.offers(fleet.Spot, fleet.OnDemand)...))["p1"])
	if len(b.cloud.Bill()) != 1 || len(got.Refused) != 0 {
		t.Errorf("bought %d after refusals %v, want one and none", len(b.cloud.Bill()), got.Refused)
	}
}

func TestAThrottledListAfterALaunchForgetsNothing(t *testing.T) {
	b := newBench(t, fake.Config{})
	p := b.launchPlan("p1", b.offers(fleet.OnDemand)...)
	b.carry(p)
	b.cloud.Script("list", fake.Throttled, fake.Throttled)
	said, err := b.handle(b.delivery(p, 2))
	if err != nil || len(said) != 1 {
		t.Fatalf("said again: got %v and %v, want the launch", said, err)
	}
	as[events.InstanceLaunched](t, said[0].Data)
	b.claims = &unreadable{b.claims, 1} // and a store that fails once
	b.carry(p)
	if len(b.cloud.Bill()) != 1 {
		t.Errorf("bought %d, want one", len(b.cloud.Bill()))
	}
}

// unreadable is a store whose first reads fail.
type unreadable struct {
	store.Bucket
	fail int
}

func (u *unreadable) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	if u.fail--; u.fail >= 0 {
		return nil, 0, errors.New("no leader")
	}
	return u.Bucket.Get(ctx, key)
}

func TestAnEndThatFailsIsTriedUntilTheCloudConfirmsIt(t *testing.T) {
	b := newBench(t, fake.Config{})
	got := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", b.offers(fleet.OnDemand)...))["p1"])
	for range 12 {
		b.cloud.Script("end", fake.Unavailable) // the network is away
	}
	end := b.endPlan("p2", got.Machine, got.ID)
	if said, err := b.handle(b.delivery(end, 1)); !errors.Is(err, provider.ErrUnavailable) || len(said) != 0 {
		t.Errorf("while it fails: said %v and %v, want nothing and %v", said, err, provider.ErrUnavailable)
	}
	told := as[events.InstanceEnded](t, b.carry(end)["p2"])
	if r := b.cloud.Bill()[0]; r.Bills() || !r.Until.Equal(told.At) {
		t.Errorf("told ended at %v, the bill says %v", told.At, r.Until)
	}
}

// together is a store whose first reads and claims wait for each other: all see what was there before any wrote, and
// all have claimed before any buys.
type together struct {
	store.Bucket
	reads, claims sync.WaitGroup
	left          atomic.Int64 // reads that wait still
}

func (g *together) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	v, rev, err := g.Bucket.Get(ctx, key)
	if g.left.Add(-1) >= 0 {
		g.reads.Done()
		g.reads.Wait()
	}
	return v, rev, err
}

func (g *together) Create(ctx context.Context, key string, val []byte) (uint64, error) {
	rev, err := g.Bucket.Create(ctx, key, val)
	g.claims.Done()
	g.claims.Wait()
	return rev, err
}

func TestInvocationsThatBeginAtOneMomentBuyOnce(t *testing.T) {
	for _, noTokens := range []bool{false, true} {
		b := newBench(t, fake.Config{NoTokens: noTokens})
		p := b.launchPlan("p1", b.offers(fleet.Spot, fleet.OnDemand)...)
		d := b.delivery(p, 1)
		const n = 8
		gate, whole := &together{Bucket: b.claims}, b.claims
		gate.left.Store(n)
		gate.reads.Add(n)
		gate.claims.Add(n)
		b.claims = gate
		done := make(chan error)
		for range n {
			go func() { _, err := b.handle(d); done <- err }()
		}
		for range n {
			if err := <-done; err != nil && !errors.Is(err, store.ErrConflict) {
				t.Error(err)
			}
		}
		b.claims = whole
		got := as[events.InstanceLaunched](t, b.carry(p)["p1"])
		if bill := b.cloud.Bill(); len(bill) != 1 || bill[0].ID != got.ID {
			t.Errorf("no tokens %v: bought %d, want one, %s", noTokens, len(bill), got.ID)
		}
	}
}

func TestACallInFlightIsNotTakenForLost(t *testing.T) {
	b := newBench(t, fake.Config{NoTokens: true})
	p := b.launchPlan("p1", b.offers(fleet.Spot, fleet.OnDemand)...)
	asking := &strict{Provider: b.cloud}
	asking.before = func() { // the host takes the first invocation for dead, and starts others beside it
		b.via = b.cloud
		for range 5 {
			b.now = b.now.Add(10 * time.Second)
			if said, err := b.handle(b.delivery(p, 2)); err != nil || len(said) != 0 {
				t.Errorf("beside a call in flight: said %v and %v, want nothing", said, err)
			}
		}
	}
	b.via = asking
	_, _ = b.handle(b.delivery(p, 1))
	got := as[events.InstanceLaunched](t, b.carry(p)["p1"])
	if bill := b.cloud.Bill(); len(bill) != 1 || bill[0].ID != got.ID {
		t.Errorf("bought %d, want one, %s", len(bill), got.ID)
	}
}

func TestAnAccountWithoutSpotGoesOnOnDemand(t *testing.T) {
	b := newBench(t, fake.Config{})
	b.cloud.Script("launch", fake.Denied)
	got := as[events.InstanceLaunched](t, b.carry(b.launchPlan("p1", b.offers(fleet.Spot, fleet.OnDemand)...))["p1"])
	if got.Offer.Market != fleet.OnDemand || len(got.Refused) != 1 || got.Refused[0].Why != "denied" {
		t.Errorf("launched %s after %+v, want on demand after one denial", got.Offer, got.Refused)
	}
}

func TestClaimsThatAreOverAreNotKeptForEverAndOthersAre(t *testing.T) {
	_, js := natstest.Connect(t, natstest.Start(t, embedded.Options{}))
	claims, err := store.Open(t.Context(), js, "claims", 1)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, fake.Config{})
	b.claims = claims
	plan := func(id string) events.InstanceLaunched {
		return as[events.InstanceLaunched](t, b.carry(b.launchPlan(id, b.offers(fleet.OnDemand)...))[id])
	}
	plan("runs")
	ended, taken := plan("ended"), plan("taken")
	b.carry(b.endPlan("end", ended.Machine, ended.ID))
	b.cloud.Interrupt(taken.ID, 0)
	late := b.launchPlan("failed", b.offers(fleet.OnDemand)...)
	late.Expires = b.now.Add(-time.Minute)
	b.carry(late)
	e := events.New("f1", "census", b.now, events.InstanceEnded{Cloud: "fake", Account: "main", Machine: taken.Machine, ID: taken.ID, Plan: "taken"})
	if _, err := provision.Twins("provision", b.via, b.claims, b.opts).Handle(t.Context(), []fn.Delivery{{Event: e, At: b.now}}); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "KV_claims")
	if err != nil {
		t.Fatal(err)
	}
	for key, dies := range map[string]bool{
		claim.Key(install, "f1", "runs"): false, claim.Key(install, "f1", "ended"): true, claim.Key(install, "f1", "taken"): true,
		claim.Key(install, "f1", "failed"): true, "end." + claim.Key(install, "f1", "end"): true,
	} {
		m, err := stream.GetLastMsgForSubject(t.Context(), "$KV.claims."+key)
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		// How the server keeps this is tested with store.Expiring. The facts live for 30 days, and plans with them.
		life, _ := time.ParseDuration(cmp.Or(m.Header.Get("Nats-TTL"), "0s"))
		if dies != (life > 0) || dies && life <= 30*24*time.Hour {
			t.Errorf("%s is kept for %s (0: for ever), want it to be forgotten: %v, and not within 30 days", key, life, dies)
		}
	}
}
