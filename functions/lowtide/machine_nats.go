package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/lowtide/admission"
	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/shared/bus"
	host "lowtide/shared/fn/jetstream"
)

// machineUser are the options of a machine's own NATS user, and whether it has one:
//
//	LOWTIDE_JOIN          where its token is exchanged for one, with LOWTIDE_JOIN_TOKEN, _UNTIL, LOWTIDE_PLAN, LOWTIDE_WORKLOAD
//	LOWTIDE_NATS_CREDS    or a file with its credentials
//	LOWTIDE_NATS_CA_FILE  certificates that may have signed the servers'; none: the system's
//
// Without a user there is the token of a ring in one process, which may do everything.
func machineUser(ctx context.Context, s agent.Settings, getenv func(string) string) (opts []nats.Option, own bool, err error) {
	inbox, ca := nats.CustomInboxPrefix(accounts.Inbox(s.Machine)), getenv("LOWTIDE_NATS_CA_FILE")
	switch join, creds := getenv("LOWTIDE_JOIN"), getenv("LOWTIDE_NATS_CREDS"); {
	case join != "":
		m, err := joinFleet(ctx, s, join, ca, getenv)
		if err != nil {
			return nil, false, err
		}
		opts = []nats.Option{m.User(), inbox}
	case creds != "":
		opts = []nats.Option{nats.UserCredentials(creds), inbox}
	default:
		return []nats.Option{nats.Token(s.Token)}, false, nil
	}
	if ca != "" {
		opts = append(opts, nats.RootCAs(ca))
	}
	return opts, true, nil
}

// joinFleet exchanges the machine's token, and renews what it gets for as long as the agent lives, beside it: an agent ticks
// and saves also where nobody admits it. The server closes a connection whose hour is over; the client comes back with
// the newest user.
func joinFleet(ctx context.Context, s agent.Settings, url, ca string, getenv func(string) string) (*admission.Member, error) {
	until, err := time.Parse(time.RFC3339, getenv("LOWTIDE_JOIN_UNTIL"))
	if err != nil {
		return nil, fmt.Errorf("LOWTIDE_JOIN_UNTIL: %w", err)
	}
	client := &http.Client{Timeout: 20 * time.Second}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("LOWTIDE_NATS_CA_FILE: %w", err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	}
	m, err := admission.Open(url, client, filepath.Join(s.Dir, "nats.seed"), admission.Ask{
		Fleet: s.Fleet, Machine: s.Machine, Plan: getenv("LOWTIDE_PLAN"), Workload: getenv("LOWTIDE_WORKLOAD"), Until: until, Token: getenv("LOWTIDE_JOIN_TOKEN"),
	})
	if err != nil {
		return nil, err
	}
	go m.Run(ctx, func(err error) { slog.Warn("not admitted", "err", err) }) // until the agent ends
	return m, nil
}

// newest reads the newest order of a machine. A machine with a user of its own may not read the stream by position, since
// that would be everybody's facts: it asks through a consumer that can hold its own orders alone.
func newest(h *host.Host, nc *nats.Conn, s agent.Settings, own bool) func(context.Context) (events.OrderGiven, bool, error) {
	if !own {
		return func(ctx context.Context) (events.OrderGiven, bool, error) {
			d, err := h.Last(ctx, s.Fleet, "order.given", events.Token(s.Machine))
			if errors.Is(err, bus.ErrNone) {
				return events.OrderGiven{}, false, nil
			}
			o, ok := d.Event.Data.(events.OrderGiven)
			return o, ok, err
		}
	}
	return func(ctx context.Context) (events.OrderGiven, bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		o, ok, err := ownNewest(ctx, nc, s)
		if err != nil {
			err = fmt.Errorf("newest order of %s: %w", s.Machine, err)
		}
		return o, ok, err
	}
}

func ownNewest(ctx context.Context, nc *nats.Conn, s agent.Settings) (events.OrderGiven, bool, error) {
	js, err := bus.JetStream(nc)
	if err != nil {
		return events.OrderGiven{}, false, err
	}
	name := accounts.NewestConsumer(s.Fleet, s.Machine)
	if err := js.DeleteConsumer(ctx, bus.Facts, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return events.OrderGiven{}, false, err
	}
	con, err := js.CreateConsumer(ctx, bus.Facts, jetstream.ConsumerConfig{
		Name: name, FilterSubject: bus.Subject(s.Fleet, "order.given", events.Token(s.Machine)), InactiveThreshold: time.Minute,
		DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return events.OrderGiven{}, false, err
	}
	if con.CachedInfo().NumPending == 0 {
		return events.OrderGiven{}, false, nil
	}
	m, err := con.Next(jetstream.FetchMaxWait(3 * time.Second))
	if err != nil {
		return events.OrderGiven{}, false, err
	}
	e, err := events.Decode(m.Data())
	o, ok := e.Data.(events.OrderGiven)
	return o, ok, err
}
