// Command lambda is census on AWS: the relay hands it each tick, one at a time.
package main

import (
	"context"

	"lowtide/functions/census"
	"lowtide/shared/fn/lambda"
	"lowtide/shared/provider/fake"
)

func main() {
	lambda.Main("census", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		cloud, err := fake.Dial(ctx, h.Cloud)
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
		f := census.New("census", h.Install, cloud, claims, state, census.Options{Now: h.Clock.Now, Fleet: h.Fleet})
		return lambda.Handlers{Function: f}, nil
	})
}
