package fake

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// Book pays for a reservation, from From (zero: since the cloud began) until Until, used or not. Its machines are taken then,
// without a notice. One that is booked stays as it is.
func (c *Cloud) Book(r fleet.Reservation) error {
	_, done, err := c.enter(context.Background())
	if err != nil {
		return err
	}
	defer done()
	if _, _, ok := c.find(fleet.Offer{Region: r.Region, Zone: r.Zone, Type: r.Type}); !ok || r.ID == "" || r.Count < 1 {
		return fmt.Errorf("fake: book %s: %w: there is no %s in %s; its zones are %s", r.ID, provider.ErrInvalid, r.Type, cmp.Or(r.Zone, r.Region), c.zones())
	}
	c.book(r)
	return c.broken
}

func (c *Cloud) zones() string {
	var all []string
	for _, t := range c.cfg.Traces {
		all = append(all, t.Zone)
	}
	return strings.Join(all, ", ")
}

func (c *Cloud) book(r fleet.Reservation) {
	if c.booked(r.ID) == nil {
		c.reserved = append(c.reserved, r)
		c.append(entry{Booked: &r})
	}
}

// booked is a reservation of the account, or nil.
func (c *Cloud) booked(id string) *fleet.Reservation {
	for i := range c.reserved {
		if r := &c.reserved[i]; r.ID == id {
			return r
		}
	}
	return nil
}

// paid is a machine of a reservation: it costs nothing more, and there are as many as are booked. A place or type that is
// not the reservation's is not sold.
func (c *Cloud) paid(z int, t Type, id string, now time.Time) (fleet.Offer, bool) {
	r := c.booked(id)
	if r == nil || r.Type != t.Name || r.Zone != "" && r.Zone != c.cfg.Traces[z].Zone {
		return fleet.Offer{}, false
	}
	o, _ := c.offer(z, t, fleet.OnDemand, now)
	o.Market, o.Reservation = fleet.Reserved, id
	o.Price, o.Hourly = fleet.Price{Per: fleet.PerInstanceHour}, fleet.Known(fleet.Dollars(0))
	used := 0
	for _, m := range c.live {
		if m.Offer.Reservation == id {
			used++
		}
	}
	if !r.Open(now) || used >= r.Count || c.refuse[fleet.Reserved] {
		o.Stock = fleet.Known(0)
	}
	return o, true
}

// Booked is what a reservation has cost until now, and what of it was used.
type Booked struct {
	fleet.Reservation
	Cost fleet.Money   `json:"cost"` // used or not
	Used time.Duration `json:"used"` // machine time
	Idle fleet.Money   `json:"idle"` // the part of Cost in which its machines lay idle
}

// Booked lists the account's reservations.
func (c *Cloud) Booked() []Booked {
	bill, now := c.Bill(), c.cfg.Now().UTC()
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Booked
	for _, r := range c.reserved {
		b := Booked{Reservation: r, Cost: r.Cost(c.cfg.Origin, now)}
		for _, m := range bill {
			if m.Offer.Reservation != r.ID {
				continue
			}
			end := now
			if !m.Bills() {
				end = m.Until
			}
			b.Used += end.Sub(m.Since)
		}
		b.Idle = b.Cost.Add(r.Hourly.Times(-b.Used.Hours()))
		out = append(out, b)
	}
	return out
}
