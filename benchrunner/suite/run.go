package suite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"lowtide/benchrunner/backend"
	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
)

// How close neighbouring warm-up windows are, in rate and in clock, when the device is taken for steady.
const (
	alike      = 0.02
	alikeClock = 0.005
)

// Run measures every device and judges the machine. An error means that the options make no sense or ctx ended; a
// machine that cannot be measured is a result with its cause.
func Run(ctx context.Context, o Options) (Result, error) {
	o, err := o.complete()
	if err != nil {
		return Result{}, err
	}
	began := time.Now()
	r := Result{
		Schema: 1, Nonce: o.Nonce, Backend: o.Backend, Suite: o.Suite, Basis: o.Basis, Size: o.Size,
		Started: began.UTC(),
	}
	problem := product.New(o.Nonce, o.Size)
	r.Precision = "fp16_fp32"
	if o.Backend == "cpu" {
		r.Precision = "fp32"
	}
	b, err := open(ctx, o, problem)
	if err != nil {
		if cause, known := causeOf(err); known {
			return r.refuse(began, gpu.Found(cause, "%v", err)), nil
		}
		return Result{}, err
	}
	defer b.Close()
	devices, err := pick(b.Devices(), o.GPUs)
	if err != nil {
		return Result{}, err
	}
	rate := tableRating
	if o.Backend == "cpu" {
		if rate, err = calibratedRating(ctx, o); err != nil {
			return Result{}, err
		}
	}
	r.Causes = append(r.Causes, b.Findings()...)
	r.Table = gpu.TableVersion()
	runs, check := make([]*run, len(devices)), problem.Verifier()
	for i, d := range devices {
		runs[i] = &run{options: o, device: d, check: check, rating: rate(d.Identity(), o)}
		runs[i].out.Identity = d.Identity()
	}
	measure(ctx, runs)
	for _, x := range runs {
		x.doubtHost(ctx)
	}
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("benchmark: %w", err)
	}
	for _, x := range runs {
		r.Devices = append(r.Devices, x.judge())
	}
	r.Versions = b.Versions()
	r.conclude(o)
	r.Elapsed = time.Since(began).Seconds()
	return r, nil
}

// retry is how often a driver that is not there yet is asked for.
const retry = 2 * time.Second

// open waits for the driver while the machine boots: drivers appear minutes after the machine does.
func open(ctx context.Context, o Options, problem product.Problem) (backend.Backend, error) {
	deadline := time.Now().Add(o.Boot)
	for {
		b, err := backend.Open(ctx, o.Backend, backend.Options{
			Problem: problem, Threads: o.Threads, Throttle: o.Throttle, Sysfs: o.Sysfs,
		})
		absent := errors.Is(err, backend.ErrNoDriver) || errors.Is(err, backend.ErrNoDevice)
		if !absent || time.Now().Add(retry).After(deadline) {
			return b, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(retry):
		}
	}
}

// measure looks at each device singly first, then loads all at once for the gate: they share power, air and supply.
func measure(ctx context.Context, runs []*run) {
	for _, x := range runs {
		x.out.Health.Before = x.device.Read()
		x.probe(ctx)
		x.load(ctx)
		if len(runs) > 1 {
			x.alone(ctx)
		}
	}
	each(runs, func(x *run) { x.warmUp(ctx) })
	each(runs, func(x *run) { x.gate(ctx) })
	for _, x := range runs {
		if x.again {
			x.repeat(ctx)
		}
		x.verify(ctx)
		x.out.Health.After = x.device.Read()
		x.device.Free()
	}
}

// refuse is the result of a machine on which nothing could be measured.
func (r Result) refuse(began time.Time, f gpu.Finding) Result {
	r.Causes = append(r.Causes, f)
	r.Verdict = Fail
	if f.Class == gpu.ClassDoubt {
		r.Verdict = Inconclusive
	}
	r.Elapsed = time.Since(began).Seconds()
	return r
}

