// Command lambda is ledger on AWS: the relay hands it the facts of one fleet, in order.
package main

import (
	"context"

	"lowtide/functions/ledger"
	"lowtide/shared/fn/lambda"
)

func main() {
	lambda.Main("ledger", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		books, err := h.Bucket(ctx, "ledger")
		if err != nil {
			return lambda.Handlers{}, err
		}
		return lambda.Handlers{Function: ledger.New(h.Fleet, books)}, nil
	})
}
