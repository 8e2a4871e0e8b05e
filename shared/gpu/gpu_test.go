package gpu_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/shared/gpu"
)

func TestEachRowIsConsistent(t *testing.T) {
	seen := map[uint16]string{}
	for _, r := range gpu.Ratings() {
		formula := float64(r.Units) * float64(r.FlopsPerUnit) * float64(r.BoostMHz) / 1e6
		if formula > 0 && math.Abs(formula-r.Datasheet) > 0.015*r.Datasheet {
			t.Errorf("%s: datasheet %.1f, by units and clock %.1f", r.SKU, r.Datasheet, formula)
		}
		if r.RatedBy == "" {
			t.Errorf("%s: no source of the rating", r.SKU)
		}
		if (r.Reference > 0) != (r.Grade != gpu.GradeNone) {
			t.Errorf("%s: reference %v with grade %q", r.SKU, r.Reference, r.Grade)
		}
		if !slices.Contains([]gpu.Grade{gpu.GradeA, gpu.GradeB, gpu.GradeC, gpu.GradeNone}, r.Grade) {
			t.Errorf("%s: grade %q", r.SKU, r.Grade)
		}
		if r.Grade == gpu.GradeA && r.Sources < 2 || r.Grade == gpu.GradeB && r.Sources < 1 {
			t.Errorf("%s: grade %s with %d sources", r.SKU, r.Grade, r.Sources)
		}
		if r.Sources > 0 && r.ReferenceBy == "" {
			t.Errorf("%s: %d sources, none named", r.SKU, r.Sources)
		}
		if len(r.Memory) == 0 || r.Memory[0] <= 0 || r.Bandwidth <= 0 || r.Datasheet <= 0 {
			t.Errorf("%s: memory %v, bandwidth %v, datasheet %v", r.SKU, r.Memory, r.Bandwidth, r.Datasheet)
		}
		for _, id := range r.Devices {
			if other, ok := seen[id]; ok {
				t.Errorf("%s and %s share PCI id %04x", r.SKU, other, id)
			}
			seen[id] = r.SKU
			if product := gpu.Mining(id, ""); product != "" {
				t.Errorf("%s has the id of %s", r.SKU, product)
			}
		}
	}
	if len(seen) < 49 {
		t.Errorf("got %d PCI ids, want at least 49", len(seen))
	}
}

func TestOnlyAReferenceWithTwoSourcesBinds(t *testing.T) {
	for sku, want := range map[string]bool{
		"A100-SXM4-80GB": true, "H100 SXM5 80GB": true, "H200 SXM 141GB": true, "Tesla T4": true,
		"L40S": false, "RTX 4090": false, // one source
		"A100-PCIE-80GB": false, "H800 SXM5": false, "A10": false, // by analogy, or in another precision
		"A30": false, // none
	} {
		r, ok := gpu.ByName(sku)
		if !ok {
			t.Fatalf("no row %s", sku)
		}
		if r.Binding() != want {
			t.Errorf("%s (grade %s, %d sources): got binding %v, want %v", sku, r.Grade, r.Sources, r.Binding(), want)
		}
	}
}

func TestLookup(t *testing.T) {
	for _, tt := range []struct {
		name              string
		device, subsystem uint16
		called            string
		want              string
	}{
		{"by id", 0x20b2, 0x1463, "NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"},
		{"by id whatever the name", 0x1eb8, 0, "NVIDIA A100-SXM4-80GB", "Tesla T4"},
		{"by a board partner's subsystem", 0x2684, 0x40bf, "NVIDIA GeForce RTX 4090", "RTX 4090"},
		{"the name decides a shared id", 0x1e30, 0, "Quadro RTX 6000", "Quadro RTX 6000"},
		{"another board of a shared id", 0x1e30, 0, "Quadro RTX 8000", ""},
		{"another card of a shared id", 0x25b6, 0, "NVIDIA A16", ""},
		{"unknown", 0xffff, 0, "NVIDIA H100 PCIe", ""},
		{"no id", 0, 0, "NVIDIA H100 PCIe", ""},
	} {
		r, ok := gpu.Lookup(tt.device, tt.subsystem, tt.called)
		if r.SKU != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: got %q %v, want %q", tt.name, r.SKU, ok, tt.want)
		}
	}
}

