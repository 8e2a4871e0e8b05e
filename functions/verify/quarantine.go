package verify

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/store"
)

// rejection is what is remembered of a device, for as long as Kept: on a marketplace the same card comes back under a new
// machine.
type rejection struct {
	Machine string    `json:"machine"`
	Nonce   string    `json:"nonce"`
	At      time.Time `json:"at"`
	Cause   string    `json:"cause"`
}

func deviceKey(uuid string) string { return "device." + events.Token(uuid) }

// named says that a device's id tells it from all others. A CPU is its host's: every machine on that host has the same.
func named(b events.BenchmarkFinished, d events.Device) bool {
	return d.UUID != "" && b.Backend != "cpu"
}

// known says that a device of an answer was rejected on another machine, or by another order, of late.
func (j judge) known(ctx context.Context, b events.BenchmarkFinished, now time.Time) (string, error) {
	for _, d := range b.Devices {
		if !named(b, d) {
			continue
		}
		r, _, err := j.rejected(ctx, d.UUID)
		if err != nil {
			return "", err
		}
		if r.Nonce != "" && r.Nonce != b.Nonce && now.Sub(r.At) < Kept {
			return fmt.Sprintf("device %s was rejected %s ago on %s: %s", d.UUID, now.Sub(r.At).Round(time.Minute), r.Machine, r.Cause), nil
		}
	}
	return "", nil
}

// remember notes the devices of a rejected machine: those that are too slow by themselves, else all.
func (j judge) remember(ctx context.Context, r record, said events.InstanceRejected) error {
	if r.Known != "" || strings.HasPrefix(said.Cause, events.CauseFramework) {
		return nil // the first rejection stands, with its cause and its end; what one workload dislikes, others may like
	}
	blamed := r.Answer.Devices
	if slow := below(blamed); len(slow) > 0 {
		blamed = slow
	}
	for _, d := range blamed {
		if !named(*r.Answer, d) {
			continue
		}
		if err := j.reject(ctx, d.UUID, rejection{Machine: said.Machine, Nonce: said.Nonce, At: r.Heard, Cause: said.Cause}); err != nil {
			return err
		}
	}
	return nil
}

func below(devices []events.Device) (slow []events.Device) {
	for _, d := range devices {
		if d.Rated > 0 && d.Upper > 0 && d.Upper < Least {
			slow = append(slow, d)
		}
	}
	return slow
}

func (j judge) rejected(ctx context.Context, uuid string) (rejection, uint64, error) {
	var r rejection
	rev, err := store.Load(ctx, j.orders, deviceKey(uuid), &r)
	if err != nil {
		return r, 0, fmt.Errorf("read the rejection of %s: %w", uuid, err)
	}
	return r, rev, nil
}

func (j judge) reject(ctx context.Context, uuid string, r rejection) error {
	was, rev, err := j.rejected(ctx, uuid)
	if err != nil || was.Nonce == r.Nonce {
		return err
	}
	if _, err := store.Save(ctx, j.orders, deviceKey(uuid), r, rev); err != nil {
		return fmt.Errorf("keep the rejection of %s: %w", uuid, err)
	}
	return nil
}
