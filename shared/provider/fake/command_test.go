//go:build unix

package fake_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/market"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// TestMain lets the test binary be the fakecloud command.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_FAKECLOUD") == "" {
		os.Exit(m.Run())
	}
	wall := func(s string) (func() time.Time, func(time.Duration) time.Duration, error) {
		if s != "" {
			return nil, nil, fmt.Errorf("clock %q: the test keeps wall time", s)
		}
		return time.Now, func(d time.Duration) time.Duration { return d }, nil
	}
	cmd := fake.Command(wall, []string{"sh", "-c", `echo "$LOWTIDE_METADATA_URL" > url; sleep 100`})
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startCommand runs a fakecloud and returns it with a client.
func startCommand(t *testing.T, dir string) (*exec.Cmd, *fake.Client, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "--dir", dir, "--boot", "1ms", "--ending", "100ms", "--foreign", "2", "--seed", "4")
	cmd.Env, cmd.Stderr = append(os.Environ(), "TEST_FAKECLOUD=1"), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("no URL: %v", err)
	}
	c, err := fake.Dial(t.Context(), strings.TrimSpace(url))
	if err != nil {
		t.Fatal(err)
	}
	return cmd, c, strings.TrimSpace(url)
}

func TestACloudInItsOwnProcessSurvivesAKillWithItsMachines(t *testing.T) {
	dir := t.TempDir()
	cmd, c, _ := startCommand(t, dir)
	want := request(t, c, "p1", fleet.OnDemand)
	m, err := c.Launch(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	pidFile := filepath.Join(dir, "machines", m.ID, "agent.pid")
	eventually(t, "the machine", func() bool { return len(read(pidFile)) > 0 })
	pid := read(pidFile)

	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if _, err := c.List(t.Context()); provider.Word(err) != "unavailable" {
		t.Errorf("a list of a dead cloud: got %v, want it unavailable", err)
	}
	if _, err := c.Launch(t.Context(), want); provider.Word(err) != "unavailable" {
		t.Errorf("a launch that was never sent: got %v, want it unavailable", err)
	}

	_, c, url := startCommand(t, dir)
	again, err := c.Launch(t.Context(), want)
	if err != nil || again.ID != m.ID {
		t.Fatalf("the token after the kill: got %s and %v, want %s", again.ID, err, m.ID)
	}
	if now := read(pidFile); now != pid || syscall.Kill(atoi(pid), 0) != nil {
		t.Errorf("the machine runs as %s, was %s: it must have lived on", now, pid)
	}
	metadata(t, url, m.ID, c)
	if err := c.End(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the machine", func() bool { return syscall.Kill(atoi(pid), 0) != nil || zombie(atoi(pid)) })
	eventually(t, "the end of the bill", func() bool {
		bill, err := c.Bill(t.Context())
		return err == nil && len(bill) == 3 && len(bill.Ours().Running()) == 0
	})
}

// metadata asks what a machine would ask.
func metadata(t *testing.T, url, id string, c *fake.Client) {
	t.Helper()
	get := func(method, path string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, url+"/metadata/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	if got := get("GET", id+"/interruption"); got != 404 {
		t.Errorf("interruption before a notice: status %d, want 404", got)
	}
	if err := c.Interrupt(t.Context(), id, time.Hour); err != nil {
		t.Fatal(err)
	}
	if got := get("GET", id+"/interruption"); got != 200 {
		t.Errorf("interruption after a notice: status %d, want 200", got)
	}
	if got := get("GET", id+"/identity"); got != 200 {
		t.Errorf("identity: status %d, want 200", got)
	}
	if got := get("GET", "i-999999/identity"); got != 404 {
		t.Errorf("identity of nobody: status %d, want 404", got)
	}
	notices, err := c.Notices(t.Context(), 0)
	if err != nil || len(notices) != 1 || notices[0].ID != id {
		t.Errorf("notices: got %+v and %v, want one of %s", notices, err, id)
	}
	if got := get("POST", "i-999999/poweroff"); got != 204 {
		t.Errorf("poweroff of nobody: status %d, want 204", got)
	}
}

func read(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(b)
}

func atoi(s string) (n int) {
	_, _ = fmt.Sscan(s, &n)
	return n
}

// recorded loads the public spot traces, which lie outside of the repository.
func recorded(t *testing.T) []market.Trace {
	t.Helper()
	dir := os.Getenv("LOWTIDE_SHARED")
	if dir == "" {
		dir = "../../../../shared"
	}
	dir = filepath.Join(dir, "data", "spot-traces")
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("recorded traces: %v", err)
		}
		t.Skipf("recorded traces are not here (%v); set LOWTIDE_SHARED", err)
	}
	traces, err := market.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return traces
}

func TestUnderRecordedTracesSpotLivesAsLongAsItsZoneWasUp(t *testing.T) {
	traces := recorded(t)
	clk := newClock()
	c := open(t, fake.Config{Now: clk.Now, Traces: traces, Notice: -1, Origin: start})
	end := start.Add(4 * 24 * time.Hour)
	bought := 0
	for clk.Now().Before(end) { // keep one spot machine in each zone whenever it is up
		offers, err := c.Offers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		running := map[string]bool{}
		for _, r := range c.Bill().Running() {
			running[r.Offer.Zone] = true
		}
		for _, o := range offers {
			if o.Market != fleet.Spot || o.Stock.Or(1) == 0 || running[o.Zone] {
				continue
			}
			bought++
			if _, err := c.Launch(t.Context(), provider.Request{Token: fmt.Sprint(bought), Offer: o}); err != nil {
				t.Fatal(err)
			}
		}
		clk.Pass(traces[0].Gap)
	}
	hours := map[string]float64{}
	for _, r := range c.Bill() {
		until := end
		if !r.Bills() {
			until = r.Until
		}
		hours[r.Offer.Zone] += until.Sub(r.Since).Hours()
	}
	for _, tr := range traces {
		up := 0.0
		for at := time.Duration(0); start.Add(at).Before(end); at += tr.Gap {
			if tr.At(at) {
				up += min(tr.Gap, end.Sub(start.Add(at))).Hours()
			}
		}
		if got := hours[tr.Zone]; got < up-0.06 || got > up+0.06 { // a tick at the end of the window
			t.Errorf("%s: %.2f hours on the bill, the zone was up for %.2f", tr.Zone, got, up)
		}
	}
	if bought < 50 {
		t.Errorf("%d machines in four days, want at least 50", bought)
	}
	t.Logf("%d machines, %s", bought, c.Bill().Total(end))
}
