package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/plan/pool"
)

// around is the market as one workload sees it.
type around struct {
	sure     []fleet.Offer // on demand, to be had, cheapest first
	fallback float64       // price of the best of them, USD an hour; 0: none suits at all
	speed    float64       // of the fall-back, against the workload's reference machine
	places   []place       // spot
}

// hours is how long work takes on the fall-back.
func (m around) hours(work time.Duration) time.Duration {
	return time.Duration(float64(work) / m.speed)
}

// around gathers what is weighed for a workload.
func (b *Book) around(f *fleet.Fleet, s *situation, p Policy) around {
	m := around{sure: b.pick(fleet.OnDemand, f, s.w, s.now, p.Offers), speed: 1}
	best := m.sure
	if len(best) == 0 { // refused or run out: its price is still what falling back would cost
		if all := b.suiting(fleet.OnDemand, s.w); len(all) > 0 {
			best = []fleet.Offer{all[0].offer}
		}
	}
	if len(best) > 0 {
		m.fallback, _ = best[0].PerHour()
		m.speed = best[0].Speed.Or(1)
	}
	m.places = b.places(f, s, m.speed)
	return m
}

// spotOffers are the pools to be had, the chosen one first.
func (m around) spotOffers(mode pool.Mode, first int) []fleet.Offer {
	var out []fleet.Offer
	for i := range m.places {
		at := (first + i) % len(m.places)
		if m.places[at].zone.Up && (mode != pool.Spot || at > 0) { // what it rides is no place to go to
			out = append(out, m.places[at].offer)
		}
	}
	return out
}

// up is the first pool to be had beside the one in use, or -1.
func (m around) up(mode pool.Mode) int {
	for i := range m.places {
		if m.places[i].zone.Up && (mode != pool.Spot || i > 0) {
			return i
		}
	}
	return -1
}

// verdict is what a rule says.
type verdict struct {
	mode    pool.Mode
	to      int  // of places, for spot
	stay    bool // go on with what carries the workload
	keep    bool // and give up what is made ready to take over
	cold    bool // by a simple rule, for want of tables
	why     string
	options []Option
}

// choose takes the guard first, then the rule that fits.
func (s situation) choose(by Oracle, p Policy, m around) verdict {
	if !s.promised {
		return s.bestEffort(p, m)
	}
	if v, forced := s.guard(p, m); forced {
		return v
	}
	if s.act != nil && !s.begun() {
		return s.starting(by, p, m)
	}
	return s.byExpectedCost(by, p, m)
}

// starting waits for the machine that is ordered or made ready: only the guard gives a start up. What else there is is
// weighed for whoever asks.
func (s situation) starting(by Oracle, p Policy, m around) verdict {
	v := verdict{mode: s.mode, stay: true, why: "a machine is made ready: " + s.act.Offer.String()}
	if s.act.Phase == fleet.Ordered {
		v.why = "a machine is ordered or proposed: " + s.act.Offer.String()
	}
	if d := by.Decide(s.weighed(p, m)); !d.Cold {
		v.options = m.told(d.Options, s.here())
	}
	return v
}

// here is what is done now, as the tables name it.
func (s situation) here() pool.Choice {
	if s.mode == pool.Spot {
		return pool.Choice{Mode: pool.Spot, Zone: 0}
	}
	return pool.Choice{Mode: s.mode, Zone: -1}
}

// guard is absolute: what is not done since the last durable checkpoint, and the longest start-up, must fit before the
// deadline even if nothing is decided until the next look.
func (s situation) guard(p Policy, m around) (verdict, bool) {
	work := m.hours(s.leftSafe)
	need, room := work+s.startMax, s.until-p.Wake
	if need <= room {
		return verdict{}, false
	}
	v := verdict{mode: pool.OnDemand, stay: s.mode == pool.OnDemand}
	v.why = fmt.Sprintf("guard: %s of work since the last checkpoint and %s to start must fit into %s, less the next look in %s",
		short(work), short(s.startMax), short(s.until), short(p.Wake))
	switch i := m.up(s.mode); {
	case s.sure && s.mode != pool.OnDemand:
		v.stay, v.keep = true, true
		v.why += "; it goes on on demand"
	case len(m.sure) == 0 && s.mode == pool.Spot:
		v.mode, v.stay = pool.Spot, true
		v.why += "; no on-demand is on offer, so it stays on spot"
	case len(m.sure) == 0 && s.mode == pool.Idle && i >= 0:
		v.mode, v.to = pool.Spot, i
		v.why += "; no on-demand is on offer, so spot"
	}
	return v, true
}

