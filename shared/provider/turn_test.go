package provider_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"lowtide/shared/provider"
)

func TestATurnIsOneCallersAndWaitingForItEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := provider.NewTurn()
		done, err := turn.Take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turn.Take(ctx); !errors.Is(err, provider.ErrThrottled) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while another has it: %v", err)
		}
		done()
		if _, err := turn.Take(ctx); !errors.Is(err, provider.ErrThrottled) {
			t.Errorf("free, but the context has ended: %v", err)
		}
		if _, err := turn.Take(t.Context()); err != nil {
			t.Errorf("given back: %v", err)
		}
	})
}
