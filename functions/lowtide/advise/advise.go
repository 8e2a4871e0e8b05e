// Package advise reckons how much capacity is worth committing to, from how much was used.
//
// It promises figures that can be checked by hand: the commitment at which the share of hours that use it equals its price
// over that of the alternative (the quantile rule), what the rule that knows no future would have paid on the same history
// with its proven bound (Wang, Li, Liang, "To Reserve or Not to Reserve", ICAC'13), and the least that anybody could have
// paid who knew it all (a linear programme with whole solutions, solved as a flow).
// It predicts nothing: the past is taken for the future but for a yearly decline of the alternative's price.
package advise

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Term is one commitment on sale: so much an hour for one machine, used or not, for so long.
type Term struct {
	Name   string
	Length time.Duration
	Hourly float64 // USD
}

// Case is what is asked.
type Case struct {
	Demand  []float64     // machines in use, by the slot
	Slot    time.Duration // how long one is
	Price   float64       // USD an hour of a machine without a commitment
	Held    float64       // machines that are committed to already
	Decline float64       // share by which Price falls in a year
	Terms   []Term
}

// Advice is the answer for one term.
type Advice struct {
	Term       string  `json:"term"`
	Hourly     float64 `json:"hourly"`      // USD of a machine
	Against    float64 `json:"against"`     // USD: what an hour without a commitment costs on the mean over the term
	BreakEven  float64 `json:"break_even"`  // share of the hours that a machine must be used for
	PaidBack   float64 `json:"paid_back"`   // months of full use until the whole term is paid for; beyond the term: never
	Commit     float64 `json:"commit"`      // machines, beyond those held
	Alone      float64 `json:"alone"`       // USD on the history without it
	Cost       float64 `json:"cost"`        // USD on the history with it
	Saves      float64 `json:"saves"`       // share
	Online     float64 `json:"online"`      // USD that the rule without any foresight would have paid
	Random     float64 `json:"random"`      // and the randomised one, on the mean
	Best       float64 `json:"best"`        // USD at least, knowing all
	Regret     float64 `json:"regret"`      // of the advice against Best, share
	OnlineLoss float64 `json:"online_loss"` // of the rule against Best, share
	Prorated   bool    `json:"prorated,omitempty"`
}

// The proven bounds of the two rules for capacity that costs nothing more when it is used.
const (
	Bound       = 2.0
	RandomBound = math.E / (math.E - 1)
)

const year = 365 * 24 * time.Hour

// For answers for each term.
func For(c Case) ([]Advice, error) {
	switch {
	case len(c.Demand) == 0:
		return nil, errors.New("no demand: nothing was used")
	case c.Slot <= 0 || c.Price <= 0:
		return nil, errors.New("slot and price must be above zero")
	case c.Decline < 0 || c.Decline >= 1:
		return nil, fmt.Errorf("a decline of %g a year: want 0 to below 1", c.Decline)
	}
	var out []Advice
	for _, t := range c.Terms {
		if t.Length <= 0 || t.Hourly <= 0 {
			return nil, fmt.Errorf("term %s: length and price must be above zero", t.Name)
		}
		out = append(out, c.one(t))
	}
	return out, nil
}

func (c Case) one(t Term) Advice {
	against := c.Price * mean(c.Decline, t.Length)
	r := t.Hourly / against
	a := Advice{Term: t.Name, Hourly: t.Hourly, Against: against, BreakEven: r, PaidBack: c.paidBack(t)}
	a.Commit = max(Quantile(c.Demand, r)-c.Held, 0)
	short := c.Demand
	if c.Held > 0 {
		short = make([]float64, len(c.Demand))
		for i, x := range c.Demand {
			short[i] = max(x-c.Held, 0)
		}
	}
	h := c.Slot.Hours()
	for _, x := range short {
		a.Alone += x * against * h
		a.Cost += (a.Commit*t.Hourly + max(x-a.Commit, 0)*against) * h
	}
	slots := max(int(math.Round(t.Length.Hours()/h)), 1)
	if slots > len(short) {
		slots, a.Prorated = len(short), true
	}
	fee := t.Hourly * float64(slots) * h
	parts, per := coarse(short, 720)
	whole := max((slots+per/2)/per, 1)
	charge := fee * float64(whole*per) / float64(slots)
	a.Online = Online(parts, whole, charge, against*h*float64(per), 1)
	a.Random = randomised(parts, whole, charge, against*h*float64(per))
	a.Best = Optimum(parts, whole, charge, against*h*float64(per))
	if a.Alone > 0 {
		a.Saves = 1 - a.Cost/a.Alone
	}
	if a.Best > 0 {
		a.Regret, a.OnlineLoss = a.Cost/a.Best-1, a.Online/a.Best-1
	}
	return a
}

// mean is the mean price over a term of what falls by a share each year, against that of now.
func mean(decline float64, over time.Duration) float64 {
	if decline <= 0 {
		return 1
	}
	years := float64(over) / float64(year)
	k := -math.Log(1 - decline)
	return (1 - math.Exp(-k*years)) / (k * years)
}

// paidBack is after how many months of full use the term is paid for.
func (c Case) paidBack(t Term) float64 {
	const month = 365.0 / 12 * 24
	fee := t.Hourly * t.Length.Hours() / c.Price // in hours at the price of now
	if c.Decline <= 0 {
		return fee / month
	}
	k := -math.Log(1-c.Decline) / year.Hours()
	if k*fee >= 1 {
		return math.Inf(1)
	}
	return -math.Log(1-k*fee) / k / month
}

// Quantile is the smallest level at which no more than a share r of the slots need more.
func Quantile(demand []float64, r float64) float64 {
	if r >= 1 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(demand))
	at := int(math.Ceil((1-r)*float64(len(sorted))-1e-9)) - 1
	if at < 0 {
		return 0
	}
	return sorted[at]
}

// Mix is what a share of reserved hours at a discount saves against none.
func Mix(reserved, discount float64) float64 { return reserved * discount }

// Discount is which one makes such a mix save so much; false: none below 1 does.
func Discount(reserved, saves float64) (float64, bool) {
	d := saves / reserved
	return d, reserved > 0 && d <= 1
}
