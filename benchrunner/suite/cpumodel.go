package suite

import (
	"os"
	"runtime"
	"strings"
)

// cpuModel tells hosts apart well enough to notice that a calibration came from another one.
func cpuModel() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(info)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return runtime.GOARCH + " " + strings.Trim(name, " \t:\n")
		}
	}
	return runtime.GOARCH
}
