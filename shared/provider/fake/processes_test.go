//go:build unix

package fake_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

func appendTo(t *testing.T, name, s string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(s); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for another process; there is nothing else to wait on.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("waited 5 s for: " + what)
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestAKillEndsAgentHolderAndWhatLeftTheirGroups(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("a process that leaves its group is made with setsid: %v", err)
	}
	dir := t.TempDir()
	// The agent starts a holder in a session of its own, which starts a process in yet another.
	script := `echo "$A" > said
mkdir run
env -i PATH="$PATH" setsid sh -c 'echo "{\"pid\": $$, \"epoch\": 1}" > run/holder.json; setsid sh -c "echo \$\$ > stray; sleep 100 & wait" & wait' &
wait`
	p := &fake.Processes{Dir: dir, Command: []string{"sh", "-c", script}}
	b := fake.Boot{Machine: provider.Machine{ID: "i-000001"}, UserData: "A=two words\nB=2\n"}
	p.Boot(b)
	m := filepath.Join(dir, "i-000001")
	var pids []int
	for _, name := range []string{"agent.pid", "run/holder.json", "stray"} {
		eventually(t, name, func() bool {
			s, err := os.ReadFile(filepath.Join(m, name))
			if err != nil || len(s) == 0 {
				return false
			}
			pid, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(string(s), `{"pid": `), ", \"epoch\": 1}\n")))
			if err == nil {
				pids = append(pids, pid)
			}
			return err == nil
		})
	}
	if said, err := os.ReadFile(filepath.Join(m, "said")); err != nil || string(said) != "two words\n" {
		t.Errorf("the user-data reached the machine as %q (%v)", said, err)
	}

	again := &fake.Processes{Dir: dir, Command: p.Command} // another process of the cloud
	again.Boot(b)
	if s, _ := os.ReadFile(filepath.Join(m, "agent.pid")); strings.TrimSpace(string(s)) != strconv.Itoa(pids[0]) {
		t.Errorf("a machine that ran was started again: %s, was %d", s, pids[0])
	}
	again.Kill("i-000001")
	p.Wait()
	for _, pid := range pids {
		eventually(t, "the end of "+strconv.Itoa(pid), func() bool { return !alive(pid) || zombie(pid) })
	}
	again.Boot(b)
	if s, _ := os.ReadFile(filepath.Join(m, "agent.pid")); strings.TrimSpace(string(s)) != strconv.Itoa(pids[0]) {
		t.Errorf("an ended machine was started again: %s", s)
	}
	again.Kill("i-000001")
	again.Kill("i-000009")
	again.Boot(fake.Boot{Machine: provider.Machine{ID: "i-000009"}})
	if _, err := os.Stat(filepath.Join(dir, "i-000009", "agent.pid")); err == nil {
		t.Error("a machine was started after it was killed")
	}
}

// zombie says that a killed process waits for a parent that never reaps, as in containers without an init.
func zombie(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(b), ") Z ")
}
