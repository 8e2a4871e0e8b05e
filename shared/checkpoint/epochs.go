package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// beginning is the stored record of an epoch.
type beginning struct {
	Workload string `json:"workload"`
	Epoch    int64  `json:"epoch"`
	From     ID     `json:"from"` // zero: from nothing
}

// Begin records that an epoch of a workload has begun from a checkpoint, or from nothing if from is zero. Call it
// before the run restores. From then on saves of lower epochs are ErrStale, and what such a save still manages to
// commit is found neither by Latest nor by RestoreNewest, because it is newer than what this epoch began from.
// Begin may be repeated; it returns ErrTaken if the epoch began from something else, ErrStale if a later one began.
func (s *Store) Begin(ctx context.Context, workload string, epoch int64, from ID) error {
	w, err := s.of(workload)
	if err != nil {
		return err
	}
	if epoch < 1 || from.Epoch > epoch || !from.IsZero() && from.check() != nil {
		return fmt.Errorf("checkpoint: begin epoch %d of %s from %s: want an earlier checkpoint", epoch, workload, from)
	}
	if err := s.tryCondition(ctx, w, workload); err != nil {
		return fmt.Errorf("begin epoch %d of %s: %w", epoch, workload, err)
	}
	if err := s.checkFresh(ctx, w, workload, epoch); err != nil {
		return err
	}
	b := beginning{workload, epoch, from}
	body, err := s.seal("beginning", b)
	if err != nil {
		return err
	}
	// The sealed bytes hold no time, so our own earlier record is equal byte for byte.
	if err := s.commit(ctx, epochKey(workload, epoch), body, func([]byte) bool { return false }); err != nil {
		return fmt.Errorf("begin epoch %d of %s: %w", epoch, workload, err)
	}
	return nil
}

// beginnings returns what each begun epoch began from. Records never change, so each is read once.
func (s *Store) beginnings(ctx context.Context, w *workload, name string) (map[int64]ID, error) {
	p := epochPrefix(name)
	out := map[int64]ID{}
	err := s.each(ctx, p, func(o object) error {
		epoch, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(o.key, p), ".json"), 10, 64)
		if err != nil || epochKey(name, epoch) != o.key {
			return nil // not ours, or the temporary file of a writer that died
		}
		w.mu.Lock()
		from, ok := w.beginning[epoch]
		w.mu.Unlock()
		if !ok {
			data, err := s.get(ctx, o.key)
			if err != nil {
				return err
			}
			var b beginning
			if err := s.unseal("beginning", o.key, data, &b); err != nil {
				return err
			}
			if b.Workload != name || b.Epoch != epoch {
				return fmt.Errorf("%w: %s: holds epoch %d of %s", ErrCorrupt, o.key, b.Epoch, b.Workload)
			}
			from = b.From
			w.mu.Lock()
			w.beginning[epoch] = from
			w.mu.Unlock()
		}
		out[epoch] = from
		return nil
	})
	return out, err
}

// checkFresh returns ErrStale if a later epoch has begun or committed.
func (s *Store) checkFresh(ctx context.Context, w *workload, name string, epoch int64) error {
	begun, err := s.beginnings(ctx, w, name)
	if err != nil {
		return err
	}
	ids, err := s.List(ctx, name)
	if err != nil {
		return err
	}
	newest := int64(0)
	if len(ids) > 0 {
		newest = ids[0].Epoch
	}
	for e := range begun {
		newest = max(newest, e)
	}
	if newest > epoch {
		return fmt.Errorf("%w: epoch %d of %s: epoch %d has begun", ErrStale, epoch, name, newest)
	}
	return nil
}

// Query says for whom a checkpoint is looked for.
type Query struct {
	Workload string
	Epoch    int64 // the run that wants to restore
	Own      bool  // also what this epoch has committed itself, for a run that starts again within its epoch
	Below    ID    // if set, only checkpoints older than this one
}

// Latest returns the newest intact checkpoint that a run of the epoch may restore: one of a lower epoch (or, with
// Own, of its own), and not newer than what any epoch after it, up to this one, began from. It returns ErrNotFound
// if there is none, and ErrCorrupt if there are some and none can be read, so that a wrong key does not pass for
// a workload that has never saved.
func (s *Store) Latest(ctx context.Context, q Query) (*Manifest, error) {
	ids, err := s.candidates(ctx, q)
	if err != nil {
		return nil, err
	}
	var damage []error
	for _, id := range ids {
		m, err := s.readManifest(ctx, manifestKey(q.Workload, id), q.Workload, id)
		switch {
		case err == nil:
			return m, nil
		case errors.Is(err, ErrCorrupt):
			damage = append(damage, err)
		case errors.Is(err, ErrNotFound): // pruned since the listing
		default:
			return nil, fmt.Errorf("latest checkpoint of %s: %w", q.Workload, err)
		}
	}
	if len(damage) > 0 {
		return nil, fmt.Errorf("latest checkpoint of %s: %w", q.Workload, errors.Join(damage...))
	}
	return nil, fmt.Errorf("latest checkpoint of %s for epoch %d: %w", q.Workload, q.Epoch, ErrNotFound)
}

// candidates returns what the query allows, newest first.
func (s *Store) candidates(ctx context.Context, q Query) ([]ID, error) {
	w, err := s.of(q.Workload)
	if err != nil {
		return nil, err
	}
	begun, err := s.beginnings(ctx, w, q.Workload)
	if err != nil {
		return nil, fmt.Errorf("epochs of %s: %w", q.Workload, err)
	}
	all, err := s.List(ctx, q.Workload)
	if err != nil {
		return nil, err
	}
	var ids []ID
	for _, id := range all {
		if allowed(id, q, begun) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// allowed is the rule of fencing:
//
//	epoch 4: 4-100  4-200 ──┐ epoch 5 began from 4-200
//	         4-300 (late)   └─ 5-250
//	for epoch 6: 5-250, 4-200, 4-100; never 4-300, though its step is the highest
func allowed(id ID, q Query, begun map[int64]ID) bool {
	if id.Epoch > q.Epoch || id.Epoch == q.Epoch && !q.Own {
		return false
	}
	if !q.Below.IsZero() && id.Compare(q.Below) >= 0 {
		return false
	}
	for e, from := range begun {
		if id.Epoch < e && e <= q.Epoch && id.Compare(from) > 0 {
			return false
		}
	}
	return true
}
