// Package clock says clock.ticked: the net under all events, so that whoever looks after something does so even when
// nothing else is heard.
//
// It promises one fact a tick for each fleet, and that a tick that comes twice is one. It keeps no time of its own: on
// AWS a schedule wakes it, in one process a ticker does.
package clock

import (
	"time"

	"lowtide/events"
)

// Tick is what a schedule's invocation says. due is when the schedule meant it to come.
func Tick(fleets []string, due time.Time) []events.Event {
	var out []events.Event
	for _, fleet := range fleets {
		out = append(out, events.New(fleet, "schedule", due, events.ClockTicked{What: "tick", Due: due.UTC()}))
	}
	return out
}
