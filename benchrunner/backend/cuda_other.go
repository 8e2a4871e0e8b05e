//go:build !cgo || !linux

package backend

import (
	"context"
	"fmt"
)

// OpenCUDA says that this build has no cuda backend.
func OpenCUDA(context.Context, Options) (Backend, error) {
	return nil, fmt.Errorf("cuda: %w: this build has none: it needs Linux and CGO_ENABLED=1", ErrNotBuilt)
}
