package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
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
	"lowtide/shared/store"
)

var (
	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
	beats = []events.Kind{events.MachineHeard{}.Kind()}
)

func beat(n uint64) events.Event {
	return events.New("f", "test", time.Time{}, events.MachineHeard{Machine: "m", Beat: n})
}

func number(d fn.Delivery) uint64 { return d.Event.Data.(events.MachineHeard).Beat }

// serve runs functions on a connection of their own until its result is called.
func serve(t testing.TB, s *embedded.Server, fs ...fn.Function) (h *live.Host, stop func()) {
	t.Helper()
	return serveAs(t, s, live.Options{Log: quiet}, fs...)
}

func serveAs(t testing.TB, s *embedded.Server, o live.Options, fs ...fn.Function) (h *live.Host, stop func()) {
	t.Helper()
	nc, _ := natstest.Connect(t, s)
	h, err := live.New(nc, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		err := h.Serve(ctx, fs...)
		if err != nil {
			t.Error(err)
		}
		ended <- err
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(stop)
	return h, stop
}

func say(t *testing.T, js jetstream.JetStream, numbers ...uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, n := range numbers {
		if _, err := bus.Publish(ctx, js, beat(n)); err != nil {
			t.Fatal(err)
		}
	}
}

// ledger is a fold as the decider is: its position and what it counted are one value, written over its revision.
type ledger struct {
	b     store.Bucket
	crash func() bool // after the write
}

func (l ledger) fold(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
	pos, counted, rev, err := l.read(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range batch {
		if d.Seq > pos {
			pos = d.Seq
			counted = append(counted, number(d))
		}
	}
	if _, err := l.b.Update(ctx, "ledger", fmt.Appendf(nil, "%d %v", pos, counted), rev); err != nil {
		return nil, err
	}
	if l.crash != nil && l.crash() {
		return nil, errors.New("crashed after the save")
	}
	return nil, nil
}

func (l ledger) read(ctx context.Context) (pos uint64, counted []uint64, rev uint64, err error) {
	val, rev, err := l.b.Get(ctx, "ledger")
	if errors.Is(err, store.ErrNotFound) {
		rev, err = l.b.Create(ctx, "ledger", []byte("0 []"))
		return 0, nil, rev, err
	}
	if err != nil {
		return 0, nil, 0, err
	}
	text := string(val)
	i := slices.Index(val, ' ')
	pos, err = strconv.ParseUint(text[:i], 10, 64)
	return pos, splitNumbers(text[i+2 : len(text)-1]), rev, err
}

func splitNumbers(s string) (all []uint64) {
	for n, in := uint64(0), false; ; s = s[1:] {
		if s == "" || s[0] == ' ' {
			if in {
				all = append(all, n)
			}
			if s == "" {
				return all
			}
			n, in = 0, false
			continue
		}
		n, in = 10*n+uint64(s[0]-'0'), true
	}
}

func upTo(n uint64) (all []uint64) {
	for i := range n {
		all = append(all, i+1)
	}
	return all
}

func TestAFoldCountsOnceThoughHostsCrashAndCompete(t *testing.T) {
	for _, hosts := range []int{1, 3} {
		t.Run(fmt.Sprintf("Hosts%d", hosts), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
				_, js := natstest.Connect(t, s)
				b, err := store.Open(context.Background(), js, "state", 1)
				if err != nil {
					t.Fatal(err)
				}
				var mu sync.Mutex
				rng := rand.New(rand.NewPCG(1, 2))
				chance := func(share float64) bool { mu.Lock(); defer mu.Unlock(); return rng.Float64() < share }
				l := ledger{b, func() bool { return chance(0.2) }}
				run := func() func() {
					_, stop := serve(t, s, fn.Fold("ledger", 8, beats, l.fold))
					return stop
				}
				stops := make([]func(), hosts)
				for i := range stops {
					stops[i] = run()
				}
				const all = 300
				for n := range uint64(all) {
					say(t, js, n+1)
					if chance(0.1) {
						i := int(n) % hosts
						stops[i]()
						stops[i] = run()
					}
					if chance(0.3) {
						time.Sleep(100 * time.Millisecond) // lets the hosts get at different positions
					}
				}
				time.Sleep(10 * time.Minute) // fake: every pace and every missed ack is over
				_, counted, _, err := l.read(context.Background())
				if err != nil || !slices.Equal(counted, upTo(all)) {
					t.Errorf("counted %v, %v; want each of 1 to %d once, in order", counted, err, all)
				}
			})
		})
	}
}

