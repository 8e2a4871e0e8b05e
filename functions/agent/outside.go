package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// Endpoint is a Watch over HTTP: 404 until there is a notice, then JSON {"action","time"}, as AWS has it at
// spot/instance-action.
type Endpoint struct {
	URL    string
	Client *http.Client // nil: http.DefaultClient
}

// Look asks once.
func (e Endpoint) Look(ctx context.Context) (Notice, bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL, nil)
	if err != nil {
		return Notice{}, false, err
	}
	client := e.Client
	if client == nil {
		client = http.DefaultClient
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
	var n Notice
	if err := json.NewDecoder(io.LimitReader(res.Body, maxMarker)).Decode(&n); err != nil {
		return Notice{}, false, fmt.Errorf("%s: %w", e.URL, err)
	}
	if n.Time.IsZero() {
		return Notice{}, false, fmt.Errorf("%s: a notice without a time", e.URL)
	}
	return n, true, nil
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

// Proof is a Bench that runs the benchmark runner, a command to which the nonce, the suite and the wish for JSON are
// added. What it prints counts, whatever its exit code: that repeats the verdict.
type Proof []string

const maxResultJSON = 8 << 20

// Run measures, and reads what was printed.
func (p Proof) Run(ctx context.Context, machine string, b fleet.Benchmark) (events.BenchmarkFinished, error) {
	if len(p) == 0 {
		return events.BenchmarkFinished{}, errors.New("no benchmark is configured on this machine")
	}
	args := append(append([]string{}, p[1:]...), "--json", "--nonce="+b.Nonce)
	if b.Suite != "" {
		args = append(args, "--suite="+b.Suite)
	}
	cmd := exec.CommandContext(ctx, p[0], args...)
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &bounded{&out, maxResultJSON}, &bounded{&errs, maxMarker}
	err := cmd.Run()
	if ctx.Err() != nil {
		return events.BenchmarkFinished{}, ctx.Err()
	}
	got, bad := measured(machine, out.Bytes())
	if bad != nil && err != nil { // 1 is also the exit code of a verdict
		return got, fmt.Errorf("%s: %w: %s", p[0], err, tail(errs.String()))
	}
	return got, bad
}

// printed is what the agent passes on of the runner's result.
type printed struct {
	Nonce   string    `json:"nonce"`
	Backend string    `json:"backend"`
	Suite   string    `json:"suite"`
	Elapsed float64   `json:"elapsed"` // seconds
	Verdict string    `json:"verdict"`
	Causes  []finding `json:"causes"`
	Devices []struct {
		Name     string    `json:"name"`
		UUID     string    `json:"uuid"`
		Measured float64   `json:"measured_tflops"`
		Rated    float64   `json:"rated_tflops"`
		Lower    *float64  `json:"lower95"`
		Upper    *float64  `json:"upper95"`
		Causes   []finding `json:"causes"`
	} `json:"devices"`
	Product struct {
		Verified bool    `json:"verified"`
		Checksum float64 `json:"checksum"`
	} `json:"product"`
}

type finding struct {
	Cause  string `json:"cause"`
	Class  string `json:"class"`
	Detail string `json:"detail"`
	Want   string `json:"want"`
	Got    string `json:"got"`
}

func (f finding) String() string {
	s := f.Cause
	if f.Class != "" {
		s = f.Class + ": " + s
	}
	if f.Detail != "" {
		s += ": " + f.Detail
	}
	if f.Want != "" || f.Got != "" {
		s += fmt.Sprintf(" is %s, expected %s", f.Got, f.Want)
	}
	return s
}

// mostCauses keeps a fact small whatever a runner prints.
const mostCauses = 32

func measured(machine string, out []byte) (events.BenchmarkFinished, error) {
	var p printed
	if err := json.Unmarshal(out, &p); err != nil {
		return events.BenchmarkFinished{}, fmt.Errorf("read the benchmark's result: %w", err)
	}
	f := events.BenchmarkFinished{
		Machine: machine, Nonce: p.Nonce, Backend: p.Backend, Suite: p.Suite, Verdict: p.Verdict,
		Elapsed: time.Duration(p.Elapsed * float64(time.Second)),
	}
	if p.Product.Verified {
		f.Product = strconv.FormatFloat(p.Product.Checksum, 'g', -1, 64)
	}
	causes := p.Causes
	for _, d := range p.Devices {
		dev := events.Device{Name: d.Name, UUID: d.UUID, Measured: d.Measured, Rated: d.Rated}
		if d.Rated > 0 {
			dev.Ratio = d.Measured / d.Rated
		}
		if d.Lower != nil && d.Upper != nil {
			dev.Lower, dev.Upper = *d.Lower, *d.Upper
		}
		f.Devices = append(f.Devices, dev)
		causes = append(causes, d.Causes...)
	}
	for _, c := range causes[:min(len(causes), mostCauses)] {
		f.Causes = append(f.Causes, strings.ToValidUTF8(c.String(), "?"))
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
