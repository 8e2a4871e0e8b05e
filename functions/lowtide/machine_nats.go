package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/shared/bus"
	host "lowtide/shared/fn/jetstream"
)

// machineUser are the options of a machine's own NATS user, and whether it has one:
//
//	LOWTIDE_NATS_CREDS    file with its credentials; it is read again at each connect
//	LOWTIDE_NATS_CA_FILE  certificates that may have signed the server's; none: the system's
//
// Without a user there is the token of a ring in one process, which may do everything.
func machineUser(s agent.Settings, getenv func(string) string) (opts []nats.Option, own bool) {
	creds := getenv("LOWTIDE_NATS_CREDS")
	if creds == "" {
		return []nats.Option{nats.Token(s.Token)}, false
	}
	opts = []nats.Option{nats.UserCredentials(creds), nats.CustomInboxPrefix(accounts.Inbox(s.Machine))}
	if ca := getenv("LOWTIDE_NATS_CA_FILE"); ca != "" {
		opts = append(opts, nats.RootCAs(ca))
	}
	return opts, true
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
