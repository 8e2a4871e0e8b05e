package verify_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/functions/verify"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
	"lowtide/shared/store"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// small asks for products that a test can check in no time; the CPU's and the GPU's share it.
var small = verify.Options{Profile: func(string) gpu.Profile { return gpu.Profile{Size: 64, Measure: 30 * time.Second} }}

type bench struct {
	t   *testing.T
	f   fn.Function
	seq uint64
	now time.Time
}

func (b *bench) hear(fact events.Fact) ([]events.Event, error) {
	b.seq++
	return b.f.Handle(context.Background(), []fn.Delivery{{Event: events.New("f", "test", b.now, fact), Stream: "S", Seq: b.seq, At: b.now, Attempt: 1}})
}

func (b *bench) say(fact events.Fact) events.Fact {
	b.t.Helper()
	said, err := b.hear(fact)
	if err != nil {
		b.t.Fatal(err)
	}
	if len(said) == 0 {
		return nil
	}
	return said[0].Data
}

func ordered(t *testing.T) *bench {
	b := &bench{t: t, f: verify.New(store.Memory(), small), now: t0}
	b.say(events.OrderGiven{Machine: "m1", Order: fleet.Order{Number: 1, Benchmark: &fleet.Benchmark{Nonce: "n1", Suite: "quick"}}})
	b.now = t0.Add(2 * time.Minute)
	return b
}

func answer(verdict string, ratio float64, causes ...string) events.BenchmarkFinished {
	device := func(uuid string, measured, rated, ratio float64) events.Device {
		return events.Device{
			Name: "card", UUID: uuid, Measured: measured, Rated: rated, Ratio: ratio, Lower: ratio - 0.01, Upper: ratio + 0.01,
			Work: 30 * time.Second, Checksum: product.Expected("n1", 64),
		}
	}
	return events.BenchmarkFinished{
		Machine: "m1", Nonce: "n1", Backend: "cuda", Suite: "quick", Size: 64, Elapsed: 90 * time.Second, Verdict: verdict, Causes: causes,
		Devices: []events.Device{device("u1", 1, 1, 1), device("u2", 100*ratio, 100, ratio)},
	}
}

// changed is an answer with something else in it.
func changed(f events.BenchmarkFinished, change func(*events.BenchmarkFinished)) events.BenchmarkFinished {
	change(&f)
	return f
}

func TestTheSlowestDeviceDecidesAndDoubtNeverEndsAMachine(t *testing.T) {
	for name, c := range map[string]struct {
		in     events.BenchmarkFinished
		reject string // part of the cause; "" passes
	}{
		"fast":                    {answer("pass", 0.97), ""},
		"slow":                    {answer("fail", 0.6, "slow: throttled"), "throttled"},
		"slow without a cause":    {answer("fail", 0.6), "61 %"},
		"not decided":             {answer("inconclusive", 0.9, "weak_reference"), ""},
		"a pass that is none":     {answer("pass", 0.7), "71 %"},
		"a fail that is none":     {answer("fail", 0.99), ""},
		"wrong card, at speed":    {answer("fail", 0.99, "identity: renamed"), "renamed"},
		"could not run":           {events.BenchmarkFinished{Machine: "m1", Nonce: "n1", Error: "no driver"}, "no driver"},
		"another suite":           {changed(answer("pass", 1), func(a *events.BenchmarkFinished) { a.Suite = "full" }), "suite"},
		"too little work":         {changed(answer("pass", 1), func(a *events.BenchmarkFinished) { a.Devices[1].Work = time.Second }), "worked less"},
		"too much work":           {changed(answer("pass", 1), func(a *events.BenchmarkFinished) { a.Devices[1].Work = time.Hour }), "longer"},
		"a small product":         {changed(answer("pass", 1), func(a *events.BenchmarkFinished) { a.Size = 8 }), "smaller"},
		"a huge product":          {changed(answer("pass", 1), func(a *events.BenchmarkFinished) { a.Size = 1 << 30 }), "smaller"},
		"an old product":          {changed(answer("pass", 1), func(a *events.BenchmarkFinished) { a.Devices[0].Checksum = product.Expected("n0", 64) }), "nonce"},
		"no product":              {changed(answer("pass", 1), func(a *events.BenchmarkFinished) { a.Devices[1].Checksum = 0 }), "nonce"},
		"faster than the chip":    {changed(answer("pass", 1), func(a *events.BenchmarkFinished) { a.Devices[0].Name, a.Devices[0].Measured = "Tesla T4", 900 }), "peak"},
		"refused at once":         {events.BenchmarkFinished{Machine: "m1", Nonce: "n1", Suite: "quick", Verdict: "inconclusive", Causes: []string{"not built"}}, ""},
		"passed nothing":          {changed(answer("pass", 1), func(a *events.BenchmarkFinished) { a.Devices = nil }), "without a device"},
		"a pass in doubt":         {answer("pass", 0.9), ""},
		"faster than time allows": {changed(answer("pass", 1), func(a *events.BenchmarkFinished) { a.Elapsed = time.Hour }), "impossible"},
	} {
		t.Run(name, func(t *testing.T) {
			switch f := ordered(t).say(c.in).(type) {
			case events.InstanceVerified:
				if c.reject != "" || f.Nonce != "n1" {
					t.Errorf("verified: %+v", f)
				}
			case events.InstanceRejected:
				if c.reject == "" || !strings.Contains(f.Cause, c.reject) {
					t.Errorf("rejected: %+v, want %q in it", f, c.reject)
				}
			default:
				t.Errorf("said %v", f)
			}
		})
	}
}

