//go:build container

package image_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/benchrunner/cli"
	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/bus"
	"lowtide/shared/gpu/gputest"
)

// engine is podman with a storage of its own. runc, because crun refuses hosts that mount both cgroup versions.
type engine struct {
	t      *testing.T
	dir    string
	driver string // overlay, or vfs, which copies, where the host's disk is an overlay itself
}

func (e engine) command(args ...string) *exec.Cmd {
	own := []string{"--storage-driver", e.driver, "--root", filepath.Join(e.dir, "storage"), "--runroot", filepath.Join(e.dir, "run"), "--runtime", "runc"}
	return exec.Command("podman", append(own, args...)...)
}

func (e engine) must(args ...string) string {
	e.t.Helper()
	out, err := e.command(args...).CombinedOutput()
	if err != nil {
		e.t.Fatalf("podman %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// run starts the image as an agent does, with the bounds of a host that is a container itself.
func (e engine) run(args ...string) (stdout, stderr string, code int) {
	e.t.Helper()
	bounds := []string{
		"run", "--rm", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges",
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
	}
	cmd := e.command(append(bounds, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		e.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is needed", p)
			}
			t.Skipf("no %s: cannot build the image", p)
		}
	}
	if os.Getuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("debootstrap needs root")
		}
		t.Skip("debootstrap needs root")
	}
}

func must(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out[max(0, len(out)-2000):])
	}
}

// codename is this host's Debian release: libraries built here run there.
func codename(t *testing.T) string {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return v
		}
	}
	t.Fatal("/etc/os-release names no release")
	return ""
}

// base is a minimal Debian as an archive, made once on a host.
func base(t *testing.T) string {
	name := codename(t)
	archive := filepath.Join(os.TempDir(), "lowtide-base-"+name+".tar")
	if _, err := os.Stat(archive); err == nil {
		return archive
	}
	dir := t.TempDir()
	must(t, nil, "debootstrap", "--variant=minbase", name, dir)
	// Each container is a copy of it: what no program here reads stays out.
	must(t, nil, "tar", "-C", dir, "--exclude=./usr/share", "--exclude=./var", "--exclude=./usr/lib/*/perl*", "--exclude=./usr/lib/*/gconv", "--exclude=./usr/bin/perl*", "-cf", archive+".part", ".")
	if err := os.Rename(archive+".part", archive); err != nil {
		t.Fatal(err)
	}
	return archive
}