func TestAFoldWaitsForWhatADeadHostHadInHand(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		var mu sync.Mutex
		var folded []uint64
		f := fn.Fold("fold", 8, beats, func(_ context.Context, batch []fn.Delivery) ([]events.Event, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, d := range batch {
				folded = append(folded, number(d))
			}
			return nil, nil
		})
		_, stop := serve(t, s, f) // makes the consumer
		synctest.Wait()
		stop()
		say(t, js, 1, 2, 3)
		c, err := js.Consumer(context.Background(), bus.Facts, "fold")
		if err != nil {
			t.Fatal(err)
		}
		taken, err := c.FetchNoWait(3) // the host that dies: it takes and is never heard of again
		if err != nil {
			t.Fatal(err)
		}
		for range taken.Messages() {
		}
		say(t, js, 4, 5)
		serve(t, s, f)
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(folded, upTo(5)) {
			t.Errorf("folded %v, want 1 to 5 in order", folded)
		}
	})
}

func TestAHostThatIsAloneTakesWhatADeadOneHadInHandAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		var mu sync.Mutex
		var folded, heard []uint64
		note := func(to *[]uint64, batch ...fn.Delivery) {
			mu.Lock()
			defer mu.Unlock()
			for _, d := range batch {
				*to = append(*to, number(d))
			}
		}
		functions := []fn.Function{
			fn.Fold("fold", 8, beats, func(_ context.Context, batch []fn.Delivery) ([]events.Event, error) {
				note(&folded, batch...)
				return nil, nil
			}),
			fn.New("hear", fn.Hear(func(ctx context.Context, _ events.MachineHeard) ([]events.Event, error) {
				note(&heard, fn.From(ctx))
				return nil, nil
			})),
		}
		_, stop := serve(t, s, functions...)
		synctest.Wait()
		stop()
		say(t, js, 1, 2, 3)
		for _, name := range []string{"fold", "hear"} { // the host that dies
			c, err := js.Consumer(context.Background(), bus.Facts, name)
			if err != nil {
				t.Fatal(err)
			}
			taken, err := c.FetchNoWait(2)
			if err != nil {
				t.Fatal(err)
			}
			for range taken.Messages() {
			}
		}
		say(t, js, 4, 5)
		// Another one began to take it, and died too, with the whole process.
		c, err := js.Consumer(context.Background(), bus.Facts, "fold")
		if err != nil {
			t.Fatal(err)
		}
		cfg := c.CachedInfo().Config
		cfg.AckWait = time.Millisecond
		if _, err := js.UpdateConsumer(context.Background(), bus.Facts, cfg); err != nil {
			t.Fatal(err)
		}
		s.Shutdown()
		if err := s.Restart(); err != nil {
			t.Fatal(err)
		}
		serveAs(t, s, live.Options{Log: quiet, Alone: true}, functions...)
		time.Sleep(time.Second) // a sixth of the time after which the server would give them to somebody else
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(heard)
		if !slices.Equal(folded, upTo(5)) || !slices.Equal(heard, upTo(5)) {
			t.Errorf("within a second folded %v and heard %v, want 1 to 5", folded, heard)
		}
		for _, name := range []string{"fold", "hear"} {
			c, err := js.Consumer(context.Background(), bus.Facts, name)
			if err != nil || c.CachedInfo().Config.AckWait < time.Second {
				t.Errorf("%s is left with %s to acknowledge (%v)", name, c.CachedInfo().Config.AckWait, err)
			}
		}
	})
}

