// Package gputest builds a fake NVIDIA machine for tests: libnvidia-ml.so.1, libcuda.so.1 and libcublas.so.12 made from our
// own C source, which a program loads by the same dlopen calls as the real ones.
//
// It promises a machine that is described by JSON, honest unless told to lie: its clocks agree with the host's, its memory
// keeps what is written, and its products are right. It needs gcc; where there is none a test is skipped with that reason,
// and fails when CI=true.
//
// It draws no power and knows nothing of speed: it proves the runner, never a card.
package gputest

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Card describes one device by field; a field left out has a healthy A100-SXM4-80GB's value.
//
//	name cuda_name uuid device subsystem bus cc cuda_cc units bus_bits cuda_bus_bits l2_mb    what it says it is
//	memory_mb cuda_memory_mb real_memory_mb used_mb alloc_error                               memory; less may be real
//	tflops fp64_tflops noise bandwidth_gbs pcie_gbs peer_gbs peers                            what it does
//	slow_share slow_after                                  begins at that share of its rate, full after so many products
//	clock max_clock power_w default_w enforced_w temperature reasons pcie_gen links           what NVML reads; links and
//	sm tensor dram pcie_mbs busy_memory                   percent and MB/s of its use; sm left out: no counters
//	links_active link_mbps ecc mig slice virtual mps processes busy                           mig left out: not supported
//	uncorrected uncorrected_grows remapped remap_pending remap_failed retired                 error counters
//	lost_after (multiplications) handle (NVML's refusal) nvml_error blas_create blas_gemm     failures; blas_double of FP64
//	hidden (from CUDA)
//	lie: idle (computes nothing), replay (another nonce's answer), flip (one wrong element), clock (events run slow),
//	     instant (events run and nothing is waited for), frozen (events stand still)
type Card map[string]any

// Machine is a whole fake: its cards, and what its libraries answer.
type Machine struct {
	Cards        []Card `json:"devices"`
	NVMLInit     int    `json:"nvml_init,omitempty"`     // nvmlInit_v2's answer; 9 is "driver not loaded"
	CUDAInit     *int   `json:"cuda_init,omitempty"`     // cuInit's answer
	CUDAReversed bool   `json:"cuda_reversed,omitempty"` // CUDA numbers the cards the other way round
	BlasVersion  int    `json:"blas_version,omitempty"`
}

//go:embed testdata/fake.c
var source []byte

// Old builds libraries of an old driver, which lack the newer symbols.
const Old = "-DOLD_LIBRARY"

// NeedCgo skips a test of what opens libraries where the program under test was built without it.
func NeedCgo(t testing.TB) {
	t.Helper()
	if !cgo {
		t.Skip("built without cgo: no GPU library can be opened")
	}
}

// Libraries builds the fakes and gives the folder to put into LD_LIBRARY_PATH. Builds are kept by the hash of the source.
func Libraries(t testing.TB, flags ...string) string {
	t.Helper()
	NeedCgo(t)
	if _, err := exec.LookPath("gcc"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("gcc is needed to build the fake GPU libraries")
		}
		t.Skip("no gcc: cannot build the fake GPU libraries")
	}
	sum := sha256.Sum256(fmt.Append(source, flags))
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("lowtide-fake-gpu-%d-%s", os.Getuid(), hex.EncodeToString(sum[:8])))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	made := build(t, flags)
	// Tests of several packages may build at once: the first rename wins, and all are equal.
	if err := os.Rename(made, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		if _, err := os.Stat(dir); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func build(t testing.TB, flags []string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lowtide-fake-gpu-building-")
	if err != nil {
		t.Fatal(err)
	}
	code, library := filepath.Join(dir, "fake.c"), filepath.Join(dir, "libcuda.so.1")
	if err := os.WriteFile(code, source, 0o644); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-std=gnu11", "-O3", "-Wall", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"}, flags...)
	args = append(args, "-o", library, code, "-lm", "-lpthread")
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	// One file under three names is loaded once, so the three share one clock.
	for _, name := range []string{"libnvidia-ml.so.1", "libcublas.so.12"} {
		if err := os.Symlink("libcuda.so.1", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Environment writes the machine to a file and gives the variables under which a program meets it.
func (m Machine) Environment(t testing.TB, flags ...string) []string {
	t.Helper()
	if m.Cards == nil {
		m.Cards = []Card{} // an empty list, not null
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "machine.json")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"LD_LIBRARY_PATH=" + Libraries(t, flags...), "LOWTIDE_FAKE_GPU=" + file}
}
