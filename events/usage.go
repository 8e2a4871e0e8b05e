package events

import (
	"time"

	"lowtide/shared/fleet"
)

// UtilisationMeasured is how a machine was used over about a minute. It goes to the telemetry stream: only what usage
// concludes from it is a fact. What could not be read is unknown, never zero.
type UtilisationMeasured struct {
	Machine  string         `json:"machine"`
	Workload string         `json:"workload,omitempty"` // that runs there; "": none
	Epoch    uint64         `json:"epoch,omitempty"`
	Run      fleet.RunPhase `json:"run,omitempty"`
	Busy     string         `json:"busy,omitempty"` // what the agent did meanwhile: benchmark, restore, save
	Over     time.Duration  `json:"over"`
	Source   string         `json:"source"` // gpm, nvml, dcgm; "": no GPU could be read
	GPUs     []GPUUse       `json:"gpus,omitempty"`

	CPU     fleet.Maybe[float64] `json:"cpu,omitzero"`          // share of all cores
	Disk    fleet.Maybe[float64] `json:"disk_mb_s,omitzero"`    // read and written
	Network fleet.Maybe[float64] `json:"network_mb_s,omitzero"` // in and out, without the loopback
}

// GPUUse is one GPU's part: means over the stretch, unless they say otherwise. Shares are of 1.
type GPUUse struct {
	UUID      string               `json:"uuid,omitempty"`
	SM        fleet.Maybe[float64] `json:"sm,omitzero"`     // of the multiprocessors that worked: honest
	Active    fleet.Maybe[float64] `json:"active,omitzero"` // of the time with any kernel: 0 is honest, above proves nothing
	Peak      fleet.Maybe[float64] `json:"peak,omitzero"`   // the largest reading of SM, else of Active
	Tensor    fleet.Maybe[float64] `json:"tensor,omitzero"`
	DRAM      fleet.Maybe[float64] `json:"dram,omitzero"`      // of the memory's bandwidth
	Memory    fleet.Maybe[float64] `json:"memory_mb,omitzero"` // held
	Power     fleet.Maybe[float64] `json:"power_w,omitzero"`
	Clock     fleet.Maybe[float64] `json:"clock_mhz,omitzero"`
	PCIe      fleet.Maybe[float64] `json:"pcie_mb_s,omitzero"`   // both directions
	NVLink    fleet.Maybe[float64] `json:"nvlink_mb_s,omitzero"` // both directions
	Processes fleet.Maybe[float64] `json:"processes,omitzero"`
}

// WorkloadIdle says that a workload has used its GPUs for nothing, over a whole window.
type WorkloadIdle struct {
	Workload string    `json:"workload"`
	Machine  string    `json:"machine"`
	Epoch    uint64    `json:"epoch"`
	Since    time.Time `json:"since"`
	Held     bool      `json:"held,omitempty"` // memory or a process is still there: whoever holds it should be asked
	Why      string    `json:"why"`            // the signals, in words
}

// WorkloadUnderused says that a workload runs and would run as well on less.
type WorkloadUnderused struct {
	Workload string    `json:"workload"`
	Machine  string    `json:"machine"`
	Epoch    uint64    `json:"epoch"`
	Since    time.Time `json:"since"`
	Needs    float64   `json:"needs"`               // share of the present GPU's speed that is enough, with room to spare
	Memory   int       `json:"memory_gb,omitempty"` // of one GPU that it needs, GB; 0: not known
	Why      string    `json:"why"`
}

// WorkloadBusy says that a workload which was idle or underused works again.
type WorkloadBusy struct {
	Workload string `json:"workload"`
	Machine  string `json:"machine"`
	Epoch    uint64 `json:"epoch"`
}

// WorkloadWarned says what will be done about a workload that wastes its GPUs, and when, unless somebody objects.
type WorkloadWarned struct {
	Workload string         `json:"workload"`
	Action   fleet.WhenIdle `json:"action"` // stop, smaller
	Why      string         `json:"why"`
	At       time.Time      `json:"at"`
}

// WorkloadKept is an objection: the workload stays as it is, however idle, until then.
type WorkloadKept struct {
	Workload string    `json:"workload"`
	By       string    `json:"by"`
	Until    time.Time `json:"until,omitzero"` // zero: a day
}
