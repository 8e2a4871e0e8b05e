package gpu

// Use is one reading of how a device is used. A nil field was not readable, or not supported; it is never zero instead.
type Use struct {
	UUID      string
	Source    string   // gpm: the hardware's own counters; nvml: the driver's samples
	SM        *float64 // share of the multiprocessors that worked since the reading before
	Active    *float64 // share of a recent moment with any kernel at work
	Tensor    *float64 // share
	DRAM      *float64 // share of the memory's bandwidth; by nvml, of the time with any traffic
	Memory    *float64 // MB held
	Power     *float64 // W
	Clock     *int     // MHz
	PCIe      *float64 // MB/s, both directions
	NVLink    *float64 // MB/s, both directions
	Processes *int
	Lost      bool
}

// Where a Use comes from.
const (
	SourceGPM  = "gpm"
	SourceNVML = "nvml"
)
