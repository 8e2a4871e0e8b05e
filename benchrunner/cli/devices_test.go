package cli_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lowtide/benchrunner/cli"
	"lowtide/benchrunner/suite"
	"lowtide/shared/gpu"
	"lowtide/shared/gpu/gputest"
)

type card = gputest.Card

// with is a card with some fields changed.
func with(c card, changes card) card {
	changed := maps.Clone(c)
	maps.Copy(changed, changes)
	return changed
}

func machine(cards ...card) gputest.Machine { return gputest.Machine{Cards: cards} }

// Healthy products: what the libraries answer for each.
var (
	a100 = card{"name": "NVIDIA A100-SXM4-80GB", "links": 12, "link_mbps": 25000, "mig": 0}
	a800 = with(a100, card{"name": "NVIDIA A800-SXM4-80GB", "device": "20f3", "subsystem": "17f4", "links": 8})
	h100 = card{
		"name": "NVIDIA H100 80GB HBM3", "device": "2330", "subsystem": "16c1", "cc": "9.0", "units": 132, "l2_mb": 50,
		"memory_mb": 81559, "tflops": 738, "fp64_tflops": 55, "bandwidth_gbs": 2900, "links": 18, "link_mbps": 26562, "mig": 0,
		"default_w": 700, "power_w": 690, "clock": 1420, "max_clock": 1980, "pcie_gen": 5, "pcie_gbs": 52,
	}
	h200 = with(h100, card{
		"name": "NVIDIA H200", "device": "2335", "subsystem": "18be", "l2_mb": 60, "bus_bits": 6144,
		"memory_mb": 143771, "tflops": 757, "bandwidth_gbs": 4200,
	})
	t4 = card{
		"name": "Tesla T4", "device": "1eb8", "subsystem": "12a2", "cc": "7.5", "units": 40, "bus_bits": 256, "l2_mb": 4,
		"memory_mb": 15360, "tflops": 24.3, "fp64_tflops": 0.25, "bandwidth_gbs": 250, "default_w": 70, "power_w": 69,
		"clock": 620, "max_clock": 1590, "pcie_gen": 3, "pcie_gbs": 12.5,
	}
	l4 = card{
		"name": "NVIDIA L4", "device": "27b8", "subsystem": "16ee", "cc": "8.9", "units": 58, "bus_bits": 192, "l2_mb": 48,
		"memory_mb": 23034, "tflops": 66, "fp64_tflops": 0.45, "bandwidth_gbs": 260, "default_w": 72, "clock": 1180,
	}
	rtx4090 = card{
		"name": "NVIDIA GeForce RTX 4090", "device": "2684", "subsystem": "16f3", "cc": "8.9", "units": 128,
		"bus_bits": 384, "l2_mb": 72, "memory_mb": 24564, "tflops": 163, "fp64_tflops": 1.2, "bandwidth_gbs": 920,
		"default_w": 450, "clock": 2550, "ecc": -1,
	}
	l40s = card{
		"name": "NVIDIA L40S", "device": "26b9", "subsystem": "1851", "cc": "8.9", "units": 142, "bus_bits": 384,
		"l2_mb": 96, "memory_mb": 46068, "tflops": 262, "fp64_tflops": 1.3, "bandwidth_gbs": 720, "default_w": 350, "clock": 1900,
	}
	a10 = card{
		"name": "NVIDIA A10", "device": "2236", "subsystem": "1482", "cc": "8.6", "units": 72, "bus_bits": 384, "l2_mb": 6,
		"memory_mb": 23028, "tflops": 54, "fp64_tflops": 0.45, "bandwidth_gbs": 500, "default_w": 150, "clock": 800,
	}
	a30 = card{
		"name": "NVIDIA A30", "device": "20b7", "subsystem": "1532", "units": 56, "bus_bits": 3072, "l2_mb": 24,
		"memory_mb": 24576, "tflops": 140, "bandwidth_gbs": 800, "default_w": 165, "clock": 1300, "mig": 0,
	}
	cmp170 = card{
		"name": "NVIDIA CMP 170HX", "device": "20c2", "subsystem": "1585", "units": 70, "bus_bits": 4096, "l2_mb": 32,
		"memory_mb": 8192, "tflops": 150, "bandwidth_gbs": 1300, "default_w": 250, "ecc": -1,
	}
)

