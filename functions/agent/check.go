package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// checkMost is how long a workload's own check may take.
const checkMost = 15 * time.Minute

// check runs the workload's own check of a machine that has passed the benchmark, and notes how it ended. It runs beside
// the agent. What could not be run is no verdict on the machine's framework, but none that lets it pass either.
func (a *Agent) check(ctx context.Context, want *fleet.Check, got *events.BenchmarkFinished) {
	if want == nil || got.Error != "" || got.Verdict == "fail" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkMost)
	defer cancel()
	r := run{Workload: want.Workload, Start: fleet.Start{Kit: fleet.Kit{Code: want.Code}}}
	dir, err := a.code(ctx, r)
	var s Setup
	if err == nil {
		s, err = a.deps.Runner.Check(ctx, Command{Workload: want.Workload, Run: want.Command, Env: want.Env, Dir: dir, Image: want.Image})
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		s.Code, s.Tail = -1, fmt.Sprintf("it took longer than %s\n%s", checkMost, s.Tail)
	case err != nil:
		s.Code, s.Tail = -1, err.Error()
	}
	for name, value := range want.Env {
		for _, secret := range secrets(name, value) {
			s.Tail = strings.ReplaceAll(s.Tail, secret, "***")
		}
	}
	got.Framework = &events.Framework{Code: s.Code}
	if s.Code != 0 {
		got.Framework.Tail = clip(tail(s.Tail))
	}
}

// Check runs a command to its end; it dies with ctx.
func (p *Processes) Check(ctx context.Context, c Command) (Setup, error) {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return Setup{}, err
	}
	name := filepath.Join(p.dir, "check.log")
	log, err := os.Create(name)
	if err != nil {
		return Setup{}, err
	}
	defer log.Close()
	b := p.boxed(c, "check", nil, []string{"LOWTIDE_WORKLOAD"})
	argv := b.command(c.Run, "")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(p.environ(c), "LOWTIDE_WORKLOAD="+c.Workload)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = log, log, time.Second
	ownGroup(cmd)
	defer b.kill()
	err = cmd.Run()
	s := Setup{Over: true, Tail: tailOf(name)}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return s, ctx.Err()
	case errors.As(err, &exit):
		s.Code = exit.ExitCode()
	case err != nil:
		return s, err
	}
	return s, nil
}
