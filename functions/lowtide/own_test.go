package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
)

// example is a workload of infra/examples, copied so that a test may change its file: old, new, old, new …
func example(t *testing.T, name string, change ...string) (file string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "infra", "examples", name))); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "workload.yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(change); i += 2 {
		if !strings.Contains(string(b), change[i]) {
			t.Fatalf("%s does not say %q", file, change[i])
		}
	}
	if err := os.WriteFile(file, []byte(strings.NewReplacer(change...).Replace(string(b))), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// following is `lowtide logs -f`.
type following struct {
	*exec.Cmd
	file string
}

func (l *lasting) follow(workload string) *following {
	l.t.Helper()
	f := &following{Cmd: exec.CommandContext(l.t.Context(), l.bin, "logs", "-f", workload, "--state", l.state), file: filepath.Join(l.t.TempDir(), "followed")}
	out, err := os.Create(f.file)
	if err != nil {
		l.t.Fatal(err)
	}
	defer out.Close()
	f.Stdout, f.Stderr = out, out
	if err := f.Start(); err != nil {
		l.t.Fatal(err)
	}
	return f
}

func (f *following) read() string { b, _ := os.ReadFile(f.file); return string(b) }

func TestAnOwnScriptWithItsDirectoryAndSetupGoesOnOnAnotherMachine(t *testing.T) {
	t.Parallel()
	bin := program(t)
	cloud := openElsewhere(t, bin, "--speed", "120", "--seed", "3")
	l := &lasting{t: t, bin: bin, state: filepath.Join(t.TempDir(), "state"), args: []string{"--cloud", cloud.URL()}}
	l.begin()
	t.Cleanup(func() { l.kill() })
	const steps = 120
	out := l.call("submit", example(t, "count", `"600"`, fmt.Sprintf("%q", fmt.Sprint(steps)), `"0.05"`, `"0.02"`))
	if !strings.Contains(out, "workdir packed: files 1,") || !strings.Contains(out, "accepted") {
		t.Errorf("submit: %s", out)
	}
	log := l.follow("count")
	l.until("a checkpoint", func() bool { return l.workload("count").Saved.Step >= 20 })
	first := l.workload("count").On
	for _, m := range cloud.bill().Running() {
		if err := cloud.Interrupt(t.Context(), m.ID, 2*time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	l.until("the end", func() bool { return l.workload("count").Phase.Final() })
	w := l.workload("count")
	if want := fmt.Sprint(steps * (steps + 1) / 2); w.Phase != fleet.Finished || w.Result != want || w.Moves == 0 {
		t.Fatalf("got %s (%s) with %q after %d moves, want finished with %s after a move; the job printed:\n%s", w.Phase, w.Why, w.Result, w.Moves, want, log.read())
	}
	if err := log.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
	text := log.read()
	runs := strings.Split(text, "== ")[1:]
	if len(runs) < 2 || !strings.HasPrefix(runs[0], first+", epoch 1\nsetting up\nstep 1: 1\n") || !regexp.MustCompile(`^\S+, epoch \d+\nsetting up\ngoing on after step \d+\n`).MatchString(runs[len(runs)-1]) {
		t.Errorf("followed:\n%s", text)
	}
	for i := range steps {
		if !strings.Contains(text, fmt.Sprintf("\nstep %d: %d\n", i+1, (i+1)*(i+2)/2)) {
			t.Errorf("step %d was not shown", i+1)
		}
	}
	l.until("the last machine's end", func() bool { return len(cloud.bill().Running()) == 0 })
	if twice := cloud.bill().Twice(); len(twice) > 0 {
		t.Errorf("bought twice: %v", twice)
	}
}