func TestASlowHandlerKeepsItsMessage(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		var calls atomic.Int32
		f := fn.New("slow", fn.Hear(func(ctx context.Context, _ events.MachineHeard) ([]events.Event, error) {
			calls.Add(1)
			select {
			case <-time.After(3 * time.Minute):
				return nil, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}))
		f.Slow = 5 * time.Minute
		h, _ := serve(t, s, f)
		say(t, js, 1)
		time.Sleep(10 * time.Minute)
		if c := h.Counts(); calls.Load() != 1 || c.Handled != 1 || c.Redelivered != 0 {
			t.Errorf("%d calls, %+v; want one", calls.Load(), c)
		}
	})
}

func TestAPanicIsAFailureOfItsMessageAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		h, _ := serve(t, s, fn.New("panic", fn.Hear(func(_ context.Context, e events.MachineHeard) ([]events.Event, error) {
			if e.Beat == 1 {
				panic("nil map")
			}
			return nil, nil
		})))
		say(t, js, 1, 2)
		time.Sleep(10 * time.Minute)
		if c := h.Counts(); c.Handled != 1 || c.Dead != 1 || c.Failed != fn.MaxAttempts {
			t.Errorf("%+v, want one handled, one dead after %d tries", c, fn.MaxAttempts)
		}
	})
}

func TestAnEventOnASubjectThatIsNotItsOwnIsNoEvent(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		h, _ := serve(t, s, fn.New("hear", fn.Hear(func(context.Context, events.MachineHeard) ([]events.Event, error) { return nil, nil }),
			fn.Hear(func(context.Context, events.PolicySet) ([]events.Event, error) {
				return nil, errors.New("an agent gave an order")
			})))
		own := bus.Subject("f", "machine.heard", "m1") // where m1's user may publish
		for _, e := range []events.Event{
			events.New("f", "m1", time.Now(), events.MachineHeard{Machine: "m1"}),
			events.New("f", "m1", time.Now(), events.MachineHeard{Machine: "m2"}),
			events.New("f", "m1", time.Now(), events.PolicySet{Halt: "stop all", By: "m1"}),
			events.New("g", "m1", time.Now(), events.MachineHeard{Machine: "m1"}),
		} {
			b, err := events.Encode(e)
			if err == nil {
				_, err = js.Publish(t.Context(), own, b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if c := h.Counts(); c.Handled != 1 || c.Dead != 3 || c.Failed != 0 {
			t.Errorf("%+v, want one handled and three buried unheard", c)
		}
	})
}

func TestAHostGoesOnAfterItsConsumerWasDeleted(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		var mu sync.Mutex
		var got []uint64
		serve(t, s, fn.Fold("fold", 4, beats, func(_ context.Context, batch []fn.Delivery) ([]events.Event, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, d := range batch {
				got = append(got, number(d))
			}
			return nil, nil
		}))
		say(t, js, 1, 2, 3)
		time.Sleep(time.Second)
		if err := js.DeleteConsumer(context.Background(), bus.Facts, "fold"); err != nil {
			t.Fatal(err)
		}
		say(t, js, 4, 5)
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(got, upTo(5)) {
			t.Errorf("folded %v, want 1 to 5: from where it was", got)
		}
	})
}

func TestAHostGoesOnAfterTheServerWasAway(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	_, js := natstest.Connect(t, s)
	heard := make(chan uint64, 100)
	serve(t, s, fn.New("hear", fn.Hear(func(_ context.Context, e events.MachineHeard) ([]events.Event, error) {
		heard <- e.Beat
		return nil, nil
	})))
	say(t, js, 1)
	if n := <-heard; n != 1 {
		t.Fatalf("heard %d, want 1", n)
	}
	s.Shutdown()
	said := make(chan struct{})
	go func() { say(t, js, 2); close(said) }() // goes on trying while there is no server
	time.Sleep(700 * time.Millisecond)         // longer than one try
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	<-said
	select {
	case n := <-heard:
		if n != 2 {
			t.Errorf("heard %d, want 2", n)
		}
	case <-time.After(5 * time.Second):
		t.Error("nothing heard within 5 s of the restart")
	}
}

