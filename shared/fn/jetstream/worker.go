package jetstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
)

const (
	// heartbeat is how often a message in hand gives a sign of life. With it ackWait may be short, and a message of a
	// host that died is soon delivered to another, however slow the handlers are.
	heartbeat = 2 * time.Second
	ackWait   = 6 * time.Second
	// open is how many messages of a function may wait for another attempt while the next ones are handled.
	open = 256
	// idle is how long one request for messages stays with the server.
	idle = 30 * time.Second
	// forgotten is when the consumer of a narrowed function (an agent's) is deleted: long after its machine.
	forgotten = 7 * 24 * time.Hour
)

// worker serves one function from one consumer.
type worker struct {
	h      *Host
	f      fn.Function
	stream string
	cfg    jetstream.ConsumerConfig
	con    jetstream.Consumer

	call sync.Mutex // held by a delivery or a tick: never both

	// Where a deleted consumer begins anew: at the first message not done.
	seen    uint64
	pending map[uint64]bool

	// Of a fold:
	gate gate
	held []item // delivered and not done, in stream order
}

// item is one message in hand.
type item struct {
	msg   jetstream.Msg
	md    *jetstream.MsgMetadata
	d     fn.Delivery
	dead  error     // why it cannot be read
	alive time.Time // when the server last knew that we have it
}

func (h *Host) worker(f fn.Function) (*worker, error) {
	if len(f.Hears) == 0 && f.Tick == nil {
		return nil, errors.New("it hears nothing and does not tick")
	}
	if f.Tick != nil && f.Every <= 0 {
		return nil, errors.New("it ticks without an interval")
	}
	w := &worker{h: h, f: f, stream: bus.Facts, pending: map[uint64]bool{}}
	fleet, key := "*", ">"
	if h.opts.Fleet != "" {
		fleet = h.opts.Fleet
	}
	if f.Key != "" {
		key = f.Key
	}
	for i, k := range f.Hears {
		if s := bus.StreamOf(k); i > 0 && s != w.stream {
			return nil, fmt.Errorf("%s is in another stream than %s", k, f.Hears[0])
		} else {
			w.stream = s
		}
		w.cfg.FilterSubjects = append(w.cfg.FilterSubjects, bus.Subject(fleet, k, key))
	}
	if len(w.cfg.FilterSubjects) == 1 { // alone it stands in the request's subject, where permissions can name it
		w.cfg.FilterSubject, w.cfg.FilterSubjects = w.cfg.FilterSubjects[0], nil
	}
	w.cfg.Durable = Consumer(f, h.opts.Fleet)
	w.cfg.AckPolicy = jetstream.AckExplicitPolicy
	w.cfg.AckWait = ackWait
	w.cfg.MaxDeliver = -1 // we count ourselves: the server gives up without a dead letter
	w.cfg.MaxAckPending = open
	if f.Folds {
		w.cfg.MaxAckPending = max(1, f.Batch) // so that one host can hold all that is not acknowledged
	}
	if f.Key != "" {
		w.cfg.InactiveThreshold = forgotten
	}
	return w, nil
}

// Consumer is the durable name under which a function is served, for one fleet or all ("").
func Consumer(f fn.Function, fleet string) string { return durable(f.Name, fleet, f.Key) }

// durable names a consumer by its function, fleet and key. Where a part has to be altered to fit, its hash keeps it apart
// from others.
func durable(parts ...string) string {
	var name []string
	plain := strings.Join(parts, "\x00")
	altered := false
	for _, p := range parts {
		if p == "" {
			continue
		}
		t := strings.NewReplacer("*", "_", ">", "_").Replace(events.Token(p))
		altered = altered || t != p
		name = append(name, t)
	}
	if altered {
		sum := sha256.Sum256([]byte(plain))
		name = append(name, hex.EncodeToString(sum[:4]))
	}
	return strings.Join(name, "-")
}