func TestNamesMatchInAnySpelling(t *testing.T) {
	for name, want := range map[string]string{
		"NVIDIA GeForce RTX 4090": "RTX 4090", "rtx-4090": "RTX 4090", "RTX 4090 D": "RTX 4090 D",
		"H100 80GB HBM3": "H100 SXM5 80GB", "h100 pcie": "H100 PCIe", "Tesla V100-SXM2-16GB": "Tesla V100-SXM2-16GB",
		"V100-SXM2-16GB": "Tesla V100-SXM2-16GB", "T4": "Tesla T4", "RTX 6000 Ada Generation": "RTX 6000 Ada",
		"GTX 1080": "", "": "",
	} {
		if r, _ := gpu.ByName(name); r.SKU != want {
			t.Errorf("%q: got %q, want %q", name, r.SKU, want)
		}
	}
}

func TestBusIDsOfAllWitnessesAreEqual(t *testing.T) {
	const want = "00000000:01:00.0"
	for _, form := range []string{"00000000:01:00.0", "0000:01:00.0", "01:00.0", "0000:01:00", "0:01:00.0", " 0000:01:00.0\n"} {
		if got := gpu.BusID(form); got != want {
			t.Errorf("%q: got %q, want %q", form, got, want)
		}
	}
	if got := gpu.BusID("00000001:C3:00.0"); got != "00000001:c3:00.0" {
		t.Errorf("got %q", got)
	}
	if gpu.BusID("0001:01:00.0") == want {
		t.Error("two domains were made one")
	}
}

func ptr[T any](v T) *T { return &v }

// a100 is a healthy device by all witnesses.
func a100() gpu.Identity {
	vendor, device, subsystem := gpu.ID(0x10de), gpu.ID(0x20b2), gpu.ID(0x1463)
	return gpu.Identity{
		Name: "NVIDIA A100-SXM4-80GB", UUID: "GPU-1", PCI: "00000000:01:00.0",
		NVML: &gpu.Witness{
			Name: "NVIDIA A100-SXM4-80GB", UUID: "GPU-1", Vendor: &vendor, Device: &device, Subsystem: &subsystem,
			Compute: "8.0", BusBits: ptr(5120), Memory: ptr(uint64(80 << 30)), Used: ptr(uint64(500 << 20)),
			Links: ptr(12), NVLink: ptr(600.0), ECC: ptr(true), MIG: ptr(false), Processes: ptr(0), Busy: ptr(0),
		},
		Sysfs: &gpu.Witness{Vendor: &vendor, Device: &device, Subsystem: &subsystem},
		CUDA: &gpu.Witness{
			Name: "NVIDIA A100-SXM4-80GB", UUID: "gpu-1", Compute: "8.0", Units: ptr(108), BusBits: ptr(5120),
			L2: ptr(uint64(40 << 20)), Memory: ptr(uint64(79 << 30)),
		},
	}
}

func causesOf(found []gpu.Finding) []gpu.Cause {
	var all []gpu.Cause
	for _, f := range found {
		all = append(all, f.Cause)
	}
	return all
}

