//go:build cgo && linux

package backend

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "cuda_shim.h"
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"sync"
	"time"
	"unsafe"

	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
)

// OpenCUDA opens every NVIDIA device that the driver library shows, with NVML and sysfs as further witnesses.
//
// libcuda.so.1 and the newest of libcublas.so.13, .12 and .11 are opened at run time; no CUDA header or toolkit is needed.
// The multiplication is cublasGemmEx on half precision in and out with single precision accumulation, layout TN. Devices of
// different drivers, NVML and CUDA, are joined by bus id. The error wraps one of this package's reasons.
func OpenCUDA(ctx context.Context, o Options) (Backend, error) {
	why := (*C.char)(C.calloc(1, 256))
	defer C.free(unsafe.Pointer(why))
	if C.lt_open_cuda(why, 256) != 0 {
		return nil, fmt.Errorf("cuda: %w: %s", ErrNoDriver, C.GoString(why))
	}
	if err := failed(C.lt_init()); err != nil {
		return nil, err
	}
	c := &cuda{options: o, versions: map[string]string{}}
	var count C.int
	if err := failed(C.lt_count(&count)); err != nil {
		return nil, err
	}
	if count == 0 {
		return nil, fmt.Errorf("cuda: %w", ErrNoDevice)
	}
	library := C.lt_open_blas(why, 256)
	if library < 0 {
		return nil, fmt.Errorf("cuda: %w: %s", ErrNoLibrary, C.GoString(why))
	}
	c.versions["cublas_library"] = fmt.Sprintf("libcublas.so.%d", library)
	var version C.int
	if failed(C.lt_driver_version(&version)) == nil {
		c.versions["cuda"] = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	}
	c.openNVML()
	for i := range int(count) {
		d, err := c.open(i)
		if err != nil {
			c.Close()
			return nil, err
		}
		c.devices = append(c.devices, d)
	}
	return c, nil
}

// cuda is the open driver.
type cuda struct {
	options  Options
	nvml     *gpu.NVML              // nil where it cannot be heard
	witness  map[string]nvmlWitness // by bus id
	devices  []*cudaDevice
	lock     sync.Mutex // guards versions: devices load at once
	versions map[string]string
	findings []gpu.Finding
	halves   func() [2][]uint16
}

func (c *cuda) Name() string                { return "cuda" }
func (c *cuda) Versions() map[string]string { return c.versions }
func (c *cuda) Findings() []gpu.Finding     { return c.findings }

func (c *cuda) Devices() []Device {
	all := make([]Device, len(c.devices))
	for i, d := range c.devices {
		all[i] = d
	}
	return all
}

func (c *cuda) Close() error {
	for _, d := range c.devices {
		C.lt_device_close(d.c)
	}
	c.devices = nil
	if c.nvml != nil {
		c.nvml.Close()
	}
	return nil
}

// nvmlWitness is what NVML says of the device with NVML's index.
type nvmlWitness struct {
	index int
	gpu.Witness
}

// openNVML hears the second witness, before any context of ours takes memory or shows as a process. Its absence is a
// finding of the machine, not an error.
func (c *cuda) openNVML() {
	c.witness = map[string]nvmlWitness{}
	// All devices share one pair of inputs, made when the first is loaded.
	c.halves = sync.OnceValue(func() [2][]uint16 {
		return [2][]uint16{c.options.Problem.Halves(product.A), c.options.Problem.Halves(product.B)}
	})
	n, err := gpu.OpenNVML()
	if err != nil {
		c.findings = append(c.findings, gpu.Found(gpu.WitnessMissing, "%v", err))
		return
	}
	c.nvml, c.versions["driver"] = n, n.Driver()
	for i := range n.Count() {
		if w, bus, ok := n.Witness(i); ok && bus != "" {
			c.witness[bus] = nvmlWitness{i, w}
			continue
		}
		c.findings = append(c.findings, unusable(i, n.Read(i)))
	}
}

// unusable reports a device that the driver lists and does not answer for: it would otherwise only make the count smaller.
func unusable(i int, r gpu.Reading) gpu.Finding {
	switch {
	case r.Lost:
		return gpu.Found(gpu.Lost, "NVML device %d fell off the bus", i)
	case r.Unresponsive:
		return gpu.Found(gpu.DriverUnresponsive, "NVML device %d does not answer", i)
	}
	return gpu.Found(gpu.DriverError, "NVML device %d: %s", i, strings.Join(r.Errors, "; "))
}

