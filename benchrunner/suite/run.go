package suite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"lowtide/benchrunner/backend"
	"lowtide/benchrunner/product"
	"lowtide/shared/gpu"
)

// alike is how close two neighbouring warm-up windows are when the device is taken for steady.
const alike = 0.02

// Run measures every device and judges the machine. An error means that the options make no sense or ctx ended; a
// machine that cannot be measured is a result with its cause.
func Run(ctx context.Context, o Options) (Result, error) {
	o, err := o.complete()
	if err != nil {
		return Result{}, err
	}
	began := time.Now()
	r := Result{Schema: 1, Nonce: o.Nonce, Backend: o.Backend, Suite: o.Suite, Basis: o.Basis, Size: o.Size,
		Started: began.UTC()}
	problem := product.New(o.Nonce, o.Size)
	b, err := backend.Open(ctx, o.Backend, backend.Options{
		Problem: problem, Threads: o.Threads, Throttle: o.Throttle, Sysfs: o.Sysfs})
	if err != nil {
		if cause, known := causeOf(err); known {
			return r.refuse(began, gpu.Found(cause, "%v", err)), nil
		}
		return Result{}, err
	}
	defer b.Close()
	r.Versions = b.Versions()
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
	runs := make([]*run, len(devices))
	for i, d := range devices {
		runs[i] = &run{options: o, device: d, problem: problem, rating: rate(d.Identity(), o)}
		runs[i].out.Identity = d.Identity()
	}
	each(runs, func(x *run) { x.measure(ctx) })
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("benchmark: %w", err)
	}
	for _, x := range runs {
		r.Devices = append(r.Devices, x.judge())
	}
	r.conclude(o)
	r.Elapsed = time.Since(began).Seconds()
	return r, nil
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
		{backend.ErrNotBuilt, gpu.BackendNotBuilt}, {backend.ErrNoDriver, gpu.NoDriver},
		{backend.ErrNoDevice, gpu.NoDevice}, {backend.ErrNoLibrary, gpu.LibraryUnfit},
		{backend.ErrUnfit, gpu.LibraryUnfit}, {backend.ErrLost, gpu.Lost}, {backend.ErrECC, gpu.ECCUncorrected},
		{backend.ErrMemory, gpu.MemoryBusy}, {backend.ErrFabric, gpu.FabricManager},
		{backend.ErrShared, gpu.SharedByMPS},
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
	problem  product.Problem
	rating   rating
	out      Device
	findings []gpu.Finding
	busy     []float64
	stopped  bool // a finding ended the measurement
}

func (x *run) find(f ...gpu.Finding) { x.findings = append(x.findings, f...) }

// measure loads, warms up, collects the windows and checks the product. What goes wrong becomes a finding.
func (x *run) measure(ctx context.Context) {
	defer x.device.Free()
	if err := x.device.Load(ctx); err != nil {
		x.stop(err)
		return
	}
	x.warmUp(ctx)
	x.collect(ctx, x.options.Windows)
	if x.options.Suite == Full {
		x.settle(ctx)
	}
	if x.stopped {
		return
	}
	c, err := x.device.Product(ctx)
	if err != nil {
		x.stop(err)
		return
	}
	x.out.Product = x.problem.Verify(c)
}

// stop ends the measurement with the error's cause.
func (x *run) stop(err error) {
	x.stopped = true
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	cause, known := causeOf(err)
	if !known {
		cause = gpu.DidNotRun
	}
	x.find(gpu.Found(cause, "%v", err))
}

// warmUp burns until two neighbouring windows are alike, or the limit. What it measured is kept only as the burst.
func (x *run) warmUp(ctx context.Context) {
	began, last, steady := time.Now(), 0.0, 0
	for spent := time.Duration(0); spent < x.options.WarmUp && !x.stopped; {
		w, d, err := x.window(ctx)
		if err != nil {
			x.stop(err)
			return
		}
		if x.out.Burst == 0 {
			x.out.Burst = w.TFLOPS
		}
		if steady = steady + 1; math.Abs(w.TFLOPS-last) > alike*last {
			steady = 0
		}
		last, spent = w.TFLOPS, spent+d
		if steady >= 2 {
			x.out.WarmUp = time.Since(began).Seconds()
			return
		}
	}
	x.out.WarmUp = time.Since(began).Seconds()
	if !x.stopped {
		x.find(gpu.Found(gpu.Unsteady, "neighbouring windows still differed by more than %.0f %% after %v",
			100*alike, x.options.WarmUp))
	}
}

// collect adds n windows.
func (x *run) collect(ctx context.Context, n int) {
	for range n {
		if x.stopped {
			return
		}
		w, _, err := x.window(ctx)
		if err != nil {
			x.stop(err)
			return
		}
		x.out.Windows = append(x.out.Windows, w)
	}
}

// settle extends an undecided row to twice its length, and if that does not decide, measures afresh once.
func (x *run) settle(ctx context.Context) {
	for _, fresh := range []bool{false, true} {
		if x.stopped || x.rating.gate == 0 || Judge(Estimate(x.rates()).over(x.rating.gate)) != Straddles {
			return
		}
		if fresh {
			x.out.Windows = nil
			x.collect(ctx, x.options.Windows)
		}
		x.collect(ctx, x.options.Windows)
	}
	x.rating.settled = true
}

// window burns once and samples the telemetry beside it.
func (x *run) window(ctx context.Context) (Window, time.Duration, error) {
	done := make(chan struct{})
	var samples []gpu.Sample
	var wait sync.WaitGroup
	wait.Go(func() {
		tick := time.NewTicker(max(x.options.Window/4, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				samples = append(samples, x.device.Sample())
			}
		}
	})
	block, err := x.device.Burn(ctx, x.options.Window)
	close(done)
	wait.Wait()
	if err != nil {
		return Window{}, 0, err
	}
	if !(block.Rate > 0) || math.IsInf(block.Rate, 0) {
		return Window{}, 0, fmt.Errorf("device time of %d multiplications: %w", block.Multiplies, errClock)
	}
	if block.Busy > 0 {
		x.busy = append(x.busy, block.Busy)
	}
	return Window{TFLOPS: block.Rate / 1e12, Device: block.Device.Seconds(), Host: block.Host.Seconds(),
		Multiplies: block.Multiplies, Sample: gpu.Mean(samples)}, block.Device, nil
}

// errClock marks an elapsed time that is zero, negative or not finite: never a throughput.
var errClock = errors.New("not a positive time")

func (x *run) rates() []float64 {
	all := make([]float64, len(x.out.Windows))
	for i, w := range x.out.Windows {
		all[i] = w.TFLOPS
	}
	return all
}
