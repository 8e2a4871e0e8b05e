// Package pool decides for one job between spot (in which zone), waiting and on-demand.
//
// It promises that no job that could be promised misses its deadline, whatever spot does (Guard), and under that
// promise looks for the least expected cost (Planner, Decide). The published rules it is measured against, and
// the offline optimum, which knows the future and bounds them all, are here too.
//
// It knows no clock, does no I/O and leaves no goroutine behind: the same arguments give the same answer. It
// does not know clouds, offers or fleets; who calls it turns those into a Job and into zones.
package pool

import (
	"fmt"
	"math"
)

// Mode is what a job is doing, or is to do next.
type Mode uint8

// The three modes. Going idle is free; entering Spot or OnDemand from any other mode is a launch.
const (
	Idle Mode = iota
	Spot
	OnDemand
)

// String is the mode's name in tables and in the policy protocol.
func (m Mode) String() string {
	switch m {
	case Idle:
		return "idle"
	case Spot:
		return "spot"
	case OnDemand:
		return "on_demand"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// Job is one job on a grid of ticks, all of one gang size, speed and hardware. Times are in seconds, prices in
// $/h for the whole gang.
type Job struct {
	Work     float64 // time on a running instance until done, above 0
	Deadline float64 // from the job's start; floored to the grid where it counts
	Delay    float64 // from a launch until work goes on: provision, set up, restore, and the work lost
	Tick     float64 // between two decisions, above 0
	OnDemand float64 // price, above 0
	Spot     float64 // price, above 0, the same in all zones
}

// Ticks is the number of whole ticks until the deadline.
func (j Job) Ticks() int { return int(math.Floor(j.Deadline/j.Tick + 1e-9)) }

// End is the deadline floored to the grid, which is the one that counts, in seconds from the start.
func (j Job) End() float64 { return float64(j.Ticks()) * j.Tick }

// Promisable reports whether on-demand alone makes the deadline. A job that is not can be run, but not promised.
func (j Job) Promisable() bool { return j.Work+j.Delay <= j.End()+1e-6 }

// View is what is known at the start of a tick.
type View struct {
	T      int     // number of the tick from the job's start, from 0
	Up     []bool  // by zone: spot can run in this tick, all of it
	Mode   Mode    // what survived of the last tick; preempted spot is already Idle
	Zone   int     // the zone in use if Mode is Spot, else -1
	Work   float64 // seconds of work left, warm-up not included
	Warmup float64 // seconds of warm-up the running instance still has to burn
}

// Any reports whether spot is up in some zone.
func (v View) Any() bool {
	for _, up := range v.Up {
		if up {
			return true
		}
	}
	return false
}

// Choice is what to run for one tick. Zone matters for Spot only; -1 otherwise.
type Choice struct {
	Mode Mode
	Zone int
}

// Stay is the choice that goes on with what runs.
func (v View) Stay() Choice { return Choice{v.Mode, v.Zone} }

// Launches reports whether c is a launch in v.
func (v View) Launches(c Choice) bool {
	return c.Mode != Idle && (c.Mode != v.Mode || c.Mode == Spot && c.Zone != v.Zone)
}

// Rule is a policy for one job: it is asked once a tick, in order, and may remember what it saw.
type Rule interface {
	Choose(View) Choice
}
