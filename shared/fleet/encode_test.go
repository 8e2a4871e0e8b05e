package fleet_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lowtide/shared/fleet"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// crowd is a fleet of n running workloads.
func crowd(n int) *fleet.Fleet {
	f := fleet.New("f", "install")
	f.Now, f.Applied = t0, fleet.Position{Stream: "S", Seq: 7}
	for range n {
		join(f)
	}
	return f
}

func join(f *fleet.Fleet) {
	f.Next++
	w, m := fmt.Sprintf("train-%d", f.Next), fmt.Sprintf("f-m%d", f.Next)
	f.Workloads[w] = &fleet.Workload{
		Spec: &fleet.Spec{
			Name: w, Run: []string{"train", "--seed", w}, Env: map[string]string{"SEED": w}, Work: time.Hour, Steps: 1000, Autonomy: fleet.Act,
			Budget: fleet.Known(fleet.Dollars(12.5)),
		},
		Phase: fleet.Accepted, Since: t0, Epoch: 1, On: m, Saved: fleet.Manifest{ID: "1-100", Epoch: 1, Step: 100, At: t0},
	}
	f.Machines[m] = &fleet.Instance{
		Name: m, ID: "i-" + m, Workload: w, Phase: fleet.Verified, Bought: t0, Heard: t0, Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: 110},
		Offer: fleet.Offer{Cloud: "fake", Zone: "z1", Type: "p3.2xlarge", Market: fleet.Spot, Hourly: fleet.Known(fleet.Dollars(0.97))},
		Order: fleet.Order{Number: 2, Epoch: 1, Start: &fleet.Start{Workload: w, Run: []string{"train"}}},
	}
}

// An Encoder that has written a fleet through any history writes what a fresh one would, and all of it.
func TestEncoderWritesWhatIsThereWhateverWasBefore(t *testing.T) {
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 1))
		enc, f := new(fleet.Encoder), crowd(200)
		for step := range 30 {
			for range rng.IntN(5) {
				change(rng, f)
			}
			if step == 20 { // nearly all leave
				for name := range f.Workloads {
					if rng.IntN(20) > 0 {
						delete(f.Workloads, name)
					}
				}
			}
			same(t, enc, f)
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
	}
}

// change does one thing that folding and settling do.
func change(rng *rand.Rand, f *fleet.Fleet) {
	f.Applied.Seq++
	if len(f.Workloads) == 0 || len(f.Machines) == 0 || rng.IntN(4) == 0 {
		join(f)
		return
	}
	names, machines := fleet.Sorted(f.Workloads), fleet.Sorted(f.Machines)
	w, m := f.Workloads[names[rng.IntN(len(names))]], f.Machines[machines[rng.IntN(len(machines))]]
	switch rng.IntN(6) {
	case 0:
		delete(f.Machines, m.Name)
	case 1:
		delete(f.Workloads, w.Spec.Name)
	case 2:
		m.Run.Step++
		w.Step = m.Run.Step
	case 3:
		s := *w.Spec
		s.Deadline = t0.Add(time.Duration(f.Applied.Seq) * time.Hour)
		w.Spec = &s
	case 4:
		m.Order.Save = &fleet.Save{ID: fmt.Sprint("s", f.Applied.Seq), By: t0}
	case 5: // another under the same name
		delete(f.Machines, m.Name)
		f.Machines[m.Name] = &fleet.Instance{Name: m.Name, Phase: fleet.Ordered}
	}
}

// same compares f with what is read back, as JSON: to CBOR and back a time loses its monotonic part and its place.
func same(t *testing.T, enc *fleet.Encoder, f *fleet.Fleet) {
	t.Helper()
	b, err := enc.Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	read, err := fleet.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	got, err1 := json.Marshal(read)
	want, err2 := json.Marshal(f)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("read back otherwise (-want +got):\n%.2000s", diff)
	}
}

// BenchmarkEncode is a save after one machine and its workload have changed.
func BenchmarkEncode(b *testing.B) {
	for _, n := range []int{10, 1000, 5000} {
		b.Run(fmt.Sprintf("workloads=%d", n), func(b *testing.B) {
			f, enc, size := crowd(n), new(fleet.Encoder), 0
			for i := 0; b.Loop(); i++ {
				f.Machines["f-m7"].Run.Step++
				f.Workloads["train-7"].Step++
				got, err := enc.Encode(f)
				if err != nil {
					b.Fatal(err)
				}
				size = len(got)
			}
			b.ReportMetric(float64(size), "bytes")
		})
	}
}