func TestIdentityIsAConjunctionOfWitnesses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		sold   string
		change func(*gpu.Identity)
		want   gpu.Cause
	}{
		{"genuine", "", func(*gpu.Identity) {}, ""},
		{"genuine as sold", "A100 SXM4 80GB", func(*gpu.Identity) {}, ""},
		{"exactly 600 GB/s with rounding", "", func(id *gpu.Identity) { id.NVML.NVLink = ptr(599.9) }, ""},
		{"sold as another", "H100 PCIe", func(*gpu.Identity) {}, gpu.NotAsSold},
		{"sysfs names another device", "", func(id *gpu.Identity) { id.Sysfs.Device = ptr(gpu.ID(0x20f3)) }, gpu.WitnessMismatch},
		{"sysfs names another board", "", func(id *gpu.Identity) { id.Sysfs.Subsystem = ptr(gpu.ID(0x1)) }, gpu.WitnessMismatch},
		{"sysfs names another vendor", "", func(id *gpu.Identity) { id.Sysfs.Vendor = ptr(gpu.ID(0x1002)) }, gpu.WitnessMismatch},
		{"CUDA names another card", "", func(id *gpu.Identity) { id.CUDA.UUID = "GPU-2" }, gpu.WitnessMismatch},
		{"CUDA has another memory", "", func(id *gpu.Identity) { id.CUDA.Memory = ptr(uint64(40 << 30)) }, gpu.WitnessMismatch},
		{"CUDA has another bus", "", func(id *gpu.Identity) { id.CUDA.BusBits = ptr(4096) }, gpu.WitnessMismatch},
		{"fewer multiprocessors", "", func(id *gpu.Identity) { id.CUDA.Units = ptr(70) }, gpu.SiliconMismatch},
		{"smaller cache", "", func(id *gpu.Identity) { id.CUDA.L2 = ptr(uint64(6 << 20)) }, gpu.SiliconMismatch},
		{"links of the export variant", "", func(id *gpu.Identity) { id.NVML.NVLink = ptr(400.0) }, gpu.NVLinkBelowSKU},
		{"no links active", "", func(id *gpu.Identity) { id.NVML.NVLink = ptr(0.0) }, gpu.NotRead},
		{"doubled memory", "", func(id *gpu.Identity) {
			id.NVML.Memory, id.CUDA.Memory = ptr(uint64(160<<30)), ptr(uint64(159<<30))
		}, gpu.MemoryModified},
		{"half the memory", "", func(id *gpu.Identity) {
			id.NVML.Memory, id.CUDA.Memory = ptr(uint64(40<<30)), ptr(uint64(40<<30))
		}, gpu.MemoryMissing},
		{"a mining card's id", "", func(id *gpu.Identity) { id.NVML.Device, id.Sysfs.Device = ptr(gpu.ID(0x20c2)), nil }, gpu.MiningCard},
		{"a mining card's name", "", func(id *gpu.Identity) { id.Name = "NVIDIA CMP 170HX" }, gpu.MiningCard},
		{"a future mining card", "", func(id *gpu.Identity) { id.Name = "NVIDIA CMP 999HX" }, gpu.MiningCard},
		{"not in the table", "", func(id *gpu.Identity) {
			id.Name, id.NVML.Device, id.Sysfs = "NVIDIA Z1", ptr(gpu.ID(0xfffe)), nil
			id.NVML.Name, id.CUDA.Name = id.Name, id.Name
		}, gpu.UnknownSKU},
		{"a known name on an unknown id", "", func(id *gpu.Identity) { id.NVML.Device, id.Sysfs = ptr(gpu.ID(0xfffe)), nil }, gpu.NameMismatch},
		{"a slice", "", func(id *gpu.Identity) { id.NVML.Slice, id.CUDA.Units = true, ptr(42) }, gpu.MIG},
		{"in slices", "", func(id *gpu.Identity) { id.NVML.MIG, id.CUDA.Memory = ptr(true), ptr(uint64(20<<30)) }, gpu.MIG},
		{"virtual", "", func(id *gpu.Identity) { id.NVML.Virtual = "vgpu" }, gpu.VGPU},
		{"passed through", "", func(id *gpu.Identity) { id.NVML.Virtual = "passthrough" }, ""},
		{"others compute", "", func(id *gpu.Identity) { id.NVML.Processes = ptr(1) }, gpu.Contended},
		{"others hold memory", "", func(id *gpu.Identity) { id.NVML.Used = ptr(uint64(2 << 30)) }, gpu.Contended},
		{"two witnesses silent", "", func(id *gpu.Identity) { id.Sysfs, id.CUDA = nil, nil }, ""},
		{"unsupported fields", "", func(id *gpu.Identity) {
			id.NVML.BusBits, id.NVML.Busy, id.NVML.Processes, id.NVML.Compute = nil, nil, nil, ""
		}, ""},
	} {
		id := a100()
		tt.change(&id)
		found := gpu.JudgeIdentity(id, tt.sold)
		if got := causesOf(found); tt.want == "" && len(got) > 0 || tt.want != "" && !slices.Contains(got, tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, found, tt.want)
		}
		for _, f := range found {
			if strings.HasSuffix(string(f.Cause), "_mismatch") && (f.Want == "" || f.Got == "" || f.Want == f.Got || f.WantBy == "" || f.GotBy == "") {
				t.Errorf("%s: got %+v, want both values with who said them", tt.name, f)
			}
		}
	}
}

