package lambda

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"lowtide/shared/bus"
)

// How long a connection may take to answer before it is taken for dead. Between two invocations no goroutine runs, so
// nobody notices that a server, or the network between, has forgotten it.
const (
	freshWithin = 250 * time.Millisecond
	watchEvery  = time.Second
)

// connect begins to connect, and returns at once where nobody answers: invocations wait for it within their own time.
func (h *Host) connect() (*nats.Conn, error) {
	opts := append(bus.Options(h.name, func(err error) { h.log.Warn("nats", "err", err) }),
		nats.Timeout(2*time.Second), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(10*time.Millisecond, 10*time.Millisecond))
	if h.Inbox != "" {
		opts = append(opts, nats.CustomInboxPrefix(h.Inbox))
	}
	if h.CA != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(h.CA)) {
			return nil, errors.New("LOWTIDE_NATS_CA holds no certificate in PEM")
		}
		opts = append(opts, nats.Secure(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}))
	}
	if h.Secret != nil {
		c := &credentials{read: h.Secret}
		opts = append(opts, func(o *nats.Options) error { // not nats.UserJWT, which reads the secret at once and fails for ever if it cannot
			o.UserJWT, o.SignatureCB, o.IgnoreAuthErrorAbort = c.jwt, c.sign, true
			return nil
		})
	}
	return nats.Connect(h.NATS, opts...)
}

// fresh replaces a connection that does not answer. It costs one round trip where it does.
func (h *Host) fresh(ctx context.Context) {
	if !h.nc.IsConnected() || !h.answers(ctx, freshWithin) {
		_ = h.nc.ForceReconnect() // drops a dead socket, or cuts short the wait between two attempts
	}
}

func (h *Host) answers(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return h.nc.FlushWithContext(ctx) == nil
}

// watch replaces a connection that dies during the invocation; bus.Publish goes on trying meanwhile. Its result ends it.
func (h *Host) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		t := time.NewTicker(watchEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if h.nc.IsConnected() && !h.answers(ctx, watchEvery) && ctx.Err() == nil {
				_ = h.nc.ForceReconnect()
			}
		}
	}()
	return func() { cancel(); <-over }
}

// reserve is what an invocation keeps of its time for saving, publishing and answering.
const reserve = 1500 * time.Millisecond

// within bounds the work of an invocation. An emulator may give no deadline, or one that is now: then the configured
// time-out counts.
func (h *Host) within(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	left := time.Until(end)
	if !ok || left <= 100*time.Millisecond {
		h.log.Warn("the invocation has no deadline ahead; the configured time-out counts", "left", left.String(), "timeout", h.Timeout.String())
		ctx, left = context.WithoutCancel(ctx), h.Timeout
	}
	return context.WithTimeout(ctx, left-min(reserve, left/5))
}
