package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/agent/meter"
	"lowtide/shared/bus"
	"lowtide/shared/checkpoint"
	host "lowtide/shared/fn/jetstream"
)

// userData is what every machine of this ring is told. bucket is the URL of the store of checkpoints, a directory in dir
// if empty; key is in hex.
func userData(r *ring, dir, bucket, key string) (map[string]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	bench, err := json.Marshal([]string{self, "benchrunner", "run", "--backend", "cpu"})
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if bucket == "" {
		bucket = "file://" + filepath.ToSlash(filepath.Join(dir, "bucket"))
	}
	return map[string]string{
		"LOWTIDE_NATS": r.server.URL(), "LOWTIDE_NATS_TOKEN": r.server.Token(), "LOWTIDE_CLOCK": r.clock.String(),
		"LOWTIDE_BUCKET": bucket, "LOWTIDE_CKPT_KEY": key,
		"LOWTIDE_LEASE": r.policy.Lease.String(),
		"LOWTIDE_BENCH": string(bench), "LOWTIDE_CPU_CALIBRATION": filepath.Join(dir, "cpu-rating.json"),
	}, nil
}

// machineEnv is the environment of a machine, in the agent's names; the fake cloud has some of its own.
func machineEnv(name string) string {
	fakes := ""
	switch name {
	case "LOWTIDE_ID":
		fakes = os.Getenv("LOWTIDE_INSTANCE_ID")
	case "LOWTIDE_METADATA":
		if u := os.Getenv("LOWTIDE_METADATA_URL"); u != "" {
			fakes = u + "/interruption"
		}
	case "LOWTIDE_DIR":
		fakes = os.Getenv("LOWTIDE_MACHINE_DIR")
	}
	return cmp.Or(fakes, os.Getenv(name))
}

// agentCommand is lowtide on a rented machine.
func agentCommand() *cobra.Command {
	return &cobra.Command{
		Use: "agent", Short: "lowtide on a rented machine; its settings are in the environment", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := agent.FromEnv(machineEnv)
			if err != nil {
				return usage(fmt.Errorf("agent: %w", err))
			}
			if speed, err := strconv.ParseFloat(os.Getenv("LOWTIDE_GPU_THROTTLE"), 64); err == nil {
				os.Setenv("LOWTIDE_CPU_THROTTLE", strconv.FormatFloat(1-speed, 'g', -1, 64)) //nolint:errcheck // names and values are valid
			}
			return serveAgent(cmd.Context(), s)
		},
	}
}

// serveAgent wires one agent and runs it until ctx ends.
func serveAgent(ctx context.Context, s agent.Settings) error {
	user, own, err := machineUser(ctx, s, os.Getenv)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	nc, err := nats.Connect(s.NATS, append(bus.Options("agent "+s.Machine, nil), user...)...)
	if err != nil {
		return fmt.Errorf("agent: connect to NATS: %w", err)
	}
	defer nc.Close()
	h, err := host.New(nc, host.Options{Clock: s.Clock, Fleet: s.Fleet, Log: slog.Default()})
	if err != nil {
		return err
	}
	store, err := checkpoint.Open(ctx, s.Bucket, s.Key, checkpoint.Options{})
	if err != nil {
		return fmt.Errorf("agent: open checkpoints: %w", err)
	}
	deps := agent.Deps{
		Runner: agent.NewProcesses(filepath.Join(s.Dir, "work"), s.Clock, os.Environ()),
		Saver:  agent.Checkpoints{Store: store},
		Bench:  s.Bench,
		Power:  agent.Shutdown(s.PowerOff),
		Disk:   agent.Dir(s.Dir),
		Newest: newest(h, nc, s, own),
	}
	if s.Clock.Speed == 0 || s.Clock.Speed == 1 { // in compressed time a rate means nothing
		use := meter.New(meter.Options{Scrape: s.Scrape})
		defer use.Close()
		deps.Meter = use
	}
	if s.Metadata != "" {
		deps.Watch = agent.Endpoint{URL: s.Metadata, Token: s.MetadataToken, Self: s.ID}
	}
	if u := os.Getenv("LOWTIDE_METADATA_URL"); u != "" { // of the fake cloud
		deps.Power = &powerOff{url: u + "/poweroff"}
	}
	sh := &shipper{dir: filepath.Join(s.Dir, "work"), machine: s.Machine, store: store}
	deps.Log, deps.Code, deps.Secrets = sh.ship, agent.Checkpoints{Store: store}.Code, askSecrets(nc, s)
	a, err := agent.New(s.Config, deps)
	if err != nil {
		return err
	}
	sh.hide = a.Hide
	defer a.Close()
	return alive(ctx, h, a, s)
}

// alive runs the agent. NATS may be away, from the start or for ever: the agent ticks all the same, since it alone can
// save and end this machine then. What it says meanwhile is dropped, and its next machine.heard holds it.
func alive(ctx context.Context, h *host.Host, a *agent.Agent, s agent.Settings) error {
	orders := a.Function()
	orders.Tick = nil
	said := make(chan []events.Event, 64)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		for ctx.Err() == nil {
			if err := h.Serve(ctx, orders); err != nil {
				slog.Warn("orders cannot be heard", "err", err)
				wait(ctx, time.Second)
			}
		}
	})
	all.Go(func() {
		for ctx.Err() == nil {
			if err := a.Guard(ctx, s.Clock.Now()); err != nil {
				slog.Warn("guard", "err", err)
			}
			wait(ctx, max(s.Clock.Real(time.Second), 5*time.Millisecond))
		}
	})
	all.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case batch := <-said:
				try, cancel := context.WithTimeout(ctx, 10*time.Second)
				if err := h.Say(try, batch...); err != nil {
					slog.Warn("not said", "events", len(batch), "err", err)
				}
				cancel()
			}
		}
	})
	tick := time.NewTicker(max(s.Clock.Real(time.Second), 5*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		batch, err := a.Tick(ctx, s.Clock.Now())
		if err != nil {
			slog.Warn("tick", "err", err)
		}
		if len(batch) == 0 {
			continue
		}
		select {
		case said <- batch:
		default:
		}
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// powerOff asks the fake cloud to switch this machine off.
type powerOff struct {
	url     string
	refused atomic.Int64 // wall time since when nobody listens there; 0: somebody does
}

// goneAfter is how long nobody may listen before the cloud counts as gone.
const goneAfter = 20 * time.Second

// Off implements agent.Power. A machine whose cloud is gone ends its own process: there is nobody left to switch it off, and
// on somebody's laptop it would run for ever.
func (p *powerOff) Off(ctx context.Context, _ string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	switch {
	case !errors.Is(err, syscall.ECONNREFUSED):
		p.refused.Store(0)
	case p.refused.CompareAndSwap(0, time.Now().UnixNano()):
	case time.Since(time.Unix(0, p.refused.Load())) > goneAfter:
		self, ferr := os.FindProcess(os.Getpid())
		if ferr == nil {
			ferr = self.Signal(os.Interrupt)
		}
		err = errors.Join(err, ferr)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode >= 300 {
		return fmt.Errorf("power off: %s", resp.Status)
	}
	return nil
}
