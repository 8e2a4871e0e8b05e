package infra_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/functions/lowtide/secrets"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
)

// A test that holds a machine's credentials is what is left of it once it was taken over.
func TestACompromisedAgentGetsNoSecretsButItsOwn(t *testing.T) {
	s := newSite(t, "one.conf")
	s.setup(1)
	f := fleet.New(fleetName, install)
	for machine, workload := range map[string]string{"main-m7": "train-7", "main-m8": "train-8"} {
		f.Machines[machine] = &fleet.Instance{Name: machine, Workload: workload, Phase: fleet.Verified, Order: fleet.Order{Epoch: 1, Start: &fleet.Start{Workload: workload}}}
		f.Workloads[workload] = &fleet.Workload{On: machine, Spec: &fleet.Spec{Name: workload, Kit: fleet.Kit{Secrets: map[string]fleet.Secret{"TOKEN": "env:TOKEN"}}}}
	}
	desk := secrets.Desk{
		Fleet: fleetName, Log: quiet, State: func(context.Context) (*fleet.Fleet, error) { return f, nil },
		Read: secrets.Reader{Getenv: func(string) string { return "correct-horse" }},
	}
	stop, err := desk.Serve(t.Context(), s.as("relay", bus.Options("relay", nil)...)) // with the relay's own rights
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	creds, err := s.keys.Machine("main-m7", "train-7", time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "agent.creds")
	if err := os.WriteFile(file, creds, 0o600); err != nil {
		t.Fatal(err)
	}
	nc := s.with(file, "main-m7")
	if got, err := secrets.Ask(t.Context(), nc, fleetName, "main-m7", "train-7"); err != nil || got["TOKEN"] != "correct-horse" {
		t.Errorf("its own: %v, %v", got, err)
	}
	if got, err := secrets.Ask(t.Context(), nc, fleetName, "main-m7", "train-8"); !errors.Is(err, secrets.ErrRefused) {
		t.Errorf("another workload's, in its own name: %v, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // NATS answers nothing to what it forbids
	defer cancel()
	if got, err := secrets.Ask(ctx, nc, fleetName, "main-m8", "train-8"); err == nil || got != nil {
		t.Errorf("in another's name: %v, %v", got, err)
	}
	no := refused(t, func(o ...nats.Option) *nats.Conn { return s.with(file, "main-m7", o...) }, []string{accounts.Secrets(fleetName, "main-m7"), accounts.Secrets(fleetName, "main-m8"), accounts.Secrets("another", "main-m7")})
	if no[accounts.Secrets(fleetName, "main-m7")] || !no[accounts.Secrets(fleetName, "main-m8")] || !no[accounts.Secrets("another", "main-m7")] {
		t.Errorf("refused: %v", no)
	}
}
