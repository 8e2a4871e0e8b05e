package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/functions/lowtide/trainer"
	"lowtide/shared/fleet"
	"lowtide/shared/provider/fake"
)

// lasting is a daemon on a state directory, and the commands that talk to it.
type lasting struct {
	t          *testing.T
	bin, state string
	args       []string // of lowtide run, besides --state
	proc       *exec.Cmd
}

// begin starts the daemon, again if it was killed, and waits until it is ready.
func (l *lasting) begin() {
	l.t.Helper()
	from := l.start()
	l.until("ready", func() bool {
		b, err := os.ReadFile(l.log())
		return err == nil && strings.Contains(string(b[from:]), "ready")
	})
}

func (l *lasting) log() string { return filepath.Join(filepath.Dir(l.state), "log") }

// start starts the daemon and says where in its log it begins.
func (l *lasting) start() (from int64) {
	l.t.Helper()
	log, err := os.OpenFile(l.log(), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	defer log.Close()
	if from, err = log.Seek(0, 2); err != nil {
		l.t.Fatal(err)
	}
	l.proc = exec.Command(l.bin, append([]string{"run", "--state", l.state}, l.args...)...)
	l.proc.Stdout, l.proc.Stderr = log, log
	if err := l.proc.Start(); err != nil {
		l.t.Fatal(err)
	}
	return from
}

// kill ends the daemon as kill -9 does.
func (l *lasting) kill() {
	_ = l.proc.Process.Kill()
	_ = l.proc.Wait()
}

// clean ends the daemon and its machines, which outlive it.
func (l *lasting) clean() {
	l.kill()
	procs := &fake.Processes{Dir: filepath.Join(l.state, "machines")}
	ids, _ := os.ReadDir(procs.Dir)
	for _, id := range ids {
		procs.Kill(id.Name())
	}
}

// until asks another process until it says yes; nothing tells of that.
func (l *lasting) until(what string, ok func() bool) {
	l.t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b, _ := os.ReadFile(l.log())
			status, err := exec.CommandContext(l.t.Context(), l.bin, "status", "--state", l.state).CombinedOutput()
			said, _ := exec.CommandContext(l.t.Context(), l.bin, "events", "--state", l.state).Output()
			l.t.Fatalf("waited 90 s for %s; the daemon said:\n…%s\nstatus (%v):\n%s\nlast events:\n…%s", what, last(b, 1000), err, status, last(said, 20_000))
		}
	}
}

// last is the end of a text.
func last(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// call runs a command about the daemon to its end.
func (l *lasting) call(args ...string) string {
	l.t.Helper()
	return l.bare(append(args, "--state", l.state)...)
}

// bare runs a command to its end.
func (l *lasting) bare(args ...string) string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 60*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, l.bin, args...).CombinedOutput()
	if err != nil {
		b, _ := os.ReadFile(l.log())
		l.t.Fatalf("lowtide %s: %v\n%s\nthe daemon said:\n…%s", strings.Join(args, " "), err, out, last(b, 1000))
	}
	return string(out)
}

func (l *lasting) fleet() (f fleet.Fleet) {
	l.t.Helper()
	if err := json.Unmarshal([]byte(l.call("status", "--output", "json")), &f); err != nil {
		l.t.Fatal(err)
	}
	return f
}

func (l *lasting) workload(name string) *fleet.Workload {
	l.t.Helper()
	return l.fleet().Workloads[name]
}

