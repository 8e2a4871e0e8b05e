package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrNoSecrets is what Deps.Secrets returns when asking again would not help.
var ErrNoSecrets = errors.New("secrets refused")

// secretWait is how long an end waits for the secrets that must be taken out of what is told of it.
const secretWait = time.Minute

// known are a run's secrets. They are in this process's memory alone: another process of the agent asks again.
type known struct {
	epoch  uint64
	values map[string]string
}

// secrets asks for what the run refers to. It runs beside the agent.
func (a *Agent) secrets(ctx context.Context, r run) (map[string]string, error) {
	if len(r.Start.Kit.Secrets) == 0 {
		return nil, nil
	}
	if a.deps.Secrets == nil {
		return nil, fmt.Errorf("%w: this machine has nobody to ask", ErrNoSecrets)
	}
	return a.deps.Secrets(ctx, r.Workload)
}

// veiled says that whatever secrets the run has can be taken out of what is told of it.
func (a *Agent) veiled() bool {
	r := &a.memo.Run
	return len(r.Start.Kit.Secrets) == 0 || a.known.epoch == r.Epoch
}

// veil asks for the secrets of a run that an earlier process of the agent started, to be able to take them out.
func (a *Agent) veil() {
	r := a.memo.Run
	if a.veiled() || !r.lives() || a.live.Epoch != r.Epoch || a.work.busy("secrets") || a.now.Before(a.work.retryAt("secrets")) {
		return
	}
	a.work.begin("secrets", func(ctx context.Context) func() {
		values, err := a.secrets(ctx, r)
		return func() {
			switch {
			case r.Epoch != a.memo.Run.Epoch:
			case err != nil:
				a.work.again("secrets", a.now.Add(5*time.Second))
				a.trouble = errors.Join(a.trouble, err)
			default:
				a.known = known{r.Epoch, values}
			}
		}
	})
}

// printed is what the job printed, as it may be told; nothing of it, if its secrets are not known.
func (a *Agent) printed(text string) string {
	if !a.veiled() {
		return "(what it printed is withheld: its secrets are not known here, to be taken out of it)"
	}
	return clip(tail(a.mask(text)))
}

// hidden are all texts that must not be told, the longest first: one may hold another.
func (a *Agent) hidden() (all []string) {
	for name, value := range a.memo.Run.Start.Env {
		all = append(all, secrets(name, value)...)
	}
	for _, value := range a.known.values {
		all = append(all, value)
		for line := range strings.Lines(value) { // of a key in PEM, say: each may be printed with something before it
			if line = strings.TrimSpace(line); len(line) > 8 {
				all = append(all, line)
			}
		}
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	return slices.Compact(all)
}
