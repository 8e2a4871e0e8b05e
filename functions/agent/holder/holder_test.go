//go:build linux || darwin

package holder_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lowtide/functions/agent/holder"
)

// TestMain lets the test binary be the holder, the workload and an agent, since all that matters here is between
// processes.
func TestMain(m *testing.M) {
	// The race detector has each process wait a second at its end, for reports of others; ours are many and small.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "holder":
		root := holder.Command()
		root.SetArgs(os.Args[2:])
		if err := root.Execute(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "agent": // starts and is gone
		if _, err := holder.Start(os.Args[2], os.Args[3:], nil, 1); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "work":
		work(os.Args[2], os.Args[3:])
	default:
		os.Exit(m.Run())
	}
}

func work(what string, args []string) {
	switch what {
	case "sleep":
		note(args[0])
		forever()
	case "exit":
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	case "listen": // in $LOWTIDE_CKPT_DIR; the signal ends it with 7
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGUSR1)
		note(filepath.Join(os.Getenv("LOWTIDE_CKPT_DIR"), "LISTENING"))
		<-c
		os.Exit(7)
	case "parent": // has a child in its group, and both sleep
		if err := exec.Command(os.Args[0], "work", "sleep", args[0]).Start(); err != nil {
			os.Exit(1)
		}
		forever()
	case "leave": // has such a child and exits
		if err := exec.Command(os.Args[0], "work", "sleep", args[0]).Start(); err != nil {
			os.Exit(1)
		}
		for !there(args[0]) {
			time.Sleep(time.Millisecond) // for the child, of which nothing tells
		}
	case "chat":
		line := strings.Repeat("x", 1023) + "\n"
		for range 4096 {
			fmt.Print(line)
		}
		fmt.Println("the last line")
		note(args[0])
		forever()
	case "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
		entries, _ := os.ReadDir("/proc/self/fd")
		for _, e := range entries {
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			fmt.Println("fd", e.Name(), to)
		}
	}
}

// forever does not end. An empty select would: without cgo the runtime takes it for a deadlock.
func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

// note writes the pid of this process into a file, whole.
func note(name string) {
	data, _ := json.Marshal(map[string]int{"pid": os.Getpid()})
	if os.WriteFile(name+".tmp", data, 0o644) != nil || os.Rename(name+".tmp", name) != nil {
		os.Exit(1)
	}
}

func there(name string) bool { _, err := os.Stat(name); return err == nil }

// until polls: there is nothing that tells of what other processes do.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("in vain waited for: %s", what)
}

func pidIn(t *testing.T, name string) int {
	t.Helper()
	until(t, name, func() bool { return there(name) })
	var v struct{ PID int }
	data, err := os.ReadFile(name)
	if err != nil || json.Unmarshal(data, &v) != nil {
		t.Fatalf("%s: %q, %v", name, data, err)
	}
	return v.PID
}

