package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// built makes the program once for all tests of this package, below binaries, which TestMain removes.
var (
	binaries string
	built    = sync.OnceValues(func() (bin string, err error) {
		if binaries, err = os.MkdirTemp("", "lowtide-test-"); err != nil {
			return "", err
		}
		bin = filepath.Join(binaries, "lowtide")
		if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
			return "", fmt.Errorf("build: %w\n%s", err, out)
		}
		return bin, nil
	})
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(binaries)
	os.Exit(code)
}

// program is lowtide as a program.
func program(t *testing.T) string {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func TestABadWorkloadFileIsRefusedInOneLineAndChangesNothing(t *testing.T) {
	bin := program(t)
	const good = "name: a\nrun: [\"true\"]\nwork: 1h\n"
	for _, c := range []struct{ name, file, field string }{
		{"an unknown field", good + "gpu: 1\n", "gpu"},
		{"more GPUs than anybody sells", good + "gpus: 4096\n", "field gpus"},
		{"a deadline in the past", good + "deadline: 2001-01-01T00:00:00Z\n", "field deadline"},
		{"a negative budget", good + "budget: -5 USD\n", "field budget"},
		{"100 MB", good + strings.Repeat("#", 100<<20), "larger than"},
		{"invalid UTF-8", good + "models: [\"\xff\"]\n", "UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			file, state := filepath.Join(dir, "job.yaml"), filepath.Join(dir, "state")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, bin, "submit", "--state", state, file)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 2 {
				t.Errorf("exit: got %v, want status 2", err)
			}
			line := errs.String()
			if strings.Count(line, "\n") != 1 || !strings.Contains(line, file) || !strings.Contains(line, c.field) {
				t.Errorf("stderr: got %q, want one line with %s and %q", line, file, c.field)
			}
			if _, err := os.Stat(state); out.Len() > 0 || !errors.Is(err, os.ErrNotExist) {
				t.Errorf("got output %q and a state directory (%v), want neither", out.String(), err)
			}
		})
	}
}