func TestAFunctionOfTwoStreamsIsRefused(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	nc, _ := natstest.Connect(t, s)
	h, _ := live.New(nc, live.Options{Log: quiet})
	f := fn.Fold("usage", 1, []events.Kind{"utilisation.measured", "machine.heard"}, nil)
	if err := h.Serve(t.Context(), f); err == nil {
		t.Error("served")
	}
}

func TestTheNewestOrderIsReadFromTheStream(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	nc, js := natstest.Connect(t, s)
	h, _ := live.New(nc, live.Options{Log: quiet})
	if _, err := h.Last(t.Context(), "f", "machine.heard", "m"); !errors.Is(err, bus.ErrNone) {
		t.Errorf("last of nothing: %v, want ErrNone", err)
	}
	say(t, js, 1, 2)
	d, err := h.Last(t.Context(), "f", "machine.heard", "m")
	if err != nil || number(d) != 2 || d.Seq != 2 || time.Since(d.At) > time.Minute {
		t.Errorf("last: %+v, %v; want beat 2 at position 2", d, err)
	}
}

func TestAFastClockPacesEverything(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		nc, _ := natstest.Connect(t, s)
		origin := time.Date(2020, 5, 1, 0, 0, 0, 0, time.UTC)
		start := time.Now()
		h, err := live.New(nc, live.Options{Log: quiet, Clock: fn.Clock{Origin: origin, Start: start, Speed: 60}})
		if err != nil {
			t.Fatal(err)
		}
		rang := make(chan fn.Delivery, 1)
		ctx, cancel := context.WithCancel(context.Background())
		var ended sync.WaitGroup
		defer ended.Wait()
		defer cancel()
		ended.Go(func() {
			_ = h.Serve(ctx, fn.New("hear", fn.Hear(func(ctx context.Context, _ events.ClockTicked) ([]events.Event, error) {
				rang <- fn.From(ctx)
				return nil, nil
			})))
		})
		e := events.New("f", "test", origin, events.ClockTicked{What: "wake"})
		e.At = origin.Add(time.Hour)
		if err := h.Say(ctx, e); err != nil {
			t.Fatal(err)
		}
		d := <-rang
		if real := time.Since(start).Round(time.Second); real != time.Minute {
			t.Errorf("an hour took %v, want a minute", real)
		}
		if got := d.At.Sub(origin).Round(time.Minute); got != time.Hour {
			t.Errorf("the message says %v after the origin, want an hour", got)
		}
	})
}

// deaf lets what the server answers get lost, but for the first so many acks of publishes.
type deaf struct {
	*embedded.Server
	on   *atomic.Bool
	acks *atomic.Int32
}

func (d deaf) InProcessConn() (net.Conn, error) {
	c, err := d.Server.InProcessConn()
	return deafConn{c, d}, err
}

type deafConn struct {
	net.Conn
	deaf
}

func (c deafConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		ack := bytes.Contains(p[:n], []byte(`"seq":`))
		if err != nil || !c.on.Load() || ack && c.acks.Add(-1) >= 0 {
			return n, err
		}
	}
}