func (c *cuda) open(ordinal int) (*cudaDevice, error) {
	d := &cudaDevice{cuda: c, nvml: -1}
	if err := failed(C.lt_device_open(&d.c, C.int(ordinal))); err != nil {
		return nil, err
	}
	var facts C.lt_facts
	if err := failed(C.lt_device_facts(d.c, &facts)); err != nil {
		C.lt_device_close(d.c)
		return nil, err
	}
	d.identity = c.identify(ordinal, facts)
	if w, ok := c.witness[d.identity.PCI]; ok {
		d.nvml = w.index
	}
	return d, nil
}

// identify joins what CUDA, NVML and sysfs say of one device.
func (c *cuda) identify(ordinal int, f C.lt_facts) gpu.Identity {
	said := cudaWitness(f)
	id := gpu.Identity{Index: ordinal, Name: said.Name, UUID: said.UUID, PCI: gpu.BusID(C.GoString(&f.bus[0])), CUDA: said}
	if w, ok := c.witness[id.PCI]; ok {
		id.Name, id.NVML, id.Driver = w.Name, &w.Witness, c.nvml.Driver()
	}
	if w, err := gpu.Sysfs(c.options.Sysfs, id.PCI); err == nil {
		id.Sysfs = &w
	}
	return id
}

func cudaWitness(f C.lt_facts) *gpu.Witness {
	known := func(v C.int) *int {
		if v < 0 {
			return nil
		}
		n := int(v)
		return &n
	}
	w := &gpu.Witness{Name: C.GoString(&f.name[0]), Units: known(f.units), BusBits: known(f.bus_bits)}
	var u [16]byte
	for i, b := range f.uuid {
		u[i] = byte(b)
	}
	w.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
	if f.major > 0 {
		w.Compute = fmt.Sprintf("%d.%d", f.major, f.minor)
	}
	if memory := uint64(f.memory); memory > 0 {
		w.Memory = &memory
	}
	if f.l2 > 0 {
		l2 := uint64(f.l2)
		w.L2 = &l2
	}
	if f.mps >= 0 {
		mps := f.mps > 0
		w.MPS = &mps
	}
	return w
}

// cudaDevice is one device.
type cudaDevice struct {
	cuda     *cuda
	c        *C.lt_device
	nvml     int // NVML's index, -1 for none
	identity gpu.Identity
	each     float64 // seconds a multiplication takes, by the last burn; 0 before
}

func (d *cudaDevice) Identity() gpu.Identity { return d.identity }
func (d *cudaDevice) Free()                  { C.lt_unload(d.c) }

func (d *cudaDevice) Sample() gpu.Sample {
	if d.nvml < 0 {
		return gpu.Sample{}
	}
	return d.cuda.nvml.Sample(d.nvml)
}

func (d *cudaDevice) Read() gpu.Reading {
	if d.nvml < 0 {
		return gpu.Reading{}
	}
	return d.cuda.nvml.Read(d.nvml)
}

func (d *cudaDevice) Load(context.Context) error {
	C.lt_unload(d.c)
	inputs, n := d.cuda.halves(), d.cuda.options.Problem.N
	var version C.int
	err := failed(C.lt_load(d.c, halves(inputs[0]), halves(inputs[1]), C.int(n), &version))
	if err == nil && version > 0 {
		d.cuda.note("cublas", fmt.Sprint(int(version)))
	}
	return err
}

func (c *cuda) note(name, version string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.versions[name] = version
}

func halves(v []uint16) *C.uint16_t { return (*C.uint16_t)(unsafe.Pointer(unsafe.SliceData(v))) }

// longest bounds one uninterruptible call into the driver.
const longest = 2 * time.Second

func (d *cudaDevice) Burn(ctx context.Context, want time.Duration) (Block, error) {
	var sum Block
	for first := true; first || sum.Device < want; first = false {
		if err := ctx.Err(); err != nil {
			return Block{}, fmt.Errorf("cuda: burn: %w", err)
		}
		count := int64(1)
		if d.each > 0 {
			left := min(want-sum.Device, longest).Seconds()
			count = max(1, int64(math.Round(left/d.each)))
		}
		var device, host C.double
		if err := failed(C.lt_burn(d.c, C.int64_t(count), &device, &host)); err != nil {
			return Block{}, err
		}
		if !(device > 0) || math.IsInf(float64(device), 0) {
			return Block{}, fmt.Errorf("cuda: %w: %v s for %d multiplications", ErrClock, float64(device), count)
		}
		d.each = float64(device) / float64(count)
		sum.Multiplies += int(count)
		sum.Device += seconds(device)
		sum.Host += seconds(host)
		if sum.Device >= want*9/10 {
			break // a rest too short to time would only add the cost of waiting
		}
	}
	sum.Rate = float64(sum.Multiplies) * d.cuda.options.Problem.Flops() / sum.Device.Seconds()
	return sum, nil
}

