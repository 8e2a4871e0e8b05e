package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"lowtide/functions/agent/holder"
	"lowtide/shared/fn"
)

// Processes is a Runner with real processes, each under a holder that outlives the agent. The agent's program must
// have holder.Command among its commands. Make it with NewProcesses; it is for one goroutine.
//
// Below its directory:
//
//	run/           the holder's: log, pid, exit status
//	ckpt/<epoch>/  LOWTIDE_CKPT_DIR: LISTENING, READY, PROGRESS, RESULT and the job's checkpoints; restored/ in it is
//	               what the run starts from
//	deadline/<epoch>  LOWTIDE_DEADLINE
//	code/<sha256>/    the workload's directory, in which setup and run are started
//	setup/            another holder's, of the setup; done in it says which one has succeeded here
//
// The job reads LOWTIDE_CKPT_DIR, LOWTIDE_DEADLINE, LOWTIDE_RESTORED (the restored checkpoint; unset: begin anew),
// LOWTIDE_WORKLOAD, LOWTIDE_EPOCH and LOWTIDE_SAVE_EVERY (seconds on the wall; unset: as it likes). It may write
// RESULT, up to 1 KiB of what it made: text, or JSON with a string "result" or "weights_sha256".
type Processes struct {
	dir   string
	clock fn.Clock
	env   []string
	size  *sizing // of the newest checkpoint
}

// NewProcesses runs workloads below dir. env is what they inherit besides their own; the agent's own settings and
// credentials, everything named LOWTIDE_, are left out of it.
func NewProcesses(dir string, clock fn.Clock, env []string) *Processes {
	if whole, err := filepath.Abs(dir); err == nil { // containers see it under the same name
		dir = whole
	}
	p := &Processes{dir: dir, clock: clock}
	for _, e := range env {
		if !strings.HasPrefix(e, "LOWTIDE_") {
			p.env = append(p.env, e)
		}
	}
	return p
}

const (
	maxMarker   = 64 << 10 // of a job's marker file
	maxResult   = 1 << 10
	killTimeout = 5 * time.Second
)

func (p *Processes) run() string { return filepath.Join(p.dir, "run") }
func (p *Processes) ckpt(epoch uint64) string {
	return filepath.Join(p.dir, "ckpt", strconv.FormatUint(epoch, 10))
}

func (p *Processes) deadline(epoch uint64) string {
	return filepath.Join(p.dir, "deadline", strconv.FormatUint(epoch, 10))
}

// Prepare empties the place of the epoch. Those of earlier epochs go too: their runs are over, and the disk is small.
func (p *Processes) Prepare(_ context.Context, epoch uint64) (string, error) {
	s, err := holder.Find(p.run())
	if err != nil {
		return "", err
	}
	switch s.Phase {
	case holder.None:
	case holder.Exited, holder.Lost:
		if s.Epoch == int64(epoch) {
			return "", fmt.Errorf("epoch %d was started", epoch)
		}
	default:
		return "", fmt.Errorf("epoch %d runs", s.Epoch)
	}
	for _, old := range []string{"ckpt", "deadline"} {
		if err := os.RemoveAll(filepath.Join(p.dir, old)); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(p.ckpt(epoch), 0o755); err != nil {
		return "", err
	}
	return filepath.Join(p.ckpt(epoch), "restored"), nil
}

// Start runs the command under a holder.
func (p *Processes) Start(_ context.Context, c Command) error {
	dir := p.ckpt(c.Epoch)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(filepath.Dir(p.deadline(c.Epoch)), 0o755)); err != nil {
		return err
	}
	env := append(p.environ(c), // last, so that they win
		"LOWTIDE_CKPT_DIR="+dir, "LOWTIDE_DEADLINE="+p.deadline(c.Epoch),
		"LOWTIDE_WORKLOAD="+c.Workload, "LOWTIDE_EPOCH="+strconv.FormatUint(c.Epoch, 10))
	if c.Restored != "" {
		env = append(env, "LOWTIDE_RESTORED="+c.Restored)
	}
	if c.SaveEvery > 0 {
		env = append(env, fmt.Sprintf("LOWTIDE_SAVE_EVERY=%g", p.clock.Real(c.SaveEvery).Seconds()))
	}
	b := p.boxOfRun(c)
	if err := p.noted(b); err != nil {
		return err
	}
	_, err := holder.Start(p.run(), b.command(c.Run, prepared(c)), env, int64(c.Epoch))
	return err
}

