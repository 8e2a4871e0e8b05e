package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The README's job in Python is what newcomers copy: asked to save, it saves and ends, and goes on from what it saved.
func TestTheJobInTheReadmeIsOneThatCanBeMoved(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no python3")
		}
		t.Skip("no python3 here")
	}
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(b), "```python\n")
	code, _, found := strings.Cut(code, "```")
	if !found || !strings.Contains(code, "time.sleep(0.2)") {
		t.Fatal("no Python job in the README, or its step is another")
	}
	dir := t.TempDir()
	job := filepath.Join(dir, "job.py")
	if err := os.WriteFile(job, []byte(strings.Replace(code, "time.sleep(0.2)", "time.sleep(0.01)", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	play := func(name, restored string, stop bool) (path string, step int) {
		t.Helper()
		home := filepath.Join(dir, name)
		if err := os.Mkdir(home, 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), python, job)
		cmd.Env = append(os.Environ(), "LOWTIDE_CKPT_DIR="+home)
		if restored != "" {
			cmd.Env = append(cmd.Env, "LOWTIDE_RESTORED="+restored)
		}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if stop {
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) { // another process: nothing tells of its file
				if _, err := os.Stat(filepath.Join(home, "READY")); err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatal("it saved nothing within 20 s")
				}
			}
			if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		var listening struct{ PID int }
		var ready struct {
			Path string
			Step int
		}
		for file, into := range map[string]any{"LISTENING": &listening, "READY": &ready} {
			if b, err = os.ReadFile(filepath.Join(home, file)); err == nil {
				err = json.Unmarshal(b, into)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if listening.PID != cmd.Process.Pid {
			t.Errorf("it listens as %d and is %d", listening.PID, cmd.Process.Pid)
		}
		return ready.Path, ready.Step
	}
	saved, step := play("first", "", true)
	if step < 20 || step >= 300 {
		t.Fatalf("asked to stop it saved step %d", step)
	}
	if _, last := play("second", saved, false); last != 300 {
		t.Errorf("it ended at step %d, want 300", last)
	}
	if _, err := os.Stat(filepath.Join(dir, "second", "step-20")); err == nil {
		t.Error("it began again from the start")
	}
}
