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
	offer  fleet.Offer
	pool   string
	zone   pool.Zone // priced at what an hour of the fall-back does
	usual  float64   // its usual price, likewise; 0: not known
	useful float64   // its price by the useful hour, to rank by
}

const (
	tried = 12 // cheapest pools that are looked at
	rides = 3  // of those that are to be had, the ones weighed
	hopes = 2  // of the others: so many at least are weighed together
)

// places are the spot pools worth weighing for a workload: the one that carries it, the best of those to be had, and
// the cheapest of those that are not, which waiting is for. The best come first; speed is the fall-back's.
func (b *Book) places(f *fleet.Fleet, s *situation, speed float64) []place {
	out, down := make([]place, 0, rides+hopes), make([]place, 0, hopes)
	own, most := "", rides
	if s.mode == pool.Spot {
		own = s.act.Offer.Pool()
		out, most = append(out, b.riding(s, speed)), most-1
	}
	for _, x := range b.ranked(s.w, s.now) {
		if x.pool == own {
			continue
		}
		x := x.at(speed)
		if r := f.Refusals[x.pool]; r != nil && s.now.Before(r.Until) && x.zone.Up {
			x.zone.Up, x.zone.Age = false, 0
		}
		switch {
		case !x.zone.Up && own == "" && len(down) < hopes:
			down = append(down, x)
		case x.zone.Up && most > 0:
			out, most = append(out, x), most-1
		}
	}
	if own != "" {
		return out
	}
	return append(out, down[:min(len(down), max(hopes-len(out), 1))]...)
}

// ranking is the pools that suit a kind of workload, as they are at one time, for a fall-back of speed 1.
type ranking struct {
	now    time.Time
	places []place
}

// common is the work and the start-up by which pools are ranked, alike for all workloads of a kind.
const (
	commonWork  = 8 * 3600.0
	commonStart = 360.0
)

// ranked are the cheapest pools to be had by their useful hours, best first, and then the cheapest of the others.
func (b *Book) ranked(w *fleet.Workload, now time.Time) []place {
	kind := suits(fleet.Spot, w.Spec) + enough(w)
	if r, known := b.ranks[kind]; known && r.now.Equal(now) {
		return r.places
	}
	var up, down []place
	for _, o := range b.suiting(fleet.Spot, w) {
		x := b.place(&o.offer, o.pool, o.cost, now)
		switch {
		case x.zone.Up:
			x.useful = x.zone.Useful(commonWork, commonStart)
			up = append(up, x)
		case len(down) < hopes:
			down = append(down, x)
		}
		if len(up) == tried {
			break
		}
	}
	slices.SortStableFunc(up, func(x, y place) int { return cmp.Compare(x.useful, y.useful) })
	up = append(up, down...)
	b.ranks[kind] = ranking{now, up}
	return up
}

// at is a place priced for a fall-back of some speed.
func (x place) at(speed float64) place {
	x.zone.Price *= speed
	x.usual *= speed
	return x
}

// riding is the pool that carries the workload: as old as the machine at least, and at the price it was bought for, or
// the pool's now where the cloud charges that or it is lower: what is left for it would be bought again at once.
func (b *Book) riding(s *situation, speed float64) place {
	o := s.act.Offer
	hourly, _ := o.PerHour()
	cost, name := hourly/o.Speed.Or(1), o.Pool()
	if now, sold := b.spot[name]; sold && (o.Floats || now < cost) {
		cost = now
	}
	x := b.place(&o, name, cost, s.now).at(speed)
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

// place is a pool as the market shows it now.
func (b *Book) place(o *fleet.Offer, name string, cost float64, now time.Time) place {
	x := place{offer: *o, pool: name, zone: pool.Zone{Name: o.String(), Price: max(cost, 1e-6)}}
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
	if up := !told || stock > 0; up != x.zone.Up { // newer than the last look
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
	if work <= 0 { // all that is left is to start once more and say so; without work no life is worth anything
		return x.zone.Price * warm.Hours()
	}
	return x.zone.Useful(work.Seconds(), delay.Seconds())*work.Hours() - x.zone.Price*(delay-warm).Hours()
}
