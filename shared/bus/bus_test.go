package bus_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/bus"
)

func beat(n uint64) events.Event {
	return events.New("f", "test", time.Time{}, events.MachineHeard{Machine: "m", Beat: n})
}

func TestStreamsAreAsTheRestReliesOn(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	_, js := natstest.Connect(t, s)
	if err := bus.Setup(t.Context(), js, 1); err != nil {
		t.Errorf("setup again: %v", err)
	}
	for _, name := range []string{bus.Facts, bus.Telemetry, bus.Dead, bus.Advisories} {
		st, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if c := st.CachedInfo().Config; c.AllowDirect || c.MaxAge == 0 {
			t.Errorf("%s: direct reads %v, age %v; want leader reads and an age", name, c.AllowDirect, c.MaxAge)
		}
	}
	st, _ := js.Stream(t.Context(), bus.Facts)
	c := st.CachedInfo().Config
	if c.MaxBytes > 0 || c.MaxMsgs > 0 || c.MaxMsgsPerSubject > 0 {
		t.Errorf("facts are limited to %d bytes, %d messages, %d a subject: the oldest would be dropped unheard", c.MaxBytes, c.MaxMsgs, c.MaxMsgsPerSubject)
	}
	if c.Duplicates != 10*time.Minute || c.MaxAge != 30*24*time.Hour || c.Storage != jetstream.FileStorage || c.MaxConsumers < 10_000 {
		t.Errorf("facts: %+v", c)
	}
}

func TestManyEventsAreStoredInOrder(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	_, js := natstest.Connect(t, s)
	var said []events.Event
	for n := range uint64(1000) {
		said = append(said, beat(n))
	}
	if p, err := bus.Publish(t.Context(), js, said...); err != nil || p.Stored != 1000 {
		t.Fatalf("%+v, %v; want 1000 stored", p, err)
	}
	if p, err := bus.Publish(t.Context(), js, said...); err != nil || p.Duplicates != 1000 {
		t.Errorf("again: %+v, %v; want 1000 duplicates", p, err)
	}
	st, _ := js.Stream(t.Context(), bus.Facts)
	for _, seq := range []uint64{1, 2, 500, 999, 1000} {
		m, err := st.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := events.Decode(m.Data); err != nil || e.Data.(events.MachineHeard).Beat != seq-1 {
			t.Errorf("position %d holds %s, %v", seq, m.Data, err)
		}
	}
}

func TestPublishEndsWithItsContextWhileTheServerIsAway(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	_, js := natstest.Connect(t, s)
	s.Shutdown()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := bus.Publish(ctx, js, beat(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the context's end", err)
	}
}

func TestAFullStoreTellsThePublisher(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	_, js := natstest.Connect(t, s)
	st, _ := js.Stream(t.Context(), bus.Dead)
	cfg := st.CachedInfo().Config
	cfg.MaxMsgs, cfg.Discard = 1, jetstream.DiscardNew
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	l := bus.Letter{Function: "f", Stream: bus.Facts}
	for seq := range uint64(2) {
		l.Seq = seq
		err := bus.Bury(t.Context(), js, l)
		if full := seq > 0; full != (err != nil) {
			t.Errorf("letter %d: %v", seq, err)
		}
	}
}

func TestADeadLetterHoldsBytesAndReasonWithinBounds(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	_, js := natstest.Connect(t, s)
	sent := bus.Letter{
		Function: "intake", Reason: "line one\nline two\r\n" + strings.Repeat("x", 5000), Subject: "lowtide.f.machine.heard.m",
		Stream: bus.Facts, Seq: 7, Body: bytes.Repeat([]byte{0, 0xff}, events.MaxBytes),
	}
	for range 2 {
		if err := bus.Bury(t.Context(), js, sent); err != nil {
			t.Fatal(err)
		}
	}
	st, _ := js.Stream(t.Context(), bus.Dead)
	if n := st.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("%d letters, want one", n)
	}
	m, err := st.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := bus.ReadLetter(m)
	if !slices.Equal(got.Body, sent.Body[:events.MaxBytes]) || m.Header.Get(bus.HeaderBytes) != "524288" {
		t.Errorf("the body has %d bytes, said to be cut from %q", len(got.Body), m.Header.Get(bus.HeaderBytes))
	}
	if !strings.HasPrefix(got.Reason, "line one line two") || len(got.Reason) > bus.MaxReason+3 {
		t.Errorf("reason of %d bytes: %.40q", len(got.Reason), got.Reason)
	}
	if got.Function != "intake" || got.Subject != sent.Subject || got.Stream != bus.Facts || got.Seq != 7 {
		t.Errorf("got %+v", got)
	}
}

func TestTelemetryHasItsOwnStreamAndCannotWait(t *testing.T) {
	if got := bus.Subject("f", "utilisation.measured", "m"); got != "telemetry.f.utilisation.measured.m" {
		t.Errorf("subject %s", got)
	}
	e := events.Event{ID: "1", Fleet: "f", Data: events.Unknown{Name: "utilisation.measured", About: "m", Raw: []byte("{}")}, At: time.Now().Add(time.Hour)}
	s := natstest.Start(t, embedded.Options{})
	_, js := natstest.Connect(t, s)
	if _, err := bus.Publish(t.Context(), js, e); err == nil {
		t.Error("telemetry was scheduled")
	}
	e.At = time.Time{}
	if _, err := bus.Publish(t.Context(), js, e); err != nil {
		t.Error(err)
	}
	if _, err := bus.Last(t.Context(), js, bus.Telemetry, "telemetry.f.>"); err != nil {
		t.Error(err)
	}
}

// The cases are ways in which consumers were misconfigured in the field.
func TestAConsumerThatWouldDeliverTwiceOrLoseIsRefused(t *testing.T) {
	good := jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, AckWait: 6 * time.Second, MaxDeliver: -1}
	for name, spoil := range map[string]func(*jetstream.ConsumerConfig){
		"":                           func(*jetstream.ConsumerConfig) {},
		"microseconds for seconds":   func(c *jetstream.ConsumerConfig) { c.AckWait = 20 * time.Millisecond },
		"no margin":                  func(c *jetstream.ConsumerConfig) { c.AckWait = 4 * time.Second },
		"a day":                      func(c *jetstream.ConsumerConfig) { c.AckWait = 24 * time.Hour },
		"back-off takes its place":   func(c *jetstream.ConsumerConfig) { c.BackOff = []time.Duration{time.Second} },
		"given up without a letter":  func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 },
		"position lost when idle":    func(c *jetstream.ConsumerConfig) { c.InactiveThreshold = 5 * time.Minute },
		"acknowledged when received": func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckNonePolicy },
	} {
		cfg := good
		spoil(&cfg)
		err := bus.CheckConsumer(&jetstream.ConsumerInfo{Name: "c", Config: cfg}, 2*time.Second)
		if (err == nil) != (name == "") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTheServersWordOnEndedMessagesIsKept(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	_, js := natstest.Connect(t, s)
	if _, err := bus.Publish(t.Context(), js, beat(1)); err != nil {
		t.Fatal(err)
	}
	c, err := js.CreateConsumer(t.Context(), bus.Facts, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Next()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.TermWithReason("no use"); err != nil {
		t.Fatal(err)
	}
	st, _ := js.Stream(t.Context(), bus.Advisories)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the server says it in its own time
		if m, err := st.GetMsg(t.Context(), 1); err == nil {
			if !bytes.Contains(m.Data, []byte("no use")) {
				t.Errorf("kept %s", m.Data)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing kept within 5 s")
		}
	}
}
