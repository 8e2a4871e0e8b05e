package gpu

// Reasons is NVML's bit mask of why the clocks are what they are. Several bits may be set at once: test with Has.
type Reasons uint64

// The bits (nvml.h, nvmlClocksEventReasons).
const (
	ReasonIdle        Reasons = 0x1
	ReasonAppClocks   Reasons = 0x2
	ReasonPowerCap    Reasons = 0x4 // the normal state of a healthy card under a dense load
	ReasonHWSlowdown  Reasons = 0x8
	ReasonSWThermal   Reasons = 0x20
	ReasonHWThermal   Reasons = 0x40
	ReasonPowerBrake  Reasons = 0x80
	reasonThermalBits         = ReasonSWThermal | ReasonHWThermal
)

// Has reports whether any bit of mask is set.
func (r Reasons) Has(mask Reasons) bool { return r&mask != 0 }

// Thermal reports a software or hardware thermal slowdown.
func (r Reasons) Thermal() bool { return r.Has(reasonThermalBits) }

// Sample is one reading of a device under load. A nil field was not readable; it is never zero instead.
type Sample struct {
	SMClock     *int     `json:"sm_clock_mhz,omitempty"`
	MemoryClock *int     `json:"memory_clock_mhz,omitempty"`
	Power       *float64 `json:"power_w,omitempty"`
	Temperature *int     `json:"temperature_c,omitempty"`
	Reasons     *Reasons `json:"reasons,omitempty"`
	Lost        bool     `json:"lost,omitempty"`
}

// Mean is the samples' mean, field by field, over those that had the field; the reasons are every bit that any had.
func Mean(samples []Sample) Sample {
	var mean Sample
	mean.SMClock = meanOf(samples, func(s Sample) *int { return s.SMClock })
	mean.MemoryClock = meanOf(samples, func(s Sample) *int { return s.MemoryClock })
	mean.Power = meanOf(samples, func(s Sample) *float64 { return s.Power })
	mean.Temperature = meanOf(samples, func(s Sample) *int { return s.Temperature })
	for _, s := range samples {
		mean.Lost = mean.Lost || s.Lost
		if s.Reasons != nil {
			seen := *s.Reasons
			if mean.Reasons != nil {
				seen |= *mean.Reasons
			}
			mean.Reasons = &seen
		}
	}
	return mean
}

func meanOf[T int | float64](samples []Sample, field func(Sample) *T) *T {
	sum, n := 0.0, 0
	for _, s := range samples {
		if v := field(s); v != nil {
			sum, n = sum+float64(*v), n+1
		}
	}
	if n == 0 {
		return nil
	}
	mean := T(sum / float64(n))
	return &mean
}
