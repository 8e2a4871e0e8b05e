package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/shared/fn"
	clouds "lowtide/shared/provider/all"
)

// real says what cannot be asked for at real clouds.
func (f *runFlags) real(cmd *cobra.Command) error {
	if f.state == "" {
		return usage(errors.New("--clouds needs --state DIR: machines that cost money outlive this process, and somebody must remember them"))
	}
	for _, name := range []string{"speed", "data", "seed", "cloud"} {
		if cmd.Flags().Changed(name) {
			return usage(fmt.Errorf("--%s: a real cloud has its own market and the wall's clock", name))
		}
	}
	return nil
}

// realClouds says whether this state buys at real clouds. Which ones is kept beside it: a start that forgets one, or
// takes a fake cloud instead, would forget machines that cost money.
func (f runFlags) realClouds() (bool, error) {
	file := filepath.Join(f.state, "clouds")
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	kept := strings.Fields(string(b))
	for _, name := range kept {
		if !slices.Contains(f.clouds, name) {
			return false, usage(fmt.Errorf("%s has bought at %s: give --clouds %s, and what else it shall buy at", f.state, name, strings.Join(kept, ",")))
		}
	}
	if len(f.clouds) == 0 {
		return false, nil
	}
	if _, err := os.Stat(filepath.Join(f.state, "cloud")); err == nil && len(kept) == 0 {
		return false, usage(fmt.Errorf("--clouds: %s has a fake cloud; take another --state", f.state))
	}
	return true, nil
}

// The variables that say how a machine on the internet reaches this lowtide.
const (
	agentNATS   = "LOWTIDE_AGENT_NATS"   // tls:// or wss:// address of NATS, as machines reach it
	agentToken  = "LOWTIDE_AGENT_TOKEN"  // credential that they are given
	agentBucket = "LOWTIDE_AGENT_BUCKET" // s3://bucket of the checkpoints
)

// realMarket opens the clouds. Where machines could not reach this lowtide, or a person asks so, all is dry: prices are
// real, plans are made, and nothing is bought.
func (f runFlags) realMarket(ctx context.Context) (p place, err error) {
	if p.clock, err = keptClock(f.state, 1); err != nil {
		return p, err
	}
	if p.clock != (fn.Clock{}) {
		return p, usage(fmt.Errorf("--clouds: the clock of %s is not the wall's, but of a fake market; take another --state", f.state))
	}
	if p.book, err = clouds.Book(os.Getenv); err != nil {
		return p, usage(err)
	}
	dry := f.dry
	if dry {
		p.notes = append(p.notes, "dry run: nothing is bought")
	}
	for _, name := range []string{agentNATS, agentToken, agentBucket} {
		if os.Getenv(name) == "" {
			dry = true
			p.notes = append(p.notes, "dry run: "+name+" is not set, so that no machine could reach this lowtide; nothing is bought")
		}
	}
	list, err := clouds.Open(ctx, clouds.Options{Getenv: os.Getenv, Now: p.clock.Now, Dry: dry, Only: f.clouds})
	if err != nil {
		return p, usage(err)
	}
	var names []string
	for _, c := range list {
		if c.Provider == nil {
			return p, usage(fmt.Errorf("--clouds %s: %s", c.Name, c.Skipped))
		}
		if c.Lacks != "" && !dry {
			return p, usage(fmt.Errorf("--clouds %s: to launch there, set %s; or give --dry-run", c.Name, c.Lacks))
		}
		p.accounts = append(p.accounts, account{Provider: c.Provider})
		names = append(names, c.Name)
		if c.Provider.Traits().Marketplace && !dry {
			p.notes = append(p.notes, c.Name+" rents strangers' machines: whoever owns one can read "+agentToken+" and what the job reads")
		}
	}
	p.name, p.told = strings.Join(names, ", "), rentedData
	if dry {
		return p, nil
	}
	return p, keep(filepath.Join(f.state, "clouds"), []byte(strings.Join(names, "\n")+"\n"))
}

// rentedData is what a machine on the internet is told.
func rentedData(r *ring) map[string]string {
	bench, err := json.Marshal([]string{"/var/lib/lowtide/lowtide", "benchrunner", "run"})
	if err != nil {
		panic(err) // plain text
	}
	return map[string]string{
		"LOWTIDE_NATS": os.Getenv(agentNATS), "LOWTIDE_NATS_TOKEN": os.Getenv(agentToken), "LOWTIDE_BUCKET": os.Getenv(agentBucket),
		"LOWTIDE_CKPT_KEY": hex.EncodeToString([]byte(r.install + "-checkpoint-names")), "LOWTIDE_LEASE": r.policy.Lease.String(),
		"LOWTIDE_BENCH": string(bench),
	}
}

// endAtClouds ends every machine of an installation at real clouds, without any lowtide.
func endAtClouds(ctx context.Context, out io.Writer, names []string, install string, wait time.Duration) error {
	if install == "" {
		return usage(errors.New("--clouds needs --installation (the file of that name in the state directory): only machines that carry it are ours"))
	}
	list, err := clouds.Open(ctx, clouds.Options{Getenv: os.Getenv, Only: names})
	if err != nil {
		return usage(err)
	}
	var errs error
	for _, c := range list {
		if c.Provider == nil {
			errs = cmp.Or(errs, usage(fmt.Errorf("--clouds %s: %s", c.Name, c.Skipped)))
			continue
		}
		fmt.Fprintf(out, "%s:\n", c.Name)
		errs = cmp.Or(errs, endAll(ctx, out, c.Provider, install, wait)) // the others are ended all the same
	}
	return errs
}