// byExpectedCost takes what is expected to cost least until the work is done.
func (s situation) byExpectedCost(by Oracle, p Policy, m around) verdict {
	c := s.weighed(p, m)
	d := by.Decide(c)
	if d.Cold {
		return s.simple(p, m)
	}
	v := verdict{mode: d.Mode, to: max(d.Zone, 0)}
	v.stay = d.Mode == s.mode && (d.Mode != pool.Spot || d.Zone == 0)
	v.options, v.why = m.told(d.Options, d.Choice), d.Reason
	if len(v.options) > 0 { // none: the guard of the tables, which is no stricter than ours but for rounding
		v.why = s.told(v.options)
	}
	if i := m.up(pool.Idle); v.mode == pool.OnDemand && len(m.sure) == 0 && s.mode != pool.OnDemand && i >= 0 {
		v.mode, v.to, v.stay = pool.Spot, i, s.mode == pool.Spot
		v.why += "; no on-demand is on offer, so spot"
	}
	if s.act != nil && !v.stay && len(v.options) > 0 {
		s.hold(p, m, d, &v)
	}
	return v
}

// hold keeps a workload where it is unless leaving pays. Only between two pools can the gain be told from the expected
// costs: that of going on on demand already has the later move in it.
func (s situation) hold(p Policy, m around, d pool.Decision, v *verdict) {
	here := s.here()
	stays := slices.IndexFunc(d.Options, func(o pool.Option) bool { return o.Choice == here })
	stay := verdict{mode: s.mode, stay: true, options: mark(slices.Clone(v.options), stays)}
	stay.why = s.told(stay.options)
	if !s.settled(p) {
		stay.why += "; it stays " + short(p.MinStay) + " at least"
		*v = stay
		return
	}
	if s.mode != pool.Spot || v.mode == pool.OnDemand {
		return
	}
	there := slices.IndexFunc(d.Options, func(o pool.Option) bool { return o.Choice == d.Choice })
	gain := d.Options[stays].Cost - d.Options[there].Cost
	if v.mode == pool.Idle { // a stop is a move too, if only to a later machine: it pays for that one's start
		if once := m.places[0].zone.Price * s.start.Hours(); gain < p.Margin*once {
			stay.why += fmt.Sprintf("; a stop would save %s, less than %g times the %s of starting again", dollars(max(gain, 0)), p.Margin, dollars(once))
			*v = stay
		}
		return
	}
	why, pays := s.pays(p, gain, m.places[0].zone.Price, m.places[v.to].zone.Price, s.transfer(m.places[v.to].offer))
	if pays {
		v.why += "; " + why
		return
	}
	stay.why += "; " + why
	*v = stay
}

// weighed is the workload as the tables take it. Its deadline is moved forward by what the guard allows a start-up
// beyond the usual one, so that both see the same slack.
func (s situation) weighed(p Policy, m around) pool.Case {
	delay := s.start + s.loss(m)
	c := pool.Case{
		Left: (s.until - max(s.startMax-delay, 0)).Seconds(), Work: m.hours(s.left).Seconds(), Warmup: s.warm.Seconds(),
		Delay: delay.Seconds(), Wake: p.Wake.Seconds(), Mode: s.mode, OnDemand: m.fallback,
	}
	dearest := 0.0
	for i := range m.places {
		c.Zones = append(c.Zones, m.places[i].zone)
		c.Zones[i].Toll = s.transfer(m.places[i].offer).Or(0)
		dearest = max(dearest, m.places[i].zone.Price)
	}
	if len(m.sure) > 0 {
		c.Toll = s.transfer(m.sure[0]).Or(0)
	}
	if c.OnDemand <= 0 { // nothing to fall back on: as good as unaffordable
		c.OnDemand = 4 * max(dearest, 1)
	}
	return c
}

// loss is the work that the end of a machine is expected to cost: none where the notice leaves time to save.
func (s situation) loss(m around) time.Duration {
	if len(m.places) == 0 || m.places[0].offer.Notice >= s.w.SaveTook+saveMargin {
		return 0
	}
	return cmp.Or(s.w.Spec.SaveEvery, unsaved)/2 + s.w.SaveTook
}

const (
	saveMargin = 10 * time.Second // beyond the slowest recent save, for a notice to be enough
	unsaved    = 20 * time.Minute // between two saves of a job that does not say
)

