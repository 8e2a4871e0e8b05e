package pool

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Zone is one place where spot may run, as a decision sees it.
type Zone struct {
	Name string
	Memory
	Price float64 // spot, $/h for the whole gang, above 0
	Toll  float64 // $, once, to get there; 0 for the zone in use
}

// Case is a job at any moment, with no grid: times in seconds, prices in $/h for the whole gang.
type Case struct {
	Left     float64 // to the deadline
	Work     float64 // left; the upper value where it is uncertain
	Warmup   float64 // left on what runs
	Delay    float64 // of a launch; a high quantile, since the guard relies on it
	Wake     float64 // until the next decision at the latest, above 0
	Mode     Mode    // what runs
	Zone     int     // in use, an index of Zones, if Mode is Spot
	OnDemand float64 // price of the best fall-back that is sure to be had, above 0
	Toll     float64 // $, once, to get there
	Zones    []Zone
}

// Option is one action and what it is expected to cost until the work is done, in $; +Inf where the guard
// forbids it.
type Option struct {
	Choice
	Name string // of the zone; empty but for spot
	Cost float64
}

// String is the option in words.
func (o Option) String() string {
	name := o.Mode.String()
	switch o.Mode {
	case OnDemand:
		name = "on-demand"
	case Spot:
		name = "spot in " + o.Name
	case Idle:
		name = "waiting"
	}
	if math.IsInf(o.Cost, 1) {
		return name + " could miss the deadline"
	}
	return fmt.Sprintf("%s costs $%.2f", name, o.Cost)
}

// Decision is what to do, why, and what else there was.
type Decision struct {
	Choice
	Options []Option // cheapest first; the first is the choice unless Cold or forced
	Reason  string   // words and numbers, with the runner-up and why it lost
	Cold    bool     // the tables were not there: a safe simple rule decided. Call Warm aside, then ask again
}

// A move from spot that runs must save this share of the expected cost: hazards are estimates.
const moveMargin = 0.03

// Waiting must save this share against what makes progress: half of the differences that shared tables tell between
// waiting and riding are off by less.
const waitMargin = 0.002

// To give up what runs in order to wait must save this share: having stopped, it shall not be time to go on.
const stopMargin = 0.01

// Decide weighs spot in each zone, waiting and on-demand. It solves nothing: where a table is cold, it answers by
// a safe rule and says so. Every answer is under the guard for Left, Work, Delay and Wake.
func (t *Tables) Decide(c Case) Decision {
	d, err := t.decide(context.Background(), c, func(_ context.Context, k key) (*table, error) {
		if tab := t.warm(k); tab != nil {
			return tab, nil
		}
		return nil, errCold
	})
	if err != nil {
		return c.cold(c.view())
	}
	return d
}

// Solving is a Tables that is never cold: what it lacks it solves at once, in the caller's goroutine. What it answers
// depends on the case alone, whoever else uses the tables.
type Solving struct{ *Tables }

// Decide is Tables.Decide, without its cold answers.
func (s Solving) Decide(c Case) Decision {
	d, err := s.decide(context.Background(), c, s.solved)
	if err != nil { // never: a solve ends only with its context
		return c.cold(c.view())
	}
	return d
}

func (t *Tables) decide(ctx context.Context, c Case, get tabled) (Decision, error) {
	v := c.view()
	if !c.allowed(v, Choice{Idle, -1}) && !c.anySpot(v) {
		return c.forced(v), nil
	}
	options, err := c.options(ctx, v, get)
	if err != nil {
		return Decision{}, err
	}
	pick := options[0]
	margin := waitMargin
	if v.Mode != Idle {
		margin = stopMargin
	}
	for _, o := range options { // to wait must gain something: else be done early
		if pick.Mode == Idle && o.Mode != Idle && o.Cost <= pick.Cost*(1+margin) {
			pick = o
		}
	}
	if v.Mode == Spot && pick.Mode == Spot && pick.Choice != v.Stay() {
		for _, o := range options {
			if o.Choice == v.Stay() && pick.Cost > o.Cost*(1-moveMargin) {
				pick = o
			}
		}
	}
	if math.IsInf(pick.Cost, 1) {
		return c.forced(v), nil
	}
	return Decision{Choice: pick.Choice, Options: options, Reason: reason(pick, options, v)}, nil
}

var errCold = fmt.Errorf("no table yet")

// Warm solves, in the caller's goroutine, the tables Decide needs for c. It stops when ctx ends.
func (t *Tables) Warm(ctx context.Context, c Case) error {
	if _, err := c.options(ctx, c.view(), t.solved); err != nil {
		return fmt.Errorf("solve the value tables: %w", err)
	}
	return nil
}

func (c Case) view() View {
	v := View{Mode: c.Mode, Zone: -1, Work: c.Work, Warmup: c.Warmup, Up: make([]bool, 0, len(c.Zones))}
	if c.Mode == Spot {
		v.Zone = c.Zone
	}
	for _, z := range c.Zones {
		v.Up = append(v.Up, z.Up)
	}
	return v
}

func (c Case) allowed(v View, x Choice) bool {
	j := Job{Work: c.Work, Delay: c.Delay, Tick: c.Wake}
	work, warmup := j.After(v, x)
	need := work + c.Delay
	if x.Mode == OnDemand {
		need = work + warmup
	}
	return work <= slop || need <= c.Left-c.Wake+slop
}