// causeOf maps a backend's error to the closed list.
func causeOf(err error) (gpu.Cause, bool) {
	for _, known := range []struct {
		err   error
		cause gpu.Cause
	}{
		{backend.ErrNotBuilt, gpu.BackendNotBuilt},
		{backend.ErrNoDriver, gpu.NoDriver},
		{backend.ErrNoDevice, gpu.NoDevice},
		{backend.ErrNoLibrary, gpu.LibraryUnfit},
		{backend.ErrUnfit, gpu.LibraryUnfit},
		{backend.ErrLost, gpu.Lost},
		{backend.ErrECC, gpu.ECCUncorrected},
		{backend.ErrMemory, gpu.MemoryBusy},
		{backend.ErrFabric, gpu.FabricManager},
		{backend.ErrShared, gpu.SharedByMPS},
		{backend.ErrBroken, gpu.DriverError},
		{backend.ErrClock, gpu.DriverImpossible},
	} {
		if errors.Is(err, known.err) {
			return known.cause, true
		}
	}
	return "", false
}

func pick(all []backend.Device, indices []int) ([]backend.Device, error) {
	if len(indices) == 0 {
		return all, nil
	}
	var some []backend.Device
	for _, i := range indices {
		if i < 0 || i >= len(all) {
			return nil, fmt.Errorf("gpu %d: this machine has %d", i, len(all))
		}
		some = append(some, all[i])
	}
	return some, nil
}

// each runs f for all at once and waits.
func each(runs []*run, f func(*run)) {
	var wait sync.WaitGroup
	for _, x := range runs {
		wait.Go(func() { f(x) })
	}
	wait.Wait()
}

// run is one device being measured.
type run struct {
	options  Options
	device   backend.Device
	check    func(product.Output) product.Check
	rating   rating
	out      Device
	findings []gpu.Finding
	samples  []gpu.Sample // of the gate's windows
	busy     []float64
	stopped  bool // a finding ended the measurement
	again    bool // and it is worth one more try
}

func (x *run) find(f ...gpu.Finding) { x.findings = append(x.findings, f...) }

func (x *run) load(ctx context.Context) {
	if err := x.device.Load(ctx); err != nil {
		x.stop(err)
	}
}

// gate collects the windows: as many as asked for, and in the full suite as many more as it takes to settle.
func (x *run) gate(ctx context.Context) {
	x.out.Windows, x.samples = nil, nil
	more := func(n int, fresh bool) []float64 {
		if fresh {
			x.out.Windows, x.samples = nil, nil
		}
		x.collect(ctx, n)
		if x.stopped || x.rating.gate <= 0 {
			return nil
		}
		rates := x.rates()
		for i := range rates {
			rates[i] /= x.rating.gate
		}
		return rates
	}
	_, x.rating.settled = Settle(x.options.Windows, x.options.Suite == Full, more)
}

// repeat measures once more what ended without a measurement: one failure may be the library's first, two are the
// device's.
func (x *run) repeat(ctx context.Context) {
	kept := x.findings
	x.findings, x.stopped, x.again = nil, false, false
	x.load(ctx)
	x.warmUp(ctx)
	x.gate(ctx)
	if x.stopped {
		x.findings = append(kept, x.findings...)
	}
}

// alone is one window while the others idle; half a window before it wakes the clocks.
func (x *run) alone(ctx context.Context) {
	for _, part := range []bool{false, true} {
		if x.stopped {
			return
		}
		block, err := x.device.Burn(ctx, x.options.Window/2)
		if err != nil {
			x.stop(err)
			return
		}
		if part {
			x.out.Alone = block.Rate / 1e12
		}
	}
}

// verify checks the product of the last multiplication.
func (x *run) verify(ctx context.Context) {
	if x.stopped {
		return
	}
	c, err := x.device.Product(ctx)
	if err != nil {
		x.stop(err)
		return
	}
	x.out.Product = x.check(c)
}

