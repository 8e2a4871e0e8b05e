package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// secret is a value in the user-data that no error and no log may hold.
const secret = "s3cret-nats-token"

// faults is the fault round: the right error of the closed list, nothing bought twice, nothing of others touched, no
// secret in errors or logs.
func (v Vendor) faults(t *testing.T) {
	var logs bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.SetOutput(&logs)
	t.Cleanup(func() {
		slog.SetDefault(was)
		log.SetOutput(nil)
		v.clean(t, logs.String())
	})
	for name, check := range map[string]func(*testing.T, Vendor){
		"Throttled":                       throttled,
		"ServerErrors":                    serverErrors,
		"AnAnswerLostAfterSuccess":        func(t *testing.T, v Vendor) { lostAfter(t, v, lost) },
		"ATimeoutAfterSuccess":            func(t *testing.T, v Vendor) { lostAfter(t, v, hung) },
		"MalformedAfterSuccess":           func(t *testing.T, v Vendor) { lostAfter(t, v, garbled) },
		"MalformedReads":                  malformed,
		"ExpiredCredentials":              expired,
		"PagesThatGoInACircle":            circle,
		"AClockThatIsOff":                 skew,
		"AListThatLags":                   lag,
		"FiftyForeignMachines":            fifty,
		"TheAccountsLimit":                quota,
		"AMarketThatWasNotAskedForIsSaid": swapped,
		"AHostToAvoidIsNotBoughtFrom":     avoided,
		"NothingIsLeftAfterAnEnd":         leftovers,
		"ADryRunReadsAndNeverWrites":      dry,
		"ACancelledCallIsOfTheClosedList": cancelled,
	} {
		t.Run(name, func(t *testing.T) { check(t, v) })
	}
}

// clean says that a text holds no secret.
func (v Vendor) clean(t *testing.T, text string) {
	t.Helper()
	for _, s := range append(slices.Clone(v.Secret), secret) {
		if s != "" && strings.Contains(text, s) {
			t.Errorf("a secret is printed: %s", strings.ReplaceAll(text, s, "***"))
		}
	}
}

// wants checks an error: one of the closed list that may be, with the cloud's name and without secrets.
func (b *bench) wants(t *testing.T, what string, err error, may ...error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want %v", what, may)
		return
	}
	b.v.clean(t, err.Error())
	if len(err.Error()) > 600 {
		t.Errorf("%s: an error of %d bytes is no line: %.200s…", what, len(err.Error()), err)
	}
	if !slices.ContainsFunc(may, func(e error) bool { return errors.Is(err, e) }) {
		t.Errorf("%s: got %q (%s), want one of %v", what, err, provider.Word(err), may)
	}
	if !strings.Contains(err.Error(), b.Traits().Cloud) {
		t.Errorf("%s: %q does not name its cloud", what, err)
	}
}

func (b *bench) order(t *testing.T, plan string, markets ...fleet.Market) provider.Request {
	t.Helper()
	all, err := b.Offers(t.Context())
	if err != nil {
		t.Fatalf("offers: %v", err)
	}
	i := slices.IndexFunc(all, func(o fleet.Offer) bool {
		return o.Stock.Or(1) > 0 && o.Term == 0 && (len(markets) == 0 || slices.Contains(markets, o.Market))
	})
	if i < 0 {
		t.Skipf("nothing is sold on %v", markets)
	}
	return provider.Request{
		Token: "lt-" + plan, Name: "f1-m-" + plan, Offer: all[i], Labels: Labels(plan),
		UserData: "LOWTIDE_MACHINE=f1-m-" + plan + "\nLOWTIDE_NATS_TOKEN=" + secret + "\n",
	}
}

// reads calls all that reads.
func (b *bench) reads(t *testing.T, may ...error) {
	t.Helper()
	offers, err := b.Offers(t.Context())
	b.wants(t, "offers", err, may...)
	list, lerr := b.List(t.Context())
	b.wants(t, "list", lerr, may...)
	if len(offers) > 0 || len(list) > 0 {
		t.Errorf("a failed call returned %d offers and %d machines", len(offers), len(list))
	}
}

func (b *bench) count(t *testing.T, want int) {
	t.Helper()
	if got := b.bought(); len(got) != want {
		t.Errorf("bought %v, want %d", got, want)
	}
}

func throttled(t *testing.T, v Vendor) {
	b := v.open(t, nil)
	m, err := b.Launch(t.Context(), b.order(t, "p0"))
	if err != nil {
		t.Fatal(err)
	}
	b.pass(b.Traits().ListingDelay)
	want := b.order(t, "p1")
	for _, call := range []string{"offers", "list", "end", "launch"} {
		b.cloud.Script(call, fake.Throttled)
	}
	b.reads(t, provider.ErrThrottled)
	b.wants(t, "end", b.End(t.Context(), m.ID), provider.ErrThrottled)
	_, err = b.Launch(t.Context(), want)
	b.wants(t, "launch", err, provider.ErrThrottled)
	b.count(t, 1)
	if _, err := b.Launch(t.Context(), want); err != nil {
		t.Errorf("the next try: %v", err)
	}
	if err := b.End(t.Context(), m.ID); err != nil {
		t.Errorf("the next try to end: %v", err)
	}
	b.count(t, 2)
}

