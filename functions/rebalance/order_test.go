package rebalance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"lowtide/shared/fleet"
)

func TestARememberedOrderIsTheSortedOneWhateverCameAndWent(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m, o := map[string]int{}, order[int]{}
	for step := range 2000 {
		for range rng.IntN(3) { // none, one, or one that comes as another goes
			key := fmt.Sprint(rng.IntN(40))
			if _, there := m[key]; there && rng.IntN(3) > 0 {
				delete(m, key)
			} else {
				m[key] = step // new, or another in its place
			}
		}
		var want []int
		for _, key := range fleet.Sorted(m) {
			want = append(want, m[key])
		}
		if got := o.of(m); !slices.Equal(got, want) {
			t.Fatalf("step %d: %v, want %v", step, got, want)
		}
	}
}
