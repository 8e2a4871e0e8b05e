package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestADirectoryIsFoundBesideTheFileAtHomeOrByItsWholeName(t *testing.T) {
	home, beside := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	whole := filepath.Join(t.TempDir(), "src")
	for _, dir := range []string{filepath.Join(home, "src"), filepath.Join(beside, "src"), whole} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "where"), []byte(dir), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, workdir := range []string{"~/src", "src", whole} {
		p, err := packed(filepath.Join(beside, "w.yaml"), workdir)
		if err != nil || p.Files != 1 {
			t.Fatalf("%s: %+v, %v", workdir, p, err)
		}
		seen[p.Sum] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d directories, want three", len(seen))
	}
	if p, err := packed("w.yaml", ""); p != nil || err != nil {
		t.Errorf("none: %+v, %v", p, err)
	}
}