// dead reports whether a process is over; a zombie, which only its parent can remove, is.
func dead(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func place(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	t.Cleanup(func() {
		if s, err := holder.Find(dir); err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := s.Kill(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	return dir
}

func start(t *testing.T, dir string, epoch int64, argv ...string) holder.State {
	t.Helper()
	s, err := holder.Start(dir, append([]string{os.Args[0], "work"}, argv...), nil, epoch)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func find(t *testing.T, dir string, want holder.Phase) holder.State {
	t.Helper()
	s, err := holder.Find(dir)
	if err != nil || s.Phase != want {
		t.Fatalf("found %+v, %v; want %s", s, err, want)
	}
	return s
}

func wait(t *testing.T, s holder.State) holder.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	x, err := s.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestAnotherAgentFindsTheWorkloadOfOneThatDied(t *testing.T) {
	dir := place(t)
	mark := filepath.Join(t.TempDir(), "pid")
	out, err := exec.Command(os.Args[0], "agent", dir, os.Args[0], "work", "sleep", mark).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := find(t, dir, holder.Running)
	if got := pidIn(t, mark); got != s.Workload.PID || s.Epoch != 1 {
		t.Errorf("found pid %d of epoch %d, want %d of epoch 1", s.Workload.PID, s.Epoch, got)
	}
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if x := wait(t, s); x.Signal != "SIGKILL" || x.Code != -1 {
		t.Errorf("exit %+v, want by SIGKILL", x)
	}
	if !dead(s.Workload.PID) || !dead(s.Holder.PID) {
		t.Error("killed, and something lives")
	}
}

func TestTheExitStatusIsKept(t *testing.T) {
	for _, code := range []int{0, 3} {
		dir := place(t)
		s := start(t, dir, 5, "exit", strconv.Itoa(code))
		if x := wait(t, s); x.Code != code || x.Signal != "" || x.Epoch != 5 || x.EndedAt.IsZero() {
			t.Errorf("exit %+v, want code %d of epoch 5", x, code)
		}
		until(t, "the holder to leave", func() bool { return dead(s.Holder.PID) })
		find(t, dir, holder.Exited)
	}
}

func TestOneEpochRunsOnce(t *testing.T) {
	dir := place(t)
	mark := filepath.Join(t.TempDir(), "pid")
	states := make([]holder.State, 6)
	errs := make([]error, len(states))
	var wg sync.WaitGroup
	for i := range states {
		wg.Go(func() { states[i], errs[i] = holder.Start(dir, []string{os.Args[0], "work", "sleep", mark}, nil, 2) })
	}
	wg.Wait()
	for i, s := range states {
		if errs[i] != nil || s.Phase != holder.Running || s.Workload != states[0].Workload || s.Holder != states[0].Holder {
			t.Errorf("start %d: %+v, %v; want that of the first: %+v", i, s, errs[i], states[0])
		}
	}
	if _, err := holder.Start(dir, []string{"true"}, nil, 3); !errors.Is(err, holder.ErrBusy) {
		t.Errorf("another epoch: %v, want ErrBusy", err)
	}
	if err := states[0].Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := start(t, dir, 2, "sleep", mark); s.Phase != holder.Exited {
		t.Errorf("epoch 2 again after its end: %s, want exited", s.Phase)
	}
	if s := start(t, dir, 3, "sleep", mark); s.Phase != holder.Running || s.Epoch != 3 {
		t.Errorf("epoch 3 after the end of 2: %+v, want running", s)
	}
}

// A second holder that was started by other means than Start does not get in either.
func TestASecondHolderIsKeptOut(t *testing.T) {
	dir := place(t)
	mark := filepath.Join(t.TempDir(), "pid")
	s := start(t, dir, 1, "sleep", mark)
	second := filepath.Join(t.TempDir(), "second")
	out, err := exec.Command(os.Args[0], "holder", "--dir", dir, "--epoch", "2", "--", os.Args[0], "work", "sleep", second).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another holder has") {
		t.Errorf("%v: %s", err, out)
	}
	if now := find(t, dir, holder.Running); now.Workload != s.Workload || there(second) {
		t.Errorf("now %+v, was %+v", now, s)
	}
}

func TestAHolderThatWasKilledIsDetectedAndItsWorkloadFound(t *testing.T) {
	dir := place(t)
	ckpt := t.TempDir()
	t.Setenv("LOWTIDE_CKPT_DIR", ckpt)
	s := start(t, dir, 1, "listen")
	pidIn(t, filepath.Join(ckpt, "LISTENING"))
	if err := syscall.Kill(s.Holder.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the holder to die", func() bool { return dead(s.Holder.PID) })
	s = find(t, dir, holder.Orphaned)
	if dead(s.Workload.PID) {
		t.Fatal("it took the workload with it")
	}
	if again := start(t, dir, 1, "sleep", "never"); again.Phase != holder.Orphaned || again.Workload != s.Workload {
		t.Errorf("started again: %+v", again)
	}
	if err := s.Signal(syscall.SIGUSR1); err != nil { // it can still be asked to save
		t.Fatal(err)
	}
	until(t, "the workload to end", func() bool { return dead(s.Workload.PID) })
	find(t, dir, holder.Lost)
	if _, err := s.Wait(t.Context()); !errors.Is(err, holder.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
}

func TestAWorkloadWithoutItsHolderCanBeKilled(t *testing.T) {
	dir := place(t)
	child := filepath.Join(t.TempDir(), "child")
	s := start(t, dir, 1, "parent", child)
	pid := pidIn(t, child)
	if err := syscall.Kill(s.Holder.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the holder to die", func() bool { return dead(s.Holder.PID) })
	if err := find(t, dir, holder.Orphaned).Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the group to die", func() bool { return dead(pid) && dead(s.Workload.PID) })
}

func TestTheSignalToSaveGoesOnlyToAWorkloadThatSaysItListens(t *testing.T) {
	dir := place(t)
	ckpt := t.TempDir()
	listening := filepath.Join(ckpt, "LISTENING")
	// A stranger's pid, left behind by an earlier run.
	stranger := exec.Command(os.Args[0], "work", "sleep", filepath.Join(ckpt, "stranger"))
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stranger.Process.Kill(); stranger.Wait() }()
	leave := func() {
		if err := os.WriteFile(listening, fmt.Appendf(nil, `{"pid":%d}`, stranger.Process.Pid), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	t.Setenv("LOWTIDE_CKPT_DIR", ckpt)
	mark := filepath.Join(ckpt, "mark")
	s := start(t, dir, 1, "sleep", mark) // has no handler: the signal would kill it
	pidIn(t, mark)
	if there(listening) {
		t.Error("LISTENING of an earlier run was left")
	}
	refuse := func(what string) {
		t.Helper()
		if err := s.Signal(syscall.SIGUSR1); !errors.Is(err, holder.ErrNotListening) {
			t.Errorf("%s: %v, want ErrNotListening", what, err)
		}
	}
	refuse("before LISTENING")
	leave()
	refuse("a stranger's pid")
	for _, text := range []string{"", "{}", `{"pid":0}`, `{"pid":-1}`, `{"pid":1}`, `{"pid":99999999}`} {
		if err := os.WriteFile(listening, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		refuse(text)
	}
	if dead(s.Workload.PID) || dead(stranger.Process.Pid) {
		t.Fatal("somebody was killed by it")
	}
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = start(t, dir, 2, "listen")
	if pid := pidIn(t, listening); pid != s.Workload.PID {
		t.Fatalf("LISTENING names %d, the workload is %d", pid, s.Workload.PID)
	}
	if err := s.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if x := wait(t, s); x.Code != 7 {
		t.Errorf("exit %+v, want the handler's 7", x)
	}
	if err := s.Signal(syscall.SIGUSR1); !errors.Is(err, holder.ErrNotRunning) {
		t.Errorf("after its end: %v, want ErrNotRunning", err)
	}
}

func TestAPidThatWasGivenToAnotherProcessIsNotTheWorkload(t *testing.T) {
	dir := place(t)
	mark := filepath.Join(t.TempDir(), "pid")
	stranger := exec.Command(os.Args[0], "work", "sleep", mark)
	stranger.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stranger.Process.Kill(); stranger.Wait() }()
	pidIn(t, mark)
	time.Sleep(30 * time.Millisecond) // start times are told in ticks of 10 ms: two processes that share a pid never share one
	s := start(t, dir, 1, "sleep", filepath.Join(t.TempDir(), "w"))
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	// As after a reboot: the files are old, and both pids are somebody else's by now.
	if err := os.Remove(filepath.Join(dir, "exit.json")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"holder.json", "workload.json"} {
		p := filepath.Join(dir, name)
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		v["pid"] = stranger.Process.Pid
		data, _ = json.Marshal(v)
		if err := os.WriteFile(p, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s = find(t, dir, holder.Lost)
	s.Phase = holder.Running // as an agent believes that found it before
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGKILL} {
		if err := s.Signal(sig); !errors.Is(err, holder.ErrNotRunning) {
			t.Errorf("%s: %v, want ErrNotRunning", sig, err)
		}
	}
	if err := s.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if dead(stranger.Process.Pid) {
		t.Error("a stranger was killed")
	}
}

func TestWhatTheWorkloadLeavesInItsGroupEndsWithIt(t *testing.T) {
	dir := place(t)
	child := filepath.Join(t.TempDir(), "child")
	s := start(t, dir, 1, "leave", child)
	if x := wait(t, s); x.Code != 0 {
		t.Errorf("exit %+v", x)
	}
	pid := pidIn(t, child)
	until(t, "its child to end", func() bool { return dead(pid) })
}

func TestWhereItIsMarkedAsEndedNothingStarts(t *testing.T) {
	dir := place(t)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ended"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(t.TempDir(), "pid")
	if _, err := holder.Start(dir, []string{os.Args[0], "work", "sleep", mark}, nil, 1); !errors.Is(err, holder.ErrEnded) {
		t.Errorf("got %v, want ErrEnded", err)
	}
	// A holder that was on its way when the mark was made.
	if err := exec.Command(os.Args[0], "holder", "--dir", dir, "--", os.Args[0], "work", "sleep", mark).Run(); err == nil {
		t.Error("a holder ran")
	}
	if there(mark) {
		t.Error("a workload ran")
	}
	find(t, dir, holder.None)
}

func TestACommandThatIsNotThereIsAnErrorOfStart(t *testing.T) {
	dir := place(t)
	_, err := holder.Start(dir, []string{"no-such-program-anywhere"}, nil, 1)
	if err == nil || !strings.Contains(err.Error(), "no-such-program-anywhere") {
		t.Errorf("got %v, want an error that names the program", err)
	}
	find(t, dir, holder.None)
}

func TestAChattyWorkloadDoesNotFillTheDisk(t *testing.T) {
	dir := place(t)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(t.TempDir(), "pid")
	const limit = 256 << 10
	h := exec.Command(os.Args[0], "holder", "--dir", dir, "--log-limit", strconv.Itoa(limit), "--", os.Args[0], "work", "chat", mark)
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	collected := make(chan error, 1)
	go func() { collected <- h.Wait() }()
	pidIn(t, mark) // four megabytes have been printed
	both := func() (size int64, text string) {
		for _, name := range []string{"log.1", "log"} {
			data, _ := os.ReadFile(filepath.Join(dir, name))
			size += int64(len(data))
			text += string(data)
		}
		return size, text
	}
	until(t, "the log to be cut", func() bool { size, _ := both(); return size <= limit })
	if _, text := both(); !strings.HasSuffix(text, "the last line\n") {
		t.Error("what was printed last is not in the log")
	}
	if err := find(t, dir, holder.Running).Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-collected
}

func TestTheWorkloadHasItsEnvironmentAndNothingOfTheHolders(t *testing.T) {
	dir := place(t)
	s, err := holder.Start(dir, []string{os.Args[0], "work", "env"}, []string{"A=b", "GORACE=atexit_sleep_ms=0"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, s)
	data, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if !strings.HasPrefix(text, "A=b\n") || strings.Contains(text, "LOWTIDE_HOLDER") {
		t.Errorf("environment:\n%s", text)
	}
	mine := map[string]bool{} // some shells leave pipes to all their children, and so to us
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		mine[to] = true
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "fd" || mine[f[2]] {
			continue
		}
		if strings.HasSuffix(f[2], "lock") || strings.HasSuffix(f[2], "holder.log") || strings.HasPrefix(f[2], "pipe:") {
			t.Errorf("it has inherited descriptor %s, %s", f[1], f[2])
		}
	}
}

func TestWhereNothingWasStartedThereIsNothing(t *testing.T) {
	s := find(t, filepath.Join(t.TempDir(), "nowhere"), holder.None)
	if err := s.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Signal(syscall.SIGTERM); !errors.Is(err, holder.ErrNotRunning) {
		t.Errorf("got %v, want ErrNotRunning", err)
	}
	if _, err := s.Wait(t.Context()); !errors.Is(err, holder.ErrNotRunning) {
		t.Errorf("got %v, want ErrNotRunning", err)
	}
}
