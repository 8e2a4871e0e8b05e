// Package backend runs matrix products on one kind of device and tells what it saw.
//
// It promises one interface for every vendor: devices with their identity, a multiplication loop timed by the device's
// own clock and by the host's beside it, the product itself for checking, and telemetry field by field. It changes no
// setting of any device: no clock, power limit, ECC, MIG or persistence mode.
//
// It judges nothing: statistics, verdicts and causes are package suite's.
//
//	cpu     a real blocked GEMM in Go on the host's cores; see OpenCPU
//	cuda    NVIDIA through libcuda and libcublas, opened at run time; see OpenCUDA
//	rocm    AMD through libamdhip64 and librocblas: named, not built
//	ascend  Huawei through libdcmi and libascendcl: named, not built
package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
)

// The reasons for which a backend does not open. Each wraps what was tried.
var (
	ErrNotBuilt  = errors.New("backend not built")
	ErrNoDriver  = errors.New("no driver")
	ErrNoDevice  = errors.New("no device")
	ErrNoLibrary = errors.New("no matrix library")
	ErrLost      = errors.New("device lost")
	ErrUnfit     = errors.New("matrix library does not know this device")
	ErrECC       = errors.New("uncorrectable memory error")
	ErrMemory    = errors.New("out of device memory")
	ErrFabric    = errors.New("fabric manager does not run")
	ErrShared    = errors.New("device served by a multi-process server")
	ErrBroken    = errors.New("device failed at work")
	ErrClock     = errors.New("elapsed time is not positive")
)

// Options say what to open. The zero value of every field but Problem is usable.
type Options struct {
	Problem  product.Problem
	Threads  int     // cpu: worker threads, 0 for all cores
	Throttle float64 // cpu: share of time idled between kernels, 0 for none
	Sysfs    string  // root of sysfs, empty for /sys
}

// Backend is an open vendor. Close it; a Device is not usable afterwards.
type Backend interface {
	Name() string
	Devices() []Device
	Versions() map[string]string
	// Findings are about the machine: a device that is listed and not usable, a witness that cannot be heard.
	Findings() []gpu.Finding
	Close() error
}

// Device is one accelerator. Its methods are for one goroutine, except Sample, which may run beside Burn.
type Device interface {
	// Identity is what the witnesses said when the backend opened.
	Identity() gpu.Identity
	// Load puts the problem's inputs on the device.
	Load(ctx context.Context) error
	// Burn multiplies again and again for about d of the device's time, at least once.
	Burn(ctx context.Context, d time.Duration) (Block, error)
	// Product is the result of the last multiplication.
	Product(ctx context.Context) (product.Output, error)
	// Sample reads telemetry; a device without any gives the zero Sample.
	Sample() gpu.Sample
	// Read reads the error counters.
	Read() gpu.Reading
	// Free gives the device's memory back.
	Free()
}

// Block is one run of finished multiplications.
type Block struct {
	Multiplies int           // finished, not merely enqueued
	Device     time.Duration // by the device's clock
	Host       time.Duration // by the host's monotonic clock around it
	Rate       float64       // FLOP/s by the device's clock
	Busy       float64       // cpu: kernel wall time over kernel CPU time; above 1 others shared the cores; 0 unknown
}

// Prober is a Device that can measure what tells products apart besides the multiplication. It frees what it takes.
type Prober interface {
	Probe(ctx context.Context, nonce string) Probe
}

// Probe is what a Prober measured. A nil figure was not measured.
type Probe struct {
	Bandwidth *float64 `json:"bandwidth_gbs,omitempty"` // device memory, read plus written
	ToDevice  *float64 `json:"to_device_gbs,omitempty"` // from pinned host memory
	ToHost    *float64 `json:"to_host_gbs,omitempty"`
	Double    *float64 `json:"fp64_tflops,omitempty"` // double precision multiplication
	Held      uint64   `json:"memory_held_bytes"`     // memory held at once and tested
	Blocks    int64    `json:"memory_blocks"`         // blocks written and read back
	Wrong     int64    `json:"memory_blocks_wrong"`   // of them, how many came back different
	Peers     []Peer   `json:"peers,omitempty"`       // devices that can be reached directly
	Errors    []error  `json:"-"`                     // parts that failed
}

// Peer is the rate at which one device writes another's memory.
type Peer struct {
	Index int     `json:"index"`
	GBs   float64 `json:"gbs"`
}

// Open opens a backend by name. rocm and ascend give ErrNotBuilt with what is missing.
func Open(ctx context.Context, name string, o Options) (Backend, error) {
	switch name {
	case "cpu":
		return OpenCPU(o)
	case "cuda":
		return OpenCUDA(ctx, o)
	case "rocm":
		return nil, fmt.Errorf("rocm: %w: AMD devices need a binding of libamdhip64 and librocblas "+
			"(rocblas_gemm_ex, f16_r in, f32_r compute) and of libamd_smi for identity", ErrNotBuilt)
	case "ascend":
		return nil, fmt.Errorf("ascend: %w: Ascend devices need a companion program inside Huawei's CANN image "+
			"(aclnnMatmul) and a binding of libdcmi for identity", ErrNotBuilt)
	}
	return nil, fmt.Errorf("backend %q: want cpu, cuda, rocm or ascend", name)
}
