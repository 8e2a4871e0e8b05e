package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"lowtide/functions/chatops"
	"lowtide/functions/notify/settings"
	"lowtide/shared/store"
)

// fileOr is a settings file that a flag names, or one of this name in the state directory if it is there; else "".
func (f runFlags) fileOr(named, name string) string {
	if named != "" || f.state == "" {
		return named
	}
	file := filepath.Join(f.state, name)
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return file
}

// told reads whom to tell what. Without a file nobody is told.
func (f runFlags) told() (settings.Settings, error) {
	file := f.fileOr(f.notify, "notify.yaml")
	if file == "" {
		return settings.Settings{}, nil
	}
	s, err := settings.Read(file, settings.Options{Env: os.LookupEnv})
	if err != nil {
		return s, usage(err)
	}
	return s, nil
}

// hearPeople opens the doors for commands and approvals. Without a file there are none.
func (d *deck) hearPeople(ctx context.Context, f runFlags) error {
	file := f.fileOr(f.chatops, "chatops.yaml")
	if file == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return usage(err)
	}
	s, err := chatops.Parse(b, os.LookupEnv)
	if err != nil {
		return usage(fmt.Errorf("%s: %w", file, err))
	}
	if s.Listen == "" {
		return usage(fmt.Errorf("%s: listen: missing; give host:port", file))
	}
	h, err := d.people(ctx, s)
	if err != nil {
		return usage(fmt.Errorf("%s: %w", file, err))
	}
	ln, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return usage(fmt.Errorf("%s: listen: %w", file, err))
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	d.all.Go(func() { _ = srv.Serve(ln) })
	d.all.Go(func() { <-ctx.Done(); _ = srv.Close() })
	return nil
}

// people is chatops on this ring.
func (r *ring) people(ctx context.Context, s chatops.Settings) (http.Handler, error) {
	cfg := chatops.Config{Fleet: r.fleet, Say: r.host.Say, Now: r.clock.Now, Policy: r.policy, By: r.plans(), Settings: s}
	for name, to := range map[string]*store.Bucket{fleetsBucket: &cfg.States, marketBucket: &cfg.Market, "chatops": &cfg.Seen} {
		b, err := store.Open(ctx, r.js, name, 1)
		if err != nil {
			return nil, fmt.Errorf("bucket %s: %w", name, err)
		}
		*to = b
	}
	return chatops.New(cfg)
}
