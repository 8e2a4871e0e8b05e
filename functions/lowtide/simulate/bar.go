package simulate

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
)

// bar draws progress over total jobs on a terminal; elsewhere it is nil.
func bar(log io.Writer, total int) func() {
	f, ok := log.(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	const width = 40
	var done atomic.Int64
	return func() {
		n := int(done.Add(1))
		switch {
		case n == total:
			fmt.Fprint(f, "\r\033[K")
		case n%max(1, total/200) == 0:
			fmt.Fprintf(f, "\r[%-*s] %d/%d jobs", width, strings.Repeat("=", width*n/total), n, total)
		}
	}
}
