// Package parcel carries a directory to a machine: it packs the directory into bytes that are named by their hash, and
// makes the same directory of them elsewhere.
//
// It promises:
//
//   - The same files give the same bytes, so the same name, whoever packs them and when: names in order, no times, no
//     owners; of the permissions only whether a file may be run.
//   - What .gitignore leaves out is left out, as git reads it, and .git itself; no other file is left out in silence. What
//     cannot be packed as it is (a link that leaves the directory, a socket, too much) is refused in one line that says
//     how to mend it.
//   - Unpack writes nothing unless the bytes have the hash that was asked for, and nothing outside of the directory.
//
// It does not ask git which ignored files are tracked all the same, and it keeps no history.
package parcel

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// What a parcel may hold: it is code that travels to each machine anew, and is held in memory while it is packed.
const (
	MaxFiles  = 20_000
	MaxBytes  = 256 << 20 // unpacked
	MaxPacked = 64 << 20
)

// ErrDamaged: the bytes are not those that were packed.
var ErrDamaged = errors.New("parcel damaged")

// Parcel is a packed directory.
type Parcel struct {
	Sum    string // SHA-256 of Packed, in hex
	Packed []byte
	Files  int
	Bytes  int64 // of the files
}

// Sum names packed bytes.
func Sum(packed []byte) string {
	sum := sha256.Sum256(packed)
	return hex.EncodeToString(sum[:])
}

// Pack packs a directory.
func Pack(dir string) (Parcel, error) {
	all, err := list(dir)
	if err != nil {
		return Parcel{}, err
	}
	if err := bounded(all); err != nil {
		return Parcel{}, err
	}
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1)) // the same bytes on any number of cores
	if err != nil {
		return Parcel{}, err
	}
	p := Parcel{}
	w := tar.NewWriter(z)
	for _, e := range all {
		if err := e.write(w); err != nil {
			return Parcel{}, fmt.Errorf("pack %s: %w", e.name, err)
		}
		if e.mode.IsRegular() {
			p.Files, p.Bytes = p.Files+1, p.Bytes+e.size
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return Parcel{}, err
	}
	p.Packed = out.Bytes()
	if len(p.Packed) > MaxPacked {
		return Parcel{}, fmt.Errorf("%s packed, and %s may travel to each machine; %s. %s", size(int64(len(p.Packed))), size(MaxPacked), largest(all), mend)
	}
	p.Sum = Sum(p.Packed)
	return p, nil
}

const mend = "List what the job does not need in .gitignore, and put data into a bucket"

// entry is one thing to pack.
type entry struct {
	name string // below the directory, with slashes
	path string
	mode fs.FileMode
	size int64
	link string
}

// bounded refuses what is too much, before it is read.
func bounded(all []entry) error {
	var sum int64
	for _, e := range all {
		sum += e.size
	}
	if sum > MaxBytes || len(all) > MaxFiles {
		return fmt.Errorf("%s in %d files, and %s in %d may travel to each machine; %s. %s", size(sum), len(all), size(MaxBytes), MaxFiles, largest(all), mend)
	}
	return nil
}

// largest names the files that weigh most.
func largest(all []entry) string {
	all = slices.SortedFunc(slices.Values(all), func(a, b entry) int { return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.name, b.name)) })
	var names []string
	for _, e := range all[:min(3, len(all))] {
		names = append(names, fmt.Sprintf("%s (%s)", e.name, size(e.size)))
	}
	return "the largest: " + strings.Join(names, ", ")
}

func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// write writes an entry without anything that differs from machine to machine.
func (e entry) write(w *tar.Writer) error {
	h := &tar.Header{Name: e.name, Mode: 0o644, Format: tar.FormatPAX}
	switch {
	case e.mode.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, e.name+"/", 0o755
		return w.WriteHeader(h)
	case e.mode.Type() == fs.ModeSymlink:
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		return w.WriteHeader(h)
	}
	h.Typeflag, h.Size = tar.TypeReg, e.size
	if e.mode&0o111 != 0 {
		h.Mode = 0o755
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	f, err := os.Open(e.path)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(w, io.LimitReader(f, e.size))
	if err == nil && n < e.size {
		err = errors.New("it became shorter while it was packed; try again")
	}
	return err
}

// Unpack makes dir, which must not be there, of packed bytes. ErrDamaged if they have another hash.
func Unpack(packed []byte, sum, dir string) (err error) {
	if got := Sum(packed); got != sum {
		return fmt.Errorf("%w: the hash is %s, wanted %s", ErrDamaged, short(got), short(sum))
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	z, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer z.Close()
	for r := tar.NewReader(io.LimitReader(z, MaxBytes+MaxFiles*(4<<10))); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = place(root, h, r)
		}
		if err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
	}
}

// place makes one entry; root refuses whatever leaves it.
func place(root *os.Root, h *tar.Header, r io.Reader) error {
	name := path.Clean(h.Name)
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		if leaves(name, h.Linkname) {
			return fmt.Errorf("%s is a link that leaves the directory", name)
		}
		return root.Symlink(filepath.FromSlash(h.Linkname), name)
	case tar.TypeReg:
	default:
		return fmt.Errorf("%s is neither a file, a directory nor a link", name)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, h.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// leaves says that a link below the directory points out of it.
func leaves(name, link string) bool {
	return path.IsAbs(link) || !filepath.IsLocal(filepath.FromSlash(path.Join(path.Dir(name), link)))
}

func short(sum string) string { return sum[:min(12, len(sum))] }