// stop ends the measurement with the error's cause.
func (x *run) stop(err error) {
	if x.stopped {
		return
	}
	x.stopped = true
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	cause, known := causeOf(err)
	switch {
	case !known:
		cause, x.again = gpu.DidNotRun, true
	case cause == gpu.DriverError:
		x.again = true
	case cause == gpu.MemoryBusy && x.idle():
		cause = gpu.MemoryUnwritable
	}
	x.find(gpu.Found(cause, "%v", err))
}

// idle reports that nobody else held the device before the benchmark.
func (x *run) idle() bool {
	return !slices.ContainsFunc(gpu.JudgeIdentity(x.out.Identity, ""), func(f gpu.Finding) bool {
		return f.Cause == gpu.Contended || f.Cause == gpu.SharedByMPS
	})
}

// warmUp burns until the device is steady, or the limit. What it measured is kept only as the burst.
func (x *run) warmUp(ctx context.Context) {
	began := time.Now()
	var warm []Window
	for spent := time.Duration(0); spent < x.options.WarmUp && !x.stopped && !steady(warm); {
		w, _, d, err := x.window(ctx)
		if err != nil {
			x.stop(err)
			return
		}
		warm, spent = append(warm, w), spent+d
	}
	x.out.WarmUp = time.Since(began).Seconds()
	if len(warm) == 0 {
		return
	}
	x.out.Burst = warm[0].TFLOPS
	if !steady(warm) && !x.stopped {
		x.find(gpu.Found(gpu.Unsteady, "the rate or the clock still moved after %v", x.options.WarmUp))
	}
}

// slopeWindows are compared with as many before them, for a clock that still falls as the device heats.
const slopeWindows = 5

// steady reports that the last three windows are alike, and that the clock, where it can be read, has stopped moving.
func steady(w []Window) bool {
	n := len(w)
	if n < 3 || !alikeRates(w[n-3], w[n-2]) || !alikeRates(w[n-2], w[n-1]) {
		return false
	}
	if w[n-1].Sample.SMClock == nil {
		return true
	}
	if n < 2*slopeWindows {
		return false
	}
	before, last := meanClock(w[n-2*slopeWindows:n-slopeWindows]), meanClock(w[n-slopeWindows:])
	return math.Abs(last-before) <= alikeClock*before
}

func alikeRates(a, b Window) bool { return math.Abs(a.TFLOPS-b.TFLOPS) <= alike*a.TFLOPS }

func meanClock(w []Window) float64 {
	sum := 0.0
	for _, v := range w {
		if v.Sample.SMClock != nil {
			sum += float64(*v.Sample.SMClock)
		}
	}
	return sum / float64(len(w))
}

// collect adds n windows.
func (x *run) collect(ctx context.Context, n int) {
	for range n {
		if x.stopped {
			return
		}
		w, samples, _, err := x.window(ctx)
		if err != nil {
			x.stop(err)
			return
		}
		x.out.Windows = append(x.out.Windows, w)
		x.samples = append(x.samples, samples...)
	}
}

// window burns once and samples the telemetry beside it, at least once.
func (x *run) window(ctx context.Context) (w Window, samples []gpu.Sample, spent time.Duration, err error) {
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		tick := time.NewTicker(max(x.options.Window/4, time.Millisecond))
		defer tick.Stop()
		for {
			samples = append(samples, x.device.Sample())
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	block, err := x.device.Burn(ctx, x.options.Window)
	close(done)
	wait.Wait()
	if err != nil {
		return Window{}, nil, 0, err
	}
	if block.Busy > 0 {
		x.busy = append(x.busy, block.Busy)
	}
	return Window{
		TFLOPS: block.Rate / 1e12, Device: block.Device.Seconds(), Host: block.Host.Seconds(),
		Multiplies: block.Multiplies, Sample: gpu.Mean(samples),
	}, samples, block.Device, nil
}

func (x *run) rates() []float64 {
	all := make([]float64, len(x.out.Windows))
	for i, w := range x.out.Windows {
		all[i] = w.TFLOPS
	}
	return all
}
