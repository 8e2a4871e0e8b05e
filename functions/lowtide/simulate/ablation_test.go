package simulate_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"lowtide/functions/lowtide/simulate"
)

func TestAnAblationThatIsStoppedEndsAtOnce(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	time.AfterFunc(300*time.Millisecond, stop) // it takes far longer than that
	began := time.Now()
	_, err := simulate.Ablation{Seeds: 1000, Work: 8 * time.Hour}.Play(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it to be cancelled", err)
	}
	if took := time.Since(began); took > 3*time.Second { // a second, and room for a busy machine
		t.Errorf("it took %s to stop", took)
	}
}

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
