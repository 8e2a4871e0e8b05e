package provider

import (
	"context"
	"fmt"
	"sync"
	"time"

	"lowtide/shared/fleet"
)

// Caps bound what one installation may have and do at an account; zero fields bound nothing.
type Caps struct {
	Hourly   fleet.Money // USD an hour, all machines together
	Machines int         // at once
	Launches int         // in an hour
}

// Cap refuses launches beyond the caps with ErrRefusedHere, before the cloud is asked. It reckons from the cloud's own
// list, so that a restart forgets nothing, and from what it has just bought and the list may not show yet; only a
// purchase that is neither listed nor answered (a lost answer, or a restart, within the listing delay) is not counted.
// A launch whose plan the list shows already is let through: it buys nothing. While Hourly is set, offers without a known
// price are refused, and so is every launch beside a machine of ours whose price nobody knows yet. now is lowtide's time.
func Cap(p Provider, caps Caps, now func() time.Time) Provider {
	return &capped{Provider: p, caps: caps, now: now, recent: map[string]Machine{}}
}

type capped struct {
	Provider
	caps Caps
	now  func() time.Time

	mu     sync.Mutex // one launch at a time, or two would fit into one gap
	recent map[string]Machine
}

func (c *capped) Launch(ctx context.Context, want Request) (Machine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(ctx, want); err != nil {
		return Machine{}, fmt.Errorf("launch %s: %w", want.Offer, err)
	}
	m, err := c.Provider.Launch(ctx, want)
	if err == nil {
		c.recent[m.ID] = m
	}
	return m, err
}

func (c *capped) check(ctx context.Context, want Request) error {
	all, err := c.List(ctx)
	if err != nil {
		return fmt.Errorf("count machines: %w", err)
	}
	now := c.now()
	for _, m := range all {
		delete(c.recent, m.ID)
	}
	for id, m := range c.recent {
		if now.Sub(m.Since) > time.Hour+c.Traits().ListingDelay {
			delete(c.recent, id)
			continue
		}
		all = append(all, m)
	}
	running, launches := 0, 0
	hourly, known := want.Offer.Hourly.Get()
	if !known && c.caps.Hourly.Amount.Sign() > 0 {
		return fmt.Errorf("%w: its price is not known, and the account is capped at %s an hour", ErrRefusedHere, c.caps.Hourly)
	}
	for _, m := range all {
		if m.Labels.Install != want.Labels.Install {
			continue
		}
		if m.Labels.Plan == want.Labels.Plan && m.Labels.Fleet == want.Labels.Fleet {
			return nil
		}
		if now.Sub(m.Since) < time.Hour {
			launches++
		}
		if m.State != Gone {
			running++
			costs, known := m.Offer.Hourly.Get()
			if !known && c.caps.Hourly.Amount.Sign() > 0 {
				return fmt.Errorf("%w: what %s costs is not known, and the account is capped at %s an hour", ErrRefusedHere, m.ID, c.caps.Hourly)
			}
			hourly = hourly.Add(costs)
		}
	}
	switch {
	case c.caps.Machines > 0 && running+1 > c.caps.Machines:
		return fmt.Errorf("%w: %d machines run, the cap is %d", ErrRefusedHere, running, c.caps.Machines)
	case c.caps.Launches > 0 && launches+1 > c.caps.Launches:
		return fmt.Errorf("%w: %d launches within the hour, the cap is %d", ErrRefusedHere, launches, c.caps.Launches)
	case c.caps.Hourly.Amount.Sign() > 0 && hourly.Amount.GreaterThan(c.caps.Hourly.Amount):
		return fmt.Errorf("%w: it would make %s an hour, the cap is %s", ErrRefusedHere, hourly, c.caps.Hourly)
	}
	return nil
}
