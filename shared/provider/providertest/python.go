package providertest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Python runs a program in the vendor's own SDK, one of the packages of the gate, and decodes the JSON that it prints into
// out. The program finds args in sys.argv. Without an interpreter that has the module the test is skipped with the reason,
// but not in CI.
func Python(t *testing.T, module, program string, out any, args ...string) {
	t.Helper()
	python := ""
	for _, p := range []string{filepath.Join(os.Getenv("LOWTIDE_PYTHON"), "bin", "python"), "python3"} {
		if exec.Command(p, "-c", "import "+module).Run() == nil {
			python = p
			break
		}
	}
	if python == "" {
		msg := "no Python here has " + module + ": python3 -m venv D, D/bin/pip install the clouds' clients as in .ci/run, and set LOWTIDE_PYTHON=D"
		if os.Getenv("CI") != "" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	cmd := exec.Command(python, append([]string{"-c", program}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(stderr.String())
		t.Fatalf("%s: %v: %s", module, err, text[max(0, len(text)-2000):])
	}
	if err := json.Unmarshal(stdout.Bytes(), out); err != nil {
		t.Fatalf("%s: %v in %.500s", module, err, stdout.Bytes())
	}
}
