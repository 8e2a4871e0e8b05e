//go:build cgo && linux

package gpu

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// patience is how long one pass over a device may take before the driver counts as unresponsive.
const patience = 10 * time.Second

// NVML is the open management library. One process can hold one. Its methods may be called at once from several
// goroutines.
type NVML struct {
	lib     nvml.Interface
	devices []nvml.Device // nil where the handle was refused
	refused map[int]nvml.Return
	driver  string

	uuids    []string
	counters []*counters // by device, nil until its use is first asked
}

// OpenNVML loads libnvidia-ml.so.1 and its driver. The error wraps ErrNoNVML.
func OpenNVML() (*NVML, error) {
	n := &NVML{lib: nvml.New(), refused: map[int]nvml.Return{}}
	opened, ok := within(func() error {
		if ret := n.lib.Init(); ret != nvml.SUCCESS {
			return fmt.Errorf("%w: %s", ErrNoNVML, ret.Error())
		}
		return nil
	})
	if !ok {
		return nil, fmt.Errorf("%w: the driver does not answer", ErrNoNVML)
	}
	if opened != nil {
		return nil, opened
	}
	if n.has("nvmlSystemGetDriverVersion") {
		n.driver, _ = n.lib.SystemGetDriverVersion()
	}
	count, ret := n.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		n.Close()
		return nil, fmt.Errorf("%w: count devices: %s", ErrNoNVML, ret.Error())
	}
	// One lost device must not hide the others, so a refused handle is kept beside the good ones.
	for i := range count {
		device, ret := n.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			device, n.refused[i] = nil, ret
		}
		n.devices = append(n.devices, device)
	}
	n.uuids, n.counters = make([]string, count), make([]*counters, count)
	return n, nil
}

// Close unloads the library.
func (n *NVML) Close() { _ = n.lib.Shutdown() }

// Count is how many devices the driver lists, lost ones included.
func (n *NVML) Count() int { return len(n.devices) }

// Driver is the driver's version, empty for unknown.
func (n *NVML) Driver() string { return n.driver }

// has asks before calling: go-nvml binds lazily, and a call to a symbol that the library lacks ends the process.
func (n *NVML) has(symbol string) bool { return n.lib.Extensions().LookupSymbol(symbol) == nil }

// within runs f for at most the patience. A driver that hangs cannot be interrupted: its goroutine stays behind.
func within[T any](f func() T) (T, bool) {
	done := make(chan T, 1)
	go func() { done <- f() }()
	select {
	case v := <-done:
		return v, true
	case <-time.After(patience):
		var zero T
		return zero, false
	}
}

// pass is one pass over one device's fields.
type pass struct {
	n      *NVML
	device nvml.Device
	errors []string
	lost   bool
}

// field reads one field if the library has it. "Not supported" and its kin leave it unknown; any other refusal is kept.
func field[T any](p *pass, symbol string, call func() (T, nvml.Return)) *T {
	if p.lost || !p.n.has(symbol) {
		return nil
	}
	v, ret := call()
	switch ret {
	case nvml.SUCCESS:
		return &v
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION, nvml.ERROR_INVALID_ARGUMENT,
		nvml.ERROR_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH:
		return nil
	case nvml.ERROR_GPU_IS_LOST:
		p.lost = true
	}
	p.errors = append(p.errors, fmt.Sprintf("%s: %s", symbol, ret.Error()))
	return nil
}

func convert[A, B any](v *A, f func(A) B) *B {
	if v == nil {
		return nil
	}
	w := f(*v)
	return &w
}

func integer[T ~uint32 | ~uint64 | ~int32](v T) int { return int(v) }
func watts(milli uint32) float64                    { return float64(milli) / 1000 }
func enabled(s nvml.EnableState) bool               { return s == nvml.FEATURE_ENABLED }
func deref[T any](v *T) (zero T) {
	if v == nil {
		return zero
	}
	return *v
}

// Witness reads device i's identity, and its bus id to join other witnesses by. ok is false for a lost or silent device.
func (n *NVML) Witness(i int) (w Witness, bus string, ok bool) {
	if n.devices[i] == nil {
		return Witness{}, "", false
	}
	type answer struct {
		w    Witness
		bus  string
		lost bool
	}
	a, answered := within(func() answer {
		p := &pass{n: n, device: n.devices[i]}
		w, bus := p.witness()
		return answer{w, bus, p.lost}
	})
	return a.w, a.bus, answered && !a.lost
}

