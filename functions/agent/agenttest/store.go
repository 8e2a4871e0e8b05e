package agenttest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"lowtide/functions/agent"
	"lowtide/shared/fleet"
)

// Store is where the checkpoints of all machines go. It fences as shared/checkpoint does. The zero Store is ready.
type Store struct {
	saved map[string]map[string]checkpoint // workload, manifest
	begun map[string]uint64                // highest epoch
	fail  error
}

type checkpoint struct {
	manifest fleet.Manifest
	val      []byte
	damaged  bool
}

// Manifests are the durable checkpoints of a workload, oldest first.
func (s *Store) Manifests(workload string) []fleet.Manifest {
	var out []fleet.Manifest
	for _, c := range s.saved[workload] {
		out = append(out, c.manifest)
	}
	slices.SortFunc(out, func(a, b fleet.Manifest) int {
		if a.Epoch != b.Epoch {
			return int(a.Epoch) - int(b.Epoch)
		}
		return int(a.Step - b.Step)
	})
	return out
}

// Damage makes a manifest fail its restore.
func (s *Store) Damage(workload, manifest string) {
	c := s.saved[workload][manifest]
	c.damaged = true
	s.saved[workload][manifest] = c
}

// Fail makes every save fail with err; nil lifts it.
func (s *Store) Fail(err error) { s.fail = err }

func (s *Store) save(workload string, epoch uint64, step int64, val []byte) (fleet.Manifest, error) {
	if s.fail != nil {
		return fleet.Manifest{}, s.fail
	}
	if s.begun[workload] > epoch {
		return fleet.Manifest{}, fmt.Errorf("epoch %d of %s: %w", epoch, workload, agent.ErrStale)
	}
	m := fleet.Manifest{ID: strconv.FormatUint(epoch, 10) + "-" + strconv.FormatInt(step, 10), Epoch: epoch, Step: step, Bytes: int64(len(val))}
	if s.saved == nil {
		s.saved = map[string]map[string]checkpoint{}
	}
	if s.saved[workload] == nil {
		s.saved[workload] = map[string]checkpoint{}
	}
	if c, twice := s.saved[workload][m.ID]; twice && !bytes.Equal(c.val, val) {
		return fleet.Manifest{}, fmt.Errorf("%s of %s is taken", m.ID, workload)
	}
	s.saved[workload][m.ID] = checkpoint{manifest: m, val: slices.Clone(val)}
	return m, nil
}

func (s *Store) load(workload, manifest string) ([]byte, fleet.Manifest, error) {
	c, ok := s.saved[workload][manifest]
	if !ok || c.damaged {
		return nil, fleet.Manifest{}, fmt.Errorf("%s of %s: %w", manifest, workload, agent.ErrDamaged)
	}
	return slices.Clone(c.val), c.manifest, nil
}

func (s *Store) begin(workload string, epoch uint64, _ string) error {
	if s.begun == nil {
		s.begun = map[string]uint64{}
	}
	if s.begun[workload] > epoch {
		return fmt.Errorf("epoch %d of %s: %w", epoch, workload, agent.ErrStale)
	}
	s.begun[workload] = epoch
	return nil
}

func (s *Store) prune(epoch uint64, p fleet.Prune) error {
	if s.begun[p.Workload] > epoch {
		return agent.ErrStale
	}
	all := s.Manifests(p.Workload)
	for _, m := range all[:max(0, len(all)-2)] {
		if !slices.Contains(p.Keep, m.ID) {
			delete(s.saved[p.Workload], m.ID)
		}
	}
	return nil
}

// String lists what is durable.
func (s *Store) String() string {
	var b strings.Builder
	for w := range s.saved {
		for _, m := range s.Manifests(w) {
			fmt.Fprintf(&b, "%s %s\n", w, m.ID)
		}
	}
	return b.String()
}