// simple decides while the tables are not there: what runs goes on, what does not is decided by Uniform Progress with
// the exit by elapsed time, which costs less than the released rule in every setting of the recorded traces.
func (s situation) simple(p Policy, m around) verdict {
	v := verdict{mode: s.mode, stay: true, cold: true, why: "it goes on while the expected costs are computed"}
	if s.act != nil {
		return v
	}
	next := m.up(s.mode)
	job := pool.Job{
		Work: m.hours(s.w.Spec.Work).Seconds(), Deadline: s.w.Spec.Deadline.Sub(s.w.Since).Seconds(),
		Delay: s.start.Seconds(), Tick: p.Wake.Seconds(), OnDemand: max(m.fallback, 1e-6), Spot: 1,
	}
	elapsed := s.now.Sub(s.w.Since)
	c := pool.Uniform(job, pool.LeaveElapsed).Choose(pool.View{
		T: int((elapsed + p.Wake - 1) / p.Wake), Up: []bool{next >= 0}, Zone: -1, Work: m.hours(s.left).Seconds(),
	})
	even := time.Duration(float64(s.w.Spec.Work) * float64(elapsed) / float64(s.w.Spec.Deadline.Sub(s.w.Since)))
	pace := fmt.Sprintf("%s of %s done, even pace is %s, slack %s, while the expected costs are computed",
		short(s.w.Spec.Work-s.left), short(s.w.Spec.Work), short(even), short(s.until-m.hours(s.left)))
	v.mode, v.stay = c.Mode, false
	switch c.Mode {
	case pool.Spot:
		v.to, v.why = next, "spot is to be had: "+pace
	case pool.OnDemand:
		v.why = "behind even pace without spot: " + pace
	default:
		v.why = "ahead of even pace, waiting for spot: " + pace
	}
	return v
}

// dear is how much more than usual makes a workload without a deadline wait.
const dear = 1.25

// way is one thing that a workload without a deadline can do.
type way struct {
	verdict
	Option
	cost  float64
	carry fleet.Maybe[float64] // of cost, to get there
	usual float64              // what spot usually costs: the same pool, or for on-demand the cheapest; +Inf: none is sold
}

// bestEffort takes the cheapest useful hour of all markets. While that is dearer by more than a quarter than the same
// pool usually is, or on demand and dearer than spot usually is, it waits, for as long as the policy is patient.
func (s situation) bestEffort(p Policy, m around) verdict {
	ways := s.ways(m)
	var options []Option
	for _, x := range ways {
		options = append(options, x.Option)
	}
	finish := func(v verdict, chosen int) verdict {
		v.options = mark(options, chosen)
		return v
	}
	if s.act != nil {
		here := slices.IndexFunc(ways, func(x way) bool { return x.stay })
		stay := verdict{mode: s.mode, stay: true, why: "best effort: it runs"}
		if here <= 0 || !s.settled(p) {
			return finish(stay, here)
		}
		why, pays := s.pays(p, ways[here].cost-ways[0].cost, ways[here].Hourly, ways[0].Hourly, ways[0].carry)
		if !pays {
			stay.why += "; " + why
			return finish(stay, here)
		}
		best := ways[0].verdict
		best.why = why
		return finish(best, 0)
	}
	waited, patience := s.now.Sub(later(s.w.Waiting, s.w.Since)), cmp.Or(p.Patience, 24*time.Hour)
	switch {
	case len(ways) == 0:
		return verdict{why: "best effort: nothing is to be had"}
	case ways[0].cost > dear*ways[0].usual && waited < patience:
		return finish(verdict{why: fmt.Sprintf("best effort: waiting for spot at its usual price, %s for the work left instead of %s; after %s more, what there is",
			dollars(ways[0].usual), dollars(ways[0].cost), short(patience-waited))}, -1)
	}
	best := ways[0].verdict
	best.why = fmt.Sprintf("best effort: the cheapest useful hours, %s for the work left", dollars(ways[0].cost))
	return finish(best, 0)
}

// ways are what can be had, cheapest first, by what the work left costs there.
func (s situation) ways(m around) (ways []way) {
	work, delay, least := m.hours(s.left), s.start+s.loss(m), math.Inf(1)
	for i, x := range m.places {
		rides, warm := s.mode == pool.Spot && i == 0, delay
		if rides {
			warm = s.warm
		}
		often := x
		often.zone.Price = cmp.Or(x.usual, x.zone.Price)
		if !x.zone.Up { // as it will be when it comes back
			often.zone.Up, often.zone.Age = true, 0
		}
		usual := often.expected(work, delay, warm)
		least = min(least, usual)
		if x.zone.Up {
			o := Option{What: x.zone.Name, Hourly: x.zone.Price}
			o.Since, o.Lost = x.known()
			carry := s.transfer(x.offer)
			ways = append(ways, way{verdict{mode: pool.Spot, to: i, stay: rides}, o, x.expected(work, delay, warm) + carry.Or(0), carry, usual})
		}
	}
	if rides := s.mode == pool.OnDemand; rides || len(m.sure) > 0 {
		warm, carry := s.start, fleet.Known(0.0)
		if rides {
			warm = s.warm
		} else {
			carry = s.transfer(m.sure[0])
		}
		ways = append(ways, way{verdict{mode: pool.OnDemand, stay: rides}, Option{What: onDemand, Hourly: m.fallback}, m.fallback*(work+warm).Hours() + carry.Or(0), carry, least})
	}
	for i := range ways {
		ways[i].Expected = finite(ways[i].cost)
	}
	slices.SortStableFunc(ways, func(x, y way) int { return cmp.Compare(x.cost, y.cost) })
	return ways
}

