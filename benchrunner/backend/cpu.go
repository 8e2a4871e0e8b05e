package backend

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
)

// maxIdle keeps a throttled device finite: a share of 1 would never multiply.
const maxIdle = 0.99

// nap is the shortest idle time that is slept: shorter ones are saved up, for a sleep overshoots by tens of microseconds.
const nap = time.Millisecond

// OpenCPU opens the host's cores as one device that multiplies in single precision.
//
// Each worker is a locked thread that computes whole products of its own. The device's clock is the CPU time the worker's
// thread used, plus the idle time that Throttle asks for, so another process on the same cores lengthens the wall time
// and not the measurement; Block.Busy tells how much. A worker's rate is that of its kernel at the first quartile, because
// one that was interrupted pays for refilling the caches. It still feels others through a core's second hardware thread.
func OpenCPU(o Options) (Backend, error) {
	if o.Problem.N < tile {
		return nil, fmt.Errorf("cpu: matrix size %d: want at least %d", o.Problem.N, tile)
	}
	if o.Throttle < 0 || o.Throttle > 1 {
		return nil, fmt.Errorf("cpu: throttle %v: want a share from 0 to 1", o.Throttle)
	}
	threads := o.Threads
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	return &cpu{problem: o.Problem, threads: threads, idle: min(o.Throttle, maxIdle)}, nil
}

// cpu is both the backend and its only device.
type cpu struct {
	problem product.Problem
	threads int
	idle    float64
	a, b    []float32
	c       [][]float32 // one product a worker
}

func (c *cpu) Name() string                { return "cpu" }
func (c *cpu) Devices() []Device           { return []Device{c} }
func (c *cpu) Findings() []gpu.Finding     { return nil }
func (c *cpu) Close() error                { c.Free(); return nil }
func (c *cpu) Sample() gpu.Sample          { return gpu.Sample{} }
func (c *cpu) Read() gpu.Reading           { return gpu.Reading{} }
func (c *cpu) Free()                       { c.a, c.b, c.c = nil, nil, nil }
func (c *cpu) Versions() map[string]string { return map[string]string{"go": runtime.Version()} }

func (c *cpu) Identity() gpu.Identity {
	return gpu.Identity{Name: fmt.Sprintf("cpu %s, %d threads", runtime.GOARCH, c.threads), UUID: "cpu-0"}
}

func (c *cpu) Load(context.Context) error {
	n := c.problem.N
	c.a, c.b = c.problem.Singles(product.A), c.problem.Singles(product.B)
	c.c = make([][]float32, c.threads)
	for w := range c.c {
		c.c[w] = make([]float32, n*n)
	}
	return nil
}

func (c *cpu) Burn(ctx context.Context, d time.Duration) (Block, error) {
	if c.a == nil {
		return Block{}, fmt.Errorf("cpu: burn before load")
	}
	spans := make([]span, c.threads)
	begin := time.Now()
	var wait sync.WaitGroup
	for w := range spans {
		wait.Go(func() { spans[w] = c.work(ctx, w, d) })
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return Block{}, fmt.Errorf("cpu: burn: %w", err)
	}
	block := Block{Host: time.Since(begin)}
	var wall, used time.Duration
	for _, s := range spans {
		block.Multiplies += len(s.kernels)
		block.Rate += c.problem.Flops() / s.quartile().Seconds()
		block.Device += (s.used + s.idle) / time.Duration(c.threads)
		wall, used = wall+s.wall, used+s.used
	}
	block.Busy = float64(wall) / float64(used)
	return block, nil
}

// span is one worker's account of a Burn.
type span struct {
	kernels          []time.Duration // CPU time and idle time of each
	used, idle, wall time.Duration   // CPU time and wall time inside kernels, idle time between them
}

func (s span) quartile() time.Duration {
	if len(s.kernels) == 0 {
		return 0
	}
	slices.Sort(s.kernels)
	return s.kernels[len(s.kernels)/4]
}

func (c *cpu) work(ctx context.Context, w int, d time.Duration) (s span) {
	runtime.LockOSThread() // the thread's CPU clock is this worker's only while nothing else runs on it
	defer runtime.UnlockOSThread()
	owed := time.Duration(0)
	for s.used+s.idle < d && ctx.Err() == nil {
		used, began := threadTime(), time.Now()
		multiply(c.c[w], c.a, c.b, c.problem.N)
		step := threadTime() - used
		s.used, s.wall = s.used+step, s.wall+time.Since(began)
		pause := time.Duration(float64(step) * c.idle / (1 - c.idle))
		s.idle += pause // what was asked for: a sleep that overshoots is the scheduler's doing
		s.kernels = append(s.kernels, step+pause)
		if owed += pause; owed >= nap {
			time.Sleep(owed)
			owed = 0
		}
	}
	time.Sleep(owed)
	return s
}

func (c *cpu) Product(context.Context) (product.Output, error) {
	if c.c == nil {
		return product.Output{}, fmt.Errorf("cpu: product before load")
	}
	return product.Output{Singles: c.c[0]}, nil
}

// tile is the edge of the block of C held in registers.
const tile = 4

// multiply sets c, column after column, to the product of a (by rows) and b (by columns), both with lines of length n.
// It is our own, and plain, because the worker's thread has to do all of the work itself to be timed: library kernels
// spread over goroutines.
func multiply(c, a, b []float32, n int) {
	for j := 0; j < n; j += tile {
		for i := 0; i < n; i += tile {
			if i+tile <= n && j+tile <= n {
				block(c[j*n+i:], a[i*n:], b[j*n:], n)
				continue
			}
			for jj := j; jj < min(j+tile, n); jj++ {
				for ii := i; ii < min(i+tile, n); ii++ {
					c[jj*n+ii] = dot(a[ii*n:ii*n+n], b[jj*n:jj*n+n])
				}
			}
		}
	}
}

// block computes a tile by tile block: each value read is used tile times.
func block(c, a, b []float32, n int) {
	a0, a1, a2, a3 := a[:n], a[n : 2*n][:n], a[2*n : 3*n][:n], a[3*n : 4*n][:n]
	for j := range tile {
		bj := b[j*n : j*n+n][:n]
		var s0, s1, s2, s3 float32
		for l, v := range bj {
			s0 += a0[l] * v
			s1 += a1[l] * v
			s2 += a2[l] * v
			s3 += a3[l] * v
		}
		to := c[j*n : j*n+tile]
		to[0], to[1], to[2], to[3] = s0, s1, s2, s3
	}
}

func dot(a, b []float32) (sum float32) {
	for l, v := range a {
		sum += v * b[l]
	}
	return sum
}
