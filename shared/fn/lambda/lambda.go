// Package lambda is the host on AWS Lambda: it serves one function to the relay beside NATS (lowtide relay), to services
// that invoke it directly (EventBridge, Scheduler), and to people behind its URL.
//
// It promises that an invocation answers for each message that it was given; that what the function says is stored before
// its message counts as handled; that a connection which died while the environment was frozen is replaced before it
// is needed; that a second or two of the invocation's time are kept for the end of it; and that nothing goes on after
// the answer, since the environment may be frozen then.
// It does not retry messages: JetStream does. What is invoked directly is tried until the invocation's time is over.
package lambda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	runtime "github.com/aws/aws-lambda-go/lambda"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
	live "lowtide/shared/fn/jetstream"
	"lowtide/shared/store"
)

// Handlers are what a function does with what it is given. What has no handler is refused.
type Handlers struct {
	Function fn.Function   // messages, handed on by the relay
	Others   []fn.Function // what else the relay hands to this program, by their names
	// Direct takes the document of a service that invokes the function itself, as it came.
	Direct func(ctx context.Context, raw []byte) ([]events.Event, error)
	// URL takes a request to the function's URL. What it says is stored before the answer goes out.
	URL func(ctx context.Context, r Request) (Response, []events.Event, error)
}

// Env is the environment with the settings of LOWTIDE_CLOUDS, or its secret, on top: NAME=value a line. Keys of clouds stand
// there, not in the function's environment.
func (h *Host) Env(ctx context.Context) (func(string) string, error) {
	text, err := h.Setting(ctx, "LOWTIDE_CLOUDS")
	if err != nil {
		return nil, err
	}
	own := map[string]string{}
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("LOWTIDE_CLOUDS: line %d: want NAME=value", i+1)
		}
		own[name] = value
	}
	return func(name string) string {
		if v, ok := own[name]; ok {
			return v
		}
		return h.Getenv(name)
	}, nil
}

// named is the function of a batch.
func (h *Handlers) named(name string) (fn.Function, bool) {
	for _, f := range append([]fn.Function{h.Function}, h.Others...) {
		if f.Name == name && f.Handle != nil {
			return f, true
		}
	}
	return fn.Function{}, false
}

// Make builds a function's handlers once NATS answers.
type Make func(ctx context.Context, h *Host) (Handlers, error)

// Host is one environment: a process that is invoked again and again, and frozen between.
type Host struct {
	Settings
	name string
	make Make
	log  *slog.Logger
	nc   *nats.Conn
	js   jetstream.JetStream
	out  *live.Host

	making   sync.Mutex
	handlers *Handlers
	folding  sync.Mutex // a fold takes one batch at a time, also where an environment runs several invocations at once
}

// Main is the main of a Lambda function: it reads the environment and never returns.
func Main(name string, make Make) {
	log := slog.New(slog.NewJSONHandler(os.Stdout, nil)).With("function", name)
	slog.SetDefault(log)
	s, err := FromEnv(os.Getenv)
	if err == nil {
		var h *Host
		if h, err = New(name, s, make, log); err == nil {
			runtime.StartWithOptions(h, runtime.WithEnableSIGTERM(h.Close))
			return
		}
	}
	log.Error("start", "err", err)
	os.Exit(1)
}

// New connects and, if NATS answers soon, makes the handlers; else the first invocation does.
func New(name string, s Settings, make Make, log *slog.Logger) (*Host, error) {
	h := &Host{Settings: s, name: name, make: make, log: log}
	nc, err := h.connect()
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	h.nc = nc
	if h.js, err = bus.JetStream(nc); err != nil {
		return nil, err
	}
	if h.out, err = live.New(nc, live.Options{Clock: s.Clock, Fleet: s.Fleet, Log: log}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if _, err := h.ready(ctx); err != nil {
		log.Warn("not ready; the first invocation tries again", "err", err)
	}
	return h, nil
}

// Close ends the connection: the environment is going away.
func (h *Host) Close() { h.nc.Close() }

// Say stores events at once, for a handler that must not answer before; it is an fn.Say.
func (h *Host) Say(ctx context.Context, said ...events.Event) error { return h.out.Say(ctx, said...) }

// Bucket opens a bucket that the deployment made.
func (h *Host) Bucket(ctx context.Context, name string) (store.Bucket, error) {
	return store.Bind(ctx, h.js, name)
}

// Objects opens a store of objects that the deployment made.
func (h *Host) Objects(ctx context.Context, name string) (store.Objects, error) {
	return store.BindObjects(ctx, h.js, name)
}

// Setting is the variable name, or the secret that the variable name_SECRET names: what must not stand in an environment
// that many may read. "" if neither is set.
func (h *Host) Setting(ctx context.Context, name string) (string, error) {
	if secret := h.Getenv(name + "_SECRET"); secret != "" {
		b, err := secretReader(secret, h.Getenv)(ctx)
		return string(b), err
	}
	return h.Getenv(name), nil
}

func (h *Host) ready(ctx context.Context) (*Handlers, error) {
	h.making.Lock()
	defer h.making.Unlock()
	if h.handlers != nil {
		return h.handlers, nil
	}
	made, err := h.make(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", h.name, err)
	}
	h.handlers = &made
	return h.handlers, nil
}

// Invoke implements the runtime's Handler.
func (h *Host) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	began := time.Now()
	ctx, cancel := h.within(ctx)
	defer cancel()
	var p probe
	if json.Unmarshal(payload, &p) == nil && p.Probe == "whoami" {
		return json.Marshal(h.whoami())
	}
	h.fresh(ctx)
	stop := h.watch(ctx)
	defer stop()
	r := &report{}
	answer, err := h.answer(ctx, payload, p, r)
	h.write(r, time.Since(began), err)
	return answer, err
}