// devices is the table: a machine, and the verdict and cause that it must get.
var devices = []struct {
	name    string
	machine gputest.Machine
	args    []string
	verdict suite.Verdict
	cause   gpu.Cause // empty: none that is not a note
}{
	{"healthy A100", machine(a100), nil, suite.Pass, ""},
	{"healthy H100", machine(h100), nil, suite.Pass, ""},
	{"healthy H200", machine(h200), nil, suite.Pass, ""},
	{"healthy T4", machine(t4), nil, suite.Pass, ""},
	{"healthy L4", machine(l4), nil, suite.Pass, ""},
	{"healthy A800", machine(a800), nil, suite.Pass, ""},
	{"healthy RTX 4090", machine(rtx4090), nil, suite.Pass, ""},
	{"healthy A100 sold as such", machine(a100), []string{"--claim", "A100 SXM4 80GB", "--expect", "1"}, suite.Pass, ""},
	{"healthy pair of H100", machine(h100, h100), []string{"--expect", "2"}, suite.Pass, ""},
	{"healthy in the full suite", machine(h100), []string{"--suite", "full"}, suite.Pass, ""},
	{"slow until its clocks are up", machine(with(a100, card{"slow_after": 20000})), nil, suite.Pass, ""},
	{"old errors, remapped", machine(with(a100, card{"uncorrected": 4, "remapped": 4})), nil, suite.Pass, gpu.ECCRemapped},
	{"passed through to a guest", machine(with(h100, card{"virtual": 1})), nil, suite.Pass, ""},
	{"alone on an NVSwitch board", machine(with(h100, card{"links_active": 0})), nil, suite.Pass, gpu.NotRead},

	{"hot", machine(with(a100, card{"tflops": 205, "clock": 1000, "reasons": 0x20 | 0x4})), nil, suite.Fail, gpu.Cooling},
	{"hot, hardware slowdown", machine(with(a100, card{"tflops": 205, "clock": 1000, "reasons": 0x40 | 0x8})), nil, suite.Fail, gpu.HardwareSlowdown},
	{"hardware slowdown at 0.95", machine(with(a100, card{"tflops": 246, "reasons": 0x8})), nil, suite.Fail, gpu.HardwareSlowdown},
	{"power limit lowered", machine(with(h100, card{"tflops": 600, "clock": 1150, "enforced_w": 450})), nil, suite.Fail, gpu.PowerLimited},
	{"power brake", machine(with(a100, card{"tflops": 190, "clock": 920, "reasons": 0x80 | 0x4})), nil, suite.Fail, gpu.PowerBrake},
	{"clocks locked", machine(with(a100, card{"tflops": 190, "clock": 920, "reasons": 0x2})), nil, suite.Fail, gpu.ClocksLocked},
	{"slow at full clock", machine(with(a100, card{"tflops": 190, "clock": 1400})), nil, suite.Fail, gpu.SlowPerClock},
	{"slow for no reason", machine(with(a100, card{"tflops": 215, "clock": 1050})), nil, suite.Fail, gpu.Degraded},
	{"0.88 of the reference", machine(with(a100, card{"tflops": 227, "clock": 1100})), nil, suite.Fail, gpu.Degraded},
	{"borderline in the quick suite", machine(with(a100, card{"tflops": 232.2, "noise": 0.02})), nil, suite.Inconclusive, gpu.Borderline},
	{"healthy against the datasheet", machine(h100), []string{"--basis", "datasheet"}, suite.Fail, gpu.Degraded},
	{"one of two slow", machine(h100, with(h100, card{"tflops": 250, "clock": 480})), nil, suite.Fail, gpu.Straggler},

	{"errors grow", machine(with(a100, card{"uncorrected_grows": 2})), nil, suite.Fail, gpu.ECCUncorrected},
	{"remap pending", machine(with(a100, card{"uncorrected": 4, "remap_pending": 1})), nil, suite.Fail, gpu.RemapPending},
	{"remap failed", machine(with(a100, card{"uncorrected": 9, "remap_failed": 1})), nil, suite.Fail, gpu.RemapFailed},
	{"pages retired to the limit", machine(with(t4, card{"retired": 63})), nil, suite.Fail, gpu.PagesRetired},
	{"ECC off", machine(with(a100, card{"ecc": 0})), nil, suite.Fail, gpu.ECCOff},
	{"ECC hidden", machine(with(a100, card{"ecc": -1})), nil, suite.Fail, gpu.ECCOff},
	{"allocation meets an error", machine(with(a100, card{"alloc_error": 214})), nil, suite.Fail, gpu.ECCUncorrected},
	{"idle and gives no memory", machine(with(a100, card{"alloc_error": 2})), nil, suite.Fail, gpu.MemoryUnwritable},
	{"one of two lost before", machine(h100, with(h100, card{"handle": 15, "hidden": 1})), nil, suite.Fail, gpu.Lost},
	{"lost at work", machine(with(a100, card{"lost_after": 40000})), nil, suite.Fail, gpu.Lost},
	{"fewer than sold", machine(h100), []string{"--expect", "8"}, suite.Fail, gpu.Lost},
	{"driver answers with errors", machine(with(a100, card{"nvml_error": 999, "hidden": 0})), nil, suite.Fail, gpu.DriverError},
	{"fabric manager down", gputest.Machine{Cards: []card{h100}, CUDAInit: new(802)}, nil, suite.Fail, gpu.FabricManager},

	{"T4 renamed A100", machine(with(t4, card{"name": "NVIDIA A100-SXM4-80GB"})), nil, suite.Fail, gpu.NameMismatch},
	{"A800 renamed A100", machine(with(a800, card{"name": "NVIDIA A100-SXM4-80GB"})), nil, suite.Fail, gpu.NameMismatch},
	{"A800 with A100's id and name", machine(with(a100, card{"links": 8})), nil, suite.Fail, gpu.NVLinkBelowSKU},
	{"H800 with H100's id and name", machine(with(h100, card{"links": 8, "fp64_tflops": 50})), nil, suite.Fail, gpu.NVLinkBelowSKU},
	{"H800 with H100's links told", machine(with(h100, card{"fp64_tflops": 0.9})), nil, suite.Fail, gpu.PrecisionRatio},
	{"A800 sold as A100", machine(a800), []string{"--claim", "A100-SXM4-80GB"}, suite.Fail, gpu.NotAsSold},
	{"CMP 170HX", machine(cmp170), nil, suite.Fail, gpu.MiningCard},
	{"CMP 170HX renamed A100", machine(with(cmp170, card{"name": "NVIDIA A100-SXM4-80GB"})), nil, suite.Fail, gpu.MiningCard},
	{"CMP 170HX with A100's id and name", machine(with(cmp170, card{
		"name": "NVIDIA A100-SXM4-80GB", "device": "20b2",
		"subsystem": "1463",
	})), nil, suite.Fail, gpu.SiliconMismatch},
	{"P106 sold as a gaming card", machine(with(rtx4090, card{"name": "NVIDIA P106-100", "device": "1c07"})), nil, suite.Fail, gpu.MiningCard},
	{"RTX 4090 with doubled memory", machine(with(rtx4090, card{"memory_mb": 49140})), nil, suite.Fail, gpu.MemoryModified},
	{"RTX 4090 with half its memory real", machine(with(rtx4090, card{"real_memory_mb": 12288})), nil, suite.Fail, gpu.MemoryMissing},
	{"RTX 4090 on other silicon", machine(with(rtx4090, card{
		"units": 46, "device": "2204", "cuda_memory_mb": 8192, "tflops": 17,
		"bandwidth_gbs": 210,
	})), nil, suite.Fail, gpu.NameMismatch},
	{"A100 with slow memory", machine(with(a100, card{"bandwidth_gbs": 700})), nil, suite.Fail, gpu.BandwidthBelow},
	{"NVML and CUDA tell two names", machine(with(a100, card{"cuda_name": "Tesla T4"})), nil, suite.Fail, gpu.WitnessMismatch},
	{"NVML and CUDA tell two chips", machine(with(a100, card{"cuda_cc": "7.5"})), nil, suite.Fail, gpu.WitnessMismatch},
	{"twice the datasheet", machine(with(a100, card{"tflops": 620})), nil, suite.Fail, gpu.TooFast},
	{"far above the reference", machine(with(l4, card{"tflops": 95})), nil, suite.Inconclusive, gpu.AboveReference},

	{"library computes nothing", machine(with(a100, card{"lie": "idle"})), nil, suite.Fail, gpu.ProductWrong},
	{"library replays an answer", machine(with(a100, card{"lie": "replay"})), nil, suite.Fail, gpu.ProductWrong},
	{"one wrong element", machine(with(a100, card{"lie": "flip"})), nil, suite.Fail, gpu.ProductWrong},
	{"event clock runs slow", machine(with(a100, card{"tflops": 32, "lie": "clock"})), nil, suite.Fail, gpu.ClockDisagrees},
	{"event clock without any work", machine(with(a100, card{"lie": "instant"})), nil, suite.Fail, gpu.ClockDisagrees},
	{"event clock stands still", machine(with(a100, card{"lie": "frozen"})), nil, suite.Fail, gpu.DriverImpossible},

	{"foreign process", machine(with(a100, card{"processes": 1})), nil, suite.Inconclusive, gpu.Contended},
	{"foreign memory", machine(with(a100, card{"used_mb": 20000})), nil, suite.Inconclusive, gpu.Contended},
	{"busy before", machine(with(a100, card{"busy": 40, "tflops": 150})), nil, suite.Inconclusive, gpu.Contended},
	{"MIG on", machine(with(a100, card{"mig": 1, "tflops": 130})), nil, suite.Inconclusive, gpu.MIG},
	{"a MIG slice", machine(with(a100, card{"slice": 1, "memory_mb": 20480, "units": 42})), nil, suite.Inconclusive, gpu.MIG},
	{"vGPU", machine(with(a100, card{"virtual": 2, "memory_mb": 40960, "ecc": -1})), nil, suite.Inconclusive, gpu.VGPU},
	{"MPS", machine(with(a100, card{"mps": 1})), nil, suite.Inconclusive, gpu.SharedByMPS},
	{"slow, one source", machine(with(l40s, card{"tflops": 180, "clock": 1300})), nil, suite.Inconclusive, gpu.WeakReference},
	{"slow, one source, told the reference", machine(with(l40s, card{"tflops": 180, "clock": 1300})), []string{"--rated", "260"}, suite.Fail, gpu.Degraded},
	{"reference by analogy", machine(a10), nil, suite.Inconclusive, gpu.WeakReference},
	{"no reference", machine(a30), nil, suite.Inconclusive, gpu.NoReference},
	{"not in the table", machine(with(a100, card{"name": "NVIDIA X1", "device": "ffff"})), nil, suite.Inconclusive, gpu.UnknownSKU},
	{"library does not know the chip", machine(with(a100, card{"blas_gemm": 8})), nil, suite.Inconclusive, gpu.LibraryUnfit},
	{"NVML silent", gputest.Machine{Cards: []card{a100}, NVMLInit: 9}, nil, suite.Inconclusive, gpu.WitnessMissing},

	{"did not run, twice", machine(with(a100, card{"blas_gemm": 14})), nil, suite.Fail, gpu.DidNotRun},
	{"one test gives no result", machine(with(a100, card{"blas_double": 14})), nil, suite.Fail, gpu.TestMissing},
	{"no device", gputest.Machine{}, nil, suite.Fail, gpu.NoDevice},
	{"driver not loaded", gputest.Machine{Cards: []card{a100}, NVMLInit: 9, CUDAInit: new(803)}, nil, suite.Fail, gpu.NoDriver},
}

