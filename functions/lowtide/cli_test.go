package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
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

func TestADamagedStateDirectoryIsRefusedInOneLineAndLeftAsItIs(t *testing.T) {
	t.Parallel()
	l := &lasting{t: t, bin: program(t), state: filepath.Join(t.TempDir(), "state"), args: []string{"--speed", "60"}}
	l.begin()
	l.kill()
	for _, c := range []struct{ file, text, says string }{
		{"installation", "", "no installation id"},
		{"installation", "\x00{", "no installation id"},
		{"checkpoint-key", "zz", "no key"},
		{"clock", "", "no clock"},
		{"clock", "1,2", "no clock"},
		{"nats.json", "", "machines that live then find nobody"},
		{"nats.json", `{"port":70000,"token":"x"}`, "no port and token"},
		{"cloud.json", "{", "of the cloud that this state bought at"},
		{"cloud.json", `{"url":"http://127.0.0.1:1","id":""}`, "it names no cloud"},
		{"nats", "a file", "not a directory"},
		{filepath.Join("cloud", "journal.jsonl"), "garbage\n", "line 1"},
	} {
		file, aside := filepath.Join(l.state, c.file), filepath.Join(t.TempDir(), "aside")
		missing := os.Rename(file, aside) != nil
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if line := l.refused(2, "run", "--state", l.state); !strings.Contains(line, c.file) || !strings.Contains(line, c.says) {
			t.Errorf("%s holds %q: got %q, want its name and %q", c.file, c.text, line, c.says)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != c.text {
			t.Errorf("%s holds %q after it was refused (%v), want %q as before", c.file, b, err, c.text)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if missing {
			continue
		}
		if err := os.Rename(aside, file); err != nil {
			t.Fatal(err)
		}
	}
	l.begin() // and mended it runs
	l.kill()
}

func TestATakenPortIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	l := &lasting{t: t, bin: program(t), state: filepath.Join(t.TempDir(), "state")}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := os.MkdirAll(l.state, 0o700); err != nil {
		t.Fatal(err)
	}
	door := fmt.Sprintf(`{"port":%d,"token":"x"}`, taken.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(filepath.Join(l.state, "nats.json"), []byte(door), 0o600); err != nil {
		t.Fatal(err)
	}
	if line := l.refused(2, "run", "--state", l.state); !strings.Contains(line, taken.Addr().String()) {
		t.Errorf("got %q, want the address that is taken", line)
	}
}

func TestWrongFlagsAreRefusedInOneLine(t *testing.T) {
	t.Parallel()
	l := &lasting{t: t, bin: program(t)}
	state := filepath.Join(t.TempDir(), "state")
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"run", "--speed", "0.5"}, "--speed 0.5"},
		{[]string{"run", "--speed", "nan"}, "--speed NaN"},
		{[]string{"run", "--limit", "-1s"}, "--limit -1s"},
		{[]string{"run", "--cloud", "http://127.0.0.1:1"}, "needs --state"},
		{[]string{"run", "--state", state, "--cloud", "http://127.0.0.1:1", "--seed", "3"}, "--seed"},
		{[]string{"run", "--state", state, "--cloud", "nonsense"}, "fakecloud prints"},
		{[]string{"run", "--state", state, "--lease", "1m"}, "--lease 1m0s: want 5m0s at least"},
		{[]string{"run", "--state", "/dev/null"}, "/dev/null"},
		{[]string{"fakecloud", "--zones", "-1"}, "--zones -1"},
		{[]string{"fakecloud", "--length", "-1h"}, "--length -1h"},
		{[]string{"fakecloud", "--speed", "5"}, "needs --dir"},
		{[]string{"panic", "--cloud", "http://127.0.0.1:1"}, "--installation"},
	} {
		if line := l.refused(2, c.args...); !strings.Contains(line, c.says) {
			t.Errorf("lowtide %s: got %q, want %q in it", strings.Join(c.args, " "), line, c.says)
		}
	}
	if line := l.refused(3, "panic", "--cloud", "http://127.0.0.1:1", "--installation", "abcd"); !strings.Contains(line, "does not answer") {
		t.Errorf("panic where no cloud is: %q", line)
	}
}
