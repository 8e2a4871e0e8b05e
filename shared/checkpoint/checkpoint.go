// Package checkpoint keeps the checkpoints of workloads in a blob store, so that a workload can go on
// elsewhere after its machine is gone.
//
// It promises:
//
//   - A checkpoint exists from the moment its manifest is written, whole or not at all. The manifest is
//     written last and once; whatever interrupts a save leaves every earlier checkpoint as it was. Save
//     returns when the checkpoint is durable, not when it is on its way.
//   - A restore hands out a directory only after every byte in it was checked, chunk by chunk and file by
//     file. Damage is ErrCorrupt and names the object.
//   - Epochs fence. A manifest belongs to the epoch that wrote it; once a later epoch has begun (Begin) from
//     a named checkpoint, nothing that an earlier epoch commits is found by Latest or RestoreNewest.
//   - Nothing is deleted but by Prune, and by it no chunk that a manifest names, nor one that a running save
//     may be about to name.
//
// It does not decide: which checkpoint a run starts from, when to save and what to keep is told by the
// caller. It does not encrypt yet; the manifest has the place for it (Manifest.Cipher).
//
// Objects of workload w, all below "ckpt/<w>/":
//
//	chunks/<keyed hash>-<random>   bytes; written once, never overwritten
//	manifests/<epoch>-<step>.json  written last, if absent; digits padded so that names sort as numbers
//	epochs/<epoch>.json            what the epoch began from; written once
//	pruned/<epoch>-<step>.json     a manifest on its way out; protects its chunks for a day
//	logs/<epoch>.json              the end of what a run printed, for people; rewritten
//	code/<sha256>                  the workload's packed directory; written once
//	clock                          rewritten to learn what time it is for the store
//	once                           written to see that a store in the network keeps a condition
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// The errors on which callers act, found with errors.Is. Any other error is a store or a disk that did not
// answer: trying again later may help.
var (
	// ErrNotFound: there is no such checkpoint.
	ErrNotFound = errors.New("checkpoint: not found")
	// ErrTaken: the name is in use by something else: another checkpoint under the same epoch and step,
	// another beginning of the same epoch, or a directory that is not empty.
	ErrTaken = errors.New("checkpoint: taken")
	// ErrStale: a later epoch has begun; what this one saves no longer counts.
	ErrStale = errors.New("checkpoint: stale epoch")
	// ErrCorrupt: stored bytes are not what was saved, or are gone. The error names the object.
	ErrCorrupt = errors.New("checkpoint: corrupt")
	// ErrNoSpace: the disk cannot hold it.
	ErrNoSpace = errors.New("checkpoint: no space")
	// ErrUnfit: what is to be saved can never be a checkpoint as it is, such as a link that leads out of it.
	ErrUnfit = errors.New("checkpoint: unfit")
	// ErrChanged: it changed while it was being saved; when nobody writes to it any more it can be saved.
	ErrChanged = errors.New("checkpoint: changed while it was being saved")
	// ErrFormat: the manifest is intact and of a format or cipher that this version cannot read.
	ErrFormat = errors.New("checkpoint: unknown format")
)

const (
	// ReuseFor is the age up to which a save names a stored chunk again instead of uploading it anew.
	ReuseFor = 12 * time.Hour
	// SaveLimit is the longest a save may take. Together with ReuseFor it stays under UnnamedFor, so a chunk
	// that a running save has adopted is never old enough to be pruned before its manifest is written.
	SaveLimit = 10 * time.Hour
	// UnnamedFor is how long a chunk that no manifest names, and a pruned manifest, are still kept.
	UnnamedFor = 24 * time.Hour
)