// Status reads what the holder and the job have written.
func (p *Processes) Status(context.Context) (Status, error) {
	s, err := holder.Find(p.run())
	if err != nil || s.Phase == holder.None {
		return Status{}, err
	}
	st := Status{Epoch: uint64(s.Epoch)}
	dir := p.ckpt(st.Epoch)
	st.Step, st.Of = progress(dir)
	if st.Newest, st.Wrong = p.newest(dir); st.Newest != nil {
		st.Step = max(st.Step, st.Newest.Step)
	}
	info, err := os.Stat(filepath.Join(dir, "LISTENING"))
	st.Listening = err == nil && info.Mode().IsRegular()
	if st.Wrong == "" {
		st.Wrong = noFiles(dir)
	}
	switch s.Phase {
	case holder.Exited:
		st.Code = s.Exit.Code
	case holder.Lost:
		st.Code = -1
	default:
		st.Alive = true
		return st, nil
	}
	st.Listening = false
	st.Result = result(dir)
	if s.Phase == holder.Lost && st.Result != "" {
		st.Code = 0 // nobody saw its end, but it wrote its result as the last thing
	}
	st.Tail = tailOf(filepath.Join(p.run(), "log"))
	return st, nil
}

// newest is the checkpoint that READY names, or what is wrong with that; neither where there is no READY.
func (p *Processes) newest(dir string) (l *Local, wrong string) {
	var ready struct {
		Path string
		Step int64
	}
	switch err := readMarker(dir, "READY", &ready); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ""
	case err != nil:
		return nil, fmt.Sprintf("READY cannot be read: %v; want {\"path\": …, \"step\": …}", err)
	case ready.Path == "":
		return nil, "READY names no path; want {\"path\": …, \"step\": …}"
	case ready.Step <= 0:
		return nil, "READY names a step of 0 or less, which is never made durable; want {\"path\": …, \"step\": 1 or more}"
	}
	l = &Local{Path: ready.Path, Step: ready.Step}
	if !filepath.IsAbs(l.Path) {
		l.Path = filepath.Join(dir, l.Path)
	}
	var err error
	if l.Bytes, err = p.measure(l); err != nil {
		return nil, fmt.Sprintf("READY names %s, which is not there: %v", ready.Path, err) // or was dropped since, and a newer one follows
	}
	return l, ""
}

// Save writes the deadline and signals the job if it listens.
func (p *Processes) Save(_ context.Context, by time.Time) error {
	s, err := holder.Find(p.run())
	if err != nil || s.Phase == holder.None {
		return err
	}
	seconds := fmt.Sprintf("%.3f\n", float64(by.UnixMilli())/1000)
	if err := writeFile(p.deadline(uint64(s.Epoch)), []byte(seconds)); err != nil {
		return err
	}
	err = s.Signal(saveSignal)
	if errors.Is(err, holder.ErrNotListening) {
		p.knock(uint64(s.Epoch))
	}
	if errors.Is(err, holder.ErrNotListening) || errors.Is(err, holder.ErrNotRunning) {
		return nil // the deadline stands; it is signalled when it listens
	}
	return err
}

// Stop ends the job: SIGTERM to it, or at once SIGKILL to its whole process group, and to its setup's.
func (p *Processes) Stop(ctx context.Context, atOnce bool) error {
	s, err := holder.Find(p.run())
	if err != nil {
		return err
	}
	if atOnce {
		setup, err := holder.Find(p.setup())
		if err == nil {
			err = kill(ctx, setup)
		}
		err = errors.Join(err, kill(ctx, s))
		p.killBoxes()
		return err
	}
	if s.Phase == holder.None {
		return nil
	}
	if err := s.Signal(syscall.SIGTERM); !errors.Is(err, holder.ErrNotRunning) {
		return err
	}
	return nil
}

// readEnd is the end of a file.
func readEnd(name string, most int64) ([]byte, error) {
	f, err := holder.OpenMark(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// result is what the job says it made.
func result(dir string) string {
	b, err := holder.ReadMark(filepath.Join(dir, "RESULT"), maxResult)
	if err != nil {
		return ""
	}
	var named struct {
		Result  string `json:"result"`
		Weights string `json:"weights_sha256"`
	}
	if json.Unmarshal(b, &named) == nil {
		if named.Result != "" {
			return named.Result
		}
		if named.Weights != "" {
			return named.Weights
		}
	}
	return strings.ToValidUTF8(string(bytes.TrimSpace(b)), "?")
}

func readMarker(dir, name string, v any) error {
	b, err := holder.ReadMark(filepath.Join(dir, name), maxMarker)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// progress is what the job says of its steps; what it is writing just now says nothing.
func progress(dir string) (step, of int64) {
	var told struct{ Step, Of int64 }
	if readMarker(dir, "PROGRESS", &told) != nil {
		return 0, 0
	}
	return told.Step, told.Of
}

// noFiles says which of a job's marks is no file at all, so that it will never be read; "": none.
func noFiles(dir string) string {
	for _, name := range []string{"PROGRESS", "LISTENING", "RESULT"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && !info.Mode().IsRegular() {
			return fmt.Sprintf("%s cannot be read: %s is %v", name, info.Mode(), holder.ErrNoFile)
		}
	}
	return ""
}
