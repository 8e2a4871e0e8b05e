//go:build linux || darwin

package agent

import "syscall"

// saveSignal asks a job to save and stop.
const saveSignal = syscall.SIGUSR1
