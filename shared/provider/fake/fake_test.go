package fake_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/market"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// clock is lowtide's time as a test moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: start} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func open(t *testing.T, cfg fake.Config) *fake.Cloud {
	t.Helper()
	c, err := fake.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func world(c *fake.Cloud, clk *clock) *providertest.World {
	faults := map[error]fake.Fault{
		provider.ErrNoCapacity: fake.NoCapacity, provider.ErrThrottled: fake.Throttled, provider.ErrUnavailable: fake.Unavailable,
		provider.ErrDenied: fake.Denied, provider.ErrUnknown: fake.LostAnswer,
	}
	w := &providertest.World{
		Fail:     func(call string, err error) bool { c.Script(call, faults[err]); return true },
		Pass:     clk.Pass,
		EndTakes: 5 * time.Second,
		Bought: func() (ids []string) {
			for _, r := range c.Bill().Ours() {
				ids = append(ids, r.ID)
			}
			return ids
		},
		Written: func() (ids []string) {
			for _, w := range c.Writes() {
				if w.Call != "launch" {
					ids = append(ids, w.ID)
				}
			}
			return ids
		},
	}
	for _, r := range c.Bill() {
		if r.Foreign {
			w.Foreign = append(w.Foreign, r.ID)
		}
	}
	return w
}

func TestTheFakeConforms(t *testing.T) {
	for name, change := range map[string]func(*fake.Config){
		"plain":       func(*fake.Config) {},
		"no tokens":   func(c *fake.Config) { c.NoTokens = true },
		"listing lag": func(c *fake.Config) { c.Faults.ListingLag = time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, func(t *testing.T) (provider.Provider, *providertest.World) {
				clk := newClock()
				cfg := fake.Config{Now: clk.Now, Foreign: 50}
				change(&cfg)
				c := open(t, cfg)
				return c, world(c, clk)
			})
		})
	}
}

func TestTheFakeConformsOverHTTPAndOnDisk(t *testing.T) {
	providertest.Run(t, func(t *testing.T) (provider.Provider, *providertest.World) {
		clk := newClock()
		c := open(t, fake.Config{Now: clk.Now, Foreign: 4, Dir: t.TempDir(), Faults: fake.Faults{ListingLag: time.Second}})
		srv := httptest.NewServer(fake.Serve(c))
		t.Cleanup(srv.Close)
		p, err := fake.Dial(t.Context(), srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		return p, world(c, clk)
	})
}

func request(t *testing.T, p provider.Provider, plan string, m fleet.Market) provider.Request {
	t.Helper()
	all, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(o fleet.Offer) bool { return o.Market == m && o.Stock.Or(1) > 0 })
	if i < 0 {
		t.Fatalf("no %s to be had", m)
	}
	return provider.Request{Token: "t-" + plan, Name: "m-" + plan, Offer: all[i], Labels: providertest.Labels(plan), UserData: "A=1\n"}
}

