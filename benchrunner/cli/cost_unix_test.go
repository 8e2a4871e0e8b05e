//go:build unix

package cli_test

import (
	"syscall"
	"time"
)

// cpuTime is what this process has used so far: on a host that others use too, time on the wall says nothing of it.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
