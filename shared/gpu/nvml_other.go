//go:build !cgo || !linux

package gpu

import "fmt"

// NVML stands for the management library where it cannot be had.
type NVML struct{}

// OpenNVML says that this build has no NVML.
func OpenNVML() (*NVML, error) {
	return nil, fmt.Errorf("%w: this build has no NVML: it needs Linux and CGO_ENABLED=1", ErrNoNVML)
}

// Close does nothing.
func (n *NVML) Close() {}

// Count is 0.
func (n *NVML) Count() int { return 0 }

// Driver is empty.
func (n *NVML) Driver() string { return "" }

// Witness has nothing to say.
func (n *NVML) Witness(int) (Witness, string, bool) { return Witness{}, "", false }

// Sample is empty.
func (n *NVML) Sample(int) Sample { return Sample{} }

// Use is empty.
func (n *NVML) Use(int) Use { return Use{} }

// Read is empty.
func (n *NVML) Read(int) Reading { return Reading{} }
