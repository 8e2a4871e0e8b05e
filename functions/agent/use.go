package agent

import (
	"context"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// Meter looks at how the machine is used.
type Meter interface {
	// Read is one look. What cannot be read is unknown; a meter that can read nothing at all gives the zero Reading. It is
	// never called twice at once.
	Read(ctx context.Context) Reading
}

// Reading is one look at how a machine is used.
type Reading struct {
	Source  string // of the GPUs' figures: gpm, nvml, dcgm; "": none could be read
	GPUs    []events.GPUUse
	CPU     fleet.Maybe[float64] // share of all cores
	Disk    fleet.Maybe[float64] // MB/s
	Network fleet.Maybe[float64] // MB/s
}

// measure looks at the machine's use every Look and says what it saw every Measure.
func (a *Agent) measure() {
	if a.deps.Meter == nil || a.work.busy("meter") || a.now.Before(a.lookAt) {
		return
	}
	a.lookAt = a.now.Add(a.cfg.Look)
	if a.readFrom.IsZero() {
		a.readFrom = a.now
	}
	a.work.begin("meter", func(ctx context.Context) func() {
		r := a.deps.Meter.Read(ctx)
		return func() { a.readings = append(a.readings, r) }
	})
	if over := a.now.Sub(a.readFrom); over >= a.cfg.Measure && len(a.readings) > 0 {
		a.say(a.used(over))
		a.readFrom, a.readings = a.now, a.readings[:0]
	}
}

// used sums the readings up.
func (a *Agent) used(over time.Duration) events.UtilisationMeasured {
	r := a.memo.Run
	out := events.UtilisationMeasured{
		Machine: a.cfg.Machine, Workload: r.Workload, Epoch: r.Epoch, Run: r.Phase, Busy: a.busy(), Over: over,
		CPU:     mean(a.readings, func(r Reading) fleet.Maybe[float64] { return r.CPU }),
		Disk:    mean(a.readings, func(r Reading) fleet.Maybe[float64] { return r.Disk }),
		Network: mean(a.readings, func(r Reading) fleet.Maybe[float64] { return r.Network }),
	}
	last := a.readings[len(a.readings)-1]
	out.Source = last.Source
	for _, g := range last.GPUs { // one that was lost on the way is not there any more
		out.GPUs = append(out.GPUs, usedGPU(a.readings, g.UUID))
	}
	return out
}

func usedGPU(readings []Reading, uuid string) events.GPUUse {
	var all []events.GPUUse
	for _, r := range readings {
		for _, g := range r.GPUs {
			if g.UUID == uuid {
				all = append(all, g)
			}
		}
	}
	of := func(field func(events.GPUUse) fleet.Maybe[float64]) fleet.Maybe[float64] { return mean(all, field) }
	use := events.GPUUse{
		UUID: uuid,
		SM:   of(func(g events.GPUUse) fleet.Maybe[float64] { return g.SM }), Active: of(func(g events.GPUUse) fleet.Maybe[float64] { return g.Active }),
		Tensor: of(func(g events.GPUUse) fleet.Maybe[float64] { return g.Tensor }), DRAM: of(func(g events.GPUUse) fleet.Maybe[float64] { return g.DRAM }),
		Memory: of(func(g events.GPUUse) fleet.Maybe[float64] { return g.Memory }), Power: of(func(g events.GPUUse) fleet.Maybe[float64] { return g.Power }),
		Clock: of(func(g events.GPUUse) fleet.Maybe[float64] { return g.Clock }), PCIe: of(func(g events.GPUUse) fleet.Maybe[float64] { return g.PCIe }),
		NVLink: of(func(g events.GPUUse) fleet.Maybe[float64] { return g.NVLink }), Processes: of(func(g events.GPUUse) fleet.Maybe[float64] { return g.Processes }),
	}
	for _, g := range all {
		v, known := g.SM.Get()
		if !known {
			v, known = g.Active.Get()
		}
		if known && v >= use.Peak.Or(0) {
			use.Peak = fleet.Known(v)
		}
	}
	return use
}

// mean is over those that know the field; unknown where none does.
func mean[T any](all []T, field func(T) fleet.Maybe[float64]) fleet.Maybe[float64] {
	sum, n := 0.0, 0
	for _, x := range all {
		if v, ok := field(x).Get(); ok {
			sum, n = sum+v, n+1
		}
	}
	if n == 0 {
		return fleet.Maybe[float64]{}
	}
	return fleet.Known(sum / float64(n))
}
