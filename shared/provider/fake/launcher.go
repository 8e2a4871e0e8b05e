package fake

import (
	"strconv"

	"lowtide/shared/provider"
)

// Launcher runs machines. Its methods are called one at a time, in the order in which things happen, without the
// cloud's lock: they may call the cloud, and should return soon.
type Launcher interface {
	// Boot starts a machine. A machine that ran before (the cloud was opened again) must not be started twice.
	Boot(b Boot)
	// Kill ends all of a machine at once; a machine that is not there is nothing to do.
	Kill(id string)
}

// Boot is what a machine starts with.
type Boot struct {
	Machine  provider.Machine
	Name     string // ours
	UserData string
	Metadata string  // URL of its metadata; "": none
	Throttle float64 // share of the rated speed that its GPU gives; 0: all. The machine is not told by the cloud's API.
}

// Env is what the cloud adds to the machine's environment, besides the user-data.
func (b Boot) Env() []string {
	env := []string{"LOWTIDE_INSTANCE_ID=" + b.Machine.ID}
	if b.Metadata != "" {
		env = append(env, "LOWTIDE_METADATA_URL="+b.Metadata)
	}
	if b.Throttle > 0 {
		env = append(env, "LOWTIDE_GPU_THROTTLE="+strconv.FormatFloat(b.Throttle, 'g', -1, 64))
	}
	return env
}

// Callbacks is a Launcher for simulations: machines are what its functions make of them. Nil functions do nothing.
type Callbacks struct {
	OnBoot func(Boot)
	OnKill func(id string)
}

// Boot implements Launcher.
func (c Callbacks) Boot(b Boot) {
	if c.OnBoot != nil {
		c.OnBoot(b)
	}
}

// Kill implements Launcher.
func (c Callbacks) Kill(id string) {
	if c.OnKill != nil {
		c.OnKill(id)
	}
}
