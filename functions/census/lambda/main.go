// Command lambda is census on AWS: the relay hands it each tick, one at a time.
package main

import (
	"context"
	"errors"
	"log/slog"

	"lowtide/events"
	"lowtide/functions/census"
	"lowtide/shared/fn"
	"lowtide/shared/fn/lambda"
	"lowtide/shared/provider/all"
)

func main() {
	lambda.Main("census", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		getenv, err := h.Env(ctx)
		if err != nil {
			return lambda.Handlers{}, err
		}
		accounts, err := all.Accounts(ctx, all.Options{Getenv: getenv, Now: h.Clock.Now})
		if err != nil {
			return lambda.Handlers{}, err
		}
		claims, err := h.Bucket(ctx, "claims")
		if err != nil {
			return lambda.Handlers{}, err
		}
		state, err := h.Bucket(ctx, "census")
		if err != nil {
			return lambda.Handlers{}, err
		}
		var each []fn.Function
		for _, a := range accounts {
			each = append(each, census.New("census", h.Install, a, claims, state, census.Options{Now: h.Clock.Now, Fleet: h.Fleet}))
		}
		f := each[0]
		f.Handle = inTurn(each)
		return lambda.Handlers{Function: f}, nil
	})
}

// inTurn asks every account. One that does not answer keeps none of the others from being heard: the next tick asks again.
func inTurn(each []fn.Function) fn.Handler {
	return func(ctx context.Context, batch []fn.Delivery) (said []events.Event, err error) {
		var errs []error
		for _, f := range each {
			facts, err := f.Handle(ctx, batch)
			said, errs = append(said, facts...), append(errs, err)
		}
		if err = errors.Join(errs...); err != nil && len(each) > 1 {
			slog.Warn("census", "err", err)
			return said, nil
		}
		return said, err
	}
}
