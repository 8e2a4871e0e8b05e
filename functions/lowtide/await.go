package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// reply is what a person's word is waited for by: a fact that heard takes for it, or a fleet that so does, whichever
// comes first. Either may be nil; an error ends the wait.
type reply struct {
	about string // key of the facts that are heard; ">": all
	heard func(events.Fact) (bool, error)
	so    func(*fleet.Fleet) (bool, error)
}

// await says a fact and waits until ctx's end for what comes of it. It listens before it speaks. what names the word where
// nobody answers.
func (c *client) await(ctx context.Context, what string, said events.Event, a reply) error {
	come := make(chan events.Fact, 16)
	if a.heard != nil {
		sub, err := c.nc.Subscribe(events.Subject(c.Fleet, "*.*", a.about), func(m *nats.Msg) {
			if e, err := events.Decode(m.Data); err == nil {
				select {
				case come <- e.Data:
				case <-ctx.Done():
				}
			}
		})
		if err != nil {
			return nobody(err)
		}
		defer sub.Unsubscribe() //nolint:errcheck // the connection closes with the command
	}
	if err := c.host.Say(ctx, said); err != nil {
		return nobody(fmt.Errorf("say %s: %w", said.Data.Kind(), err))
	}
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for {
		var done bool
		var err error
		select {
		case <-ctx.Done():
			return nobody(fmt.Errorf("%s: said, but nobody has answered yet; see lowtide status", what))
		case f := <-come:
			done, err = a.heard(f)
		case <-look.C:
			if a.so == nil {
				continue
			}
			var f *fleet.Fleet
			if f, err = c.fleet(ctx); err == nil {
				done, err = a.so(f)
			}
		}
		if done || err != nil {
			return err
		}
	}
}
