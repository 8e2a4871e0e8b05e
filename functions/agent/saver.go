package agent

import (
	"context"
	"errors"
	"fmt"

	"lowtide/shared/checkpoint"
	"lowtide/shared/fleet"
)

// Checkpoints is a Saver over a checkpoint store.
type Checkpoints struct{ Store *checkpoint.Store }

// Save makes a local checkpoint durable. That the place is taken by other content is staleness too: somebody else runs
// this epoch.
func (c Checkpoints) Save(ctx context.Context, workload string, epoch uint64, l Local) (fleet.Manifest, error) {
	m, err := c.Store.Save(ctx, workload, checkpoint.ID{Epoch: int64(epoch), Step: l.Step}, l.Path, nil)
	if errors.Is(err, checkpoint.ErrStale) || errors.Is(err, checkpoint.ErrTaken) {
		return fleet.Manifest{}, fmt.Errorf("%w: %w", ErrStale, err)
	}
	switch {
	case errors.Is(err, checkpoint.ErrUnfit):
		return fleet.Manifest{}, fmt.Errorf("%w: %w", ErrUnfit, err)
	case errors.Is(err, checkpoint.ErrChanged):
		return fleet.Manifest{}, fmt.Errorf("%w: %w", ErrChanged, err)
	case err != nil:
		return fleet.Manifest{}, err
	}
	return described(m), nil
}

func described(m *checkpoint.Manifest) fleet.Manifest {
	return fleet.Manifest{ID: m.ID.String(), Epoch: uint64(m.Epoch), Step: m.Step, Bytes: m.Bytes()}
}

// Restore fetches a checkpoint whole.
func (c Checkpoints) Restore(ctx context.Context, workload, manifest, dir string) (fleet.Manifest, error) {
	id, err := checkpoint.ParseID(manifest)
	if err != nil {
		return fleet.Manifest{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	m, err := c.Store.Restore(ctx, workload, id, dir, nil)
	switch {
	case errors.Is(err, checkpoint.ErrCorrupt), errors.Is(err, checkpoint.ErrNotFound), errors.Is(err, checkpoint.ErrFormat):
		return fleet.Manifest{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	case err != nil:
		return fleet.Manifest{}, err
	}
	return described(m), nil
}

// Begin fences earlier epochs. An epoch that began from another manifest stays fenced as it is: that was a restore that
// found the manifest whole, before somebody damaged it.
func (c Checkpoints) Begin(ctx context.Context, workload string, epoch uint64, from string) error {
	var id checkpoint.ID
	if from != "" {
		var err error
		if id, err = checkpoint.ParseID(from); err != nil {
			return err
		}
	}
	err := c.Store.Begin(ctx, workload, int64(epoch), id)
	switch {
	case errors.Is(err, checkpoint.ErrStale):
		return fmt.Errorf("%w: %w", ErrStale, err)
	case errors.Is(err, checkpoint.ErrTaken):
		return nil
	}
	return err
}

// Prune withdraws what is not named and not among the last two. A name that cannot be read stops it: it might be one
// to keep.
func (c Checkpoints) Prune(ctx context.Context, epoch uint64, p fleet.Prune) error {
	keep := checkpoint.Keep{Epoch: int64(epoch), Last: 2}
	for _, name := range p.Keep {
		id, err := checkpoint.ParseID(name)
		if err != nil {
			return err
		}
		keep.Named = append(keep.Named, id)
	}
	_, err := c.Store.Prune(ctx, p.Workload, keep)
	if errors.Is(err, checkpoint.ErrStale) {
		return fmt.Errorf("%w: %w", ErrStale, err)
	}
	return err
}

// Code fetches a workload's packed directory; whoever unpacks it checks the hash.
func (c Checkpoints) Code(ctx context.Context, workload, sum string) ([]byte, error) {
	b, err := c.Store.Code(ctx, workload, sum)
	if errors.Is(err, checkpoint.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return b, err
}
