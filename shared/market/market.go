// Package market says when spot capacity was, or might be, to be had: traces recorded by others, and a
// seeded model of our own.
//
// It promises that the same bytes, or the same seed, always give the same market, and that a file that
// cannot be read is refused in one line that says which file, where in it, why, and how to mend it.
//
// It decides nothing, buys nothing and knows no clock: a trace is asked by the time since its start.
package market

import (
	"time"
)

// Trace is the spot market of one zone on a fixed grid: tick i lasts from i·Gap to (i+1)·Gap after the start.
// Traces from one Load or one Model share a clock: tick i is the same moment in all of them.
type Trace struct {
	Zone string        // for example us-east-1a
	Gap  time.Duration // length of a tick, above 0

	Count  []int     // instances to be had in each tick; 0 = none
	Prices []float64 // spot price of one instance, $/h, by tick; nil where the source has none
}

// At reports whether at least one instance can run at offset after the trace's start.
func (t Trace) At(offset time.Duration) bool { return t.Room(offset) > 0 }

// Room says how many instances can run at offset after the trace's start: 0 before the start and after the end.
func (t Trace) Room(offset time.Duration) int {
	i := t.tick(offset)
	if i < 0 {
		return 0
	}
	return t.Count[i]
}

// Price is the spot price at offset, $/h; 0 where the trace has no prices. Before the start the first price
// holds, after the end the last.
func (t Trace) Price(offset time.Duration) float64 {
	if len(t.Prices) == 0 || t.Gap <= 0 {
		return 0
	}
	i := min(max(int64(offset/t.Gap), 0), int64(len(t.Prices)-1))
	return t.Prices[i]
}

// Length is the time the trace covers.
func (t Trace) Length() time.Duration { return time.Duration(len(t.Count)) * t.Gap }

// Up lists for every tick whether a gang of n instances, all or nothing, could run in it.
func (t Trace) Up(n int) []bool {
	up := make([]bool, len(t.Count))
	for i, c := range t.Count {
		up[i] = c >= max(n, 1)
	}
	return up
}

// Availability is the share of ticks in which at least one instance was to be had; 0 for an empty trace.
func (t Trace) Availability() float64 {
	if len(t.Count) == 0 {
		return 0
	}
	up := 0
	for _, c := range t.Count {
		if c > 0 {
			up++
		}
	}
	return float64(up) / float64(len(t.Count))
}

// tick is the index of the tick that holds offset, -1 outside the trace.
func (t Trace) tick(offset time.Duration) int {
	if offset < 0 || t.Gap <= 0 || offset/t.Gap >= time.Duration(len(t.Count)) {
		return -1
	}
	return int(offset / t.Gap)
}
