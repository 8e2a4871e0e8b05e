package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// Progress tells how far a save, a restore or a verification is, in bytes of the checkpoint.
type Progress struct {
	Done   int64 // of Total; may go back when a stalled transfer is begun again
	Total  int64
	Reused int64 // of Done: already in the store, not uploaded
}

// slice is how much is handed to a driver at once: small enough for progress to be seen on a slow link.
const slice = 256 << 10

// object is an entry of a listing.
type object struct {
	key  string
	size int64
	at   time.Time
}

// each calls f for every object below a prefix.
func (s *Store) each(ctx context.Context, prefix string, f func(object) error) error {
	if err := s.checkReadable(prefix); err != nil {
		return err
	}
	it := s.bucket.List(&blob.ListOptions{Prefix: prefix})
	vanished := 0
	for {
		o, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		// A file bucket's listing fails when another writer's temporary file goes while it looks. The iterator
		// stays at the page that failed.
		if isMissing(err) && ctx.Err() == nil && vanished < 100 {
			vanished++
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		if err := f(object{o.Key, o.Size, o.ModTime}); err != nil {
			return err
		}
	}
}

// checkReadable returns the error that a file bucket keeps to itself: it lists a directory that cannot be read as
// empty, and a workload without manifests would start from nothing.
func (s *Store) checkReadable(prefix string) error {
	if s.dir == "" {
		return nil
	}
	d, err := os.Open(filepath.Join(s.dir, filepath.FromSlash(s.below+prefix)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = d.Readdirnames(-1)
		d.Close()
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	return nil
}

// get reads a small object, or returns ErrNotFound.
func (s *Store) get(ctx context.Context, key string) ([]byte, error) {
	var data []byte
	err := s.attempts(ctx, "read "+key, func(ctx context.Context, beat func(int)) error {
		var err error
		data, err = s.read(ctx, key, beat)
		return err
	})
	if isMissing(err) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	return data, err
}

// read returns an object whole; beat hears of the bytes as they come.
func (s *Store) read(ctx context.Context, key string, beat func(int)) ([]byte, error) {
	r, err := s.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	size := r.Size()
	data := make([]byte, 0, max(size, 0)+1)
	for {
		// One byte of room more than the size, so that an object that is longer than it says is noticed.
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		n, err := r.Read(data[len(data):min(cap(data), len(data)+slice)])
		data = data[:len(data)+n]
		beat(n)
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// put writes an object whole or not at all. In a file store its bytes are on the disk when put returns; dir is
// then the directory whose entry may not be yet, for syncParents.
func (s *Store) put(ctx context.Context, key string, data []byte, ifAbsent bool, beat func(int)) (dir string, err error) {
	return s.putUnsynced(ctx, key, data, ifAbsent, true, beat)
}

// putUnsynced is put that leaves it to the caller to see the bytes to the disk, if sync is false.
func (s *Store) putUnsynced(ctx context.Context, key string, data []byte, ifAbsent, sync bool, beat func(int)) (dir string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a writer whose context has ended leaves nothing behind
	var file *os.File
	w, err := s.bucket.NewWriter(ctx, key, &blob.WriterOptions{
		ContentType: "application/octet-stream",
		IfNotExist:  ifAbsent,
		BeforeWrite: func(as func(any) bool) error {
			if !as(&file) {
				file = nil
			}
			return nil
		},
	})
	if err != nil {
		return "", noSpace(err)
	}
	if file != nil {
		dir = filepath.Dir(file.Name())
	}
	if err := write(w, file, data, sync, beat); err != nil {
		cancel()
		w.Close()
		return dir, noSpace(err)
	}
	if file != nil && ifAbsent {
		unlock, err := lockDir(dir)
		if err != nil {
			cancel()
			w.Close()
			return dir, err
		}
		defer unlock()
	}
	return dir, noSpace(w.Close())
}

// write hands the data over and, for a file, sees it to the disk: the driver renames without that, and after a
// power cut a name without its bytes would be a checkpoint that is not one.
func write(w io.Writer, file *os.File, data []byte, sync bool, beat func(int)) error {
	for len(data) > 0 {
		n, err := w.Write(data[:min(slice, len(data))])
		if err != nil {
			return err
		}
		if beat != nil {
			beat(n)
		}
		data = data[n:]
	}
	if file != nil && !sync {
		startWriteback(file)
	}
	if file != nil && sync {
		return file.Sync()
	}
	return nil
}

func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// attempts runs a transfer until it succeeds, fails for good, or was tried often enough. A transfer that calls
// beat with nothing for as long as Stall is cancelled and begun again: it is bytes that are watched, since
// connections have been seen to hang for as long as anybody let them.
func (s *Store) attempts(ctx context.Context, what string, op func(ctx context.Context, beat func(int)) error) error {
	var err error
	for i := range s.opts.Attempts {
		if i > 0 {
			if werr := pause(ctx, 100*time.Millisecond<<i); werr != nil {
				return errors.Join(werr, err)
			}
		}
		if err = s.watched(ctx, op); err == nil || final(err) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// final tells errors that the next attempt would meet again.
func final(err error) bool {
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNoSpace) {
		return true
	}
	switch gcerrors.Code(err) {
	case gcerrors.NotFound, gcerrors.AlreadyExists, gcerrors.InvalidArgument, gcerrors.FailedPrecondition,
		gcerrors.PermissionDenied, gcerrors.Unimplemented:
		return true
	}
	return false
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errStalled ends an attempt that made no progress.
var errStalled = errors.New("no progress")

// watched runs op and cancels it when it has made no progress for Stall. It waits for op to return: a driver
// that does not heed its context cannot be left behind while it may still read the caller's buffer.
func (s *Store) watched(ctx context.Context, op func(ctx context.Context, beat func(int)) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dog := time.AfterFunc(s.opts.Stall, func() {
		cancel(fmt.Errorf("%w for %s", errStalled, s.opts.Stall))
	})
	defer dog.Stop()
	err := op(ctx, func(n int) {
		if n > 0 {
			dog.Reset(s.opts.Stall)
		}
	})
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errStalled) {
		return cause
	}
	return err
}