func (p *pass) witness() (w Witness, bus string) {
	d := p.device
	w.Name = deref(field(p, "nvmlDeviceGetName", d.GetName))
	w.UUID = deref(field(p, "nvmlDeviceGetUUID", d.GetUUID))
	w.Serial = deref(field(p, "nvmlDeviceGetSerial", d.GetSerial))
	w.VBIOS = deref(field(p, "nvmlDeviceGetVbiosVersion", d.GetVbiosVersion))
	if pci := field(p, "nvmlDeviceGetPciInfo_v3", d.GetPciInfo); pci != nil {
		vendor, device, subsystem := ID(pci.PciDeviceId), ID(pci.PciDeviceId>>16), ID(pci.PciSubSystemId>>16)
		w.Vendor, w.Device, w.Subsystem, bus = &vendor, &device, &subsystem, BusID(text(pci.BusId[:]))
	}
	if cc := field(p, "nvmlDeviceGetCudaComputeCapability", pair(d.GetCudaComputeCapability)); cc != nil {
		w.Compute = fmt.Sprintf("%d.%d", cc[0], cc[1])
	}
	w.BusBits = convert(field(p, "nvmlDeviceGetMemoryBusWidth", d.GetMemoryBusWidth), integer)
	if memory := field(p, "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo); memory != nil {
		w.Memory, w.Used = &memory.Total, &memory.Used
	}
	w.MaxSMClock = convert(field(p, "nvmlDeviceGetMaxClockInfo", func() (uint32, nvml.Return) {
		return d.GetMaxClockInfo(nvml.CLOCK_SM)
	}), integer)
	w.Default = convert(field(p, "nvmlDeviceGetPowerManagementDefaultLimit", d.GetPowerManagementDefaultLimit), watts)
	w.Enforced = convert(field(p, "nvmlDeviceGetEnforcedPowerLimit", d.GetEnforcedPowerLimit), watts)
	w.LinkGen = field(p, "nvmlDeviceGetMaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration)
	w.LinkWidth = field(p, "nvmlDeviceGetMaxPcieLinkWidth", d.GetMaxPcieLinkWidth)
	p.links(&w)
	p.modes(&w)
	return w, bus
}

// links sums the active NVLinks. The speed field counts one direction of one link in MB/s.
func (p *pass) links(w *Witness) {
	if !p.n.has("nvmlDeviceGetNvLinkState") || !p.n.has("nvmlDeviceGetFieldValues") || p.lost {
		return
	}
	active, answered := 0, false
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := p.device.GetNvLinkState(link)
		if ret != nvml.SUCCESS {
			break // the device has no more, or none at all
		}
		answered = true
		if state == nvml.FEATURE_ENABLED {
			active++
		}
	}
	if !answered {
		return
	}
	w.Links = &active
	sum := 0.0
	if active > 0 {
		speed, ok := p.linkSpeed()
		if !ok {
			return
		}
		sum = float64(active) * speed / 1000 * 2
	}
	w.NVLink = &sum
}

// linkSpeed is one direction of one link in MB/s: the common speed, else the first link's own.
func (p *pass) linkSpeed() (float64, bool) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON}, {FieldId: nvml.FI_DEV_NVLINK_GET_SPEED}}
	if p.device.GetFieldValues(values) != nvml.SUCCESS {
		return 0, false
	}
	for _, v := range values {
		mbps := uint32(v.Value[0]) | uint32(v.Value[1])<<8 | uint32(v.Value[2])<<16 | uint32(v.Value[3])<<24
		if nvml.Return(v.NvmlReturn) == nvml.SUCCESS && mbps > 0 {
			return float64(mbps), true
		}
	}
	return 0, false
}

func (p *pass) modes(w *Witness) {
	d := p.device
	w.ECC = convert(field(p, "nvmlDeviceGetEccMode", pair(d.GetEccMode)), func(m [2]nvml.EnableState) bool { return enabled(m[0]) })
	w.MIG = convert(field(p, "nvmlDeviceGetMigMode", pair(d.GetMigMode)), func(m [2]int) bool { return m[0] == nvml.DEVICE_MIG_ENABLE })
	w.Slice = deref(field(p, "nvmlDeviceIsMigDeviceHandle", d.IsMigDeviceHandle))
	switch deref(field(p, "nvmlDeviceGetVirtualizationMode", d.GetVirtualizationMode)) {
	case nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH:
		w.Virtual = "passthrough"
	case nvml.GPU_VIRTUALIZATION_MODE_VGPU:
		w.Virtual = "vgpu"
	}
	number := func(v []nvml.ProcessInfo) int { return len(v) }
	w.Processes = convert(field(p, "nvmlDeviceGetComputeRunningProcesses_v3", d.GetComputeRunningProcesses), number)
	w.MPS = convert(field(p, "nvmlDeviceGetMPSComputeRunningProcesses_v3", d.GetMPSComputeRunningProcesses),
		func(v []nvml.ProcessInfo) bool { return len(v) > 0 })
	w.Busy = convert(field(p, "nvmlDeviceGetUtilizationRates", d.GetUtilizationRates),
		func(u nvml.Utilization) int { return int(u.Gpu) })
}

