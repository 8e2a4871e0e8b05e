package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/agent/holder"
	"lowtide/functions/lowtide/trainer"
	"lowtide/shared/checkpoint"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
)

// The test binary is also the holder and the trainer: it starts itself.
func TestMain(m *testing.M) {
	// The race detector has each process wait a second at its end, for reports of others; ours are many and small.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	if len(os.Args) > 1 && (os.Args[1] == "holder" || os.Args[1] == "trainer" || os.Args[1] == "bench") {
		root := &cobra.Command{SilenceUsage: true}
		root.AddCommand(holder.Command(), trainer.Command(), fakeBench())
		if root.Execute() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// real is a machine with real processes, a real disk and a real store, on wall time.
type real struct {
	t     *testing.T
	dir   string
	store *checkpoint.Store
	cfg   agent.Config
	watch agent.Watch
	off   atomic.Bool
	log   func(workload string, epoch uint64, last bool) error // what the agent's Log does; nil: nothing
	ask   func() (map[string]string, error)                    // for secrets
	a     *agent.Agent
	said  []events.Event
	early int // of them, what the last order was answered with at once
}

func openStore(t *testing.T) *checkpoint.Store {
	t.Helper()
	s, err := checkpoint.Open(context.Background(), "file://"+t.TempDir(), []byte("0123456789abcdef"), checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newReal(t *testing.T, name string, store *checkpoint.Store) *real {
	r := &real{t: t, dir: t.TempDir(), store: store, cfg: agent.Config{Machine: name, Fleet: "f", Serialise: 5 * time.Second}}
	r.boot()
	t.Cleanup(func() {
		r.a.Close()
		for _, name := range []string{"run", "setup"} {
			s, err := holder.Find(filepath.Join(r.dir, name))
			if err == nil && s.Phase != holder.None {
				err = s.Kill(context.Background())
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

func (r *real) Off(context.Context, string) error { r.off.Store(true); return nil }

// boot starts the agent's process anew.
func (r *real) boot() {
	r.t.Helper()
	if r.a != nil {
		r.a.Close()
	}
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	r.a, err = agent.New(r.cfg, agent.Deps{
		Runner: agent.NewProcesses(r.dir, fn.Clock{}, os.Environ()), Saver: agent.Checkpoints{Store: r.store},
		Bench: agent.Proof{Command: []string{self, "bench"}}, Power: r, Disk: agent.Dir(r.dir), Watch: r.watch,
		Secrets: func(context.Context, string) (map[string]string, error) { return r.ask() },
		Code:    agent.Checkpoints{Store: r.store}.Code,
		Log: func(_ context.Context, workload string, epoch uint64, last bool) error {
			if r.log == nil {
				return nil
			}
			return r.log(workload, epoch, last)
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// until ticks until a fact of the type was said that pleases; at most 20 s.
func until[F events.Fact](r *real, pleases func(F) bool) F {
	r.t.Helper()
	from := len(r.said) - r.early
	r.early = 0
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // wall time: real processes
		out, err := r.a.Tick(context.Background(), time.Now())
		if err != nil {
			r.t.Fatal(err)
		}
		r.said = append(r.said, out...)
		for _, e := range r.said[from:] {
			if f, ok := e.Data.(F); ok && pleases(f) {
				return f
			}
		}
	}
	var zero F
	log, _ := os.ReadFile(filepath.Join(r.dir, "run", "log"))
	r.t.Fatalf("%s was not said in 20 s; log:\n%s\nsaid %+v", zero.Kind(), log, r.said[from:])
	return zero
}

func (r *real) order(o fleet.Order) {
	r.t.Helper()
	out, err := r.a.Order(context.Background(), events.OrderGiven{Machine: r.cfg.Machine, Order: o})
	if err != nil {
		r.t.Fatal(err)
	}
	r.said, r.early = append(r.said, out...), len(out)
}

const realSteps = 3000

func train(t *testing.T, number, epoch uint64, from string) fleet.Order {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return fleet.Order{Number: number, Epoch: epoch, Start: &fleet.Start{Workload: "w", From: from, Run: []string{
		self, "trainer", "--steps", fmt.Sprint(realSteps), "--seed", "7", "--step-time", "1ms", "--save-every", "200",
	}}}
}

func some[F events.Fact](F) bool { return true }

func TestRealTrainerMovesBetweenMachinesAndEndsEqual(t *testing.T) {
	store := openStore(t)
	one := newReal(t, "m1", store)
	until(one, some[events.InstanceReady])
	one.order(train(t, 1, 1, ""))
	until(one, func(s events.CheckpointSaved) bool { return s.Manifest.Step >= 200 })
	one.boot() // the agent dies; the job goes on
	h := until(one, some[events.MachineHeard])
	if h.Run.Phase != fleet.Running || h.Saved.ID == "" {
		t.Errorf("after a restart the agent says %+v, want the run and its checkpoint found", h)
	}
	stop := train(t, 2, 1, "")
	stop.Save, stop.Stop = &fleet.Save{ID: "move", By: time.Now().Add(time.Minute)}, true
	one.order(stop)
	stopped := until(one, some[events.WorkloadStopped])
	if stopped.Saved.Step != stopped.Step || stopped.Step >= realSteps {
		t.Fatalf("stopped at step %d with %+v, want it durable and before the end", stopped.Step, stopped.Saved)
	}

	two := newReal(t, "m2", store)
	until(two, some[events.InstanceReady])
	two.order(train(t, 1, 2, stopped.Saved.ID))
	if s := until(two, some[events.WorkloadStarted]); s.Step != stopped.Step {
		t.Errorf("resumed at step %d, want %d", s.Step, stopped.Step)
	}
	fin := until(two, some[events.WorkloadFinished])
	whole := trainer.New(7, realSteps)
	for !whole.Done() {
		whole.Step()
	}
	if fin.Result != whole.Sum() {
		t.Errorf("weights %s, want those of an uninterrupted run, %s", fin.Result, whole.Sum())
	}
	if fin.Saved.Step != realSteps || fin.Saved.Epoch != 2 {
		t.Errorf("saved %+v, want the end of epoch 2", fin.Saved)
	}
	t.Logf("moved at step %d of %d, save took %s", stopped.Step, realSteps, stopped.Saved.Took)
}

func TestTheEndOfTheLogIsKeptBeforeTheEndOfTheRunIsTold(t *testing.T) {
	r := newReal(t, "m1", openStore(t))
	var kept atomic.Bool
	var early, late atomic.Int32
	r.log = func(workload string, epoch uint64, last bool) error {
		if workload != "w" || epoch != 1 {
			t.Errorf("the log of %s, epoch %d is kept, want w, epoch 1", workload, epoch)
		}
		if !last {
			early.Add(1)
			return errors.New("the store is away for a while")
		}
		late.Add(1)
		time.Sleep(300 * time.Millisecond) // a slow store
		kept.Store(true)
		return nil
	}
	until(r, some[events.InstanceReady])
	r.order(fleet.Order{Number: 1, Epoch: 1, Start: &fleet.Start{Workload: "w", Run: []string{"sh", "-c", "sleep 0.5; echo bye"}}})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) { // wall time: real processes
		said, _ := r.a.Tick(context.Background(), time.Now()) // the error is the store's
		over := false
		for _, e := range said {
			_, over = e.Data.(events.WorkloadFinished)
			if over {
				break
			}
		}
		if over {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the run does not end")
		}
	}
	if !kept.Load() || early.Load() == 0 || late.Load() != 1 {
		t.Errorf("kept %d times while it ran and %d times at its end (done: %v), want some, and one before the end is told", early.Load(), late.Load(), kept.Load())
	}
}

func TestRealNoticeSavesBeforeAnyOrder(t *testing.T) {
	var notice atomic.Pointer[string]
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n := notice.Load(); n != nil {
			fmt.Fprint(w, *n)
			return
		}
		http.NotFound(w, nil)
	}))
	defer endpoint.Close()
	r := newReal(t, "m1", openStore(t))
	r.watch, r.cfg.Poll = agent.Endpoint{URL: endpoint.URL}, 50*time.Millisecond
	r.boot()
	until(r, some[events.InstanceReady])
	r.order(train(t, 1, 1, ""))
	until(r, some[events.CheckpointSaved])
	text := fmt.Sprintf(`{"action":"terminate","time":%q}`, time.Now().Add(12*time.Second).UTC().Format(time.RFC3339))
	notice.Store(&text)
	at := time.Now()
	until(r, func(i events.InstanceInterrupted) bool { return i.Noticed == "metadata" })
	s := until(r, some[events.WorkloadStopped])
	if s.Saved.Step != s.Step || s.Step%200 == 0 || s.Step >= realSteps {
		t.Errorf("stopped %+v, want a step between two periodic saves durable", s)
	}
	t.Logf("notice to durable and stopped in %s", time.Since(at).Round(time.Millisecond))
}

func TestAgentThatLostItsMemoryLeavesNoSecondRun(t *testing.T) {
	r := newReal(t, "m1", openStore(t))
	sleep := func(number, epoch uint64) fleet.Order {
		return fleet.Order{Number: number, Epoch: epoch, Start: &fleet.Start{Workload: "w", Run: []string{"sleep", "1000"}}}
	}
	find := func() holder.State {
		t.Helper()
		s, err := holder.Find(filepath.Join(r.dir, "run"))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	forget := func() {
		t.Helper()
		if err := os.Remove(filepath.Join(r.dir, "agent.json")); err != nil {
			t.Fatal(err)
		}
		r.boot()
		until(r, some[events.InstanceReady])
	}
	until(r, some[events.InstanceReady])
	r.order(sleep(1, 1))
	until(r, some[events.WorkloadStarted])
	first := find()
	forget()
	r.order(sleep(1, 1)) // the same order: the run is found, not started again
	if h, ok := r.said[len(r.said)-1].Data.(events.MachineHeard); !ok || h.Run.Phase != fleet.Running {
		t.Errorf("answered %+v, want the run found at once", r.said[len(r.said)-1].Data)
	}
	if s := find(); s.Workload != first.Workload || s.Phase != holder.Running {
		t.Errorf("workload %+v is %s, want %+v running", s.Workload, s.Phase, first.Workload)
	}
	forget()
	r.order(sleep(2, 2))
	until(r, func(h events.MachineHeard) bool { return h.Run.Phase == fleet.Running && h.Run.Epoch == 2 })
	if s := find(); s.Epoch != 2 || s.Phase != holder.Running {
		t.Errorf("epoch %d is %s, want epoch 2 running", s.Epoch, s.Phase)
	}
	if err := first.Signal(0); !errors.Is(err, holder.ErrNotRunning) {
		t.Errorf("the process of epoch 1 still lives beside epoch 2 (%v)", err)
	}
}

func TestRealFailureTellsTheLog(t *testing.T) {
	r := newReal(t, "m1", openStore(t))
	until(r, some[events.InstanceReady])
	r.order(fleet.Order{Number: 1, Epoch: 1, Start: &fleet.Start{
		Workload: "w", Env: map[string]string{"MY_TOKEN": "hunter2"}, Run: []string{"sh", "-c", "echo $MY_TOKEN $LOWTIDE_EPOCH; exit 9"},
	}})
	if f := until(r, some[events.WorkloadFailed]); f.Code != 9 || f.Why != "*** 1" {
		t.Errorf("failed with %d and %q, want 9 and the masked log", f.Code, f.Why)
	}
	r.order(fleet.Order{Number: 2, Epoch: 2, Start: &fleet.Start{Workload: "w", Run: []string{"sh", "-c", "echo $LOWTIDE_EPOCH; exit 9"}}})
	if f := until(r, some[events.WorkloadFailed]); f.Why != "2" {
		t.Errorf("failed with %q, want what the second run printed alone", f.Why)
	}
	r.order(fleet.Order{Number: 3, Epoch: 3, Start: &fleet.Start{Workload: "w", Run: []string{"/no/such/program"}}})
	if f := until(r, some[events.WorkloadFailed]); !strings.Contains(f.Why, "/no/such/program") {
		t.Errorf("failed with %q, want the program named", f.Why)
	}
}

func TestAMarkThatIsWrongIsTold(t *testing.T) {
	for mark, says := range map[string]string{
		`{}`:                        "READY names no path",
		`{"path":"gone","step":20}`: "READY names gone, which is not there",
		`step 20`:                   "READY cannot be read",
		`{"path":".","step":-5}`:    "READY names a step of 0 or less",
	} {
		t.Run(mark, func(t *testing.T) {
			t.Parallel() // each waits ten seconds: a mark may be wrong for a moment
			r := newReal(t, "m1", openStore(t))
			until(r, some[events.InstanceReady])
			r.order(fleet.Order{Number: 1, Epoch: 1, Start: &fleet.Start{
				Workload: "w", Run: []string{"sh", "-c", "printf '%s' '" + mark + "' > $LOWTIDE_CKPT_DIR/READY; sleep 60"},
			}})
			if f := until(r, some[events.CheckpointFailed]); !strings.Contains(f.Why, says) || f.Workload != "w" || f.Epoch != 1 {
				t.Errorf("told %+v, want %q", f, says)
			}
		})
	}
}

func TestAMarkThatBlocksDoesNotStopTheAgent(t *testing.T) {
	for mark, says := range map[string]string{
		"READY": "READY cannot be read", "PROGRESS": "PROGRESS cannot be read", "LISTENING": "LISTENING cannot be read", "RESULT": "RESULT cannot be read",
	} {
		t.Run(mark, func(t *testing.T) {
			t.Parallel() // each waits ten seconds: a mark may be wrong for a moment
			r := newReal(t, "m1", openStore(t))
			until(r, some[events.InstanceReady])
			o := fleet.Order{Number: 1, Epoch: 1, Start: &fleet.Start{
				Workload: "w", Run: []string{"sh", "-c", "trap 'sleep 1; exit' TERM; mkfifo $LOWTIDE_CKPT_DIR/" + mark + "; while :; do sleep 0.2; done"},
			}}
			r.order(o)
			if f := until(r, some[events.CheckpointFailed]); !strings.Contains(f.Why, says) {
				t.Errorf("told %+v, want %q", f, says)
			}
			o.Number, o.Stop = 2, true
			r.order(o)
			until(r, func(h events.MachineHeard) bool { return h.Run.Phase == fleet.RunStopped })
		})
	}
}

func TestACheckpointThatIsTheWholeDiskStopsNobody(t *testing.T) {
	r := newReal(t, "m1", openStore(t))
	until(r, some[events.InstanceReady])
	o := fleet.Order{Number: 1, Epoch: 1, Start: &fleet.Start{
		Workload: "w", Run: []string{"sh", "-c", `printf '{"path":"/","step":5}' > $LOWTIDE_CKPT_DIR/READY; sleep 60`},
	}}
	r.order(o)
	until(r, some[events.WorkloadStarted])
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // wall time: a real disk
		began := time.Now()
		if _, err := r.a.Tick(t.Context(), began); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Fatalf("a look at the machine took %s", took)
		}
	}
}

func TestJobDoesNotSeeTheAgentsCredentials(t *testing.T) {
	t.Setenv("LOWTIDE_NATS_TOKEN", "sesame")
	r := newReal(t, "m1", openStore(t))
	r.boot()
	until(r, some[events.InstanceReady])
	r.order(fleet.Order{Number: 1, Epoch: 1, Start: &fleet.Start{Workload: "w", Run: []string{"sh", "-c", "env; exit 1"}}})
	until(r, some[events.WorkloadFailed])
	log, err := os.ReadFile(filepath.Join(r.dir, "run", "log"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(log, []byte("sesame")) || !bytes.Contains(log, []byte("LOWTIDE_CKPT_DIR=")) {
		t.Errorf("the job's environment is wrong:\n%s", log)
	}
}

// fakeBench prints what the benchmark runner prints, or fails.
func fakeBench() *cobra.Command {
	var nonce, suite, machine string
	var event bool
	c := &cobra.Command{Use: "bench", Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		if nonce == "broken" || !event {
			return fmt.Errorf("no driver")
		}
		b, err := events.Encode(events.New("local", "benchrunner", t0, events.BenchmarkFinished{
			Machine: machine, Nonce: nonce, Backend: "cpu", Suite: suite, Size: 128, Elapsed: 500 * time.Millisecond, Verdict: "pass",
			Devices: []events.Device{{Name: "cpu", Measured: 0.96, Rated: 1, Ratio: 0.96, Lower: 0.95, Upper: 0.97, Checksum: 12.5}},
			Causes:  []string{"note: unsteady: 7 % apart"},
		}))
		if err == nil {
			_, err = cmd.OutOrStdout().Write(b)
		}
		return err
	}}
	c.Flags().StringVar(&nonce, "nonce", "", "")
	c.Flags().StringVar(&suite, "suite", "", "")
	c.Flags().StringVar(&machine, "machine", "", "")
	c.Flags().BoolVar(&event, "event", false, "")
	return c
}

func TestBenchmarkRunsOncePerNonceAndIsAnsweredAgain(t *testing.T) {
	r := newReal(t, "m1", openStore(t))
	until(r, some[events.InstanceReady])
	o := fleet.Order{Number: 1, Benchmark: &fleet.Benchmark{Nonce: "n1", Suite: "quick"}}
	r.order(o)
	got := until(r, some[events.BenchmarkFinished])
	want := events.BenchmarkFinished{
		Machine: "m1", Nonce: "n1", Backend: "cpu", Suite: "quick", Size: 128, Elapsed: 500 * time.Millisecond, Verdict: "pass", Ran: "process",
		Devices: []events.Device{{Name: "cpu", Measured: 0.96, Rated: 1, Ratio: 0.96, Lower: 0.95, Upper: 0.97, Checksum: 12.5}},
		Causes:  []string{"note: unsteady: 7 % apart"},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	r.boot()
	until(r, some[events.MachineHeard])
	r.order(o)
	if again, ok := r.said[len(r.said)-2].Data.(events.BenchmarkFinished); !ok || fmt.Sprint(again) != fmt.Sprint(want) {
		t.Errorf("the repeated order was answered with %+v, want the same result at once", r.said[len(r.said)-2].Data)
	}
	r.order(fleet.Order{Number: 2, Benchmark: &fleet.Benchmark{Nonce: "broken", Suite: "quick"}})
	if f := until(r, some[events.BenchmarkFinished]); !strings.Contains(f.Error, "no driver") || f.Nonce != "broken" {
		t.Errorf("got %+v, want the runner's error", f)
	}
}

func TestTheBenchmarkRunsInAContainerWhereAnEngineIs(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// An engine that runs the image's program, which is this binary; and one that cannot run anything.
	works := "#!/bin/sh\necho \"$@\" >\"$LOG\"\nwhile [ \"$1\" != run ] || [ $# -gt 40 ]; do shift; done\nshift\n" +
		"while [ \"$1\" != run ]; do shift; done\nexec \"" + self + "\" bench \"$@\"\n"
	broken := "#!/bin/sh\nexit 125\n"
	proof := agent.Proof{Command: []string{self, "bench", "run", "--suite", "full"}, Image: "registry/benchrunner"}
	for name, c := range map[string]struct {
		engine, script string
		image          string
		by             string
	}{
		"podman":                        {"podman", works, proof.Image, "podman"},
		"nerdctl":                       {"nerdctl", works, proof.Image, "nerdctl"},
		"an engine that cannot run":     {"docker", broken, proof.Image, "process"},
		"no engine, inside a container": {"", "", proof.Image, "process"},
		"no image":                      {"podman", works, "", "process"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.engine != "" {
				if err := os.WriteFile(filepath.Join(dir, c.engine), []byte(c.script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			log := filepath.Join(dir, "log")
			t.Setenv("PATH", dir+":/nowhere")
			t.Setenv("LOG", log)
			p := proof
			p.Image = c.image
			got, err := p.Run(context.Background(), "m1", fleet.Benchmark{Nonce: "n1", Suite: "quick"})
			if err != nil || got.Ran != c.by || got.Nonce != "n1" || got.Suite != "quick" || got.Machine != "m1" {
				t.Errorf("got %+v, %v, want it run by %s", got, err, c.by)
			}
			asked, _ := os.ReadFile(log)
			if c.by == "process" {
				if len(asked) > 0 {
					t.Errorf("the engine was asked: %s", asked)
				}
				return
			}
			for _, part := range []string{"--read-only", "--network=none", "--cap-drop=all", "registry/benchrunner run --suite full --event --machine=m1 --nonce=n1"} {
				if !strings.Contains(string(asked), part) {
					t.Errorf("no %q in %s", part, asked)
				}
			}
		})
	}
}
