package clock_test

import (
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/clock"
)

func TestATickThatComesTwiceIsOneFactForEachFleet(t *testing.T) {
	due := time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC)
	first, again, next := clock.Tick([]string{"a", "b"}, due), clock.Tick([]string{"a", "b"}, due), clock.Tick([]string{"a", "b"}, due.Add(time.Minute))
	if len(first) != 2 || first[0].Fleet != "a" || first[1].Fleet != "b" {
		t.Fatalf("said %v, want one for a and one for b", first)
	}
	if first[0].ID != again[0].ID || first[0].ID == next[0].ID || first[0].ID == first[1].ID {
		t.Errorf("ids %s, again %s, next %s, other fleet %s", first[0].ID, again[0].ID, next[0].ID, first[1].ID)
	}
	if got := first[0].Data.(events.ClockTicked); got.What != "tick" || !got.Due.Equal(due) {
		t.Errorf("said %+v", got)
	}
}
