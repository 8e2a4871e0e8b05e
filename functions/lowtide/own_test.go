package main_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider/fake"
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
	const steps = 320 // 16 s and more
	out := l.call("submit", example(t, "count", `"600"`, fmt.Sprintf("%q", fmt.Sprint(steps)), `"0.05"`, `"0.02"`))
	if !strings.Contains(out, "workdir packed: files 1,") || !strings.Contains(out, "accepted") {
		t.Errorf("submit: %s", out)
	}
	log := l.follow("count")
	l.until("a checkpoint", func() bool { return l.workload("count").Saved.Step >= 20 })
	first := l.workload("count").On
	for _, m := range cloud.bill().Running() { // six seconds on the wall: the last lines are to be kept on a busy host too
		if err := cloud.Interrupt(t.Context(), m.ID, 12*time.Minute); err != nil {
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

// holds lists the files below a directory that hold a text, packed or not.
func holds(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
			return nil
		}
		if err != nil {
			return err
		}
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if strings.Contains(string(b), text) {
			found = append(found, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestASecretReachesTheJobAndNothingElse(t *testing.T) {
	t.Parallel()
	bin := program(t)
	dir := t.TempDir()
	l := &lasting{t: t, bin: bin, state: filepath.Join(dir, "state"), args: []string{"--speed", "120", "--seed", "3"}}
	t.Cleanup(func() {
		l.kill()
		procs := &fake.Processes{Dir: filepath.Join(l.state, "machines")}
		ids, _ := os.ReadDir(procs.Dir)
		for _, id := range ids {
			procs.Kill(id.Name())
		}
	})
	const secret = "correct-horse-battery-staple"
	vault := filepath.Join(l.state, "secrets")
	if err := errors.Join(os.MkdirAll(vault, 0o700), os.WriteFile(filepath.Join(vault, "token"), []byte(secret+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	l.begin()
	file := func(name, secret, end string) string {
		path := filepath.Join(dir, name+".yaml")
		text := fmt.Sprintf("name: %s\nsecrets: {TOKEN: %q}\nsetup: echo \"setting up with $TOKEN\"\nrun: |\n  echo \"the token is $TOKEN\"\n  sleep 3\n  printf %%s \"$TOKEN\" | sha256sum >\"$LOWTIDE_CKPT_DIR/RESULT\"\n  %s\nwork: 10m\nautonomy: act\n", name, secret, end)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	l.call("submit", file("good", "file:token", "true"))
	l.call("submit", file("bad", "file:token", "echo \"last words: $TOKEN\"; exit 3"))
	l.call("submit", file("none", "file:nobody", "true"))
	for _, name := range []string{"good", "bad", "none"} {
		l.until("the end of "+name, func() bool { return l.workload(name).Phase.Final() })
	}
	sum := sha256.Sum256([]byte(secret))
	if w := l.workload("good"); w.Phase != fleet.Finished || !strings.HasPrefix(w.Result, hex.EncodeToString(sum[:])) {
		t.Errorf("good: %s (%s) with %q, want the hash of its secret", w.Phase, w.Why, w.Result)
	}
	said := l.call("events")
	for _, want := range []string{"last words: ***", "there is no file nobody"} {
		if !strings.Contains(said, want) {
			t.Errorf("events do not say %q", want)
		}
	}
	stars := strings.Repeat("*", len(secret))
	for _, name := range []string{"good", "bad"} {
		if log := l.call("logs", name); !strings.Contains(log, "setting up with "+stars) || !strings.Contains(log, "the token is "+stars) {
			t.Errorf("logs %s: %q", name, log)
		}
	}
	all := said + l.call("status", "--output", "json") + l.call("status") + l.call("logs", "good") + l.call("logs", "bad") + l.call("plan", "--explain")
	if strings.Contains(all, secret) {
		t.Error("a command tells the secret")
	}
	for _, found := range holds(t, dir, secret) {
		// What the job itself wrote on its own machine is its own: its log there.
		if !strings.HasPrefix(found, vault) && filepath.Base(found) != "log" {
			t.Errorf("%s holds the secret", found)
		}
	}
}
