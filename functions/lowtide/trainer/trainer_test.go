package trainer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lowtide/functions/lowtide/trainer"
)

// TestMain lets the test binary be the trainer, so that real processes get real signals.
func TestMain(m *testing.M) {
	// The race detector has each process wait a second at its end, for reports of others.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	if os.Getenv("TRAINER_TEST_CHILD") == "" {
		os.Exit(m.Run())
	}
	cmd := trainer.Command()
	cmd.SetArgs(os.Args[1:])
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		os.Exit(1)
	}
}

func sumOf(seed uint64, steps int64) string {
	m := trainer.New(seed, steps)
	for !m.Done() {
		m.Step()
	}
	return m.Sum()
}

func TestItLearns(t *testing.T) {
	m := trainer.New(3, 400)
	first, last := m.Step(), 0.0
	for !m.Done() {
		last = m.Step()
	}
	if last > first/2 {
		t.Errorf("loss went from %.3f to %.3f", first, last)
	}
	if got := m.Step(); got != 0 || m.At() != 400 {
		t.Errorf("a step after the end: loss %v, at %d", got, m.At())
	}
}

func TestInterruptedAnywhereItEndsEqualToARunLeftAlone(t *testing.T) {
	const steps = 300
	want := sumOf(7, steps)
	if other := sumOf(8, steps); other == want {
		t.Fatal("two seeds end equal: the sum shows nothing")
	}
	r := rand.New(rand.NewPCG(1, 1))
	for round := range 20 {
		m := trainer.New(7, steps)
		stored := m.Marshal()
		interruptions := 0
		for !m.Done() {
			m.Step()
			switch r.IntN(40) {
			case 0: // a save
				stored = m.Marshal()
			case 1: // the machine is gone; what was done since the save is done again
				var err error
				if m, err = trainer.Unmarshal(stored); err != nil {
					t.Fatal(err)
				}
				interruptions++
			}
		}
		if got := m.Sum(); got != want {
			t.Fatalf("round %d, %d interruptions: weights %s, want %s", round, interruptions, got, want)
		}
	}
}

func TestAStoredModelIsEqualInEverything(t *testing.T) {
	m := trainer.NewWide(5, 100, 40)
	for range 37 {
		m.Step()
	}
	dir := filepath.Join(t.TempDir(), "a")
	if err := m.Save(dir); err != nil {
		t.Fatal(err)
	}
	l, err := trainer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(l.Marshal(), m.Marshal()) || l.At() != 37 || l.Of() != 100 {
		t.Error("loaded another state than was saved")
	}
}

func TestADamagedStateIsNeverLoaded(t *testing.T) {
	good := trainer.New(5, 100).Marshal()
	r := rand.New(rand.NewPCG(2, 2))
	for range 300 {
		bad := bytes.Clone(good)
		bad[r.IntN(len(bad))] ^= 1 << r.IntN(8)
		if _, err := trainer.Unmarshal(bad); err == nil {
			t.Fatal("a flipped bit was not noticed")
		}
		if _, err := trainer.Unmarshal(good[:r.IntN(len(good))]); err == nil {
			t.Fatal("a missing end was not noticed")
		}
	}
	if _, err := trainer.Unmarshal(append(bytes.Clone(good), 0)); err == nil {
		t.Error("a byte too many was not noticed")
	}
}

// job starts the trainer as a process.
func job(t *testing.T, dir string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "TRAINER_TEST_CHILD=1", "LOWTIDE_CKPT_DIR="+dir, "LOWTIDE_DEADLINE="+filepath.Join(dir, "deadline"))
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, &out
}

// await polls for a marker, since nothing tells of a file's arrival, and decodes it.
func await(t *testing.T, file string, ok func(map[string]any) bool) map[string]any {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		var v map[string]any
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatalf("%s is there and not whole: %q", file, data)
		}
		if ok == nil || ok(v) {
			return v
		}
	}
	t.Fatalf("%s did not come", file)
	return nil
}

func past(step float64) func(map[string]any) bool {
	return func(v map[string]any) bool { return v["step"].(float64) >= step }
}

func result(t *testing.T, out *bytes.Buffer) trainer.Result {
	t.Helper()
	var r trainer.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("output %q: %v", out, err)
	}
	return r
}

