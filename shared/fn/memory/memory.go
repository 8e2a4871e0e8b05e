// Package memory is the host for simulation and tests: the same functions, no goroutine, a virtual clock.
//
// It promises that one seed gives one history, faults and crashes included; that events keep JetStream's rules (stored
// once within the duplicate window, in stream order per function, a fold one batch at a time, schedules replaced); and
// that nothing in it waits: a day passes as fast as its events are handled.
// A handler takes no virtual time, and a panic in one is not caught. Facts are not encoded, so a handler must not change
// what it is given.
package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fn"
)

// window is how long an id is known, as on JetStream.
const window = 10 * time.Minute

// stream is the name in deliveries.
const stream = "LOWTIDE"

// Faults is how the world goes wrong. The zero value is a world without faults. Shares are between 0 and 1.
type Faults struct {
	Lose    float64 // of what functions say: never stored, and the function thinks that it is
	Double  float64 // stored once more, beyond the duplicate window, or delivered once more: half each
	Reorder float64 // stored late, by up to two seconds, so that others overtake it
	// Delay is how long an event takes to the stream; nil is no time.
	Delay            func(*rand.Rand) time.Duration
	CrashAfterHandle float64 // of calls: the handler ran, what it said and its ack are lost
	CrashBeforeAck   float64 // of calls: what it said is stored, its ack is lost
}

// Letter is a message in the dead letters.
type Letter struct {
	Function string
	Reason   string
	Subject  string
	Seq      uint64
	Body     []byte // the message as it came
}

// Host runs functions on a virtual clock. New makes it; it is for one goroutine.
type Host struct {
	// Faults may be changed at any time.
	Faults Faults
	// Trace, when set, hears what happens, a line each.
	Trace func(string)
	// Limit is how many calls without any passing of time are taken for functions that answer each other for ever; Run
	// then panics. New sets a million.
	Limit int

	rng    *rand.Rand
	now    time.Time
	timers timers
	calls  int // since time last passed

	log    []*stored
	ids    map[string]time.Time
	idAge  []idAt // oldest first
	alarms map[about]*events.Event
	last   map[about]int
	kinds  map[events.Kind][]int // positions in log

	workers map[string]*worker
	wide    map[events.Kind][]*worker // by kind
	narrow  map[kindKey][]*worker     // by kind and exact key
	ready   []*worker

	dead   []Letter
	counts fn.Counts
}

type stored struct {
	event   events.Event
	at      time.Time
	subject string // of raw messages
	body    []byte
	bad     error
}

type idAt struct {
	id string
	at time.Time
}

type kindKey struct {
	kind events.Kind
	key  string
}

type about struct {
	fleet string
	kindKey
}

func aboutOf(e events.Event) about {
	return about{events.Token(e.Fleet), kindKey{e.Data.Kind(), e.Data.Key()}}
}

// New makes a host whose clock stands at start.
func New(seed uint64, start time.Time) *Host {
	return &Host{
		Limit: 1_000_000, rng: rand.New(rand.NewPCG(seed, 0x10e71de)), now: start.UTC(),
		ids: map[string]time.Time{}, alarms: map[about]*events.Event{}, last: map[about]int{}, kinds: map[events.Kind][]int{},
		workers: map[string]*worker{}, wide: map[events.Kind][]*worker{}, narrow: map[kindKey][]*worker{},
	}
}

// Now is the virtual time.
func (h *Host) Now() time.Time { return h.now }

// Rand is the host's own source: what draws from it is repeated with the seed.
func (h *Host) Rand() *rand.Rand { return h.rng }

// Dead lists the dead letters, oldest first.
func (h *Host) Dead() []Letter { return h.dead }

// Counts is what the host did.
func (h *Host) Counts() fn.Counts { return h.counts }

// At calls do when the clock reaches t, or as the next thing if it has.
func (h *Host) At(t time.Time, do func()) {
	if t.Before(h.now) {
		t = h.now
	}
	h.timers.push(t, do)
}

// Every calls do each d, first in d.
func (h *Host) Every(d time.Duration, do func()) {
	if d <= 0 {
		panic("memory: Every needs a positive duration")
	}
	var again func()
	again = func() {
		do()
		h.At(h.now.Add(d), again)
	}
	h.At(h.now.Add(d), again)
}

// Run lets time pass until the clock shows until, and all that is due by then is done.
func (h *Host) Run(until time.Time) {
	for h.step(until) {
	}
	if h.now.Before(until) {
		h.now = until.UTC()
	}
}

// Step does the next thing, a call or a timer, and says whether there was one.
func (h *Host) Step() bool { return h.step(time.Time{}) }

func (h *Host) step(until time.Time) bool {
	if len(h.ready) > 0 {
		h.spin()
		h.takeReady().call()
		return true
	}
	t, ok := h.timers.next()
	if !ok || !until.IsZero() && t.After(until) {
		return false
	}
	if t.After(h.now) {
		h.now, h.calls = t, 0
	}
	h.spin()
	h.timers.pop()()
	return true
}

// spin catches functions that answer each other for ever within one instant.
func (h *Host) spin() {
	if h.calls++; h.calls > h.Limit {
		panic(fmt.Sprintf("memory: %d calls and the clock still shows %s: functions answer each other for ever; last stored: %s", h.Limit, h.now, h.newest()))
	}
}

func (h *Host) newest() string {
	if len(h.log) == 0 {
		return "nothing"
	}
	if s := h.log[len(h.log)-1]; s.event.Data != nil {
		return s.event.Subject()
	}
	return "a message that cannot be read"
}

