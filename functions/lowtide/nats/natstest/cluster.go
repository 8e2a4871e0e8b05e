package natstest

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	embedded "lowtide/functions/lowtide/nats"
	"lowtide/shared/bus"
)

// Cluster runs three servers on the loopback for the length of a test: replicated streams answer otherwise than single
// ones. It has no streams.
func Cluster(t testing.TB) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	var routes []*url.URL
	ports := []int{Port(t), Port(t), Port(t)}
	for _, p := range ports {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", p)})
	}
	servers := make([]*server.Server, len(ports))
	for i, p := range ports {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, MaxPayload: embedded.MaxPayload,
			JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: p}, Routes: routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = s
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // the election is the servers' own business
		leader := 0
		for _, s := range servers {
			if s.JetStreamIsLeader() {
				leader++
			}
		}
		if leader == 1 && servers[0].JetStreamIsCurrent() && servers[1].JetStreamIsCurrent() && servers[2].JetStreamIsCurrent() {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no leader within 20 s")
		}
	}
	return connect(t, servers[0])
}

func connect(t testing.TB, s nats.InProcessConnProvider) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect("", append(bus.Options("test", nil), nats.InProcessServer(s))...)
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

// Small runs a server whose max_payload is not what lowtide needs.
func Small(t testing.TB, maxPayload int32) *nats.Conn {
	t.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, MaxPayload: maxPayload})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(5 * time.Second) {
		t.Fatal("not ready")
	}
	nc, _ := connect(t, s)
	return nc
}
