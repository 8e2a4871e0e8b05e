package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Action is what a plan does.
type Action string

// The actions.
const (
	Launch Action = "launch" // buy one machine for a workload
	End    Action = "end"    // end one machine of ours
)

// Plan is one purchase or one end, with the reasons. A launch names its offers in order of preference;
// the next is tried only after a known refusal of the one before.
type Plan struct {
	ID       string    `json:"id"`
	Action   Action    `json:"action"`
	Machine  string    `json:"machine"`            // our name for it
	Instance string    `json:"instance,omitempty"` // the cloud's id, for an end
	Cloud    string    `json:"cloud"`
	Account  string    `json:"account"`
	Workload string    `json:"workload,omitempty"`
	Offers   []Offer   `json:"offers,omitempty"`
	Avoid    []string  `json:"avoid,omitempty"`   // hosts of a marketplace that must not be bought from
	HardEnd  time.Time `json:"hard_end,omitzero"` // the machine ends itself then, whatever happens
	Made     time.Time `json:"made"`
	Expires  time.Time `json:"expires"`
	Approved bool      `json:"approved"`     // nobody has to be asked (any more)
	By       string    `json:"by,omitempty"` // who approved it
	Score    Score     `json:"score"`
}

// Score is why a plan was made, in words and in money.
type Score struct {
	Reason    string        `json:"reason"`
	RunnerUp  string        `json:"runner_up,omitempty"` // the next best
	WhyLost   string        `json:"why_lost,omitempty"`  // why it lost
	HourlyNow Money         `json:"hourly_now,omitzero"`
	Hourly    Money         `json:"hourly,omitzero"`   // after the plan
	OneOff    Money         `json:"one_off,omitzero"`  // of the move itself
	Worst     Money         `json:"worst,omitzero"`    // what the plan can cost at most, until the hard end
	Payback   time.Duration `json:"payback,omitempty"` // of the one-off cost; 0: at once, or not a move
}

// Hash names what a person approves: workload, action, class of offer, highest price, expiry. Nothing else of the fleet
// is in it, so that a price that moves elsewhere does not make an approval stale.
func (p Plan) Hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %d", p.Workload, p.Action, p.Machine, p.Expires.Unix()) // whole seconds: the store keeps no more than microseconds
	for _, o := range p.Offers {
		fmt.Fprintf(h, " %q", []string{o.Cloud, o.Account, o.Type, string(o.Market)})
	}
	fmt.Fprintf(h, " %s", p.Highest())
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// Highest is the dearest that the plan may buy, an hour. An offer without a known price makes it the score's.
func (p Plan) Highest() Money {
	most := p.Score.Hourly
	for _, o := range p.Offers {
		if m, ok := o.Hourly.Get(); ok && m.Amount.GreaterThan(most.Amount) {
			most = m
		}
	}
	return most
}
