//go:build unix

package prices_test

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"lowtide/functions/prices"
	"lowtide/shared/fleet"
)

// many are offers of nine clouds: types in zones, on demand and spot.
func many(n int) []fleet.Offer {
	var out []fleet.Offer
	for i := range n {
		m, price := fleet.OnDemand, 3+float64(i%50)/10
		if i%2 == 1 {
			m, price = fleet.Spot, 1+float64(i%50)/40
		}
		out = append(out, fleet.Offer{
			Cloud: "fake", Account: "main", Region: fmt.Sprintf("region-%d", i/2%40), Zone: fmt.Sprintf("region-%d-az%d", i/2%40, i/80%5),
			Type: fmt.Sprintf("type-%d.24xlarge", i/400), Market: m, GPU: "A100", GPUs: 8, Form: "SXM4", Memory: 80,
			Price: fleet.Price{Amount: fleet.Dollars(price), Per: fleet.PerInstanceHour},
		})
	}
	return out
}

// cpu is the time that this process has computed, on a machine that others use too.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func TestFiftyThousandOffersAreWithinTheirBounds(t *testing.T) {
	const n = 50000
	b := newBench(t, nil, prices.Options{})
	b.shop.offers = many(n)
	b.tick()
	for i := range b.shop.offers {
		if i%10 == 1 {
			b.shop.offers[i].Price.Amount = fleet.Dollars(0.9)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := cpu(t)
	b.tick()
	took := cpu(t) - began
	runtime.ReadMemStats(&after)
	v, _, err := b.bucket.Get(t.Context(), fleet.MarketKey)
	if err != nil {
		t.Fatal(err)
	}
	book, _, err := b.bucket.Get(t.Context(), "prices")
	if err != nil {
		t.Fatal(err)
	}
	if most := 5 * time.Second; took > most && !raced {
		t.Errorf("a poll takes %s of CPU, want %s at most", took, most)
	}
	for name, size := range map[string]int{"market": len(v), "book": len(book)} {
		if size > 8<<20 {
			t.Errorf("the %s is %d bytes, more than one message of the store holds", name, size)
		}
	}
	t.Logf("%d offers: a poll takes %s of CPU and allocates %d MB, heap in use %d MB; the market is %d KB, the book %d KB",
		n, took.Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, after.HeapInuse>>20, len(v)>>10, len(book)>>10)
	var m fleet.Markets
	if fleet.Unpack(v, &m) == nil && len(m.Offers) != n {
		t.Errorf("%d offers in the market, want %d", len(m.Offers), n)
	}
}
