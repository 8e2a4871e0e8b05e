package suite

import (
	"fmt"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/gpu"
)

// mostCauses keeps a fact small whatever was found.
const mostCauses = 32

// Fact is the result as a machine answers its order with: what a judge needs, without the windows.
func (r Result) Fact(machine string) events.BenchmarkFinished {
	f := events.BenchmarkFinished{
		Machine: machine, Nonce: r.Nonce, Backend: r.Backend, Suite: r.Suite, Size: r.Size, Elapsed: seconds(r.Elapsed),
		Verdict: string(r.Verdict),
	}
	causes := r.Causes
	for _, d := range r.Devices {
		f.Devices = append(f.Devices, d.fact())
		causes = append(causes, d.Causes...)
	}
	for _, c := range causes[:min(len(causes), mostCauses)] {
		f.Causes = append(f.Causes, describe(c))
	}
	return f
}

func (d Device) fact() events.Device {
	out := events.Device{
		Name: d.Name, UUID: d.UUID, Measured: d.Measured, Rated: d.Rated, Work: seconds(d.work()), Checksum: d.Product.Checksum,
	}
	if d.Rated > 0 {
		out.Ratio = d.Measured / d.Rated
	}
	if d.Lower != nil && d.Upper != nil {
		out.Lower, out.Upper = *d.Lower, *d.Upper
	}
	return out
}

// describe is a finding with its class, which says how much it weighs.
func describe(f gpu.Finding) string {
	return strings.ToValidUTF8(fmt.Sprintf("%s: %s", f.Class, f), "?")
}

// work is how long the device says it multiplied, in seconds.
func (d Device) work() float64 {
	sum := 0.0
	for _, w := range d.Windows {
		sum += w.Device
	}
	return sum
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
