package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lowtide/functions/agent/holder"
	"lowtide/shared/fleet"
	"lowtide/shared/parcel"
)

// setupMost is how long a setup may take: one that hangs must not bill for ever.
const setupMost = time.Hour

// setUp brings the workload's setup to its end, and says whether the run may start. One that failed ends the run as a
// start that failed does.
func (a *Agent) setUp(ctx context.Context, c Command) (ready bool, err error) {
	if len(c.Setup) == 0 {
		return true, nil
	}
	r := &a.memo.Run
	s, err := a.deps.Runner.SetUp(ctx, c)
	var why string
	switch {
	case err != nil:
		why, s.Code = fmt.Sprintf("setup: %v", err), -1
	case !s.Over && a.now.After(a.place.at.Add(setupMost)):
		if err := a.deps.Runner.Stop(ctx, true); err != nil {
			a.trouble = errors.Join(a.trouble, fmt.Errorf("end the setup: %w", err))
			return false, nil
		}
		why, s.Code = fmt.Sprintf("setup took longer than %s", setupMost), -1
	case !s.Over:
		a.log()
		return false, nil
	case s.Code == 0:
		return true, nil
	default:
		why = fmt.Sprintf("setup failed with exit status %d:\n%s", s.Code, a.printed(s.Tail))
	}
	if a.lastLog(end{}) {
		return false, nil
	}
	r.Why, r.Code = clip(a.mask(why)), s.Code
	return false, a.over(fleet.RunFailed)
}

// code is the directory of the workload's code on this machine; "" if it brings none. It runs beside the agent.
func (a *Agent) code(ctx context.Context, r run) (string, error) {
	sum := r.Start.Kit.Code
	if sum == "" {
		return "", nil
	}
	return a.deps.Runner.Place(ctx, sum, func(ctx context.Context) ([]byte, error) {
		if a.deps.Code == nil {
			return nil, fmt.Errorf("%w: this machine has no store of code", ErrDamaged)
		}
		return a.deps.Code(ctx, r.Workload, sum)
	})
}

// Place unpacks beside the place and renames: a directory that is there is whole. What an earlier run changed in it
// stays, since a setup may have put things there.
func (p *Processes) Place(ctx context.Context, sum string, fetch func(context.Context) ([]byte, error)) (string, error) {
	all := filepath.Join(p.dir, "code")
	dir := filepath.Join(all, sum)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	packed, err := fetch(ctx)
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(all); err != nil { // of another workload, or half unpacked
		return "", err
	}
	if err := os.MkdirAll(all, 0o755); err != nil {
		return "", err
	}
	half := filepath.Join(all, "half")
	if err := parcel.Unpack(packed, sum, half); err != nil {
		if errors.Is(err, parcel.ErrDamaged) {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return "", err
	}
	return dir, os.Rename(half, dir)
}

func (p *Processes) setup() string { return filepath.Join(p.dir, "setup") }

// SetUp runs the setup under a holder of its own, so that it outlives the agent as a run does. That it succeeded is kept
// under a hash of what it was: another setup, or another directory, is set up anew.
func (p *Processes) SetUp(ctx context.Context, c Command) (Setup, error) {
	done := filepath.Join(p.setup(), "done")
	what := setupHash(c)
	if b, err := os.ReadFile(done); err == nil && string(b) == what {
		return Setup{Over: true}, nil
	}
	s, err := holder.Find(p.setup())
	if err != nil {
		return Setup{}, err
	}
	if s.Phase == holder.None || s.Epoch != int64(c.Epoch) {
		return Setup{}, p.beginSetup(ctx, s, c)
	}
	switch s.Phase {
	case holder.Exited:
	case holder.Lost:
		return Setup{}, holder.ErrLost
	default:
		return Setup{}, nil
	}
	if s.Exit.Code != 0 {
		return Setup{Over: true, Code: s.Exit.Code, Tail: tailOf(filepath.Join(p.setup(), "log"))}, nil
	}
	return Setup{Over: true}, writeFile(done, []byte(what))
}

// beginSetup starts the setup in an empty place.
func (p *Processes) beginSetup(ctx context.Context, before holder.State, c Command) error {
	if err := kill(ctx, before); err != nil {
		return err
	}
	p.killBoxes()
	for _, name := range []string{"log", "log.1", "done"} {
		if err := os.Remove(filepath.Join(p.setup(), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	b := p.boxed(c, "setup", nil, []string{"LOWTIDE_WORKLOAD"})
	if err := p.noted(b); err != nil {
		return err
	}
	_, err := holder.Start(p.setup(), b.setup(c.Setup, prepared(c)), append(p.environ(c), "LOWTIDE_WORKLOAD="+c.Workload), int64(c.Epoch))
	return err
}

func setupHash(c Command) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q", c.Workload, c.Dir, c.Image, c.Setup)
	return hex.EncodeToString(h.Sum(nil))
}

// within is a command that runs in a directory. exec keeps the process the one that its holder knows.
func within(dir string, argv []string) []string {
	if dir == "" {
		return argv
	}
	return append([]string{"sh", "-c", `cd -- "$0" && exec "$@"`, dir}, argv...)
}

// environ is what the workload's processes inherit, and its own variables.
func (p *Processes) environ(c Command) []string {
	env := append([]string{}, p.env...)
	for _, own := range []map[string]string{c.Env, c.Secrets} {
		for name, value := range own {
			env = append(env, name+"="+value)
		}
	}
	if c.Data != "" {
		env = append(env, "LOWTIDE_DATA="+c.Data)
	}
	return env
}

func kill(ctx context.Context, s holder.State) error {
	if s.Phase == holder.None {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	return s.Kill(ctx)
}

// tailOf is the end of a log.
func tailOf(name string) string {
	b, _ := readEnd(name, 4*tailBytes)
	return tail(strings.ToValidUTF8(string(b), "?"))
}
