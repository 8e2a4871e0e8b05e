//go:build linux || darwin

package holder

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// sigSave is the signal that asks a workload to save.
const sigSave = unix.SIGUSR1

func signalName(s syscall.Signal) string { return unix.SignalName(s) }

// detached takes a holder out of its agent's session: no terminal and no interrupt reaches it.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// lock takes a lock that ends with the process that has it.
func lock(name string, wait bool) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// inherited returns the pipe that Start left us, and keeps it from the workload.
func inherited() *os.File {
	if os.Getenv(readyEnv) == "" {
		return nil
	}
	unix.CloseOnExec(readyFD)
	return os.NewFile(readyFD, "ready")
}

func inGroup(pid, group int) bool {
	g, err := unix.Getpgid(pid)
	return err == nil && g == group
}

// killGroup ends all of a process group, by the process that it was made for. If that one is gone the rest of the group
// still has the number, and nobody else can, unless a process of this pid exists: then the group is gone too.
func killGroup(first Process) error {
	start, _, err := identity(first.PID)
	if err != nil {
		return err
	}
	if start != "" && start != first.StartTime {
		return nil
	}
	if err := unix.Kill(-first.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func copyRange(to io.Writer, from io.ReaderAt, offset, n int64) (int64, error) {
	return io.Copy(to, io.NewSectionReader(from, offset, n))
}
