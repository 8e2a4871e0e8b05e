package holder

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

const zombie = 5 // SZOMB of sys/proc.h

// identity returns what tells a process from a later one of its pid: when it started. start is empty if there is none; a
// zombie has a start and does not run.
func identity(pid int) (start string, running bool, err error) {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EIO) { // EIO: an empty answer
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	t := p.Proc.P_starttime
	return fmt.Sprintf("%d.%06d", t.Sec, t.Usec), p.Proc.P_stat != zombie, nil
}

// send signals a process. There is no handle to a process here; between the look and the signal lies an instant.
func send(p Process, sig syscall.Signal) error {
	if alive, err := p.alive(); err != nil || !alive {
		return errors.Join(fmt.Errorf("%w: pid %d", ErrNotRunning, p.PID), err)
	}
	err := unix.Kill(p.PID, sig)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w: pid %d", ErrNotRunning, p.PID)
	}
	return err
}

// waitAndKillGroup does not kill here: without waiting that leaves a child unreaped the number may be somebody else's.
func waitAndKillGroup(int) error { return nil }
