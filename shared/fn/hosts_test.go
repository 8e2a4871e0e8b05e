package fn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
	live "lowtide/shared/fn/jetstream"
	"lowtide/shared/fn/memory"
)

// world is a host with its time: what functions may rely on must hold in each.
type world interface {
	Serve(fleet string, fs ...fn.Function)
	Publish(said ...events.Event)
	Raw(subject string, body []byte)
	Pass(d time.Duration)
	Now() time.Time
	Dead() []letter
}

type letter struct {
	Function, Reason, Subject string
	Body                      []byte
}

// everywhere runs a test on both hosts.
func everywhere(t *testing.T, test func(t *testing.T, w world)) {
	t.Run("Memory", func(t *testing.T) {
		test(t, &virtual{memory.New(1, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))})
	})
	t.Run("JetStream", func(t *testing.T) {
		natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
			nc, js := natstest.Connect(t, s)
			ctx, cancel := context.WithCancel(context.Background())
			w := &real{t: t, ctx: ctx, nc: nc, js: js}
			defer w.ended.Wait()
			defer cancel()
			test(t, w)
		})
	})
}

type virtual struct{ *memory.Host }

func (v *virtual) Serve(fleet string, fs ...fn.Function) {
	for _, f := range fs {
		v.AddFor(fleet, f)
	}
}
func (v *virtual) Raw(subject string, body []byte) { _ = v.PublishRaw(subject, body) }
func (v *virtual) Pass(d time.Duration)            { v.Run(v.Now().Add(d)) }
func (v *virtual) Dead() (all []letter) {
	for _, l := range v.Host.Dead() {
		all = append(all, letter{l.Function, l.Reason, l.Subject, l.Body})
	}
	return all
}

type real struct {
	t     *testing.T
	ctx   context.Context
	nc    *nats.Conn
	js    jetstream.JetStream
	ended sync.WaitGroup
}

func (r *real) host(fleet string) *live.Host {
	h, err := live.New(r.nc, live.Options{Fleet: fleet, Log: quiet})
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

func (r *real) Serve(fleet string, fs ...fn.Function) {
	h := r.host(fleet)
	r.ended.Go(func() {
		if err := h.Serve(r.ctx, fs...); err != nil {
			r.t.Error(err)
		}
	})
	synctest.Wait()
}

func (r *real) Publish(said ...events.Event) {
	if err := r.host("").Say(r.ctx, said...); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

func (r *real) Raw(subject string, body []byte) {
	if _, err := r.js.Publish(r.ctx, subject, body); err != nil {
		r.t.Fatal(err)
	}
}
func (r *real) Pass(d time.Duration) { time.Sleep(d); synctest.Wait() }
func (r *real) Now() time.Time       { return time.Now() }
func (r *real) Dead() (all []letter) {
	st, err := r.js.Stream(r.ctx, bus.Dead)
	if err != nil {
		r.t.Fatal(err)
	}
	for seq := uint64(1); seq <= st.CachedInfo().State.LastSeq; seq++ {
		m, err := st.GetMsg(r.ctx, seq)
		if err != nil {
			r.t.Fatal(err)
		}
		l, _ := bus.ReadLetter(m)
		all = append(all, letter{l.Function, l.Reason, l.Subject, l.Body})
	}
	return all
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// beat is the nth word of a machine.
func beat(fleet, machine string, n uint64) events.Event {
	return events.New(fleet, "test", time.Time{}, events.MachineHeard{Machine: machine, Beat: n})
}

// list is written by handlers and read by the test.
type list[T any] struct {
	mu  sync.Mutex
	all []T
}

func (l *list[T]) add(v T) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, v)
	return len(l.all)
}

func (l *list[T]) get() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// heard collects what a function was given.
type heard struct {
	mu    sync.Mutex
	calls [][]uint64
	beats []uint64
	at    []time.Time
	seqs  []uint64
}

func (h *heard) note(batch []fn.Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var call []uint64
	for _, d := range batch {
		n := d.Event.Data.(events.MachineHeard).Beat
		call = append(call, n)
		h.beats = append(h.beats, n)
		h.at = append(h.at, d.At)
		h.seqs = append(h.seqs, d.Seq)
	}
	h.calls = append(h.calls, call)
}

func (h *heard) all() []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.beats)
}