// takeReady picks one of the functions that have something to do, so that a seed chooses the interleaving.
func (h *Host) takeReady() *worker {
	i := 0
	if len(h.ready) > 1 {
		i = h.rng.IntN(len(h.ready))
	}
	w := h.ready[i]
	h.ready[i] = h.ready[len(h.ready)-1]
	h.ready = h.ready[:len(h.ready)-1]
	w.queued = false
	return w
}

// Publish stores events for certain, as the world outside would; those with At wait.
func (h *Host) Publish(said ...events.Event) {
	for _, e := range said {
		h.put(e)
	}
}

// PublishRaw stores bytes on a subject (lowtide.<fleet>.<kind>.<key>), readable or not.
func (h *Host) PublishRaw(subject string, body []byte) error {
	p := strings.SplitN(subject, ".", 5)
	if len(p) < 5 || p[0] != "lowtide" {
		return fmt.Errorf("publish %s: want lowtide.<fleet>.<kind>.<key>", subject)
	}
	e, err := events.Decode(body)
	if err == nil {
		h.put(e)
		return nil
	}
	h.append(stored{at: h.now, subject: subject, body: body, bad: err}, about{p[1], kindKey{events.Kind(p[2] + "." + p[3]), p[4]}})
	return nil
}

// Say is an fn.Say: it suffers the faults, as all that functions say.
func (h *Host) Say(_ context.Context, said ...events.Event) error {
	h.say("say", said)
	return nil
}

// Last is the newest event of a fleet, kind and key.
func (h *Host) Last(fleet string, k events.Kind, key string) (fn.Delivery, bool) {
	i, ok := h.last[about{events.Token(fleet), kindKey{k, key}}]
	if !ok || h.log[i].bad != nil {
		return fn.Delivery{}, false
	}
	return h.delivery(entry{i, 1}), true
}

// Stored calls each with every stored event, oldest first.
func (h *Host) Stored(each func(fn.Delivery)) {
	for i, s := range h.log {
		if s.bad == nil {
			each(h.delivery(entry{i, 1}))
		}
	}
}

func (h *Host) delivery(en entry) fn.Delivery {
	s := h.log[en.pos]
	return fn.Delivery{Event: s.event, Stream: stream, Seq: uint64(en.pos) + 1, At: s.at, Attempt: en.attempt}
}

// say is how what functions say reaches the stream, or does not.
func (h *Host) say(who string, said []events.Event) {
	for _, e := range said {
		if h.roll(h.Faults.Lose) {
			h.trace("%s: lost %s", who, e.Data.Kind())
			continue
		}
		var late time.Duration
		if h.Faults.Delay != nil {
			late = h.Faults.Delay(h.rng)
		}
		if h.roll(h.Faults.Reorder) {
			late += time.Duration(h.rng.Int64N(int64(2 * time.Second)))
		}
		if late <= 0 {
			h.put(e)
		} else {
			h.At(h.now.Add(late), func() { h.put(e) })
		}
		if h.roll(h.Faults.Double / 2) {
			again := late + time.Duration(h.rng.Int64N(int64(30*time.Second)))
			h.At(h.now.Add(again), func() {
				delete(h.ids, e.ID)
				h.put(e)
			})
		}
	}
}

// put stores an event or lets it wait.
func (h *Host) put(e events.Event) {
	if !e.At.IsZero() {
		h.alarm(e)
		return
	}
	h.forgetIDs()
	if _, twice := h.ids[e.ID]; twice {
		h.counts.Duplicates++
		return
	}
	h.ids[e.ID] = h.now
	h.idAge = append(h.idAge, idAt{e.ID, h.now})
	h.keep(e)
}

// alarm keeps the event until it is due, in place of an earlier one; a due one is stored at once, and none waits.
func (h *Host) alarm(e events.Event) {
	a, due := aboutOf(e), e.At
	e.At = time.Time{}
	if !due.After(h.now) {
		delete(h.alarms, a)
		h.put(e)
		return
	}
	mine := &e
	h.alarms[a] = mine
	h.At(due, func() {
		if h.alarms[a] == mine { // not replaced since
			delete(h.alarms, a)
			h.keep(e)
		}
	})
}

func (h *Host) forgetIDs() {
	n := 0
	for n < len(h.idAge) && h.now.Sub(h.idAge[n].at) > window {
		if h.ids[h.idAge[n].id].Equal(h.idAge[n].at) {
			delete(h.ids, h.idAge[n].id)
		}
		n++
	}
	h.idAge = h.idAge[n:]
}

func (h *Host) keep(e events.Event) {
	h.counts.Published++
	h.append(stored{event: e, at: h.now}, aboutOf(e))
}

// append puts a message at the stream's end and wakes who hears it.
func (h *Host) append(s stored, a about) {
	pos := len(h.log)
	h.log = append(h.log, &s)
	h.last[a] = pos
	h.kinds[a.kind] = append(h.kinds[a.kind], pos)
	if h.Trace != nil {
		h.trace("%d %s.%s.%s", pos+1, a.fleet, a.kind, a.key)
	}
	for _, w := range h.wide[a.kind] {
		if w.f.Listens(a.key) {
			w.enqueue(pos, a.fleet)
		}
	}
	for _, w := range h.narrow[a.kindKey] {
		w.enqueue(pos, a.fleet)
	}
}

func (h *Host) roll(share float64) bool { return share > 0 && h.rng.Float64() < share }

func (h *Host) trace(format string, args ...any) {
	if h.Trace != nil {
		h.Trace(h.now.Format("15:04:05.000 ") + fmt.Sprintf(format, args...))
	}
}
