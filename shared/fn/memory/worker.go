package memory

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

// worker is one function with its durable position: what it has not yet acknowledged.
type worker struct {
	h     *Host
	f     fn.Function
	fleet string // "" is all
	make  func() fn.Function

	queue []int   // positions not yet delivered
	again []entry // delivered before, due again
	held  []entry // a fold's batch that failed: nothing else comes before it
	tries int     // of held
	alone int     // how many of the first of held are to be tried one at a time

	waiting bool // until held may be tried again
	queued  bool // in h.ready
	paused  bool
	gone    bool
	life    int // raised by a restart: timers of an earlier life are void
}

type entry struct {
	pos     int
	attempt int
}

// Add runs a function for all fleets, from the stream's beginning. Names are unique.
func (h *Host) Add(f fn.Function) { h.AddFor("", f) }

// AddFor runs a function for one fleet.
func (h *Host) AddFor(fleet string, f fn.Function) { h.add(fleet, f, nil) }

// AddMade runs what made makes, for one fleet or all (""), and makes it anew after each crash: what the old value knew in
// memory is lost with it.
func (h *Host) AddMade(fleet string, made func() fn.Function) { h.add(fleet, made(), made) }

func (h *Host) add(fleet string, f fn.Function, made func() fn.Function) {
	if _, twice := h.workers[f.Name]; twice {
		panic("memory: two functions named " + f.Name)
	}
	if fleet != "" {
		fleet = events.Token(fleet)
	}
	w := &worker{h: h, f: f, fleet: fleet, make: made}
	h.workers[f.Name] = w
	wide := f.Key == "" || strings.ContainsAny(f.Key, "*>")
	past := []int{}
	for _, k := range f.Hears {
		if wide {
			h.wide[k] = append(h.wide[k], w)
		} else {
			h.narrow[kindKey{k, f.Key}] = append(h.narrow[kindKey{k, f.Key}], w)
		}
		past = append(past, h.kinds[k]...)
	}
	w.catchUp(past)
	w.startTicks()
}

// catchUp queues what was stored before the function was.
func (w *worker) catchUp(past []int) {
	slices.Sort(past)
	for _, pos := range past {
		s := w.h.log[pos]
		var fleet, key string
		if s.bad == nil {
			fleet, key = events.Token(s.event.Fleet), s.event.Data.Key()
		} else {
			p := strings.SplitN(s.subject, ".", 5)
			fleet, key = p[1], p[4]
		}
		if w.f.Listens(key) {
			w.enqueue(pos, fleet)
		}
	}
}

// Restart replaces a function's value, as a new process would: its position stays, what it was doing comes again.
func (h *Host) Restart(name string, f fn.Function) {
	w := h.worker(name)
	if f.Name != name {
		panic("memory: restart of " + name + " with " + f.Name)
	}
	w.f = f
	w.paused = false
	w.revive()
}

// Pause stops a function; what it would hear waits. Restart or Resume ends it.
func (h *Host) Pause(name string) { h.worker(name).paused = true }

// Resume ends a pause with the same value.
func (h *Host) Resume(name string) {
	w := h.worker(name)
	w.paused = false
	w.wake()
}

// Remove ends a function for ever, and its position with it. The name is free again.
func (h *Host) Remove(name string) {
	w := h.worker(name)
	w.gone = true
	w.life++
	delete(h.workers, name)
	for _, k := range w.f.Hears {
		is := func(o *worker) bool { return o == w }
		h.wide[k] = slices.DeleteFunc(h.wide[k], is)
		if kk := (kindKey{k, w.f.Key}); h.narrow[kk] != nil {
			h.narrow[kk] = slices.DeleteFunc(h.narrow[kk], is)
		}
	}
}

// Has says whether a function of this name runs or is paused.
func (h *Host) Has(name string) bool { _, ok := h.workers[name]; return ok }

func (h *Host) worker(name string) *worker {
	w, ok := h.workers[name]
	if !ok {
		panic("memory: no function named " + name)
	}
	return w
}

// revive begins a new life with the same position.
func (w *worker) revive() {
	w.life++
	w.waiting = false
	w.startTicks()
	w.wake()
}

func (w *worker) enqueue(pos int, fleet string) {
	if w.fleet == "" || w.fleet == fleet {
		w.queue = append(w.queue, pos)
		w.wake()
	}
}

func (w *worker) wake() {
	busy := len(w.queue) > 0 || len(w.again) > 0 || len(w.held) > 0
	if busy && !w.queued && !w.paused && !w.gone && !w.waiting {
		w.queued = true
		w.h.ready = append(w.h.ready, w)
	}
}

// call makes one call of the handler.
func (w *worker) call() {
	if w.paused || w.gone || w.waiting {
		return
	}
	batch := w.take()
	deliveries := make([]fn.Delivery, 0, len(batch))
	good := batch[:0]
	for _, en := range batch {
		if s := w.h.log[en.pos]; s.bad != nil {
			w.bury(en, s.bad)
			continue
		}
		if en.attempt > 1 {
			w.h.counts.Redelivered++
		}
		good = append(good, en)
		deliveries = append(deliveries, w.h.delivery(en))
	}
	if len(good) > 0 {
		said, err := w.f.Handle(context.Background(), deliveries)
		w.settle(good, said, err)
	}
	w.wake()
}