// ensure makes the consumer, or brings it up to date, and checks what the server made of it.
func (w *worker) ensure(ctx context.Context) error {
	if len(w.f.Hears) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cfg := w.cfg
	old, err := w.h.js.Consumer(ctx, w.stream, cfg.Durable)
	switch {
	case err == nil:
		was := old.CachedInfo().Config // where it began cannot be changed, and need not be
		cfg.DeliverPolicy, cfg.OptStartSeq, cfg.OptStartTime = was.DeliverPolicy, was.OptStartSeq, was.OptStartTime
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return err
	case w.seen > 0: // it was ours, and somebody deleted it
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, w.firstOpen()
	}
	con, err := w.h.js.CreateOrUpdateConsumer(ctx, w.stream, cfg)
	if err != nil {
		return err // the handle from before stays: it serves again when the server does
	}
	w.con, w.gate = con, gate{}
	// Asked anew: a server that has just started answers an update with what it had read from its disk.
	info, err := w.con.Info(ctx)
	if err != nil {
		return err
	}
	return bus.CheckConsumer(info, heartbeat)
}

// reclaim lets the server take back what a process that died had in hand, which would otherwise wait for ackWait: under a
// bound of a millisecond, looked at once, all of it is overdue. It stays in its order, as for any other message that was
// not acknowledged.
func reclaim(ctx context.Context, workers []*worker) error {
	open := slices.DeleteFunc(slices.Clone(workers), func(w *worker) bool { return w.con == nil || w.con.CachedInfo().NumAckPending == 0 })
	for _, w := range open {
		cfg := w.con.CachedInfo().Config
		cfg.AckWait = time.Millisecond
		if _, err := w.h.js.UpdateConsumer(ctx, w.stream, cfg); err != nil {
			return fmt.Errorf("reclaim for %s: %w", w.f.Name, err)
		}
	}
	if len(open) == 0 || !pause(ctx, looks) {
		return nil
	}
	for _, w := range open {
		if err := w.ensure(ctx); err != nil {
			return fmt.Errorf("reclaim for %s: %w", w.f.Name, err)
		}
	}
	return nil
}

// looks is how long the server may take to look at what is pending after its bound was changed: 100 ms, and some.
const looks = 200 * time.Millisecond

// firstOpen is the first position not known to be done.
func (w *worker) firstOpen() uint64 {
	first := w.seen + 1
	for seq := range w.pending {
		first = min(first, seq)
	}
	return first
}

// run serves deliveries until ctx ends.
func (w *worker) run(ctx context.Context) {
	if len(w.f.Hears) == 0 {
		return
	}
	wait := 20 * time.Millisecond
	for ctx.Err() == nil {
		var err error
		if w.f.Folds {
			err = w.foldNext(ctx)
		} else {
			err = w.next(ctx)
		}
		if err == nil {
			wait = 20 * time.Millisecond
			continue
		}
		if ctx.Err() != nil {
			return
		}
		w.log("consumer", err)
		if !pause(ctx, wait) {
			return
		}
		wait = min(2*wait, time.Second)
		if err := w.ensure(ctx); err != nil && ctx.Err() == nil {
			w.log("make consumer", err)
		}
	}
}

// next serves a batch of deliveries, if one comes.
func (w *worker) next(ctx context.Context) error {
	items, err := w.fetch(ctx, max(1, w.f.Batch), idle)
	var good []item
	for i := range items {
		if items[i].dead != nil {
			w.buryOrLater(ctx, &items[i], items[i].dead)
		} else {
			good = append(good, items[i])
		}
	}
	if len(good) > 0 {
		w.treat(ctx, good)
	}
	return err
}

// treat handles a batch, whatever comes of it: each delivery has its own fate.
func (w *worker) treat(ctx context.Context, items []item) {
	alive := w.keepAlive(slices.Clone(items))
	defer alive()
	err := w.try(ctx, items)
	var some fn.Failures
	partly := errors.As(err, &some)
	for i := range items {
		it, why := &items[i], err
		if partly {
			why = some[it.d.Seq]
		}
		switch {
		case why == nil:
			w.done(it)
		case ctx.Err() != nil:
			_ = it.msg.Nak() // stopping: another host may have it at once
		default:
			w.failed(ctx, it, why)
		}
	}
}