var beats = []events.Kind{events.MachineHeard{}.Kind()}

func upTo(n uint64) (all []uint64) {
	for i := range n {
		all = append(all, i+1)
	}
	return all
}

func TestAFoldHearsAllInOrderInBatches(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		var h heard
		for n := range uint64(100) {
			w.Publish(beat("f", "m", n+1))
		}
		w.Serve("", fn.Fold("fold", 16, beats, func(_ context.Context, batch []fn.Delivery) ([]events.Event, error) {
			h.note(batch)
			return nil, nil
		}))
		w.Pass(time.Second)
		if got := h.all(); !slices.Equal(got, upTo(100)) {
			t.Errorf("heard %v, want 1 to 100", got)
		}
		if len(h.calls) > 20 {
			t.Errorf("%d calls for 100 messages, want batches of 16", len(h.calls))
		}
		for _, c := range h.calls {
			if len(c) > 16 {
				t.Errorf("a batch of %d, want 16 at most", len(c))
			}
		}
		if !slices.IsSorted(h.seqs) {
			t.Errorf("positions %v do not rise", h.seqs)
		}
	})
}

func TestSayingTheSameAgainIsHeardOnceUntilTheWindowEnds(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		var h heard
		w.Serve("", fn.New("hear", hear(&h, nil)))
		w.Publish(beat("f", "m", 1))
		w.Publish(beat("f", "m", 1))
		w.Pass(9 * time.Minute)
		w.Publish(beat("f", "m", 1))
		w.Pass(time.Second)
		if got := h.all(); len(got) != 1 {
			t.Errorf("heard %d times within the window, want once", len(got))
		}
		w.Pass(3 * time.Minute)
		w.Publish(beat("f", "m", 1))
		w.Pass(time.Second)
		if got := h.all(); len(got) != 2 {
			t.Errorf("heard %d times, want a second time after the window", len(got))
		}
	})
}

// hear is an On that notes, and fails as told.
func hear(h *heard, fail func(n uint64, attempt int) error) fn.On {
	return fn.Hear(func(ctx context.Context, e events.MachineHeard) ([]events.Event, error) {
		d := fn.From(ctx)
		h.note([]fn.Delivery{d})
		if fail != nil {
			return nil, fail(e.Beat, d.Attempt)
		}
		return nil, nil
	})
}

func TestAFailedMessageIsTriedAtAPaceWhileOthersPass(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		var h heard
		var tries list[time.Duration]
		start := w.Now()
		w.Serve("", fn.New("hear", hear(&h, func(n uint64, attempt int) error {
			if n != 1 {
				return nil
			}
			tries.add(w.Now().Sub(start).Round(100 * time.Millisecond))
			if attempt < 5 {
				return errors.New("not yet")
			}
			return nil
		})))
		w.Publish(beat("f", "m", 1), beat("f", "m", 2))
		w.Pass(500 * time.Millisecond)
		if got := h.all(); !slices.Equal(got, []uint64{1, 2}) {
			t.Errorf("heard %v at once, want 1 2: the second need not wait", got)
		}
		w.Pass(2 * time.Minute)
		want := []time.Duration{0, time.Second, 6 * time.Second, 21 * time.Second, 81 * time.Second}
		if !slices.Equal(tries.get(), want) {
			t.Errorf("tried after %v, want %v", tries.get(), want)
		}
		if dead := w.Dead(); len(dead) != 0 {
			t.Errorf("dead: %v, want none", dead)
		}
	})
}

func TestAMessageThatFailsTenTimesIsADeadLetter(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		var h heard
		w.Serve("", fn.New("hear", hear(&h, func(uint64, int) error { return errors.New("disk full") })))
		w.Publish(beat("f", "m", 1))
		w.Pass(9 * time.Minute)
		if got := h.all(); len(got) != fn.MaxAttempts {
			t.Errorf("tried %d times, want %d", len(got), fn.MaxAttempts)
		}
		dead := w.Dead()
		if len(dead) != 1 || !strings.Contains(dead[0].Reason, "disk full") || dead[0].Subject != "lowtide.f.machine.heard.m" {
			t.Errorf("dead: %+v, want one because of the full disk", dead)
		}
	})
}

