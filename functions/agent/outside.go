package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// Endpoint is a Watch over HTTP: a cloud's metadata service, which answers 404 or nothing until there is a notice, and then
// in the cloud's own form (readNotice).
type Endpoint struct {
	URL    string
	Token  string           // URL that gives a token for URL when it is PUT; "": none is needed
	Self   string           // the cloud's name of this machine, where notices are of several; "": all count
	Client *http.Client     // nil: http.DefaultClient
	Now    func() time.Time // nil: time.Now
}

// tokenHeaders are what each cloud calls the header that carries a token; with "-ttl-seconds" behind it asks for one.
// Another cloud's header is not looked at.
var tokenHeaders = []string{"X-aws-ec2-metadata-token", "X-aliyun-ecs-metadata-token"}

// token asks for a token that is good for one look.
func (e Endpoint) token(ctx context.Context, client *http.Client) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, e.Token, nil)
	if err != nil {
		return "", err
	}
	for _, h := range tokenHeaders {
		req.Header.Set(h+"-ttl-seconds", "60")
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxMarker))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", e.Token, res.Status)
	}
	return strings.TrimSpace(string(b)), err
}

// Look asks once.
func (e Endpoint) Look(ctx context.Context) (Notice, bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL, nil)
	if err != nil {
		return Notice{}, false, err
	}
	req.Header.Set("Metadata", "true") // Azure's service answers nobody without it
	client := e.Client
	if client == nil {
		client = http.DefaultClient
	}
	now := e.Now
	if now == nil {
		now = time.Now
	}
	if e.Token != "" {
		token, err := e.token(ctx, client)
		if err != nil {
			return Notice{}, false, err
		}
		for _, h := range tokenHeaders {
			req.Header.Set(h, token)
		}
	}
	res, err := client.Do(req)
	if err != nil {
		return Notice{}, false, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotFound {
		return Notice{}, false, nil
	}
	if res.StatusCode != http.StatusOK {
		return Notice{}, false, fmt.Errorf("%s: %s", e.URL, res.Status)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxMarker))
	if err != nil {
		return Notice{}, false, fmt.Errorf("%s: %w", e.URL, err)
	}
	n, found, err := readNotice(body, e.Self, now())
	if err != nil {
		return Notice{}, false, fmt.Errorf("%s: %w", e.URL, err)
	}
	return n, found, nil
}

// Shutdown is a Power that runs a command, such as "shutdown -h now".
type Shutdown []string

// Off runs the command.
func (s Shutdown) Off(ctx context.Context, why string) error {
	if len(s) == 0 {
		return errors.New("no command to end this machine is configured")
	}
	out, err := exec.CommandContext(ctx, s[0], s[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s (%s): %w: %s", s[0], why, err, clip(string(out)))
	}
	return nil
}

// Proof is a Bench that runs the benchmark runner, a command to which the nonce, the suite and the wish for the fact are
// added: in a container where it has an image and the machine an engine, else as a process. What it prints counts,
// whatever its exit code: that repeats the verdict.
type Proof struct {
	Command []string // on this machine; with Image, its arguments go to the image's own program
	Image   string   // "": no container
}

// maxFact bounds what the runner may print: a fact's own limit.
const maxFact = events.MaxBytes

// noContainer is what the engines exit with when they themselves failed, before anything ran.
const noContainer = 125

// Run measures, and reads what was printed.
func (p Proof) Run(ctx context.Context, machine string, b fleet.Benchmark) (events.BenchmarkFinished, error) {
	command, by := p.contained()
	if command == nil {
		return p.run(ctx, p.Command, byProcess, machine, b)
	}
	got, err := p.run(ctx, command, by, machine, b)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == noContainer && len(p.Command) > 0 {
		return p.run(ctx, p.Command, byProcess, machine, b)
	}
	return got, err
}

func (p Proof) run(ctx context.Context, command []string, by, machine string, b fleet.Benchmark) (events.BenchmarkFinished, error) {
	if len(command) == 0 {
		return events.BenchmarkFinished{}, errors.New("no benchmark is configured on this machine")
	}
	args := append(slices.Clone(command[1:]), "--event", "--machine="+machine, "--nonce="+b.Nonce)
	if b.Suite != "" {
		args = append(args, "--suite="+b.Suite)
	}
	cmd := exec.CommandContext(ctx, command[0], args...)
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &bounded{&out, maxFact}, &bounded{&errs, maxMarker}
	err := cmd.Run()
	if ctx.Err() != nil {
		return events.BenchmarkFinished{}, ctx.Err()
	}
	got, bad := printed(out.Bytes())
	got.Ran = by
	if bad != nil && err != nil { // 1 is also the exit code of a verdict
		return got, fmt.Errorf("%s: %w: %s", command[0], err, clip(tail(errs.String())))
	}
	return got, bad
}

// engines are looked for in this order, each with how it hands the GPUs to a container: podman by the container device
// interface, the others by their own flag.
var engines = []struct {
	name string
	gpus []string
}{
	{"podman", []string{"--device", "nvidia.com/gpu=all"}},
	{"docker", []string{"--gpus", "all"}},
	{"nerdctl", []string{"--gpus", "all"}},
}

// byProcess is said of a benchmark that ran in no container.
const byProcess = "process"

// contained is the command in a container, and its engine; nil where there is no image or no engine, as on machines that
// are containers themselves: there the plain process measures the same.
func (p Proof) contained() (command []string, by string) {
	if p.Image == "" {
		return nil, ""
	}
	for _, e := range engines {
		path, err := exec.LookPath(e.name)
		if err != nil {
			continue
		}
		command = append([]string{path, "run", "--rm", "--read-only", "--network=none", "--cap-drop=all", "--security-opt=no-new-privileges"}, e.gpus...)
		return append(append(command, p.Image), p.arguments()...), e.name
	}
	return nil, ""
}

// arguments are the command's without its program, which the image brings itself.
func (p Proof) arguments() []string {
	if i := slices.Index(p.Command, "run"); i >= 0 {
		return p.Command[i:]
	}
	return []string{"run", "--backend=cuda"}
}

// printed reads the runner's fact.
func printed(out []byte) (events.BenchmarkFinished, error) {
	e, err := events.Decode(bytes.TrimSpace(out))
	if err != nil {
		return events.BenchmarkFinished{}, fmt.Errorf("read the benchmark's result: %w", err)
	}
	f, ok := e.Data.(events.BenchmarkFinished)
	if !ok {
		return f, fmt.Errorf("the benchmark printed %s", e.Data.Kind())
	}
	return f, nil
}

// bounded keeps the first bytes of what is written, and drops the rest.
type bounded struct {
	to   *bytes.Buffer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.to.Write(p[:n])
	return len(p), nil
}
