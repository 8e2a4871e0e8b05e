package gpu

import (
	"fmt"
	"strings"
)

// The limits of the judgements on identity and health.
const (
	leastMemory  = 0.85 // of the product's: ECC and the driver's own share take the rest
	mostMemory   = 1.10
	sameMemory   = 0.05 // two witnesses of one device
	sameCache    = 0.25 // of the product's: published figures round
	fullLinks    = 600  // GB/s: the sum that the full products have and their export variants have not
	linkSlack    = 0.99 // twelve links at 25 GB/s sum to exactly 600
	idleMemory   = 1 << 30
	idleBusy     = 2   // percent
	mostRetired  = 63  // pages (NVIDIA DCGM's limit)
	mostRemapped = 512 // rows for uncorrectable errors (NVIDIA DCGM's limit)
)

// JudgeIdentity holds a device's witnesses against each other, against the product that its PCI id names, and against
// the product that was sold, empty for any.
func JudgeIdentity(id Identity, sold string) []Finding {
	device, subsystem := id.PCIDevice()
	var found []Finding
	if product := Mining(device, id.Name); product != "" {
		found = append(found, Found(MiningCard, "%s is a mining product", product))
	}
	found = append(found, agree(id)...)
	row, known := Lookup(device, subsystem, id.Name)
	if !known {
		found = append(found, unknown(id, device)...)
		return append(found, shared(id)...)
	}
	if !row.Called(id.Name) {
		found = append(found, Differ(NameMismatch, "name", row.SKU, "PCI id "+ID(device).String(), id.Name, "NVML"))
	}
	if sold != "" && !row.Called(sold) {
		found = append(found, Differ(NotAsSold, "product", sold, "the offer", row.SKU, "PCI id "+ID(device).String()))
	}
	if doubts := shared(id); len(doubts) > 0 {
		// A slice has a slice's memory and units, so there is nothing to hold against the product.
		return append(found, doubts...)
	}
	found = append(found, silicon(id, row)...)
	found = append(found, memory(id, row)...)
	found = append(found, links(id, row)...)
	return append(found, tenants(id)...)
}

// unknown judges a device whose id is not in the table: a name that is there makes it a liar, else it is in doubt.
func unknown(id Identity, device uint16) []Finding {
	if named, ok := ByName(id.Name); ok && device != 0 {
		ids := make([]string, len(named.Devices))
		for i, d := range named.Devices {
			ids[i] = ID(d).String()
		}
		return []Finding{Differ(NameMismatch, "PCI id of "+id.Name, strings.Join(ids, " or "), "the rated table",
			ID(device), "NVML")}
	}
	return []Finding{Found(UnknownSKU, "%s (PCI id %s) is not in the rated table", id.Name, ID(device))}
}

// agree compares the witnesses pairwise, field by field, where both know it.
func agree(id Identity) []Finding {
	var found []Finding
	differ := func(what string, a any, by string, b any, and string) {
		found = append(found, Differ(WitnessMismatch, what, a, by, b, and))
	}
	ids := func(what string, a, b *ID, and string) {
		if a != nil && b != nil && *a != *b {
			differ(what, a, "NVML", b, and)
		}
	}
	if n, s := id.NVML, id.Sysfs; n != nil && s != nil {
		ids("PCI vendor", n.Vendor, s.Vendor, "sysfs")
		ids("PCI device", n.Device, s.Device, "sysfs")
		ids("PCI subsystem", n.Subsystem, s.Subsystem, "sysfs")
	}
	n, c := id.NVML, id.CUDA
	if n == nil || c == nil {
		return found
	}
	if n.Name != "" && c.Name != "" && n.Name != c.Name {
		differ("name", n.Name, "NVML", c.Name, "CUDA")
	}
	if n.UUID != "" && c.UUID != "" && !n.Slice && !strings.EqualFold(n.UUID, c.UUID) {
		differ("UUID", n.UUID, "NVML", c.UUID, "CUDA")
	}
	if n.Compute != "" && c.Compute != "" && n.Compute != c.Compute {
		differ("compute capability", n.Compute, "NVML", c.Compute, "CUDA")
	}
	if n.BusBits != nil && c.BusBits != nil && *n.BusBits != *c.BusBits {
		differ("memory bus", *n.BusBits, "NVML", *c.BusBits, "CUDA")
	}
	if n.Memory != nil && c.Memory != nil && (n.MIG == nil || !*n.MIG) {
		if a, b := float64(*n.Memory), float64(*c.Memory); a-b > sameMemory*a || b-a > sameMemory*a {
			differ("memory", gigabytes(*n.Memory), "NVML", gigabytes(*c.Memory), "CUDA")
		}
	}
	return found
}

// silicon compares the chip with the product's, by every witness that knows.
func silicon(id Identity, row Rating) []Finding {
	var found []Finding
	add := func(what string, want, got any, by string) {
		found = append(found, Differ(SiliconMismatch, what, want, row.SKU, got, by))
	}
	for _, w := range []struct {
		*Witness
		by string
	}{{id.NVML, "NVML"}, {id.CUDA, "CUDA"}} {
		if w.Witness == nil {
			continue
		}
		if w.Compute != "" && w.Compute != row.Compute {
			add("compute capability", row.Compute, w.Compute, w.by)
		}
		if w.Units != nil && *w.Units != row.Units {
			add("multiprocessors", row.Units, *w.Units, w.by)
		}
		if w.BusBits != nil && *w.BusBits != row.BusBits && !strings.Contains(row.Uncertain, "bus width") {
			add("memory bus in bits", row.BusBits, *w.BusBits, w.by)
		}
		if w.L2 != nil && row.L2 > 0 {
			if mb := float64(*w.L2) / (1 << 20); mb < row.L2*(1-sameCache) || mb > row.L2*(1+sameCache) {
				add("second-level cache in MB", row.L2, mb, w.by)
			}
		}
		if w.Slice || w.MIG == nil || !*w.MIG || row.MIG {
			continue
		}
		add("MIG", "not possible", "on", w.by)
	}
	return found
}

