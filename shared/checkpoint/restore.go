package checkpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Restore makes dir the checkpoint id of the workload. It writes beside dir, checks every byte, and renames at the
// end: dir is there whole and durable, or not at all. dir must be absent or empty, else ErrTaken. ErrNotFound if
// there is no such checkpoint; ErrCorrupt, naming the object, if any of it is damaged or missing; ErrNoSpace if the
// disk cannot hold it, before anything is written. One restore into a directory at a time. progress may be nil.
func (s *Store) Restore(ctx context.Context, workload string, id ID, dir string, progress func(Progress)) (*Manifest, error) {
	w, err := s.of(workload)
	if err != nil {
		return nil, err
	}
	m, err := s.Manifest(ctx, workload, id)
	if err != nil {
		return nil, err
	}
	if err := s.restore(ctx, w, m, dir, progress); err != nil {
		return nil, fmt.Errorf("restore %s of %s: %w", id, workload, err)
	}
	return m, nil
}

// RestoreNewest restores the newest checkpoint that the query allows and that is whole. Damaged ones are passed
// over and returned as skipped; somebody should be told of them. ErrNotFound if there is none; ErrCorrupt if there
// are some and all are damaged.
func (s *Store) RestoreNewest(ctx context.Context, q Query, dir string, progress func(Progress)) (m *Manifest, skipped []error, err error) {
	ids, err := s.candidates(ctx, q)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		m, err := s.Restore(ctx, q.Workload, id, dir, progress)
		switch {
		case err == nil:
			return m, skipped, nil
		case errors.Is(err, ErrCorrupt):
			skipped = append(skipped, err)
		case errors.Is(err, ErrNotFound): // pruned since the listing
		default:
			return nil, skipped, err
		}
	}
	if len(skipped) > 0 {
		return nil, skipped, fmt.Errorf("restore %s for epoch %d: every checkpoint is damaged: %w", q.Workload, q.Epoch, errors.Join(skipped...))
	}
	return nil, nil, fmt.Errorf("restore %s for epoch %d: %w", q.Workload, q.Epoch, ErrNotFound)
}

// Verify reads a checkpoint whole and checks every byte, as Restore does, without writing.
func (s *Store) Verify(ctx context.Context, workload string, id ID, progress func(Progress)) error {
	w, err := s.of(workload)
	if err != nil {
		return err
	}
	m, err := s.Manifest(ctx, workload, id)
	if err != nil {
		return err
	}
	r := &restorer{store: s, w: w, manifest: m, report: progress}
	r.progress.Total = m.Bytes()
	for i := range m.Files {
		if err := r.verifyFile(ctx, &m.Files[i]); err != nil {
			return fmt.Errorf("verify %s of %s: %w", id, workload, err)
		}
	}
	return nil
}

// restorer is one restore or verification in progress.
type restorer struct {
	store    *Store
	w        *workload
	manifest *Manifest
	root     string
	report   func(Progress)
	slots    chan struct{} // one for each chunk in memory, over all files

	mu       sync.Mutex
	progress Progress
}

func (s *Store) restore(ctx context.Context, w *workload, m *Manifest, dir string, progress func(Progress)) (err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := checkEmpty(dir); err != nil {
		return err
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	temp := filepath.Join(parent, "."+filepath.Base(dir)+".partial")
	if err := removeTree(temp); err != nil { // of a restore that died
		return err
	}
	if free, known := s.opts.Free(parent); known && free < m.Bytes() {
		return fmt.Errorf("%w: %s: %d bytes free, %d needed", ErrNoSpace, parent, free, m.Bytes())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeTree(temp))
		}
	}()
	if err := os.Mkdir(temp, 0o700); err != nil {
		return err
	}
	r := &restorer{store: s, w: w, manifest: m, root: temp, report: progress}
	r.progress.Total = m.Bytes()
	if err := r.run(ctx); err != nil {
		return noSpace(err)
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // the empty directory; one that has been filled meanwhile stays
	}
	if err := os.Rename(temp, dir); err != nil {
		return err
	}
	return syncDir(parent)
}

func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: %s is not empty", ErrTaken, dir)
}

