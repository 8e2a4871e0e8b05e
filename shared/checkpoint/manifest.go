package checkpoint

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// Format is the version of the manifest that this package writes. It reads this one only.
const Format = 1

// CipherNone says that chunks are stored as they are.
const CipherNone = "none"

// ID names a checkpoint of a workload. Steps are compared as numbers, epochs first.
type ID struct {
	Epoch int64 `json:"epoch"` // the run that committed it, from 1
	Step  int64 `json:"step"`
}

// Compare orders checkpoints from older to newer: by epoch, then by step.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.Epoch, other.Epoch), cmp.Compare(id.Step, other.Step))
}

// IsZero reports whether it names no checkpoint.
func (id ID) IsZero() bool { return id == ID{} }

// String is "<epoch>-<step>"; ParseID reads it.
func (id ID) String() string { return fmt.Sprintf("%d-%d", id.Epoch, id.Step) }

// ParseID reads what String wrote.
func ParseID(text string) (ID, error) {
	e, st, ok := strings.Cut(text, "-")
	epoch, err1 := strconv.ParseInt(e, 10, 64)
	step, err2 := strconv.ParseInt(st, 10, 64)
	id := ID{epoch, step}
	if !ok || err1 != nil || err2 != nil || id.check() != nil {
		return ID{}, fmt.Errorf("checkpoint: id %q: want <epoch>-<step>", text)
	}
	return id, nil
}

func (id ID) check() error {
	if id.Epoch < 1 || id.Step < 0 {
		return fmt.Errorf("checkpoint: epoch %d, step %d: want an epoch from 1 and a step from 0", id.Epoch, id.Step)
	}
	return nil
}

// Manifest describes one complete checkpoint.
type Manifest struct {
	Format   int    `json:"format"`
	Cipher   string `json:"cipher"` // how chunks are encrypted: CipherNone
	Workload string `json:"workload"`
	ID
	// Created is when the save began, by the store's clock. It is for people; nothing is decided by it.
	Created time.Time `json:"created"`
	// Files are the directories, files and symbolic links of the checkpoint, a directory before what is in it.
	Files []File `json:"files"`
}

// File is a file, a directory or a symbolic link of a checkpoint.
type File struct {
	Path   string      `json:"path"`             // relative, with slashes
	Mode   fs.FileMode `json:"mode"`             // type and permission bits
	Size   int64       `json:"size,omitempty"`   // bytes; regular files only
	Hash   string      `json:"hash,omitempty"`   // hex; SHA-256 over the SHA-256 of each chunk, in order; regular files only
	Link   string      `json:"link,omitempty"`   // where a symbolic link points
	Chunks []Chunk     `json:"chunks,omitempty"` // in order
}

// Chunk is a piece of a file. Name is its keyed hash, a dash, and a random part that tells one upload of the
// same bytes from another.
type Chunk struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// Bytes is the size of all files together.
func (m *Manifest) Bytes() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// sameContent reports whether both restore to the same directory.
func (m *Manifest) sameContent(o *Manifest) bool {
	return m.Workload == o.Workload && m.ID == o.ID &&
		slices.EqualFunc(m.Files, o.Files, func(a, b File) bool {
			return a.Path == b.Path && a.Mode == b.Mode && a.Size == b.Size && a.Hash == b.Hash && a.Link == b.Link
		})
}

const prefixOfAll = "ckpt/"

func prefix(workload string) string             { return prefixOfAll + workload + "/" }
func chunkPrefix(workload string) string        { return prefix(workload) + "chunks/" }
func manifestPrefix(workload string) string     { return prefix(workload) + "manifests/" }
func prunedPrefix(workload string) string       { return prefix(workload) + "pruned/" }
func epochPrefix(workload string) string        { return prefix(workload) + "epochs/" }
func (id ID) file() string                      { return fmt.Sprintf("%019d-%019d.json", id.Epoch, id.Step) }
func manifestKey(workload string, id ID) string { return manifestPrefix(workload) + id.file() }
func prunedKey(workload string, id ID) string   { return prunedPrefix(workload) + id.file() }
func epochKey(workload string, epoch int64) string {
	return fmt.Sprintf("%s%019d.json", epochPrefix(workload), epoch)
}

// idOf reads the name of a manifest. Anything else below the prefix, such as the temporary file of a writer
// that died, is not one.
func idOf(name string) (ID, bool) {
	id, err := ParseID(strings.TrimSuffix(name, ".json"))
	return id, err == nil && id.file() == name
}