func TestWhatCannotBeReadIsADeadLetterAndTheRestGoesOn(t *testing.T) {
	garbage := []byte("{\"type\":\"lowtide.mach\x00")
	for _, batch := range []int{1, 8} {
		t.Run(fmt.Sprintf("Batch%d", batch), func(t *testing.T) {
			everywhere(t, func(t *testing.T, w world) {
				var h heard
				w.Publish(beat("f", "m", 1))
				w.Raw("lowtide.f.machine.heard.m", garbage)
				w.Publish(beat("f", "m", 2))
				w.Serve("", fn.Fold("fold", batch, beats, func(_ context.Context, batch []fn.Delivery) ([]events.Event, error) {
					h.note(batch)
					return nil, nil
				}))
				w.Pass(time.Minute)
				if got := h.all(); !slices.Equal(got, upTo(2)) {
					t.Errorf("heard %v, want 1 2", got)
				}
				dead := w.Dead()
				if len(dead) != 1 || string(dead[0].Body) != string(garbage) || dead[0].Function != "fold" || !strings.Contains(dead[0].Reason, "malformed") {
					t.Errorf("dead: %+v, want the bytes as they came, with the reason", dead)
				}
			})
		})
	}
}

func TestAHandlerCanCallAMessageDead(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		var h heard
		w.Serve("", fn.New("hear", hear(&h, func(uint64, int) error { return fmt.Errorf("%w: not ours", fn.ErrDead) })))
		w.Publish(beat("f", "m", 1))
		w.Pass(time.Minute)
		if got := h.all(); len(got) != 1 {
			t.Errorf("tried %d times, want once", len(got))
		}
		if dead := w.Dead(); len(dead) != 1 || !strings.Contains(dead[0].Reason, "not ours") {
			t.Errorf("dead: %+v, want one", dead)
		}
	})
}

func TestAFailedBatchOfAFoldIsNotOvertaken(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		var h heard
		var failures list[bool]
		w.Serve("", fn.Fold("fold", 8, beats, func(_ context.Context, batch []fn.Delivery) ([]events.Event, error) {
			if failures.add(true) <= 4 {
				return nil, errors.New("store away")
			}
			h.note(batch)
			return nil, nil
		}))
		w.Publish(beat("f", "m", 1))
		for n := range uint64(9) {
			w.Pass(2 * time.Second)
			w.Publish(beat("f", "m", n+2))
		}
		w.Pass(3 * time.Minute)
		if got := h.all(); !slices.Equal(got, upTo(10)) {
			t.Errorf("heard %v, want 1 to 10 in order", got)
		}
	})
}

func TestOnePoisonousMessageOfAFoldDiesAlone(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		var h heard
		for n := range uint64(6) {
			w.Publish(beat("f", "m", n+1))
		}
		w.Serve("", fn.Fold("fold", 4, beats, func(_ context.Context, batch []fn.Delivery) ([]events.Event, error) {
			for _, d := range batch {
				if d.Event.Data.(events.MachineHeard).Beat == 3 {
					return nil, errors.New("poison")
				}
			}
			h.note(batch)
			return nil, nil
		}))
		w.Pass(5 * time.Minute)
		if got, want := h.all(), []uint64{1, 2, 4, 5, 6}; !slices.Equal(got, want) {
			t.Errorf("folded %v, want %v", got, want)
		}
		dead := w.Dead()
		if len(dead) != 1 || !strings.Contains(dead[0].Reason, "poison") {
			t.Fatalf("dead: %+v, want the poisonous one", dead)
		}
		if e, err := events.Decode(dead[0].Body); err != nil || e.Data.(events.MachineHeard).Beat != 3 {
			t.Errorf("the dead letter holds %s, %v; want beat 3", dead[0].Body, err)
		}
	})
}