func launch(t *testing.T, p provider.Provider, plan string, m fleet.Market) provider.Machine {
	t.Helper()
	got, err := p.Launch(t.Context(), request(t, p, plan, m))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// outage is up for up ticks of a minute, then down.
func outage(up int) []market.Trace {
	return []market.Trace{{Zone: "us-east-1a", Gap: time.Minute, Count: append(slices.Repeat([]int{1}, up), 0, 0, 0, 1)}}
}

func TestTheMarketTakesASpotMachineBackAfterItsNotice(t *testing.T) {
	clk := newClock()
	var told []fake.Notice
	var killed []string
	c := open(t, fake.Config{
		Now: clk.Now, Traces: outage(10), OnNotice: func(n fake.Notice) { told = append(told, n) },
		Launcher: fake.Callbacks{OnKill: func(id string) { killed = append(killed, id) }},
	})
	m := launch(t, c, "p1", fleet.Spot)
	od := launch(t, c, "p2", fleet.OnDemand)
	clk.Pass(10*time.Minute - time.Second)
	if _, ok := c.Interruption(m.ID); ok {
		t.Error("a notice before the market is down")
	}
	clk.Pass(time.Second)
	endsBy, ok := c.Interruption(m.ID)
	if want := start.Add(12 * time.Minute); !ok || !endsBy.Equal(want) {
		t.Errorf("notice: got %v %v, want %v", endsBy, ok, want)
	}
	if len(told) != 1 || told[0].ID != m.ID || told[0].Machine != "m-p1" || !told[0].EndsBy.Equal(endsBy) {
		t.Errorf("told %+v, want one notice of %s", told, m.ID)
	}
	if _, err := c.Launch(t.Context(), provider.Request{Token: "t3", Offer: m.Offer}); !errors.Is(err, provider.ErrNoCapacity) {
		t.Errorf("spot while the market is down: got %v, want %v", err, provider.ErrNoCapacity)
	}
	clk.Pass(2 * time.Minute)
	bill := c.Bill()
	if r := bill[0]; r.State != provider.Gone || r.Why != "interrupted" || !r.Until.Equal(endsBy) {
		t.Errorf("after its notice: got %s %q until %v, want it gone, interrupted, at %v", r.State, r.Why, r.Until, endsBy)
	}
	if got, want := bill[0].Cost(clk.Now()), fleet.Dollars(0.9731*0.2); got.String() != want.String() {
		t.Errorf("12 minutes cost %s, want %s", got, want)
	}
	if !slices.Equal(killed, []string{m.ID}) || !bill[1].Bills() || bill[1].ID != od.ID {
		t.Errorf("killed %v; on demand bills: %v; want the spot machine alone", killed, bill[1].Bills())
	}
}

func TestNoticesMayBeShortOrMissing(t *testing.T) {
	for name, c := range map[string]struct {
		faults fake.Faults
		lead   time.Duration
		noted  bool
	}{
		"short": {fake.Faults{ShortNotice: 1}, 30 * time.Second, true},
		"none":  {fake.Faults{NoNotice: 1}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			clk := newClock()
			cloud := open(t, fake.Config{Now: clk.Now, Traces: outage(10), Faults: c.faults})
			launch(t, cloud, "p1", fleet.Spot)
			clk.Pass(15 * time.Minute)
			if got := cloud.Bill()[0].Until.Sub(start.Add(10 * time.Minute)); got != c.lead {
				t.Errorf("taken %v after the market went down, want %v", got, c.lead)
			}
			if got := len(cloud.Notices(0)) == 1; got != c.noted {
				t.Errorf("noticed: %v, want %v", got, c.noted)
			}
		})
	}
}

func TestTheBillSurvivesACrashAndACutOffLine(t *testing.T) {
	dir := t.TempDir()
	clk := newClock()
	cfg := fake.Config{Now: clk.Now, Dir: dir, Traces: outage(10), Foreign: 2}
	first, err := fake.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := request(t, first, "p1", fleet.Spot)
	first.Script("launch", fake.LostAnswer)
	if _, err := first.Launch(t.Context(), want); !errors.Is(err, provider.ErrUnknown) {
		t.Fatal(err)
	}
	clk.Pass(11 * time.Minute)
	if err := first.Close(); err != nil { // what is written is all that a crash leaves
		t.Fatal(err)
	}
	appendTo(t, filepath.Join(dir, "journal.jsonl"), `{"rental":{"id":"i-0000`)

	var killed []string
	cfg.Launcher = fake.Callbacks{OnKill: func(id string) { killed = append(killed, id) }}
	again := open(t, cfg)
	if m, err := again.Launch(t.Context(), want); err != nil || m.ID != "i-000001" {
		t.Errorf("the token after the crash: got %s and %v, want i-000001", m.ID, err)
	}
	if len(again.Bill()) != 3 || len(again.Bill().Twice()) != 0 {
		t.Errorf("bill: %d machines, twice %v; want 3, none", len(again.Bill()), again.Bill().Twice())
	}
	clk.Pass(time.Minute)
	if r := again.Bill()[2]; r.Why != "interrupted" || !r.Until.Equal(start.Add(12*time.Minute)) {
		t.Errorf("after the crash: got %q until %v, want interrupted at the time foreseen before", r.Why, r.Until)
	}
	if !slices.Equal(killed, []string{"i-000001"}) {
		t.Errorf("killed %v, want i-000001", killed)
	}
	if len(again.Writes()) != 2 {
		t.Errorf("writes: got %+v, want two launches", again.Writes())
	}
}

