package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/agent/holder"
	"lowtide/shared/checkpoint"
	"lowtide/shared/fleet"
	"lowtide/shared/parcel"
)

// bring stores a directory as a workload's code.
func bring(t *testing.T, store *checkpoint.Store, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p, err := parcel.Pack(dir)
	if err == nil {
		err = store.SaveCode(context.Background(), "w", p.Sum, p.Packed)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.Sum
}

func own(number, epoch uint64, kit fleet.Kit, run ...string) fleet.Order {
	return fleet.Order{Number: number, Epoch: epoch, Start: &fleet.Start{Workload: "w", Run: run, Env: map[string]string{"WHO": "me", "API_KEY": "hunter2"}, Kit: kit}}
}

func TestCodeIsUnpackedAndSetUpOnceOnEachMachine(t *testing.T) {
	store := openStore(t)
	kit := fleet.Kit{Code: bring(t, store, map[string]string{"go.sh": "cat made\necho $LOWTIDE_WORKLOAD >\"$LOWTIDE_CKPT_DIR/RESULT\"\n"}), Setup: []string{"sh", "-e", "-c", `echo "$WHO" >>made`}}
	r := newReal(t, "m1", store)
	until(r, some[events.InstanceReady])
	for epoch := uint64(1); epoch <= 2; epoch++ { // the second finds what the first has set up
		r.order(own(epoch, epoch, kit, "sh", "go.sh"))
		if f := until(r, func(f events.WorkloadFinished) bool { return f.Epoch == epoch }); f.Result != "w" {
			t.Errorf("epoch %d: result %q", epoch, f.Result)
		}
		if log, _ := os.ReadFile(filepath.Join(r.dir, "run", "log")); string(log) != "me\n" {
			t.Errorf("epoch %d printed %q, want what one setup has made", epoch, log)
		}
	}
	kit.Setup = []string{"sh", "-c", "echo other >made"}
	r.order(own(3, 3, kit, "sh", "go.sh"))
	until(r, func(f events.WorkloadFinished) bool { return f.Epoch == 3 })
	if log, _ := os.ReadFile(filepath.Join(r.dir, "run", "log")); !strings.HasSuffix(string(log), "other\n") {
		t.Errorf("another setup was not run: %q", log)
	}
}

func TestASetupThatFailsIsToldWithItsLastLinesAndTriedAgain(t *testing.T) {
	r := newReal(t, "m1", openStore(t))
	until(r, some[events.InstanceReady])
	kit := fleet.Kit{Setup: []string{"sh", "-e", "-c", `test -e flag && exit 0; touch flag; i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo "line $i $API_KEY"; done; exit 7`}}
	kit.Setup[3] = "cd " + r.dir + "; " + kit.Setup[3]
	r.order(own(1, 1, kit, "true"))
	f := until(r, some[events.WorkloadFailed])
	lines := strings.Split(f.Why, "\n")
	if f.Code != 7 || len(lines) != 21 || lines[0] != "setup failed with exit status 7:" || lines[1] != "line 11 ***" || lines[20] != "line 30 ***" {
		t.Errorf("got status %d and %q, want 7 and the last 20 lines", f.Code, f.Why)
	}
	r.order(own(2, 2, kit, "true"))
	until(r, some[events.WorkloadFinished])
}

func TestASetupOutlivesItsAgentAndEndsWhenTheRunIsCalledOff(t *testing.T) {
	r := newReal(t, "m1", openStore(t))
	until(r, some[events.InstanceReady])
	o := own(1, 1, fleet.Kit{Setup: []string{"sh", "-c", "echo begun; sleep 60"}}, "true")
	r.order(o)
	until(r, func(h events.MachineHeard) bool { return h.Busy == "setup" })
	before, err := holder.Find(filepath.Join(r.dir, "setup"))
	if err != nil {
		t.Fatal(err)
	}
	r.boot()
	until(r, func(h events.MachineHeard) bool { return h.Busy == "setup" })
	if s, err := holder.Find(filepath.Join(r.dir, "setup")); err != nil || s.Workload != before.Workload || s.Phase != holder.Running {
		t.Errorf("after the agent's restart: %+v, %v; want the same process", s, err)
	}
	o.Number, o.Stop = 2, true
	r.order(o)
	if !slices.ContainsFunc(r.said, func(e events.Event) bool { _, is := e.Data.(events.WorkloadStopped); return is }) {
		t.Error("the end is not told at once")
	}
	if s, err := holder.Find(filepath.Join(r.dir, "setup")); err != nil || s.Phase == holder.Running {
		t.Errorf("the setup: %+v, %v; want it gone", s.Phase, err)
	}
}

func TestCodeThatIsNotWhatWasSubmittedIsNeverRun(t *testing.T) {
	store := openStore(t)
	swapped := strings.Repeat("ab", 32) // what somebody has put under another's name
	if err := store.SaveCode(context.Background(), "w", swapped, []byte("not it")); err != nil {
		t.Fatal(err)
	}
	for name, sum := range map[string]string{"swapped": swapped, "gone": strings.Repeat("cd", 32)} {
		r := newReal(t, "m-"+name, store)
		until(r, some[events.InstanceReady])
		r.order(own(1, 1, fleet.Kit{Code: sum}, "sh", "go.sh"))
		if f := until(r, some[events.WorkloadFailed]); !strings.Contains(f.Why, "the workload's directory") {
			t.Errorf("%s: %q", name, f.Why)
		}
	}
}

func TestSecretsAreAskedForAgainByTheNextAgentBeforeItTellsWhatTheJobPrinted(t *testing.T) {
	r := newReal(t, "m1", openStore(t))
	var away atomic.Bool
	r.ask = func() (map[string]string, error) {
		if away.Load() {
			return nil, errors.New("nobody answers")
		}
		return map[string]string{"TOKEN": "correct-horse"}, nil
	}
	until(r, some[events.InstanceReady])
	o := own(1, 1, fleet.Kit{Secrets: map[string]fleet.Secret{"TOKEN": "env:TOKEN"}}, "sh", "-c", `sleep 0.5; echo "it was $TOKEN"; exit 4`)
	r.order(o)
	until(r, some[events.WorkloadStarted])
	away.Store(true)
	r.boot()
	until(r, some[events.MachineHeard])
	time.Sleep(time.Second) // wall time: the process ends meanwhile
	if out, _ := r.a.Tick(context.Background(), time.Now()); slices.ContainsFunc(out, func(e events.Event) bool { _, is := e.Data.(events.WorkloadFailed); return is }) {
		t.Fatal("the end is told before its secrets are known")
	}
	away.Store(false)
	for now := time.Now(); ; now = now.Add(time.Second) { // it asks again after 5 s of lowtide's time
		out, _ := r.a.Tick(context.Background(), now)
		if i := slices.IndexFunc(out, func(e events.Event) bool { _, is := e.Data.(events.WorkloadFailed); return is }); i >= 0 {
			if f := out[i].Data.(events.WorkloadFailed); f.Why != "it was ***" || f.Code != 4 {
				t.Errorf("got status %d and %q", f.Code, f.Why)
			}
			break
		}
		if time.Until(now) > 50*time.Second {
			t.Fatal("the end is not told")
		}
		time.Sleep(10 * time.Millisecond) // wall time: the answer comes from beside the agent
	}
	for _, name := range []string{"agent.json", "run/holder.json", "run/workload.json", "run/exit.json"} {
		if b, err := os.ReadFile(filepath.Join(r.dir, filepath.FromSlash(name))); err != nil || strings.Contains(string(b), "correct-horse") {
			t.Errorf("%s: %v, %s", name, err, b)
		}
	}

	refused := newReal(t, "m2", openStore(t))
	refused.ask = func() (map[string]string, error) { return nil, fmt.Errorf("%w: there is none", agent.ErrNoSecrets) }
	until(refused, some[events.InstanceReady])
	refused.order(o)
	if f := until(refused, some[events.WorkloadFailed]); !strings.Contains(f.Why, "there is none") {
		t.Errorf("refused: %q", f.Why)
	}
}
