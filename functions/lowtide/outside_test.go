package main_test

import (
	"bufio"
	"errors"
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

// elsewhere is a fake cloud in a process of its own. Its machines are processes that outlive it and the daemon.
type elsewhere struct {
	*fake.Client
	t        *testing.T
	bin, dir string
	args     []string
	proc     *exec.Cmd
}

// openElsewhere starts such a cloud; args are flags of lowtide fakecloud.
func openElsewhere(t *testing.T, bin string, args ...string) *elsewhere {
	t.Helper()
	c := &elsewhere{t: t, bin: bin, dir: filepath.Join(t.TempDir(), "cloud"), args: args}
	t.Cleanup(func() {
		c.kill()
		procs := &fake.Processes{Dir: filepath.Join(c.dir, "machines")}
		ids, _ := os.ReadDir(procs.Dir)
		for _, id := range ids {
			procs.Kill(id.Name())
		}
	})
	c.begin()
	return c
}

// begin starts the cloud, again if it was killed.
func (c *elsewhere) begin() {
	c.t.Helper()
	c.proc = exec.Command(c.bin, append([]string{"fakecloud", "--dir", c.dir}, c.args...)...)
	c.proc.Stderr = os.Stderr
	out, err := c.proc.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.proc.Start(); err != nil {
		c.t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		c.t.Fatalf("the cloud tells no address: %v", err)
	}
	if c.Client, err = fake.Dial(c.t.Context(), strings.TrimSpace(url)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *elsewhere) kill() {
	_ = c.proc.Process.Kill()
	_ = c.proc.Wait()
}

// bill is what the cloud says of all machines that were ever sold to us.
func (c *elsewhere) bill() fake.Bill {
	c.t.Helper()
	b, err := c.Bill(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return b.Ours()
}

// agents are the process ids of our machines that run.
func (c *elsewhere) agents() string {
	var pids []string
	for _, r := range c.bill().Running() {
		b, _ := os.ReadFile(filepath.Join(c.dir, "machines", r.ID, "agent.pid"))
		pids = append(pids, r.ID+" "+string(b))
	}
	return strings.Join(pids, ", ")
}

// work is a training job, as a workload file asks for it.
type work struct {
	name      string
	steps     int64
	seed      uint64
	stepTime  time.Duration // on the wall
	saveEvery int64         // steps
	speed     float64       // of the market
	trace     string        // file that names each step made; "": none
}

// file writes the workload file.
func (w work) file(t *testing.T, bin string, more ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), w.name+".yaml")
	text := fmt.Sprintf("name: %s\nrun: [%q, trainer, --steps, \"%d\", --seed, \"%d\", --step-time, %s, --save-every, \"%d\", --trace, %q]\nwork: %s\nsteps: %d\nautonomy: act\n%s\n",
		w.name, bin, w.steps, w.seed, w.stepTime, w.saveEvery, w.trace, time.Duration(float64(w.steps)*float64(w.stepTime)*w.speed), w.steps, strings.Join(more, "\n"))
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// uninterrupted is what the job makes when nothing stops it.
func (w work) uninterrupted() string {
	m := trainer.New(w.seed, w.steps)
	for !m.Done() {
		m.Step()
	}
	return m.Sum()
}

// refused runs a command that must fail with a status, and returns its one line.
func (l *lasting) refused(status int, args ...string) string {
	l.t.Helper()
	cmd := exec.CommandContext(l.t.Context(), l.bin, args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != status || strings.Count(errs.String(), "\n") != 1 {
		l.t.Errorf("lowtide %s: got %v and %q, want status %d and one line", strings.Join(args, " "), err, errs.String(), status)
	}
	return errs.String()
}

func TestMachinesOfACloudElsewhereLiveOnWhileTheDaemonAndTheCloudAreDead(t *testing.T) {
	t.Parallel()
	bin := program(t)
	cloud := openElsewhere(t, bin, "--speed", "120", "--foreign", "3")
	l := &lasting{t: t, bin: bin, state: filepath.Join(t.TempDir(), "state"), args: []string{"--cloud", cloud.URL()}}
	l.begin()
	t.Cleanup(func() { l.kill() })
	if line := l.refused(2, "run", "--state", l.state); !strings.Contains(line, "another lowtide runs on it") {
		t.Errorf("a second daemon on the directory: %q", line)
	}
	job := work{name: "mine", steps: 240, seed: 5, stepTime: 40 * time.Millisecond, saveEvery: 20, speed: 120}
	l.call("submit", job.file(t, bin, "deadline: 24h"))
	l.until("a checkpoint", func() bool { return l.workload("mine").Saved.Step >= 20 })
	before := cloud.agents()
	follow := exec.CommandContext(t.Context(), bin, "logs", "-f", "mine", "--state", l.state)
	followed, err := os.Create(filepath.Join(t.TempDir(), "followed"))
	if err != nil {
		t.Fatal(err)
	}
	defer followed.Close()
	follow.Stdout, follow.Stderr = followed, followed
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	read := func() string { b, _ := os.ReadFile(followed.Name()); return string(b) }
	l.until("the first log", func() bool { return strings.Contains(read(), "== local-m") })

	l.kill()
	other := openElsewhere(t, bin)
	if line := l.refused(2, "run", "--state", l.state, "--cloud", other.URL()); !strings.Contains(line, "another one") {
		t.Errorf("another cloud than the one bought at: %q", line)
	}
	cloud.kill()
	l.refused(3, "run", "--state", l.state)
	cloud.begin()
	if after := cloud.agents(); after != before || after == "" {
		t.Errorf("machines %q, were %q: they must have lived on", after, before)
	}
	l.args = nil // the state knows its cloud
	l.begin()

	l.until("the end", func() bool { return l.workload("mine").Phase.Final() })
	if w := l.workload("mine"); w.Phase != fleet.Finished || w.Result != job.uninterrupted() || w.Moves > 0 && len(cloud.bill()) == 1 {
		t.Errorf("got %s with %s, want finished with %s", w.Phase, w.Result, job.uninterrupted())
	}
	l.until("the last machine's end", func() bool { return len(cloud.bill().Running()) == 0 })
	if err := follow.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
	for _, out := range []string{read(), l.call("logs", "mine")} { // its machines are gone, and it printed its result last
		if !strings.Contains(out, "== local-m") || !strings.Contains(out, job.uninterrupted()) {
			t.Errorf("logs: got %q, want machine and result", out)
		}
	}
	if bill := cloud.bill(); len(bill.Twice()) > 0 || len(bill) == 0 {
		t.Errorf("%d machines, bought twice: %v", len(bill), bill.Twice())
	}
}
