package gpu

// Identity is what a device says it is, joined from its witnesses. A nil field was not readable.
type Identity struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	UUID  string `json:"uuid,omitempty"`
	PCI   string `json:"pci_bus_id,omitempty"` // domain:bus:device.function, lower case, eight-digit domain
}

// Health is what a device's error counters and modes say.
type Health struct {
	Findings []Finding `json:"findings,omitempty"`
}
