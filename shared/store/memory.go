package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
)

// keys is what JetStream allows in a key; the bucket in memory must not allow more.
var keys = regexp.MustCompile(`^[-/_=.a-zA-Z0-9]+$`)

// ErrKey is returned for a key that no bucket can hold.
var ErrKey = errors.New("invalid key")

func checkKey(key string) error {
	if !keys.MatchString(key) || key[0] == '.' || key[len(key)-1] == '.' {
		return fmt.Errorf("%w %q", ErrKey, key)
	}
	return nil
}

// Memory is a bucket that lives as long as the process.
func Memory() Bucket { return &memory{held: map[string]kept{}} }

type memory struct {
	mu   sync.Mutex
	rev  uint64 // one counter for all keys, as in a stream
	held map[string]kept
}

type kept struct {
	val []byte
	rev uint64
}

func (m *memory) Get(_ context.Context, key string) ([]byte, uint64, error) {
	if err := checkKey(key); err != nil {
		return nil, 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.held[key]
	if !ok {
		return nil, 0, fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	return slices.Clone(k.val), k.rev, nil
}

func (m *memory) Create(_ context.Context, key string, val []byte) (uint64, error) {
	return m.write(key, val, 0)
}

func (m *memory) Update(_ context.Context, key string, val []byte, rev uint64) (uint64, error) {
	return m.write(key, val, rev)
}

// write stores val if the key's revision is rev, 0 for none.
func (m *memory) write(key string, val []byte, rev uint64) (uint64, error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.held[key]
	switch {
	case k.rev == rev: // a key that is not there has revision 0
	case ok && bytes.Equal(k.val, val):
		return k.rev, nil // our own write, said again
	default:
		return 0, fmt.Errorf("%w: %s is at revision %d, not %d", ErrConflict, key, k.rev, rev)
	}
	m.rev++
	m.held[key] = kept{slices.Clone(val), m.rev}
	return m.rev, nil
}

func (m *memory) Delete(_ context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rev++
	delete(m.held, key)
	return nil
}

func (m *memory) Keys(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.held)), nil
}

// MemoryObjects are objects that live as long as the process.
func MemoryObjects() Objects { return &memoryObjects{held: map[string][]byte{}} }

type memoryObjects struct {
	mu   sync.Mutex
	held map[string][]byte
}

// Digest names a value: "sha256-" and hex.
func Digest(val []byte) string {
	sum := sha256.Sum256(val)
	return "sha256-" + hex.EncodeToString(sum[:])
}

func (m *memoryObjects) Put(_ context.Context, val []byte) (string, error) {
	d := Digest(val)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.held[d]; !ok {
		m.held[d] = slices.Clone(val)
	}
	return d, nil
}

func (m *memoryObjects) Fetch(_ context.Context, digest string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	val, ok := m.held[digest]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, digest)
	}
	return slices.Clone(val), nil
}