func (c Case) anySpot(v View) bool {
	for z, up := range v.Up {
		if up && c.allowed(v, Choice{Spot, z}) {
			return true
		}
	}
	return false
}

// options prices every action, cheapest first. Each zone is priced with the tables of its own price, which know of the
// best other one; waiting and on-demand, which may go on in any zone, by the cheapest to ride, or where none is up by the
// zone that makes most of them.
func (c Case) options(ctx context.Context, v View, get tabled) ([]Option, error) {
	zones := c.Zones
	if len(zones) == 0 {
		zones = []Zone{{Price: c.OnDemand}}
	}
	seen, best, least := look(zones), -1, math.Inf(1)
	options := make([]Option, 0, len(c.Zones)+2)
	for z, zone := range c.Zones {
		if !zone.Up {
			continue // what may come back there is in what the others lead to
		}
		o := Option{Choice{Spot, z}, zone.Name, c.toll(v, Choice{Spot, z})}
		cost, err := c.ride(ctx, seen, z, v, get)
		if err != nil {
			return nil, err
		}
		o.Cost += cost
		options = append(options, o)
		if best < 0 || o.Cost < least {
			best, least = z, o.Cost
		}
	}
	wait, demand := math.Inf(1), c.OnDemand*(c.Work+c.warm(v, Choice{OnDemand, -1}))/3600 // to the end
	for z, zone := range zones {
		if best >= 0 && z != best {
			continue
		}
		w, d, err := c.leave(ctx, seen, z, get)
		if err != nil {
			return nil, err
		}
		wait, demand = math.Min(wait, w+zone.Toll), math.Min(demand, d+zone.Toll)
	}
	demand += c.toll(v, Choice{OnDemand, -1})
	options = append(options, Option{Choice{Idle, -1}, "", wait}, Option{Choice{OnDemand, -1}, "", demand})
	for i := range options {
		if !c.allowed(v, options[i].Choice) {
			options[i].Cost = math.Inf(1)
		}
	}
	slices.SortStableFunc(options, func(a, b Option) int { return cmp.Compare(a.Cost, b.Cost) })
	return options, nil
}

// warm is the warm-up that a choice still has ahead.
func (c Case) warm(v View, x Choice) float64 {
	if x == v.Stay() {
		return c.Warmup
	}
	return c.Delay
}

// toll is what a choice costs once.
func (c Case) toll(v View, x Choice) float64 {
	switch {
	case x == v.Stay():
		return 0
	case x.Mode == Spot:
		return c.Zones[x.Zone].Toll
	}
	return c.Toll
}

// forced is on-demand because nothing else keeps the deadline.
func (c Case) forced(v View) Decision {
	need := c.Work + c.Delay
	if v.Mode == OnDemand {
		need = c.Work + c.Warmup
	}
	return Decision{
		Choice: Choice{OnDemand, -1},
		Reason: fmt.Sprintf("on-demand: %s of work and start-up in %s until the deadline; spot or waiting could miss it", hours(need), hours(c.Left)),
	}
}

// cold is the safe rule of the time before the tables: spot if it is up and allowed, wait while the slack is a
// fifth of the work, else on-demand; what runs on demand goes on.
func (c Case) cold(v View) Decision {
	d := Decision{Choice: Choice{OnDemand, -1}, Cold: true}
	slack := c.Left - c.Work - c.Delay
	top := -1
	for z, up := range v.Up {
		if up && c.allowed(v, Choice{Spot, z}) && (top < 0 || c.Zones[z].Price < c.Zones[top].Price) {
			top = z
		}
	}
	switch {
	case v.Mode == Spot && c.allowed(v, v.Stay()):
		d.Choice = v.Stay()
	case v.Mode == OnDemand:
	case top >= 0 && slack >= c.Delay && c.Zones[top].Price < c.OnDemand:
		d.Choice = Choice{Spot, top}
	case slack > 0.2*c.Work && c.allowed(v, Choice{Idle, -1}):
		d.Choice = Choice{Idle, -1}
	}
	d.Reason = fmt.Sprintf("%s, by a simple safe rule while the value tables are computed: %s of slack, %s of work left",
		strings.ReplaceAll(d.Mode.String(), "_", "-"), hours(slack), hours(c.Work))
	return d
}

// reason names the choice, the runner-up and the difference.
func reason(pick Option, options []Option, v View) string {
	for _, o := range options {
		if o.Choice == pick.Choice {
			continue
		}
		switch {
		case math.IsInf(o.Cost, 1):
			return fmt.Sprintf("%s until done; %s", pick, o)
		case o.Cost < pick.Cost:
			return fmt.Sprintf("%s until done; a move to %s would save $%.2f, less than the margin for a move", pick, strings.TrimPrefix(o.String(), "spot in "), pick.Cost-o.Cost)
		}
		return fmt.Sprintf("%s until done; next best, %s, $%.2f more", pick, o, o.Cost-pick.Cost)
	}
	return pick.String()
}

func hours(s float64) string { return fmt.Sprintf("%.1f h", s/3600) }
