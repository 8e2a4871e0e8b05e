package world_test

import (
	"testing"
	"time"

	"lowtide/functions/lowtide/world"
	"lowtide/shared/market"
	"lowtide/shared/provider/fake"
)

// The cloud warns half a minute ahead and sells on meanwhile: each machine bought there would be warned at once.
func TestAZoneThatJustWarnedIsNotBoughtAgainAndAgain(t *testing.T) {
	w, err := world.New(world.Options{
		Seed: 2, Start: start, Traces: market.Model(2, 3, 195*time.Second, 1000), Rate: rate, Lease: 6 * time.Hour,
		Cloud: fake.Config{Notice: 30 * time.Second, Ahead: true}, Less: world.Less{Stock: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	long := jobs()[1]
	long.Steps, long.Work, long.Deadline = 2880, 8*time.Hour, start.Add(12*time.Hour)
	long.Env["STEPS"] = "2880"
	w.Submit(long)
	for w.Host.Now().Before(start.Add(150*time.Minute)) && w.Host.Step() {
		if n := len(w.Cloud.Writes()); n > 20 {
			t.Fatalf("%d calls that buy or end in %s", n, w.Host.Now().Sub(start))
		}
	}
}
