// Package holder keeps a workload running while agents come and go. The agent starts a small process, the holder, in a
// session of its own; the holder starts the workload, and has its log, pid, start time and exit status. An agent that
// was restarted, or another one, finds both again by their directory.
//
// It promises:
//
//   - One holder a directory, and one workload an epoch: Start may be repeated, by several agents at once.
//   - A process is known by its pid and when it started; a pid that was given to another process is never taken for
//     the workload, and no signal goes to it.
//   - The workload's pid is on the disk before its first instruction runs: no crash leaves one that nobody knows.
//   - SIGUSR1 goes only to the process that says, in LISTENING, that it has a handler. It kills any other.
//   - The exit status outlives everybody. A holder that was killed does not take the workload with it; Find tells.
//
// It does not restart a workload, does not reach processes that left the workload's process group, and does not keep
// itself out of its agent's cgroup: a systemd unit of the agent needs KillMode=process.
//
// Files in the directory, each written beside its place and renamed:
//
//	holder.json    {"pid","start_time","epoch","listening"}: the holder, and where LISTENING will be
//	workload.json  {"pid","start_time"}: also the process group
//	exit.json      {"epoch","code","signal","ended_at"}: how the workload ended
//	log, log.1     what it printed; the older half goes to log.1 and is dropped there
//	holder.log     what the holder itself had to say
//	ended          made by the agent: nothing may be started here any more
package holder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var (
	// ErrBusy: a workload of another epoch runs in the directory. Kill it first.
	ErrBusy = errors.New("holder: another epoch runs here")
	// ErrEnded: the directory is marked as ended.
	ErrEnded = errors.New("holder: ended")
	// ErrNotListening: there is no process of the workload that has said that it handles the signal.
	ErrNotListening = errors.New("holder: the workload is not listening")
	// ErrNotRunning: the workload is over, or never was.
	ErrNotRunning = errors.New("holder: not running")
	// ErrLost: the workload is gone and nobody saw how it ended.
	ErrLost = errors.New("holder: exit status lost")
	// ErrUnsupported: this system has no way to do it safely.
	ErrUnsupported = errors.New("holder: only Linux and macOS are supported")
)

// Phase is what is true of a directory.
type Phase string

const (
	None     Phase = "none"     // nothing was started here
	Starting Phase = "starting" // the holder lives and has no workload yet
	Running  Phase = "running"  // both live
	Orphaned Phase = "orphaned" // the workload lives, its holder is gone: its exit status will be lost
	Exited   Phase = "exited"   // the exit status is known
	Lost     Phase = "lost"     // both are gone, without an exit status
)

// Process is a process that cannot be mistaken for a later one of the same pid.
type Process struct {
	PID int `json:"pid"`
	// StartTime names the boot and the moment in it, in the system's own form. It can only be compared.
	StartTime string `json:"start_time"`
}

// Exit is how a workload ended. One that was found and could not be executed has Code 126, as in a shell.
type Exit struct {
	Epoch   int64     `json:"epoch"`
	Code    int       `json:"code"`             // -1 if a signal ended it
	Signal  string    `json:"signal,omitempty"` // the signal's name
	EndedAt time.Time `json:"ended_at"`         // the machine's clock
}

// State is what Find saw. It gets old: the workload may have ended since.
type State struct {
	Dir       string
	Phase     Phase
	Epoch     int64
	Holder    Process
	Workload  Process
	Listening string // the file in which the workload says that it handles SIGUSR1
	Exit      *Exit  // if Phase is Exited
}

// record is holder.json.
type record struct {
	Process
	Epoch     int64  `json:"epoch"`
	Listening string `json:"listening"`
}

// readyFD is where a holder that was started by Start says how that went.
const (
	readyFD  = 3
	readyEnv = "LOWTIDE_HOLDER_READY"
	ckptEnv  = "LOWTIDE_CKPT_DIR"
)

