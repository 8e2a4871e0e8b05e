// Command lambda is prices on AWS: the relay hands it ticks and facts, in order.
package main

import (
	"context"

	"lowtide/functions/prices"
	"lowtide/shared/fn/lambda"
	"lowtide/shared/provider/all"
)

func main() {
	lambda.Main("prices", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		getenv, err := h.Env(ctx)
		if err != nil {
			return lambda.Handlers{}, err
		}
		accounts, err := all.Accounts(ctx, all.Options{Getenv: getenv, Now: h.Clock.Now, Dry: true}) // it only reads
		if err != nil {
			return lambda.Handlers{}, err
		}
		market, err := h.Bucket(ctx, "market")
		if err != nil {
			return lambda.Handlers{}, err
		}
		offers, err := h.Objects(ctx, "offers")
		if err != nil {
			return lambda.Handlers{}, err
		}
		f := prices.New("prices", []string{h.Fleet}, accounts, market, offers, prices.Options{Now: h.Clock.Now})
		return lambda.Handlers{Function: f}, nil
	})
}
