package provider

import (
	"errors"
	"net/http"
	"sync/atomic"
	"time"
)

// Clock is a cloud's clock, corrected by what its answers say, so that a host whose own is off can sign. Make it with
// NewClock; its methods may be called at once.
type Clock struct {
	local func() time.Time
	ahead atomic.Int64 // nanoseconds
}

// NewClock begins with the local time.
func NewClock(local func() time.Time) *Clock { return &Clock{local: local} }

// Now is the cloud's time, as far as it is known.
func (c *Clock) Now() time.Time { return c.local().Add(time.Duration(c.ahead.Load())) }

// steady is how far a clock may be off before it is corrected: signatures live longer.
const steady = 4 * time.Minute

// follow takes the cloud's time from an answer; false if the clocks agree, or it tells none.
func (c *Clock) follow(a Answer) bool {
	date, err := http.ParseTime(a.Header.Get("Date"))
	if err != nil || date.Sub(c.Now()).Abs() < steady {
		return false
	}
	c.ahead.Store(int64(date.Sub(c.local())))
	return true
}

// Send sends what sign makes, by Exchange, and hands the answer to read. If read finds a Problem that may be about the
// time and the clocks differ, it signs and sends once more: a refused signature changed nothing.
func (c *Clock) Send(client *http.Client, writes bool, sign func(at time.Time) (*http.Request, error), read func(Answer) error) error {
	for again := false; ; again = true {
		req, err := sign(c.Now().UTC())
		if err != nil {
			return err
		}
		a, err := Exchange(client, req, writes)
		if err != nil {
			return err
		}
		err = read(a)
		var p *Problem
		if again || !errors.As(err, &p) || !p.Time || !c.follow(a) {
			return err
		}
	}
}
