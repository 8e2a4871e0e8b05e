//go:build unix

package fake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lowtide/shared/market"
)

// Clock reads the clock that a command line gives: lowtide's time, and how long a part of it takes on the wall.
type Clock func(string) (now func() time.Time, real func(time.Duration) time.Duration, err error)

// Command is "fakecloud": the cloud in a process of its own. It prints its URL on the first line of standard output
// and serves until its context ends; machines outlive it, and find it again: in --dir it keeps its address, too. One
// process at a time has a directory. agent is what a machine runs; empty: machines only bill.
func Command(clock Clock, agent []string) *cobra.Command {
	var (
		cfg                    Config
		dir, data, time0, addr string
		zones                  int
		hours                  time.Duration
		machines               string
	)
	cmd := &cobra.Command{
		Use:   "fakecloud",
		Short: "Sell machines at a simulated market, with a bill that survives a crash",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.Now, cfg.Real, err = clock(time0); err != nil {
				return fmt.Errorf("--clock: %w", err)
			}
			switch {
			case data == "" && (zones < 1 || zones > 26):
				return fmt.Errorf("--zones %d: want 1 to 26", zones)
			case data == "" && hours < time.Hour:
				return fmt.Errorf("--length %s: want an hour at least", hours)
			case cfg.Foreign < 0:
				return fmt.Errorf("--foreign %d: want 0 or more", cfg.Foreign)
			}
			if cfg.Traces, err = traces(data, cfg.Seed, zones, hours); err != nil {
				return err
			}
			cfg.Dir, cfg.Clock = dir, time0
			if len(agent) > 0 {
				if machines == "" {
					machines = filepath.Join(dir, "machines")
				}
				cfg.Launcher = &Processes{Dir: machines, Command: agent}
			}
			return host(cmd, cfg, addr)
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "directory of the journal and the machines; empty: the bill lives in memory")
	f.StringVar(&machines, "machines", "", "directory of the machines; empty: machines/ in --dir")
	f.StringVar(&data, "data", "", "directory of recorded traces (<zone>_*.json); empty: the seeded model")
	f.IntVar(&zones, "zones", 6, "zones of the model")
	f.DurationVar(&hours, "length", 14*24*time.Hour, "length of the model's traces")
	f.Uint64Var(&cfg.Seed, "seed", 1, "seed of the model and of the faults")
	f.StringVar(&time0, "clock", "", "origin,start,speed: lowtide's time; empty: wall time")
	f.DurationVar(&cfg.Notice, "notice", 120*time.Second, "promised before an interruption; below 0: none")
	f.DurationVar(&cfg.Boot, "boot", 0, "from a launch to its boot; 0: 20 s")
	f.DurationVar(&cfg.Ending, "ending", 0, "from an order to end a machine until it is gone; 0: 5 s")
	f.IntVar(&cfg.Foreign, "foreign", 0, "others' machines in the account")
	f.StringVar(&addr, "listen", "", "address to serve at; empty: the one of last time, at first a free port on 127.0.0.1")
	return cmd
}

// traces loads recorded traces, or draws the model's with ticks of 195 s, as the recorded ones have.
func traces(data string, seed uint64, zones int, length time.Duration) ([]market.Trace, error) {
	if data != "" {
		return market.Load(data)
	}
	const gap = 195 * time.Second
	return market.Model(seed, zones, gap, int(length/gap)), nil
}

// host opens the cloud and serves it.
func host(cmd *cobra.Command, cfg Config, addr string) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	free, err := alone(cfg.Dir)
	if err != nil {
		return err
	}
	defer free()
	l, err := listen(cfg.Dir, addr)
	if err != nil {
		return err
	}
	cfg.Metadata = "http://" + l.Addr().String()
	c, err := Open(cfg)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	srv := &http.Server{Handler: Serve(c), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l); cancel() }()
	ran := make(chan error, 1)
	go func() { ran <- c.Run(ctx) }()
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), cfg.Metadata); err != nil {
		cancel()
	}
	<-ctx.Done()
	stop, done := context.WithTimeout(context.Background(), 5*time.Second)
	defer done()
	err = srv.Shutdown(stop)
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, <-ran, c.Close())
}

// alone makes sure that no other process has the directory, until free is called or this process ends, however.
func alone(dir string) (free func(), err error) {
	if dir == "" {
		return func() {}, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("--dir %s: another fakecloud runs on it: %w", dir, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// listen opens the address asked for, or the one of last time: machines that live on know no other.
func listen(dir, addr string) (net.Listener, error) {
	kept := filepath.Join(dir, "listen")
	if addr == "" && dir != "" {
		b, err := os.ReadFile(kept)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		addr = strings.TrimSpace(string(b))
	}
	l, err := net.Listen("tcp", cmp.Or(addr, "127.0.0.1:0"))
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", addr, err)
	}
	if dir == "" {
		return l, nil
	}
	if err := os.WriteFile(kept, []byte(l.Addr().String()), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
