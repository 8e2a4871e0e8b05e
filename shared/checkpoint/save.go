package checkpoint

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
)

const (
	smallestChunk = 8 << 20
	largestChunk  = 128 << 20
	mostChunks    = 16384
)

// Save makes the content of dir the checkpoint id of the workload and returns its manifest once it is durable.
// Pieces that the store already holds are not uploaded again. progress may be nil; its calls do not overlap and it
// should return at once. dir may also be a single file: then the checkpoint is a directory with that file. It must not change meanwhile, which is noticed; it may hold directories, regular files
// and symbolic links that stay inside.
//
// A save whose answer was lost may be repeated: the same content is success and returns the manifest that is
// stored, other content is ErrTaken. ErrStale if a later epoch has begun: the training that dir comes from no longer
// counts. ErrUnfit and ErrChanged if dir is to blame. ErrNoSpace if a file store cannot hold it. Whatever the error, earlier checkpoints are as they were.
func (s *Store) Save(ctx context.Context, workload string, id ID, dir string, progress func(Progress)) (*Manifest, error) {
	w, err := s.of(workload)
	if err != nil {
		return nil, err
	}
	if err := id.check(); err != nil {
		return nil, err
	}
	select {
	case w.saving <- struct{}{}:
		defer func() { <-w.saving }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, SaveLimit)
	defer cancel()
	v := &saver{store: s, w: w, workload: workload, id: id, root: dir, report: progress}
	m, err := v.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("save %s of %s: %w", id, workload, err)
	}
	return m, nil
}

// saver is one save in progress.
type saver struct {
	store    *Store
	w        *workload
	workload string
	id       ID
	root     string
	report   func(Progress)

	now       time.Time // store time at the start; chunks of this save are taken to be from then
	files     []File
	chunkSize int64

	mu       sync.Mutex
	progress Progress
	sums     map[int][][sha256.Size]byte // of each chunk of each regular file
	pending  map[string]chan struct{}    // keyed hashes being uploaded; closed when done
	there    map[string]bool             // chunk names that this save has written, or seen in the store
	listed   bool                        // this save has listed all that are there
	fileDir  string                      // where a file store put the chunks
	chunkKey string                      // one of the keys there
}

func (v *saver) run(ctx context.Context) (*Manifest, error) {
	var err error
	if v.root, v.files, err = scan(ctx, v.root); err != nil {
		return nil, err
	}
	if err := v.store.tryCondition(ctx, v.w, v.workload); err != nil {
		return nil, err
	}
	// Asking first spares a zombie the upload; what protects the others is that its manifest does not count.
	if err := v.store.checkFresh(ctx, v.w, v.workload, v.id.Epoch); err != nil {
		return nil, err
	}
	if v.now, err = v.store.now(ctx, v.workload); err != nil {
		return nil, err
	}
	if err := v.learnChunks(ctx); err != nil {
		return nil, err
	}
	m := &Manifest{Format: Format, Cipher: CipherNone, Workload: v.workload, ID: v.id, Created: v.now.UTC(), Files: v.files}
	if err := v.checkSpace(m.Bytes()); err != nil {
		return nil, err
	}
	v.chunkSize = cmpOr(v.store.opts.ChunkSize, chunkSizeFor(m.Bytes()))
	v.progress.Total = m.Bytes()
	v.pending, v.there = map[string]chan struct{}{}, map[string]bool{}
	v.sums = map[int][][sha256.Size]byte{}
	if err := v.upload(ctx); err != nil {
		return nil, err
	}
	if err := v.syncChunks(ctx); err != nil {
		return nil, err
	}
	if err := syncParents(v.fileDir, v.chunkKey); err != nil {
		return nil, err
	}
	return v.commit(ctx, m)
}

func cmpOr(a, b int64) int64 {
	if a > 0 {
		return a
	}
	return b
}

// chunkSizeFor depends on the total only in powers of two, so that the next checkpoint, of nearly the same size, is
// cut at the same places.
func chunkSizeFor(total int64) int64 {
	n := int64(smallestChunk)
	for n < largestChunk && total/n > mostChunks {
		n *= 2
	}
	return n
}