// short measures a fake machine: 30 windows of 2 ms and matrices large enough that a fast fake is not held up by its caller.
var short = []string{"run", "--backend", "cuda", "--json", "--size", "320", "--window", "2ms", "--nonce", "order 7"}

func TestEachDeviceGetsItsVerdictAndCause(t *testing.T) {
	for _, tt := range devices {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := benchrunner(t, tt.machine.Environment(t), append(tt.args, short...)...)
			found := causes(a.result)
			if a.result.Verdict != tt.verdict {
				t.Errorf("got verdict %q, want %q; causes %v", a.result.Verdict, tt.verdict, found)
			}
			if _, ok := found[tt.cause]; !ok && tt.cause != "" {
				t.Errorf("got causes %v, want %q among them", found, tt.cause)
			}
			for cause, f := range found {
				if tt.cause == "" && f.Class != gpu.ClassNote {
					t.Errorf("got cause %q, want none: %v", cause, f)
				}
			}
			want := map[suite.Verdict]int{suite.Pass: cli.ExitPass, suite.Fail: cli.ExitFail, suite.Inconclusive: cli.ExitInconclusive}
			if a.code != want[tt.verdict] {
				t.Errorf("got exit code %d, want %d", a.code, want[tt.verdict])
			}
		})
	}
}

