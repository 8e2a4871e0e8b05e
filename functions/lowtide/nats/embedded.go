// Package embedded runs a NATS server with JetStream inside this process, so that lowtide needs nothing installed.
//
// It promises that with SyncAlways an acknowledged message survives a power cut, that a stop is orderly, and that a
// listening server admits nobody without the token. It listens on the loopback only; a cluster, TLS and accounts are
// a real server's business (infra/nats).
package embedded

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// MaxPayload is the largest message; the largest that the server allows without a warning.
const MaxPayload = 8 << 20

// Options of a server. The zero value is right for a throw-away store without a port.
type Options struct {
	SyncAlways bool   // fsync every message: for state that must outlive a power cut
	Listen     bool   // on 127.0.0.1, for agents in other processes
	Port       int    // 0: a free one
	Token      string // what a client must show; "" makes a random one when it listens
}

// Server is one running server. It may be stopped and started again on its directory: connections that Connect made
// find it again.
type Server struct {
	dir  string
	opts Options

	mu      sync.Mutex
	running *server.Server
}

// Start runs a server whose store is dir. It returns when clients can connect.
func Start(dir string, o Options) (*Server, error) {
	if o.Listen && o.Token == "" {
		o.Token = rand.Text()
	}
	e := &Server{dir: dir, opts: o}
	return e, e.Restart()
}

// Restart starts a server that was shut down, on the same directory and port.
func (e *Server) Restart() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running != nil {
		return errors.New("embedded nats: already running")
	}
	if err := os.MkdirAll(e.dir, 0o750); err != nil { // the server would try for ten seconds and not say why
		return fmt.Errorf("embedded nats: %w", err)
	}
	port := e.opts.Port
	if port == 0 {
		port = server.RANDOM_PORT
	} else if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err != nil {
		return fmt.Errorf("embedded nats: %w", err) // the server would try for ten seconds and not say why
	} else if err := l.Close(); err != nil {
		return fmt.Errorf("embedded nats: %w", err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "lowtide", Host: "127.0.0.1", Port: port, DontListen: !e.opts.Listen, Authorization: e.opts.Token,
		NoSigs: true, NoLog: true, MaxPayload: MaxPayload,
		JetStream: true, StoreDir: e.dir, SyncAlways: e.opts.SyncAlways,
	})
	if err != nil {
		return fmt.Errorf("embedded nats in %s: %w", e.dir, err)
	}
	s.SetLoggerV2(troubles{}, false, false, false)
	s.Start()
	if !s.ReadyForConnections(10*time.Second) || !s.JetStreamEnabled() {
		s.Shutdown()
		return fmt.Errorf("embedded nats in %s: not ready; is the directory writable and the port free?", e.dir)
	}
	if e.opts.Listen {
		e.opts.Port = s.Addr().(*net.TCPAddr).Port // clients come back to the port they know
	}
	e.running = s
	return nil
}

// Healthy says why nothing can be stored any more: on a disk that was full, if only for a moment, the server shuts its
// JetStream down for good and goes on without it. A start anew heals that.
func (e *Server) Healthy() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil || e.running.JetStreamEnabled() {
		return nil
	}
	return fmt.Errorf("embedded nats in %s: JetStream has shut down (was the disk full?)", e.dir)
}

// troubles hands on the server's errors, and nothing else: it warns at each start after a kill of what it then mends.
type troubles struct{}

func (troubles) Noticef(string, ...any) {}
func (troubles) Debugf(string, ...any)  {}
func (troubles) Tracef(string, ...any)  {}

func (troubles) Warnf(string, ...any) {}

func (troubles) Errorf(format string, v ...any) { slog.Error("nats: " + fmt.Sprintf(format, v...)) }

func (troubles) Fatalf(format string, v ...any) { slog.Error("nats: " + fmt.Sprintf(format, v...)) }

// Connect makes a connection inside the process, without a socket.
func (e *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	return nats.Connect("", append([]nats.Option{nats.InProcessServer(e), nats.Token(e.opts.Token)}, opts...)...)
}

// InProcessConn is for nats.InProcessServer; callers use Connect.
func (e *Server) InProcessConn() (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil {
		return nil, errors.New("embedded nats: shut down")
	}
	return e.running.InProcessConn()
}

// URL is where agents connect, "nats://127.0.0.1:4711"; "" if it does not listen. They show Token.
func (e *Server) URL() string {
	if !e.opts.Listen {
		return ""
	}
	return fmt.Sprintf("nats://127.0.0.1:%d", e.opts.Port)
}

// Token is what a client must show; "" if anybody in the process may come.
func (e *Server) Token() string { return e.opts.Token }

// RTT is how long a client's answer takes, as the server measures it every now and then, by the client's name; false while
// it is not connected, or was not measured yet.
func (e *Server) RTT(client string) (time.Duration, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil {
		return 0, false
	}
	all, err := e.running.Connz(&server.ConnzOptions{Limit: 4096})
	if err != nil {
		return 0, false
	}
	for _, c := range all.Conns {
		if d, err := time.ParseDuration(c.RTT); c.Name == client && err == nil {
			return d, d > 0
		}
	}
	return 0, false
}

// Shutdown stops the server and returns when its store is closed. Again is no error.
func (e *Server) Shutdown() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil {
		return
	}
	e.running.Shutdown()
	e.running.WaitForShutdown()
	e.running = nil
}
