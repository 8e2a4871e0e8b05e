package meter

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"lowtide/functions/agent"
	"lowtide/shared/fleet"
)

// host reads the kernel's counters. Rates are of the time between two reads, so the first read has none.
type host struct {
	proc string
	at   time.Time
	last counted
}

// counted are counters since the machine booted; a nil one could not be read.
type counted struct {
	busy, total  *uint64 // of all cores, in ticks
	disk, packet *uint64 // bytes
}

func newHost(proc string) host {
	if proc == "" {
		proc = "/proc"
	}
	return host{proc: proc}
}

func (h *host) read(now time.Time, r *agent.Reading) {
	is := counted{disk: sectors(h.file("diskstats")), packet: traffic(h.file("net/dev"))}
	is.busy, is.total = ticks(h.file("stat"))
	was, spent := h.last, now.Sub(h.at).Seconds()
	first := h.at.IsZero()
	h.last, h.at = is, now
	if first || spent <= 0 {
		return
	}
	if busy, total := grew(was.busy, is.busy), grew(was.total, is.total); busy != nil && total != nil && *total > 0 {
		r.CPU = fleet.Known(*busy / *total)
	}
	r.Disk, r.Network = rate(grew(was.disk, is.disk), spent), rate(grew(was.packet, is.packet), spent)
}

func (h *host) file(name string) []byte {
	b, err := os.ReadFile(filepath.Join(h.proc, name))
	if err != nil {
		return nil // not Linux, or hidden: unknown
	}
	return b
}

func grew(was, is *uint64) *float64 {
	if was == nil || is == nil || *is < *was {
		return nil
	}
	return new(float64(*is - *was))
}

func rate(bytes *float64, seconds float64) fleet.Maybe[float64] {
	if bytes == nil {
		return fleet.Maybe[float64]{}
	}
	return fleet.Known(*bytes / seconds / 1e6)
}

// ticks of all cores, from the first line of /proc/stat: user nice system idle iowait irq softirq steal (proc_stat(5)).
func ticks(stat []byte) (busy, total *uint64) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 6 || fields[0] != "cpu" {
		return nil, nil
	}
	var all, idle uint64
	for i, f := range fields[1:min(len(fields), 9)] {
		v, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return nil, nil
		}
		all += v
		if i == 3 || i == 4 { // idle, and waiting for a disk
			idle += v
		}
	}
	busy, total = new(all-idle), new(all)
	return busy, total
}

const sector = 512 // bytes, whatever the disk's own are (proc_diskstats(5))

// sectors sums what whole disks read and wrote; partitions and what lies on other disks would count twice.
func sectors(stats []byte) *uint64 {
	if stats == nil {
		return nil
	}
	var sum uint64
	for line := range strings.Lines(string(stats)) {
		f := strings.Fields(line)
		if len(f) < 10 || !whole(f[2]) {
			continue
		}
		for _, i := range []int{5, 9} {
			v, err := strconv.ParseUint(f[i], 10, 64)
			if err != nil {
				return nil
			}
			sum += v * sector
		}
	}
	return &sum
}

// whole says that a block device is a disk: sda, vda, xvda, nvme0n1, and no part of one.
func whole(name string) bool {
	switch {
	case strings.HasPrefix(name, "nvme"):
		return !strings.Contains(name[len("nvme"):], "p")
	case strings.HasPrefix(name, "sd"), strings.HasPrefix(name, "vd"), strings.HasPrefix(name, "xvd"), strings.HasPrefix(name, "hd"):
		last := name[len(name)-1]
		return last < '0' || last > '9'
	}
	return false
}

// traffic sums what the interfaces received and sent; the loopback moves nothing.
func traffic(dev []byte) *uint64 {
	if dev == nil {
		return nil
	}
	var sum uint64
	for line := range strings.Lines(string(dev)) {
		name, rest, found := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !found || len(f) < 9 || strings.TrimSpace(name) == "lo" {
			continue
		}
		for _, i := range []int{0, 8} {
			v, err := strconv.ParseUint(f[i], 10, 64)
			if err != nil {
				return nil
			}
			sum += v
		}
	}
	return &sum
}