// The first of several goes alone, and the others together once it is stored.
func TestAFactWhoseAckWasLostIsStoredOnce(t *testing.T) {
	for _, c := range []struct{ size, acked int }{{1, 0}, {50, 0}, {50, 1}} {
		t.Run(fmt.Sprintf("Events%d/Acked%d", c.size, c.acked), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
				d := deaf{s, new(atomic.Bool), new(atomic.Int32)}
				d.acks.Store(int32(c.acked))
				nc, err := nats.Connect("", append(bus.Options("test", nil), nats.InProcessServer(d))...)
				if err != nil {
					t.Fatal(err)
				}
				defer nc.Close()
				h, err := live.New(nc, live.Options{Log: quiet})
				if err != nil {
					t.Fatal(err)
				}
				d.on.Store(true)
				time.AfterFunc(3*time.Second, func() { d.on.Store(false) })
				var said []events.Event
				for n := range c.size {
					said = append(said, beat(uint64(n+1)))
				}
				if err := h.Say(context.Background(), said...); err != nil {
					t.Fatal(err)
				}
				lost := 1 // while nobody hears
				if c.acked > 0 {
					lost = c.size - c.acked
				}
				if got := h.Counts(); got.Duplicates != uint64(lost) || got.Published != uint64(c.size-lost) {
					t.Errorf("%+v, want %d duplicates: their first tries were stored", got, lost)
				}
				_, js := natstest.Connect(t, s)
				st, err := js.Stream(context.Background(), bus.Facts)
				if err != nil || st.CachedInfo().State.Msgs != uint64(c.size) {
					t.Errorf("%d messages stored, %v; want %d", st.CachedInfo().State.Msgs, err, c.size)
				}
			})
		})
	}
}

func TestOfABatchEachDeliveryHasItsOwnFate(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		say(t, js, 1, 2, 3, 4)
		var mu sync.Mutex
		tries := map[uint64]int{}
		largest := 0
		f := fn.New("batch", fn.Hear(func(context.Context, events.MachineHeard) ([]events.Event, error) { return nil, nil }))
		f.Batch = 4
		f.Handle = func(_ context.Context, batch []fn.Delivery) ([]events.Event, error) {
			mu.Lock()
			defer mu.Unlock()
			largest = max(largest, len(batch))
			failed := fn.Failures{}
			for _, d := range batch {
				n := number(d)
				tries[n]++
				switch {
				case n == 2 && tries[n] < 3:
					failed[d.Seq] = fmt.Errorf("away: %w", fn.ErrPassing)
				case n == 3:
					failed[d.Seq] = fmt.Errorf("%w: not ours", fn.ErrDead)
				}
			}
			said := []events.Event{events.New("f", "batch", time.Time{}, events.ClockTicked{What: fmt.Sprint("said", len(batch))})}
			if len(failed) > 0 {
				return said, failed
			}
			return said, nil
		}
		h, _ := serve(t, s, f)
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		want := map[uint64]int{1: 1, 2: 3, 3: 1, 4: 1}
		if c := h.Counts(); fmt.Sprint(tries) != fmt.Sprint(want) || largest != 4 || c.Handled != 3 || c.Dead != 1 || c.Published == 0 {
			t.Errorf("tries %v, largest batch %d, %+v; want %v, the batch of 4, what was handled said", tries, largest, c, want)
		}
	})
}

func TestATraceGoesThroughAFunction(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	_, js := natstest.Connect(t, s)
	heard := make(chan string, 1)
	serve(t, s, fn.New("first", fn.Hear(func(context.Context, events.MachineHeard) ([]events.Event, error) {
		return []events.Event{events.New("f", "first", time.Time{}, events.ClockTicked{What: "x"})}, nil
	})), fn.New("second", fn.Hear(func(ctx context.Context, _ events.ClockTicked) ([]events.Event, error) {
		heard <- fn.From(ctx).Event.Trace
		return nil, nil
	})))
	e := beat(1)
	e.Trace = fn.Root()
	if _, err := bus.Publish(t.Context(), js, e); err != nil {
		t.Fatal(err)
	}
	got := <-heard
	if got == e.Trace || len(got) != len(e.Trace) || got[:35] != e.Trace[:35] {
		t.Errorf("heard under %q, want the trace of %q with another span", got, e.Trace)
	}
}
