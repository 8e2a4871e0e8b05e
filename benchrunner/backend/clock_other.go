//go:build !linux

package backend

import "time"

// start is the origin of threadTime.
var start = time.Now()

// threadTime is wall time where no thread clock is known: another process on the same cores then slows the measurement.
func threadTime() time.Duration { return time.Since(start) }
