package agent

import (
	"errors"
	"os"
	"path/filepath"
)

// Dir is a Disk in a directory, which must be there.
type Dir string

// Load reads a file.
func (d Dir) Load(name string) ([]byte, error) { return os.ReadFile(filepath.Join(string(d), name)) }

// Store writes a file whole, and sees it and its name to the disk.
func (d Dir) Store(name string, val []byte) error {
	return writeFile(filepath.Join(string(d), name), val)
}

func writeFile(name string, val []byte) error {
	dir, base := filepath.Split(name)
	temp := filepath.Join(dir, "."+base)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // orders carry the workload's environment
	if err != nil {
		return err
	}
	_, err = f.Write(val)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, name); err != nil {
		return err
	}
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