// sealed is how manifests and beginnings are stored: with a keyed hash, so that a damaged or foreign one is
// not taken for a smaller checkpoint.
type sealed struct {
	MAC  string          `json:"mac"`
	Body json.RawMessage `json:"body"`
}

func (s *Store) seal(kind string, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return json.Marshal(sealed{s.mac(kind, body), body})
}

// unseal fills v, or returns ErrCorrupt.
func (s *Store) unseal(kind, key string, data []byte, v any) error {
	var e sealed
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, key, err)
	}
	if !hmac.Equal([]byte(e.MAC), []byte(s.mac(kind, e.Body))) {
		return fmt.Errorf("%w: %s: its seal is not ours", ErrCorrupt, key)
	}
	if err := json.Unmarshal(e.Body, v); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, key, err)
	}
	return nil
}

// mac is the keyed hash of data used as kind, in hex.
func (s *Store) mac(kind string, data []byte) string {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte(kind + "\x00"))
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}

func (s *Store) decode(key, workload string, id ID, data []byte) (*Manifest, error) {
	var m Manifest
	if err := s.unseal("manifest", key, data, &m); err != nil {
		return nil, err
	}
	if m.Format != Format || m.Cipher != CipherNone {
		return nil, fmt.Errorf("%w: %s: format %d, cipher %q", ErrFormat, key, m.Format, m.Cipher)
	}
	if m.Workload != workload || m.ID != id {
		return nil, fmt.Errorf("%w: %s: holds %s of %s", ErrCorrupt, key, m.ID, m.Workload)
	}
	return &m, nil
}

func (s *Store) readManifest(ctx context.Context, key, workload string, id ID) (*Manifest, error) {
	data, err := s.get(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.decode(key, workload, id, data)
}

// Manifest returns a checkpoint by name, also one that was pruned less than UnnamedFor ago and so can still be
// restored. It returns ErrNotFound, ErrCorrupt or ErrFormat.
func (s *Store) Manifest(ctx context.Context, workload string, id ID) (*Manifest, error) {
	if err := errors.Join(checkName(workload), id.check()); err != nil {
		return nil, err
	}
	m, err := s.readManifest(ctx, manifestKey(workload, id), workload, id)
	if errors.Is(err, ErrNotFound) {
		// Pruning copies before it deletes, so looking here second cannot miss one on its way.
		m, err = s.readManifest(ctx, prunedKey(workload, id), workload, id)
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint %s of %s: %w", id, workload, err)
	}
	return m, nil
}

// Workloads returns the names of all workloads that anything is kept of, in order.
func (s *Store) Workloads(ctx context.Context) ([]string, error) {
	var names []string
	it := s.bucket.List(&blob.ListOptions{Prefix: prefixOfAll, Delimiter: "/"})
	for {
		o, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list workloads: %w", err)
		}
		if name := strings.TrimSuffix(strings.TrimPrefix(o.Key, prefixOfAll), "/"); o.IsDir && checkName(name) == nil {
			names = append(names, name)
		}
	}
}

// List returns the names of all committed checkpoints of a workload, newest first, without looking into them.
func (s *Store) List(ctx context.Context, workload string) ([]ID, error) {
	if err := checkName(workload); err != nil {
		return nil, err
	}
	var ids []ID
	p := manifestPrefix(workload)
	err := s.each(ctx, p, func(o object) error {
		if id, ok := idOf(strings.TrimPrefix(o.key, p)); ok {
			ids = append(ids, id)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list checkpoints of %s: %w", workload, err)
	}
	slices.SortFunc(ids, func(a, b ID) int { return b.Compare(a) })
	return ids, nil
}

// commit writes a sealed object if absent. An object that is there already is success when same says so: it is
// our own, whose answer was lost.
func (s *Store) commit(ctx context.Context, key string, body []byte, same func(found []byte) bool) error {
	var dir string
	err := s.attempts(ctx, "write "+key, func(ctx context.Context, beat func(int)) (err error) {
		dir, err = s.put(ctx, key, body, true, beat)
		return err
	})
	if err == nil {
		return syncParents(dir, key)
	}
	if ctx.Err() != nil {
		return err
	}
	found, rerr := s.get(ctx, key)
	switch {
	case rerr == nil && (string(found) == string(body) || same(found)):
		return syncParents(dir, key)
	case rerr == nil || gcerrors.Code(err) == gcerrors.FailedPrecondition:
		return fmt.Errorf("%w: %s", ErrTaken, key)
	}
	return err
}
