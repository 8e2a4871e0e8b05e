package prices

import (
	"math"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/plan/pool"
)

const (
	doneFor = 48 * time.Hour      // an ended machine is remembered
	blind   = time.Hour           // between two looks at a pool, beyond which what was in between is not known
	fading  = 14 * 24 * time.Hour // over which ends are forgotten
	usually = 7 * 24 * time.Hour  // over which a price becomes the usual one
)

// count takes one fact into the history of its pool.
func (b *Book) count(d fn.Delivery) {
	if d.Event.Dry {
		return // nothing was bought, and nothing refused
	}
	switch e := d.Event.Data.(type) {
	case events.InstanceLaunched:
		b.refused(e.Refused, d.At)
		b.launched(d.Event.Fleet+"/"+e.Machine, e)
	case events.PlanFailed:
		b.refused(e.Refused, d.At)
	case events.InstanceInterrupted:
		b.interrupted(d.Event.Fleet+"/"+e.Machine, e, d.At)
	case events.InstanceVerified, events.InstanceRejected:
		b.countProof(d.Event.Fleet, e)
	case events.InstanceEnded:
		b.ended(d.Event.Fleet+"/"+e.Machine, e, d.At)
	}
}

func (b *Book) launched(key string, e events.InstanceLaunched) {
	_, runs := b.Live[key]
	if _, done := b.Done[key]; runs || done {
		return // said again
	}
	b.pool(e.Offer.Pool()).Launches++
	if !b.tells(e.Offer.Pool()) {
		b.look(e.Offer, true, e.At)
	}
	b.Live[key] = Live{ID: e.ID, Pool: e.Offer.Pool(), Type: typeOf(e.Offer), Since: e.At}
}

func (b *Book) interrupted(key string, e events.InstanceInterrupted, at time.Time) {
	if e.Action == events.ActionEnded {
		return // our own end of it echoes like this too: it says nothing about the market
	}
	for k, l := range b.Live { // a cloud's own notice has its id alone
		if k == key || e.ID != "" && l.ID == e.ID {
			l.Interrupted = true
			b.Live[k] = l
			if o, ok := b.Offers[l.Pool]; ok && !b.tells(l.Pool) {
				b.look(o, false, at)
			}
		}
	}
}

func (b *Book) ended(key string, e events.InstanceEnded, at time.Time) {
	l, runs := b.Live[key]
	if !runs {
		return // told before
	}
	past := b.pool(l.Pool)
	past.Hours += max(e.At.Sub(l.Since).Hours(), 0)
	if l.Interrupted || e.Why == "interrupted" {
		past.Interruptions++
	}
	delete(b.Live, key)
	b.Done[key] = at
	for k, t := range b.Done {
		if at.Sub(t) > doneFor {
			delete(b.Done, k)
		}
	}
}

func (b *Book) pool(name string) *fleet.PoolPast {
	if b.Pools[name] == nil {
		b.Pools[name] = &fleet.PoolPast{}
	}
	return b.Pools[name]
}

func (b *Book) refused(list []events.Refused, at time.Time) {
	for _, r := range list {
		if r.Why == "no_capacity" { // other refusals are the account's or our own, not the pool's
			b.pool(r.Pool).Refusals++
			if o, ok := b.Offers[r.Pool]; ok && !b.tells(r.Pool) {
				b.look(o, false, at)
			}
		}
	}
}

// past adds the hours of the machines that still run, or long runs would look as if they never were.
func (b *Book) past(now time.Time) map[string]*fleet.PoolPast {
	out := map[string]*fleet.PoolPast{}
	for pool, p := range b.Pools {
		sum := *p
		out[pool] = &sum
	}
	for _, key := range fleet.Sorted(b.Live) {
		l := b.Live[key]
		if out[l.Pool] != nil {
			out[l.Pool].Hours += max(now.Sub(l.Since).Hours(), 0)
		}
	}
	return out
}

// looks takes a look at each spot pool of an account, as its answer shows them. A cloud that does not tell its stock
// shows nothing but the machines that live there; what launches and refusals say comes as facts.
func (b *Book) looks(was map[string]fleet.Offer, now time.Time) {
	lives := map[string]bool{}
	for _, l := range b.Live {
		lives[l.Pool] = lives[l.Pool] || !l.Interrupted
	}
	for pool := range was {
		o, sold := b.Offers[pool]
		if !sold {
			b.look(was[pool], false, now)
			continue
		}
		if b.tells(pool) || lives[pool] {
			b.look(o, o.Stock.Or(0) > 0 || lives[pool], now)
		}
	}
}

// tells says that the cloud tells how much of a pool is to be had.
func (b *Book) tells(pool string) bool {
	_, ok := b.Offers[pool].Stock.Get()
	return ok
}

// look notes whether a spot pool is to be had, and at which price.
func (b *Book) look(o fleet.Offer, up bool, now time.Time) {
	if o.Market != fleet.Spot {
		return
	}
	p := b.pool(o.Pool())
	price, priced := o.PerHour()
	since := now.Sub(p.At)
	if p.At.IsZero() || since > blind {
		if p.At.IsZero() || p.Up != up {
			p.Since = now
		}
		if p.Usual == 0 && priced {
			p.Usual = price
		}
		p.Up, p.At = up, now
		return
	}
	if since <= 0 && p.Up == up {
		return
	}
	dt := max(since, 0).Seconds()
	m := pool.Recall(p.Up, max(p.At.Sub(p.Since), 0).Seconds(), p.Good, p.Seen)
	if p.Up {
		keep := math.Exp(-dt / fading.Seconds())
		p.Ends, p.Due = p.Ends*keep, p.Due*keep+m.Ends(dt)
		if !up {
			p.Ends++
		}
	}
	m.See(up, dt)
	p.Good, p.Seen = m.Kept()
	p.Up, p.At = m.Up, later(now, p.At)
	p.Since = p.At.Add(-time.Duration(m.Age * float64(time.Second)))
	switch {
	case priced && p.Usual == 0:
		p.Usual = price
	case priced:
		p.Usual += (1 - math.Exp(-dt/usually.Seconds())) * (price - p.Usual)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