func TestAtLeastThirtyDevicesAreTried(t *testing.T) {
	if len(devices) < 30 {
		t.Errorf("got %d devices, want at least 30", len(devices))
	}
}

func TestDevicesAreJoinedByBusAndNotByNumber(t *testing.T) {
	t.Parallel()
	slow := with(l4, card{"uuid": "GPU-0000000b-0000-0000-0000-00000000000b"})
	m := machine(with(a100, card{"uuid": "GPU-0000000a-0000-0000-0000-00000000000a"}), slow)
	m.CUDAReversed = true
	r := benchrunner(t, m.Environment(t), short...).result
	if r.Verdict != suite.Pass || len(r.Devices) != 2 {
		t.Fatalf("got %q with %d devices, want pass with 2: %v", r.Verdict, len(r.Devices), causes(r))
	}
	for _, d := range r.Devices {
		if d.Identity.NVML == nil || d.Identity.CUDA == nil || d.Identity.NVML.UUID != d.Identity.CUDA.UUID || d.Name != d.Identity.NVML.Name {
			t.Errorf("device %d joins %+v with %+v", d.Index, d.Identity.NVML, d.Identity.CUDA)
		}
		if d.UUID == slow["uuid"] && (d.Measured > 100 || d.SKU != "L4") {
			t.Errorf("the L4 was credited with %.0f TFLOPS as %s", d.Measured, d.SKU)
		}
	}
}

