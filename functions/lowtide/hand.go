package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/functions/agent"
	"lowtide/functions/lowtide/secrets"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/store"
)

// handSecrets hands machines the secrets of what they run, from the environment, from files below dir and from AWS.
func handSecrets(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, name, dir string) (stop func(), err error) {
	states, err := store.Bind(ctx, js, fleetsBucket)
	if err != nil {
		return nil, err
	}
	return secrets.Desk{
		Fleet: name, Log: slog.Default(), Read: secrets.Reader{Getenv: os.Getenv, Dir: dir, AWS: &secrets.AWS{}},
		State: func(ctx context.Context) (*fleet.Fleet, error) {
			f, _, err := rebalance.Fleet(ctx, states, name)
			return f, err
		},
	}.Serve(ctx, nc)
}

// handSecrets does so until ctx ends. Files lie in the directory "secrets" of the state unless LOWTIDE_SECRETS names another.
func (d *deck) handSecrets(ctx context.Context, state string) error {
	stop, err := handSecrets(ctx, d.nc, d.js, d.fleet, cmp.Or(os.Getenv("LOWTIDE_SECRETS"), filepath.Join(state, "secrets")))
	if err == nil {
		context.AfterFunc(ctx, stop)
	}
	return err
}

// askSecrets is how an agent asks.
func askSecrets(nc *nats.Conn, s agent.Settings) func(context.Context, string) (map[string]string, error) {
	return func(ctx context.Context, workload string) (map[string]string, error) {
		values, err := secrets.Ask(ctx, nc, s.Fleet, s.Machine, workload)
		if errors.Is(err, secrets.ErrRefused) {
			return nil, fmt.Errorf("%w: %w", agent.ErrNoSecrets, err)
		}
		return values, err
	}
}
