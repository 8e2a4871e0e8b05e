package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Sysfs reads the kernel's account of a PCI device, the witness that does not pass through the vendor's libraries. root is
// empty for /sys; bus is in any form that BusID takes.
func Sysfs(root, bus string) (Witness, error) {
	if root == "" {
		root = "/sys"
	}
	address := BusID(bus)
	dir := filepath.Join(root, "bus/pci/devices", address[max(0, strings.Index(address, ":")-4):]) // sysfs pads to four digits
	vendor, err := readID(dir, "vendor")
	if err != nil {
		return Witness{}, fmt.Errorf("sysfs %s: %w", bus, err)
	}
	w := Witness{Vendor: vendor}
	// A device whose vendor reads and whose other ids do not is left with what it gave.
	w.Device, _ = readID(dir, "device")
	w.Subsystem, _ = readID(dir, "subsystem_device")
	return w, nil
}

func readID(dir, file string) (*ID, error) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	v, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(string(text)), "0x"), 16, 16)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	id := ID(v)
	return &id, nil
}
