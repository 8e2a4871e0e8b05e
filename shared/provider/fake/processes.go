//go:build unix

package fake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Processes is a Launcher whose machines are directories and processes on this host:
//
//	<Dir>/<id>/agent.log   what the agent printed
//	<Dir>/<id>/agent.pid   its process id, which is its session's and its group's
//	<Dir>/<id>/ended       written before a kill: whoever sees it starts nothing any more
//	*.pid, holder.json, workload.json   wherever they lie in it: leaders of groups that the machine started
//
// Machines outlive this process, as real ones would; the same Dir finds them again. Their environment is PATH, HOME
// and TMPDIR, the user-data's KEY=value lines, what the cloud adds (Boot.Env), and LOWTIDE_MACHINE_DIR. Where there is
// a /proc, all that carries this mark, or whose working directory lies in the machine's, belongs to the machine.
type Processes struct {
	Dir     string
	Command []string // what a machine runs, "<self> agent"
	Log     *slog.Logger

	mu      sync.Mutex
	waiting sync.WaitGroup
}

// Boot implements Launcher. A machine that cannot be started stays dark, as real ones sometimes do; the log says why.
func (p *Processes) Boot(b Boot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dir := p.home(b.Machine.ID)
	if exists(filepath.Join(dir, "ended")) || exists(filepath.Join(dir, "agent.pid")) {
		return
	}
	if err := p.start(dir, b); err != nil {
		p.log().Error("a machine does not start", "id", b.Machine.ID, "name", b.Name, "err", err)
	}
}

func (p *Processes) start(dir string, b Boot) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Join(dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // the machine has its own handle
	cmd := exec.Command(p.Command[0], p.Command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.Env = p.env(dir, b)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.waiting.Go(func() { _ = cmd.Wait() }) // reaps; how an agent ends is its own affair
	return os.WriteFile(filepath.Join(dir, "agent.pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

func (p *Processes) env(dir string, b Boot) []string {
	var env []string
	for _, k := range []string{"PATH", "HOME", "TMPDIR"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	for line := range strings.Lines(b.UserData) {
		if line = strings.TrimRight(line, "\r\n"); strings.Contains(line, "=") {
			env = append(env, line)
		}
	}
	return append(append(env, b.Env()...), mark(dir))
}

func mark(dir string) string { return "LOWTIDE_MACHINE_DIR=" + dir }

// Kill implements Launcher: the marker first, then agent, holder and whatever else carries the machine's mark, until
// nothing is left.
func (p *Processes) Kill(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dir := p.home(id)
	if !exists(dir) {
		// It may be told to boot later, by a cloud that was opened again.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			p.log().Error("a machine cannot be marked as ended", "id", id, "err", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "ended"), nil, 0o600); err != nil {
		p.log().Error("a machine cannot be marked as ended", "id", id, "err", err)
	}
	for range 100 {
		if p.strike(dir) == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond) // killed processes take a moment to be reaped
	}
	p.log().Error("a machine's processes outlive their kill", "id", id)
}

// strike kills everything of a machine that it finds and says how many groups or processes that were.
func (p *Processes) strike(dir string) int {
	found := 0
	for _, pid := range leaders(dir) {
		if belongs(pid, dir) && syscall.Kill(-pid, syscall.SIGKILL) == nil {
			found++
		}
	}
	for _, pid := range members(dir) {
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			found++
		}
	}
	return found
}

// leaders reads the process ids that a machine's files name.
func leaders(dir string) (pids []int) {
	_ = fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		base := filepath.Base(name)
		if err == nil && e.Type().IsRegular() && (filepath.Ext(base) == ".pid" || base == "holder.json" || base == "workload.json") {
			if pid := leader(filepath.Join(dir, name)); pid > 1 {
				pids = append(pids, pid)
			}
		}
		return nil // what is being removed, or not ours to read, has nothing to kill
	})
	return pids
}

// leader reads a process id, bare or as "pid" of a JSON object; 0 if there is none.
func leader(name string) int {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	var file struct {
		PID int `json:"pid"`
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
		return pid
	}
	if json.Unmarshal(b, &file) != nil {
		return 0
	}
	return file.PID
}

// belongs guards against a process id that was given to somebody else since. Where there is no /proc to tell, the file
// is believed.
func belongs(pid int, dir string) bool {
	if !exists("/proc/self/environ") {
		return true
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	if env, err := os.ReadFile(proc + "environ"); err == nil && carries(env, dir) {
		return true
	}
	cwd, err := os.Readlink(proc + "cwd")
	return err == nil && (cwd == dir || strings.HasPrefix(cwd, dir+"/"))
}

// members lists this host's processes that belong to a machine, also those that left its process groups.
func members(dir string) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && exists("/proc/self/environ") && belongs(pid, dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func carries(env []byte, dir string) bool {
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if string(v) == mark(dir) {
			return true
		}
	}
	return false
}

// home is a machine's directory, as /proc will show it.
func (p *Processes) home(id string) string {
	dir, err := filepath.Abs(p.Dir)
	if err != nil {
		dir = p.Dir
	}
	_ = os.MkdirAll(dir, 0o700) // whoever uses the directory next says why it is not there
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	return filepath.Join(dir, id)
}

// Wait returns when every machine process that this process started has ended.
func (p *Processes) Wait() { p.waiting.Wait() }

func (p *Processes) log() *slog.Logger {
	if p.Log == nil {
		return slog.Default()
	}
	return p.Log
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
