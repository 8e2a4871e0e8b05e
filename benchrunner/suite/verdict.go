package suite

import (
	"slices"

	"lowtide/benchrunner/product"
	"lowtide/shared/gpu"
)

// The limits of the judgement.
const (
	lagging    = 0.95 // of the node's median: a straggler
	impossible = 1.25 // of the reference: another product, a wrong reference or a false clock
	crowded    = 1.25 // kernel wall time over CPU time: others shared the cores
	hopeless   = 0.60 // below this no neighbour on the cores explains the rate
)

// judge turns one device's windows and findings into its part of the result.
func (x *run) judge() Device {
	d, id := x.out, x.out.Identity
	d.Index, d.Name, d.UUID, d.PCI = id.Index, id.Name, id.UUID, id.PCI
	d.SKU, d.Basis, d.Grade, d.Rated = x.rating.sku, x.rating.basis, x.rating.grade, x.rating.gate
	d.Interval = Estimate(x.rates())
	d.Measured = d.Interval.Mean
	if len(d.Windows) == 0 {
		d.Interval = Interval{}
	}
	outcome := Straddles
	if x.rating.gate > 0 && len(d.Windows) > 0 && !x.stopped {
		iv := d.Interval.over(x.rating.gate)
		d.Lower, d.Upper = &iv.Lower, &iv.Upper
		outcome = Judge(iv)
		x.explain(outcome, iv)
	}
	d.ByReference = ratio(d.Measured, x.rating.reference)
	d.ByDatasheet = ratio(d.Measured, x.rating.datasheet)
	if !x.stopped && !d.Product.Verified {
		x.find(gpu.Differ(gpu.ProductWrong, "checksum of the product", d.Product.Expected, "the nonce's inputs",
			d.Product.Checksum, "the device"))
	}
	if r := d.ByReference; r != nil && *r > impossible && !x.stopped {
		x.find(gpu.Differ(gpu.TooFast, "measured TFLOPS", x.rating.reference, "the reference", d.Measured, "the device"))
	}
	d.Causes = x.findings
	d.Verdict = decide(outcome, x.findings)
	return d
}

// explain adds the causes of a rate below the gate, and of a row that does not decide.
func (x *run) explain(outcome Outcome, iv Interval) {
	if outcome == Reaches {
		return
	}
	if len(x.busy) > 0 && median(x.busy) > crowded && iv.Upper > hopeless {
		x.find(gpu.Found(gpu.Contended, "kernels took %.2f times their CPU time: others share the cores", median(x.busy)))
	}
	if outcome == Straddles && !x.rating.settled {
		x.find(gpu.Found(gpu.Borderline, "the interval %.3f to %.3f straddles %.2f", iv.Lower, iv.Upper, Gate))
		return
	}
	if !x.rating.binding {
		x.find(gpu.Found(gpu.WeakReference, "reference of grade %s may not fail a device", x.rating.grade))
	}
	x.find(gpu.Found(gpu.Degraded, "%.3f of the %s, at most %.3f", iv.Mean, x.rating.basis, iv.Upper))
}

// decide is the precedence: identity, absence and health reject whatever was measured; a doubt keeps a slow device from
// being rejected and a fast one from being trusted.
func decide(outcome Outcome, findings []gpu.Finding) Verdict {
	has := func(classes ...gpu.Class) bool {
		return slices.ContainsFunc(findings, func(f gpu.Finding) bool { return slices.Contains(classes, f.Class) })
	}
	switch {
	case has(gpu.ClassIdentity, gpu.ClassAbsence, gpu.ClassHealth):
		return Fail
	case has(gpu.ClassDoubt):
		return Inconclusive
	case has(gpu.ClassPerformance):
		return Fail
	case outcome == Reaches:
		return Pass
	}
	return Inconclusive
}

// conclude judges the machine: its worst device's verdict, and how the devices compare.
func (r *Result) conclude(o Options) {
	r.Verdict = Pass
	if len(r.Devices) == 0 {
		r.Verdict = Fail
		r.Causes = append(r.Causes, gpu.Found(gpu.NoDevice, "nothing to measure"))
	}
	if o.Expect > len(r.Devices) && len(o.GPUs) == 0 {
		r.Verdict = Fail
		r.Causes = append(r.Causes, gpu.Differ(gpu.Lost, "number of devices", o.Expect, "the offer", len(r.Devices), "the driver"))
	}
	var rates []float64
	for _, d := range r.Devices {
		rates = append(rates, d.Measured)
	}
	middle := median(rates)
	for i := range r.Devices {
		d := &r.Devices[i]
		if len(rates) > 1 && d.Measured < lagging*middle {
			d.Causes = append(d.Causes, gpu.Found(gpu.Straggler, "%.1f TFLOPS against the node's median of %.1f", d.Measured, middle))
		}
		r.Verdict = worse(r.Verdict, d.Verdict)
		work := 0.0
		for _, w := range d.Windows {
			work += w.Device
		}
		r.Work = max(r.Work, work)
		if i == 0 || worseProduct(d.Product, r.Product) {
			r.Product = d.Product
		}
	}
}

func worse(a, b Verdict) Verdict {
	rank := map[Verdict]int{Pass: 0, Inconclusive: 1, Fail: 2}
	if rank[b] > rank[a] {
		return b
	}
	return a
}

func worseProduct(a, b product.Check) bool { return b.Verified && !a.Verified || a.Worst > b.Worst }

// ratio is nil where the denominator is unknown or nothing was measured.
func ratio(measured, rated float64) *float64 {
	if rated <= 0 || measured <= 0 {
		return nil
	}
	r := measured / rated
	return &r
}
