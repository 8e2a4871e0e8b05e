package memory_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/shared/fn"
	"lowtide/shared/fn/memory"
	"lowtide/shared/store"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	beats = []events.Kind{events.MachineHeard{}.Kind()}
)

func beat(n uint64) events.Event {
	return events.New("f", "test", time.Time{}, events.MachineHeard{Machine: "m", Beat: n})
}

func number(d fn.Delivery) uint64 { return d.Event.Data.(events.MachineHeard).Beat }

// counter folds once per position, whatever is delivered twice. Its memory is lost in a crash; its saved state is not.
type counter struct {
	saved struct {
		pos     uint64
		counted []uint64
	}
	made int
}

func (c *counter) make() fn.Function {
	c.made++
	pos := c.saved.pos // read at start, as from the store
	return fn.Fold("count", 4, beats, func(_ context.Context, batch []fn.Delivery) ([]events.Event, error) {
		for _, d := range batch {
			if d.Seq > pos {
				pos = d.Seq
				c.saved.counted = append(c.saved.counted, number(d))
			}
		}
		c.saved.pos = pos
		return nil, nil
	})
}

// harsh is a world in which everything goes wrong.
func harsh() memory.Faults {
	return memory.Faults{
		Lose: 0.4, Double: 0.2, Reorder: 0.3, CrashAfterHandle: 0.1, CrashBeforeAck: 0.1,
		Delay: func(r *rand.Rand) time.Duration { return time.Duration(r.Int64N(int64(50 * time.Millisecond))) },
	}
}

// play runs a source that says each number until it is counted, and returns the host's history.
func play(seed uint64) (c *counter, h *memory.Host, history string) {
	sum := sha256.New()
	h = memory.New(seed, start)
	h.Trace = func(line string) { fmt.Fprintln(sum, line) }
	h.Faults = harsh()
	c = &counter{}
	h.AddMade("", c.make)
	const all = 60
	source := fn.Function{Name: "source", Every: time.Second, Tick: func(_ context.Context, now time.Time) ([]events.Event, error) {
		var said []events.Event
		for n := range uint64(all) {
			if !slices.Contains(c.saved.counted, n+1) {
				e := beat(n + 1)
				e.ID += now.String() // said again, with an attempt in its id
				said = append(said, e)
			}
		}
		return said, nil
	}}
	h.Add(source)
	h.Run(start.Add(10 * time.Minute))
	return c, h, hex.EncodeToString(sum.Sum(nil))
}

func TestEverythingIsCountedThoughEverythingGoesWrong(t *testing.T) {
	for seed := range uint64(50) {
		c, h, _ := play(seed)
		distinct := slices.Compact(slices.Sorted(slices.Values(c.saved.counted)))
		if len(distinct) != 60 {
			t.Errorf("seed %d: %d of 60 counted", seed, len(distinct))
		}
		var stored int
		h.Stored(func(fn.Delivery) { stored++ })
		if len(c.saved.counted) != stored {
			t.Errorf("seed %d: %d counted of %d stored: each position counts once", seed, len(c.saved.counted), stored)
		}
		if c.made < 2 || h.Counts().Redelivered == 0 {
			t.Errorf("seed %d: made %d times, %+v: the world was kind", seed, c.made, h.Counts())
		}
	}
}

func TestASeedGivesOneHistory(t *testing.T) {
	_, _, first := play(7)
	_, _, again := play(7)
	_, _, other := play(8)
	if first != again {
		t.Error("one seed gave two histories")
	}
	if first == other {
		t.Error("two seeds gave one history")
	}
}

func TestFaultsHappenAsOftenAsTold(t *testing.T) {
	h := memory.New(1, start)
	h.Faults = memory.Faults{Lose: 0.4}
	for n := range uint64(10_000) {
		_ = h.Say(context.Background(), beat(n))
	}
	if got := h.Counts().Published; got < 5_800 || got > 6_200 {
		t.Errorf("%d of 10000 stored, want about 6000", got)
	}
	h.Publish(beat(1 << 40))
	if _, ok := h.Last("f", "machine.heard", "m"); !ok {
		t.Error("what the world publishes is stored for certain")
	}
}

