package store

import (
	"bytes"
	"context"
	"slices"
	"sync"
)

func Memory() Bucket { return &memory{vals: map[string]entry{}} }

type entry struct {
	val []byte
	rev uint64
}
type memory struct {
	mu   sync.Mutex
	vals map[string]entry
	rev  uint64
}

func (m *memory) Get(_ context.Context, key string) ([]byte, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.vals[key]
	if !ok {
		return nil, 0, ErrNotFound
	}
	return bytes.Clone(e.val), e.rev, nil
}
func (m *memory) put(key string, val []byte) uint64 {
	m.rev++
	m.vals[key] = entry{bytes.Clone(val), m.rev}
	return m.rev
}
func (m *memory) Create(_ context.Context, key string, val []byte) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.vals[key]; ok {
		if bytes.Equal(e.val, val) {
			return e.rev, nil
		}
		return 0, ErrConflict
	}
	return m.put(key, val), nil
}
func (m *memory) Update(_ context.Context, key string, val []byte, rev uint64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.vals[key]
	if !ok || e.rev != rev {
		return 0, ErrConflict
	}
	return m.put(key, val), nil
}
func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.vals, key)
	return nil
}
func (m *memory) Keys(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ks []string
	for k := range m.vals {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks, nil
}