// Options are the settings of a Store; the zero value works.
type Options struct {
	// Now tells the store's time. Nil asks the store itself, by writing a small object and reading its time:
	// the clock of the machine is not trusted with the age of others' chunks.
	Now func() time.Time
	// Workers is how many chunks travel at once, 4 if zero. Memory is bounded by (Workers+1) chunks.
	Workers int
	// ChunkSize in bytes. Zero chooses 8 MiB, doubled until a checkpoint has at most 16,384 chunks, up to 128 MiB.
	ChunkSize int64
	// Stall is how long a transfer may make no progress before it is begun again, 2 minutes if zero.
	Stall time.Duration
	// Attempts is how often a chunk is tried before the save or restore fails, 3 if zero.
	Attempts int
	// Free tells the free bytes of the file system of a path, and whether it knows. Nil asks the system.
	Free func(path string) (bytes int64, known bool)
}

// Store reads and writes checkpoints in one bucket with one key. Make it with New or Open. Its methods may be
// called at once from several goroutines; saves of one workload wait for each other.
type Store struct {
	bucket *blob.Bucket
	key    []byte
	dir    string // the directory of a file store, if known
	below  string // the prefix of its keys there
	remote bool   // in the network: it is not known yet whether it keeps a condition
	opts   Options

	mu        sync.Mutex
	workloads map[string]*workload
}

// workload is what a Store remembers about one workload between calls; all of it can be read again.
type workload struct {
	saving chan struct{} // held by the save in progress

	mu        sync.Mutex
	chunks    map[string]stored // by keyed hash; nil until listed
	distrust  map[string]bool   // chunk names that did not verify
	synced    map[string]bool   // chunk names of a file store that are surely on its disk
	beginning map[int64]ID      // what each begun epoch began from
	tried     bool              // the store has shown that it keeps a condition
}

type stored struct {
	name string
	size int64
	at   time.Time // store time, never later than the true one
}

// New returns a store on the bucket. The key names chunks and seals manifests: all machines of a fleet need
// the same one, and nobody else should have it; it must have at least 16 bytes, or New panics. The bucket stays
// the caller's to close. A file bucket must keep its temporary files beside the final ones, as Open arranges.
func New(bucket *blob.Bucket, key []byte, o Options) *Store {
	if len(key) < 16 {
		panic("checkpoint: the key has fewer than 16 bytes")
	}
	if o.Workers <= 0 {
		o.Workers = 4
	}
	if o.Stall <= 0 {
		o.Stall = 2 * time.Minute
	}
	if o.Attempts <= 0 {
		o.Attempts = 3
	}
	if o.Free == nil {
		o.Free = freeBytes
	}
	return &Store{bucket: bucket, key: key, opts: o, workloads: map[string]*workload{}}
}

// of returns what is remembered about a workload, and refuses names that could leave its prefix.
func (s *Store) of(name string) (*workload, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workloads[name]
	if w == nil {
		w = &workload{
			saving:    make(chan struct{}, 1),
			distrust:  map[string]bool{},
			synced:    map[string]bool{},
			beginning: map[int64]ID{},
		}
		s.workloads[name] = w
	}
	return w, nil
}

func checkName(workload string) error {
	ok := workload != "" && len(workload) <= 200 && strings.Trim(workload, ".") != ""
	for _, c := range workload {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.", c))
	}
	if !ok {
		return fmt.Errorf("checkpoint: workload name %q: want 1 to 200 letters, digits, '-', '_' or '.'", workload)
	}
	return nil
}

// now is the store's time.
func (s *Store) now(ctx context.Context, workload string) (time.Time, error) {
	if s.opts.Now != nil {
		return s.opts.Now(), nil
	}
	key := prefix(workload) + "clock"
	if _, err := s.put(ctx, key, []byte("."), false, nil); err != nil {
		return time.Time{}, fmt.Errorf("ask the store's time: %w", err)
	}
	a, err := s.bucket.Attributes(ctx, key)
	if err != nil {
		return time.Time{}, fmt.Errorf("ask the store's time: %w", err)
	}
	return a.ModTime, nil
}

func isMissing(err error) bool { return gcerrors.Code(err) == gcerrors.NotFound }