func TestARemovedFunctionHearsNoMoreAndAPausedOneLater(t *testing.T) {
	h := memory.New(1, start)
	var a, b []uint64
	note := func(to *[]uint64) fn.On {
		return fn.Hear(func(_ context.Context, e events.MachineHeard) ([]events.Event, error) {
			*to = append(*to, e.Beat)
			return nil, nil
		})
	}
	h.Add(fn.New("a", note(&a)))
	h.Add(fn.New("b", note(&b)))
	h.Publish(beat(1))
	h.Run(h.Now())
	h.Remove("a")
	h.Pause("b")
	h.Publish(beat(2))
	h.Run(h.Now().Add(time.Hour))
	if !slices.Equal(a, []uint64{1}) || !slices.Equal(b, []uint64{1}) {
		t.Errorf("heard %v and %v, want 1 and 1", a, b)
	}
	h.Restart("b", fn.New("b", note(&b)))
	h.Run(h.Now().Add(time.Hour))
	if !slices.Equal(a, []uint64{1}) || !slices.Equal(b, []uint64{1, 2}) {
		t.Errorf("heard %v and %v, want 1 and 1 2", a, b)
	}
	if h.Has("a") || !h.Has("b") {
		t.Error("a is there or b is not")
	}
}

func TestAFunctionAddedLateHearsFromTheBeginning(t *testing.T) {
	h := memory.New(1, start)
	h.Publish(beat(1), beat(2))
	h.Run(start.Add(time.Hour))
	var got []uint64
	h.Add(fn.Fold("late", 8, beats, func(_ context.Context, batch []fn.Delivery) ([]events.Event, error) {
		for _, d := range batch {
			got = append(got, number(d))
			if !d.At.Equal(start) {
				t.Errorf("%d was stored at %v, want %v", number(d), d.At, start)
			}
		}
		return nil, nil
	}))
	h.Run(h.Now())
	if !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("heard %v, want 1 2", got)
	}
}

func TestTheWorldActsInOrder(t *testing.T) {
	h := memory.New(1, start)
	var did []string
	h.At(start.Add(2*time.Second), func() { did = append(did, "two") })
	h.Every(time.Second, func() { did = append(did, h.Now().Sub(start).String()) })
	h.At(start.Add(-time.Hour), func() { did = append(did, "past") })
	h.Run(start.Add(2500 * time.Millisecond))
	if want := []string{"past", "1s", "two", "2s"}; !slices.Equal(did, want) {
		t.Errorf("did %q, want %q", did, want)
	}
	if got := h.Now().Sub(start); got != 2500*time.Millisecond {
		t.Errorf("the clock shows %v, want 2.5 s", got)
	}
}

func TestFunctionsThatAnswerEachOtherForEverAreCaught(t *testing.T) {
	h := memory.New(1, start)
	h.Limit = 10_000
	n := uint64(0)
	h.Add(fn.New("echo", fn.Hear(func(context.Context, events.MachineHeard) ([]events.Event, error) {
		n++
		return []events.Event{beat(n)}, nil
	})))
	h.Publish(beat(1 << 40))
	defer func() {
		if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "for ever") {
			t.Errorf("panic %v, want one that names the loop", p)
		}
	}()
	h.Run(start)
}

func TestAConflictIsTriedForEver(t *testing.T) {
	h := memory.New(1, start)
	tries := 0
	h.Add(fn.Fold("fold", 1, beats, func(context.Context, []fn.Delivery) ([]events.Event, error) {
		if tries++; tries < 30 {
			return nil, errors.Join(errors.New("save"), store.ErrConflict)
		}
		return nil, nil
	}))
	h.Publish(beat(1))
	h.Run(start.Add(time.Hour))
	if tries != 30 || len(h.Dead()) != 0 || h.Counts().Handled != 1 {
		t.Errorf("%d tries, dead %v, %+v", tries, h.Dead(), h.Counts())
	}
}

// BenchmarkDeliveries is a ring of ten functions, each saying what the next one hears.
func BenchmarkDeliveries(b *testing.B) {
	h := memory.New(1, start)
	n := uint64(0)
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("m%d", i))
	}
	for i := range 10 {
		f := fn.New(fmt.Sprintf("f%d", i), fn.Hear(func(_ context.Context, e events.MachineHeard) ([]events.Event, error) {
			n++
			return []events.Event{{ID: strconv.FormatUint(n, 10), Fleet: "f", Source: "bench", Data: events.MachineHeard{Machine: names[(i+1)%10], Beat: n}}}, nil
		}))
		f.Key = fmt.Sprintf("m%d", i)
		h.Add(f)
	}
	h.Faults.Delay = func(*rand.Rand) time.Duration { return 100 * time.Microsecond }
	first := beat(1 << 40)
	first.Data = events.MachineHeard{Machine: "m0"}
	h.Publish(first)
	b.ReportAllocs()
	for h.Counts().Handled < uint64(b.N) {
		h.Step()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
}
