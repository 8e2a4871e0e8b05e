package main

import (
	"errors"
	"fmt"
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

// keepOnce is what a file holds; where there is none, made is kept in it from then on. lost says what an empty file means.
func keepOnce(file string, made func() string, lost string) (string, error) {
	b, err := os.ReadFile(file)
	switch {
	case err == nil && len(b) == 0:
		return "", fmt.Errorf("%s is empty: %s", file, lost)
	case err == nil:
		return strings.TrimSpace(string(b)), nil
	case !errors.Is(err, os.ErrNotExist):
		return "", err
	}
	val := made()
	return val, keep(file, []byte(val))
}
