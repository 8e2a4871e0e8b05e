package infra_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lowtide/functions/intake"
)

func TestEveryExampleIsAWorkloadAndItsHelperIsTheSame(t *testing.T) {
	files, err := filepath.Glob("examples/*/workload.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	var helper []byte
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		a, err := intake.Parse(file, b, time.Now())
		if err != nil {
			t.Error(err)
		}
		dir := filepath.Join(filepath.Dir(file), a.Workdir)
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("%s: workdir: %v", file, err)
		}
		own, err := os.ReadFile(filepath.Join(dir, "lowtide.py"))
		if err != nil {
			continue // not in Python
		}
		if helper != nil && !bytes.Equal(own, helper) {
			t.Errorf("%s has another lowtide.py", dir)
		}
		helper = own
	}
	python := python3(t)
	scripts, err := filepath.Glob("examples/*/src/*.py")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(python, append([]string{"-c", "import ast, sys\nfor f in sys.argv[1:]: ast.parse(open(f).read(), f)"}, scripts...)...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// counting is a job on the helper: it counts, and tells the number that it began with.
const counting = `
import os, sys, time, lowtide
step = int(open(os.path.join(lowtide.restored(), "n")).read()) if lowtide.restored() else 0
print("from", step, flush=True)
lowtide.start()
while step < 1000000:
    time.sleep(0.01); step += 1; lowtide.progress(step, 1000000)
    if lowtide.asked():
        path = os.path.join(lowtide.directory(), "step-%d" % step); os.makedirs(path)
        open(os.path.join(path, "n"), "w").write(str(step)); lowtide.ready(path, step); sys.exit(0)
`

func TestTheHelperOfTheExamplesKeepsWhatAJobDoes(t *testing.T) {
	python := python3(t)
	restored, last := "", int64(0)
	for _, way := range []string{"signal", "file"} {
		dir := t.TempDir()
		deadline := filepath.Join(t.TempDir(), "deadline")
		cmd := exec.Command(python, "-c", counting)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join("examples", "pytorch", "src"), "PYTHONDONTWRITEBYTECODE=1", "LOWTIDE_CKPT_DIR="+dir, "LOWTIDE_DEADLINE="+deadline, "LOWTIDE_RESTORED="+restored)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		marker := func(name string, v any) bool {
			b, err := os.ReadFile(filepath.Join(dir, name))
			return err == nil && json.Unmarshal(b, v) == nil
		}
		var listening struct{ PID int }
		var progress struct{ Step, Of int64 }
		until(t, 20*time.Second, "it counts", func() bool {
			return marker("LISTENING", &listening) && marker("PROGRESS", &progress) && progress.Step > last+2
		})
		if listening.PID != cmd.Process.Pid || progress.Of != 1_000_000 {
			t.Errorf("LISTENING %+v, PROGRESS %+v", listening, progress)
		}
		var err error
		if way == "signal" {
			err = cmd.Process.Signal(syscall.SIGUSR1)
		} else {
			err = os.WriteFile(deadline, []byte("1\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%s: %v\n%s", way, err, out.String())
		}
		var ready struct {
			Path string
			Step int64
		}
		if !marker("READY", &ready) || ready.Step < progress.Step || !filepath.IsAbs(ready.Path) {
			t.Errorf("%s: READY %+v after step %d", way, ready, progress.Step)
		}
		if want := "from 0"; last > 0 && strings.HasPrefix(out.String(), want) {
			t.Errorf("%s: it began anew: %s", way, out.String())
		}
		restored, last = ready.Path, ready.Step
	}
}

func python3(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("the helper is Python: ", err)
	}
	return path
}