func serverErrors(t *testing.T, v Vendor) {
	b := v.open(t, nil)
	want := b.order(t, "p1")
	b.front.set(broken)
	b.reads(t, provider.ErrUnavailable)
	b.wants(t, "end", b.End(t.Context(), v.Nobody), provider.ErrUnavailable, provider.ErrUnknown)
	_, err := b.Launch(t.Context(), want)
	b.wants(t, "launch", err, provider.ErrUnavailable, provider.ErrUnknown)
	b.front.set(noBuy)
	_, err = b.Launch(t.Context(), want)
	b.wants(t, "launch, its last request", err, provider.ErrUnknown)
	b.count(t, 0)
}

// lostAfter is a purchase whose answer does not come: it is not known, and asking again after the listing delay finds it.
func lostAfter(t *testing.T, v Vendor, m mode) {
	b := v.open(t, nil)
	want := b.order(t, "p1")
	b.front.set(m)
	ctx, cancel := t.Context(), context.CancelFunc(func() {})
	if m == hung {
		ctx, cancel = context.WithTimeout(ctx, 1500*time.Millisecond)
	}
	defer cancel()
	_, err := b.Launch(ctx, want)
	b.wants(t, "launch", err, provider.ErrUnknown)
	b.front.set(whole)
	b.count(t, 1)
	b.pass(b.Traits().ListingDelay)
	again, err := b.Launch(t.Context(), want)
	if err != nil {
		t.Fatalf("asked again: %v", err)
	}
	b.count(t, 1)
	if got := b.bought(); again.ID != got[0] || again.Labels != want.Labels {
		t.Errorf("asked again: got %s with %+v, want the machine that was bought, %v", again.ID, again.Labels, got)
	}
}

func malformed(t *testing.T, v Vendor) {
	b := v.open(t, nil)
	b.front.set(cut)
	b.reads(t, provider.ErrUnavailable)
	b.count(t, 0)
}

func expired(t *testing.T, v Vendor) {
	b := v.open(t, nil)
	want := b.order(t, "p1")
	b.knobs.Expired = true
	b.reads(t, provider.ErrDenied)
	b.wants(t, "end", b.End(t.Context(), v.Nobody), provider.ErrDenied)
	_, err := b.Launch(t.Context(), want)
	b.wants(t, "launch", err, provider.ErrDenied)
	b.count(t, 0)
}

func circle(t *testing.T, v Vendor) {
	b := v.open(t, nil)
	b.knobs.Loop = true
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	all, err := b.List(ctx)
	b.wants(t, "list", err, provider.ErrUnavailable)
	if ctx.Err() != nil || len(all) > 0 {
		t.Errorf("the circle was walked until the context ended, with %d machines", len(all))
	}
}

func skew(t *testing.T, v Vendor) {
	for _, off := range []time.Duration{3 * time.Hour, -3 * time.Hour} {
		b := v.open(t, nil)
		b.knobs.Skew = off
		if _, err := b.Offers(t.Context()); err != nil {
			b.wants(t, fmt.Sprintf("offers, %s off", off), err, provider.ErrDenied)
			continue
		}
		m, err := b.Launch(t.Context(), b.order(t, "p1"))
		if err != nil {
			t.Errorf("launch, %s off: %v", off, err)
		}
		b.pass(b.Traits().ListingDelay)
		if got := list(t, b)[m.ID]; got.ID == "" {
			t.Errorf("%s off: %s is not listed", off, m.ID)
		}
		b.count(t, 1)
	}
}

func lag(t *testing.T, v Vendor) {
	b := v.open(t, func(c *fake.Config) { c.Faults.ListingLag = v.delay(t) })
	want := b.order(t, "p1")
	b.cloud.Script("launch", fake.LostAnswer)
	_, err := b.Launch(t.Context(), want)
	b.wants(t, "launch", err, provider.ErrUnknown)
	b.pass(b.Traits().ListingDelay)
	if m := list(t, b)[b.bought()[0]]; m.Labels != want.Labels {
		t.Errorf("after the listing delay: got %+v, want it listed with our labels", m)
	}
	if _, err := b.Launch(t.Context(), want); err != nil {
		t.Errorf("asked again: %v", err)
	}
	b.count(t, 1)
}

// delay is what the adapter promises of its list.
func (v Vendor) delay(t *testing.T) time.Duration { return v.open(t, nil).Traits().ListingDelay }

