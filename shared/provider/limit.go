package provider

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"lowtide/shared/fleet"
)

// Pace is how fast an account may be asked, on the wall.
type Pace struct {
	PerSecond float64       // calls of any kind; 0: any number
	Burst     int           // calls at once; 1 if 0
	LaunchGap time.Duration // between two launches
}

// Limit holds all callers of one account together to its pace; make it once an account. A call whose turn does not
// come before its context ends is ErrThrottled: nothing was asked.
func Limit(p Provider, pace Pace) Provider {
	l := &limit{Provider: p, calls: rate.NewLimiter(rate.Inf, 1), launches: rate.NewLimiter(rate.Inf, 1)}
	if pace.PerSecond > 0 {
		l.calls = rate.NewLimiter(rate.Limit(pace.PerSecond), max(pace.Burst, 1))
	}
	if pace.LaunchGap > 0 {
		l.launches = rate.NewLimiter(rate.Every(pace.LaunchGap), 1)
	}
	return l
}

type limit struct {
	Provider
	calls, launches *rate.Limiter
}

func (l *limit) wait(ctx context.Context, what string, limiters ...*rate.Limiter) error {
	for _, r := range limiters {
		if err := r.Wait(ctx); err != nil {
			return fmt.Errorf("%s at %s: %w by lowtide's own pace: %w", what, l.Traits().Cloud, ErrThrottled, err)
		}
	}
	return nil
}

func (l *limit) Offers(ctx context.Context) ([]fleet.Offer, error) {
	if err := l.wait(ctx, "offers", l.calls); err != nil {
		return nil, err
	}
	return l.Provider.Offers(ctx)
}

func (l *limit) Launch(ctx context.Context, want Request) (Machine, error) {
	if err := l.wait(ctx, "launch", l.launches, l.calls); err != nil {
		return Machine{}, err
	}
	return l.Provider.Launch(ctx, want)
}

func (l *limit) List(ctx context.Context) ([]Machine, error) {
	if err := l.wait(ctx, "list", l.calls); err != nil {
		return nil, err
	}
	return l.Provider.List(ctx)
}

func (l *limit) End(ctx context.Context, id string) error {
	if err := l.wait(ctx, "end", l.calls); err != nil {
		return err
	}
	return l.Provider.End(ctx, id)
}
