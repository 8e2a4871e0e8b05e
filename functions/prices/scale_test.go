//go:build unix

package prices_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/prices"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/store"
)

// nine are the accounts of nine clouds that sell n offers together, and what fills their books: types in zones, on demand
// and spot.
func nine(tb testing.TB, n int) (accounts []provider.Provider, shops []*shop) {
	for i := range 9 {
		name := fmt.Sprintf("cloud-%d", i+1)
		c, err := fake.Open(fake.Config{Cloud: name})
		if err != nil {
			tb.Fatal(err)
		}
		s := &shop{Provider: c, offers: many(name, (n*(i+1))/9-(n*i)/9)}
		accounts, shops = append(accounts, s), append(shops, s)
	}
	return accounts, shops
}

func many(cloud string, n int) []fleet.Offer {
	var out []fleet.Offer
	for i := range n {
		m, price := fleet.OnDemand, 3+float64(i%50)/10
		if i%2 == 1 {
			m, price = fleet.Spot, 1+float64(i%50)/40
		}
		out = append(out, fleet.Offer{
			Cloud: cloud, Account: "main", Region: fmt.Sprintf("region-%d", i/2%40), Zone: fmt.Sprintf("region-%d-az%d", i/2%40, i/80%5),
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

// mostHeap is what a poll may need. The collector is told so, as GOMEMLIMIT does: how much garbage lies about otherwise is
// its own choice, and says nothing of what is needed.
const mostHeap = 300 << 20

// peak runs f and is the largest heap that was seen meanwhile, live and not yet collected.
func peak(f func()) (bytes uint64) {
	runtime.GC()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(mostHeap))
	read := func() uint64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	done, seen := make(chan struct{}), make(chan uint64)
	go func() {
		most := read()
		for {
			select {
			case <-done:
				seen <- max(most, read())
				return
			case <-time.After(2 * time.Millisecond):
				most = max(most, read())
			}
		}
	}()
	f()
	close(done)
	return <-seen
}

// poll is one look at the market of nine clouds, in which every tenth price has moved since the last.
type poll struct {
	*bench
	shops []*shop
	looks int
}

func newPoll(tb testing.TB, n int) *poll {
	p := &poll{bench: &bench{now: start, bucket: store.Memory(), objects: objects{}}}
	accounts, shops := nine(tb, n)
	p.shops = shops
	p.f = prices.New("prices", []string{"f1", "f2"}, accounts, p.bucket, p.objects, prices.Options{Now: func() time.Time { return p.now }})
	return p
}

func (p *poll) look(tb testing.TB) {
	p.looks++
	for _, s := range p.shops {
		for i := range s.offers {
			if i%10 == 1 {
				s.offers[i].Price.Amount = fleet.Dollars(0.9 + float64(p.looks%7)/100)
			}
		}
	}
	p.now = p.now.Add(time.Minute)
	p.seq++
	tick := fn.Delivery{Event: events.New("f1", "x", p.now, events.ClockTicked{What: "tick", Due: p.now}), Stream: "FACTS", Seq: p.seq, At: p.now}
	if _, err := p.f.Handle(tb.Context(), []fn.Delivery{tick}); err != nil {
		tb.Fatal(err)
	}
}

func TestFiftyThousandOffersOfNineCloudsAreWithinTheirBounds(t *testing.T) {
	const n, mostCPU, mostMessage = 50000, 5 * time.Second, 8 << 20
	p := newPoll(t, n)
	p.look(t)
	began := cpu(t)
	heap := peak(func() { p.look(t) })
	took := cpu(t) - began
	v, _, err := p.bucket.Get(t.Context(), fleet.MarketKey)
	if err != nil {
		t.Fatal(err)
	}
	book, _, err := p.bucket.Get(t.Context(), "prices")
	if err != nil {
		t.Fatal(err)
	}
	if took > mostCPU && !raced {
		t.Errorf("a poll takes %s of CPU, want %s at most", took, mostCPU)
	}
	if heap > mostHeap && !raced {
		t.Errorf("a poll needs a heap of %d MB, want %d at most", heap>>20, mostHeap>>20)
	}
	for name, size := range map[string]int{"market": len(v), "book": len(book)} {
		if size > mostMessage {
			t.Errorf("the %s is %d bytes, more than one message of the store holds", name, size)
		}
	}
	t.Logf("%d offers of nine clouds: a poll takes %s of CPU and a heap of %d MB at most; the market is %d KB, the book %d KB",
		n, took.Round(time.Millisecond), heap>>20, len(v)>>10, len(book)>>10)
	var m fleet.Markets
	if fleet.Unpack(v, &m) == nil && len(m.Offers) != n {
		t.Errorf("%d offers in the market, want %d", len(m.Offers), n)
	}
}

// BenchmarkPoll is one look at the market of nine clouds.
func BenchmarkPoll(b *testing.B) {
	for _, n := range []int{5000, 50000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPoll(b, n)
			p.look(b)
			b.ReportAllocs()
			var heap uint64
			for b.Loop() {
				heap = max(heap, peak(func() { p.look(b) }))
			}
			b.ReportMetric(float64(heap>>20), "MB-heap")
		})
	}
}