func TestALastingLowtideGoesOnAfterKillNineAndItsCommandsWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := &lasting{t: t, bin: program(t), state: filepath.Join(dir, "state"), args: []string{"--speed", "240"}}
	t.Cleanup(l.clean)
	const steps, seed = 320, 5
	file := filepath.Join(dir, "mine.yaml")
	job := fmt.Sprintf("name: mine\nrun: [%q, trainer, --steps, \"%d\", --seed, \"%d\", --step-time, 50ms, --save-every, \"20\"]\nwork: 64m\nsteps: %d\ndeadline: 24h\nautonomy: act\n", l.bin, steps, seed, steps)
	if err := os.WriteFile(file, []byte(job), 0o600); err != nil {
		t.Fatal(err)
	}
	l.begin()
	if out := l.call("submit", file); !strings.Contains(out, "accepted") {
		t.Errorf("submit: %s", out)
	}
	for i := range int64(3) { // each time further on, at a moment that nobody chose
		l.until("the next checkpoint", func() bool { return l.workload("mine").Saved.Step >= 20+40*i })
		l.kill()
		l.begin()
	}
	if out := l.call("plan", "--explain"); !strings.Contains(out, "mine") {
		t.Errorf("plan --explain: %s", out)
	}
	l.call("pause", "mine")
	l.until("the pause", func() bool { w := l.workload("mine"); return w.Phase == fleet.Paused && w.On == "" || w.Phase.Final() })
	if w := l.workload("mine"); w.Phase == fleet.Paused {
		l.call("resume", "mine")
	}
	l.until("the end", func() bool { return l.workload("mine").Phase.Final() })
	w := l.workload("mine")
	m := trainer.New(seed, steps)
	for !m.Done() {
		m.Step()
	}
	if w.Phase != fleet.Finished || w.Result != m.Sum() {
		t.Errorf("got %s with %s, want finished with %s", w.Phase, w.Result, m.Sum())
	}
	if out := l.call("events"); !strings.Contains(out, "lowtide.workload.finished") {
		t.Error("events: the end is not among them")
	}
	l.call("logs", "mine")
	if out := l.call("checkpoints", "ls"); !strings.Contains(out, "mine") {
		t.Errorf("checkpoints ls: %s", out)
	}
	if out := l.call("checkpoints", "prune", "mine"); !strings.Contains(out, "withdrawn") {
		t.Errorf("checkpoints prune: %s", out)
	}
	if out := l.bare("checkpoints", "verify", "mine", "--bucket", "file://"+filepath.Join(l.state, "bucket"), "--key", filepath.Join(l.state, "checkpoint-key")); !strings.Contains(out, "whole") {
		t.Errorf("checkpoints verify: %s", out)
	}
	l.until("the last machine's end", func() bool { return strings.Count(l.call("status"), "local-m") == 0 })
	l.kill()
	cloud, err := fake.Open(fake.Config{Dir: filepath.Join(l.state, "cloud")})
	if err != nil {
		t.Fatal(err)
	}
	defer cloud.Close()
	bill := cloud.Bill()
	if n := len(bill.Running()); n > 0 || len(bill.Twice()) > 0 || len(bill) == 0 {
		t.Errorf("of %d machines %d still run, twice bought: %v", len(bill), n, bill.Twice())
	}
	t.Logf("%d machines, %d moves, %d steps made again", len(bill), w.Moves, w.Lost)
}

func TestAStoppedLowtideFindsItsMachineAgainAndPeopleMayChangeTheirMind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := &lasting{t: t, bin: program(t), state: filepath.Join(dir, "state"), args: []string{"--speed", "240"}}
	t.Cleanup(l.clean)
	file := filepath.Join(dir, "mine.yaml")
	job := fmt.Sprintf("name: mine\nrun: [%q, trainer, --steps, \"2000\", --seed, \"3\", --step-time, 50ms, --save-every, \"20\"]\nwork: 400m\nsteps: 2000\ndeadline: 48h\n", l.bin)
	if err := os.WriteFile(file, []byte(job), 0o600); err != nil {
		t.Fatal(err)
	}
	l.begin()
	if out := l.call("submit", file); !strings.Contains(out, "autonomy is observe: nothing is bought") {
		t.Errorf("submit: %s", out)
	}
	if out := l.call("submit", file); !strings.Contains(out, "nothing is changed") {
		t.Errorf("submit again: %s", out)
	}
	l.until("a proposal", func() bool { return strings.Contains(l.call("status"), "not bought: only observed") })
	if out := l.call("plan", "--explain"); !strings.Contains(out, "would buy") || strings.Contains(out, "it runs") {
		t.Errorf("plan of what is only observed: %s", out)
	}
	if line := l.refused(1, "change", "mine", "--deadline", "30m", "--state", l.state); !strings.Contains(line, "after the deadline") {
		t.Errorf("a deadline that cannot be kept: %q", line)
	}
	if out := l.call("change", "mine", "--autonomy", "act"); !strings.Contains(out, "machines are bought as planned") {
		t.Errorf("change: %s", out)
	}
	l.until("the first checkpoint", func() bool { return l.workload("mine").Saved.Step > 0 })
	on, step := l.workload("mine").On, l.workload("mine").Saved.Step

	if err := l.proc.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := l.proc.Wait(); err != nil {
		t.Errorf("a stopped daemon: %v", err)
	}
	b, err := os.ReadFile(l.log())
	if err != nil || !strings.Contains(string(b), "1 machine goes on and bills") {
		t.Errorf("its last words: %s (%v)", last(b, 400), err)
	}
	l.begin()
	l.until("further on", func() bool { return l.workload("mine").Saved.Step > step+100 })
	if now := l.workload("mine"); now.On != on || now.Next != "" || now.Moves > 0 {
		t.Errorf("it ran on %s and now on %q, next %q, after %d moves: its machine was there all the time", on, now.On, now.Next, now.Moves)
	}
	l.call("stop", "mine")
	l.until("the stop", func() bool { w := l.workload("mine"); return w.Phase == fleet.Withdrawn && w.On == "" })
	if line := l.refused(1, "pause", "mine", "--state", l.state); !strings.Contains(line, "is withdrawn already") {
		t.Errorf("pause after the end: %q", line)
	}
	l.until("the last machine's end", func() bool { return strings.Count(l.call("status"), "local-m") == 0 })
}
