// Command lambda is usage on AWS: the relay hands it what agents measure, from the telemetry stream.
package main

import (
	"context"

	"lowtide/functions/usage"
	"lowtide/shared/fn/lambda"
)

func main() {
	lambda.Main("usage", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		machines, err := h.Bucket(ctx, "usage")
		if err != nil {
			return lambda.Handlers{}, err
		}
		return lambda.Handlers{Function: usage.New(machines, usage.Options{})}, nil
	})
}
