package suite

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// Report writes a result for people: the verdict with its causes, the three ratios, and for each device the rate and the
// clock over time.
func (r Result) Report(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s, suite %s, basis %s, %s at %d, nonce %s, %.1f s\n",
		strings.ToUpper(string(r.Verdict)), r.Backend, r.Suite, r.Basis, r.Precision, r.Size, r.Nonce, r.Elapsed)
	for _, f := range r.Causes {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	for _, d := range r.Devices {
		d.report(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (d Device) report(b *strings.Builder) {
	fmt.Fprintf(b, "\n%d  %s  %s %s\n", d.Index, d.Verdict, d.Name, d.PCI)
	fmt.Fprintf(b, "   measured %s TFLOPS", figure(d.Measured))
	if d.Rated > 0 {
		fmt.Fprintf(b, ", rated %s (%s, grade %s, %s)", figure(d.Rated), d.Basis, d.Grade, d.SKU)
	}
	if d.Lower != nil && d.Upper != nil {
		fmt.Fprintf(b, ", ratio %.3f to %.3f", *d.Lower, *d.Upper)
	}
	fmt.Fprintf(b, "\n   of the reference %s, of the datasheet %s, per clock %s\n",
		share(d.ByReference), share(d.ByDatasheet), share(d.ByClock))
	for _, f := range d.Causes {
		fmt.Fprintf(b, "   %s\n", f)
	}
	var rates, clocks []float64
	for _, w := range d.Windows {
		rates = append(rates, w.TFLOPS)
		if w.Sample.SMClock != nil {
			clocks = append(clocks, float64(*w.Sample.SMClock))
		}
	}
	plot(b, "TFLOPS", rates)
	plot(b, "MHz", clocks)
}

// bars are eight heights, lowest first.
var bars = []rune("▁▂▃▄▅▆▇█")

// plot draws one bar a window between the least and the most. A steady row is shown full: differences below 1 % of the
// most are not drawn as hills.
func plot(b *strings.Builder, unit string, values []float64) {
	if len(values) == 0 {
		return
	}
	least, most := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		least, most = min(least, v), max(most, v)
	}
	floor := min(least, 0.99*most)
	fmt.Fprintf(b, "   %-6s ", unit)
	for _, v := range values {
		height := 0
		if most > floor {
			height = int((v - floor) / (most - floor) * float64(len(bars)-1))
		}
		b.WriteRune(bars[height])
	}
	fmt.Fprintf(b, " %s to %s\n", figure(least), figure(most))
}

// figure keeps four significant digits.
func figure(v float64) string { return fmt.Sprintf("%.4g", v) }

func share(v *float64) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.3f", *v)
}
