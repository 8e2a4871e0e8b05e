package suite

import (
	"math"
	"slices"

	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
)

// The limits of the judgement.
const (
	lagging     = 0.95 // of the node's median: a straggler
	farAbove    = 1.25 // of the reference or the datasheet
	calibrated  = 2.0  // the same for a calibration, which may have been made while others used the cores
	crowded     = 1.25 // kernel wall time over CPU time: others shared the cores
	hopeless    = 0.75 // below this no neighbour on the cores explains the rate
	slowSamples = 0.01 // share of samples in hardware slowdown that a healthy device may show
	lowClock    = 0.80 // of what the units do at the clock they held; not yet settled on hardware, so it only explains
	limited     = 0.98 // of the default power limit
	violating   = 0.01 // share of the time in thermal violation
	fastEvents  = 1.25 // host time over event time, in the window where the two are closest
	slowEvents  = 1.02 // event time over host time around it
	eventSlack  = 1e-3 // seconds: what two clock readings may differ by
)

// judge turns one device's windows and findings into its part of the result.
func (x *run) judge() Device {
	d, id := &x.out, x.out.Identity
	d.Index, d.Name, d.UUID, d.PCI = id.Index, id.Name, id.UUID, id.PCI
	d.SKU, d.Basis, d.Grade, d.Rated = x.rating.sku, x.rating.basis, x.rating.grade, x.rating.gate
	if len(d.Windows) > 0 {
		d.Interval = Estimate(x.rates())
		d.Measured = d.Interval.Mean
	}
	d.Reference, d.Datasheet = known(x.rating.reference), known(x.rating.datasheet)
	d.ByReference, d.ByDatasheet = ratio(d.Measured, x.rating.reference), ratio(d.Measured, x.rating.datasheet)
	d.ByClock = x.perClock()
	if x.options.Backend != "cpu" {
		x.find(gpu.JudgeIdentity(id, x.options.Claim)...)
		x.judgeHealth()
		x.judgeProbe()
	}
	outcome := Straddles
	if !x.stopped && len(d.Windows) > 0 {
		x.judgeTruth()
		outcome = x.judgeRate()
	}
	d.Causes = x.findings
	d.Verdict = decide(outcome, x.findings)
	return *d
}

func (x *run) judgeHealth() {
	var row gpu.Rating
	if x.rating.row != nil {
		row = *x.rating.row
	}
	health := gpu.JudgeHealth(x.out.Identity, x.out.Health, row)
	lost := slices.ContainsFunc(health, func(f gpu.Finding) bool { return f.Cause == gpu.Lost })
	if lost { // everything else that failed, failed because of it
		x.findings = slices.DeleteFunc(x.findings, func(f gpu.Finding) bool {
			return f.Cause == gpu.DidNotRun || f.Cause == gpu.DriverError || f.Cause == gpu.TestMissing
		})
	}
	x.find(health...)
	slow := 0
	for _, s := range x.samples {
		if s.Reasons != nil && s.Reasons.Has(gpu.ReasonHWSlowdown) {
			slow++
		}
	}
	if float64(slow) > slowSamples*float64(len(x.samples)) {
		x.find(gpu.Found(gpu.HardwareSlowdown, "in %d of %d samples", slow, len(x.samples)))
	}
}

// judgeTruth asks whether the device did the work and whether its clock tells the truth.
func (x *run) judgeTruth() {
	if p := x.out.Product; !p.Verified {
		x.find(gpu.Differ(gpu.ProductWrong, "checksum of the product", p.Expected, "the nonce's inputs", p.Checksum, "the device"))
	}
	x.judgeClock()
	limit := farAbove
	if x.rating.row == nil {
		limit = calibrated
	}
	switch peak := max(x.rating.datasheet, x.rating.reference); {
	case x.rating.datasheet > 0 && x.out.Measured > farAbove*peak:
		x.find(gpu.Differ(gpu.TooFast, "TFLOPS", peak, "the product's peak", x.out.Measured, "the device"))
	case x.rating.reference > 0 && x.out.Measured > limit*x.rating.reference:
		x.find(gpu.Differ(gpu.AboveReference, "TFLOPS", x.rating.reference, "the reference", x.out.Measured, "the device"))
	}
}

