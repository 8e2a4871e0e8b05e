package infra_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lowtide/functions/lowtide/nats/natstest"
)

// The tests of this package need sam, cfn-lint and moto (requirements.txt, in a virtual environment that LOWTIDE_VENV names)
// and Lambda's emulator, built from its Go module. They take minutes, so they run where LOWTIDE_DEPLOY is set, as .ci/run
// does in a step of its own; there nothing may be missing.
const emulator = "github.com/aws/aws-lambda-runtime-interface-emulator/cmd/aws-lambda-rie@v0.0.0-20261030222936-bef5c4ba774d"

var root = func() string {
	dir, err := filepath.Abs("..")
	if err != nil {
		panic(err)
	}
	return dir
}()

// deployed skips a test that is for the deployment step.
func deployed(t testing.TB) {
	t.Helper()
	if os.Getenv("LOWTIDE_DEPLOY") == "" {
		t.Skip("set LOWTIDE_DEPLOY=1 and LOWTIDE_VENV (infra/requirements.txt) to test the deployment; .ci/run does, in a step of its own")
	}
}

// venv is a program of the virtual environment.
func venv(t testing.TB, program string) string {
	t.Helper()
	deployed(t)
	p := filepath.Join(os.Getenv("LOWTIDE_VENV"), "bin", program)
	if _, err := os.Stat(p); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no %s: LOWTIDE_VENV must name a virtual environment with infra/requirements.txt: %v", program, err)
		}
		t.Skipf("no %s: LOWTIDE_VENV must name a virtual environment with infra/requirements.txt: %v", program, err)
	}
	return p
}

// run is a command's output; it fails the test.
func run(t testing.TB, env []string, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s\n%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return out
}

// once keeps what the tests of one run share.
var once struct {
	sync.Mutex
	dir   string
	built map[string]error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if once.dir != "" {
		os.RemoveAll(once.dir)
	}
	os.Exit(code)
}

// shared makes something in a directory of this run, once.
func shared(t testing.TB, name string, build func(dir string)) string {
	t.Helper()
	once.Lock()
	defer once.Unlock()
	if once.dir == "" {
		dir, err := os.MkdirTemp("", "lowtide-infra-")
		if err != nil {
			t.Fatal(err)
		}
		once.dir, once.built = dir, map[string]error{}
	}
	dir := filepath.Join(once.dir, name)
	if _, ok := once.built[name]; !ok {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		build(dir)
		once.built[name] = nil
	}
	return dir
}

// samBuild is `sam build` for an architecture in Go's word, and the folder with a folder for each function.
func samBuild(t testing.TB, arch string) string {
	sam := venv(t, "sam")
	return shared(t, "sam-"+arch, func(dir string) {
		param := map[string]string{"arm64": "arm64", "amd64": "x86_64"}[arch]
		run(t, []string{"SAM_CLI_TELEMETRY=0", "AWS_DEFAULT_REGION=us-east-1", "GOARCH=" + arch, "GOFLAGS=-buildvcs=false"},
			sam, "build", "-b", dir, "--parameter-overrides", "Architecture="+param)
	})
}

// rie is Lambda's own emulator.
func rie(t testing.TB) string {
	deployed(t)
	if own := os.Getenv("LOWTIDE_RIE"); own != "" {
		return own
	}
	return filepath.Join(shared(t, "rie", func(dir string) {
		run(t, []string{"GOBIN=" + dir, "GOFLAGS=-buildvcs=false", "GOWORK=off"}, "go", "install", emulator)
	}), "aws-lambda-rie")
}

// lowtide is the command.
func lowtide(t testing.TB) string {
	deployed(t)
	return filepath.Join(shared(t, "lowtide", func(dir string) {
		run(t, []string{"CGO_ENABLED=0"}, "go", "build", "-buildvcs=false", "-o", dir, "./functions/lowtide")
	}), "lowtide")
}

// process is a program with all that it starts.
type process struct {
	cmd *exec.Cmd
	out *output
}

// output is what a process printed, readable while it runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) { o.mu.Lock(); defer o.mu.Unlock(); return o.b.Write(p) }

func (o *output) String() string { o.mu.Lock(); defer o.mu.Unlock(); return o.b.String() }

// start runs a program in a process group of its own until the test ends: an emulator's child survives it otherwise.
func start(t testing.TB, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{exec.Command(name, args...), &output{}}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		_ = p.cmd.Wait()
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(name), strings.Join(args, " "), tail(p.out.String()))
		}
	})
	return p
}

func tail(s string) string {
	if len(s) > 6000 {
		return "…" + s[len(s)-6000:]
	}
	return s
}

// emulated is one function under the emulator. Its url takes one call at a time, whoever calls: the emulator dies of two.
type emulated struct {
	*process
	name, url string
}

// emulate starts a function that sam built.
func emulate(t testing.TB, build, logical string, env ...string) *emulated {
	t.Helper()
	door, api := natstest.Port(t), natstest.Port(t)
	env = append(env, "AWS_LAMBDA_FUNCTION_TIMEOUT=30", "AWS_REGION=us-east-1", "AWS_LAMBDA_FUNCTION_NAME="+logical)
	p := start(t, env, rie(t), "--runtime-interface-emulator-address", fmt.Sprint("127.0.0.1:", door),
		"--runtime-api-address", fmt.Sprint("127.0.0.1:", api), filepath.Join(build, logical, "bootstrap"))
	behind, err := url.Parse(fmt.Sprint("http://127.0.0.1:", door))
	if err != nil {
		t.Fatal(err)
	}
	var one sync.Mutex
	forward := httputil.NewSingleHostReverseProxy(behind)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one.Lock()
		defer one.Unlock()
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	e := &emulated{process: p, name: logical, url: front.URL}
	until(t, 20*time.Second, "the emulator of "+logical+" listens", func() bool {
		c, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", door))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return e
}

// invoke calls the function and takes nothing but its own answer for one: the emulator says 200 for a time-out too.
func (e *emulated) invoke(t testing.TB, payload []byte) map[string]any {
	t.Helper()
	out, err := e.call(payload)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (e *emulated) call(payload []byte) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/2015-03-31/functions/function/invocations", bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	if json.Unmarshal(body, &out) != nil || out["errorType"] != nil {
		return nil, fmt.Errorf("%s answered %s", e.name, body)
	}
	return out, nil
}

// until waits for something that other processes do.
func until(t testing.TB, limit time.Duration, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !so(); time.Sleep(10 * time.Millisecond) { // other processes: nothing to wait on
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

func host(t testing.TB) string {
	if runtime.GOOS != "linux" {
		t.Skip("functions are built for Linux; the emulator runs them here only there")
	}
	return runtime.GOARCH
}
