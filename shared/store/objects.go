package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How long objects are kept: facts live 30 days, and an object that is named again within three hours of its last
// writing outlives every fact that names it.
const (
	objectAge   = 31 * 24 * time.Hour
	objectFresh = 3 * time.Hour
)

// OpenObjects makes or opens content-addressed values of at most max_payload each, kept as long as the stream of facts.
// A plain leader-read bucket under digests: the object store of JetStream reads from followers and keeps no age that a
// second Put renews.
func OpenObjects(ctx context.Context, js jetstream.JetStream, name string, replicas int) (Objects, error) {
	b, err := open(ctx, js, name, replicas, objectAge)
	if err != nil {
		return nil, err
	}
	return &objects{b}, nil
}

// BindObjects opens objects that are there, for those who may not make them.
func BindObjects(ctx context.Context, js jetstream.JetStream, name string) (Objects, error) {
	b, err := bind(ctx, js, name)
	if err != nil {
		return nil, err
	}
	return &objects{b}, nil
}

type objects struct{ b *bucket }

func (o *objects) Put(ctx context.Context, val []byte) (string, error) {
	d := Digest(val)
	_, rev, live, at, err := o.b.read(ctx, d)
	if err != nil {
		return "", fmt.Errorf("put %s: %w", d, err)
	}
	if live && time.Since(at) < objectFresh {
		return d, nil
	}
	if _, err = o.b.write(ctx, d, val, rev, true); errors.Is(err, ErrConflict) {
		err = nil // whoever wrote under this digest wrote this value
	}
	if err != nil {
		return "", fmt.Errorf("put %s: %w", d, err)
	}
	return d, nil
}

func (o *objects) Fetch(ctx context.Context, digest string) ([]byte, error) {
	val, _, err := o.b.Get(ctx, digest)
	if err != nil {
		return nil, err
	}
	if got := Digest(val); got != digest {
		return nil, fmt.Errorf("object %s holds %s", digest, got)
	}
	return val, nil
}