func seconds(s C.double) time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

func (d *cudaDevice) Product(context.Context) (product.Output, error) {
	n := d.cuda.options.Problem.N
	out := make([]uint16, n*n)
	if err := failed(C.lt_product(d.c, halves(out))); err != nil {
		return product.Output{}, err
	}
	return product.Output{Halves: out}, nil
}

// The sizes of the probes.
const (
	copyBytes  = 1 << 30
	copyTimes  = 8
	linkBytes  = 64 << 20
	linkTimes  = 8
	peerBytes  = 256 << 20
	peerTimes  = 8
	testStride = 16 << 20
	testShare  = 0.95
	doubleEdge = 2048
	doubleRuns = 8
)

// Probe measures what tells products apart besides the multiplication. A part that fails is named in Errors; the others
// are still there.
func (d *cudaDevice) Probe(_ context.Context, nonce string) Probe {
	var p Probe
	gigas := func(what string, e C.lt_error, v C.double, unit float64) *float64 {
		if err := failed(e); err != nil {
			p.Errors = append(p.Errors, fmt.Errorf("%s: %w", what, err))
			return nil
		}
		if v <= 0 {
			return nil
		}
		g := float64(v) / unit
		return &g
	}
	var rate, back C.double
	e := C.lt_copy_rate(d.c, copyBytes, copyTimes, &rate)
	p.Bandwidth = gigas("copy", e, rate, 1e9)
	e = C.lt_link_rate(d.c, linkBytes, linkTimes, &rate, &back)
	p.ToDevice = gigas("to device", e, rate, 1e9)
	if p.ToDevice != nil {
		p.ToHost = gigas("to host", e, back, 1e9)
	}
	edge := min(doubleEdge, d.cuda.options.Problem.N)
	doubles := d.cuda.options.Problem.Doubles(product.A, edge)
	e = C.lt_double_rate(d.c, (*C.double)(unsafe.SliceData(doubles)), C.int(edge), doubleRuns, &rate)
	p.Double = gigas("double precision", e, rate, 1e12)
	var held C.uint64_t
	var blocks, wrong C.int64_t
	if err := failed(C.lt_memory_test(d.c, testShare, testStride, seedOf(nonce), &held, &blocks, &wrong)); err != nil {
		p.Errors = append(p.Errors, fmt.Errorf("memory: %w", err))
	}
	p.Held, p.Blocks, p.Wrong = uint64(held), int64(blocks), int64(wrong)
	for _, other := range d.cuda.devices {
		if other == d {
			continue
		}
		e := C.lt_peer_rate(d.c, other.c, peerBytes, peerTimes, &rate)
		if r := gigas("peer", e, rate, 1e9); r != nil {
			p.Peers = append(p.Peers, Peer{Index: other.identity.Index, GBs: *r})
		}
	}
	return p
}

func seedOf(nonce string) C.uint64_t {
	h := fnv.New64a()
	h.Write([]byte("memory " + nonce))
	return C.uint64_t(binary.BigEndian.Uint64(h.Sum(nil)))
}

// failed turns a shim error into one of this package's reasons. The numbers are in the CUDA driver API's and in cuBLAS's
// documentation.
func failed(e C.lt_error) error {
	if e.from == 0 {
		return nil
	}
	reason := errors.New("error")
	switch {
	case e.from == C.lt_from_blas:
		switch e.code {
		case 3:
			reason = ErrMemory
		case 8, 15: // architecture mismatch, not supported
			reason = ErrUnfit
		case 13: // execution failed
			reason = ErrBroken
		}
	default:
		switch e.code {
		case 2:
			reason = ErrMemory
		case 100:
			reason = ErrNoDevice
		case 34, 803, 804: // stub library, driver mismatch, compatibility mode
			reason = ErrNoDriver
		case 214, 220: // uncorrectable, contained
			reason = ErrECC
		case 714, 719, 999:
			reason = ErrBroken
		case 802:
			reason = ErrFabric
		case 805, 807:
			reason = ErrShared
		}
	}
	return fmt.Errorf("cuda: %w: %s gave %d %s", reason, C.GoString(e.call), int(e.code), C.GoString(C.lt_error_text(e)))
}
