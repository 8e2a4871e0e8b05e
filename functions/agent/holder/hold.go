//go:build linux || darwin

package holder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// hold is the life of a holder. It says on report how the start went, and returns when the workload is over.
func hold(dir string, argv []string, epoch, limit int64, report *os.File) error {
	say := func(text string) {
		if report != nil {
			_, _ = report.WriteString(text) // an agent that is gone does not need to know
			report.Close()
			report = nil
		}
	}
	w, err := begin(dir, argv, epoch, limit)
	if err != nil {
		say(err.Error())
		return err
	}
	defer w.unlock()
	say("running")
	return w.finish(limit)
}

// workload is a process that was started, and what belongs to it.
type workload struct {
	dir    string
	epoch  int64
	cmd    *exec.Cmd
	log    *os.File
	asked  chan os.Signal
	unlock func()
}

// begin takes the directory, cleans it of an earlier epoch, and starts the workload.
func begin(dir string, argv []string, epoch, limit int64) (_ *workload, err error) {
	unlock, err := lock(filepath.Join(dir, "lock"), false)
	if err != nil {
		return nil, fmt.Errorf("another holder has %s: %w", dir, err)
	}
	w := &workload{dir: dir, epoch: epoch, asked: make(chan os.Signal, 4), unlock: unlock}
	defer func() {
		if err != nil {
			w.unlock()
		}
	}()
	// Marked or not: looked at under the lock, as the last thing before anything is started.
	if exists(filepath.Join(dir, "ended")) {
		return nil, ErrEnded
	}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, readyEnv+"=") })
	listening := listeningFile(dir, env)
	// The old holder.json goes first: without it the rest is nobody's.
	for _, name := range []string{"holder.json", "workload.json", "exit.json"} {
		if err := remove(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	if err := remove(listening); err != nil { // of a process that is no more
		return nil, err
	}
	me, _, err := identity(os.Getpid())
	if err != nil {
		return nil, err
	}
	// From here on the shutdown of the machine is the workload's to hear of; we stay to record its end.
	signal.Notify(w.asked, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if err := write(dir, "holder.json", record{Process{os.Getpid(), me}, epoch, listening}); err != nil {
		return nil, err
	}
	if err := w.start(argv, env); err != nil {
		return nil, errors.Join(err, remove(filepath.Join(dir, "holder.json")))
	}
	return w, nil
}

func remove(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// start starts a gate, writes down its pid, and lets it become the workload. If we die before, it ends by itself.
func (w *workload) start(argv, env []string) error {
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	wait, open, err := os.Pipe()
	if err != nil {
		return err
	}
	defer open.Close()
	defer wait.Close()
	// The workload writes to the file itself: through a pipe of ours our death would be its own, by SIGPIPE.
	w.log, err = os.OpenFile(filepath.Join(w.dir, "log"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	w.cmd = exec.Command(self, append([]string{"holder", "--gate", "--", program}, argv...)...)
	w.cmd.Env = env
	w.cmd.Stdout, w.cmd.Stderr = w.log, w.log
	w.cmd.ExtraFiles = []*os.File{wait}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := w.cmd.Start(); err != nil {
		return err
	}
	start, _, err := identity(w.cmd.Process.Pid)
	if err == nil {
		err = write(w.dir, "workload.json", Process{w.cmd.Process.Pid, start})
	}
	if err == nil {
		_, err = open.Write([]byte{1})
	}
	if err != nil {
		open.Close()
		return errors.Join(err, w.cmd.Wait())
	}
	return nil
}

// gate waits for the word and becomes the command: argv[0] is the program's path, the rest its own argv.
func gate(argv []string) error {
	word := os.NewFile(readyFD, "gate")
	if _, err := word.Read(make([]byte, 1)); err != nil {
		os.Exit(1) // the holder is gone
	}
	word.Close()
	if err := syscall.Exec(argv[0], argv[1:], os.Environ()); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", argv[0], err)
	}
	os.Exit(126)
	return nil
}

// finish passes on what it is asked, keeps the log small, and records the end.
func (w *workload) finish(limit int64) error {
	over := make(chan error, 1)
	go func() {
		// The rest of the group goes while its number is still taken by the first, unreaped: nobody else can have it.
		err := waitAndKillGroup(w.cmd.Process.Pid)
		over <- errors.Join(err, exitError(w.cmd.Wait()))
	}()
	check := time.NewTicker(100 * time.Millisecond)
	defer check.Stop()
	for {
		select {
		case sig := <-w.asked:
			_ = w.cmd.Process.Signal(sig) // over: then we are about to hear of it
		case <-check.C:
			if err := w.trim(limit); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		case err := <-over:
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			if err := w.trim(limit); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			return write(w.dir, "exit.json", w.exit())
		}
	}
}

// exitError is nil for a process that ended by itself, however.
func exitError(err error) error {
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return nil
	}
	return err
}

func (w *workload) exit() Exit {
	x := Exit{Epoch: w.epoch, Code: -1, EndedAt: time.Now().UTC()}
	status, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Signaled():
		x.Signal = signalName(status.Signal())
	case ok:
		x.Code = status.ExitStatus()
	}
	return x
}

// trim moves the end of a log that has grown over half the limit to log.1 and empties it, so that both together stay
// under the limit but for what is printed between two looks.
func (w *workload) trim(limit int64) error {
	info, err := w.log.Stat()
	if err != nil || info.Size() <= limit/2 {
		return err
	}
	keep := min(info.Size(), limit/2)
	old, err := os.Create(filepath.Join(w.dir, "log.1"))
	if err != nil {
		return errors.Join(err, w.log.Truncate(0)) // on a full disk the log is what can go
	}
	_, err = copyRange(old, w.log, info.Size()-keep, keep)
	return errors.Join(err, old.Close(), w.log.Truncate(0))
}