func TestAskedByASignalItSavesAtTheStepBoundaryAndStops(t *testing.T) {
	dir := t.TempDir()
	args := []string{"--steps", "400", "--seed", "7", "--step-time", "5ms", "--save-every", "0"}
	cmd, out := job(t, dir, args...)
	if pid := await(t, filepath.Join(dir, "LISTENING"), nil)["pid"].(float64); int(pid) != cmd.Process.Pid {
		t.Fatalf("LISTENING names %v, want %d", pid, cmd.Process.Pid)
	}
	await(t, filepath.Join(dir, "PROGRESS"), past(1))
	if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("asked to stop, it ended with %v", err)
	}
	r := result(t, out)
	ready := await(t, filepath.Join(dir, "READY"), nil)
	if r.Finished || r.Step < 1 || r.Step >= 400 || ready["step"].(float64) != float64(r.Step) || ready["path"] != r.Path {
		t.Fatalf("result %+v, READY %v", r, ready)
	}
	if _, err := os.Stat(filepath.Join(dir, "RESULT")); err == nil {
		t.Error("RESULT of a run that has not finished")
	}
	// Elsewhere, under another name, it goes on and ends as if nothing had been.
	there := t.TempDir()
	if err := os.Rename(r.Path, filepath.Join(there, "restored")); err != nil {
		t.Fatal(err)
	}
	cmd, out = job(t, there, "--steps", "400", "--seed", "7")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if r2 := result(t, out); !r2.Finished || r2.Resumed != r.Step || r2.WeightsSHA256 != sumOf(7, 400) {
		t.Errorf("resumed run: %+v, want one resumed at %d with weights %s", r2, r.Step, sumOf(7, 400))
	}
	if got := await(t, filepath.Join(there, "RESULT"), nil); got["weights_sha256"] != sumOf(7, 400) || got["step"].(float64) != 400 {
		t.Errorf("RESULT is %v", got)
	}
}

func TestAskedByTheDeadlineFileItStopsWithoutASignal(t *testing.T) {
	dir := t.TempDir()
	// One from an earlier stop is not meant for this run.
	if err := os.WriteFile(filepath.Join(dir, "deadline"), []byte("1000000000"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd, out := job(t, dir, "--steps", "100000", "--step-time", "1m", "--save-every", "0")
	await(t, filepath.Join(dir, "LISTENING"), nil)
	soon := strconv.FormatInt(time.Now().Add(time.Minute).Unix(), 10)
	if err := os.WriteFile(filepath.Join(dir, "deadline"), []byte(soon), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if r := result(t, out); r.Finished || r.Step != 1 { // within a step of a minute, at its boundary
		t.Errorf("result %+v, want a stop after step 1", r)
	}
}

func TestKilledAgainAndAgainItEndsWithTheSameWeights(t *testing.T) {
	dir := t.TempDir()
	args := []string{"--steps", "300", "--seed", "9", "--step-time", "2ms", "--save-every", "20"}
	for kill := range 4 {
		cmd, _ := job(t, dir, args...)
		await(t, filepath.Join(dir, "READY"), past(float64(20*(kill+1)))) // of this life: an old one is removed
		cmd.Process.Kill()
		cmd.Wait()
	}
	cmd, out := job(t, dir, args...)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	r := result(t, out)
	if !r.Finished || r.Resumed < 80 || r.WeightsSHA256 != sumOf(9, 300) {
		t.Errorf("result %+v, want resumed at 80 or later with weights %s", r, sumOf(9, 300))
	}
	steps, _ := filepath.Glob(filepath.Join(dir, "step-*"))
	if len(steps) != 3 {
		t.Errorf("kept %v, want three", steps)
	}
}

func TestADamagedCheckpointIsPassedOverForTheOneBefore(t *testing.T) {
	dir := t.TempDir()
	c := trainer.Config{Dir: dir, Steps: 100, Seed: 4, SaveEvery: 10}
	if _, err := trainer.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "step-100", "optimiser.bin"), 100); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c.Log = &log
	r, err := trainer.Run(t.Context(), c)
	if err != nil || r.Resumed != 90 || r.WeightsSHA256 != sumOf(4, 100) {
		t.Errorf("%+v, %v; want resumed at 90 with weights %s", r, err, sumOf(4, 100))
	}
	if !strings.Contains(log.String(), "step-100") {
		t.Errorf("log %q does not name what was passed over", &log)
	}
}

func TestACheckpointOfAnotherRunIsRefusedNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	if _, err := trainer.Run(t.Context(), trainer.Config{Dir: dir, Steps: 10, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := trainer.Run(t.Context(), trainer.Config{Dir: dir, Steps: 10, Seed: 2}); err == nil {
		t.Error("seed 2 went on from a checkpoint of seed 1")
	}
	if _, err := trainer.Load(filepath.Join(dir, "step-10")); err != nil {
		t.Error(err)
	}
}

func TestWhenItsContextEndsItSavesNothing(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := trainer.Run(ctx, trainer.Config{Dir: dir, Steps: 1000, StepTime: time.Minute, Log: io.Discard})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "step-*")); len(left) > 0 {
		t.Errorf("saved %v", left)
	}
}

func BenchmarkStep(b *testing.B) {
	m := trainer.New(1, 1<<62)
	for b.Loop() {
		m.Step()
	}
}

func BenchmarkMarshal(b *testing.B) {
	m := trainer.New(1, 100)
	for b.Loop() {
		m.Marshal()
	}
}
