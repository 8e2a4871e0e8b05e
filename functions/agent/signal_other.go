//go:build !linux && !darwin

package agent

import "syscall"

// saveSignal is not there: the holder refuses this system anyway.
const saveSignal = syscall.Signal(0)