func (w *worker) failed(ctx context.Context, it *item, err error) {
	attempt := it.d.Attempt
	w.log("handle", err, "seq", it.d.Seq, "attempt", attempt)
	if w.f.Fate(1, attempt, passing(err), err) == fn.Dead {
		w.buryOrLater(ctx, it, err)
		return
	}
	w.later(it)
}

// later asks for the message again after the pace.
func (w *worker) later(it *item) {
	// Never a bare Nak: it comes back at once, whatever BackOff says.
	if err := it.msg.NakWithDelay(w.h.real(fn.Pace(it.d.Attempt))); err != nil {
		w.log("nak", err, "seq", it.d.Seq)
	}
}

// done acknowledges. If the ack is lost the message comes again, and the function knows it by its position.
func (w *worker) done(it *item) {
	delete(w.pending, it.md.Sequence.Stream)
	w.h.counts.handled.Add(1)
	if err := it.msg.Ack(); err != nil {
		w.log("ack", err, "seq", it.md.Sequence.Stream)
	}
}

// bury copies the message to the dead letters and then ends it: the other way round a crash between would lose it.
func (w *worker) bury(ctx context.Context, it *item, why error) error {
	seq := it.md.Sequence.Stream
	l := bus.Letter{
		Function: w.f.Name, Reason: why.Error(), Subject: it.msg.Subject(), Stream: w.stream, Seq: seq, Body: it.msg.Data(),
	}
	ctx, cancel := w.grace(ctx, idle)
	defer cancel()
	alive := w.keepAlive([]item{*it})
	defer alive()
	if err := bus.Bury(ctx, w.h.js, l); err != nil {
		return err
	}
	delete(w.pending, seq)
	w.h.counts.dead.Add(1)
	w.h.opts.Log.Error("dead letter", "function", w.f.Name, "subject", l.Subject, "seq", seq, "reason", l.Reason)
	reason := l.Reason
	if len(reason) > 200 {
		reason = reason[:200]
	}
	_ = it.msg.TermWithReason(strings.Join(strings.Fields(reason), " ")) // lost: it comes again and is buried again, as a repeat
	return nil
}

func (w *worker) buryOrLater(ctx context.Context, it *item, why error) {
	if err := w.bury(ctx, it, why); err != nil {
		w.log("bury", err, "seq", it.d.Seq)
		w.later(it)
	}
}

// try calls the handler and publishes what it says.
func (w *worker) try(ctx context.Context, items []item) error {
	batch := make([]fn.Delivery, len(items))
	for i, it := range items {
		batch[i] = it.d
		if it.d.Attempt > 1 {
			w.h.counts.redelivered.Add(1)
		}
	}
	w.call.Lock()
	defer w.call.Unlock()
	err := w.guarded(ctx, func(ctx context.Context) ([]events.Event, error) {
		said, err := w.f.Handle(ctx, batch)
		return fn.Traced(batch[0].Event.Trace, said), err
	})
	if err != nil {
		w.h.counts.failed.Add(1)
	}
	return err
}

// guarded makes one call within its time and publishes what it says. A panic is an error like others: one message must
// not stop all functions of the process.
func (w *worker) guarded(ctx context.Context, do func(context.Context) ([]events.Event, error)) (err error) {
	slow := w.f.Slow
	if slow == 0 {
		slow = fn.DefaultSlow
	}
	said, failed := func() (said []events.Event, err error) {
		ctx, cancel := w.grace(ctx, slow)
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		return do(ctx)
	}()
	var some fn.Failures
	if failed != nil && !errors.As(failed, &some) || len(said) == 0 {
		return failed
	}
	ctx, cancel := w.grace(ctx, time.Minute)
	defer cancel()
	err = w.h.Say(ctx, said...)
	if errors.Is(err, events.ErrUnsayable) {
		var never error
		said, never = fn.Sayable(said)
		w.log("say", never)
		err = w.h.Say(ctx, said...)
	}
	if err != nil {
		return err // none is done: what was handled is handled again
	}
	return failed
}

