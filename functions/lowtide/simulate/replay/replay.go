// Package replay reads what once happened, from the event stream of an installation, and turns it into the workloads
// as they were and the markets they saw, on a grid, so that other policies can be played on them.
//
// It promises to change nothing where it reads, to take as known only what the stream says (offers that were listed,
// machines that ran, offers that were refused, machines that were taken), and to say how much of the market was not
// seen. It does not know what nobody looked at: between two sights the last one is taken to hold.
package replay

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// Pool is one spot market that suited a workload, by tick.
type Pool struct {
	Name  string
	Up    []bool
	Price []float64 // USD an hour
}

// Life is one workload as it was.
type Life struct {
	Fleet    string
	Spec     fleet.Spec
	Began    time.Time // accepted
	Finished time.Time // zero: not while the stream lasts
	Missed   bool      // late, or not done although the deadline lies in the stream
	Cost     float64   // USD, of its machines until they ended or the stream does
	Launches int

	Tick     time.Duration
	Start    int           // tick of the pools in which it began; earlier ones are history
	Delay    time.Duration // from a purchase until work goes on, and the work made again: the mean of this workload's starts
	Starts   int           // starts that Delay was measured on; 0: assumed
	OnDemand float64       // cheapest price that suited, USD an hour; 0: none was seen
	Pools    []Pool

	Unseen time.Duration // of the time from Began on: no market was looked at for longer than patience
	Bare   int           // price changes whose offers were not kept
}

const (
	grid     = time.Minute
	patience = 10 * time.Minute // a list older than this is not known to hold
	usual    = 6 * time.Minute  // start-up where none was seen
	history  = 7 * 24 * time.Hour
)

// Lives are the workloads of a record that were accepted, in that order.
func (r Record) Lives() []Life {
	var out []Life
	specs := map[string]fleet.Spec{}
	for _, e := range r.Events {
		switch f := e.Data.(type) {
		case events.WorkloadSubmitted:
			specs[e.Fleet+"/"+f.Spec.Name] = f.Spec
		case events.WorkloadAccepted:
			spec, known := specs[e.Fleet+"/"+f.Workload]
			if !known || slices.ContainsFunc(out, func(l Life) bool { return l.Fleet == e.Fleet && l.Spec.Name == f.Workload }) {
				continue
			}
			if !f.Deadline.IsZero() {
				spec.Deadline = f.Deadline
			}
			out = append(out, Life{Fleet: e.Fleet, Spec: spec, Began: e.Time})
		}
	}
	end := r.end()
	for i := range out {
		r.live(&out[i], end)
	}
	return out
}

func (r Record) end() time.Time {
	var end time.Time
	for _, e := range r.Events {
		if e.Time.After(end) {
			end = e.Time
		}
	}
	return end
}

// live fills in how a workload went.
func (r Record) live(l *Life, end time.Time) {
	type rental struct {
		offer fleet.Offer
		from  time.Time
		until time.Time
	}
	rented := map[string]*rental{}
	var order []string
	step, worked, startUp, epoch := int64(0), time.Duration(0), time.Duration(0), uint64(0)
	for _, e := range r.Events {
		if e.Fleet != l.Fleet {
			continue
		}
		switch f := e.Data.(type) {
		case events.InstanceLaunched:
			if f.Workload == l.Spec.Name && rented[f.Machine] == nil {
				rented[f.Machine] = &rental{offer: f.Offer, from: f.At, until: end}
				order = append(order, f.Machine)
			}
		case events.InstanceEnded:
			if m := rented[f.Machine]; m != nil && f.At.Before(m.until) {
				m.until = f.At
			}
		case events.WorkloadStarted:
			if m := rented[f.Machine]; m != nil && f.Workload == l.Spec.Name && f.Epoch > epoch && e.Time.After(m.from) { // said again, it is no other start
				epoch = f.Epoch
				l.Starts++
				startUp += e.Time.Sub(m.from)
				if l.Spec.Steps > 0 && step > f.Step {
					worked += time.Duration(float64(step-f.Step) / float64(l.Spec.Steps) * float64(l.Spec.Work))
				}
				step = f.Step
			}
		case events.WorkloadProgressed:
			if f.Workload == l.Spec.Name {
				step = max(step, f.Step)
			}
		case events.WorkloadFinished:
			if f.Workload == l.Spec.Name && l.Finished.IsZero() {
				l.Finished = e.Time
			}
		}
	}
	l.Launches = len(order)
	for _, name := range order {
		m := rented[name]
		hourly, _ := m.offer.PerHour()
		l.Cost += hourly * max(0, m.until.Sub(m.from).Hours())
	}
	l.Delay = usual
	if l.Starts > 0 {
		l.Delay = (startUp + worked) / time.Duration(l.Starts)
	}
	if d := l.Spec.Deadline; !d.IsZero() {
		l.Missed = l.Finished.After(d) || l.Finished.IsZero() && end.After(d)
	}
	r.markets(l, end)
}

