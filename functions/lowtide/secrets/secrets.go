// Package secrets hands a workload's secrets to the machine that runs it. A workload names them by reference; what they
// are is read when a machine asks, by whoever stands beside NATS, and goes to that machine alone.
//
// It promises:
//
//   - Nothing of a secret is in a fact, in a fleet's state, in a log or on a disk of ours. The answer is sealed for a key
//     that the machine has made for this one question, so that whoever else may read at NATS reads nothing.
//   - A machine gets the secrets of the workload that it was ordered to start, and no others; one that has not proved
//     itself, is on its way out or is not in the fleet's state gets none.
//   - Variables and files are only those that were put there to be handed out: variables whose names begin with
//     LOWTIDE_SECRET_, files below one directory. Whoever may submit a workload can have no others sent to it.
//
// It relies on NATS for who asks: a machine's own user may ask in its own name alone (package accounts). Where all machines
// share one token, as with `lowtide run` and machines on this computer, they are not kept from each other.
package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"lowtide/events"
	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/shared/fleet"
)

// ErrRefused: asking again would be answered the same.
var ErrRefused = errors.New("refused")

// question is what a machine sends.
type question struct {
	Workload string `json:"workload"`
	Key      string `json:"key"` // public, for the answer
}

// answer is what it gets.
type answer struct {
	Key     string `json:"key,omitempty"` // public, of who sealed it
	Sealed  []byte `json:"sealed,omitempty"`
	Refused string `json:"refused,omitempty"`
	Trouble string `json:"trouble,omitempty"` // asking again may help
}

// Ask asks for a workload's secrets in a machine's name.
func Ask(ctx context.Context, nc *nats.Conn, fleetName, machine, workload string) (map[string]string, error) {
	key, err := nkeys.CreateCurveKeys()
	if err != nil {
		return nil, err
	}
	defer key.Wipe()
	public, err := key.PublicKey()
	if err != nil {
		return nil, err
	}
	q, err := json.Marshal(question{workload, public})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	msg, err := nc.RequestWithContext(ctx, accounts.Secrets(fleetName, events.Token(machine)), q)
	if err != nil {
		return nil, fmt.Errorf("ask for the secrets of %s: %w", workload, err)
	}
	var a answer
	if err := json.Unmarshal(msg.Data, &a); err != nil {
		return nil, fmt.Errorf("secrets of %s: %w", workload, err)
	}
	switch {
	case a.Refused != "":
		return nil, fmt.Errorf("%w: %s", ErrRefused, a.Refused)
	case a.Trouble != "":
		return nil, fmt.Errorf("secrets of %s: %s", workload, a.Trouble)
	}
	plain, err := key.Open(a.Sealed, a.Key)
	if err != nil {
		return nil, fmt.Errorf("secrets of %s: the answer is not for us: %w", workload, err)
	}
	var values map[string]string
	return values, json.Unmarshal(plain, &values)
}

// Desk answers. All fields are needed.
type Desk struct {
	Fleet string
	State func(context.Context) (*fleet.Fleet, error) // from the leader; nil: there is none yet
	Read  Reader
	Log   *slog.Logger
}

// Serve answers until the connection closes or the returned function is called.
func (d Desk) Serve(ctx context.Context, nc *nats.Conn) (stop func(), err error) {
	// In a queue: several may stand beside NATS, and one answers.
	sub, err := nc.QueueSubscribe(accounts.Secrets(d.Fleet, "*"), "secrets", func(m *nats.Msg) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		machine := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
		a := d.answer(ctx, machine, m.Data)
		b, err := json.Marshal(a)
		if err == nil {
			err = m.Respond(b)
		}
		if err != nil || a.Refused+a.Trouble != "" {
			d.Log.Warn("secrets not handed out", "machine", machine, "why", a.Refused+a.Trouble, "err", err)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("hand out secrets: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

func (d Desk) answer(ctx context.Context, machine string, b []byte) answer {
	var q question
	if err := json.Unmarshal(b, &q); err != nil || !nkeys.IsValidPublicCurveKey(q.Key) {
		return answer{Refused: "the question cannot be read"}
	}
	f, err := d.State(ctx)
	if err != nil {
		return answer{Trouble: "the fleet's state cannot be read: " + err.Error()}
	}
	refs, err := entitled(f, machine, q.Workload)
	if err != nil {
		return answer{Refused: err.Error()}
	}
	values := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		v, err := d.Read.Read(ctx, refs[name])
		switch {
		case errors.Is(err, ErrRefused):
			return answer{Refused: fmt.Sprintf("secret %s (%s): %v", name, refs[name], err)}
		case err != nil:
			return answer{Trouble: fmt.Sprintf("secret %s (%s): %v", name, refs[name], err)}
		}
		values[name] = v
	}
	return seal(values, q.Key)
}

// entitled are the references of a workload's secrets, if the machine may have them.
func entitled(f *fleet.Fleet, machine, workload string) (map[string]fleet.Secret, error) {
	var m *fleet.Instance
	var w *fleet.Workload
	if f != nil {
		w = f.Workloads[workload]
		for _, is := range f.Machines {
			if events.Token(is.Name) == machine {
				m = is
			}
		}
	}
	switch {
	case m == nil:
		return nil, fmt.Errorf("the fleet has no machine %q", machine)
	case m.Phase == fleet.Rejected || m.Phase == fleet.Ending || m.Phase == fleet.Ended:
		return nil, fmt.Errorf("machine %q is %s", machine, m.Phase)
	case m.Order.Start == nil || m.Order.Start.Workload != workload || w == nil || w.On != m.Name:
		return nil, fmt.Errorf("machine %q does not run %q", machine, workload)
	}
	return w.Spec.Kit.Secrets, nil
}

func seal(values map[string]string, to string) answer {
	key, err := nkeys.CreateCurveKeys()
	var public string
	var plain, sealed []byte
	if err == nil {
		defer key.Wipe()
		public, err = key.PublicKey()
	}
	if err == nil {
		plain, err = json.Marshal(values)
	}
	if err == nil {
		sealed, err = key.Seal(plain, to)
	}
	if err != nil {
		return answer{Trouble: "the answer cannot be sealed"}
	}
	return answer{Key: public, Sealed: sealed}
}
