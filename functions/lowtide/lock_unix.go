//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// alone makes sure that no other lowtide runs on a state directory, until free is called or this process ends, however.
// The directory is made.
func alone(dir string) (free func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, usage(fmt.Errorf("--state %s: %w", dir, err))
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, usage(fmt.Errorf("--state %s: %w", dir, err))
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another lowtide runs on it; stop that one, or take another directory")
		}
		return nil, usage(fmt.Errorf("--state %s: %w", dir, err))
	}
	return func() { _ = f.Close() }, nil
}
