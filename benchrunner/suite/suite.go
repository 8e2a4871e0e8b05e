// Package suite measures devices and says whether each is the product it was sold as, healthy, and at least 90 % as
// fast as rated.
//
// It promises a verdict with its causes, the raw windows and three ratios: against the reference (what healthy devices of
// the product reach, the default gate), against the datasheet, and per clock. A doubt (a shared device, a reference that
// rests on one source, an interval that straddles the gate) gives inconclusive, never fail.
//
// It ends no machine and knows no order but its nonce; what follows from a verdict is the reader's decision.
package suite

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"time"

	"lowtide/benchrunner/backend"
	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
)

// The suites. Quick judges 30 windows as they are; full extends an undecided row to 60 and then measures once more.
const (
	Quick = "quick"
	Full  = "full"
)

// The bases: what a measured rate is divided by for the gate.
const (
	Reference = "reference" // what healthy devices of the product reach
	Datasheet = "datasheet" // the vendor's dense peak at boost clock; fails nearly every healthy data-centre card
)

// Options say what to measure. The zero value is a quick suite on the cpu backend against a rating calibrated on this
// host.
type Options struct {
	Backend  string        // cpu (default), cuda, rocm, ascend
	Suite    string        // quick (default) or full
	Duration time.Duration // measured time, shared by the windows; 0: 300 ms on cpu, 30 s elsewhere
	Window   time.Duration // length of one window; 0: Duration divided by Windows
	Windows  int           // windows before any extension; 0: 30
	WarmUp   time.Duration // the most a warm-up may take; 0: a third of Duration on cpu, 20 s elsewhere
	GPUs     []int         // indices to measure; none: all
	Nonce    string        // seeds the inputs and is echoed; empty: random
	Basis    string        // reference (default) or datasheet
	Size     int           // edge of the matrices; 0: 128 on cpu, 8192 elsewhere
	Rated    float64       // TFLOPS that replace the table's or the calibration's reference; 0: none
	Claim    string        // the product the offer named; empty: whatever is found
	Expect   int           // how many devices the offer named; 0: whatever is found

	Calibration string  // cpu: file that keeps this host's rating; empty: calibrated anew in each run
	Threads     int     // cpu: worker threads; 0: all cores
	Throttle    float64 // cpu: share of time idled between kernels
	Sysfs       string  // root of sysfs; empty: /sys

	Boot time.Duration // how long a driver that is not there yet is waited for; 0: not at all
}

func (o Options) complete() (Options, error) {
	o.Backend, o.Suite, o.Basis = cmp.Or(o.Backend, "cpu"), cmp.Or(o.Suite, Quick), cmp.Or(o.Basis, Reference)
	usual := gpu.ProfileOf(o.Backend)
	o.Windows, o.Size = cmp.Or(o.Windows, usual.Windows), cmp.Or(o.Size, usual.Size)
	if o.Window != 0 {
		o.Duration = o.Window * time.Duration(o.Windows)
	}
	o.Duration = cmp.Or(o.Duration, usual.Measure)
	o.Window = o.Duration / time.Duration(max(o.Windows, 1))
	if o.WarmUp == 0 {
		o.WarmUp = usual.WarmUp
		if o.Backend == "cpu" {
			o.WarmUp = o.Duration / 3
		}
	}
	if o.Nonce == "" {
		o.Nonce = rand.Text()
	}
	switch {
	case o.Suite != Quick && o.Suite != Full:
		return o, fmt.Errorf("suite %q: want %s or %s", o.Suite, Quick, Full)
	case o.Basis != Reference && o.Basis != Datasheet:
		return o, fmt.Errorf("basis %q: want %s or %s", o.Basis, Reference, Datasheet)
	case o.Windows < 5:
		return o, fmt.Errorf("%d windows: want at least 5", o.Windows)
	case o.Window <= 0 || o.WarmUp < 0:
		return o, fmt.Errorf("windows of %v, warm-up of %v: want positive lengths", o.Window, o.WarmUp)
	case o.Rated < 0:
		return o, fmt.Errorf("rated %v TFLOPS: want a positive figure", o.Rated)
	}
	return o, nil
}

