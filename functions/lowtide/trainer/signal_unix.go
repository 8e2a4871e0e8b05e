//go:build unix

package trainer

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// listen installs the handler of SIGUSR1; the returned function removes it.
func (r *run) listen() func() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGUSR1)
	r.signals = c
	return func() { signal.Stop(c) }
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
