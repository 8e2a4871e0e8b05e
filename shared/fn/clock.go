package fn

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Clock maps wall time to the time that lowtide reckons in, so that a market can be replayed faster than it was.
// The zero Clock is wall time itself.
type Clock struct {
	Origin time.Time // lowtide's time at Start
	Start  time.Time // wall time
	Speed  float64   // lowtide seconds in one wall second; 0 is 1
}

func (c Clock) speed() float64 {
	if c.Speed == 0 {
		return 1
	}
	return c.Speed
}

// Of is lowtide's time at a wall time.
func (c Clock) Of(wall time.Time) time.Time {
	if c.Start.IsZero() {
		return wall.UTC()
	}
	return c.Origin.Add(time.Duration(float64(wall.Sub(c.Start)) * c.speed())).UTC()
}

// Now is lowtide's time.
func (c Clock) Now() time.Time { return c.Of(time.Now()) }

// Wall is the wall time at which lowtide's time is t.
func (c Clock) Wall(t time.Time) time.Time {
	if c.Start.IsZero() {
		return t
	}
	return c.Start.Add(time.Duration(float64(t.Sub(c.Origin)) / c.speed()))
}

// Real is how long d of lowtide's time takes on the wall.
func (c Clock) Real(d time.Duration) time.Duration { return time.Duration(float64(d) / c.speed()) }

// String is what ParseClock reads; user-data carries it to the agents.
func (c Clock) String() string {
	if c.Start.IsZero() {
		return ""
	}
	return fmt.Sprintf("%d,%d,%g", c.Origin.UnixNano(), c.Start.UnixNano(), c.speed())
}

// ParseClock reads what String wrote; "" is wall time.
func ParseClock(s string) (Clock, error) {
	if s == "" {
		return Clock{}, nil
	}
	p := strings.Split(s, ",")
	if len(p) != 3 {
		return Clock{}, fmt.Errorf("clock %q: want origin,start,speed", s)
	}
	origin, err1 := strconv.ParseInt(p[0], 10, 64)
	start, err2 := strconv.ParseInt(p[1], 10, 64)
	speed, err3 := strconv.ParseFloat(p[2], 64)
	if err1 != nil || err2 != nil || err3 != nil || speed <= 0 {
		return Clock{}, fmt.Errorf("clock %q: want two times in nanoseconds and a speed above 0", s)
	}
	return Clock{time.Unix(0, origin).UTC(), time.Unix(0, start), speed}, nil
}
