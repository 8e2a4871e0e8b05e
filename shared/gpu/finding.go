package gpu

import "fmt"

// Class says what kind of fault a cause is. It decides how a verdict treats it: identity, health and absence reject a
// machine whatever it measured, performance rejects only against a reference that may fail a card, doubt never rejects,
// and a note changes nothing.
type Class string

// The classes, in order of precedence.
const (
	ClassIdentity    Class = "identity"
	ClassAbsence     Class = "absence"
	ClassHealth      Class = "health"
	ClassPerformance Class = "performance"
	ClassDoubt       Class = "doubt"
	ClassNote        Class = "note"
)

// Cause is one entry of the closed list of findings. A reader may switch on it; new entries are added, old ones never
// change their meaning.
type Cause string

// Causes of class identity: the device is not what it says it is, or what answers is not a device.
const (
	NameMismatch     Cause = "name_mismatch"     // the name belongs to another product than the PCI id
	WitnessMismatch  Cause = "witness_mismatch"  // NVML, sysfs and CUDA disagree about one device
	SiliconMismatch  Cause = "silicon_mismatch"  // units, compute capability, bus width or cache are another chip's
	MemoryModified   Cause = "memory_modified"   // more memory than the product was ever built with
	MemoryMissing    Cause = "memory_missing"    // less memory than the product has, or memory that cannot be written
	NVLinkBelowSKU   Cause = "nvlink_below_sku"  // the links of the export variant on a card sold as the full one
	MiningCard       Cause = "mining_card"       // a product made for mining
	NotAsSold        Cause = "not_as_sold"       // genuine, but another product than the offer named
	PrecisionRatio   Cause = "precision_ratio"   // FP64 against FP16 is another chip's
	BandwidthBelow   Cause = "bandwidth_below"   // device memory far slower than the product's
	ProductWrong     Cause = "product_wrong"     // the GEMM's result does not follow from the seeded inputs
	ClockDisagrees   Cause = "clock_disagrees"   // device events and the host's clock tell different times
	TooFast          Cause = "too_fast"          // far above even the datasheet's peak
	DriverImpossible Cause = "driver_impossible" // the driver reports what no driver can (zero or infinite time)
)

// Causes of class absence: there was nothing to judge.
const (
	NoDriver    Cause = "no_driver"    // no driver library, or it is not loaded
	NoDevice    Cause = "no_device"    // a driver, and no device
	DidNotRun   Cause = "did_not_run"  // the benchmark ended without a measurement, twice
	TestMissing Cause = "test_missing" // one test of the suite gave no result
)

// Causes of class health: the right device, and broken.
const (
	ECCUncorrected     Cause = "ecc_uncorrected"     // uncorrectable memory errors grew, or an allocation met one
	ECCOff             Cause = "ecc_off"             // switched off by the host where the product has it on
	RemapPending       Cause = "remap_pending"       // a row remap or page retirement waits for a reset
	RemapFailed        Cause = "remap_failed"        // rows can no longer be remapped
	PagesRetired       Cause = "pages_retired"       // retired pages or remapped rows at the vendor's limit
	Lost               Cause = "gpu_lost"            // fell off the bus, or fewer devices than sold
	DriverUnresponsive Cause = "driver_unresponsive" // the driver did not answer in time
	DriverError        Cause = "driver_error"        // the driver answers with an error other than "not supported"
	HardwareSlowdown   Cause = "hardware_slowdown"   // hardware slowdown in more than 1 % of samples
	FabricManager      Cause = "fabric_manager"      // the NVSwitch fabric manager does not run
	MemoryUnwritable   Cause = "memory_unwritable"   // a pattern written to device memory did not come back
)

// Causes of class performance: the right device, healthy, and too slow. They explain a ratio below the gate.
const (
	PowerLimited Cause = "power_limited_by_host" // enforced power limit below the product's default
	Cooling      Cause = "cooling"               // thermal slowdown
	PowerBrake   Cause = "psu"                   // the external power brake
	ClocksLocked Cause = "clocks_locked_by_host" // application clocks below the maximum
	SlowPerClock Cause = "slow_per_clock"        // the clock is right and the work is not done: silicon or library
	Degraded     Cause = "degraded"              // too slow, and none of the above says why
)

// Causes of class doubt: the measurement does not settle the question, so nothing is rejected for it.
const (
	Contended       Cause = "contended"         // somebody else uses the device, or the cores under it
	MIG             Cause = "mig"               // a slice of a device, or a device in slices
	VGPU            Cause = "vgpu"              // a virtual device
	SharedByMPS     Cause = "shared_by_mps"     // served by a multi-process server
	UnknownSKU      Cause = "unknown_sku"       // not in the rated table
	NoReference     Cause = "no_reference"      // in the table, and nobody has published a measurement
	WeakReference   Cause = "weak_reference"    // a reference that may not fail a card: an analogy, or one source
	AboveReference  Cause = "above_reference"   // far above the reference: another product, or a wrong reference
	Borderline      Cause = "borderline"        // the interval still straddles the gate
	LibraryUnfit    Cause = "library_unfit"     // no matrix library, or one that does not know this device
	MemoryBusy      Cause = "memory_busy"       // too little free memory to test
	WitnessMissing  Cause = "witness_missing"   // one of the three witnesses could not be heard where it was required
	BackendNotBuilt Cause = "backend_not_built" // the backend is named and not built
)