func fifty(t *testing.T, v Vendor) {
	b := v.open(t, func(c *fake.Config) { c.Foreign = 50 })
	m, err := b.Launch(t.Context(), b.order(t, "p1"))
	if err != nil {
		t.Fatal(err)
	}
	b.pass(b.Traits().ListingDelay)
	all := list(t, b)
	if len(all) != 51 {
		t.Errorf("listed %d machines, want 50 of others and ours", len(all))
	}
	for _, id := range b.foreign() {
		if f, ok := all[id]; !ok || f.Labels.Install == m.Labels.Install {
			t.Errorf("%s: got %+v, want it listed as somebody else's", id, f)
		}
	}
	if err := b.End(t.Context(), m.ID); err != nil {
		t.Error(err)
	}
	for _, id := range b.written() {
		if id != m.ID {
			t.Errorf("%s was written to", id)
		}
	}
}

func quota(t *testing.T, v Vendor) {
	b := v.open(t, func(c *fake.Config) { c.Foreign, c.Quota = 1, 1 })
	_, err := b.Launch(t.Context(), b.order(t, "p1"))
	b.wants(t, "launch", err, provider.ErrQuota)
	b.count(t, 0)
}

func swapped(t *testing.T, v Vendor) {
	b := v.open(t, nil)
	want := b.order(t, "p1", fleet.Spot)
	b.knobs.Swap = true
	m, err := b.Launch(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if m.Offer.Market != fleet.OnDemand {
		t.Errorf("an on-demand machine was sold for spot, and is told as %s", m.Offer.Market)
	}
}

func avoided(t *testing.T, v Vendor) {
	b := v.open(t, nil)
	if !b.Traits().Marketplace {
		t.Log("its machines are the cloud's own")
		return
	}
	m, err := b.Launch(t.Context(), b.order(t, "p1"))
	if err != nil {
		t.Fatal(err)
	}
	if m.Offer.Host == "" {
		t.Fatalf("a marketplace's machine without its host: %+v", m.Offer)
	}
	b.pass(b.Traits().ListingDelay)
	if got := list(t, b)[m.ID].Offer.Host; got != m.Offer.Host {
		t.Errorf("listed at host %q, bought from %q", got, m.Offer.Host)
	}
	want := b.order(t, "p2")
	want.Offer, want.Avoid = m.Offer, []string{m.Offer.Host, "nobody"}
	again, err := b.Launch(t.Context(), want)
	if err == nil && again.Offer.Host == m.Offer.Host {
		t.Errorf("bought from %s again", m.Offer.Host)
	}
	if err != nil {
		b.wants(t, "launch", err, provider.ErrNoCapacity)
	}
}

func leftovers(t *testing.T, v Vendor) {
	b := v.open(t, nil)
	m, err := b.Launch(t.Context(), b.order(t, "p1"))
	if err != nil {
		t.Fatal(err)
	}
	b.pass(b.Traits().ListingDelay)
	if err := b.End(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	b.pass(time.Minute)
	if got := list(t, b)[m.ID]; got.ID != "" && got.State != provider.Gone {
		t.Errorf("after its end: %+v", got)
	}
	if b.knobs.Left == nil {
		t.Log("nothing comes along with a machine of this cloud")
		return
	}
	if left := b.knobs.Left(); len(left) > 0 {
		t.Errorf("still bills after the end: %v", left)
	}
}

func dry(t *testing.T, v Vendor) {
	b := v.open(t, nil)
	m, err := b.Launch(t.Context(), b.order(t, "p1"))
	if err != nil {
		t.Fatal(err)
	}
	before := len(b.cloud.Writes())
	p := v.Open(b.url, &http.Client{Transport: provider.ReadOnly(http.DefaultTransport, v.Reads)}, b.clock)
	if _, err := p.Offers(t.Context()); err != nil {
		t.Errorf("offers: %v", err)
	}
	b.pass(p.Traits().ListingDelay)
	if _, err := p.List(t.Context()); err != nil {
		t.Errorf("list: %v", err)
	}
	_, err = p.Launch(t.Context(), b.order(t, "p2"))
	b.wants(t, "launch", err, provider.ErrRefusedHere)
	b.wants(t, "end", p.End(t.Context(), m.ID), provider.ErrRefusedHere)
	if got := len(b.cloud.Writes()); got != before {
		t.Errorf("%d writing calls in a dry run", got-before)
	}
}

func cancelled(t *testing.T, v Vendor) {
	b := v.open(t, nil)
	want := b.order(t, "p1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Offers(ctx)
	b.wants(t, "offers", err, provider.ErrUnavailable, provider.ErrThrottled)
	_, err = b.Launch(ctx, want)
	b.wants(t, "launch", err, provider.ErrUnavailable, provider.ErrThrottled, provider.ErrUnknown)
	b.count(t, 0)
}
