//go:build cgo && linux

package gpu

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// counters are the hardware's counters of one device as last read: what they say is of the time between two readings.
type counters struct {
	last, spare nvml.GpmSample
	at          time.Time
}

// gpmSpan is the shortest time over which GPM may be asked (nvml.h: 100 ms).
const gpmSpan = 100 * time.Millisecond

// The metrics that are asked of GPM, as nvml.h numbers them; shares come as percent, traffic as MiB/s.
var gpmMetrics = [...]uint32{2, 5, 10, 20, 21, 60, 61} // SM, any tensor, DRAM, PCIe out and in, NVLink in and out

// Use reads how device i is used: by its own counters on Hopper and later, else by what the driver samples. Counters speak
// of the time since the call before, so the first call has none. For one goroutine a device.
func (n *NVML) Use(i int) Use {
	if n.devices[i] == nil {
		return Use{Lost: true}
	}
	u, ok := within(func() Use { return n.use(i) })
	if !ok {
		return Use{Source: SourceNVML}
	}
	return u
}

func (n *NVML) use(i int) Use {
	p := &pass{n: n, device: n.devices[i]}
	d, u := p.device, Use{Source: SourceNVML}
	if n.uuids[i] == "" {
		n.uuids[i] = deref(field(p, "nvmlDeviceGetUUID", d.GetUUID))
	}
	u.UUID = n.uuids[i]
	if m := field(p, "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo); m != nil {
		u.Memory = new(float64(m.Used) / 1e6)
	}
	u.Power = convert(field(p, "nvmlDeviceGetPowerUsage", d.GetPowerUsage), watts)
	u.Clock = convert(field(p, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return d.GetClockInfo(nvml.CLOCK_SM) }), integer)
	u.Processes = convert(field(p, "nvmlDeviceGetComputeRunningProcesses_v3", d.GetComputeRunningProcesses), func(v []nvml.ProcessInfo) int { return len(v) })
	if rates := field(p, "nvmlDeviceGetUtilizationRates", d.GetUtilizationRates); rates != nil {
		u.Active, u.DRAM = new(float64(rates.Gpu)/100), new(float64(rates.Memory)/100)
	}
	if !p.gpm(i, &u) {
		traffic := func(kind nvml.PcieUtilCounter) *uint32 {
			return field(p, "nvmlDeviceGetPcieThroughput", func() (uint32, nvml.Return) { return d.GetPcieThroughput(kind) })
		}
		if out, in := traffic(nvml.PCIE_UTIL_TX_BYTES), traffic(nvml.PCIE_UTIL_RX_BYTES); out != nil && in != nil {
			u.PCIe = new(float64(*out+*in) / 1024) // kB/s
		}
	}
	u.Lost = p.lost
	return u
}

// gpm fills what the counters say, and reports whether the device has any.
func (p *pass) gpm(i int, u *Use) bool {
	c := p.n.counters[i]
	if c == nil {
		if c = p.openCounters(); c == nil {
			return false
		}
		p.n.counters[i] = c
	}
	if c.last == nil {
		return false // asked before: it has none
	}
	now := time.Now()
	if now.Sub(c.at) < gpmSpan {
		return true
	}
	if c.spare.Get(p.device) != nvml.SUCCESS {
		return true
	}
	began := c.at.IsZero()
	get := nvml.GpmMetricsGetType{NumMetrics: uint32(len(gpmMetrics)), Sample1: c.last, Sample2: c.spare}
	c.last, c.spare, c.at = c.spare, c.last, now
	if began {
		return true
	}
	for k, id := range gpmMetrics {
		get.Metrics[k].MetricId = id
	}
	if p.n.lib.GpmMetricsGet(&get) != nvml.SUCCESS {
		return true
	}
	read := func(k int, scale float64) *float64 {
		if nvml.Return(get.Metrics[k].NvmlReturn) != nvml.SUCCESS {
			return nil
		}
		return new(get.Metrics[k].Value * scale)
	}
	u.Source = SourceGPM
	u.SM, u.Tensor, u.DRAM = read(0, 0.01), read(1, 0.01), read(2, 0.01)
	u.PCIe, u.NVLink = sum(read(3, 1), read(4, 1)), sum(read(5, 1), read(6, 1))
	return true
}

// openCounters makes room for two readings; a counters without them says that the device has none.
func (p *pass) openCounters() *counters {
	for _, symbol := range []string{"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmSampleFree"} {
		if !p.n.has(symbol) {
			return &counters{}
		}
	}
	support, ret := p.device.GpmQueryDeviceSupport()
	if ret != nvml.SUCCESS || support.IsSupportedDevice == 0 {
		return &counters{}
	}
	a, reta := p.n.lib.GpmSampleAlloc()
	b, retb := p.n.lib.GpmSampleAlloc()
	if reta != nvml.SUCCESS || retb != nvml.SUCCESS {
		return &counters{}
	}
	return &counters{last: a, spare: b}
}

func sum(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}
