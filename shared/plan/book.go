package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lowtide/shared/fleet"
)

// Book is the market sorted for planning: made once for each change of the market, read by every plan.
// Offers without a known price are not in it: a price that is not known is never planned on.
//
// It is for one goroutine.
type Book struct {
	byMarket map[fleet.Market][]priced
	fits     map[string][]*priced // what suits a kind of workload, by market and need: made when first asked for
	ranks    map[string]ranking   // of spot, likewise
	spot     map[string]float64   // what spot costs by the useful hour, by pool
	past     map[string]*fleet.PoolPast
	clouds   map[string]climate
	types    map[string]*fleet.Offer // one of each type of a cloud; made when first asked for
}

type priced struct {
	offer fleet.Offer
	pool  string
	cost  float64 // USD per hour of useful work: the price over the measured speed
}

// NewBook sorts a market by cost per useful hour.
func NewBook(m *fleet.Markets) *Book {
	b := &Book{byMarket: map[fleet.Market][]priced{}, fits: map[string][]*priced{}, ranks: map[string]ranking{}, spot: map[string]float64{}, past: m.Pools, clouds: climates(m.Offers, m.Pools)}
	for _, o := range m.Offers {
		p, ok := o.PerHour()
		speed := o.Speed.Or(1)
		if !ok || p < 0 || speed <= 0 {
			continue
		}
		name := o.Pool()
		b.byMarket[o.Market] = append(b.byMarket[o.Market], priced{o, name, p / speed})
		if o.Market == fleet.Spot {
			b.spot[name] = p / speed
		}
	}
	for _, list := range b.byMarket {
		slices.SortStableFunc(list, func(a, c priced) int {
			return cmp.Or(cmp.Compare(a.cost, c.cost), cmp.Compare(a.pool, c.pool))
		})
	}
	return b
}

// suits names a kind of workload: those that the same offers fit.
func suits(market fleet.Market, s *fleet.Spec) string {
	return string(market) + "/" + strconv.Itoa(s.GPUs) + "/" + strings.Join(s.Models, ",") + "/" + strings.Join(s.Clouds, ",") + "/" + s.Want.String()
}

// fitting returns the offers of a market that can run a workload, cheapest first.
func (b *Book) fitting(market fleet.Market, s *fleet.Spec) []*priced {
	kind := suits(market, s)
	list, known := b.fits[kind]
	if known {
		return list
	}
	for i := range b.byMarket[market] {
		if p := &b.byMarket[market][i]; fits(&p.offer, s) {
			list = append(list, p)
		}
	}
	b.fits[kind] = list
	return list
}

// enough names what is enough for a workload that was seen to use little; "" for others.
func enough(w *fleet.Workload) string {
	if w.Needs.Speed <= 0 || w.Needs.As <= 0 {
		return ""
	}
	return fmt.Sprintf("/%+v", w.Needs)
}

// suiting is fitting for a workload that was seen to use little: every machine that is enough for it counts as fast as the
// one it was seen on, so the cheapest of them comes first. Where none is enough, all that fit are.
func (b *Book) suiting(market fleet.Market, w *fleet.Workload) []*priced {
	all, n, little := b.fitting(market, w.Spec), w.Needs, enough(w)
	if little == "" {
		return all
	}
	kind := suits(market, w.Spec) + little
	list, known := b.fits[kind]
	if known {
		return list
	}
	for _, p := range all {
		small := p.offer.Memory > 0 && p.offer.Memory < n.Memory
		if price, ok := p.offer.PerHour(); ok && !small && p.offer.Speed.Or(1) >= n.Speed {
			o := p.offer
			o.Speed = fleet.Known(n.As)
			list = append(list, &priced{o, p.pool, price / n.As})
		}
	}
	slices.SortStableFunc(list, func(a, c *priced) int { return cmp.Or(cmp.Compare(a.cost, c.cost), cmp.Compare(a.pool, c.pool)) })
	if len(list) == 0 {
		list = all
	}
	b.fits[kind] = list
	return list
}

// pick returns up to n offers of a market that fit the workload and have not just refused, best first.
func (b *Book) pick(market fleet.Market, f *fleet.Fleet, w *fleet.Workload, now time.Time, n int) []fleet.Offer {
	var out []fleet.Offer
	for _, p := range b.suiting(market, w) {
		if p.offer.Stock.Or(1) <= 0 {
			continue
		}
		if r := f.Refusals[p.pool]; r != nil && now.Before(r.Until) {
			continue
		}
		if out = append(out, p.offer); len(out) == n {
			break
		}
	}
	return out
}

