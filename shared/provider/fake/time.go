package fake

import (
	"context"
	"time"

	"lowtide/shared/provider"
)

// Advance lets happen what is due by now, in its order and each at its own time, and returns when the launcher has
// been told. Calls do it for themselves; a simulation calls it between them, Run in real time.
func (c *Cloud) Advance(now time.Time) {
	c.mu.Lock()
	c.advance(now.UTC())
	c.mu.Unlock()
	c.drain()
}

// Next is when the next thing happens by itself; false if nothing will.
func (c *Cloud) Next() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, at := c.nextDue()
	return at, !at.IsZero()
}

// Run advances the cloud in real time until ctx ends.
func (c *Cloud) Run(ctx context.Context) error {
	for {
		c.Advance(c.cfg.Now())
		wait := time.Hour
		if at, ok := c.Next(); ok {
			wait = min(wait, max(c.cfg.Real(at.Sub(c.cfg.Now())), time.Millisecond))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-c.woken:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// wake tells Run that the next thing may be sooner than it thinks.
func (c *Cloud) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

func (c *Cloud) advance(now time.Time) {
	for c.broken == nil {
		r, at := c.nextDue()
		if r == nil || at.After(now) {
			break
		}
		c.happen(r, at)
	}
	if now.After(c.clock) {
		c.clock = now
	}
}

// nextDue is the machine with the earliest event; equal times go by the order of sale.
func (c *Cloud) nextDue() (*Rental, time.Time) {
	var first *Rental
	var at time.Time
	for _, r := range c.live {
		t := r.next()
		if t.IsZero() {
			continue
		}
		if first == nil || t.Before(at) || t.Equal(at) && r.ID < first.ID {
			first, at = r, t
		}
	}
	return first, at
}

// happen lets the event of r that is due at at happen.
func (c *Cloud) happen(r *Rental, at time.Time) {
	switch {
	case r.State == provider.Ending:
		c.gone(r, r.GoneAt, r.Why)
	case due(r.KillAt, at):
		c.gone(r, at, "interrupted")
	case due(r.HardEnd, at):
		c.gone(r, at, "hard_end")
	case !r.Noticed && due(r.NoticeAt, at):
		c.notice(r, at)
	case r.State == provider.Pending && due(r.BootAt, at):
		r.State = provider.Running
		c.record(r)
		c.boot(r)
	}
}

func due(t, at time.Time) bool { return !t.IsZero() && !t.After(at) }

func (c *Cloud) notice(r *Rental, at time.Time) {
	r.Noticed = true
	c.record(r)
	n := c.remember(r, at)
	if c.cfg.OnNotice != nil {
		c.todo = append(c.todo, func() { c.cfg.OnNotice(n) })
	}
}

// remember puts a notice on the list that owners read; it is made again from the journal, with the same numbers.
func (c *Cloud) remember(r *Rental, at time.Time) Notice {
	n := Notice{
		Seq: len(c.notices) + 1, Cloud: c.cfg.Cloud, Account: c.cfg.Account, ID: r.ID, Machine: r.Name, Action: "terminate", At: at, EndsBy: r.KillAt,
	}
	c.notices = append(c.notices, n)
	return n
}

// gone ends a machine's bill.
func (c *Cloud) gone(r *Rental, at time.Time, why string) {
	asked := r.State == provider.Ending
	r.State, r.Until, r.Why = provider.Gone, at.UTC(), why
	delete(c.live, r.ID)
	c.record(r)
	if !asked {
		c.kill(r)
	}
}

// resume tells the launcher about the machines of the journal.
func (c *Cloud) resume() {
	for _, id := range c.order {
		switch r := c.rentals[id]; r.State {
		case provider.Running:
			c.boot(r)
		case provider.Ending, provider.Gone:
			c.kill(r)
		}
	}
}

func (c *Cloud) boot(r *Rental) {
	if c.cfg.Launcher == nil || r.Foreign || r.NeverReady {
		return
	}
	b := Boot{Machine: r.Machine, Name: r.Name, UserData: r.UserData, Throttle: r.Throttle, Metadata: c.metadata(r.ID)}
	c.todo = append(c.todo, func() { c.cfg.Launcher.Boot(b) })
}

func (c *Cloud) kill(r *Rental) {
	if c.cfg.Launcher == nil || r.Foreign || r.NeverReady {
		return
	}
	id := r.ID
	c.todo = append(c.todo, func() { c.cfg.Launcher.Kill(id) })
}

func (c *Cloud) metadata(id string) string {
	if c.cfg.Metadata == "" {
		return ""
	}
	return c.cfg.Metadata + "/metadata/" + id
}

// drain runs what is to be told, in the order in which it happened, by one caller at a time and without the lock:
// a launcher may call the cloud, and a kill must never overtake its boot.
func (c *Cloud) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining {
		return
	}
	c.draining = true
	for len(c.todo) > 0 {
		f := c.todo[0]
		c.todo = c.todo[1:]
		c.mu.Unlock()
		f()
		c.mu.Lock()
	}
	c.draining = false
}