// Sample reads device i's telemetry.
func (n *NVML) Sample(i int) Sample {
	if n.devices[i] == nil {
		return Sample{Lost: true}
	}
	s, _ := within(func() Sample {
		p := &pass{n: n, device: n.devices[i]}
		d := p.device
		clock := func(kind nvml.ClockType) *int {
			return convert(field(p, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return d.GetClockInfo(kind) }), integer)
		}
		s := Sample{SMClock: clock(nvml.CLOCK_SM), MemoryClock: clock(nvml.CLOCK_MEM)}
		s.Power = convert(field(p, "nvmlDeviceGetPowerUsage", d.GetPowerUsage), watts)
		s.Temperature = convert(field(p, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) {
			return d.GetTemperature(nvml.TEMPERATURE_GPU)
		}), integer)
		// The older name: every driver has it, newer ones as an alias of "clocks event reasons".
		s.Reasons = convert(field(p, "nvmlDeviceGetCurrentClocksThrottleReasons", d.GetCurrentClocksThrottleReasons),
			func(r uint64) Reasons { return Reasons(r) })
		s.Lost = p.lost
		return s
	})
	return s
}

// Read reads device i's error counters.
func (n *NVML) Read(i int) Reading {
	if n.devices[i] == nil {
		ret := n.refused[i]
		return Reading{Lost: ret == nvml.ERROR_GPU_IS_LOST, Errors: []string{"handle: " + ret.Error()}}
	}
	r, ok := within(func() Reading {
		p := &pass{n: n, device: n.devices[i]}
		r := p.reading()
		r.Lost, r.Errors = p.lost, p.errors
		return r
	})
	r.Unresponsive = !ok
	return r
}

func (p *pass) reading() (r Reading) {
	d := p.device
	ecc := func(kind nvml.MemoryErrorType, counter nvml.EccCounterType) *uint64 {
		return field(p, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) { return d.GetTotalEccErrors(kind, counter) })
	}
	r.Corrected = ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)
	r.Uncorrected = ecc(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	r.Lifetime = ecc(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC)
	type rows struct {
		uncorrected     int
		pending, failed bool
	}
	if remap := field(p, "nvmlDeviceGetRemappedRows", func() (rows, nvml.Return) {
		_, uncorrected, pending, failed, ret := d.GetRemappedRows()
		return rows{uncorrected, pending, failed}, ret
	}); remap != nil {
		r.RemappedRows, r.RemapPending, r.RemapFailed = &remap.uncorrected, &remap.pending, &remap.failed
	}
	r.RetiredPages = convert(field(p, "nvmlDeviceGetRetiredPages", func() ([]uint64, nvml.Return) {
		return d.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
	}), func(pages []uint64) int { return len(pages) })
	r.RetiredPending = convert(field(p, "nvmlDeviceGetRetiredPagesPendingStatus", d.GetRetiredPagesPendingStatus), enabled)
	r.Replays = field(p, "nvmlDeviceGetPcieReplayCounter", d.GetPcieReplayCounter)
	violated := func(policy nvml.PerfPolicyType) *uint64 {
		return convert(field(p, "nvmlDeviceGetViolationStatus", func() (nvml.ViolationTime, nvml.Return) {
			return d.GetViolationStatus(policy)
		}), func(v nvml.ViolationTime) uint64 { return v.ViolationTime })
	}
	r.ThermalNanos, r.PowerNanos = violated(nvml.PERF_POLICY_THERMAL), violated(nvml.PERF_POLICY_POWER)
	return r
}

// pair makes one value of two.
func pair[T any](call func() (T, T, nvml.Return)) func() ([2]T, nvml.Return) {
	return func() ([2]T, nvml.Return) {
		a, b, ret := call()
		return [2]T{a, b}, ret
	}
}

// text is a C string up to its first zero byte.
func text(c []int8) string {
	b := make([]byte, 0, len(c))
	for _, v := range c {
		if v == 0 {
			break
		}
		b = append(b, byte(v))
	}
	return string(b)
}