// sight is one look at one pool.
type sight struct {
	at    time.Time
	up    bool
	price float64
}

// suits is what the planner asks of an offer.
func suits(o fleet.Offer, s fleet.Spec) bool {
	return o.GPUs >= s.GPUs && (len(s.Models) == 0 || slices.Contains(s.Models, o.GPU)) && (len(s.Clouds) == 0 || slices.Contains(s.Clouds, o.Cloud))
}

// markets puts every sight of every pool that suits on the grid.
func (r Record) markets(l *Life, end time.Time) {
	seen, looked := r.sights(l)
	from := l.Began.Add(-history)
	if len(r.Events) > 0 && r.Events[0].Time.After(from) {
		from = r.Events[0].Time
	}
	from = from.Truncate(grid)
	l.Tick, l.Start = grid, max(0, int((l.Began.Sub(from)+grid-1)/grid))
	n := int(end.Sub(from) / grid)
	for _, name := range fleet.Sorted(seen) {
		p := Pool{Name: name, Up: make([]bool, n), Price: make([]float64, n)}
		list := seen[name]
		slices.SortStableFunc(list, func(a, b sight) int { return a.at.Compare(b.at) })
		last, price := sight{}, list[0].price
		for t := range n {
			for len(list) > 0 && !list[0].at.After(from.Add(time.Duration(t)*grid)) {
				last, list = list[0], list[1:]
				price = cmp.Or(last.price, price)
			}
			p.Up[t], p.Price[t] = last.up, price
		}
		l.Pools = append(l.Pools, p)
	}
	slices.SortFunc(looked, time.Time.Compare)
	before := l.Began
	for _, at := range append(looked, end) {
		if at.Before(l.Began) {
			continue
		}
		if gap := at.Sub(before); gap > patience {
			l.Unseen += gap
		}
		before = at
	}
}

// sights are all looks at the pools that suit, and the moments at which the lists were asked for.
func (r Record) sights(l *Life) (seen map[string][]sight, looked []time.Time) {
	seen = map[string][]sight{}
	pools := map[string]map[string]bool{} // of a cloud and region
	ours := map[string]fleet.Offer{}
	see := func(o fleet.Offer, at time.Time, up bool) {
		price, known := o.PerHour()
		if !known || !suits(o, l.Spec) {
			return
		}
		if o.Market == fleet.OnDemand && (l.OnDemand == 0 || price < l.OnDemand) {
			l.OnDemand = price
		}
		if o.Market == fleet.Spot {
			seen[o.Pool()] = append(seen[o.Pool()], sight{at, up, price})
		}
	}
	for _, e := range r.Events {
		switch f := e.Data.(type) {
		case events.ClockTicked:
			if f.What == "tick" && len(r.Offers) > 0 { // then the lists were asked for, and no change is a sight too
				looked = append(looked, e.Time)
			}
		case events.PriceChanged:
			offers, kept := r.Offers[f.Digest]
			if !kept {
				l.Bare++
				continue
			}
			looked = append(looked, e.Time)
			region := f.Cloud + "/" + f.Region
			gone := pools[region]
			pools[region] = map[string]bool{}
			for _, o := range offers {
				see(o, e.Time, o.Stock.Or(1) > 0)
				pools[region][o.Pool()] = true
				delete(gone, o.Pool())
			}
			for name := range gone {
				if seen[name] != nil {
					seen[name] = append(seen[name], sight{at: e.Time})
				}
			}
		case events.InstanceLaunched:
			ours[f.Machine] = f.Offer
			see(f.Offer, f.At, true)
			refused(seen, f.Refused, e.Time)
		case events.PlanFailed:
			refused(seen, f.Refused, e.Time)
		case events.InstanceInterrupted:
			if o, known := ours[f.Machine]; known && f.Action != events.ActionEnded {
				see(o, f.EndsBy, false)
			}
		}
	}
	return seen, looked
}

func refused(seen map[string][]sight, list []events.Refused, at time.Time) {
	for _, x := range list {
		if strings.Contains(x.Why, "no_capacity") && seen[x.Pool] != nil {
			seen[x.Pool] = append(seen[x.Pool], sight{at: at})
		}
	}
}