func TestHealth(t *testing.T) {
	row, _ := gpu.ByName("A100-SXM4-80GB")
	reading := func(change func(*gpu.Reading)) gpu.Reading {
		r := gpu.Reading{Uncorrected: ptr(uint64(4)), RemapPending: ptr(false), RemapFailed: ptr(false), RemappedRows: ptr(4)}
		if change != nil {
			change(&r)
		}
		return r
	}
	for _, tt := range []struct {
		name   string
		after  func(*gpu.Reading)
		change func(*gpu.Identity)
		want   gpu.Cause
		fails  bool
	}{
		{"errors remapped in the past", nil, nil, gpu.ECCRemapped, false},
		{"remap pending", func(r *gpu.Reading) { r.RemapPending = ptr(true) }, nil, gpu.RemapPending, true},
		{"remap failed", func(r *gpu.Reading) { r.RemapFailed = ptr(true) }, nil, gpu.RemapFailed, true},
		{"retirement pending", func(r *gpu.Reading) { r.RetiredPending = ptr(true) }, nil, gpu.RemapPending, true},
		{"62 pages retired", func(r *gpu.Reading) { r.RetiredPages = ptr(62) }, nil, gpu.ECCRemapped, false},
		{"63 pages retired", func(r *gpu.Reading) { r.RetiredPages = ptr(63) }, nil, gpu.PagesRetired, true},
		{"512 rows remapped", func(r *gpu.Reading) { r.RemappedRows = ptr(512) }, nil, gpu.PagesRetired, true},
		{"a new error", func(r *gpu.Reading) { r.Uncorrected = ptr(uint64(5)) }, nil, gpu.ECCUncorrected, true},
		{"lost", func(r *gpu.Reading) { r.Lost = true }, nil, gpu.Lost, true},
		{"hung", func(r *gpu.Reading) { r.Unresponsive = true }, nil, gpu.DriverUnresponsive, true},
		{"an unknown error", func(r *gpu.Reading) { r.Errors = []string{"nvmlDeviceGetPowerUsage: Unknown Error"} }, nil, gpu.DriverError, true},
		{"ECC not supported where the product has it", nil, func(id *gpu.Identity) { id.NVML.ECC = nil }, gpu.ECCOff, true},
		{"ECC off", nil, func(id *gpu.Identity) { id.NVML.ECC = ptr(false) }, gpu.ECCOff, true},
	} {
		id := a100()
		if tt.change != nil {
			tt.change(&id)
		}
		found := gpu.JudgeHealth(id, gpu.Health{Before: reading(nil), After: reading(tt.after)}, row)
		if !slices.Contains(causesOf(found), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, found, tt.want)
		}
		if fails := slices.ContainsFunc(found, func(f gpu.Finding) bool { return f.Class == gpu.ClassHealth }); fails != tt.fails {
			t.Errorf("%s: got failing %v, want %v: %v", tt.name, fails, tt.fails, found)
		}
	}
	gaming, _ := gpu.ByName("RTX 4090")
	id := a100()
	id.NVML.ECC = nil
	if found := gpu.JudgeHealth(id, gpu.Health{}, gaming); len(found) > 0 {
		t.Errorf("a gaming card without ECC: got %v, want nothing", found)
	}
}

