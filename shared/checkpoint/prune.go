package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Keep says what Prune must leave.
type Keep struct {
	Epoch int64 // of the run that prunes; only the newest epoch may
	Last  int   // how many of the newest intact checkpoints, at least 2
	Named []ID  // checkpoints named in open start orders
}

// Pruned says what Prune did.
type Pruned struct {
	Manifests []ID     // withdrawn now; their chunks go UnnamedFor later
	Chunks    int      // deleted
	Bytes     int64    // freed
	Damaged   []string // manifests that could not be read. While there are any, no chunk is deleted: it might be theirs
}

// Prune withdraws old checkpoints and, a day later, deletes what none names any more. It may be stopped anywhere and
// called again. It keeps what Keep says, what the newest epoch began from, the last two by number whatever their
// epoch, and every manifest that it cannot read. Ages are the store's. ErrStale if a later epoch has begun.
//
//	manifest ──withdraw──► pruned/ ──24 h──► its chunks, unless named elsewhere or young ──► the entry in pruned/
//
// The order of listing is what makes this safe beside a running save: chunks first, then manifests. A save names an
// old chunk only if it is younger than ReuseFor, and is over within SaveLimit, so when a chunk was old enough in
// the first listing, every manifest that names it is in the second.
func (s *Store) Prune(ctx context.Context, workload string, k Keep) (Pruned, error) {
	p := &pruner{store: s, workload: workload, keep: k}
	err := p.run(ctx)
	if err != nil {
		err = fmt.Errorf("prune %s: %w", workload, err)
	}
	return p.done, err
}

type pruner struct {
	store    *Store
	workload string
	keep     Keep
	now      time.Time
	named    map[string]bool // chunks that stay
	done     Pruned
}

func (p *pruner) run(ctx context.Context) error {
	s := p.store
	w, err := s.of(p.workload)
	if err != nil {
		return err
	}
	if err := s.checkFresh(ctx, w, p.workload, p.keep.Epoch); err != nil {
		return err
	}
	if p.now, err = s.now(ctx, p.workload); err != nil {
		return err
	}
	old, err := p.oldObjects(ctx, chunkPrefix(p.workload))
	if err != nil {
		return err
	}
	p.named = map[string]bool{}
	live, err := p.readLive(ctx)
	if err != nil {
		return err
	}
	begun, err := s.beginnings(ctx, w, p.workload)
	if err != nil {
		return err
	}
	staying := p.staying(live, begun)
	for _, m := range live {
		if !staying[m.ID] {
			if err := p.withdraw(ctx, m); err != nil {
				return err
			}
		}
	}
	gone, err := p.readPruned(ctx)
	if err != nil || len(p.done.Damaged) > 0 {
		return err
	}
	if len(live) == 0 {
		return nil // the last two always stay: either nothing was ever saved, or the listing is not to be trusted
	}
	if err := p.sweep(ctx, old); err != nil {
		return err
	}
	// Last, so that a prune that dies before has them to go by again.
	for _, key := range gone {
		if err := p.remove(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// oldObjects lists what is below a prefix and older than UnnamedFor.
func (p *pruner) oldObjects(ctx context.Context, prefix string) ([]object, error) {
	var old []object
	err := p.store.each(ctx, prefix, func(o object) error {
		if p.now.Sub(o.at) > UnnamedFor {
			old = append(old, o)
		}
		return nil
	})
	return old, err
}

// readLive returns the intact manifests, newest first, and protects what they name.
func (p *pruner) readLive(ctx context.Context) ([]*Manifest, error) {
	ids, err := p.store.List(ctx, p.workload)
	if err != nil {
		return nil, err
	}
	var live []*Manifest
	for _, id := range ids {
		m, err := p.read(ctx, manifestKey(p.workload, id), id)
		if err != nil {
			return nil, err
		}
		if m != nil {
			live = append(live, m)
		}
	}
	return live, nil
}

// read protects the chunks of a manifest. One that cannot be read is noted and nil.
func (p *pruner) read(ctx context.Context, key string, id ID) (*Manifest, error) {
	m, err := p.store.readManifest(ctx, key, p.workload, id)
	switch {
	case err == nil:
		for _, f := range m.Files {
			for _, c := range f.Chunks {
				p.named[c.Name] = true
			}
		}
		return m, nil
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrFormat):
		p.done.Damaged = append(p.done.Damaged, key)
		return nil, nil
	}
	return nil, err
}

// staying chooses the checkpoints to keep; live is newest first.
func (p *pruner) staying(live []*Manifest, begun map[int64]ID) map[ID]bool {
	stay := map[ID]bool{}
	for _, id := range p.keep.Named {
		stay[id] = true
	}
	if len(begun) > 0 {
		stay[begun[slices.Max(slices.Collect(maps.Keys(begun)))]] = true
	}
	for _, m := range live[:min(2, len(live))] {
		stay[m.ID] = true
	}
	// Late manifests of an overtaken epoch do not count to the last ones: a restore would not take them.
	left := max(2, p.keep.Last)
	for _, m := range live {
		if left > 0 && allowed(m.ID, Query{Epoch: p.keep.Epoch, Own: true}, begun) {
			stay[m.ID] = true
			left--
		}
	}
	return stay
}

// withdraw takes a manifest away. The copy comes first: it protects the chunks from then on.
func (p *pruner) withdraw(ctx context.Context, m *Manifest) error {
	body, err := p.store.seal("manifest", m)
	if err != nil {
		return err
	}
	key := prunedKey(p.workload, m.ID)
	dir, err := p.store.put(ctx, key, body, false, nil)
	if err != nil {
		return fmt.Errorf("withdraw %s: %w", m.ID, err)
	}
	if err := syncParents(dir, key); err != nil {
		return err
	}
	if err := p.remove(ctx, manifestKey(p.workload, m.ID)); err != nil {
		return err
	}
	p.done.Manifests = append(p.done.Manifests, m.ID)
	return nil
}

// readPruned protects what was withdrawn lately and returns the rest.
func (p *pruner) readPruned(ctx context.Context) (expired []string, err error) {
	prefix := prunedPrefix(p.workload)
	err = p.store.each(ctx, prefix, func(o object) error {
		if p.now.Sub(o.at) > UnnamedFor {
			expired = append(expired, o.key)
			return nil
		}
		id, ok := idOf(strings.TrimPrefix(o.key, prefix))
		if !ok {
			return nil // a temporary file; it expires
		}
		_, err := p.read(ctx, o.key, id)
		return err
	})
	return expired, err
}

// sweep deletes the old objects that no manifest names.
func (p *pruner) sweep(ctx context.Context, old []object) error {
	prefix := chunkPrefix(p.workload)
	for _, o := range old {
		name := strings.TrimPrefix(o.key, prefix)
		if p.named[name] {
			continue
		}
		if err := p.remove(ctx, o.key); err != nil {
			return err
		}
		p.done.Chunks++
		p.done.Bytes += o.size
	}
	return nil
}

// remove deletes an object; one that is gone is deleted.
func (p *pruner) remove(ctx context.Context, key string) error {
	err := p.store.bucket.Delete(ctx, key)
	if err != nil && !isMissing(err) {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}
