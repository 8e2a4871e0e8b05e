package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
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

// mostStart is what a program may take until it does something: a container's own start is on top of it.
const mostStart = 50 * time.Millisecond

func TestTheProgramStartsAtOnce(t *testing.T) {
	program := filepath.Join(t.TempDir(), "benchrunner")
	if out, err := exec.Command("go", "build", "-o", program, "lowtide/benchrunner").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	best := time.Hour // others use the cores: the fastest start is the program's own
	for range 30 {
		began := time.Now()
		if out, err := exec.Command(program, "run", "--help").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		best = min(best, time.Since(began))
	}
	t.Logf("starts in %s", best.Round(100*time.Microsecond))
	if best > mostStart {
		t.Errorf("starts in %s, at most %s", best, mostStart)
	}
}

// mostQuick is what the quick suite may take on a steady machine.
const mostQuick = 90 * time.Second

func TestTheQuickSuiteFitsIntoNinetySeconds(t *testing.T) {
	p := gpu.ProfileOf("cuda")
	// What the host does: both inputs, and the check of one product. It grows with the square of the size.
	const part = 4
	size := p.Size / part
	began := cpuTime()
	problem := product.New("n", size)
	problem.Halves(product.A)
	problem.Halves(product.B)
	problem.Verify(product.Output{Halves: make([]uint16, size*size)})
	host := part * part * (cpuTime() - began) / time.Duration(runtime.GOMAXPROCS(0))
	t.Logf("%s of windows, at most %s of warm-up, %s of the host's own work on %d cores", p.Measure, p.WarmUp, host.Round(100*time.Millisecond), runtime.GOMAXPROCS(0))
	if p.Measure+p.WarmUp > mostQuick*2/3 {
		t.Errorf("%s of windows and %s of warm-up leave no room for the rest", p.Measure, p.WarmUp)
	}
	if os.Getenv("LOWTIDE_LONG") == "" {
		t.Log("LOWTIDE_LONG=1 runs the suite on a fake card in full")
		return
	}
	// A product of full size cannot be computed by a fake in time, so the card multiplies small ones for as long.
	a := benchrunner(t, machine(a100).Environment(t), "run", "--backend", "cuda", "--json", "--size", "320")
	took := time.Duration(a.result.Elapsed*float64(time.Second)) + host
	t.Logf("%s in all, verdict %s", took.Round(100*time.Millisecond), a.result.Verdict)
	if took > mostQuick {
		t.Errorf("took %s, at most %s", took, mostQuick)
	}
}