// judgeClock compares the device's events with the host's clock. The cpu backend's clock is CPU time, which is meant to
// differ from the host's.
func (x *run) judgeClock() {
	if x.options.Backend == "cpu" {
		return
	}
	closest, device, host := math.Inf(1), 0.0, 0.0
	for _, w := range x.out.Windows {
		if r := w.Host / w.Device; r < closest {
			closest, device, host = r, w.Device, w.Host
		}
	}
	// An interrupted host lengthens some windows; only a false clock lengthens all, or shortens any.
	if host > device*fastEvents+eventSlack || device > host*slowEvents+eventSlack {
		x.find(gpu.Differ(gpu.ClockDisagrees, "seconds of the closest window", host, "the host's clock", device, "device events"))
	}
}

// judgeRate holds the interval against the gate and says why a device is below it.
func (x *run) judgeRate() Outcome {
	if x.rating.gate <= 0 {
		if x.rating.row != nil {
			x.find(gpu.Found(gpu.NoReference, "nobody has published a measurement of %s", x.rating.sku))
		}
		return Straddles
	}
	iv := x.out.Interval.over(x.rating.gate)
	x.out.Lower, x.out.Upper = &iv.Lower, &iv.Upper
	outcome := Judge(iv)
	if x.rating.basis == Reference && x.rating.grade == gpu.GradeC {
		x.find(gpu.Found(gpu.WeakReference, "the reference of %s is an analogy", x.rating.sku))
	} else if outcome != Reaches && !x.rating.binding {
		x.find(gpu.Found(gpu.WeakReference, "the reference of %s rests on %s: it may not fail a device", x.rating.sku, x.sources()))
	}
	if outcome == Reaches {
		return outcome
	}
	if len(x.busy) > 0 && median(x.busy) > crowded && iv.Upper > hopeless {
		x.find(gpu.Found(gpu.Contended, "kernels took %.2f times their CPU time: others share the cores", median(x.busy)))
	}
	if outcome == Straddles && !x.rating.settled {
		x.find(gpu.Found(gpu.Borderline, "the interval %.3f to %.3f straddles %.2f", iv.Lower, iv.Upper, Gate))
		return outcome
	}
	x.explain(iv)
	return outcome
}

func (x *run) sources() string {
	if x.rating.row != nil && x.rating.row.Sources == 1 {
		return "one source"
	}
	return "no source"
}

// explain names the causes of a rate below the gate, from the telemetry of the same windows.
func (x *run) explain(iv Interval) {
	before := len(x.findings)
	var seen gpu.Reasons
	for _, s := range x.samples {
		if s.Reasons != nil {
			seen |= *s.Reasons
		}
	}
	if n := x.out.Identity.NVML; n != nil && n.Default != nil && n.Enforced != nil && *n.Enforced < limited**n.Default {
		x.find(gpu.Differ(gpu.PowerLimited, "power limit in W", *n.Default, "the default", *n.Enforced, "the host's setting"))
	}
	if seen.Thermal() || x.thermal() > violating {
		x.find(gpu.Found(gpu.Cooling, "thermal slowdown during the windows"))
	}
	if seen.Has(gpu.ReasonPowerBrake) {
		x.find(gpu.Found(gpu.PowerBrake, "the external power brake was on during the windows"))
	}
	if seen.Has(gpu.ReasonAppClocks) {
		x.find(gpu.Found(gpu.ClocksLocked, "application clocks are set"))
	}
	if len(x.findings) == before && x.out.ByClock != nil && *x.out.ByClock < lowClock {
		x.find(gpu.Found(gpu.SlowPerClock, "%.2f of what the units do at the clock they held", *x.out.ByClock))
	}
	if len(x.findings) == before {
		x.find(gpu.Found(gpu.Degraded, "%.3f of the %s, at most %.3f", iv.Mean, x.rating.basis, iv.Upper))
	}
}

// thermal is the share of the windows' time in thermal violation.
func (x *run) thermal() float64 {
	b, a := x.out.Health.Before.ThermalNanos, x.out.Health.After.ThermalNanos
	if a == nil || b == nil || *a < *b {
		return 0
	}
	total := 0.0
	for _, w := range x.out.Windows {
		total += w.Host
	}
	return float64(*a-*b) / 1e9 / total
}

// perClock is the rate over what the product's units do at the clock they held; nil where any of it is unknown.
func (x *run) perClock() *float64 {
	row, clock := x.rating.row, gpu.Mean(x.samples).SMClock
	if row == nil || clock == nil || row.Units == 0 || row.FlopsPerUnit == 0 {
		return nil
	}
	return ratio(x.out.Measured, float64(row.Units)*float64(row.FlopsPerUnit)*float64(*clock)*1e6/1e12)
}

func known(v float64) *float64 {
	if v <= 0 {
		return nil
	}
	return &v
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
	r.Verdict = decide(Reaches, r.Causes)
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
		r.Work = max(r.Work, d.work())
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