// memory compares the size with each that the product was built with.
func memory(id Identity, row Rating) []Finding {
	var found []Finding
	for _, w := range []struct {
		*Witness
		by string
	}{{id.NVML, "NVML"}, {id.CUDA, "CUDA"}} {
		if w.Witness == nil || w.Memory == nil || len(row.Memory) == 0 {
			continue
		}
		gb := float64(*w.Memory) / (1 << 30)
		cause, fits := MemoryModified, false
		for _, want := range row.Memory {
			fits = fits || gb >= want*leastMemory && gb <= want*mostMemory
			if gb < want*leastMemory {
				cause = MemoryMissing
			}
		}
		if !fits {
			found = append(found, Differ(cause, "memory", fmt.Sprintf("%v GB", row.Memory), row.SKU, gigabytes(*w.Memory), w.by))
		}
	}
	return found
}

// links tells a full product from its export variant: the only difference in performance between them.
func links(id Identity, row Rating) []Finding {
	if row.NVLink < fullLinks || row.Form == "PCIe" || id.NVML == nil {
		return nil // a PCIe card has links only where a bridge is
	}
	sum := id.NVML.NVLink
	if sum == nil || *sum == 0 {
		return []Finding{Found(NotRead, "no active NVLink: cannot tell %s from its export variant by its links", row.SKU)}
	}
	if *sum < fullLinks*linkSlack {
		return []Finding{Differ(NVLinkBelowSKU, "NVLink in GB/s, both directions", row.NVLink, row.SKU, *sum, "NVML")}
	}
	return nil
}

// shared finds what makes a device a part of one.
func shared(id Identity) []Finding {
	n := id.NVML
	switch {
	case n == nil:
		return nil
	case n.Slice || n.MIG != nil && *n.MIG:
		return []Finding{Found(MIG, "the device is in slices: the reference is of a whole one")}
	case n.Virtual == "vgpu":
		return []Finding{Found(VGPU, "the device is virtual")}
	case n.MPS != nil && *n.MPS:
		return []Finding{Found(SharedByMPS, "a multi-process server holds the device")}
	}
	return nil
}

// tenants finds other users before the benchmark began.
func tenants(id Identity) []Finding {
	n := id.NVML
	if n == nil {
		return nil
	}
	var found []Finding
	if n.Processes != nil && *n.Processes > 0 {
		found = append(found, Found(Contended, "%d other processes compute on the device", *n.Processes))
	}
	if n.Used != nil && *n.Used > idleMemory {
		found = append(found, Found(Contended, "%s of memory is used before the benchmark", gigabytes(*n.Used)))
	}
	if n.Busy != nil && *n.Busy > idleBusy {
		found = append(found, Found(Contended, "%d %% busy before the benchmark", *n.Busy))
	}
	return found
}

// JudgeHealth holds a device's counters before and after a benchmark against the product's; row may be zero.
func JudgeHealth(id Identity, h Health, row Rating) []Finding {
	var found []Finding
	add := func(c Cause, format string, args ...any) { found = append(found, Found(c, format, args...)) }
	b, a := h.Before, h.After
	if a.Lost || b.Lost {
		add(Lost, "the device fell off the bus")
		return found
	}
	if a.Unresponsive || b.Unresponsive {
		add(DriverUnresponsive, "the driver did not answer within its time limit")
		return found
	}
	if errs := append(b.Errors, a.Errors...); len(errs) > 0 {
		add(DriverError, "%s", strings.Join(errs, "; "))
	}
	if grew := growth(b.Uncorrected, a.Uncorrected); grew > 0 {
		add(ECCUncorrected, "%d uncorrectable memory errors during the benchmark", grew)
	}
	if yes(a.RemapFailed) {
		add(RemapFailed, "rows can no longer be remapped")
	}
	if yes(a.RemapPending) || yes(a.RetiredPending) {
		add(RemapPending, "a remap or page retirement waits for a reset")
	}
	if a.RetiredPages != nil && *a.RetiredPages >= mostRetired {
		add(PagesRetired, "%d retired pages, limit %d", *a.RetiredPages, mostRetired)
	}
	if a.RemappedRows != nil && *a.RemappedRows >= mostRemapped {
		add(PagesRetired, "%d remapped rows, limit %d", *a.RemappedRows, mostRemapped)
	}
	if a.Uncorrected != nil && *a.Uncorrected > 0 && len(found) == 0 {
		add(ECCRemapped, "%d uncorrectable errors since the driver loaded, none during the benchmark", *a.Uncorrected)
	}
	whole := id.NVML != nil && len(shared(id)) == 0
	if whole && row.ECC == "yes" && (id.NVML.ECC == nil || !*id.NVML.ECC) {
		add(ECCOff, "%s has ECC, and it is off or hidden", row.SKU)
	}
	return found
}

func yes(b *bool) bool { return b != nil && *b }

// growth is how much a counter grew; 0 where it was not readable twice.
func growth(before, after *uint64) uint64 {
	if before == nil || after == nil || *after < *before {
		return 0
	}
	return *after - *before
}

func gigabytes(n uint64) string { return fmt.Sprintf("%.1f GB", float64(n)/(1<<30)) }
