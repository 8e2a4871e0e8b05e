package rebalance_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/plan"
	"lowtide/shared/store"
)

// While a new version is brought out, batches go to environments of the old and of the new, in any order, and each believes
// that the state in its memory is the last.
func TestTwoEnvironmentsThatTakeTurnsDecideAsOneDoes(t *testing.T) {
	states := map[int]string{}
	for _, environments := range []int{1, 2} {
		saved, market := store.Memory(), store.Memory()
		var deciders []*rebalance.Decider
		for range environments {
			deciders = append(deciders, rebalance.New(rebalance.Config{Fleet: "f", Install: "i", States: saved, Market: market, Policy: plan.Default, Batch: 8}))
		}
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		conflicts := 0
		for n := range 40 {
			at = at.Add(time.Second)
			batch := []fn.Delivery{{
				Event:  events.New("f", "test", at, events.WorkloadSubmitted{Spec: fleet.Spec{Name: fmt.Sprint("w", n), Run: []string{"x"}, Work: time.Hour}}),
				Stream: "LOWTIDE", Seq: uint64(n + 1), At: at, Attempt: 1,
			}}
			d := deciders[n*7%environments]
			if n%3 == 0 {
				d = deciders[0]
			}
			_, err := d.Handle(t.Context(), batch)
			if errors.Is(err, store.ErrConflict) { // as the host does
				conflicts++
				_, err = d.Handle(t.Context(), batch)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if environments > 1 && conflicts == 0 {
			t.Error("no environment met the other's write: the test shows nothing")
		}
		f, _, err := rebalance.Fleet(t.Context(), saved, "f")
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(f.Workloads)
		if err != nil {
			t.Fatal(err)
		}
		states[environments] = fmt.Sprintf("%d %s", f.Applied.Seq, b)
	}
	if states[1] != states[2] {
		t.Errorf("two environments left %s\none left %s", states[2], states[1])
	}
}
