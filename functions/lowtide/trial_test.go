package main_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// trial runs lowtide trial and returns all that it prints, with its exit status.
func trial(t *testing.T, bin string, args ...string) (string, int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), bin, append([]string{"trial"}, args...)...).CombinedOutput()
	if err == nil {
		return string(out), 0
	}
	exit, ok := err.(*exec.ExitError) //nolint:errorlint // as CombinedOutput returns it
	if !ok {
		t.Fatal(err)
	}
	return string(out), exit.ExitCode()
}

func TestATrialMeasuresOneMachineAndEndsIt(t *testing.T) {
	t.Parallel()
	bin := program(t)
	cloud := openElsewhere(t, bin, "--speed", "120", "--foreign", "2")
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--state", filepath.Join(dir, "s1"), "--budget", "0.10", "--cloud", cloud.URL(), "fake"}, 1, "nothing is bought: it may cost more than the budget"},
		{[]string{"--state", filepath.Join(dir, "s1"), "--budget", "9", "--cloud", cloud.URL(), "fake=H100"}, 1, "sells nothing now"},
		{[]string{"--state", filepath.Join(dir, "s1"), "--budget", "9", "--cloud", cloud.URL(), "fake", "fake=spot"}, 2, "asked for twice"},
		{[]string{"--state", filepath.Join(dir, "s1"), "--budget", "9", "--cloud", cloud.URL(), "--dry-run", "fake=on_demand"}, 0, "on_demand"},
		{[]string{"--state", filepath.Join(dir, "s2"), "--budget", "9", "paperspace"}, 2, "PAPERSPACE_API_KEY is not set"},
		{[]string{"--budget", "9", "fake"}, 2, "state"},
	} {
		if out, code := trial(t, bin, c.args...); code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("trial %s: status %d with %q, want %d with %q", strings.Join(c.args, " "), code, out, c.code, c.says)
		}
	}
	if n := len(cloud.bill()); n != 0 {
		t.Fatalf("%d machines were bought before any trial", n)
	}
	out, code := trial(t, bin, "--state", filepath.Join(dir, "s3"), "--budget", "20", "--cloud", cloud.URL(), "--work", "8m", "--limit", "3h", "fake=on_demand")
	for _, row := range []string{
		`booted in +[0-9hm.]+s`, `device 0 .* [0-9.]+ TFLOPS measured`, `proof +verified in`, `to the bucket +4\.7 MB in .* MB/s`, `restored in +[0-9hm.]+s`,
		`round trip +[0-9.]+(µs|ms|s)`, `cost +[0-9.]+ USD: .* at 3\.0600 USD/h`, `outcome +finished`,
	} {
		if !regexp.MustCompile(row).MatchString(out) {
			t.Errorf("no row like %s in\n%s", row, out)
		}
	}
	bill := cloud.bill()
	if code != 0 || len(bill) != 1 || len(bill.Running()) != 0 {
		t.Errorf("status %d, %d machines bought, %d run", code, len(bill), len(bill.Running()))
	}
}
