package provider

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"

	"lowtide/shared/fleet"
)

// Patience is how a retry waits, on the wall.
type Patience struct {
	First time.Duration // before the second try, about; 500 ms if 0. Each further wait is up to twice as long, with jitter.
	Most  time.Duration // of one wait; 10 s if 0
	Tries int           // in all; 5 if 0
}

// Retry repeats a call that the cloud throttled or was not well for. A lack of capacity is an answer, and an unknown
// outcome is the caller's to resolve: neither is repeated. Adapters switch their SDK's own retries off.
func Retry(p Provider, how Patience) Provider {
	if how.First <= 0 {
		how.First = 500 * time.Millisecond
	}
	if how.Most <= 0 {
		how.Most = 10 * time.Second
	}
	if how.Tries <= 0 {
		how.Tries = 5
	}
	return retry{p, how}
}

type retry struct {
	Provider
	how Patience
}

func (r retry) Offers(ctx context.Context) (out []fleet.Offer, err error) {
	err = r.do(ctx, func() (err error) { out, err = r.Provider.Offers(ctx); return err })
	return out, err
}

func (r retry) Launch(ctx context.Context, want Request) (out Machine, err error) {
	err = r.do(ctx, func() (err error) { out, err = r.Provider.Launch(ctx, want); return err })
	return out, err
}

func (r retry) List(ctx context.Context) (out []Machine, err error) {
	err = r.do(ctx, func() (err error) { out, err = r.Provider.List(ctx); return err })
	return out, err
}

func (r retry) End(ctx context.Context, id string) error {
	return r.do(ctx, func() error { return r.Provider.End(ctx, id) })
}

// do returns the last error of the cloud itself, also when ctx ends the wait: a throttled call changed nothing.
func (r retry) do(ctx context.Context, call func() error) error {
	var last error
	wait := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(r.how.First), backoff.WithMaxInterval(r.how.Most), backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0),
	)
	_ = backoff.Retry(func() error {
		last = call()
		if last == nil || errors.Is(last, ErrThrottled) || errors.Is(last, ErrUnavailable) {
			return last
		}
		return backoff.Permanent(last)
	}, backoff.WithContext(backoff.WithMaxRetries(wait, uint64(r.how.Tries-1)), ctx))
	return last
}