func TestOnlyTheFirstAnswerToAnOrderCountsAndIsSaidAgain(t *testing.T) {
	b := ordered(t)
	if f := b.say(events.BenchmarkFinished{Machine: "m1", Nonce: "other", Verdict: "pass"}); f != nil {
		t.Errorf("an answer to nobody's order: %v", f)
	}
	b.say(answer("fail", 0.6, "slow"))
	said, err := b.hear(answer("pass", 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := said[0].Data.(events.InstanceRejected); !ok {
		t.Errorf("a second answer changed the verdict: %v", said[0].Data)
	}
	again, _ := b.hear(answer("pass", 1))
	if again[0].ID == said[0].ID {
		t.Error("said again under the same id: the stream would drop it")
	}
}

func TestAnAnswerThatOvertakesItsOrderIsHeardLater(t *testing.T) {
	b := &bench{t: t, f: verify.New(store.Memory(), small), now: t0}
	if _, err := b.hear(answer("pass", 1)); err == nil {
		t.Error("dropped, and the machine would wait for ever")
	}
}

func TestARejectedDeviceIsKnownAgainForAWeek(t *testing.T) {
	order := func(b *bench, machine, nonce string) {
		b.say(events.OrderGiven{Machine: machine, Order: fleet.Order{Number: 1, Benchmark: &fleet.Benchmark{Nonce: nonce, Suite: "quick"}}})
		b.now = b.now.Add(2 * time.Minute)
	}
	again := func(b *bench, machine, nonce, uuid string) events.Fact {
		order(b, machine, nonce)
		return b.say(changed(answer("pass", 1), func(a *events.BenchmarkFinished) {
			a.Machine, a.Nonce, a.Devices = machine, nonce, a.Devices[:1]
			a.Devices[0].UUID, a.Devices[0].Checksum = uuid, product.Expected(nonce, 64)
		}))
	}
	b := ordered(t)
	b.say(answer("fail", 0.6, "performance: cooling"))
	if f, ok := again(b, "m2", "n2", "u2").(events.InstanceRejected); !ok || !strings.Contains(f.Cause, "on m1: performance: cooling") {
		t.Errorf("the slow card came back under another machine: %+v", f)
	}
	if f, ok := again(b, "m3", "n3", "u1").(events.InstanceVerified); !ok || f.Took != 2*time.Minute {
		t.Errorf("its neighbour was not slow: %+v", f)
	}
	b.now = t0.Add(8 * 24 * time.Hour)
	if f := again(b, "m4", "n4", "u2"); f.Kind() != "instance.verified" {
		t.Errorf("a week later it is a card like others: %+v", f)
	}
}

func TestACPUIsNotKnownAgainSinceAllMachinesOfItsHostHaveIt(t *testing.T) {
	b := ordered(t)
	cpu := func(a events.BenchmarkFinished, machine, nonce string) events.BenchmarkFinished {
		return changed(a, func(a *events.BenchmarkFinished) {
			a.Backend, a.Machine, a.Nonce, a.Devices = "cpu", machine, nonce, a.Devices[1:]
			a.Devices[0].UUID, a.Devices[0].Checksum = "cpu-0", product.Expected(nonce, 64)
		})
	}
	if f := b.say(cpu(answer("fail", 0.6, "performance: throttled"), "m1", "n1")); f.Kind() != "instance.rejected" {
		t.Fatalf("slow, and said %+v", f)
	}
	b.say(events.OrderGiven{Machine: "m2", Order: fleet.Order{Number: 1, Benchmark: &fleet.Benchmark{Nonce: "n2", Suite: "quick"}}})
	b.now = b.now.Add(2 * time.Minute)
	if f := b.say(cpu(answer("pass", 1), "m2", "n2")); f.Kind() != "instance.verified" {
		t.Errorf("another machine at full speed: %+v", f)
	}
}

func BenchmarkTheProductOfAWholeSuite(b *testing.B) {
	for b.Loop() {
		product.Expected("n1", gpu.ProfileOf("cuda").Size)
	}
}

func TestAMachinesRecordIsNotKeptForEver(t *testing.T) {
	_, js := natstest.Connect(t, natstest.Start(t, embedded.Options{}))
	orders, err := store.Open(t.Context(), js, "benchmarks", 1)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, f: verify.New(orders, verify.Options{}), now: t0}
	stored := func(when string) {
		t.Helper()
		raw, err := js.Stream(t.Context(), "KV_benchmarks")
		if err != nil {
			t.Fatal(err)
		}
		m, err := raw.GetLastMsgForSubject(t.Context(), "$KV.benchmarks.m1")
		if err != nil {
			t.Fatal(err)
		}
		// How the server keeps this is tested with store.Expiring.
		if life, err := time.ParseDuration(m.Header.Get("Nats-TTL")); err != nil || life != verify.Kept {
			t.Errorf("%s it is kept for %s (%v), want %s", when, life, err, verify.Kept)
		}
	}
	b.say(events.OrderGiven{Machine: "m1", Order: fleet.Order{Number: 1, Benchmark: &fleet.Benchmark{Nonce: "n1", Suite: "quick"}}})
	stored("ordered")
	b.now = b.now.Add(2 * time.Minute)
	b.say(answer("pass", 0.97))
	stored("answered")
}

func TestAMachineThatTheWorkloadsOwnCheckDislikesIsRejectedWithItsLastLines(t *testing.T) {
	check := func(code int) events.BenchmarkFinished {
		return changed(answer("pass", 1), func(f *events.BenchmarkFinished) { f.Framework = &events.Framework{Code: code, Tail: "no CUDA"} })
	}
	got, ok := ordered(t).say(check(1)).(events.InstanceRejected)
	if !ok || got.Cause != "framework: verify.command ended with status 1:\nno CUDA" {
		t.Errorf("got %+v", got)
	}
	if said := ordered(t).say(check(0)); said.Kind() != "instance.verified" {
		t.Errorf("got %+v, want it verified", said)
	}
	b := ordered(t)
	b.say(check(1))
	b.say(events.OrderGiven{Machine: "m1", Order: fleet.Order{Number: 2, Benchmark: &fleet.Benchmark{Nonce: "n2", Suite: "quick"}}})
	b.now = b.now.Add(2 * time.Minute)
	again := changed(answer("pass", 1), func(f *events.BenchmarkFinished) {
		f.Nonce = "n2"
		for i := range f.Devices {
			f.Devices[i].Checksum = product.Expected("n2", 64)
		}
	})
	if said := b.say(again); said.Kind() != "instance.verified" {
		t.Errorf("got %+v: another workload may like the same device", said)
	}
}
