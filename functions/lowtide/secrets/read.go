package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"lowtide/shared/fleet"
)

// Variable begins the names of the variables that may be handed out.
const Variable = "LOWTIDE_SECRET_"

const (
	least = 6        // characters of a secret: a shorter one could not be taken out of what a job prints
	most  = 64 << 10 // bytes
)

// Reader reads what references name.
type Reader struct {
	Getenv func(string) string
	Dir    string // of files; "": there are none
	AWS    *AWS   // nil: references to AWS are refused
}

// Read reads one secret. ErrRefused if reading it again would not help.
func (r Reader) Read(ctx context.Context, s fleet.Secret) (string, error) {
	kind, name, err := s.Split()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	var v string
	switch kind {
	case fleet.SecretEnv:
		if v = r.Getenv(Variable + name); v == "" {
			err = fmt.Errorf("%w: %s is not set where lowtide runs", ErrRefused, Variable+name)
		}
	case fleet.SecretFile:
		v, err = r.file(name)
	default:
		v, err = r.AWS.read(ctx, kind, name)
	}
	if err != nil {
		return "", err
	}
	if n := len([]rune(v)); n < least || len(v) > most {
		return "", fmt.Errorf("%w: it has %d characters, and must have %d at least and %d bytes at most", ErrRefused, n, least, most)
	}
	return v, nil
}

// file reads below the directory; one newline at the end is the editor's.
func (r Reader) file(name string) (string, error) {
	if r.Dir == "" {
		return "", fmt.Errorf("%w: there is no directory of secrets (LOWTIDE_SECRETS) where lowtide runs", ErrRefused)
	}
	root, err := os.OpenRoot(r.Dir)
	if err != nil {
		return "", fmt.Errorf("%w: the directory of secrets: %w", ErrRefused, err)
	}
	defer root.Close()
	f, err := root.Open(filepath.FromSlash(name))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%w: there is no file %s in %s, where lowtide runs", ErrRefused, name, r.Dir)
		}
		return "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+2))
	return strings.TrimSuffix(string(b), "\n"), err
}

// field takes one field of a JSON object. What it is of is not told.
func field(object, key string) (string, error) {
	var fields map[string]any
	if json.Unmarshal([]byte(object), &fields) != nil {
		return "", fmt.Errorf("%w: it is no JSON object, so it has no field %q", ErrRefused, key)
	}
	v, ok := fields[key].(string)
	if !ok {
		return "", fmt.Errorf("%w: it has no text in field %q", ErrRefused, key)
	}
	return v, nil
}