// Start runs argv under a holder in dir, which is made if absent, and returns when the workload runs. env is the
// workload's whole environment; nil is the caller's own. Started again with the same epoch it starts nothing and
// returns what is: the workload may have exited by then. ErrBusy if another epoch's workload runs, ErrEnded if the
// directory is marked as ended. The program that calls it must have Command among its commands.
func Start(dir string, argv, env []string, epoch int64) (State, error) {
	if len(argv) == 0 {
		return State{}, errors.New("holder: start: no command")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return State{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return State{}, err
	}
	// Whoever else wants to start here waits, and then finds what we started.
	unlock, err := lock(filepath.Join(dir, "start.lock"), true)
	if err != nil {
		return State{}, fmt.Errorf("holder: start in %s: %w", dir, err)
	}
	defer unlock()
	s, err := Find(dir)
	if err != nil {
		return State{}, err
	}
	switch {
	case s.Phase != None && s.Epoch == epoch:
		return s, nil
	case s.alive():
		return s, fmt.Errorf("%w: %s: epoch %d", ErrBusy, dir, s.Epoch)
	case exists(filepath.Join(dir, "ended")):
		return s, fmt.Errorf("%w: %s", ErrEnded, dir)
	}
	for _, old := range []string{"log", "log.1"} { // of the run before, which is told under its own epoch
		if err := os.Remove(filepath.Join(dir, old)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return State{}, fmt.Errorf("holder: start in %s: %w", dir, err)
		}
	}
	if err := spawn(dir, argv, env, epoch); err != nil {
		return State{}, fmt.Errorf("holder: start in %s: %w", dir, err)
	}
	return Find(dir)
}

func (s State) alive() bool {
	return s.Phase == Starting || s.Phase == Running || s.Phase == Orphaned
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// spawn starts a holder and waits for it to say that the workload runs.
func spawn(dir string, argv, env []string, epoch int64) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ready, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	own, err := os.OpenFile(filepath.Join(dir, "holder.log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		report.Close()
		return err
	}
	defer own.Close()
	args := append([]string{"holder", "--dir", dir, "--epoch", strconv.FormatInt(epoch, 10), "--"}, argv...)
	cmd := exec.Command(self, args...)
	if env == nil {
		env = os.Environ()
	}
	cmd.Env = append(append([]string{}, env...), readyEnv+"=1")
	cmd.Stdout, cmd.Stderr = own, own
	cmd.ExtraFiles = []*os.File{report}
	cmd.SysProcAttr = detached()
	err = cmd.Start()
	report.Close()
	if err != nil {
		return err
	}
	// The holder outlives this call, and maybe us; while we live somebody must collect it when it ends.
	go func() { _ = cmd.Wait() }()
	said, err := io.ReadAll(ready)
	if err != nil {
		return err
	}
	switch text := string(said); {
	case text == "running":
		return nil
	case text == "":
		return fmt.Errorf("the holder died; see %s", own.Name())
	case text == ErrEnded.Error():
		return ErrEnded
	default:
		return errors.New(text)
	}
}

// Find tells what is in a directory, from its files and from the processes that they name. It changes nothing.
func Find(dir string) (State, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return State{}, err
	}
	s := State{Dir: dir, Phase: None}
	var h record
	var x Exit
	switch ok, err := read(dir, "holder.json", &h); {
	case err != nil:
		return State{}, err
	case !ok:
		return s, nil
	}
	s.Epoch, s.Holder, s.Listening = h.Epoch, h.Process, h.Listening
	// The holder is looked at before what it writes: if it had ended by then, everything is written.
	holds, err := h.Process.alive()
	if err != nil {
		return State{}, err
	}
	started, err := read(dir, "workload.json", &s.Workload)
	if err != nil {
		return State{}, err
	}
	ended, err := read(dir, "exit.json", &x)
	if err != nil {
		return State{}, err
	}
	runs := false
	if started && !ended {
		if runs, err = s.Workload.alive(); err != nil {
			return State{}, err
		}
	}
	switch {
	case ended:
		s.Phase, s.Exit = Exited, &x
	case holds && !started:
		s.Phase = Starting
	case holds: // also while the holder is about to write the exit status
		s.Phase = Running
	case runs:
		s.Phase = Orphaned
	default:
		s.Phase = Lost
	}
	return s, nil
}

// read decodes a file of the directory; false if it is not there.
func read(dir, name string, v any) (bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("holder: %s in %s: %w", name, dir, err)
	}
	return true, nil
}

// write makes a file appear whole or not at all, also after a power cut.
func write(dir, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, "."+name)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(dir, name)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// alive reports whether the process itself, not a later one of its pid, still runs.
func (p Process) alive() (bool, error) {
	if p.PID <= 0 {
		return false, nil
	}
	start, running, err := identity(p.PID)
	return running && start == p.StartTime, err
}