// build puts the fake libraries on a base, and the image on both.
func build(t *testing.T) engine {
	need(t, "podman", "runc", "debootstrap", "gcc", "tar")
	dir, err := os.MkdirTemp("", "image-") // podman wants a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	e := engine{t, dir, "overlay"}
	if err := e.command("import", base(t), "base").Run(); err != nil {
		e.driver = "vfs"
		e.must("import", base(t), "base")
	}
	fakes, context := filepath.Join(dir, "fakes"), filepath.Join(dir, "context")
	if err := errors.Join(os.Mkdir(fakes, 0o755), os.Mkdir(context, 0o755)); err != nil {
		t.Fatal(err)
	}
	must(t, nil, "cp", "-r", "--preserve=links", gputest.Libraries(t), filepath.Join(fakes, "fake"))
	must(t, nil, "chmod", "-R", "a+rX", fakes)
	if err := os.WriteFile(filepath.Join(fakes, "Containerfile"), []byte("FROM localhost/base\nCOPY fake /opt/fake\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	e.must("build", "-t", "faked", fakes)
	must(t, []string{"CGO_ENABLED=1"}, "go", "build", "-trimpath", "-o", filepath.Join(context, "benchrunner"), "lowtide/benchrunner")
	e.must("build", "--build-arg", "BASE=localhost/faked", "-f", "../Containerfile", "-t", "benchrunner", context)
	return e
}

func TestTheImageAnswersOnNATSForEachMachine(t *testing.T) {
	e := build(t)
	s := natstest.Start(t, embedded.Options{Listen: true})
	_, js := natstest.Connect(t, s)
	type card = gputest.Card
	t4 := card{
		"name": "Tesla T4", "device": "1eb8", "subsystem": "12a2", "cc": "7.5", "units": 40, "bus_bits": 256, "l2_mb": 4,
		"memory_mb": 15360, "tflops": 24.3, "fp64_tflops": 0.25, "bandwidth_gbs": 250, "default_w": 70, "power_w": 69,
		"clock": 620, "max_clock": 1590, "pcie_gen": 3, "pcie_gbs": 12.5,
	}
	with := func(changes card) gputest.Machine {
		c := card{}
		for k, v := range t4 {
			c[k] = v
		}
		for k, v := range changes {
			c[k] = v
		}
		return gputest.Machine{Cards: []card{c}}
	}
	for _, tt := range []struct {
		name    string
		machine gputest.Machine
		path    string // of the libraries; "": the fake ones
		verdict string
		cause   string
	}{
		{"healthy", with(nil), "", "pass", ""},
		{"slow", with(card{"tflops": 15.0, "clock": 390}), "", "fail", "degraded"},
		{"counterfeit", with(card{"name": "NVIDIA A100-SXM4-80GB"}), "", "fail", "name_mismatch"},
		{"errors grow", with(card{"uncorrected_grows": 2}), "", "fail", "ecc_uncorrected"},
		{"lost", with(card{"lost_after": 40}), "", "fail", "gpu_lost"},
		{"throttled", with(card{"tflops": 17.0, "clock": 430, "reasons": 0x40 | 0x8}), "", "fail", "hardware_slowdown"},
		{"contended", with(card{"used_mb": 4000, "tflops": 15.0}), "", "inconclusive", "contended"},
		{"a library that computes nothing", with(card{"lie": "idle"}), "", "fail", "product_wrong"},
		{"no library", with(nil), "/nowhere", "fail", "no_driver"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env := tt.machine.Environment(t)
			var file string
			for _, v := range env {
				if f, ok := strings.CutPrefix(v, "LOWTIDE_FAKE_GPU="); ok {
					file = f
				}
			}
			path := tt.path
			if path == "" {
				path = "/opt/fake"
			}
			name := strings.ReplaceAll(tt.name, " ", "-")
			stdout, stderr, code := e.run("--network=host", "--volume", file+":/machine.json:ro",
				"--env", "LOWTIDE_FAKE_GPU=/machine.json", "--env", "LD_LIBRARY_PATH="+path, "--env", "LOWTIDE_NATS_TOKEN="+s.Token(), "benchrunner",
				"run", "--backend", "cuda", "--size", "320", "--window", "2ms", "--event", "--nats", s.URL(), "--fleet", "team", "--machine", name)
			stored, err := bus.Last(t.Context(), js, bus.Facts, bus.Subject("team", "benchmark.finished", name))
			if err != nil {
				t.Fatalf("nothing on NATS: %v; exit %d, %s %s", err, code, stdout, stderr)
			}
			f := stored.Event.Data.(events.BenchmarkFinished)
			if f.Verdict != tt.verdict || !strings.Contains(strings.Join(f.Causes, "\n"), tt.cause) {
				t.Errorf("got %q %q, want %q %q", f.Verdict, f.Causes, tt.verdict, tt.cause)
			}
			want := map[string]int{"pass": cli.ExitPass, "fail": cli.ExitFail, "inconclusive": cli.ExitInconclusive}
			if code != want[tt.verdict] {
				t.Errorf("got exit code %d, want %d: %s", code, want[tt.verdict], stderr)
			}
		})
	}
	t.Run("nobody, and nothing to write on", func(t *testing.T) {
		out, errs, _ := e.run("--network=none", "--entrypoint", "/bin/sh", "benchrunner", "-c", "id -u; touch /usr/x /x")
		if strings.TrimSpace(out) != "65534" || strings.Count(errs, "Read-only file system") != 2 {
			t.Errorf("got user %q, %q", out, errs)
		}
	})
	t.Run("starts at once", func(t *testing.T) {
		began := time.Now()
		if _, errs, code := e.run("--network=none", "benchrunner", "--help"); code != 0 {
			t.Errorf("exit %d: %s", code, errs)
		}
		t.Logf("a container that prints its help: %s", time.Since(began).Round(time.Millisecond))
	})
}