// Causes of class note.
const (
	Straggler      Cause = "straggler"      // below 0.95 of the node's median
	Unsteady       Cause = "unsteady"       // warm-up ended at its limit, not at a steady rate
	PCIeSlow       Cause = "pcie_slow"      // host to device far below the link
	PeerSlow       Cause = "peer_slow"      // device to device below three quarters of the links
	ECCRemapped    Cause = "ecc_remapped"   // rows were remapped in the past, which is what they are for
	Autocorrelated Cause = "autocorrelated" // neighbouring windows resemble each other; the interval is widened for it
	NotRead        Cause = "not_read"       // a field that this device does not support
)

var classes = map[Cause]Class{
	NameMismatch: ClassIdentity, WitnessMismatch: ClassIdentity, SiliconMismatch: ClassIdentity,
	MemoryModified: ClassIdentity, MemoryMissing: ClassIdentity, NVLinkBelowSKU: ClassIdentity,
	MiningCard: ClassIdentity, NotAsSold: ClassIdentity, PrecisionRatio: ClassIdentity, BandwidthBelow: ClassIdentity,
	ProductWrong: ClassIdentity, ClockDisagrees: ClassIdentity, TooFast: ClassIdentity, DriverImpossible: ClassIdentity,

	NoDriver: ClassAbsence, NoDevice: ClassAbsence, DidNotRun: ClassAbsence, TestMissing: ClassAbsence,

	ECCUncorrected: ClassHealth, ECCOff: ClassHealth, RemapPending: ClassHealth, RemapFailed: ClassHealth,
	PagesRetired: ClassHealth, Lost: ClassHealth, DriverUnresponsive: ClassHealth, DriverError: ClassHealth,
	HardwareSlowdown: ClassHealth, FabricManager: ClassHealth, MemoryUnwritable: ClassHealth,

	PowerLimited: ClassPerformance, Cooling: ClassPerformance, PowerBrake: ClassPerformance,
	ClocksLocked: ClassPerformance, SlowPerClock: ClassPerformance, Degraded: ClassPerformance,

	Contended: ClassDoubt, MIG: ClassDoubt, VGPU: ClassDoubt, SharedByMPS: ClassDoubt, UnknownSKU: ClassDoubt,
	NoReference: ClassDoubt, AboveReference: ClassDoubt, WeakReference: ClassDoubt, Borderline: ClassDoubt, LibraryUnfit: ClassDoubt,
	MemoryBusy: ClassDoubt, WitnessMissing: ClassDoubt, BackendNotBuilt: ClassDoubt,

	Straggler: ClassNote, Unsteady: ClassNote, PCIeSlow: ClassNote, PeerSlow: ClassNote, ECCRemapped: ClassNote,
	Autocorrelated: ClassNote, NotRead: ClassNote,
}

// Class of the cause; a cause from a newer sender, unknown here, is a note.
func (c Cause) Class() Class {
	if class, ok := classes[c]; ok {
		return class
	}
	return ClassNote
}

// Causes lists the whole closed list, in no order.
func Causes() []Cause {
	all := make([]Cause, 0, len(classes))
	for c := range classes {
		all = append(all, c)
	}
	return all
}

// Finding is one observation about one device. A mismatch carries both values and who said each.
type Finding struct {
	Cause  Cause  `json:"cause"`
	Class  Class  `json:"class"`
	Detail string `json:"detail,omitempty"`
	Want   string `json:"want,omitempty"`
	WantBy string `json:"want_by,omitempty"`
	Got    string `json:"got,omitempty"`
	GotBy  string `json:"got_by,omitempty"`
}

// Found makes a finding with a sentence.
func Found(c Cause, format string, args ...any) Finding {
	return Finding{Cause: c, Class: c.Class(), Detail: fmt.Sprintf(format, args...)}
}

// Differ makes a finding of two values that should be one.
func Differ(c Cause, what string, want any, wantBy string, got any, gotBy string) Finding {
	return Finding{
		Cause: c, Class: c.Class(), Detail: what,
		Want: fmt.Sprint(want), WantBy: wantBy, Got: fmt.Sprint(got), GotBy: gotBy,
	}
}

// String is the finding as one line for people.
func (f Finding) String() string {
	if f.Want == "" && f.Got == "" {
		return string(f.Cause) + ": " + f.Detail
	}
	return fmt.Sprintf("%s: %s is %s (%s), expected %s (%s)", f.Cause, f.Detail, f.Got, f.GotBy, f.Want, f.WantBy)
}
