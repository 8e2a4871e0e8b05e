package main_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
)

func TestPanicSavesAndEndsAllOfOursAndBuysNothingUntilItIsLifted(t *testing.T) {
	t.Parallel()
	bin := program(t)
	cloud := openElsewhere(t, bin, "--speed", "120", "--foreign", "3")
	dir := t.TempDir()
	l := &lasting{t: t, bin: bin, state: filepath.Join(dir, "state"), args: []string{"--cloud", cloud.URL()}}
	l.begin()
	t.Cleanup(func() { l.kill() })
	jobs := []work{
		{name: "first", steps: 300, seed: 1, stepTime: 20 * time.Millisecond, saveEvery: 100, speed: 120, trace: filepath.Join(dir, "first")},
		{name: "second", steps: 5000, seed: 2, stepTime: 20 * time.Millisecond, saveEvery: 100, speed: 120, trace: filepath.Join(dir, "second")},
	}
	for _, w := range jobs {
		l.call("submit", w.file(t, bin))
	}
	l.until("both runs", func() bool {
		f := l.fleet()
		return f.Workloads["first"].Step > 20 && f.Workloads["second"].Step > 20
	})
	if out := l.call("panic"); !strings.Contains(out, "no machine of ours runs") {
		t.Errorf("panic: %s", out)
	}
	if n := len(cloud.bill().Running()); n > 0 {
		t.Errorf("%d machines run after the panic", n)
	}
	for _, w := range jobs {
		runs := w.runs(t)
		if made, saved := runs[len(runs)-1].to, l.durable(w.name); saved.Step != made {
			t.Errorf("%s made %d steps before the panic, and %d are durable", w.name, made, saved.Step)
		}
	}
	from := cloud.writes()
	l.call("submit", work{name: "third", steps: 10, stepTime: time.Millisecond, speed: 120}.file(t, bin))
	time.Sleep(5 * time.Second) // ten minutes to the market
	l.kill()
	l.begin() // nor does a restart forget it
	time.Sleep(3 * time.Second)
	if n := cloud.writes(); n != from {
		t.Errorf("%d writing calls after the panic, want none", n-from)
	}
	if line := l.refused(1, "resume", "--state", l.state, "nobody"); !strings.Contains(line, "there is no workload") {
		t.Errorf("resume of nobody: %q", line)
	}

	l.call("resume")
	l.call("resume", "first")
	l.until("the first job's end", func() bool { return l.workload("first").Phase.Final() })
	if w := l.workload("first"); w.Phase != fleet.Finished || w.Result != jobs[0].uninterrupted() {
		t.Errorf("got %s with %s, want finished with %s", w.Phase, w.Result, jobs[0].uninterrupted())
	}
	if w := l.workload("second"); w.Phase != fleet.Paused {
		t.Errorf("the second job is %s, want it paused still", w.Phase)
	}
	cloud.untouched(0)
}