// probe tells payloads apart.
type probe struct {
	Probe   string          `json:"probe"`
	Lowtide int             `json:"lowtide"`
	Request json.RawMessage `json:"requestContext"`
}

func (h *Host) answer(ctx context.Context, payload []byte, p probe, r *report) ([]byte, error) {
	handlers, err := h.ready(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case p.Lowtide > 0:
		return h.batch(ctx, handlers, payload, r)
	case len(p.Request) > 0:
		return h.url(ctx, handlers, payload, r)
	case handlers.Direct != nil:
		return h.direct(ctx, handlers, payload, r)
	}
	return nil, fmt.Errorf("%s: not a batch of messages, and nothing else is taken", h.name)
}

// batch handles messages and says which were not.
func (h *Host) batch(ctx context.Context, handlers *Handlers, payload []byte, r *report) ([]byte, error) {
	var in Batch
	if err := json.Unmarshal(payload, &in); err != nil {
		return nil, fmt.Errorf("batch: %w", err)
	}
	switch {
	case in.Lowtide != Version:
		return nil, fmt.Errorf("batch: version %d, this is %d", in.Lowtide, Version)
	}
	f, ok := handlers.named(in.Function)
	if !ok {
		return nil, fmt.Errorf("batch: it is for %s, this is %s", in.Function, h.name)
	}
	out := Answer{Handled: []uint64{}}
	var good []fn.Delivery
	for _, m := range in.Messages {
		d, err := m.delivery(h.Clock)
		if err != nil {
			out.fail(m.Seq, err)
			continue
		}
		good = append(good, d)
	}
	r.hear(good, h.Clock.Now())
	if f.Folds {
		h.folding.Lock()
		defer h.folding.Unlock()
		if len(out.Failed) > 0 { // the relay has read them all: it is older or newer than this
			good, out.Failed = nil, out.Failed[:1]
		}
		err := h.handle(ctx, f.Handle, good, r)
		if errors.Is(err, store.ErrConflict) {
			// Another environment wrote since: an older version's, while a new one is brought out. The function reads again.
			err = h.handle(ctx, f.Handle, good, r)
		}
		h.settle(&out, r, good, err)
	} else {
		for _, d := range good {
			one := []fn.Delivery{d}
			h.settle(&out, r, one, h.handle(ctx, f.Handle, one, r))
		}
	}
	return json.Marshal(out)
}

func (h *Host) settle(out *Answer, r *report, batch []fn.Delivery, err error) {
	for _, d := range batch {
		if err != nil {
			r.Failed++
			out.fail(d.Seq, err)
			continue
		}
		r.Handled++
		out.Handled = append(out.Handled, d.Seq)
	}
	if err != nil {
		h.log.Warn("handle", "err", err, "seq", batch[0].Seq, "size", len(batch), "attempt", batch[0].Attempt)
	}
}

// handle makes one call and stores what it says.
func (h *Host) handle(ctx context.Context, do fn.Handler, batch []fn.Delivery, r *report) error {
	if len(batch) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("no time was left: %w", fn.ErrPassing)
	}
	said, err := guarded(func() ([]events.Event, error) { return do(ctx, batch) })
	if err != nil {
		return err
	}
	return h.say(ctx, fn.Traced(batch[0].Event.Trace, said), r)
}

// guarded makes a panic an error: the environment must not die of one message.
func guarded(do func() ([]events.Event, error)) (said []events.Event, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return do()
}

func (h *Host) say(ctx context.Context, said []events.Event, r *report) error {
	if err := h.out.Say(ctx, said...); err != nil {
		return err
	}
	r.Said += len(said)
	return nil
}

// direct handles one document. A dead one is told in the log and not tried again: nobody would read it better.
func (h *Host) direct(ctx context.Context, handlers *Handlers, payload []byte, r *report) ([]byte, error) {
	said, err := guarded(func() ([]events.Event, error) { return handlers.Direct(ctx, payload) })
	if errors.Is(err, fn.ErrDead) {
		r.Dead++
		letter := bus.Letter{Function: h.name, Reason: err.Error(), Subject: "direct", Stream: "direct", Seq: digest(payload), Body: payload}
		if err := bus.Bury(ctx, h.js, letter); err != nil {
			return nil, err
		}
		h.log.Error("dead letter", "reason", letter.Reason)
		return json.Marshal(Answer{Handled: []uint64{}})
	}
	if err != nil {
		r.Failed++
		return nil, err
	}
	if err := h.say(ctx, fn.Traced(fn.Root(), said), r); err != nil {
		r.Failed++
		return nil, err
	}
	r.Handled++
	return json.Marshal(Answer{Handled: []uint64{}, Said: len(said)})
}