// removeTree removes a tree whose directories may be without write permission, as they were when saved.
func removeTree(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(p, 0o700) // if it matters, removing says so
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// run writes all files into the root. Modes come last, since a directory may be read-only.
func (r *restorer) run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.store.opts.Workers)
	r.slots = make(chan struct{}, r.store.opts.Workers)
	for i := range r.manifest.Files {
		f := &r.manifest.Files[i]
		if err := f.check(); err != nil {
			return errors.Join(fmt.Errorf("%w: %w", ErrCorrupt, err), g.Wait())
		}
		switch {
		case f.Mode.IsDir():
			if err := os.Mkdir(r.path(f), 0o700); err != nil {
				return errors.Join(err, g.Wait())
			}
		case f.Mode.IsRegular():
			g.Go(func() error { return r.file(gctx, f) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, f := range slices.Backward(r.manifest.Files) { // what is inside before what it is in
		if err := r.finish(&f); err != nil {
			return err
		}
	}
	return syncDir(r.root)
}

func (r *restorer) path(f *File) string { return filepath.Join(r.root, filepath.FromSlash(f.Path)) }

// finish sets the mode and makes links, which come last too: no file is ever written through one.
func (r *restorer) finish(f *File) error {
	if f.Mode.Type() == fs.ModeSymlink {
		return os.Symlink(filepath.FromSlash(f.Link), r.path(f))
	}
	if f.Mode.IsDir() {
		if err := syncDir(r.path(f)); err != nil {
			return err
		}
	}
	return os.Chmod(r.path(f), f.Mode.Perm())
}

// file writes one file, its chunks at once and each at its place. Each chunk is checked as it came, before it is written;
// the sums of all, in order, are the file's own.
func (r *restorer) file(ctx context.Context, f *File) error {
	out, err := os.OpenFile(r.path(f), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.store.opts.Workers)
	sums := make([][sha256.Size]byte, len(f.Chunks))
	at := int64(0)
	for i, c := range f.Chunks {
		offset := at
		at += c.Size
		g.Go(func() error {
			select {
			case r.slots <- struct{}{}:
				defer func() { <-r.slots }()
			case <-gctx.Done():
				return gctx.Err()
			}
			data, sum, err := r.chunk(gctx, c)
			if err != nil {
				return err
			}
			sums[i] = sum
			if _, err = out.WriteAt(data, offset); err == nil {
				startWriteback(out)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("file %q: %w", f.Path, err)
	}
	if err := r.compare(f, at, sums); err != nil {
		return err
	}
	return out.Sync()
}

func (r *restorer) compare(f *File, size int64, sums [][sha256.Size]byte) error {
	if size != f.Size || hashOfSums(sums) != f.Hash {
		return fmt.Errorf("%w: %s: file %q is not what was saved", ErrCorrupt, manifestKey(r.manifest.Workload, r.manifest.ID), f.Path)
	}
	return nil
}

// verifyFile is file without a disk.
func (r *restorer) verifyFile(ctx context.Context, f *File) error {
	if err := f.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if !f.Mode.IsRegular() {
		return nil
	}
	sums := make([][sha256.Size]byte, len(f.Chunks))
	size := int64(0)
	for i, c := range f.Chunks {
		data, sum, err := r.chunk(ctx, c)
		if err != nil {
			return err
		}
		sums[i] = sum
		size += int64(len(data))
	}
	return r.compare(f, size, sums)
}

// chunk fetches a chunk and checks it. One that does not verify is not used again by later saves of this store,
// though its name says that it holds their bytes.
func (r *restorer) chunk(ctx context.Context, c Chunk) (data []byte, sum [sha256.Size]byte, err error) {
	key := chunkPrefix(r.manifest.Workload) + c.Name
	hash, ok := hashOf(c.Name)
	if !ok {
		return nil, sum, fmt.Errorf("%w: %q names no chunk", ErrCorrupt, c.Name)
	}
	err = r.store.attempts(ctx, "fetch "+key, func(ctx context.Context, beat func(int)) error {
		got := int64(0)
		var err error
		data, err = r.store.read(ctx, key, func(n int) {
			beat(n)
			got += int64(n)
			r.advance(int64(n))
		})
		if err != nil {
			r.advance(-got)
		}
		return err
	})
	sum = sha256.Sum256(data)
	switch {
	case isMissing(err):
		err = fmt.Errorf("%w: %s: is gone", ErrCorrupt, key)
	case err == nil && (int64(len(data)) != c.Size || r.store.mac("chunk", sum[:]) != hash):
		err = fmt.Errorf("%w: %s: %d bytes that are not what was saved (%d bytes)", ErrCorrupt, key, len(data), c.Size)
	}
	if errors.Is(err, ErrCorrupt) {
		r.w.mu.Lock()
		r.w.distrust[c.Name] = true
		r.w.mu.Unlock()
	}
	return data, sum, err
}

func (r *restorer) advance(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress.Done += n
	if r.report != nil {
		r.report(r.progress)
	}
}
