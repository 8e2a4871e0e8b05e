package fake

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// Rental is one machine on the bill, with all that the cloud knows about it.
type Rental struct {
	provider.Machine
	Name     string    `json:"name"`
	Token    string    `json:"token,omitempty"`
	Params   string    `json:"params,omitempty"` // digest of the request
	UserData string    `json:"user_data,omitempty"`
	Foreign  bool      `json:"foreign,omitempty"`
	BootAt   time.Time `json:"boot_at,omitzero"`
	ListedAt time.Time `json:"listed_at,omitzero"`
	NoticeAt time.Time `json:"notice_at,omitzero"`
	Noticed  bool      `json:"noticed,omitempty"`
	KillAt   time.Time `json:"kill_at,omitzero"`
	GoneAt   time.Time `json:"gone_at,omitzero"`
	HardEnd  time.Time `json:"hard_end,omitzero"`

	NeverReady bool    `json:"never_ready,omitempty"` // a fault: it bills and never boots
	Throttle   float64 `json:"throttle,omitempty"`    // a fault: share of the rated speed that the GPU gives; 0: all
}

// next is when something happens to the machine by itself; zero if nothing will.
func (r *Rental) next() time.Time {
	if r.State == provider.Ending {
		return r.GoneAt
	}
	var at time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	sooner(r.KillAt)
	sooner(r.HardEnd)
	if !r.Noticed {
		sooner(r.NoticeAt)
	}
	if r.State == provider.Pending {
		sooner(r.BootAt)
	}
	return at
}

// Bills says that the machine costs money still.
func (r Rental) Bills() bool { return r.State != provider.Gone }

// Cost is what the machine has cost until now, by the second.
func (r Rental) Cost(now time.Time) fleet.Money {
	end := now
	if !r.Bills() {
		end = r.Until
	}
	hourly, ok := r.Offer.Hourly.Get()
	if !ok || end.Before(r.Since) {
		return fleet.Money{}
	}
	return hourly.Times(end.Sub(r.Since).Truncate(time.Second).Hours())
}

// Bill is every machine ever sold to the account, in order of sale.
type Bill []Rental

// Ours leaves out others' machines.
func (b Bill) Ours() Bill {
	return slices.DeleteFunc(slices.Clone(b), func(r Rental) bool { return r.Foreign })
}

// Running lists the machines that bill still.
func (b Bill) Running() Bill {
	return slices.DeleteFunc(slices.Clone(b), func(r Rental) bool { return !r.Bills() })
}

// Total is what the machines have cost until now.
func (b Bill) Total(now time.Time) fleet.Money {
	var sum fleet.Money
	for _, r := range b {
		sum = sum.Add(r.Cost(now))
	}
	return sum
}

// Twice lists the plans that bought more than one machine, with the machines' ids.
func (b Bill) Twice() map[string][]string {
	bought := map[string][]string{}
	for _, r := range b.Ours() {
		plan := r.Labels.Install + "/" + r.Labels.Fleet + "/" + r.Labels.Plan
		bought[plan] = append(bought[plan], r.ID)
	}
	for plan, ids := range bought {
		if len(ids) < 2 {
			delete(bought, plan)
		}
	}
	return bought
}

// Overlaps is for how long each workload had two machines or more at once, counted once for each pair.
func (b Bill) Overlaps(now time.Time) map[string]time.Duration {
	out := map[string]time.Duration{}
	ours := b.Ours()
	for i, r := range ours {
		for _, s := range ours[:i] {
			if r.Labels.Workload == "" || r.Labels.Workload != s.Labels.Workload || r.Labels.Fleet != s.Labels.Fleet {
				continue
			}
			from, to := r.Since, now // r was sold after s
			for _, m := range []Rental{r, s} {
				if !m.Bills() && m.Until.Before(to) {
					to = m.Until
				}
			}
			if to.After(from) {
				out[r.Labels.Workload] += to.Sub(from)
			}
		}
	}
	return out
}

// Write is one call that may change something, whether it succeeded or not.
type Write struct {
	At    time.Time `json:"at"`
	Call  string    `json:"call"` // "launch", "end"
	ID    string    `json:"id,omitempty"`
	Token string    `json:"token,omitempty"`
}

// Bill lists every machine ever sold, with everything due by now done.
func (c *Cloud) Bill() Bill {
	c.Advance(c.cfg.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(Bill, 0, len(c.order))
	for _, id := range c.order {
		out = append(out, *c.rentals[id])
	}
	return out
}

// Writes lists every writing call ever made to the account, also those that failed.
func (c *Cloud) Writes() []Write {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.writes)
}

func (c *Cloud) write(now time.Time, call, id, token string) {
	w := Write{At: now, Call: call, ID: id, Token: token}
	c.writes = append(c.writes, w)
	c.append(entry{Write: &w})
}

// sell puts a new machine on the bill.
func (c *Cloud) sell(r *Rental) {
	c.keep(r)
	c.record(r)
	c.wake()
}

// keep takes a machine, new or changed, into the books.
func (c *Cloud) keep(r *Rental) {
	if c.rentals[r.ID] == nil {
		c.order = append(c.order, r.ID)
	}
	c.rentals[r.ID] = r
	if r.Token != "" {
		c.tokens[r.Token] = r.ID
	}
	delete(c.live, r.ID)
	if r.Bills() {
		c.live[r.ID] = r
	}
}

// record writes a machine's present state to the journal.
func (c *Cloud) record(r *Rental) { c.append(entry{Rental: r}) }

func (c *Cloud) append(e entry) {
	if c.journal == nil || c.broken != nil {
		return
	}
	if err := c.journal.append(e); err != nil {
		c.broken = fmt.Errorf("fake: %w: %w", provider.ErrUnavailable, err)
	}
}

// replay takes one journal entry back.
func (c *Cloud) replay(e entry) {
	c.id = cmp.Or(e.ID, c.id)
	if e.Origin != nil && c.cfg.Origin.IsZero() {
		c.cfg.Origin = *e.Origin
	}
	if e.Write != nil {
		c.writes = append(c.writes, *e.Write)
	}
	if e.Booked != nil {
		c.reserved = append(c.reserved, *e.Booked)
	}
	if e.Rental != nil {
		if !e.Rental.Foreign {
			c.counter = max(c.counter, number(e.Rental.ID))
		}
		if before := c.rentals[e.Rental.ID]; e.Rental.Noticed && (before == nil || !before.Noticed) {
			c.remember(e.Rental, e.Rental.NoticeAt)
		}
		c.keep(e.Rental)
	}
}

func number(id string) int {
	var n int
	if _, err := fmt.Sscanf(id, "i-%d", &n); err != nil {
		return 0
	}
	return n
}

// sellForeign gives the account others' machines: unlabelled ones, and ones that another installation labelled.
func (c *Cloud) sellForeign() {
	for i := range c.cfg.Foreign {
		id := fmt.Sprintf("x-%06d", i+1)
		if c.rentals[id] != nil {
			continue
		}
		o, _ := c.offer(0, c.cfg.Types[0], fleet.OnDemand, c.clock)
		r := &Rental{
			Machine: provider.Machine{ID: id, State: provider.Running, Offer: o, Since: c.clock.UTC()},
			Name:    "theirs-" + id, Foreign: true,
		}
		if i%2 == 1 {
			r.Labels = provider.Labels{Fleet: "research", Install: "another", Plan: fmt.Sprintf("p%d", i), Machine: r.Name}
		}
		c.sell(r)
	}
}
