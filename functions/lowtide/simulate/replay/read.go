package replay

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/store"
)

// Record is an event stream with the offers that its price changes name.
type Record struct {
	Events []events.Event           // in the order of the stream
	Offers map[string][]fleet.Offer // by digest
	Unread int                      // facts that could not be read
}

// Read reads a record from a directory: the --state directory of `lowtide run` (copied first, so that nothing in it
// changes), or files of events as `lowtide events` prints them (*.json, *.jsonl, *.ndjson; one document a line), with
// the offers objects beside them as offers/<digest>.json where they were kept.
func Read(ctx context.Context, dir string) (Record, error) {
	r := Record{Offers: map[string][]fleet.Offer{}}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return r, fmt.Errorf("replay %s: no such directory; give the --state directory of lowtide run, or one with files of lowtide events", dir)
	case !info.IsDir():
		return r, fmt.Errorf("replay %s: a file; give the directory that holds it", dir)
	}
	if _, err := os.Stat(filepath.Join(dir, "nats", "jetstream")); err == nil {
		err = r.store(ctx, filepath.Join(dir, "nats"))
		if err != nil {
			return r, fmt.Errorf("replay %s: %w", dir, err)
		}
	} else if err := r.files(dir); err != nil {
		return r, fmt.Errorf("replay %s: %w", dir, err)
	}
	if len(r.Events) == 0 {
		return r, fmt.Errorf("replay %s: no events in it; give the --state directory of lowtide run, or one with files of lowtide events", dir)
	}
	return r, nil
}

// files reads documents a line, file by file in the order of their names.
func (r *Record) files(dir string) error {
	var names []string
	for _, pattern := range []string{"*.json", "*.jsonl", "*.ndjson"} {
		found, err := filepath.Glob(filepath.Join(strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir), pattern))
		if err != nil {
			return err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = r.lines(filepath.Base(name), f)
		f.Close()
		if err != nil {
			return err
		}
	}
	kept, err := filepath.Glob(filepath.Join(dir, "offers", "*.json"))
	if err != nil {
		return err
	}
	for _, name := range kept {
		raw, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := r.object(strings.TrimSuffix(filepath.Base(name), ".json"), raw); err != nil {
			return err
		}
	}
	return nil
}

func (r *Record) lines(name string, in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 2*events.MaxBytes)
	for n := 1; lines.Scan(); n++ {
		if len(strings.TrimSpace(lines.Text())) == 0 {
			continue
		}
		if err := r.event(lines.Bytes()); err != nil {
			return fmt.Errorf("%s line %d: %w; each line is one fact, as lowtide events prints them", name, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (r *Record) event(raw []byte) error {
	e, err := events.Decode(raw)
	if err != nil {
		return err
	}
	r.Events = append(r.Events, e)
	return nil
}

func (r *Record) object(digest string, raw []byte) error {
	var offers []fleet.Offer
	if err := json.Unmarshal(raw, &offers); err != nil {
		return fmt.Errorf("offers %s: %w", digest, err)
	}
	r.Offers[digest] = offers
	return nil
}

// store reads the facts and the offers from a copy of a server's directory.
func (r *Record) store(ctx context.Context, dir string) (err error) {
	copied, err := os.MkdirTemp("", "lowtide-replay-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(copied)) }()
	if err := copyAll(copied, dir); err != nil {
		return err
	}
	server, err := embedded.Start(copied, embedded.Options{})
	if err != nil {
		return err
	}
	defer server.Shutdown()
	nc, err := server.Connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, bus.Facts)
	if err != nil {
		return fmt.Errorf("stream %s: %w", bus.Facts, err)
	}
	if err := r.facts(ctx, js, stream.CachedInfo().State.LastSeq); err != nil {
		return err
	}
	objects, err := store.BindObjects(ctx, js, "offers")
	if err != nil {
		return nil //nolint:nilerr // a stream without offers is a stream that tells less
	}
	for _, e := range r.Events {
		c, ok := e.Data.(events.PriceChanged)
		if !ok || r.Offers[c.Digest] != nil {
			continue
		}
		raw, err := objects.Fetch(ctx, c.Digest)
		if err != nil {
			continue // it outlived its keeping: reported as a change without offers
		}
		if err := r.object(c.Digest, raw); err != nil {
			return err
		}
	}
	return nil
}

// facts reads the stream up to a sequence number. What does not read is counted.
func (r *Record) facts(ctx context.Context, js jetstream.JetStream, last uint64) error {
	if last == 0 {
		return nil
	}
	con, err := js.OrderedConsumer(ctx, bus.Facts, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"lowtide.>"}})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		batch, err := con.FetchNoWait(512)
		if err != nil {
			return err
		}
		n := 0
		for m := range batch.Messages() {
			n++
			if r.event(m.Data()) != nil {
				r.Unread++
			}
		}
		if n == 0 {
			return batch.Error()
		}
	}
	return ctx.Err()
}

// copyAll copies the regular files below a directory.
func copyAll(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(at, 0o700)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		return errors.Join(err, out.Close())
	})
}
