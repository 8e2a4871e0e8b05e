package provider_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// cloud is a fake and a way to buy from it.
func cloud(t *testing.T, cfg fake.Config) *fake.Cloud {
	t.Helper()
	c, err := fake.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func request(t *testing.T, p provider.Provider, plan string) provider.Request {
	t.Helper()
	all, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(o fleet.Offer) bool { return o.Market == fleet.OnDemand })
	return provider.Request{Token: "t-" + plan, Name: "m-" + plan, Offer: all[i], Labels: providertest.Labels(plan)}
}

func TestThrottlesAreRetriedAndCapacityIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cloud(t, fake.Config{})
		p := provider.Retry(c, provider.Patience{})
		want := request(t, p, "p1")
		c.Script("launch", fake.Throttled, fake.Unavailable, fake.Throttled)
		began := time.Now()
		if _, err := p.Launch(t.Context(), want); err != nil {
			t.Errorf("after three throttles: %v", err)
		}
		if took := time.Since(began); took < 500*time.Millisecond || took > 10*time.Second {
			t.Errorf("three waits took %v, want between 0.5 s and 10 s", took)
		}
		for _, f := range []struct {
			fault fake.Fault
			want  error
			calls int
		}{
			{fake.NoCapacity, provider.ErrNoCapacity, 1},
			{fake.LostBefore, provider.ErrUnknown, 1},
			{fake.Denied, provider.ErrDenied, 1},
			{fake.Throttled, provider.ErrThrottled, 5},
		} {
			before := len(c.Writes())
			want.Token = "t-" + string(f.fault)
			for range f.calls {
				c.Script("launch", f.fault)
			}
			_, err := p.Launch(t.Context(), want)
			if got := len(c.Writes()) - before; !errors.Is(err, f.want) || got != f.calls {
				t.Errorf("%s: got %v after %d calls, want %v after %d", f.fault, err, got, f.want, f.calls)
			}
		}
	})
}

func TestARetryEndsWithItsContextAndKeepsTheCloudsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cloud(t, fake.Config{})
		p := provider.Retry(c, provider.Patience{First: time.Minute, Most: time.Minute})
		c.Script("list", fake.Throttled, fake.Throttled)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.List(ctx); !errors.Is(err, provider.ErrThrottled) {
			t.Errorf("got %v, want %v", err, provider.ErrThrottled)
		}
	})
}

func TestLaunchesOfOneAccountKeepTheirGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cloud(t, fake.Config{})
		p := provider.Limit(c, provider.Pace{PerSecond: 1, LaunchGap: 12 * time.Second})
		want := request(t, c, "p1")
		began := time.Now()
		done := make(chan error)
		for i := range 4 {
			want := want
			want.Token = string(rune('a' + i))
			go func() { _, err := p.Launch(context.Background(), want); done <- err }()
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := time.Since(began); got != 36*time.Second {
			t.Errorf("four launches took %v, want 36 s", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Launch(ctx, want); !errors.Is(err, provider.ErrThrottled) {
			t.Errorf("a launch whose turn does not come: got %v, want %v", err, provider.ErrThrottled)
		}
		if got := len(c.Writes()); got != 4 {
			t.Errorf("%d launches reached the cloud, want 4", got)
		}
	})
}

func TestADryRunWritesNothingAndGoesOn(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	c := cloud(t, fake.Config{Now: func() time.Time { return now }, Foreign: 3})
	d := provider.Dry(c, func() time.Time { return now })
	p := provider.Limit(provider.Retry(d, provider.Patience{}), provider.Pace{})
	if !p.Traits().Dry {
		t.Error("the traits do not say dry through the other wrappers")
	}
	want := request(t, p, "p1")
	want.Offer.Hourly = fleet.Known(fleet.Dollars(1)) // what the planner believed
	m, err := p.Launch(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.Offer.Hourly.Or(fleet.Money{}), fleet.Dollars(3.06); got.String() != want.String() {
		t.Errorf("price %s, want the live %s", got, want)
	}
	if again, err := p.Launch(t.Context(), want); err != nil || again.ID != m.ID {
		t.Errorf("the token again: got %s and %v, want %s", again.ID, err, m.ID)
	}
	if all, err := p.List(t.Context()); err != nil || len(all) != 4 || all[3].Labels != want.Labels {
		t.Errorf("listed %d (%v), want the 3 real ones and ours", len(all), err)
	}
	if err := p.End(t.Context(), "x-000001"); !errors.Is(err, provider.ErrRefusedHere) {
		t.Errorf("the end of a real machine: got %v, want %v", err, provider.ErrRefusedHere)
	}
	if err := p.End(t.Context(), m.ID); err != nil {
		t.Error(err)
	}
	if all, _ := p.List(t.Context()); all[3].State != provider.Gone || all[3].Until.IsZero() {
		t.Errorf("after its end: %+v, want it gone", all[3])
	}
	if len(c.Writes()) != 0 || d.Refused() != 3 {
		t.Errorf("%d writes reached the cloud, %d refused; want 0 and 3", len(c.Writes()), d.Refused())
	}
}

func TestCapsHoldAcrossARestartAndBeforeTheListing(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	for name, c := range map[string]struct {
		caps provider.Caps
		fits int
	}{
		"machines": {provider.Caps{Machines: 2}, 2},
		"launches": {provider.Caps{Launches: 3}, 3},
		"dollars":  {provider.Caps{Hourly: fleet.Dollars(6.5)}, 2},
	} {
		for restart := range 2 {
			cl := cloud(t, fake.Config{Now: clock, Foreign: 5, Faults: fake.Faults{ListingLag: time.Minute * time.Duration(1-restart)}})
			p := provider.Cap(cl, c.caps, clock)
			bought := 0
			for i := range 5 {
				want := request(t, cl, string(rune('a'+i)))
				_, err := p.Launch(t.Context(), want)
				if err == nil {
					bought++
				} else if !errors.Is(err, provider.ErrRefusedHere) {
					t.Fatal(err)
				}
				if restart == 1 {
					p = provider.Cap(cl, c.caps, clock)
				}
			}
			if bought != c.fits || len(cl.Bill().Ours()) != c.fits {
				t.Errorf("%s, restart %d: bought %d, want %d", name, restart, bought, c.fits)
			}
			if restart == 1 {
				if _, err := p.Launch(t.Context(), request(t, cl, "a")); err != nil {
					t.Errorf("%s: a plan that has its machine already: %v", name, err)
				}
			}
		}
	}
}
