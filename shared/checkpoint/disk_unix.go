//go:build linux || darwin

package checkpoint

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// freeBytes is what an ordinary user may still write at path.
func freeBytes(path string) (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true
}

// lockDir keeps other processes from committing into a directory: a file bucket looks and renames in two steps,
// and only its own process is kept out between them.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		d.Close()
		return nil, err
	}
	return func() { d.Close() }, nil
}

// syncParents makes the names in dir, and its parents as far as the key names them, survive a power cut. An empty
// dir is not a file store.
func syncParents(dir, key string) error {
	if dir == "" {
		return nil
	}
	for range strings.Count(key, "/") + 1 {
		if err := syncDir(dir); err != nil {
			return err
		}
		dir = filepath.Dir(dir)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