// Verdict is the answer about a device or a machine.
type Verdict string

// The verdicts. Inconclusive never rejects a machine.
const (
	Pass         Verdict = "pass"
	Fail         Verdict = "fail"
	Inconclusive Verdict = "inconclusive"
)

// Result is a finished benchmark. It is plain data; field names and meanings are stable, and new fields may appear.
type Result struct {
	Schema    int               `json:"schema"` // 1
	Nonce     string            `json:"nonce"`
	Backend   string            `json:"backend"`
	Suite     string            `json:"suite"`
	Basis     string            `json:"basis"`
	Precision string            `json:"precision"` // fp16_fp32: half precision in and out, single precision sums; fp32
	Size      int               `json:"size"`      // edge of the matrices
	Started   time.Time         `json:"started"`   // by the machine's clock, which is not to be trusted
	Elapsed   float64           `json:"elapsed"`   // seconds, by the machine's clock
	Work      float64           `json:"work"`      // seconds the devices say they multiplied, longest device
	Verdict   Verdict           `json:"verdict"`
	Causes    []gpu.Finding     `json:"causes,omitempty"` // of the machine as a whole
	Devices   []Device          `json:"devices"`
	Product   product.Check     `json:"product"`         // of the worst device
	Table     string            `json:"table,omitempty"` // version of the rated table
	Versions  map[string]string `json:"versions,omitempty"`
}

// Device is one device's part of a result. A nil ratio is unknown, never zero.
type Device struct {
	Index       int            `json:"index"`
	Name        string         `json:"name"`
	UUID        string         `json:"uuid,omitempty"`
	PCI         string         `json:"pci_bus_id,omitempty"`
	SKU         string         `json:"sku,omitempty"` // the rated table's row
	Measured    float64        `json:"measured_tflops"`
	Alone       float64        `json:"alone_tflops,omitempty"` // one window with the other devices idle
	Burst       float64        `json:"burst_tflops,omitempty"` // the first window of the warm-up
	Rated       float64        `json:"rated_tflops,omitempty"` // the gate's denominator; absent when unknown
	Basis       string         `json:"basis"`                  // of Rated
	Grade       gpu.Grade      `json:"grade,omitempty"`        // of the reference
	Reference   *float64       `json:"reference_tflops,omitempty"`
	Datasheet   *float64       `json:"datasheet_tflops,omitempty"`
	ByReference *float64       `json:"ratio_reference,omitempty"`
	ByDatasheet *float64       `json:"ratio_datasheet,omitempty"`
	ByClock     *float64       `json:"ratio_per_clock,omitempty"`
	Lower       *float64       `json:"lower95,omitempty"` // of the gate's ratio
	Upper       *float64       `json:"upper95,omitempty"`
	Interval    Interval       `json:"interval"` // in TFLOPS
	Windows     []Window       `json:"windows,omitempty"`
	WarmUp      float64        `json:"warm_up,omitempty"` // seconds
	Verdict     Verdict        `json:"verdict"`
	Causes      []gpu.Finding  `json:"causes,omitempty"`
	Product     product.Check  `json:"product"`
	Probe       *backend.Probe `json:"probe,omitempty"`
	Identity    gpu.Identity   `json:"identity"`
	Health      gpu.Health     `json:"health"`
}

// Window is one measured stretch of finished multiplications.
type Window struct {
	TFLOPS     float64    `json:"tflops"`
	Device     float64    `json:"device"` // seconds by the device's clock
	Host       float64    `json:"host"`   // seconds by the host's
	Multiplies int        `json:"multiplies"`
	Sample     gpu.Sample `json:"sample,omitzero"` // means over the window; the reasons are every bit seen
}
