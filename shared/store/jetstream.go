package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What the server must be. Older ones lost acknowledged writes, or fsync one message at a time on three replicas.
const (
	MinMajor, MinMinor = 2, 15
	MinPayload         = 8 << 20
)

// Guard refuses a server that is too old or takes too small messages. It waits for the connection until ctx ends.
func Guard(ctx context.Context, nc *nats.Conn) error {
	for !nc.IsConnected() {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("nats at %s: not connected: %w", nc.Opts.Url, err)
		}
	}
	v := nc.ConnectedServerVersion()
	if !newEnough(v) {
		return fmt.Errorf("nats at %s: version %q, need %d.%d or newer", nc.ConnectedUrlRedacted(), v, MinMajor, MinMinor)
	}
	if got := nc.MaxPayload(); got < MinPayload {
		return fmt.Errorf("nats at %s: max_payload is %d bytes, set it to %d", nc.ConnectedUrlRedacted(), got, MinPayload)
	}
	return nil
}

func newEnough(v string) bool {
	major, rest, _ := strings.Cut(v, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return err1 == nil && err2 == nil && (a > MinMajor || a == MinMajor && b >= MinMinor)
}

// Open makes or opens a bucket whose reads go to the stream's leader. It first checks the server (Guard).
func Open(ctx context.Context, js jetstream.JetStream, name string, replicas int) (Bucket, error) {
	return open(ctx, js, name, replicas, 0)
}

func open(ctx context.Context, js jetstream.JetStream, name string, replicas int, age time.Duration) (*bucket, error) {
	if err := Guard(ctx, js.Conn()); err != nil {
		return nil, err
	}
	cfg := jetstream.StreamConfig{
		Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"},
		Storage: jetstream.FileStorage, Replicas: replicas, MaxAge: age,
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DenyDelete: true, AllowRollup: true,
		AllowMsgTTL: true,
		AllowDirect: false, // a direct get may be answered by a follower that lags; nats.go's own KV always asks for it
	}
	s, err := makeStream(ctx, js, cfg)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	if s.CachedInfo().Config.AllowDirect {
		return nil, fmt.Errorf("bucket %s: reads may be answered by a follower (allow_direct is on)", name)
	}
	return &bucket{js, s, "$KV." + name + ".", nil}, nil
}

// Bind opens a bucket that is there, for those who may not make one: its settings are checked, and changed by nobody.
// ErrNotFound if it is not there.
func Bind(ctx context.Context, js jetstream.JetStream, name string) (Bucket, error) {
	return bind(ctx, js, name)
}

func bind(ctx context.Context, js jetstream.JetStream, name string) (*bucket, error) {
	if err := Guard(ctx, js.Conn()); err != nil {
		return nil, err
	}
	var s jetstream.Stream
	err := patiently(ctx, func(ctx context.Context) (err error) {
		s, err = js.Stream(ctx, "KV_"+name)
		return err
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("bucket %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	if s.CachedInfo().Config.AllowDirect {
		return nil, fmt.Errorf("bucket %s: reads may be answered by a follower (allow_direct is on)", name)
	}
	return &bucket{js, s, "$KV." + name + ".", nil}, nil
}

// makeStream retries for 20 s: a young cluster may refuse, or never answer, before its leaders are known.
func makeStream(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	for deadline := time.Now().Add(20 * time.Second); ; {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		s, err := js.CreateOrUpdateStream(try, cfg)
		cancel()
		if err == nil || !unanswered(err) || time.Now().After(deadline) {
			return s, err
		}
		if perr := pause(ctx, 200*time.Millisecond); perr != nil {
			return nil, errors.Join(perr, err)
		}
	}
}

// bucket works on the stream itself and not through nats.go's KV: Create needs the revision of a delete marker, which
// the KV hides.
type bucket struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	prefix string
	life   Life // nil: for ever
}

// Life says how long a value is kept after it was written; 0 or less is for ever.
type Life func(key string, val []byte) time.Duration

// Expiring is a view on a bucket whose writes are kept for their life only: the key is then as if it had never been
// written. A bucket that is not JetStream's keeps everything.
func Expiring(b Bucket, life Life) Bucket {
	if js, ok := b.(*bucket); ok {
		view := *js
		view.life = life
		return &view
	}
	return b
}

// read is the last message of a key, a delete marker too. A key that was never written, or whose marker has expired, is
// revision 0.
func (b *bucket) read(ctx context.Context, key string) (val []byte, rev uint64, live bool, at time.Time, err error) {
	if err := checkKey(key); err != nil {
		return nil, 0, false, time.Time{}, err
	}
	var m *jetstream.RawStreamMsg
	err = patiently(ctx, func(ctx context.Context) (err error) {
		m, err = b.stream.GetLastMsgForSubject(ctx, b.prefix+key)
		return err
	})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, 0, false, time.Time{}, nil
	case err != nil:
		return nil, 0, false, time.Time{}, fmt.Errorf("read %s: %w", key, err)
	}
	gone := m.Header.Get("KV-Operation") != "" || m.Header.Get(jetstream.MarkerReasonHeader) != ""
	return m.Data, m.Sequence, !gone, m.Time, nil
}

func (b *bucket) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	val, rev, live, _, err := b.read(ctx, key)
	if err == nil && !live {
		err = fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	if err != nil {
		return nil, 0, err
	}
	return val, rev, nil
}

func (b *bucket) Update(ctx context.Context, key string, val []byte, rev uint64) (uint64, error) {
	return b.write(ctx, key, val, rev, false)
}

// Create asks for the key's last revision only after revision 0 was refused: most keys are new.
func (b *bucket) Create(ctx context.Context, key string, val []byte) (uint64, error) {
	return b.write(ctx, key, val, 0, true)
}

// write puts val over revision rev. A refusal is not proof that somebody else wrote: on three replicas the only writer
// of a key may be refused while its revision is current, and the answer to our own write may have been lost. So it asks
// the leader, and decides by what is there.
func (b *bucket) write(ctx context.Context, key string, val []byte, rev uint64, overMarker bool) (uint64, error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	for {
		next, err := b.put(ctx, key, val, rev)
		switch {
		case err == nil:
			return next, nil
		case ctx.Err() != nil || !isConflict(err) && !unanswered(err):
			return 0, fmt.Errorf("write %s over %d: %w", key, rev, err)
		}
		cur, at, live, _, rerr := b.read(ctx, key)
		switch {
		case rerr != nil:
			return 0, fmt.Errorf("%w, after: %w", rerr, err)
		case live && at != rev && bytes.Equal(cur, val):
			return at, nil // our own write; only its answer was lost
		case at == rev: // a false conflict, or nothing was stored
		case overMarker && !live:
			rev = at // a deleted or expired key is free: over its marker, or as new once that is gone
		default:
			return 0, fmt.Errorf("%w: %s is at revision %d, not %d", ErrConflict, key, at, rev)
		}
		if err := pause(ctx, time.Millisecond+rand.N(2*time.Millisecond)); err != nil {
			return 0, fmt.Errorf("write %s: %w", key, err)
		}
	}
}

// put is one try. Its own deadline is short: the answer may be lost, and asking again is cheap.
func (b *bucket) put(ctx context.Context, key string, val []byte, rev uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	opts := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(rev)}
	if b.life != nil {
		if d := b.life(key, val); d > 0 {
			opts = append(opts, jetstream.WithMsgTTL(d))
		}
	}
	ack, err := b.js.Publish(ctx, b.prefix+key, val, opts...)
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// Delete leaves a marker for an hour, so that a writer who holds an old revision is refused, and then nothing.
func (b *bucket) Delete(ctx context.Context, key string) error {
	_, _, live, _, err := b.read(ctx, key)
	if err != nil || !live {
		return err
	}
	m := nats.NewMsg(b.prefix + key)
	m.Header.Set("KV-Operation", "DEL")
	return patiently(ctx, func(ctx context.Context) error {
		_, err := b.js.PublishMsg(ctx, m, jetstream.WithMsgTTL(time.Hour))
		return err
	})
}

// Keys asks the leader which subjects there are, and of each whether it lives. A consumer that reads nothing is no
// proof that there is nothing.
func (b *bucket) Keys(ctx context.Context) ([]string, error) {
	var info *jetstream.StreamInfo
	err := patiently(ctx, func(ctx context.Context) (err error) {
		info, err = b.stream.Info(ctx, jetstream.WithSubjectFilter(b.prefix+">"))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	live := []string{}
	for subject := range info.State.Subjects {
		key := strings.TrimPrefix(subject, b.prefix)
		_, _, lives, _, err := b.read(ctx, key)
		if err != nil {
			return nil, err
		}
		if lives {
			live = append(live, key)
		}
	}
	slices.Sort(live)
	return live, nil
}

// isConflict covers one replica (10071) and several (10164).
func isConflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == 10071 || api.ErrorCode == 10164)
}

// unanswered says that we do not know whether the server did what we asked, or know that it soon can.
func unanswered(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.Code == 503
	}
	for _, e := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, jetstream.ErrNoStreamResponse,
		nats.ErrDisconnected, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// patiently repeats what may be repeated until it is answered or ctx ends.
func patiently(ctx context.Context, do func(context.Context) error) error {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := do(try)
		cancel()
		if err == nil || !unanswered(err) {
			return err
		}
		if perr := pause(ctx, wait); perr != nil {
			return errors.Join(perr, err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
