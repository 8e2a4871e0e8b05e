package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheProgramBuildsWithoutCgoAndSaysWhatItLacks builds for real: the tag of a file is only right if the rest compiles.
func TestTheProgramBuildsWithoutCgoAndSaysWhatItLacks(t *testing.T) {
	program := filepath.Join(t.TempDir(), "benchrunner")
	build := exec.Command("go", "build", "-o", program, "lowtide/benchrunner")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, _ := exec.Command(program, "run", "--backend", "cuda").CombinedOutput() // exits with 3
	if !strings.Contains(string(out), "CGO_ENABLED=1") || !strings.Contains(string(out), "INCONCLUSIVE") {
		t.Errorf("got %s, want inconclusive naming CGO_ENABLED=1", out)
	}
}
