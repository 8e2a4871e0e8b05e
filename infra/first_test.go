package infra_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/functions/rebalance"
	"lowtide/shared/bus"
	"lowtide/shared/store"
)

// sample reads a cloud's own document in place.
func sample(t testing.TB, name string) []byte {
	t.Helper()
	dir := os.Getenv("LOWTIDE_SHARED")
	if dir == "" {
		dir = filepath.Join(root, "..", "shared")
	}
	b, err := os.ReadFile(filepath.Join(dir, "samples", name))
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("no samples of the clouds' events (set LOWTIDE_SHARED): %v", err)
	}
	return b
}

// buckets makes what a deployment makes.
func buckets(t testing.TB, js jetstream.JetStream, replicas int) map[string]store.Bucket {
	t.Helper()
	out := map[string]store.Bucket{}
	for _, name := range []string{"fleets", "market", "claims", "census", "benchmarks", "ledger"} {
		b, err := store.Open(t.Context(), js, name, replicas)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = b
	}
	if _, err := store.OpenObjects(t.Context(), js, "offers", replicas); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestASpotWarningGoesThroughWhatSamBuiltAndTheRelayToTheDecider(t *testing.T) {
	build := samBuild(t, host(t))
	s := natstest.Start(t, embedded.Options{Listen: true, SyncAlways: true})
	_, js := natstest.Connect(t, s)
	states := buckets(t, js, 1)["fleets"]
	addr := fmt.Sprintf("nats://%s@%s", s.Token(), s.URL()[len("nats://"):])
	env := []string{"LOWTIDE_NATS_URL=" + addr, "LOWTIDE_FLEET=main", "LOWTIDE_INSTALL=0123456789ab"}
	notices := emulate(t, build, "Notices", env...)
	decider := emulate(t, build, "Rebalance", env...)
	start(t, env, lowtide(t), "relay", "--metrics", "", "--target", "rebalance="+decider.url)

	answer := notices.invoke(t, sample(t, "aws-event-spot-interruption-warning.json"))
	if said, ok := answer["said"].(float64); !ok || said != 1 {
		t.Fatalf("notices answered %v, want one fact said", answer)
	}
	m, err := bus.Last(t.Context(), js, bus.Facts, "lowtide.main.instance.interrupted.>")
	if err != nil {
		t.Fatal(err)
	}
	f := m.Event.Data.(events.InstanceInterrupted)
	if f.ID != "i-0b662ef9931388ba0" || f.Action != "terminate" || !f.EndsBy.Equal(time.Date(2026, 1, 1, 0, 2, 0, 0, time.UTC)) {
		t.Errorf("the stream holds %+v", f)
	}
	until(t, 30*time.Second, "the decider has saved that it heard of it", func() bool {
		fleet, _, err := rebalance.Fleet(t.Context(), states, "main")
		return err == nil && fleet != nil && fleet.Applied.Seq >= m.Seq
	})
	var who struct{ Function, Binary string }
	b, _ := json.Marshal(decider.invoke(t, []byte(`{"probe":"whoami"}`)))
	if err := json.Unmarshal(b, &who); err != nil || who.Function != "rebalance" || len(who.Binary) != 64 {
		t.Errorf("the decider says it is %+v", who)
	}
}
