//go:build !unix

package cli_test

import "time"

func cpuTime() time.Duration { return 0 }