func TestOneSlowDeviceOfEightFailsTheMachineByItsUUID(t *testing.T) {
	t.Parallel()
	cards := make([]card, 8)
	for i := range cards {
		cards[i] = h100
	}
	cards[5] = with(h100, card{"tflops": 250, "clock": 480, "uuid": "GPU-00000055-0000-0000-0000-000000000055"})
	r := benchrunner(t, machine(cards...).Environment(t), short...).result
	if r.Verdict != suite.Fail {
		t.Fatalf("got %q, want fail: seven fast devices must not carry one slow", r.Verdict)
	}
	for _, d := range r.Devices {
		if failed := d.Verdict == suite.Fail; failed != (d.UUID == cards[5]["uuid"]) {
			t.Errorf("device %s: got %q: %v", d.UUID, d.Verdict, d.Causes)
		}
	}
}

func TestOneLostDeviceDoesNotHideTheOthers(t *testing.T) {
	t.Parallel()
	cards := []card{h100, h100, with(h100, card{"handle": 15, "hidden": 1}), h100}
	r := benchrunner(t, machine(cards...).Environment(t), append([]string{"--expect", "4"}, short...)...).result
	if len(r.Devices) != 3 {
		t.Fatalf("got %d devices, want 3", len(r.Devices))
	}
	for _, d := range r.Devices {
		if d.Verdict != suite.Pass {
			t.Errorf("device %d: got %q, want pass: %v", d.Index, d.Verdict, d.Causes)
		}
	}
	if r.Verdict != suite.Fail {
		t.Errorf("got %q for the machine, want fail", r.Verdict)
	}
}

