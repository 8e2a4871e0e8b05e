// Package trainer is a training job that keeps to lowtide's contract: small enough for a demonstration, real enough to
// prove that nothing is lost. Interrupted anywhere and resumed from a checkpoint, its weights end equal, bit for bit,
// to those of a run that was left alone.
//
// The contract, as files in Config.Dir ($LOWTIDE_CKPT_DIR), each written beside its place, synced and renamed:
//
//	LISTENING   {"pid"}, once the handler of SIGUSR1 is installed; before that the signal kills
//	step-<n>/   a checkpoint, complete if it is there
//	READY       {"path","step"}, after every save; the newest complete checkpoint
//	PROGRESS    {"step","of"}, a few times a second, not synced
//	RESULT      {"step","weights_sha256"}, when all steps are made
//
// SIGUSR1, or the file $LOWTIDE_DEADLINE (seconds since 1970), asks it to save at the next step boundary and stop: it
// rewrites READY and exits with 0. It also exits with 0 when it has finished; RESULT tells the two apart. Started
// again, it goes on from the newest intact checkpoint in the directory, whatever the checkpoint's name.
//
// It does not upload, and does not ask who its agent is.
package trainer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is what a run is told. Dir and Steps are needed; the rest may be zero.
type Config struct {
	Dir       string        // LOWTIDE_CKPT_DIR; made if absent
	Deadline  string        // LOWTIDE_DEADLINE: the file that asks to stop
	Steps     int64         // to make in all
	Seed      uint64        // of data, weights and order
	Hidden    int           // units of the hidden layer, 16 if zero
	StepTime  time.Duration // the least that a step takes
	SaveEvery int64         // steps between saves; zero for none
	SaveAfter time.Duration // time between saves; zero for none
	Keep      int           // local checkpoints to keep, 3 if zero, at least 2
	Each      func(int64)   // called after each step that was made; nil for nobody
	Log       io.Writer     // what went wrong without stopping the run; nil for nowhere
}

// Result is how a run ended.
type Result struct {
	Step          int64  `json:"step"`
	Of            int64  `json:"of"`
	Resumed       int64  `json:"resumed"`  // the step it went on from, 0 if from none
	Finished      bool   `json:"finished"` // false: it was asked to stop, and has saved
	Path          string `json:"path"`     // of the last checkpoint
	WeightsSHA256 string `json:"weights_sha256"`
}

const (
	progressEvery = 250 * time.Millisecond
	pollEvery     = 20 * time.Millisecond
)

// Run trains until all steps are made or it is asked to stop. When ctx ends it returns its error at once and saves
// nothing, as if killed. A periodic save that fails is logged and training goes on; a save that was asked for and
// fails is an error.
func Run(ctx context.Context, c Config) (Result, error) {
	if c.Dir == "" || c.Steps < 1 {
		return Result{}, errors.New("trainer: a directory and a number of steps are needed")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return Result{}, err
	}
	c.Dir = dir
	if c.Log == nil {
		c.Log = io.Discard
	}
	c.Keep = max(2, cmp.Or(c.Keep, 3))
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return Result{}, err
	}
	r := &run{Config: c, began: time.Now()}
	stop := r.listen()
	defer stop()
	if err := r.start(); err != nil {
		return Result{}, err
	}
	err = r.train(ctx)
	return Result{
		Step: r.model.At(), Of: c.Steps, Resumed: r.resumed, Finished: err == nil && r.model.Done(),
		Path: r.path, WeightsSHA256: r.model.Sum(),
	}, err
}

type run struct {
	Config
	began   time.Time
	signals <-chan os.Signal
	model   *Model
	resumed int64

	path       string // of the last checkpoint
	saved      int64  // its step
	savedAt    time.Time
	polled     time.Time
	progressed time.Time
	wanted     bool
}

