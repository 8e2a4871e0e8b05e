package pool

import "math"

// Policies published for this problem, over one pool: "spot" means any zone that is up, picked by Follow.
// Sources: Wu et al., "Can't Be Late" (NSDI'24), text and released simulator; SlackWait is the rule on which
// automated searches over policies settled.

// Only is the rule that always asks for on-demand: the price of taking no chances.
func Only() Rule { return ruleFunc(func(View) Choice { return Choice{OnDemand, -1} }) }

// Greedy takes spot whenever it is up and waits otherwise, until the published net makes it take on-demand.
func Greedy(j Job) Rule {
	return ruleFunc(func(v View) Choice { return j.net(v, spotOr(v, Idle)) })
}

// Leave says when Uniform Progress may give a running on-demand instance up.
type Leave uint8

// Variants of Uniform Progress, in the order in which they were published.
const (
	LeavePlain    Leave = iota // at once
	LeaveText                  // when two delays ahead of even progress
	LeaveReleased              // as LeaveText, and only for spot
	LeaveElapsed               // when the delay is a small share of the on-demand stay, and only for spot
)

// Uniform is Uniform Progress: never fall behind work·t/deadline.
func Uniform(j Job, leave Leave) Rule { return UniformSince(j, leave, -1) }

// UniformSince is Uniform for a job that is under way: since is the tick in which the running on-demand instance was
// launched, -1 if none runs.
func UniformSince(j Job, leave Leave, since int) Rule {
	return ruleFunc(func(v View) Choice {
		switch {
		case v.Mode != OnDemand:
			since = -1
		case since < 0: // launched by a net above this rule
			since = v.T - 1
		}
		c := j.uniform(v, leave, since)
		if c.Mode == OnDemand && v.Mode != OnDemand {
			since = v.T
		}
		return c
	})
}

func (j Job) uniform(v View, leave Leave, since int) Choice {
	now, progress := float64(v.T)*j.Tick, j.Work-v.Work
	even := func(t float64) float64 { return t * j.Work / j.End() }
	rest := Idle
	if progress < even(now) {
		rest = OnDemand
	}
	c := spotOr(v, rest)
	if v.Mode == OnDemand && leave != LeavePlain {
		keep := progress <= even(now+2*j.Delay)
		if leave == LeaveElapsed {
			left := j.End() - now
			on := float64(v.T-since) * j.Tick
			keep = j.Delay/on >= (left-v.Work)/left
		}
		if keep || leave != LeaveText && !v.Any() {
			c = Choice{OnDemand, -1}
		}
	}
	return j.net(v, c)
}

// SlackWait takes spot when it is up, and otherwise waits while the slack is more than theta of the work left.
// It is meant to run under Guarded.
func SlackWait(j Job, theta float64) Rule {
	return ruleFunc(func(v View) Choice {
		left := j.End() - float64(v.T)*j.Tick
		switch {
		case v.Any():
			return spotOr(v, Idle)
		case v.Mode == OnDemand || left-v.Work-j.Delay <= theta*v.Work:
			return Choice{OnDemand, -1}
		}
		return Choice{Idle, -1}
	})
}

// net is the published 2d rule: inside two delays of the deadline take on-demand to the end, but keep a spot
// instance that is already productive.
func (j Job) net(v View, c Choice) Choice {
	up := func(x float64) float64 { return math.Ceil(x/j.Tick-1e-9) * j.Tick }
	left := math.Floor((j.End()-float64(v.T)*j.Tick)/j.Tick+1e-9) * j.Tick
	if up(v.Work+2*j.Delay) >= left-slop && v.Mode != Spot {
		c = Choice{OnDemand, -1}
	}
	if up(v.Work+j.Delay) >= left-slop {
		c = Choice{OnDemand, -1}
		if v.Mode == Spot && v.Warmup == 0 {
			c = v.Stay()
		}
	}
	return c
}

// spotOr is spot if it is up somewhere (the zone in use if there is one), else rest.
func spotOr(v View, rest Mode) Choice {
	if v.Mode == Spot {
		return v.Stay()
	}
	for z, up := range v.Up {
		if up {
			return Choice{Spot, z}
		}
	}
	return Choice{rest, -1}
}

// Follow lets a rule for one pool run over several zones: it stays in a zone until that is lost, and starts in
// the zone with the highest share of up ticks from the history until now (the first of equals). history holds
// the availability by zone, newest last, all equally long; it may be nil.
func Follow(r Rule, history [][]bool) Rule {
	f := &follow{rule: r}
	for _, h := range history {
		n := 0
		for _, up := range h {
			if up {
				n++
			}
		}
		f.seen = append(f.seen, n)
	}
	return f
}

type follow struct {
	rule Rule
	seen []int // up ticks by zone
}

func (f *follow) Choose(v View) Choice {
	for len(f.seen) < len(v.Up) {
		f.seen = append(f.seen, 0)
	}
	best := -1
	for z, up := range v.Up {
		if !up {
			continue
		}
		f.seen[z]++
		if best < 0 || f.seen[z] > f.seen[best] {
			best = z
		}
	}
	c := f.rule.Choose(v)
	if c.Mode == Spot && v.Mode != Spot {
		c.Zone = best
	}
	return c
}

type ruleFunc func(View) Choice

func (f ruleFunc) Choose(v View) Choice { return f(v) }
