package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// box is how a command of the workload is started: in a container where it wants an image and the machine has an engine,
// else as it is, with a line in its log that says so.
type box struct {
	engine string // path; "": none
	gpus   []string
	image  string
	name   string   // of the container
	mounts []string // directories, at the same place inside
	env    []string // names; the engine takes the values from its own environment, so that none is among its arguments
	hidden []string // of them, those of secrets
	dir    string
}

// boxed finds the engine for a command; name tells setup, check and run apart.
func (p *Processes) boxed(c Command, name string, mounts, own []string) box {
	b := box{image: c.Image, dir: c.Dir, name: p.container(name), mounts: mounts}
	if c.Image == "" {
		return b
	}
	for _, e := range engines {
		path, err := exec.LookPath(e.name)
		if err != nil {
			continue
		}
		b.engine = path
		if _, err := os.Stat("/dev/nvidiactl"); err == nil {
			b.gpus = e.gpus
		}
		break
	}
	if c.Dir != "" {
		b.mounts = append(b.mounts, c.Dir)
	}
	b.env = append(slices.Sorted(maps.Keys(c.Env)), slices.Sorted(maps.Keys(c.Secrets))...)
	b.hidden = slices.Sorted(maps.Keys(c.Secrets))
	b.env = append(b.env, own...)
	if c.Data != "" {
		b.env = append(b.env, "LOWTIDE_DATA")
	}
	return b
}

// container is the name of a container of this machine's: one host may hold several machines.
func (p *Processes) container(what string) string {
	sum := sha256.Sum256([]byte(p.dir))
	return "lowtide-" + hex.EncodeToString(sum[:6]) + "-" + what
}

// killBoxes ends the containers of setup and run, if an engine was used here.
func (p *Processes) killBoxes() {
	engine, err := os.ReadFile(filepath.Join(p.dir, engineFile))
	if err != nil {
		return
	}
	for _, what := range []string{"setup", "run"} {
		box{engine: string(engine), name: p.container(what)}.kill()
	}
}

// knock sends the save signal to a job in a container: the number that it gave in LISTENING is one of its own inside, and
// the engine knows it. It is not waited for; the deadline's file stands in any case.
func (p *Processes) knock(epoch uint64) {
	engine, err := os.ReadFile(filepath.Join(p.dir, engineFile))
	var who struct{ PID int }
	if err != nil || readMarker(p.ckpt(epoch), "LISTENING", &who) != nil || who.PID <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	cmd := exec.CommandContext(ctx, string(engine), "exec", p.container("run"), "sh", "-c", `kill -USR1 "$0"`, strconv.Itoa(who.PID))
	go func() {
		defer cancel()
		_ = cmd.Run() // a container that is gone has no job to ask
	}()
}

// engineFile names the engine that was used, for whoever ends what it runs.
const engineFile = "engine"

// boxesFile holds what the names of this machine's containers begin with, for whoever ends the machine from outside.
const boxesFile = "boxes"

// noted writes the engine and the names down before they are used.
func (p *Processes) noted(b box) error {
	if !b.container() {
		return nil
	}
	return errors.Join(writeFile(filepath.Join(p.dir, engineFile), []byte(b.engine)), writeFile(filepath.Join(p.dir, boxesFile), []byte(p.container(""))))
}

// container says that there is an engine, and use of it.
func (b box) container() bool { return b.engine != "" }

// run is the command that runs argv from an image; keep leaves the container behind, with what was written in it.
func (b box) run(image string, keep bool, argv []string) []string {
	out := []string{b.engine, "run", "--name", b.name, "--network=host", "--ipc=host"}
	if !keep {
		out = append(out, "--rm")
	}
	out = append(out, b.gpus...)
	for _, m := range b.mounts {
		out = append(out, "--volume", m+":"+m)
	}
	for _, name := range b.env {
		out = append(out, "--env", name)
	}
	if b.dir != "" {
		out = append(out, "--workdir", b.dir)
	}
	return append(append(out, image), argv...)
}

// command is argv as it is started.
func (b box) command(argv []string, image string) []string {
	switch {
	case b.image == "":
		return within(b.dir, argv)
	case !b.container():
		say := "lowtide: no podman, docker or nerdctl on this machine: it runs without its image " + b.image
		return append([]string{"sh", "-c", `echo "$0" >&2; cd -- "$1" && shift && exec "$@"`, say, cmp.Or(b.dir, ".")}, argv...)
	}
	// A container of this name that an earlier try has left is not ours to trip over.
	return append([]string{"sh", "-c", `"$0" rm -f "$1" >/dev/null 2>&1; shift; exec "$@"`, b.engine, b.name}, b.run(cmp.Or(image, b.image), false, argv)...)
}

// setup is the command that runs a setup. What it changes in its container is kept as an image, from which the run starts;
// an image keeps its container's environment, so secrets are emptied there. nerdctl cannot do that: its setups get none.
func (b box) setup(argv []string, as string) []string {
	if !b.container() {
		return b.command(argv, "")
	}
	const script = `engine=$0 name=$1 as=$2 hide=$3; shift 3
"$engine" rm -f "$name" >/dev/null 2>&1
"$@"; status=$?
if [ $status -eq 0 ]; then
	set --
	for v in $hide; do set -- "$@" --change "ENV $v="; done
	"$engine" commit "$@" "$name" "$as" >/dev/null; status=$?
fi
"$engine" rm -f "$name" >/dev/null 2>&1
exit $status`
	hide := strings.Join(b.hidden, " ")
	if filepath.Base(b.engine) == "nerdctl" {
		b.env = slices.DeleteFunc(slices.Clone(b.env), func(name string) bool { return slices.Contains(b.hidden, name) })
		hide = ""
	}
	return append([]string{"sh", "-c", script, b.engine, b.name, as, hide}, b.run(b.image, true, argv)...)
}

// kill ends a container whose engine's own process is gone or does not pass the end on.
func (b box) kill() {
	if b.container() {
		_ = exec.Command(b.engine, "rm", "-f", b.name).Run() // where it is gone already, that is an error
	}
}

// prepared names the image that a setup has left.
func prepared(c Command) string {
	if len(c.Setup) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(setupHash(c)))
	return "lowtide.local/setup:" + hex.EncodeToString(sum[:8])
}

// boxOfRun is the box of a run: it sees the checkpoints and the deadline, where they are outside.
func (p *Processes) boxOfRun(c Command) box {
	own := []string{"LOWTIDE_CKPT_DIR", "LOWTIDE_DEADLINE", "LOWTIDE_WORKLOAD", "LOWTIDE_EPOCH"}
	for name, is := range map[string]bool{"LOWTIDE_RESTORED": c.Restored != "", "LOWTIDE_SAVE_EVERY": c.SaveEvery > 0} {
		if is {
			own = append(own, name)
		}
	}
	slices.Sort(own)
	return p.boxed(c, "run", []string{p.ckpt(c.Epoch), filepath.Dir(p.deadline(c.Epoch))}, own)
}