func TestAnAlarmRingsOnTimeAndTheLaterOneReplacesTheEarlier(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		var rang list[string]
		start := w.Now()
		w.Serve("", fn.New("hear", fn.Hear(func(ctx context.Context, e events.ClockTicked) ([]events.Event, error) {
			rang.add(fmt.Sprintf("%s %s %v", fn.From(ctx).Event.Fleet, e.What, fn.Now(ctx).Sub(start).Round(time.Second)))
			return nil, nil
		})))
		w.Publish(alarm("a", "wake", start.Add(10*time.Minute)), alarm("b", "wake", start.Add(time.Minute)))
		w.Publish(alarm("a", "wake", start.Add(20*time.Minute)))
		w.Publish(alarm("a", "wake", start.Add(5*time.Minute))) // earlier again: the last word counts
		w.Publish(alarm("a", "tick", start.Add(-time.Minute)))  // due: at once
		w.Pass(time.Second)
		if want := []string{"a tick 0s"}; !slices.Equal(rang.get(), want) {
			t.Errorf("rang %q, want %q", rang.get(), want)
		}
		w.Pass(6 * time.Minute)
		w.Publish(alarm("a", "wake", start.Add(30*time.Minute)))
		w.Publish(alarm("a", "wake", start.Add(2*time.Minute))) // due: it takes the waiting one with it
		w.Pass(40 * time.Minute)
		want := []string{"a tick 0s", "b wake 1m0s", "a wake 5m0s", "a wake 6m1s"}
		if !slices.Equal(rang.get(), want) {
			t.Errorf("rang %q, want %q", rang.get(), want)
		}
	})
}

func alarm(fleet, what string, at time.Time) events.Event {
	e := events.New(fleet, "test", at, events.ClockTicked{What: what, Due: at.UTC()})
	e.At = at
	return e
}

func TestAFunctionHearsItsFleetAndKeyOnly(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		var all, fleet, key heard
		one := fn.New("machine", hear(&key, nil))
		one.Key = "m2"
		w.Serve("", fn.New("all", hear(&all, nil)), one)
		w.Serve("g", fn.New("fleet", hear(&fleet, nil)))
		w.Publish(beat("f", "m1", 1), beat("f", "m2", 2), beat("g", "m2", 3), beat("g", "m1", 4))
		w.Pass(time.Second)
		for name, c := range map[string]struct{ got, want []uint64 }{
			"all": {all.all(), upTo(4)}, "fleet": {fleet.all(), []uint64{3, 4}}, "key": {key.all(), []uint64{2, 3}},
		} {
			if !slices.Equal(c.got, c.want) {
				t.Errorf("%s heard %v, want %v", name, c.got, c.want)
			}
		}
	})
}

func TestWhatAFunctionSaysOthersHear(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		var h heard
		w.Serve("", fn.New("ask", fn.Hear(func(_ context.Context, e events.ClockTicked) ([]events.Event, error) {
			return []events.Event{beat("f", "m", 1), beat("f", "m", 2)}, nil
		})), fn.New("hear", hear(&h, nil)))
		w.Publish(events.New("f", "test", time.Time{}, events.ClockTicked{What: "tick"}))
		w.Pass(time.Second)
		if got := h.all(); !slices.Equal(got, upTo(2)) {
			t.Errorf("heard %v, want 1 2", got)
		}
	})
}

func TestATickComesAtOnceAndThenEachInterval(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		start := w.Now()
		var h heard
		var ticks list[time.Duration]
		f := fn.New("sense", hear(&h, nil))
		f.Every = time.Minute
		f.Tick = func(_ context.Context, now time.Time) ([]events.Event, error) {
			n := ticks.add(now.Sub(start).Round(time.Second))
			if n == 2 {
				return nil, errors.New("the cloud is away")
			}
			return []events.Event{beat("f", "m", uint64(n))}, nil
		}
		w.Serve("", f)
		w.Pass(150 * time.Second)
		if want := []time.Duration{0, time.Minute, 2 * time.Minute}; !slices.Equal(ticks.get(), want) {
			t.Errorf("ticked at %v, want %v", ticks.get(), want)
		}
		if got := h.all(); !slices.Equal(got, []uint64{1, 3}) {
			t.Errorf("heard %v, want 1 3", got)
		}
	})
}
