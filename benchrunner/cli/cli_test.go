package cli_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"lowtide/benchrunner/cli"
	"lowtide/benchrunner/suite"
	"lowtide/shared/gpu"
)

// asProgram makes this test binary behave as benchrunner. Each fake machine needs a process of its own: the loader keeps a
// library once it is open.
const asProgram = "LOWTIDE_TEST_AS_BENCHRUNNER"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		// A fake card's windows are slept through, so more programs than cores may run at once.
		flag.Parse()
		flag.Set("test.parallel", "5")
		os.Exit(m.Run())
	}
	err := cli.Command().Execute()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(cli.Code(err))
}

// answer is one run of the program.
type answer struct {
	code   int
	stdout []byte
	stderr string
	result suite.Result
}

// benchrunner runs the program with variables and arguments; with --json among them the result is decoded.
func benchrunner(t *testing.T, env []string, args ...string) answer {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append([]string{asProgram + "=1", "HOME=" + t.TempDir()}, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	a := answer{code: cmd.ProcessState.ExitCode(), stdout: stdout.Bytes(), stderr: stderr.String()}
	for _, arg := range args {
		if arg == "--json" && a.code != cli.ExitUsage {
			if err := json.Unmarshal(a.stdout, &a.result); err != nil {
				t.Fatalf("%v: exit %d, stdout %q, stderr %q", err, a.code, a.stdout, a.stderr)
			}
		}
	}
	return a
}

// causes are every cause in a result, the machine's and the devices'.
func causes(r suite.Result) map[gpu.Cause]gpu.Finding {
	all := map[gpu.Cause]gpu.Finding{}
	for _, f := range r.Causes {
		all[f.Cause] = f
	}
	for _, d := range r.Devices {
		for _, f := range d.Causes {
			all[f.Cause] = f
		}
	}
	return all
}
