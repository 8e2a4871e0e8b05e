package assign_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lowtide/shared/plan/assign"
)

// sum is what an answer gains; it fails where the answer may not be.
func sum(t *testing.T, gain [][]float64, room, at []int) float64 {
	t.Helper()
	total, used := 0.0, make([]int, len(room))
	for i, j := range at {
		if j < 0 {
			continue
		}
		if gain[i][j] <= 0 {
			t.Errorf("row %d is in column %d, where it gains %g", i, j, gain[i][j])
		}
		used[j]++
		total += gain[i][j]
	}
	for j := range room {
		if used[j] > room[j] {
			t.Errorf("column %d holds %d, it has room for %d", j, used[j], room[j])
		}
	}
	return total
}

// most tries every way.
func most(gain [][]float64, room []int, i int) float64 {
	if i == len(gain) {
		return 0
	}
	best := most(gain, room, i+1)
	for j := range room {
		if room[j] > 0 && gain[i][j] > 0 {
			room[j]--
			best = max(best, gain[i][j]+most(gain, room, i+1))
			room[j]++
		}
	}
	return best
}

func drawn(r *rand.Rand, rows, columns, most int, whole bool) (gain [][]float64, room []int) {
	for range columns {
		room = append(room, r.IntN(most+1))
	}
	for range rows {
		row := make([]float64, columns)
		for j := range row {
			switch x := r.Float64()*12 - 3; {
			case whole:
				row[j] = math.Round(x / 2) // many are equal
			default:
				row[j] = x
			}
		}
		gain = append(gain, row)
	}
	return gain, room
}

func TestNoOtherWayGainsMore(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 4000 {
		gain, room := drawn(r, 1+r.IntN(7), 1+r.IntN(4), 3, n%2 == 0)
		at := assign.Best(gain, room)
		got, want := sum(t, gain, room, at), most(gain, slices.Clone(room), 0)
		if math.Abs(got-want) > 1e-9 {
			t.Fatalf("gains %g, %g is possible: rows %v, room %v, answer %v", got, want, gain, room, at)
		}
		if again := assign.Best(gain, room); !slices.Equal(at, again) {
			t.Fatalf("another answer for the same numbers: %v, %v", at, again)
		}
	}
}

func TestTheOrderOfTheRowsDoesNotChangeWhatIsGained(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		gain, room := drawn(r, 60, 12, 4, false)
		want := sum(t, gain, room, assign.Best(gain, room))
		r.Shuffle(len(gain), func(i, j int) { gain[i], gain[j] = gain[j], gain[i] })
		if got := sum(t, gain, room, assign.Best(gain, room)); math.Abs(got-want) > 1e-9 {
			t.Fatalf("gains %g in another order, %g before", got, want)
		}
	}
}

func TestNothingToDealIsNoTrouble(t *testing.T) {
	if at := assign.Best(nil, nil); len(at) != 0 {
		t.Errorf("got %v", at)
	}
	if at := assign.Best([][]float64{{}, {}}, nil); !slices.Equal(at, []int{-1, -1}) {
		t.Errorf("got %v, want none for both", at)
	}
	if at := assign.Best([][]float64{{5}}, []int{0}); !slices.Equal(at, []int{-1}) {
		t.Errorf("got %v of a column without room", at)
	}
}

func BenchmarkBest(b *testing.B) {
	for _, rooms := range []int{2, 5, 20} {
		gain, room := drawn(rand.New(rand.NewPCG(5, 6)), 2000, 200, rooms, false)
		b.Run(fmt.Sprintf("rows=2000/columns=200/room=0-%d", rooms), func(b *testing.B) {
			for b.Loop() {
				assign.Best(gain, room)
			}
		})
	}
}