// commit writes the manifest. A beginning that was recorded while it did so may not have seen it: then it does not
// count, and saying that it was saved would be a lie.
func (v *saver) commit(ctx context.Context, m *Manifest) (*Manifest, error) {
	s := v.store
	if err := s.checkFresh(ctx, v.w, v.workload, v.id.Epoch); err != nil {
		return nil, err
	}
	body, err := s.seal("manifest", m)
	if err != nil {
		return nil, err
	}
	key := manifestKey(v.workload, v.id)
	kept := m
	err = s.commit(ctx, key, body, func(found []byte) bool {
		old, err := s.decode(key, v.workload, v.id, found)
		if err != nil || !old.sameContent(m) {
			return false
		}
		kept = old
		return true
	})
	if err != nil {
		return nil, err
	}
	if err := s.checkFresh(ctx, v.w, v.workload, v.id.Epoch); err != nil {
		return nil, err
	}
	return kept, nil
}

// scan lists what is in a directory, parents first, and returns the directory: that of the file, if it was given one.
func scan(ctx context.Context, name string) (root string, files []File, err error) {
	root, err = filepath.EvalSymlinks(name)
	if err != nil {
		return "", nil, err
	}
	info, err := os.Stat(root)
	if err != nil {
		return "", nil, err
	}
	if info.Mode().IsRegular() {
		f := File{Path: filepath.Base(root), Mode: info.Mode().Perm(), Size: info.Size()}
		return filepath.Dir(root), []File{f}, unfit(f.check())
	}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil || rel == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := File{Path: filepath.ToSlash(rel), Mode: info.Mode() & (fs.ModeType | fs.ModePerm)}
		switch {
		case info.Mode().IsRegular():
			f.Size = info.Size()
		case info.IsDir():
		case info.Mode()&fs.ModeType == fs.ModeSymlink:
			if f.Link, err = os.Readlink(p); err != nil {
				return err
			}
			f.Link = filepath.ToSlash(f.Link)
		}
		if err := f.check(); err != nil {
			return unfit(err)
		}
		files = append(files, f)
		return nil
	})
	if err == nil && len(files) == 0 {
		err = unfit(fmt.Errorf("%s is empty", root))
	}
	return root, files, err
}

func unfit(err error) error {
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	return err
}

// check refuses what must not be restored: names and links that lead out of the directory, and special files.
func (f *File) check() error {
	if !filepath.IsLocal(filepath.FromSlash(f.Path)) || path.Clean(f.Path) != f.Path || f.Path == "." {
		return fmt.Errorf("file %q: its name leads out of the checkpoint", f.Path)
	}
	if !utf8.ValidString(f.Path) || !utf8.ValidString(f.Link) {
		return fmt.Errorf("file %q: its name is not UTF-8 and would be restored as another", f.Path)
	}
	switch f.Mode.Type() {
	case 0, fs.ModeDir:
		return nil
	case fs.ModeSymlink:
		if path.IsAbs(f.Link) || !filepath.IsLocal(filepath.FromSlash(path.Join(path.Dir(f.Path), f.Link))) {
			return fmt.Errorf("file %q: links to %q, outside the checkpoint", f.Path, f.Link)
		}
		return nil
	}
	return fmt.Errorf("file %q: %s is no regular file", f.Path, f.Mode)
}

// learnChunks lists what the store holds of the workload, once; later saves know it from the earlier ones.
func (v *saver) learnChunks(ctx context.Context) error {
	v.w.mu.Lock()
	known := v.w.chunks != nil
	v.w.mu.Unlock()
	if known {
		return nil
	}
	found := map[string]stored{}
	p := chunkPrefix(v.workload)
	err := v.store.each(ctx, p, func(o object) error {
		name := strings.TrimPrefix(o.key, p)
		hash, ok := hashOf(name)
		if ok && !found[hash].at.After(o.at) {
			found[hash] = stored{name, o.size, o.at}
		}
		return nil
	})
	if err != nil {
		return err
	}
	v.listed = true
	v.w.mu.Lock()
	v.w.chunks = found
	v.w.mu.Unlock()
	return nil
}

// hashOf is the keyed hash in a chunk's name; false for anything that is not one.
func hashOf(name string) (string, bool) {
	hash, nonce, ok := strings.Cut(name, "-")
	return hash, ok && isHex(hash, sha256.Size) && isHex(nonce, nonceSize)
}

func isHex(text string, bytes int) bool {
	b, err := hex.DecodeString(text)
	return err == nil && len(b) == bytes
}

const nonceSize = 8