// Signal sends a signal to the workload: SIGUSR1 to the process named in LISTENING, which must be of the workload's
// process group, else ErrNotListening; any other to the workload's first process. ErrNotRunning if it is over.
func (s State) Signal(sig syscall.Signal) error {
	to := s.Workload
	if sig == sigSave {
		var err error
		if to, err = s.listener(); err != nil {
			return err
		}
	}
	if to.PID <= 0 || !s.alive() {
		return fmt.Errorf("%w: %s", ErrNotRunning, s.Dir)
	}
	return send(to, sig)
}

// listener returns the process that says that it listens, if it is one of ours.
func (s State) listener() (Process, error) {
	if ok, err := s.Workload.alive(); err != nil || !ok {
		return Process{}, errors.Join(fmt.Errorf("%w: %s", ErrNotRunning, s.Dir), err)
	}
	var who struct {
		PID int `json:"pid"`
	}
	data, err := ReadMark(s.Listening, maxMark)
	if err != nil {
		return Process{}, fmt.Errorf("%w: %w", ErrNotListening, err)
	}
	if err := json.Unmarshal(data, &who); err != nil || who.PID <= 0 {
		return Process{}, fmt.Errorf("%w: %s names no pid", ErrNotListening, s.Listening)
	}
	// In this order: what is in the group after its start time was read is what the start time is of.
	start, running, err := identity(who.PID)
	if err != nil {
		return Process{}, err
	}
	if !running || !inGroup(who.PID, s.Workload.PID) {
		return Process{}, fmt.Errorf("%w: pid %d of %s is not of the workload", ErrNotListening, who.PID, s.Listening)
	}
	return Process{who.PID, start}, nil
}

const (
	look     = 10 * time.Millisecond // between looks at processes that are not our children
	farewell = 2 * time.Second       // for the holder to write the exit status of a workload that was killed
)

// Kill ends the workload's whole process group, and its holder, and returns when they are gone. The holder is given a
// moment to record the end. Killing what is over is no error.
func (s State) Kill(ctx context.Context) error {
	if s.Workload.PID > 0 {
		if err := killGroup(s.Workload); err != nil {
			return fmt.Errorf("holder: kill the workload in %s: %w", s.Dir, err)
		}
	}
	wait, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	if s.Workload.PID <= 0 {
		cancel() // it has nothing to record
	}
	if gone(wait, s.Holder) == nil {
		return gone(ctx, s.Workload)
	}
	if err := send(s.Holder, syscall.SIGKILL); err != nil && !errors.Is(err, ErrNotRunning) {
		return fmt.Errorf("holder: kill the holder in %s: %w", s.Dir, err)
	}
	if err := gone(ctx, s.Holder); err != nil {
		return err
	}
	// A holder that was only starting may have got as far as a workload.
	if now, err := Find(s.Dir); err == nil && now.Phase == Orphaned {
		if err := killGroup(now.Workload); err != nil {
			return err
		}
		s = now
	}
	return gone(ctx, s.Workload)
}

// gone waits until a process is over.
func gone(ctx context.Context, p Process) error {
	for {
		if alive, err := p.alive(); err != nil || !alive {
			return err
		}
		if err := sleep(ctx, look); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait returns the exit status once the workload is over. ErrLost if there is none, because the holder was killed;
// ErrNotRunning if nothing was started.
func (s State) Wait(ctx context.Context) (Exit, error) {
	for {
		now, err := Find(s.Dir)
		if err != nil {
			return Exit{}, err
		}
		switch now.Phase {
		case Exited:
			return *now.Exit, nil
		case Lost:
			return Exit{}, fmt.Errorf("%w: %s", ErrLost, s.Dir)
		case None:
			return Exit{}, fmt.Errorf("%w: %s", ErrNotRunning, s.Dir)
		}
		if err := sleep(ctx, 5*look); err != nil {
			return Exit{}, err
		}
	}
}

// listeningFile is where a workload with this environment will say that it listens.
func listeningFile(dir string, env []string) string {
	for _, e := range env {
		if d, ok := strings.CutPrefix(e, ckptEnv+"="); ok && d != "" {
			dir = d
		}
	}
	return filepath.Join(dir, "LISTENING")
}
