// Package natstest gives tests the real server: with real time, or inside a testing/synctest bubble where a day passes
// in a moment.
//
// It promises a fresh store with lowtide's streams, and that all is stopped when the test ends.
package natstest

import (
	"os"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	embedded "lowtide/functions/lowtide/nats"
	"lowtide/shared/bus"
)

// Start runs a server with lowtide's streams for the length of a test.
func Start(t testing.TB, o embedded.Options) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	_, js := Connect(t, s)
	if err := bus.Setup(t.Context(), js, 1); err != nil {
		t.Fatal(err)
	}
	return s
}

// Connect makes a connection for the length of a test.
func Connect(t testing.TB, s *embedded.Server) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := s.Connect(bus.Options("test", nil)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := bus.JetStream(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// Bubble runs test with fake time and a server of its own, on files.
//
// What must hold for the server to live in a bubble: it and its connections are made inside, it does not listen, and the
// connections are in-process (a socket's wait is no waiting in a bubble's sense, so time would stand still). It must be
// stopped before the test ends, hosts first; and no other server may run in the process meanwhile, because the server's
// clock for cache times is one goroutine for all: no t.Parallel. t.Context is cancelled before clean-up, so what must
// outlive the test's body takes a context of its own. An idle server costs about 80 ms a fake hour.
//
// Under the race detector it skips, unless LOWTIDE_RACE_BUBBLE is set: Go 1.26.8's race runtime now and then crashes
// (SIGSEGV in raceacquirectx under timer.unlockAndRun) when a bubble's timer fires, 1 run of the ring's stories in 8.
// .ci/run plays these tests in full without it.
func Bubble(t *testing.T, test func(t *testing.T, s *embedded.Server)) {
	t.Helper()
	if raced && os.Getenv("LOWTIDE_RACE_BUBBLE") == "" {
		t.Skip("fake time with a whole server crashes Go's race runtime at times; run without -race, or set LOWTIDE_RACE_BUBBLE=1")
	}
	synctest.Test(t, func(t *testing.T) {
		test(t, Start(t, embedded.Options{}))
	})
}