func TestSysfsReadsTheKernelsIDs(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "bus/pci/devices/0000:c3:00.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"vendor": "0x10de\n", "device": "0x20b2\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w, err := gpu.Sysfs(root, "00000000:C3:00.0")
	if err != nil {
		t.Fatal(err)
	}
	if w.Device == nil || *w.Device != 0x20b2 || *w.Vendor != 0x10de || w.Subsystem != nil {
		t.Errorf("got %+v, want 10de:20b2 and an unknown subsystem", w)
	}
	if _, err := gpu.Sysfs(root, "00000000:01:00.0"); err == nil {
		t.Error("an absent device was read")
	}
}

func TestIDsAreFourDigitsInJSON(t *testing.T) {
	text, err := json.Marshal(gpu.Witness{Device: ptr(gpu.ID(0xb2))})
	if err != nil || string(text) != `{"device":"00b2"}` {
		t.Errorf("got %s %v", text, err)
	}
	var back gpu.Witness
	if err := json.Unmarshal(text, &back); err != nil || *back.Device != 0xb2 {
		t.Errorf("got %+v %v", back, err)
	}
}

func TestEveryCauseHasAClassAndAName(t *testing.T) {
	if len(gpu.Causes()) < 40 {
		t.Errorf("got %d causes", len(gpu.Causes()))
	}
	for _, c := range gpu.Causes() {
		if c == "" || strings.ToLower(string(c)) != string(c) || strings.Contains(string(c), " ") {
			t.Errorf("cause %q", c)
		}
	}
	if gpu.Cause("from a newer sender").Class() != gpu.ClassNote {
		t.Error("an unknown cause decides something")
	}
}

func TestMeansKeepUnknownFieldsUnknown(t *testing.T) {
	m := gpu.Mean([]gpu.Sample{
		{SMClock: ptr(1000), Reasons: ptr(gpu.ReasonPowerCap)},
		{SMClock: ptr(1200), Reasons: ptr(gpu.ReasonHWThermal), Power: ptr(300.0)},
		{},
	})
	if *m.SMClock != 1100 || *m.Power != 300 || m.Temperature != nil {
		t.Errorf("got %+v, want 1100 MHz, 300 W and no temperature", m)
	}
	if !m.Reasons.Has(gpu.ReasonPowerCap) || !m.Reasons.Thermal() {
		t.Errorf("got reasons %#x, want both bits", uint64(*m.Reasons))
	}
	if gpu.Reasons(gpu.ReasonPowerCap | gpu.ReasonIdle).Thermal() {
		t.Error("a power cap was taken for heat")
	}
}

func TestOneFallenDeviceIsOneIncident(t *testing.T) {
	t0 := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	xid := gpu.Line{At: t0, Text: "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus."}
	named := gpu.Line{At: t0.Add(2 * time.Second), Text: "NVRM: The NVIDIA GPU 0000:44:00.0"}
	fallen := gpu.Line{At: t0.Add(4 * time.Second), Text: "NVRM: fallen off the bus and is not responding to commands."}
	for name, log := range map[string][]gpu.Line{
		"with an Xid": {xid}, "without, over two lines": {named, fallen}, "both": {xid, named, fallen},
	} {
		got := gpu.Incidents(log)
		if len(got) != 1 || got[0].PCI != "00000000:44:00.0" || got[0].Blame != gpu.BlameHardware {
			t.Errorf("%s: got %+v, want one incident of hardware at 44:00", name, got)
		}
	}
	later := xid
	later.At = t0.Add(6 * time.Minute)
	other := gpu.Line{At: t0, Text: "NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus."}
	if got := gpu.Incidents([]gpu.Line{xid, other, later}); len(got) != 3 {
		t.Errorf("got %d incidents, want three: another device, and the same much later", len(got))
	}
}

func TestXidsBlameTheJobOrTheHardware(t *testing.T) {
	for xid, want := range map[int]gpu.Blame{
		13: gpu.BlameJob, 31: gpu.BlameJob, 43: gpu.BlameJob, 94: gpu.BlameContain,
		48: gpu.BlameHardware, 79: gpu.BlameHardware, 119: gpu.BlameHardware, 9999: gpu.BlameUnknown,
	} {
		if got := gpu.BlameFor(xid); got != want {
			t.Errorf("Xid %d: got %q, want %q", xid, got, want)
		}
	}
}
