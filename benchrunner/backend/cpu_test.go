package backend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lowtide/benchrunner/backend"
	"lowtide/shared/gpu/product"
)

func open(t *testing.T, o backend.Options) backend.Device {
	t.Helper()
	b, err := backend.OpenCPU(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	d := b.Devices()[0]
	if err := d.Load(context.Background()); err != nil {
		t.Fatal(err)
	}
	return d
}

func burn(t *testing.T, d backend.Device, want time.Duration) backend.Block {
	t.Helper()
	block, err := d.Burn(context.Background(), want)
	if err != nil {
		t.Fatal(err)
	}
	return block
}

func TestTheCPUReallyMultiplies(t *testing.T) {
	for _, n := range []int{16, 63, 64, 130} { // with and without a rest beside the tiles
		p := product.New("cpu", n)
		d := open(t, backend.Options{Problem: p, Threads: 1})
		burn(t, d, time.Millisecond)
		c, err := d.Product(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if check := p.Verify(c); !check.Verified {
			t.Errorf("n = %d: got %+v, want a verified product", n, check)
		}
	}
}

func TestAThrottledCPUIsSlowerByItsShare(t *testing.T) {
	p := product.New("cpu", 64)
	free := open(t, backend.Options{Problem: p, Threads: 1})
	held := open(t, backend.Options{Problem: p, Threads: 1, Throttle: 0.5})
	burn(t, free, 5*time.Millisecond)
	burn(t, held, 5*time.Millisecond)
	// Idle time is in proportion to the kernel it follows, so the ratio is 0.5 however fast the core is at the moment;
	// the two are taken in turns because that may change.
	below := 0
	for range 9 {
		if ratio := burn(t, held, 10*time.Millisecond).Rate / burn(t, free, 10*time.Millisecond).Rate; ratio < 0.8 {
			below++
		}
	}
	if below < 5 {
		t.Errorf("got %d of 9 pairs with a throttled rate below 0.8 of the free one, want most", below)
	}
}

func TestACPUThrottledWhollyStillAnswers(t *testing.T) {
	d := open(t, backend.Options{Problem: product.New("cpu", 16), Threads: 1, Throttle: 1})
	if block := burn(t, d, time.Microsecond); block.Multiplies < 1 || !(block.Rate > 0) {
		t.Errorf("got %+v, want at least one multiplication", block)
	}
}

func TestTheCPUClockIsNotWallTime(t *testing.T) {
	d := open(t, backend.Options{Problem: product.New("cpu", 64), Threads: 1})
	block := burn(t, d, 20*time.Millisecond)
	if block.Device < 20*time.Millisecond || block.Host < block.Device/2 {
		t.Errorf("got device time %v and host time %v for 20 ms", block.Device, block.Host)
	}
}

func TestACancelledBurnEnds(t *testing.T) {
	d := open(t, backend.Options{Problem: product.New("cpu", 64), Threads: 2})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if _, err := d.Burn(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

func TestUnbuiltBackendsSaySo(t *testing.T) {
	for _, name := range []string{"rocm", "ascend"} {
		if _, err := backend.Open(context.Background(), name, backend.Options{}); !errors.Is(err, backend.ErrNotBuilt) {
			t.Errorf("%s: got %v, want %v", name, err, backend.ErrNotBuilt)
		}
	}
	if _, err := backend.Open(context.Background(), "abacus", backend.Options{}); err == nil || errors.Is(err, backend.ErrNotBuilt) {
		t.Errorf("abacus: got %v, want an error about the name", err)
	}
}

func TestSenselessOptionsAreRefused(t *testing.T) {
	p := product.New("cpu", 64)
	for _, o := range []backend.Options{{Problem: product.New("cpu", 1)}, {Problem: p, Throttle: -0.1}, {Problem: p, Throttle: 1.1}} {
		if _, err := backend.OpenCPU(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}
