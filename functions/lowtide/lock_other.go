//go:build !unix

package main

import (
	"fmt"
	"os"
)

// alone only makes the directory: where there is no lock that ends with its process, two on one directory meet at the port.
func alone(dir string) (free func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, usage(fmt.Errorf("--state %s: %w", dir, err))
	}
	return func() {}, nil
}
