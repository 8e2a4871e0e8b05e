package holder

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// identity returns what tells a process from a later one of its pid: the boot and the ticks since then at which it
// started (proc_pid_stat(5), field 22). start is empty if there is none; a zombie has a start and does not run.
func identity(pid int) (start string, running bool, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	// The name, second, may hold spaces and parentheses; what follows the last one does not.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return "", false, fmt.Errorf("holder: /proc/%d/stat has %d fields", pid, len(fields))
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", false, err
	}
	dead := fields[0] == "Z" || fields[0] == "X"
	return strings.TrimSpace(string(boot)) + "/" + fields[19], !dead, nil
}

// send signals a process and never a later one of its pid: the handle is taken first, then the process is compared.
func send(p Process, sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w: pid %d", ErrNotRunning, p.PID)
	}
	if err != nil {
		return fmt.Errorf("holder: open pid %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if alive, err := p.alive(); err != nil || !alive {
		return errors.Join(fmt.Errorf("%w: pid %d", ErrNotRunning, p.PID), err)
	}
	err = unix.PidfdSendSignal(fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w: pid %d", ErrNotRunning, p.PID)
	}
	return err
}

// waitAndKillGroup returns when our child has ended, after killing what is left of its group.
func waitAndKillGroup(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if err := unix.Kill(-pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		return nil
	}
}
