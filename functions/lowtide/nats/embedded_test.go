package embedded_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/store"
)

func TestOnlyWhoShowsTheTokenComesIn(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	if len(s.Token()) < 20 {
		t.Errorf("token %q is easily guessed", s.Token())
	}
	nc, err := nats.Connect(s.URL(), nats.Token(s.Token()))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := store.Guard(t.Context(), nc); err != nil {
		t.Errorf("the embedded server is not what lowtide needs: %v", err)
	}
	for _, token := range []string{"", "guess"} {
		if nc, err := nats.Connect(s.URL(), nats.Token(token)); err == nil {
			nc.Close()
			t.Errorf("token %q was let in", token)
		}
	}
	natstest.Connect(t, s) // inside the process the token is shown for us
}

func TestARestartKeepsStoreAndPort(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true, SyncAlways: true})
	_, js := natstest.Connect(t, s)
	b, err := store.Open(t.Context(), js, "state", 1)
	if err != nil {
		t.Fatal(err)
	}
	rev, err := b.Create(t.Context(), "a", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	url := s.URL()
	s.Shutdown()
	s.Shutdown()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(); err == nil {
		t.Error("a running server was started again")
	}
	if s.URL() != url {
		t.Errorf("from %s to %s", url, s.URL())
	}
	if val, got, err := b.Get(t.Context(), "a"); err != nil || string(val) != "1" || got != rev {
		t.Errorf("after the restart: %q at %d, %v; want 1 at %d", val, got, err, rev)
	}
}

func TestADirectoryThatCannotBeWrittenIsAnError(t *testing.T) {
	if s, err := embedded.Start("/dev/null/x", embedded.Options{}); err == nil {
		s.Shutdown()
		t.Error("started")
	}
}
