// Package notices reads what clouds say about machines that they will take, as the bytes came, and says
// instance.interrupted and instance.at_risk.
//
// It promises:
//
//   - A warning that names its end keeps that end; one that does not gets the time at which it was said and the cloud's
//     notice period, never the period from now. A sender's clock that is ahead makes no machine live longer.
//   - A document that is no warning says nothing, and one that is broken is a dead letter with its bytes: neither comes again.
//   - A warning that comes again is the same fact: its id hashes what was said, not how often. What two sources say of one
//     machine are two facts, and the earlier end counts (rebalance).
//
// It does not know whose machines they are: rebalance knows its own by cloud, account and id, and lets others' pass.
// Machines watch their own metadata besides (functions/agent); clouds' warnings are best effort.
package notices

import (
	"context"
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/shared/fn"
)

// Options are what need not be said.
type Options struct {
	Now func() time.Time // lowtide's time; time.Now
	// Accounts gives our name of an account, by "<cloud>/<the cloud's id>"; others keep the cloud's id.
	Accounts map[string]string
}

// Notices reads warnings for some fleets. New makes it.
type Notices struct {
	fleets []string
	opts   Options
}

// New makes the reader. Every fleet is told of every warning: an account may serve several.
func New(fleets []string, opts Options) *Notices {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Notices{fleets, opts}
}

// Function hears notice.received: bytes that a webhook took in.
func (n *Notices) Function() fn.Function {
	return fn.New("notices", fn.Hear(func(ctx context.Context, e events.NoticeReceived) ([]events.Event, error) {
		at := fn.Now(ctx)
		if at.IsZero() || at.After(n.opts.Now()) {
			at = n.opts.Now()
		}
		return n.at(e.Body, at)
	}))
}

// Direct takes one document that did not come through the stream: EventBridge's way. A broken one wraps fn.ErrDead.
func (n *Notices) Direct(_ context.Context, raw []byte) ([]events.Event, error) {
	return n.at(raw, n.opts.Now())
}

func (n *Notices) at(raw []byte, now time.Time) ([]events.Event, error) {
	facts, err := Read(raw, now)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fn.ErrDead, err)
	}
	var out []events.Event
	for _, f := range facts {
		f = n.name(f)
		for _, fleet := range n.fleets {
			out = append(out, events.New(fleet, "notices", now, f))
		}
	}
	return out, nil
}

// name puts our name of the account in place of the cloud's.
func (n *Notices) name(f events.Fact) events.Fact {
	ours := func(cloud, account string) string {
		if name, ok := n.opts.Accounts[cloud+"/"+account]; ok {
			return name
		}
		return account
	}
	switch f := f.(type) {
	case events.InstanceInterrupted:
		f.Account = ours(f.Cloud, f.Account)
		return f
	case events.InstanceAtRisk:
		f.Account = ours(f.Cloud, f.Account)
		return f
	}
	return f
}