// grace is a context that ends after most, or soon after ctx does, so that a stop does not cut what is nearly done.
func (w *worker) grace(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	stop := context.AfterFunc(ctx, func() {
		if pause(call, w.h.opts.Grace) {
			cancel()
		}
	})
	return call, func() { stop(); cancel() }
}

// keepAlive tells the server about messages in hand until its result is called.
func (w *worker) keepAlive(items []item) (stop func()) {
	quit := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		t := time.NewTicker(heartbeat)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				for _, it := range items {
					_ = it.msg.InProgress() // an answered one refuses: fine
				}
			}
		}
	})
	return sync.OnceFunc(func() { close(quit); running.Wait() })
}

// fetch waits for the first message, and takes up to most that are there already.
func (w *worker) fetch(ctx context.Context, most int, wait time.Duration) ([]item, error) {
	back := w.h.reconnected()
	asked, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	opts := []jetstream.FetchOpt{jetstream.FetchContext(asked)}
	if wait >= idle {
		opts = append(opts, jetstream.FetchHeartbeat(5*time.Second))
	}
	res, err := w.con.Fetch(1, opts...)
	if err != nil {
		return nil, err
	}
	items, err := w.drain(res, back, cancel)
	if len(items) == 0 || most == 1 || err != nil || items[0].md.NumPending == 0 {
		return items, err // nothing was waiting behind the first: to ask for more would cost a way to the server and back
	}
	res, err = w.con.FetchNoWait(most - 1)
	if err != nil {
		return items, nil // what came is good; the next fetch says what is wrong
	}
	more, _ := w.drain(res, nil, nil)
	return append(items, more...), nil
}

// drain reads an answer to its end. When the connection comes back the request is given up: the server forgot it.
func (w *worker) drain(res jetstream.MessageBatch, back <-chan struct{}, giveUp func()) ([]item, error) {
	var items []item
	for {
		select {
		case m, ok := <-res.Messages():
			if !ok {
				err := res.Error()
				if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
					err = nil
				}
				return items, err
			}
			it, err := w.read(m)
			if err != nil {
				return items, err
			}
			items = append(items, it)
		case <-back:
			giveUp()
			back = nil
		}
	}
}

func (w *worker) read(m jetstream.Msg) (item, error) {
	md, err := m.Metadata()
	if err != nil {
		return item{}, err
	}
	w.seen = max(w.seen, md.Sequence.Stream)
	w.pending[md.Sequence.Stream] = true
	it := item{msg: m, md: md, alive: time.Now()}
	e, err := events.Decode(m.Data())
	if err == nil {
		err = bus.Belongs(m.Subject(), e)
	}
	if err != nil {
		it.dead = err
	}
	e.Trace = m.Headers().Get(bus.HeaderTrace)
	it.d = fn.Delivery{
		Event: e, Stream: md.Stream, Seq: md.Sequence.Stream, At: w.h.opts.Clock.Of(md.Timestamp), Attempt: int(md.NumDelivered),
		Body: m.Data(),
	}
	return it, nil
}

// ticks calls Tick, the first time at once.
func (w *worker) ticks(ctx context.Context) {
	for {
		w.tick(ctx)
		if !pause(ctx, w.h.real(w.f.Every)) {
			return
		}
	}
}

func (w *worker) tick(ctx context.Context) {
	w.call.Lock()
	defer w.call.Unlock()
	if ctx.Err() != nil {
		return
	}
	now := w.h.opts.Clock.Now()
	err := w.guarded(ctx, func(ctx context.Context) ([]events.Event, error) { return w.f.Tick(ctx, now) })
	if err != nil && ctx.Err() == nil {
		w.h.counts.failed.Add(1)
		w.log("tick", err)
	}
}

func (w *worker) log(doing string, err error, more ...any) {
	w.h.opts.Log.Warn(doing, append([]any{"function", w.f.Name, "err", err}, more...)...)
}
