package agent_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
	for _, want := range []string{"commit lowtide-", "--volume " + filepath.Join(r.dir, "ckpt", "1") + ":", "--env TOKEN ", "--workdir " + filepath.Join(r.dir, "code", kit.Code)} {
		if !strings.Contains(said, want) {
			t.Errorf("the engine was not asked %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, "correct-horse") {
		t.Errorf("the secret is among the engine's arguments:\n%s", said)
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
