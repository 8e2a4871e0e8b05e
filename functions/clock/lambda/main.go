// Command lambda is clock on AWS: a schedule invokes it with its own time, {"due": "<aws.scheduler.scheduled-time>"}.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/functions/clock"
	"lowtide/shared/fn"
	"lowtide/shared/fn/lambda"
)

func main() {
	lambda.Main("clock", func(_ context.Context, h *lambda.Host) (lambda.Handlers, error) {
		return lambda.Handlers{Direct: func(_ context.Context, raw []byte) ([]events.Event, error) {
			var in struct {
				Due time.Time `json:"due"`
			}
			if err := json.Unmarshal(raw, &in); err != nil || in.Due.IsZero() {
				return nil, fmt.Errorf("%w: a tick without its time: %w", fn.ErrDead, err)
			}
			return clock.Tick([]string{h.Fleet}, in.Due), nil
		}}, nil
	})
}
