package agent_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
)

// engine stands in for podman: it notes what it is asked in $ENGINE_LOG, and runs commands as they are, with the
// variables that are handed in and no others.
const engine = `#!/bin/sh
verb=$1; shift
echo "$verb $*" >>"$ENGINE_LOG"
if [ "$verb" = exec ]; then shift; exec "$@"; fi
[ "$verb" = run ] || exit 0
pass="PATH=$PATH"
while :; do
	case "$1" in
	--name | --volume) shift 2 ;;
	--env) pass="$pass
$2=$(printenv "$2")"; shift 2 ;;
	--workdir) cd "$2"; shift 2 ;;
	--*) shift ;;
	*) break ;;
	esac
done
image=$1; shift
IFS='
'
exec env -i IMAGE="$image" $pass "$@"
`

// onPath makes dir all of PATH, with the programs that a machine has.
func onPath(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"sh", "env", "printenv", "cat", "echo", "sleep", "true", "mkdir"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

func TestWhereThereIsAnEngineSetupCheckAndRunAreInTheImage(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "engine.log")
	if err := os.WriteFile(filepath.Join(dir, "podman"), []byte(engine), 0o755); err != nil {
		t.Fatal(err)
	}
	onPath(t, dir)
	t.Setenv("ENGINE_LOG", log)
	t.Setenv("MACHINES", "own") // which is nobody's in a container
	store := openStore(t)
	r := newReal(t, "m1", store)
	r.ask = func() (map[string]string, error) { return map[string]string{"TOKEN": "correct-horse"}, nil }
	until(r, some[events.InstanceReady])
	kit := fleet.Kit{
		Code:  bring(t, store, map[string]string{"go.sh": `echo "$IMAGE $WHO $TOKEN $LOWTIDE_DATA ${MACHINES:-} $(cat here)" >"$LOWTIDE_CKPT_DIR/RESULT"`, "here": "yes"}),
		Image: "example.org/train:1", Setup: []string{"sh", "-c", "echo in $IMAGE"}, Data: fleet.Data{URL: "s3://team/data/"},
		Secrets: map[string]fleet.Secret{"TOKEN": "env:TOKEN"},
	}
	r.order(own(1, 1, kit, "sh", "go.sh"))
	f := until(r, some[events.WorkloadFinished])
	if !strings.HasPrefix(f.Result, "lowtide.local/setup:") || !strings.HasSuffix(f.Result, " me correct-horse s3://team/data/  yes") {
		t.Errorf("result %q, want the image that the setup left, the variables handed in, and the directory", f.Result)
	}
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	said := string(b)
	for _, want := range []string{"commit --change ENV TOKEN= lowtide-", "--volume " + filepath.Join(r.dir, "ckpt", "1") + ":", "--env TOKEN ", "--workdir " + filepath.Join(r.dir, "code", kit.Code)} {
		if !strings.Contains(said, want) {
			t.Errorf("the engine was not asked %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, "correct-horse") {
		t.Errorf("the secret is among the engine's arguments:\n%s", said)
	}
}

// The stand-in's processes have the machine's own numbers; a group of its own keeps the holder from knowing the job's, as a
// container does.
func TestAJobInAContainerIsAskedToSaveThroughTheEngine(t *testing.T) {
	setsid, err := exec.LookPath("setsid")
	if err != nil {
		t.Skip("no setsid here")
	}
	dir := t.TempDir()
	log := filepath.Join(dir, "engine.log")
	if err := os.WriteFile(filepath.Join(dir, "podman"), []byte(engine), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("ENGINE_LOG", log)
	r := newReal(t, "m1", openStore(t))
	until(r, some[events.InstanceReady])
	const job = `trap 'echo asked >"$LOWTIDE_CKPT_DIR/RESULT"; exit 0' USR1
echo "{\"pid\": $$}" >"$LOWTIDE_CKPT_DIR/LISTENING"
for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1 & wait $!; done`
	r.order(own(1, 1, fleet.Kit{Image: "example.org/train:1"}, setsid, "--wait", "sh", "-c", job))
	until(r, func(f events.MachineHeard) bool { return f.Run.Phase == fleet.Running })
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) { // another process: nothing tells of its file
		if _, err := os.Stat(filepath.Join(r.dir, "ckpt", "1", "LISTENING")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the job does not listen")
		}
	}
	stop := own(2, 1, fleet.Kit{Image: "example.org/train:1"}, setsid, "--wait", "sh", "-c", job)
	stop.Save, stop.Stop = &fleet.Save{ID: "s1"}, true
	r.order(stop)
	until(r, some[events.WorkloadStopped])
	if b, err := os.ReadFile(filepath.Join(r.dir, "ckpt", "1", "RESULT")); string(b) != "asked\n" {
		said, _ := os.ReadFile(log)
		t.Errorf("the job was not asked (%v); the engine was:\n%s", err, said)
	}
}

func TestWhereThereIsNoEngineTheJobSaysSoAndRunsWithoutItsImage(t *testing.T) {
	onPath(t, t.TempDir())
	r := newReal(t, "m1", openStore(t))
	until(r, some[events.InstanceReady])
	r.order(own(1, 1, fleet.Kit{Image: "example.org/train:1"}, "sh", "-c", "echo hello"))
	until(r, some[events.WorkloadFinished])
	if log, _ := os.ReadFile(filepath.Join(r.dir, "run", "log")); string(log) != "lowtide: no podman, docker or nerdctl on this machine: it runs without its image example.org/train:1\nhello\n" {
		t.Errorf("printed %q", log)
	}
}

func TestAWorkloadsOwnCheckIsPartOfTheProof(t *testing.T) {
	store := openStore(t)
	code := bring(t, store, map[string]string{"check.sh": "i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo line $i $API_KEY; done; exit $WANT\n"})
	for want, tail := range map[string]int{"0": 0, "3": 20} {
		r := newReal(t, "m-"+want, store)
		until(r, some[events.InstanceReady])
		r.order(fleet.Order{Number: 1, Benchmark: &fleet.Benchmark{Nonce: "n1", Suite: "quick", Check: &fleet.Check{
			Workload: "w", Command: []string{"sh", "check.sh"}, Env: map[string]string{"WANT": want, "API_KEY": "hunter2"}, Code: code,
		}}})
		f := until(r, some[events.BenchmarkFinished]).Framework
		if f == nil || (f.Code == 0) != (want == "0") || strings.Count(f.Tail+"\n", "line") != tail || strings.Contains(f.Tail, "hunter2") {
			t.Errorf("status %s: got %+v", want, f)
		}
	}
	p := agent.NewProcesses(t.TempDir(), fn.Clock{}, os.Environ())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.Check(ctx, agent.Command{Workload: "w", Run: []string{"sleep", "60"}}); err == nil {
		t.Error("a check that was called off passed")
	}
}