// start resumes and then says that it listens. The marks of an earlier run in this directory go first: a READY from
// then would be taken for an answer now.
func (r *run) start() error {
	for _, name := range []string{"LISTENING", "READY", "RESULT"} {
		if err := os.Remove(filepath.Join(r.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := r.resume(); err != nil {
		return err
	}
	r.savedAt = time.Now()
	return r.mark("LISTENING", map[string]int{"pid": os.Getpid()}, true)
}

// checkpoint is a directory that may hold one.
type checkpoint struct {
	path  string
	model *Model
}

// resume takes the furthest checkpoint that is whole. Names do not matter: a restore may have put it anywhere below.
func (r *run) resume() error {
	found, err := r.checkpoints()
	if err != nil {
		return err
	}
	if len(found) == 0 {
		r.model = NewWide(r.Seed, r.Steps, cmp.Or(r.Hidden, smallest))
		return nil
	}
	best := found[0]
	if best.model.seed != r.Seed || best.model.hidden != cmp.Or(r.Hidden, smallest) {
		return fmt.Errorf("trainer: %s is of another run: seed %d, %d hidden units", best.path, best.model.seed, best.model.hidden)
	}
	r.model = best.model
	r.model.steps = r.Steps
	r.resumed, r.saved, r.path = r.model.At(), r.model.At(), best.path
	return nil
}

// checkpoints loads what is whole below the directory, furthest first.
func (r *run) checkpoints() ([]checkpoint, error) {
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return nil, err
	}
	var found []checkpoint
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		p := filepath.Join(r.Dir, e.Name())
		m, err := Load(p)
		if err != nil {
			fmt.Fprintf(r.Log, "passed over %s: %v\n", p, err)
			continue
		}
		found = append(found, checkpoint{p, m})
	}
	slices.SortFunc(found, func(a, b checkpoint) int { return cmp.Compare(b.model.At(), a.model.At()) })
	return found, nil
}

func (r *run) train(ctx context.Context) error {
	for !r.model.Done() {
		if r.asked() {
			return r.save()
		}
		stepped := time.Now()
		r.model.Step()
		if r.Each != nil {
			r.Each(r.model.At())
		}
		if err := r.pace(ctx, stepped.Add(r.StepTime)); err != nil {
			return err
		}
		r.progress(false)
		if !r.model.Done() && r.due() {
			if err := r.save(); err != nil {
				fmt.Fprintln(r.Log, err)
				r.savedAt = time.Now() // not again at every step
			}
		}
	}
	r.progress(true)
	if err := r.save(); err != nil {
		return err
	}
	return r.mark("RESULT", map[string]any{"step": r.model.At(), "weights_sha256": r.model.Sum()}, true)
}

// pace waits until the step may end, or until it is asked to stop: then the boundary comes early.
func (r *run) pace(ctx context.Context, until time.Time) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		left := time.Until(until)
		if left <= 0 || r.asked() {
			return nil
		}
		t := time.NewTimer(min(left, pollEvery))
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-r.signals:
			r.wanted = true
		}
		t.Stop()
	}
}

// asked reports whether the run should save and stop. A deadline from before this run is an old one.
func (r *run) asked() bool {
	select {
	case <-r.signals:
		r.wanted = true
	default:
	}
	if r.wanted || r.Deadline == "" || time.Since(r.polled) < pollEvery {
		return r.wanted
	}
	r.polled = time.Now()
	data, err := os.ReadFile(r.Deadline)
	if err != nil {
		return false
	}
	seconds, err := strconv.ParseFloat(strings.TrimSpace(string(data)), 64)
	r.wanted = err == nil && seconds > float64(r.began.UnixMilli())/1000
	return r.wanted
}

func (r *run) due() bool {
	if r.SaveEvery > 0 && r.model.At()-r.saved >= r.SaveEvery {
		return true
	}
	return r.SaveAfter > 0 && time.Since(r.savedAt) >= r.SaveAfter
}

// save makes sure that the present step is on the disk, says so, and drops the oldest ones.
func (r *run) save() error {
	if r.path == "" || r.saved != r.model.At() {
		p := filepath.Join(r.Dir, fmt.Sprintf("step-%d", r.model.At()))
		// What is there under this name was passed over when resuming, so it is damaged.
		if err := os.RemoveAll(p); err != nil {
			return err
		}
		if err := r.model.Save(p); err != nil {
			return err
		}
		r.path, r.saved = p, r.model.At()
	}
	r.savedAt = time.Now()
	if err := r.mark("READY", map[string]any{"path": r.path, "step": r.saved}, true); err != nil {
		return err
	}
	r.drop()
	return nil
}

// drop removes old checkpoints of this run's own naming, by step as a number, never the last two.
func (r *run) drop() {
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return // the next save tries again
	}
	var steps []int64
	for _, e := range entries {
		if n, err := strconv.ParseInt(strings.TrimPrefix(e.Name(), "step-"), 10, 64); err == nil && e.IsDir() && n <= r.saved {
			steps = append(steps, n)
		}
	}
	slices.Sort(steps)
	for _, n := range steps[:max(0, len(steps)-r.Keep)] {
		p := filepath.Join(r.Dir, fmt.Sprintf("step-%d", n))
		// Renamed first, so that a checkpoint half removed is not taken for one.
		old := filepath.Join(r.Dir, fmt.Sprintf(".step-%d.old", n))
		if err := errors.Join(os.Rename(p, old), os.RemoveAll(old)); err != nil {
			fmt.Fprintln(r.Log, err)
		}
	}
}

// progress is for people; it is cheap and may be late.
func (r *run) progress(last bool) {
	if !last && time.Since(r.progressed) < progressEvery {
		return
	}
	r.progressed = time.Now()
	if err := r.mark("PROGRESS", map[string]int64{"step": r.model.At(), "of": r.Steps}, false); err != nil {
		fmt.Fprintln(r.Log, err)
	}
}

// mark writes a marker that appears whole or not at all.
func (r *run) mark(name string, value any, durable bool) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	temp := filepath.Join(r.Dir, "."+name)
	write := writeSynced
	if !durable {
		write = func(p string, data []byte) error { return os.WriteFile(p, data, 0o644) }
	}
	if err := write(temp, data); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(temp, filepath.Join(r.Dir, name)); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if durable {
		return syncDir(r.Dir)
	}
	return nil
}

func writeSynced(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
