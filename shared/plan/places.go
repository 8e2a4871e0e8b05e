package plan

import (
	"cmp"
	"slices"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/plan/pool"
)

// place is a spot pool as a decision weighs it.
type place struct {
	offer fleet.Offer
	zone  pool.Zone // priced at what an hour of the fall-back does
	usual float64   // its usual price, likewise; 0: not known
}

const (
	tried = 12 // cheapest pools that are looked at
	rides = 3  // of those that are to be had, the ones weighed
	hopes = 2  // of the others: so many at least are weighed together
)

// places are the spot pools worth weighing for a workload: the one that carries it, the best of those to be had, and
// the cheapest of those that are not, which waiting is for. The best come first; speed is the fall-back's.
func (b *Book) places(f *fleet.Fleet, s *situation, speed float64) []place {
	var up, down []place
	own := ""
	if s.mode == pool.Spot {
		own = s.act.Offer.Pool()
	}
	for _, o := range b.fitting(fleet.Spot, s.w.Spec) {
		if o.pool == own {
			continue
		}
		x := b.place(f, &o.offer, o.pool, o.cost*speed, s.now)
		if x.zone.Up {
			up = append(up, x)
		} else if len(down) < hopes {
			down = append(down, x)
		}
		if len(up) == tried {
			break
		}
	}
	work, delay := s.left.Seconds()/speed, s.start.Seconds()
	if len(up) > rides {
		slices.SortStableFunc(up, func(x, y place) int { return cmp.Compare(x.zone.Useful(work, delay), y.zone.Useful(work, delay)) })
		up = up[:rides]
	}
	if own == "" {
		return append(up, down[:min(len(down), max(hopes-len(up), 1))]...)
	}
	return append([]place{b.riding(f, s, speed)}, up[:min(len(up), rides-1)]...)
}

// riding is the pool that carries the workload, at the price it was bought for: as old as the machine at least.
func (b *Book) riding(f *fleet.Fleet, s *situation, speed float64) place {
	o := s.act.Offer
	hourly, _ := o.PerHour()
	x := b.place(f, &o, o.Pool(), hourly*speed/o.Speed.Or(1), s.now)
	age := x.zone.Age
	if !x.zone.Up {
		age = 0
	}
	if !s.act.Bought.IsZero() {
		age = max(age, s.now.Sub(s.act.Bought).Seconds())
	}
	x.zone.Up, x.zone.Age = true, age
	return x
}

// place is a pool as the market's past and the fleet's refusals show it now.
func (b *Book) place(f *fleet.Fleet, o *fleet.Offer, name string, cost float64, now time.Time) place {
	x := place{offer: *o, zone: pool.Zone{Name: o.String(), Price: max(cost, 1e-6)}}
	if past := b.past[name]; past != nil && !past.At.IsZero() {
		x.zone.Memory = pool.Recall(past.Up, max(past.At.Sub(past.Since), 0).Seconds(), past.Good, past.Seen)
		if later := now.Sub(past.At); later > 0 {
			x.zone.See(past.Up, later.Seconds())
		}
		if hourly, ok := o.PerHour(); ok && hourly > 0 {
			x.usual = past.Usual * cost / hourly
		}
	}
	x.zone.Memory = b.clouds[o.Cloud].correct(x.zone.Memory, b.past[name])
	stock, told := o.Stock.Get()
	up := !told || stock > 0
	if r := f.Refusals[name]; r != nil && now.Before(r.Until) {
		up = false
	}
	if up != x.zone.Up { // newer than the last look
		x.zone.Up, x.zone.Age = up, 0
	}
	return x
}

// climate is what the pools of a cloud have in common.
type climate struct {
	good, seen float64 // hours to be had, and looked at
	ends, due  float64
}

// Weights of what is ordinary against what a cloud showed, and of what its cloud showed against what a pool did.
const (
	ordinaryHours = 24.0
	ordinaryLevel = 0.6
	ordinaryEnds  = 20.0
	cloudEnds     = 10.0
)

func (c climate) correct(m pool.Memory, past *fleet.PoolPast) pool.Memory {
	level := (c.good + ordinaryLevel*ordinaryHours) / (c.seen + ordinaryHours)
	often := (c.ends + ordinaryEnds) / (c.due + ordinaryEnds)
	if past != nil {
		often = (past.Ends + cloudEnds*often) / (past.Due + cloudEnds)
	}
	return m.Among(level, often)
}

// climates sums the pasts of pools up by cloud.
func climates(offers []fleet.Offer, past map[string]*fleet.PoolPast) map[string]climate {
	out := map[string]climate{}
	for i := range offers {
		if offers[i].Market != fleet.Spot {
			continue
		}
		p := past[offers[i].Pool()]
		if p == nil {
			continue
		}
		c := out[offers[i].Cloud]
		c.good, c.seen, c.ends, c.due = c.good+p.Good, c.seen+p.Seen, c.ends+p.Ends, c.due+p.Due
		out[offers[i].Cloud] = c
	}
	return out
}

// expected is what so much work costs in a pool by its useful hours alone, the measure where there is no deadline.
// A machine that is there already has but warm of its first start ahead.
func (x place) expected(work, delay, warm time.Duration) float64 {
	return x.zone.Useful(work.Seconds(), delay.Seconds())*work.Hours() - x.zone.Price*(delay-warm).Hours()
}