// fits says that an offer's machine can run the workload at all.
func fits(o *fleet.Offer, s *fleet.Spec) bool {
	return o.GPUs >= s.GPUs &&
		(len(s.Models) == 0 || slices.Contains(s.Models, o.GPU)) &&
		(len(s.Clouds) == 0 || slices.Contains(s.Clouds, o.Cloud)) && s.Want.Met(o)
}

// Promise is what accepting a workload commits to.
type Promise struct {
	Worst    fleet.Money // all on demand
	Baseline fleet.Money // the work alone on demand, nothing lost to starting
	Bound    fleet.Money // the bill if the control plane dies for ever: two machines until their leases end
	Unbooted fleet.Money // what one machine costs then that never boots, until the hard end it is bought with
	Finish   time.Time   // all on demand from now
}

// Accept reckons whether a workload can be promised now; why not, if not. Reservations are what is paid for already: a
// workload that fits nothing else is taken for them, without a deadline, since another may need them more. What must be paid
// for a term is on offer and nothing to fall back on.
func Accept(book *Book, s fleet.Spec, p Policy, now time.Time, reserved ...*fleet.Reservation) (Promise, string) {
	var sure *priced
	kind := slices.ContainsFunc(reserved, func(r *fleet.Reservation) bool {
		o := book.Paid(r)
		return r.Open(now) && fits(&o, &s)
	})
	for _, market := range []fleet.Market{fleet.OnDemand, fleet.Spot} {
		for i := range book.byMarket[market] {
			o := &book.byMarket[market][i]
			if !fits(&o.offer, &s) {
				continue
			}
			kind = true
			if market != fleet.Spot && (sure == nil || o.cost < sure.cost) {
				sure = o
			}
			break
		}
	}
	switch {
	case !kind:
		return Promise{}, fmt.Sprintf("nothing that fits is on offer (%s); on offer are: %s", asked(s), book.kinds(20))
	case sure == nil && !s.Deadline.IsZero():
		return Promise{}, "a deadline needs on-demand capacity to fall back on, and none that fits is on offer"
	case sure == nil:
		sure = &priced{cost: 0}
	}
	work := time.Duration(float64(s.Work) / sure.offer.Speed.Or(1))
	need := work + p.StartMax
	pr := Promise{Finish: now.Add(need)}
	if hourly, ok := sure.offer.Hourly.Get(); ok {
		pr.Worst, pr.Baseline = hourly.Times(need.Hours()), hourly.Times(work.Hours())
		pr.Bound = hourly.Times(2 * (p.Lease + p.Grace).Hours())
		w := fleet.Workload{Spec: &s}
		pr.Unbooted = hourly.Times(hardEnd(situation{w: &w, now: now, left: s.Work, promised: !s.Deadline.IsZero()}, p).Sub(now).Hours())
	}
	if !s.Deadline.IsZero() && pr.Finish.Add(p.Wake).After(s.Deadline) {
		return pr, fmt.Sprintf("on demand from now it may end as late as %s (%s of work, up to %s to start, %s to the next look), after the deadline %s",
			pr.Finish.Add(p.Wake).Format(time.RFC3339), short(work), short(p.StartMax), short(p.Wake), s.Deadline.Format(time.RFC3339))
	}
	if budget, ok := s.Budget.Get(); ok && pr.Worst.Amount.GreaterThan(budget.Amount) && !s.DeadlineOverBudget {
		return pr, fmt.Sprintf("the worst case, all on demand, is %s; the budget is %s", pr.Worst, budget)
	}
	return pr, ""
}

// kinds lists what GPUs are on offer where, n at most.
func (b *Book) kinds(n int) string {
	seen := map[string]bool{}
	for _, offers := range b.byMarket {
		for i := range offers {
			o := &offers[i].offer
			seen[fmt.Sprintf("%d %s (%s)", o.GPUs, cmp.Or(o.GPU, "of unknown model"), o.Cloud)] = true
		}
	}
	all := fleet.Sorted(seen)
	if len(all) == 0 {
		return "none"
	}
	if len(all) > n {
		all = append(all[:n], fmt.Sprintf("%d more (lowtide offers)", len(all)-n))
	}
	return strings.Join(all, ", ")
}

// asked is what a workload wants of a machine, in words.
func asked(s fleet.Spec) string {
	gpus, models, clouds := "any number of GPUs", "of any model", "on any cloud"
	if s.GPUs > 0 {
		gpus = strconv.Itoa(s.GPUs) + " GPUs"
	}
	if len(s.Models) > 0 {
		models = strings.Join(s.Models, " or ")
	}
	if len(s.Clouds) > 0 {
		clouds = "on " + strings.Join(s.Clouds, " or ")
	}
	all := gpus + ", " + models + ", " + clouds
	if more := s.Want.String(); more != "" {
		all += ", " + more + "; what an offer does not tell is no"
	}
	return all
}