// finite is a cost that is known, +Inf being none.
func finite(cost float64) fleet.Maybe[float64] {
	if math.IsInf(cost, 1) {
		return fleet.Maybe[float64]{}
	}
	return fleet.Known(cost)
}

// pays says whether a move from one running machine to another is worth what it costs once, with the policy's margin.
// gain is what is expected to be saved until the work is done, the new start and the transfer already taken off.
func (s situation) pays(p Policy, gain, was, is float64, carry fleet.Maybe[float64]) (string, bool) {
	once := (was+is)*s.start.Hours() + carry.Or(0) // both machines bill while the new one starts
	saved := gain + is*s.start.Hours() + carry.Or(0)
	if saved < p.Margin*once {
		return fmt.Sprintf("a move would save %s and cost %s once%s, less than %g times that", dollars(max(saved, 0)), dollars(once), carried(carry), p.Margin), false
	}
	text := fmt.Sprintf("%.4f instead of %.4f USD/h saves %s over %s; the move costs %s%s", is, was, dollars(saved), short(s.left), dollars(once), carried(carry))
	if was > is {
		text += ", paid back in " + short(time.Duration(once/(was-is)*float64(time.Hour)))
	}
	return text, true
}

const (
	onDemand = "on demand"
	waiting  = "waiting"
)

// told puts the options of the tables into words and numbers.
func (m around) told(options []pool.Option, chosen pool.Choice) []Option {
	out := make([]Option, 0, len(options))
	for _, o := range options {
		t := Option{What: onDemand, Hourly: m.fallback}
		switch o.Mode {
		case pool.Idle:
			t.What, t.Hourly = waiting, 0
			for i := range m.places {
				if x := &m.places[i]; !x.zone.Up {
					t.Since, t.Lost = x.known() // the outage that is waited for
					break
				}
			}
		case pool.Spot:
			x := &m.places[o.Zone]
			t.What, t.Hourly = x.zone.Name, x.zone.Price
			t.Since, t.Lost = x.known()
		}
		t.Expected = finite(o.Cost)
		out = append(out, t)
	}
	return mark(out, slices.IndexFunc(options, func(o pool.Option) bool { return o.Choice == chosen }))
}

// known is since when a pool has been as it is, and the chance that this ends within an hour.
func (x place) known() (since time.Duration, ends float64) {
	return time.Duration(x.zone.Age * float64(time.Second)).Round(time.Second), x.zone.Ends(3600)
}

// mark says which option was chosen, -1 for none of them, and why the others were not.
func mark(options []Option, at int) []Option {
	for i := range options {
		o := &options[i]
		cost, known := o.Expected.Get()
		switch {
		case i == at:
			o.Chosen, o.Why = true, "chosen"
		case !known:
			o.Why = "the deadline could be missed"
		case at < 0:
			o.Why = "dear against what is usual"
		default:
			if diff := cost - options[at].Expected.Or(0); diff >= 0 {
				o.Why = dollars(diff) + " more until done"
			} else {
				o.Why = dollars(-diff) + " less, not enough for a move"
			}
		}
	}
	return options
}

// next is the runner-up and why it lost.
func (v verdict) next() (what, why string) {
	for _, o := range v.options {
		if !o.Chosen {
			return o.What, o.Why
		}
	}
	return "", ""
}

// told is the choice in words and numbers.
func (s situation) told(options []Option) string {
	at := slices.IndexFunc(options, func(o Option) bool { return o.Chosen })
	if at < 0 {
		return "nothing else is left"
	}
	return options[at].told() + ", with " + short(s.until-s.left) + " to spare"
}

func (o Option) told() string {
	text := o.What + " is expected to cost " + dollars(o.Expected.Or(0)) + " until done"
	switch {
	case o.What == waiting && o.Since > 0:
		text += fmt.Sprintf(" (spot away for %s, back within the hour in %.0f %%)", short(o.Since), 100*o.Lost)
	case o.Since > 0:
		text += fmt.Sprintf(" (to be had for %s, lost within the hour in %.0f %%)", short(o.Since), 100*o.Lost)
	}
	return text
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
