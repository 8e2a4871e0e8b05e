package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// keep writes a file for its owner alone, whole or not at all, also when the process or the machine dies meanwhile: a
// cut-off installation id would make our machines strangers' machines. Its directory is made.
func keep(file string, val []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(val)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// keepOnce is what a file holds; where there is none, what made returns is kept in it from then on.
func keepOnce(file string, made func() string) (string, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		val := made()
		return val, keep(file, []byte(val))
	}
	return strings.TrimSpace(string(b)), err
}