// take is what the next call treats: a failed batch first, then what is due again, then what is new.
func (w *worker) take() []entry {
	if len(w.held) > 0 {
		n := len(w.held)
		if w.alone > 0 {
			n = 1
		}
		batch := slices.Clone(w.held[:n])
		w.held = w.held[n:]
		return batch
	}
	most := max(1, w.f.Batch)
	batch := make([]entry, 0, min(most, len(w.again)+len(w.queue)))
	n := min(most, len(w.again))
	batch = append(batch, w.again[:n]...)
	w.again = w.again[n:]
	n = min(most-n, len(w.queue))
	for _, pos := range w.queue[:n] {
		batch = append(batch, entry{pos, 1})
	}
	w.queue = w.queue[n:]
	return batch
}

// settle does what follows from a call.
func (w *worker) settle(batch []entry, said []events.Event, err error) {
	h := w.h
	switch {
	case err != nil:
		h.counts.Failed++
		h.trace("%s: %v", w.f.Name, err)
		w.fail(batch, err)
	case h.roll(h.Faults.CrashAfterHandle):
		h.trace("%s: crashed after its handler", w.f.Name)
		w.crash(batch)
	case h.roll(h.Faults.CrashBeforeAck):
		h.trace("%s: crashed before its ack", w.f.Name)
		h.say(w.f.Name, said)
		w.crash(batch)
	default:
		h.say(w.f.Name, said)
		h.counts.Handled += uint64(len(batch))
		w.passed()
		w.double(batch)
	}
}

// double delivers some of what is acknowledged once more, as after a lost ack.
func (w *worker) double(batch []entry) {
	h := w.h
	if h.Faults.Double == 0 {
		return
	}
	for _, en := range batch {
		if h.roll(h.Faults.Double / 2) {
			w.redeliver(en, time.Duration(h.rng.Int64N(int64(10*time.Second))))
		}
	}
}

// crash ends the life of the function's value; the batch comes again when its ack is missed.
func (w *worker) crash(batch []entry) {
	name := w.f.Name
	if w.make != nil {
		w.f = w.make()
		if w.f.Name != name {
			panic("memory: " + name + " was made anew as " + w.f.Name)
		}
	}
	w.life++
	w.startTicks()
	later := time.Duration(w.h.rng.Int64N(int64(10 * time.Second)))
	if w.f.Folds {
		w.hold(batch, later)
		return
	}
	for _, en := range batch {
		w.redeliver(en, later)
	}
}

func (w *worker) fail(batch []entry, err error) {
	passing := errors.Is(err, store.ErrConflict) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	attempt := batch[0].attempt
	if w.f.Folds {
		w.tries++
		attempt = w.tries
	}
	switch w.f.Fate(len(batch), attempt, passing, err) {
	case fn.Dead:
		w.passed()
		w.bury(batch[0], err)
	case fn.Alone:
		w.tries, w.alone = 0, len(batch)
		w.hold(batch, 0)
	case fn.Again:
		if w.f.Folds {
			w.hold(batch, fn.Pace(attempt))
			return
		}
		for _, en := range batch {
			w.redeliver(en, fn.Pace(attempt))
		}
	}
}

// passed notes that a fold's batch, or the next of one that is taken apart, is dealt with.
func (w *worker) passed() {
	w.tries = 0
	w.alone = max(0, w.alone-1)
}

// hold keeps a fold's batch before all else until it may be tried again.
func (w *worker) hold(batch []entry, wait time.Duration) {
	for i := range batch {
		batch[i].attempt++
	}
	w.held = append(slices.Clone(batch), w.held...)
	if wait <= 0 {
		w.wake()
		return
	}
	w.waiting = true
	life := w.life
	w.h.At(w.h.now.Add(wait), func() {
		if w.life == life {
			w.waiting = false
			w.wake()
		}
	})
}

// redeliver is for single messages: others may pass meanwhile. It outlives a restart, as the stream does.
func (w *worker) redeliver(en entry, wait time.Duration) {
	en.attempt++
	w.h.At(w.h.now.Add(wait), func() {
		w.again = append(w.again, en)
		w.wake()
	})
}

func (w *worker) bury(en entry, why error) {
	s := w.h.log[en.pos]
	l := Letter{Function: w.f.Name, Reason: why.Error(), Subject: s.subject, Seq: uint64(en.pos) + 1, Body: s.body}
	if s.bad == nil {
		l.Subject = s.event.Subject()
		l.Body, _ = events.Encode(s.event)
	}
	w.h.dead = append(w.h.dead, l)
	w.h.counts.Dead++
	w.h.trace("%s: dead letter %d: %s", w.f.Name, l.Seq, l.Reason)
}

// startTicks begins the ticks of this life, the first one now.
func (w *worker) startTicks() {
	if w.f.Tick == nil {
		return
	}
	if w.f.Every <= 0 {
		panic("memory: " + w.f.Name + " ticks without an interval")
	}
	life := w.life
	var tick func()
	tick = func() {
		if w.life != life {
			return
		}
		w.h.At(w.h.now.Add(w.f.Every), tick)
		if !w.paused {
			w.tick()
		}
	}
	w.h.At(w.h.now, tick)
}

func (w *worker) tick() {
	said, err := w.f.Tick(context.Background(), w.h.now)
	if err != nil {
		w.h.counts.Failed++
		w.h.trace("%s: tick: %v", w.f.Name, err)
		return
	}
	if w.h.roll(w.h.Faults.CrashAfterHandle) {
		w.h.trace("%s: crashed in its tick", w.f.Name)
		return
	}
	w.h.say(w.f.Name, said)
}
