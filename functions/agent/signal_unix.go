//go:build linux || darwin

package agent

import (
	"os/exec"
	"syscall"
)

// saveSignal asks a job to save and stop.
const saveSignal = syscall.SIGUSR1

// ownGroup lets a command die with all that it has started.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
