package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"lowtide/benchrunner/backend"
	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
)

// rating is what one device is held against. Zero figures are unknown and gate nothing.
type rating struct {
	row       *gpu.Rating
	sku       string
	reference float64 // TFLOPS
	datasheet float64 // TFLOPS
	gate      float64 // TFLOPS, one of the two
	basis     string
	grade     gpu.Grade
	binding   bool // the gate may fail a device
	settled   bool // extended and repeated already
	own       bool // a calibration of this host, which may be made again
}

// choose sets the gate by the wanted basis.
func (r rating) choose(o Options) rating {
	r.basis, r.gate = o.Basis, r.reference
	if o.Basis == Datasheet {
		r.gate, r.binding = r.datasheet, r.datasheet > 0
	}
	return r
}

// calibrated windows: enough for a median that single disturbances do not move.
const (
	calibrationWindows = 21
	calibrationWindow  = 10 * time.Millisecond
)

// Calibration is a host's rating of the cpu backend: what its cores do unthrottled.
type Calibration struct {
	CPU     string    `json:"cpu"`
	Threads int       `json:"threads"`
	Size    int       `json:"size"`
	TFLOPS  float64   `json:"tflops"` // median of the windows
	Windows []float64 `json:"windows"`
}

// Calibrate measures this host's rating: the median of 21 windows of 10 ms after a warm-up, never throttled.
func Calibrate(ctx context.Context, o Options) (Calibration, error) {
	o.Backend = "cpu"
	o, err := o.complete()
	if err != nil {
		return Calibration{}, err
	}
	b, err := backend.OpenCPU(backend.Options{Problem: product.New("calibration", o.Size), Threads: o.Threads})
	if err != nil {
		return Calibration{}, err
	}
	defer b.Close()
	d := b.Devices()[0]
	if err := d.Load(ctx); err != nil {
		return Calibration{}, err
	}
	c := Calibration{CPU: cpuModel(), Threads: threads(o), Size: o.Size}
	for i := range calibrationWindows + 5 {
		block, err := d.Burn(ctx, calibrationWindow)
		if err != nil {
			return Calibration{}, fmt.Errorf("calibrate: %w", err)
		}
		if i >= 5 {
			c.Windows = append(c.Windows, block.Rate/1e12)
		}
	}
	c.TFLOPS = median(c.Windows)
	return c, nil
}

// calibratedRating gives the cpu backend's rating: the override, the file's when it is of this host, or a fresh one,
// which is then kept in the file.
func calibratedRating(ctx context.Context, o Options) (func(gpu.Identity, Options) rating, error) {
	fixed := func(tflops float64, sku string) func(gpu.Identity, Options) rating {
		return func(gpu.Identity, Options) rating {
			r := rating{sku: sku, reference: tflops, grade: gpu.GradeA, binding: true, own: o.Rated == 0}
			return r.choose(o)
		}
	}
	if o.Rated > 0 {
		return fixed(o.Rated, "as told"), nil
	}
	if kept, ok := readCalibration(o); ok {
		return fixed(kept.TFLOPS, "this host, calibrated before"), nil
	}
	c, err := Calibrate(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.Calibration != "" {
		if err := c.write(o.Calibration); err != nil {
			return nil, err
		}
	}
	return fixed(c.TFLOPS, "this host, calibrated now"), nil
}

// hostTries is how often a slow measurement is set against a new calibration before it counts.
const hostTries = 2

// doubtHost asks, where a device is slower than this host's calibration, whether the host itself has become slower: its
// cores share caches, power and hardware threads with neighbours that no clock in here shows. A new calibration may lower
// the rating for this run and never raises it; a throttled device stays as slow against it as before.
func (x *run) doubtHost(ctx context.Context) {
	for range hostTries {
		if !x.rating.own || x.rating.gate <= 0 || x.stopped || ctx.Err() != nil {
			return
		}
		if iv := Estimate(x.rates()).over(x.rating.gate); Judge(iv) == Reaches || iv.Upper < hopeless {
			return
		}
		c, err := Calibrate(ctx, Options{Size: x.options.Size, Threads: x.options.Threads})
		if err != nil {
			return // ctx ended: the caller sees it
		}
		if c.TFLOPS < x.rating.reference {
			x.rating.reference, x.rating.sku = c.TFLOPS, "this host, calibrated beside the windows"
			x.rating = x.rating.choose(x.options)
		}
		if Judge(Estimate(x.rates()).over(x.rating.gate)) == Reaches {
			return
		}
		x.load(ctx)
		x.gate(ctx)
	}
}

func readCalibration(o Options) (Calibration, bool) {
	bytes, err := os.ReadFile(o.Calibration)
	var c Calibration
	if err != nil || json.Unmarshal(bytes, &c) != nil {
		return c, false // absent or torn: measured again
	}
	return c, c.CPU == cpuModel() && c.Threads == threads(o) && c.Size == o.Size && c.TFLOPS > 0
}

// write replaces the file in one step: runs that start together may each write it.
func (c Calibration) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("calibration: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".rating-*")
	if err != nil {
		return fmt.Errorf("calibration: %w", err)
	}
	defer os.Remove(f.Name())
	if err := json.NewEncoder(f).Encode(c); err != nil {
		f.Close()
		return fmt.Errorf("calibration: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("calibration: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("calibration: %w", err)
	}
	return nil
}

func threads(o Options) int {
	if o.Threads > 0 {
		return o.Threads
	}
	return runtime.GOMAXPROCS(0)
}

// tableRating looks a device up in the rated table.
func tableRating(id gpu.Identity, o Options) rating {
	device, subsystem := id.PCIDevice()
	row, ok := gpu.Lookup(device, subsystem, id.Name)
	var r rating
	if ok {
		r = rating{
			row: &row, sku: row.SKU, reference: row.Reference, datasheet: row.Datasheet, grade: row.Grade,
			binding: row.Binding(),
		}
	}
	if o.Rated > 0 {
		r.reference, r.grade, r.binding = o.Rated, gpu.GradeA, true
	}
	return r.choose(o)
}
