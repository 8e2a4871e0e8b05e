package gpu

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNoNVML means that NVML cannot be heard: this build lacks it, or the library or its driver is absent. The wrapped text
// says which.
var ErrNoNVML = errors.New("NVML not available")

// Witness is what one source says of a device. A nil or empty field was not readable, or not supported.
type Witness struct {
	Name       string   `json:"name,omitempty"`
	UUID       string   `json:"uuid,omitempty"`
	Serial     string   `json:"serial,omitempty"`
	VBIOS      string   `json:"vbios,omitempty"`
	Vendor     *ID      `json:"vendor,omitempty"`
	Device     *ID      `json:"device,omitempty"`
	Subsystem  *ID      `json:"subsystem,omitempty"`
	Compute    string   `json:"compute,omitempty"` // compute capability, "9.0"
	Units      *int     `json:"units,omitempty"`   // streaming multiprocessors
	BusBits    *int     `json:"bus_bits,omitempty"`
	L2         *uint64  `json:"l2_bytes,omitempty"`
	Memory     *uint64  `json:"memory_bytes,omitempty"`
	Used       *uint64  `json:"used_bytes,omitempty"` // before the benchmark
	MaxSMClock *int     `json:"max_sm_clock_mhz,omitempty"`
	Default    *float64 `json:"default_power_limit_w,omitempty"`
	Enforced   *float64 `json:"enforced_power_limit_w,omitempty"`
	Links      *int     `json:"nvlinks_active,omitempty"`
	NVLink     *float64 `json:"nvlink_gbs,omitempty"` // sum of both directions over active links
	LinkGen    *int     `json:"pcie_generation,omitempty"`
	LinkWidth  *int     `json:"pcie_width,omitempty"`
	ECC        *bool    `json:"ecc,omitempty"`
	MIG        *bool    `json:"mig,omitempty"`   // switched into slices
	Slice      bool     `json:"slice,omitempty"` // is itself a slice
	Virtual    string   `json:"virtual,omitempty"`
	Processes  *int     `json:"processes,omitempty"`
	MPS        *bool    `json:"mps,omitempty"`
	Busy       *int     `json:"utilisation_percent,omitempty"` // before the benchmark
}

// ID is a PCI id, four hexadecimal digits in text.
type ID uint16

// String is the id as pci.ids prints it.
func (id ID) String() string { return fmt.Sprintf("%04x", uint16(id)) }

// MarshalText writes the id as pci.ids prints it.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads it back.
func (id *ID) UnmarshalText(text []byte) error {
	var v uint16
	if _, err := fmt.Sscanf(string(text), "%x", &v); err != nil {
		return fmt.Errorf("PCI id %q: %w", text, err)
	}
	*id = ID(v)
	return nil
}

// Identity is what a device says it is, joined from its witnesses by UUID or bus id, never by index: NVML, CUDA and a
// reboot number devices differently.
type Identity struct {
	Index  int      `json:"index"` // of the backend that measures
	Name   string   `json:"name"`
	UUID   string   `json:"uuid,omitempty"`
	PCI    string   `json:"pci_bus_id,omitempty"` // see BusID
	Driver string   `json:"driver,omitempty"`
	NVML   *Witness `json:"nvml,omitempty"`
	Sysfs  *Witness `json:"sysfs,omitempty"`
	CUDA   *Witness `json:"cuda,omitempty"`
}

// PCIDevice is the device's and subsystem's id by NVML, else by sysfs; zero for unknown.
func (id Identity) PCIDevice() (device, subsystem uint16) {
	for _, w := range []*Witness{id.NVML, id.Sysfs} {
		if w != nil && w.Device != nil {
			if w.Subsystem != nil {
				subsystem = uint16(*w.Subsystem)
			}
			return uint16(*w.Device), subsystem
		}
	}
	return 0, 0
}

// BusID is a PCI address in one form: lower case, a domain of eight digits, function 0 where none is given. NVML pads the
// domain to eight digits, CUDA and sysfs to four.
func BusID(address string) string {
	address = strings.ToLower(strings.TrimSpace(address))
	domain, rest, found := strings.Cut(address, ":")
	if !found {
		return address
	}
	if !strings.Contains(rest, ":") { // no domain at all
		domain, rest = "0", address
	}
	if !strings.Contains(rest, ".") {
		rest += ".0"
	}
	return strings.Repeat("0", max(0, 8-len(domain))) + domain[max(0, len(domain)-8):] + ":" + rest
}

// Reading is one pass over a device's error counters. A nil field was not readable, or not supported.
type Reading struct {
	Lost           bool     `json:"lost,omitempty"`
	Corrected      *uint64  `json:"ecc_corrected,omitempty"`             // since the driver loaded
	Uncorrected    *uint64  `json:"ecc_uncorrected,omitempty"`           // since the driver loaded
	Lifetime       *uint64  `json:"ecc_uncorrected_lifetime,omitempty"`  // of the board
	RemappedRows   *int     `json:"remapped_rows_uncorrected,omitempty"` // for uncorrectable errors
	RemapPending   *bool    `json:"remap_pending,omitempty"`
	RemapFailed    *bool    `json:"remap_failed,omitempty"`
	RetiredPages   *int     `json:"retired_pages,omitempty"`
	RetiredPending *bool    `json:"retired_pending,omitempty"`
	Replays        *int     `json:"pcie_replays,omitempty"`
	ThermalNanos   *uint64  `json:"thermal_violation_ns,omitempty"`
	PowerNanos     *uint64  `json:"power_violation_ns,omitempty"`
	Errors         []string `json:"errors,omitempty"` // calls that failed in another way than "not supported"
	Unresponsive   bool     `json:"unresponsive,omitempty"`
}

// Health is a device's counters before and after a benchmark.
type Health struct {
	Before Reading `json:"before"`
	After  Reading `json:"after"`
}
