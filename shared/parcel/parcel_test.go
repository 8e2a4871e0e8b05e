package parcel_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lowtide/shared/parcel"
)

// tree writes files; a name that ends in "/" is a directory, a content that begins with "-> " a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		switch link, isLink := strings.CutPrefix(text, "-> "); {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(file, 0o755)
		case isLink:
			err = os.Symlink(link, file)
		default:
			err = os.WriteFile(file, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// files lists what is in a directory, as git would name it, .git apart.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, p)
			names = append(names, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func pack(t *testing.T, dir string) parcel.Parcel {
	t.Helper()
	p, err := parcel.Pack(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func unpack(t *testing.T, p parcel.Parcel) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "code")
	if err := parcel.Unpack(p.Packed, p.Sum, to); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestADirectoryArrivesAsItWasAndItsNameIsItsContent(t *testing.T) {
	t.Parallel()
	want := map[string]string{"train.py": "print(1)\n", "a/b/data.txt": strings.Repeat("x", 1<<17), "a/here": "-> b/data.txt", "empty/": "", "up": "-> a/../train.py"}
	one, two := tree(t, want), tree(t, want)
	if err := os.Chmod(filepath.Join(one, "train.py"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(two, "train.py"), 0o755); err != nil {
		t.Fatal(err)
	}
	old := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := os.Chtimes(filepath.Join(two, "train.py"), old, old); err != nil {
		t.Fatal(err)
	}
	p := pack(t, one)
	if again := pack(t, two); again.Sum != p.Sum || !bytes.Equal(again.Packed, p.Packed) {
		t.Errorf("the same files are %s and %s", p.Sum, again.Sum)
	}
	if p.Files != 2 || p.Bytes != int64(len("print(1)\n")+1<<17) {
		t.Errorf("got %d files of %d bytes", p.Files, p.Bytes)
	}
	got := unpack(t, p)
	for name, text := range want {
		file := filepath.Join(got, filepath.FromSlash(name))
		if strings.HasSuffix(name, "/") {
			if info, err := os.Stat(file); err != nil || !info.IsDir() {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if link, is := strings.CutPrefix(text, "-> "); is {
			if to, err := os.Readlink(file); err != nil || to != link {
				t.Errorf("%s: a link to %q, %v", name, to, err)
			}
			continue
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != text {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	if info, err := os.Stat(filepath.Join(got, "train.py")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("train.py: %v, %v", info, err)
	}
	if err := os.WriteFile(filepath.Join(two, "train.py"), []byte("print(2)\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if other := pack(t, two); other.Sum == p.Sum {
		t.Error("other content has the same name")
	}
}

// ignoring is a repository with most of what .gitignore can say.
var ignoring = map[string]string{
	".gitignore": "# build\n*.o\n/dist/\n!keep.o\nlogs/\n**/cache\ndata/**/*.bin\n\\#odd\nfoo[0-9]\ntrail  \n/top.txt\n",
	"a.o":        "", "keep.o": "", "dist/x": "", "sub/dist/y": "", "logs/l": "", "sub/logs/l": "", "x/y/cache/z": "", "cache": "",
	"data/a.bin": "", "data/b/c.bin": "", "data/b/c.txt": "", "#odd": "", "foo1": "", "foox": "", "trail": "", "top.txt": "", "sub/top.txt": "",
	"sub/.gitignore": "!a.o\n*.tmp\n/only\n", "sub/a.o": "", "sub/b.tmp": "", "sub/only": "", "sub/deep/only": "", "b.tmp": "",
	"sub/deep/.gitignore": "!b.tmp\n", "sub/deep/b.tmp": "", ".env": "", ".venv/.gitignore": "*\n", ".venv/bin/python": "",
}

func TestWhatGitIgnoresStaysBehind(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("no git to compare with:", err)
	}
	dir := tree(t, ignoring)
	run := func(in string, args ...string) []string {
		cmd := exec.Command(git, args...)
		cmd.Dir, cmd.Env = in, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	}
	run(dir, "init", "-q")
	for _, below := range []string{".", "sub", "sub/deep"} { // also a directory within a repository obeys the rules above it
		in := filepath.Join(dir, filepath.FromSlash(below))
		want := run(in, "ls-files", "-z", "--others", "--exclude-standard")
		got := files(t, unpack(t, pack(t, in)))
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: packed %q,\ngit would take %q", below, got, want)
		}
	}
}

func TestWhatCannotBePackedIsRefusedInOneLineThatMends(t *testing.T) {
	t.Parallel()
	socket := func(dir string) {
		if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	big := func(dir string) {
		if err := os.Truncate(filepath.Join(dir, "model.bin"), parcel.MaxBytes+1); err != nil {
			t.Fatal(err)
		}
	}
	many := func(dir string) {
		for i := range parcel.MaxFiles + 1 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		files map[string]string
		do    func(dir string)
		want  []string
	}{
		"a link out":          {map[string]string{"a/out": "-> ../../etc"}, nil, []string{"a/out", "../../etc", ".gitignore"}},
		"an absolute link":    {map[string]string{"passwd": "-> /etc/passwd"}, nil, []string{"passwd", "/etc/passwd"}},
		"a pipe":              {map[string]string{"a": ""}, socket, []string{"pipe", ".gitignore"}},
		"too much":            {map[string]string{"model.bin": "", "a.py": ""}, big, []string{"model.bin (256.0 MiB)", ".gitignore", "bucket"}},
		"too many":            {nil, many, []string{"20001", ".gitignore"}},
		"that is not there":   {map[string]string{}, func(dir string) { os.Remove(dir) }, []string{"no such file"}},
		"that is a lone file": {map[string]string{}, func(dir string) { os.Remove(dir); _ = os.WriteFile(dir, nil, 0o600) }, []string{"not a directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tree(t, c.files)
			if c.do != nil {
				c.do(dir)
			}
			_, err := parcel.Pack(dir)
			if err == nil {
				t.Fatal("packed")
			}
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
				t.Errorf("not one line: %q", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

// archive packs headers as somebody with bad intent would.
func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestUnpackTrustsNoBytes(t *testing.T) {
	t.Parallel()
	p := pack(t, tree(t, map[string]string{"a": "b"}))
	bad := bytes.Clone(p.Packed)
	bad[len(bad)/2] ^= 1
	to := filepath.Join(t.TempDir(), "code")
	if err := parcel.Unpack(bad, p.Sum, to); !errors.Is(err, parcel.ErrDamaged) {
		t.Errorf("a flipped bit: %v", err)
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
	for name, headers := range map[string][]tar.Header{
		"up":            {{Typeflag: tar.TypeReg, Name: "../out", Mode: 0o644}},
		"absolute":      {{Typeflag: tar.TypeReg, Name: "/tmp/out", Mode: 0o644}},
		"a link out":    {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../..", Mode: 0o777}},
		"through links": {{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "../..", Mode: 0o777}, {Typeflag: tar.TypeReg, Name: "d/l/out", Mode: 0o644}},
		"a hard link":   {{Typeflag: tar.TypeLink, Name: "l", Linkname: "/etc/passwd"}},
		"a device":      {{Typeflag: tar.TypeChar, Name: "null"}},
	} {
		b, parent := archive(t, headers...), t.TempDir()
		if err := parcel.Unpack(b, parcel.Sum(b), filepath.Join(parent, "code")); err == nil {
			t.Errorf("%s: unpacked", name)
		}
		if _, err := os.Stat(filepath.Join(parent, "out")); err == nil {
			t.Errorf("%s: it wrote outside", name)
		}
	}
}