// checkSpace refuses a save that a file store has no room for, before it has filled the disk. Where pieces may be
// reused only trying tells, and trying costs nothing but the rest of the disk.
func (v *saver) checkSpace(total int64) error {
	v.w.mu.Lock()
	reusable := len(v.w.chunks) > 0
	v.w.mu.Unlock()
	if v.store.dir == "" || reusable {
		return nil
	}
	free, known := v.store.opts.Free(v.store.dir)
	if known && free < total {
		return fmt.Errorf("%w: %s: %d bytes free, %d needed", ErrNoSpace, v.store.dir, free, total)
	}
	return nil
}

// piece is a chunk on its way from a file to the store.
type piece struct {
	file, chunk int
	data        []byte
	sum         *[sha256.Size]byte // to be filled in
}

// upload reads the files in order, one reader for all, and hands the pieces to the workers. As many buffers exist
// as can be in use.
func (v *saver) upload(ctx context.Context) error {
	workers := v.store.opts.Workers
	buffers := make(chan []byte, workers+1)
	for range workers + 1 {
		buffers <- nil // made when first used
	}
	pieces := make(chan piece)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(pieces)
		for i := range v.files {
			if v.files[i].Mode.IsRegular() {
				if err := v.readFile(ctx, i, buffers, pieces); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for range workers {
		g.Go(func() error {
			for p := range pieces {
				*p.sum = sha256.Sum256(p.data)
				c, err := v.store1(ctx, v.store.mac("chunk", p.sum[:]), p.data)
				if err != nil {
					return fmt.Errorf("file %q: %w", v.files[p.file].Path, err)
				}
				v.files[p.file].Chunks[p.chunk] = c
				buffers <- p.data[:0]
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, sums := range v.sums {
		v.files[i].Hash = hashOfSums(sums)
	}
	return nil
}

// hashOfSums is File.Hash.
func hashOfSums(sums [][sha256.Size]byte) string {
	whole := sha256.New()
	for _, sum := range sums {
		whole.Write(sum[:])
	}
	return hex.EncodeToString(whole.Sum(nil))
}

// readFile cuts a file into pieces. They are hashed by those who send them: exactly what is sent, once.
func (v *saver) readFile(ctx context.Context, i int, buffers chan []byte, pieces chan<- piece) error {
	f := &v.files[i]
	name := filepath.Join(v.root, filepath.FromSlash(f.Path))
	in, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // what was a file may be a pipe now: nobody waits for its writer
	if err != nil {
		return err
	}
	defer in.Close()
	before, err := in.Stat()
	if err != nil {
		return err
	}
	if before.Size() != f.Size || !before.Mode().IsRegular() {
		return fmt.Errorf("file %q: %w", f.Path, ErrChanged)
	}
	sums := make([][sha256.Size]byte, (f.Size+v.chunkSize-1)/v.chunkSize)
	v.mu.Lock()
	v.sums[i] = sums
	v.mu.Unlock()
	f.Chunks = make([]Chunk, (f.Size+v.chunkSize-1)/v.chunkSize)
	for c := range f.Chunks {
		var buf []byte
		select {
		case buf = <-buffers:
		case <-ctx.Done():
			return ctx.Err()
		}
		n := min(v.chunkSize, f.Size-int64(c)*v.chunkSize)
		if int64(cap(buf)) < n {
			buf = make([]byte, n)
		}
		buf = buf[:n]
		if _, err := io.ReadFull(in, buf); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
		select {
		case pieces <- piece{i, c, buf, &sums[c]}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	after, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !after.ModTime().Equal(before.ModTime()) || after.Size() != f.Size {
		return fmt.Errorf("file %q: %w", f.Path, ErrChanged)
	}
	return nil
}

// store1 returns a stored chunk with these bytes, uploading them if need be.
func (v *saver) store1(ctx context.Context, hash string, data []byte) (Chunk, error) {
	for {
		found, wait := v.claim(hash, int64(len(data)))
		if wait == nil {
			if found.name != "" {
				switch there, err := v.look(ctx, hash, found); {
				case err != nil:
					return Chunk{}, err
				case !there:
					continue
				}
				v.advance(int64(len(data)), int64(len(data)))
				return Chunk{found.name, found.size}, nil
			}
			return v.uploadChunk(ctx, hash, data)
		}
		select { // the same bytes are on their way from another file: look again when they have arrived
		case <-wait:
		case <-ctx.Done():
			return Chunk{}, ctx.Err()
		}
	}
}

// look says whether a chunk that is to be used again is still there, whole; one that is not is forgotten. What earlier
// saves wrote may be gone with its bucket, and a checkpoint that names it would be none. One small request for each chunk
// used again is cheaper than the bytes, and than a listing, which holds the chunks of a whole day.
func (v *saver) look(ctx context.Context, hash string, c stored) (bool, error) {
	v.mu.Lock()
	known := v.listed || v.there[c.name]
	v.mu.Unlock()
	if known {
		return true, nil
	}
	key := chunkPrefix(v.workload) + c.name
	err := v.store.attempts(ctx, "look for "+key, func(ctx context.Context, _ func(int)) error {
		a, err := v.store.bucket.Attributes(ctx, key)
		if err == nil && a.Size != c.size {
			err = fmt.Errorf("%w: %s has %d bytes, not %d", ErrCorrupt, key, a.Size, c.size)
		}
		return err
	})
	switch {
	case isMissing(err) || errors.Is(err, ErrCorrupt):
		v.w.mu.Lock()
		defer v.w.mu.Unlock()
		if v.w.chunks[hash].name == c.name {
			delete(v.w.chunks, hash)
		}
		return false, nil
	case err != nil:
		return false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.there[c.name] = true
	return true, nil
}

// claim returns a chunk to use again, or something to wait for, or neither: then the caller uploads.
func (v *saver) claim(hash string, size int64) (stored, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	c, ok := v.w.chunks[hash]
	if ok && c.size == size && v.now.Sub(c.at) < ReuseFor && !v.w.distrust[c.name] {
		return c, nil
	}
	if wait := v.pending[hash]; wait != nil {
		return stored{}, wait
	}
	v.pending[hash] = make(chan struct{})
	return stored{}, nil
}

// uploadChunk writes a chunk under a name that was never used before: a name that Prune may be about to delete
// never gets new life.
func (v *saver) uploadChunk(ctx context.Context, hash string, data []byte) (Chunk, error) {
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		close(v.pending[hash])
		delete(v.pending, hash)
	}()
	var name, key, dir string
	err := v.store.attempts(ctx, "upload chunk "+hash, func(ctx context.Context, beat func(int)) error {
		name = hash + "-" + nonce()
		key = chunkPrefix(v.workload) + name
		sent := int64(0)
		var err error
		dir, err = v.store.putUnsynced(ctx, key, data, false, v.store.dir == "", func(n int) {
			beat(n)
			sent += int64(n)
			v.advance(int64(n), 0)
		})
		if err != nil {
			v.advance(-sent, 0)
		}
		return err
	})
	if err != nil {
		return Chunk{}, err
	}
	v.mu.Lock()
	v.fileDir, v.chunkKey, v.there[name] = dir, key, true
	v.mu.Unlock()
	v.w.mu.Lock()
	v.w.chunks[hash] = stored{name, int64(len(data)), v.now}
	v.w.mu.Unlock()
	return Chunk{name, int64(len(data))}, nil
}

// syncChunks sees the chunks of a file store to the disk, all at the end: one by one as they come each would cost a
// commit of the file system's journal. It includes chunks that are used again, since the save that brought them may
// have died before it came here.
func (v *saver) syncChunks(ctx context.Context) error {
	if v.store.dir == "" {
		return nil
	}
	todo := map[string]bool{}
	v.w.mu.Lock()
	for _, f := range v.files {
		for _, c := range f.Chunks {
			todo[c.Name] = !v.w.synced[c.Name]
		}
	}
	v.w.mu.Unlock()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(v.store.opts.Workers)
	for name, needed := range todo {
		if !needed {
			continue
		}
		key := chunkPrefix(v.workload) + name
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := syncFile(filepath.Join(v.store.dir, filepath.FromSlash(v.store.below+key))); err != nil {
				return noSpace(fmt.Errorf("sync %s: %w", key, err))
			}
			v.w.mu.Lock()
			defer v.w.mu.Unlock()
			v.w.synced[name] = true
			return nil
		})
	}
	if len(todo) == 0 {
		return nil // nothing but empty files
	}
	v.fileDir, v.chunkKey = filepath.Join(v.store.dir, filepath.FromSlash(v.store.below+chunkPrefix(v.workload))), chunkPrefix(v.workload)
	return g.Wait()
}

func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func nonce() string {
	var b [nonceSize]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func (v *saver) advance(done, reused int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.progress.Done += done
	v.progress.Reused += reused
	if v.report != nil {
		v.report(v.progress)
	}
}