func TestAMachineThatEndsItselfBillsNoMore(t *testing.T) {
	clk := newClock()
	c := open(t, fake.Config{Now: clk.Now})
	want := request(t, c, "p1", fleet.OnDemand)
	want.HardEnd = start.Add(time.Hour)
	if _, err := c.Launch(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	m := launch(t, c, "p2", fleet.OnDemand)
	clk.Pass(30 * time.Minute)
	c.PowerOff(m.ID)
	clk.Pass(time.Hour)
	bill := c.Bill()
	if bill[0].Why != "hard_end" || !bill[0].Until.Equal(want.HardEnd) || bill[1].Why != "self" {
		t.Errorf("got %q at %v and %q, want hard_end at %v and self", bill[0].Why, bill[0].Until, bill[1].Why, want.HardEnd)
	}
	if got, want := bill.Total(clk.Now()).String(), fleet.Dollars(3.06*1.5).String(); got != want {
		t.Errorf("total %s, want %s", got, want)
	}
}

func TestABootNeverComesAfterItsKill(t *testing.T) {
	clk := newClock()
	var mu sync.Mutex
	up := map[string]bool{}
	c := open(t, fake.Config{Now: clk.Now, Boot: -1, Ending: -1, Launcher: fake.Callbacks{
		OnBoot: func(b fake.Boot) { mu.Lock(); up[b.Machine.ID] = true; mu.Unlock() },
		OnKill: func(id string) { mu.Lock(); delete(up, id); mu.Unlock() },
	}})
	want := request(t, c, "p", fleet.OnDemand)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			want := want
			want.Token = string(rune('a' + i))
			m, err := c.Launch(context.Background(), want)
			if err == nil {
				err = c.End(context.Background(), m.ID)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	c.Advance(clk.Now())
	if len(up) != 0 || len(c.Bill().Running()) != 0 || len(c.Bill()) != 50 {
		t.Errorf("%d run, %d bill, of %d; want none of 50", len(up), len(c.Bill().Running()), len(c.Bill()))
	}
}

func TestAnEndDuringABootKillsAfterIt(t *testing.T) {
	clk := newClock()
	var mu sync.Mutex
	up := map[string]bool{}
	var end func(id string) error
	c := open(t, fake.Config{Now: clk.Now, Boot: -1, Launcher: fake.Callbacks{
		OnBoot: func(b fake.Boot) {
			ended := make(chan error)
			go func() { ended <- end(b.Machine.ID) }() // it comes back while the machine still boots
			if err := <-ended; err != nil {
				t.Error(err)
			}
			mu.Lock()
			up[b.Machine.ID] = true
			mu.Unlock()
		},
		OnKill: func(id string) { mu.Lock(); delete(up, id); mu.Unlock() },
	}})
	end = func(id string) error { return c.End(context.Background(), id) }
	launch(t, c, "p1", fleet.OnDemand)
	c.Advance(clk.Now())
	if len(up) != 0 || c.Bill()[0].State != provider.Ending {
		t.Errorf("%d machines run, the bill says %s; want none, ending", len(up), c.Bill()[0].State)
	}
}

func TestTheSameSeedGivesTheSameCloud(t *testing.T) {
	play := func() (out []string) {
		clk := newClock()
		c := open(t, fake.Config{
			Now: clk.Now, Seed: 7, Traces: market.Model(7, 3, 195*time.Second, 500),
			Faults: fake.Faults{NoCapacity: .2, Throttled: .1, LostAnswer: .1, NeverReady: .1, BadGPU: .1, ShortNotice: .3, NoNotice: .3},
		})
		for i := range 200 {
			offers, err := c.Offers(t.Context())
			if err != nil {
				out = append(out, err.Error())
				clk.Pass(time.Minute)
				continue
			}
			_, err = c.Launch(t.Context(), provider.Request{Token: string(rune('A' + i)), Offer: offers[i%len(offers)]})
			out = append(out, provider.Word(err))
			clk.Pass(7 * time.Minute)
		}
		for _, r := range c.Bill() {
			out = append(out, r.ID+string(r.State)+r.Until.String())
		}
		return out
	}
	if a, b := play(), play(); !slices.Equal(a, b) || len(a) < 300 {
		t.Errorf("two plays of one seed differ, or are short: %d and %d entries", len(a), len(b))
	}
}
