// Package meter reads how a machine is used: its GPUs by NVML or by an exporter's page, its cores, disks and network by the
// kernel.
//
// It promises that what cannot be read is unknown, never zero, that one unreadable source takes nothing from the others,
// and that it is cheap: a look each five seconds costs less than half a per cent of a core (BenchmarkLook).
// It concludes nothing: functions/usage tells idle from busy.
package meter

import (
	"context"
	"net/http"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/shared/fleet"
	"lowtide/shared/gpu"
)

// Options say what to read.
type Options struct {
	Scrape string       // page of dcgm-exporter, or of a Prometheus server's /federate; "": NVML
	Client *http.Client // for Scrape; nil: http.DefaultClient
	Proc   string       // root of procfs; "": /proc
}

// Meter is an agent.Meter. Make it with New; Close it.
type Meter struct {
	nvml   *gpu.NVML // nil: none
	scrape *scraper  // nil: none
	host   host
}

// New opens what there is to read. A machine without a GPU library is no error: its GPUs are unknown.
func New(o Options) *Meter {
	m := &Meter{host: newHost(o.Proc)}
	if o.Scrape != "" {
		m.scrape = &scraper{url: o.Scrape, client: o.Client}
		return m
	}
	if lib, err := gpu.OpenNVML(); err == nil {
		m.nvml = lib
	}
	return m
}

// Close closes the library.
func (m *Meter) Close() {
	if m.nvml != nil {
		m.nvml.Close()
	}
}

// Read implements agent.Meter.
func (m *Meter) Read(ctx context.Context) agent.Reading {
	var r agent.Reading
	m.host.read(time.Now(), &r)
	switch {
	case m.scrape != nil:
		m.scrape.read(ctx, &r)
	case m.nvml != nil:
		for i := range m.nvml.Count() {
			u := m.nvml.Use(i)
			if u.Lost {
				continue
			}
			r.Source = u.Source
			r.GPUs = append(r.GPUs, use(u))
		}
	}
	return r
}

// use is a reading of NVML as facts write it.
func use(u gpu.Use) events.GPUUse {
	return events.GPUUse{
		UUID: u.UUID, SM: maybe(u.SM), Active: maybe(u.Active), Tensor: maybe(u.Tensor), DRAM: maybe(u.DRAM), Memory: maybe(u.Memory),
		Power: maybe(u.Power), Clock: maybe(u.Clock), PCIe: maybe(u.PCIe), NVLink: maybe(u.NVLink), Processes: maybe(u.Processes),
	}
}

func maybe[T int | float64](v *T) fleet.Maybe[float64] {
	if v == nil {
		return fleet.Maybe[float64]{}
	}
	return fleet.Known(float64(*v))
}
