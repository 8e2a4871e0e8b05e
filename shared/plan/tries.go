package plan

import (
	"slices"
	"time"

	"lowtide/shared/fleet"
)

// tries are the spot pools that refused last and whose time-out is over, and whether somebody is asking them again. One
// launch at a time finds out whether a pool sells again: a hundred workloads that wait for it would be refused together,
// and the cloud's patience is the account's.
type tries map[string]bool

func triesOf(f *fleet.Fleet, now time.Time) tries {
	t := tries{}
	for pool, r := range f.Refusals {
		if r.Why != "" && !now.Before(r.Until) {
			t[pool] = false
		}
	}
	if len(t) == 0 {
		return t
	}
	for _, p := range f.Plans {
		if p.Action == fleet.Launch && p.Approved {
			t.ask(p.Offers)
		}
	}
	return t
}

// ask marks the pools of a launch as asked.
func (t tries) ask(offers []fleet.Offer) {
	for _, o := range offers {
		if _, doubtful := t[o.Pool()]; doubtful {
			t[o.Pool()] = true
		}
	}
}

// limit takes the pools that somebody else is asking out of a decision. On-demand is never taken out: it is what keeps
// deadlines.
func (t tries) limit(d *Decision, now time.Time) {
	if len(t) == 0 || len(d.Plan.Offers) == 0 {
		return
	}
	first := d.Plan.Offers[0].Pool()
	left := slices.DeleteFunc(slices.Clone(d.Plan.Offers), func(o fleet.Offer) bool { return o.Market == fleet.Spot && t[o.Pool()] })
	switch {
	case len(left) == 0 || left[0].Pool() != first: // its alternatives were for the case that it refuses, which is not known yet
		d.Plan = fleet.Plan{}
		d.Reason += "; another workload is asking whether it sells again"
		d.Review = earlier(d.Review, now.Add(coldWait))
	default:
		d.Plan.Offers = left
		t.ask(left)
	}
}