func TestALibraryWithoutNewerSymbolsIsSurvived(t *testing.T) {
	t.Parallel()
	a := benchrunner(t, machine(a100).Environment(t, gputest.Old), short...)
	if a.result.Verdict != suite.Pass {
		t.Fatalf("got %q, exit %d, want pass: %v %s", a.result.Verdict, a.code, causes(a.result), a.stderr)
	}
	if r := a.result.Devices[0].Health.After; r.Replays != nil || r.ThermalNanos != nil {
		t.Errorf("got %+v, want fields of absent symbols unknown", r)
	}
}

func TestUnsupportedFieldsAreUnknownAndNotZero(t *testing.T) {
	t.Parallel()
	a := benchrunner(t, machine(with(a100, card{"mig": 1})).Environment(t), short...)
	n := a.result.Devices[0].Identity.NVML
	if n.Busy != nil {
		t.Errorf("got utilisation %d, want unknown", *n.Busy)
	}
	if n.Memory == nil || n.Enforced == nil {
		t.Errorf("got %+v, want the supported fields kept", n)
	}
}

func TestNoLibraryIsNoDriver(t *testing.T) {
	gputest.NeedCgo(t)
	t.Parallel()
	a := benchrunner(t, []string{"LD_LIBRARY_PATH=" + t.TempDir()}, short...)
	if _, ok := causes(a.result)[gpu.NoDriver]; !ok || a.code != cli.ExitFail {
		t.Errorf("got %v, exit %d, want no_driver and %d", causes(a.result), a.code, cli.ExitFail)
	}
}

func TestSysfsContradictsALyingNVML(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "bus/pci/devices/0000:01:00.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"vendor": "0x10de\n", "device": "0x1eb8\n", "subsystem_device": "0x12a2\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := benchrunner(t, machine(a100).Environment(t), append([]string{"--sysfs", root}, short...)...).result
	f, ok := causes(r)[gpu.WitnessMismatch]
	if !ok || r.Verdict != suite.Fail {
		t.Fatalf("got %q %v, want fail by witness_mismatch", r.Verdict, causes(r))
	}
	if f.WantBy != "NVML" || f.GotBy != "sysfs" || f.Want == f.Got {
		t.Errorf("got %+v, want both values with their witnesses", f)
	}
}

func TestEachMismatchCarriesBothValues(t *testing.T) {
	t.Parallel()
	r := benchrunner(t, machine(with(t4, card{"name": "NVIDIA A100-SXM4-80GB"})).Environment(t), short...).result
	f := causes(r)[gpu.NameMismatch]
	if !strings.Contains(f.Want, "T4") || !strings.Contains(f.Got, "A100") {
		t.Errorf("got %+v, want the T4 of the PCI id and the A100 of the name", f)
	}
}

func TestAReplayedAnswerIsRefusedByTheNonce(t *testing.T) {
	t.Parallel()
	// The same lying library, asked twice with two nonces, gives the same bytes: neither is right.
	m := machine(with(a100, card{"lie": "replay"}))
	first := benchrunner(t, m.Environment(t), short...).result
	second := benchrunner(t, m.Environment(t), append(short[:len(short):len(short)], "--nonce", "order 8")...).result
	if first.Product.Verified || second.Product.Verified {
		t.Errorf("got verified %v and %v, want neither", first.Product.Verified, second.Product.Verified)
	}
	if first.Product.Expected == second.Product.Expected {
		t.Errorf("two nonces expect the same checksum %v", first.Product.Expected)
	}
}
