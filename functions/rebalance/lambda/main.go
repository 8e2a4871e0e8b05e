// Command lambda is rebalance on AWS. The relay serves it the messages of one fleet in order, one batch at a time.
package main

import (
	"context"
	"encoding/json"
	"fmt"

	"lowtide/functions/rebalance"
	"lowtide/shared/fn/lambda"
	"lowtide/shared/plan"
)

func main() {
	lambda.Main("rebalance", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		policy := plan.Default
		if own := h.Getenv("LOWTIDE_POLICY"); own != "" {
			if err := json.Unmarshal([]byte(own), &policy); err != nil {
				return lambda.Handlers{}, fmt.Errorf("LOWTIDE_POLICY: %w", err)
			}
		}
		states, err := h.Bucket(ctx, "fleets")
		if err != nil {
			return lambda.Handlers{}, err
		}
		market, err := h.Bucket(ctx, "market")
		if err != nil {
			return lambda.Handlers{}, err
		}
		d := rebalance.New(rebalance.Config{Fleet: h.Fleet, Install: h.Install, Era: rebalance.NewEra(), States: states, Market: market, Policy: policy})
		return lambda.Handlers{Function: d.Function()}, nil
	})
}
