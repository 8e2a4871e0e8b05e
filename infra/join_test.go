package infra_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"lowtide/functions/lowtide/admission"
	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/functions/provision"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/store"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// A machine whose door opens late connects to NATS when it does, without another start.
func TestAMachineConnectsOnceItIsAdmitted(t *testing.T) {
	s := newSite(t, "one.conf")
	s.setup(1)
	door, err := s.keys.Door()
	if err != nil {
		t.Fatal(err)
	}
	relay := s.as("relay", bus.Options("relay", nil)...)
	js, err := bus.JetStream(relay)
	if err != nil {
		t.Fatal(err)
	}
	states, err := store.Bind(t.Context(), js, "fleets")
	if err != nil {
		t.Fatal(err)
	}
	joins, err := store.Bind(t.Context(), js, admission.Bucket)
	if err != nil {
		t.Fatal(err)
	}
	desk := admission.New(fleetName, install, door, states, joins, time.Now, time.Now, quiet)
	web := httptest.NewServer(http.HandlerFunc(desk.ServeHTTP))
	defer web.Close()
	labels := provider.Labels{Fleet: fleetName, Install: install, Plan: "p1", Machine: "main-m2", Workload: "train-7"}
	good := time.Now().Add(10 * time.Minute).UTC().Truncate(time.Second)
	m, err := admission.Open(web.URL, web.Client(), filepath.Join(t.TempDir(), "seed"), admission.Ask{
		Fleet: fleetName, Plan: "p1", Machine: "main-m2", Workload: "train-7", Until: good, Token: provision.Token(door.Join, labels, good),
	})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.url(), append(bus.Options("agent", nil), m.User(), nats.RootCAs(s.ca()), nats.CustomInboxPrefix(accounts.Inbox("main-m2")))...)
	if err != nil {
		t.Fatalf("an agent must start though nobody has admitted it: %v", err)
	}
	defer nc.Close()
	go m.Run(t.Context(), func(error) {})
	time.Sleep(300 * time.Millisecond) // the fleet does not list it yet: it is refused, and asks again
	if nc.IsConnected() {
		t.Error("connected before it was admitted")
	}
	f := fleet.New(fleetName, install)
	f.Machines["main-m2"] = &fleet.Instance{Name: "main-m2", Plan: "p1", Workload: "train-7", Phase: fleet.Launched}
	val, err := new(fleet.Encoder).Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := bus.JetStream(s.as("admin", bus.Options("admin", nil)...))
	if err != nil {
		t.Fatal(err)
	}
	b, err := store.Bind(t.Context(), admin, "fleets")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(t.Context(), fleetName, val); err != nil {
		t.Fatal(err)
	}
	until(t, 20*time.Second, "the machine is connected", nc.IsConnected)
}
