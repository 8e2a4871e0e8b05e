package gpu

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Blame says whose fault an Xid error is, and so what follows.
type Blame string

// The blames.
const (
	BlameJob      Blame = "job"      // the workload's own fault: the device is healthy
	BlameContain  Blame = "contain"  // contained: restart the job, then the device is healthy again; count it
	BlameHardware Blame = "hardware" // device or driver: take it out of service
	BlameUnknown  Blame = "unknown"  // not in the table: warn
)

// xids is NVIDIA's catalogue as far as it decides something (docs.nvidia.com/deploy/xid-errors).
var xids = map[int]Blame{
	13:  BlameJob,      // graphics engine exception
	31:  BlameJob,      // memory page fault
	43:  BlameJob,      // reset channel verification error
	45:  BlameJob,      // preemptive cleanup, after another error
	68:  BlameJob,      // video processor exception
	94:  BlameContain,  // contained memory error
	48:  BlameHardware, // double bit ECC error
	62:  BlameHardware, // internal micro-controller halt
	64:  BlameHardware, // row remapping failure
	74:  BlameHardware, // NVLink error
	79:  BlameHardware, // fallen off the bus
	95:  BlameHardware, // uncontained memory error
	119: BlameHardware, // GSP RPC timeout
	120: BlameHardware, // GSP error
}

// BlameFor looks an Xid up.
func BlameFor(xid int) Blame {
	if b, ok := xids[xid]; ok {
		return b
	}
	return BlameUnknown
}

// Incident is one fault of one device in the kernel's log.
type Incident struct {
	PCI   string // see BusID
	Xid   int    // 0 for a fault without a number
	Blame Blame
	At    time.Time
	Line  string
}

// Line is one line of the kernel's log.
type Line struct {
	At   time.Time
	Text string
}

// again is how long one fault of one device counts once: the driver says some in several shapes, seconds apart.
const again = 5 * time.Minute

const offTheBus = 79

var (
	xidLine     = regexp.MustCompile(`NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)`)
	namedDevice = regexp.MustCompile(`NVRM: .*GPU (?:at PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9])?)`)
)

// Incidents reads the kernel's log. A device that fell off the bus is one incident within five minutes, whether the driver
// said so with an Xid, without one, or both, in one line or over several.
func Incidents(log []Line) []Incident {
	var found []Incident
	last, device := map[Incident]time.Time{}, ""
	for _, l := range log {
		pci, xid := "", 0
		if m := namedDevice.FindStringSubmatch(l.Text); m != nil {
			device = BusID(m[1])
		}
		if m := xidLine.FindStringSubmatch(l.Text); m != nil {
			pci = BusID(m[1])
			xid, _ = strconv.Atoi(m[2]) // digits by the pattern
		} else if strings.Contains(l.Text, "fallen off the bus") {
			pci, xid = device, offTheBus
		}
		if xid == 0 {
			continue
		}
		key := Incident{PCI: pci, Xid: xid}
		if at, ok := last[key]; ok && l.At.Sub(at) < again {
			continue
		}
		last[key] = l.At
		found = append(found, Incident{PCI: pci, Xid: xid, Blame: BlameFor(xid), At: l.At, Line: l.Text})
	}
	return found
}
