package simulate_test

import (
	"context"
	"os"
	"testing"
	"time"

	"lowtide/functions/lowtide/simulate"
)

func TestTheRingIsPlayedWithOneThingLessAtATime(t *testing.T) {
	if raced {
		t.Skip("one life a notice and arm is too slow under the race detector; go test without -race plays it")
	}
	b := simulate.Ablation{Seeds: 1, Work: 3 * time.Hour}
	if os.Getenv("LOWTIDE_LONG") != "" {
		b = simulate.Ablation{Seeds: 6, Work: 8 * time.Hour}
	}
	all, err := b.Play(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range all {
		t.Logf("%+v", w)
		if w.Missed > 0 || w.Cost <= 0.1 || w.Machines < 1 {
			t.Errorf("%+v", w)
		}
	}
}
