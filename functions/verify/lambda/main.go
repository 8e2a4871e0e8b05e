// Command lambda is verify on AWS: the relay hands it orders and answers to them.
package main

import (
	"context"

	"lowtide/functions/verify"
	"lowtide/shared/fn/lambda"
)

func main() {
	lambda.Main("verify", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		orders, err := h.Bucket(ctx, "benchmarks")
		if err != nil {
			return lambda.Handlers{}, err
		}
		return lambda.Handlers{Function: verify.New(orders, verify.Options{Real: h.Clock.Real})}, nil
	})
}
