// Package claim is the record of a purchase: written before a cloud is asked, and read by whoever must know whether a
// listed machine is ours to end.
//
// It promises one key for one plan of one installation, and that no two writes of a record are equal, not even those of
// two writers who want the same: store.Bucket would take the second for the first one's own. It does no I/O: functions/provision writes claims, functions/census reads them.
package claim

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// State is how far a purchase has come.
type State string

// The states. Failed and Ended are final.
const (
	Open   State = "open"   // intended; perhaps bought
	Bought State = "bought" // the machine is known
	Failed State = "failed" // nothing was bought, and nothing will be
	Ended  State = "ended"  // bought, and it bills no more
)

// Refused is one offer that was not sold.
type Refused struct {
	Pool string `json:"pool"`
	Why  string `json:"why"` // provider.Word
}

// Claim is the intent of one plan to buy one machine, and what came of it.
type Claim struct {
	Write    string          `json:"write"` // random; each write has another
	State    State           `json:"state"`
	Cloud    string          `json:"cloud"`
	Account  string          `json:"account"`
	Labels   provider.Labels `json:"labels"`
	Made     time.Time       `json:"made"`            // when it was claimed
	UserData string          `json:"user_data"`       // kept: a template that has changed since must not change a repeat
	Try      int             `json:"try"`             // index of the offer that is being asked for
	Called   time.Time       `json:"called,omitzero"` // when; zero: not asked, or the answer is known
	Absent   time.Time       `json:"absent,omitzero"` // when a complete list first did not show what the call may have bought
	Refused  []Refused       `json:"refused,omitempty"`
	Why      string          `json:"why,omitempty"` // why it failed, or ended

	ID    string      `json:"id,omitempty"` // the cloud's
	Offer fleet.Offer `json:"offer,omitzero"`
	Since time.Time   `json:"since,omitzero"`
	Until time.Time   `json:"until,omitzero"`
}

// Key is where the claim of a plan lies. A store that outlived its installation holds others' plans of the same names.
func Key(install, fleet, plan string) string {
	return part(install) + "." + part(fleet) + "." + part(plan)
}

// KeyOf is the key of the claim behind a labelled machine.
func KeyOf(l provider.Labels) string { return Key(l.Install, l.Fleet, l.Plan) }

// part keeps what a key may hold, and hides nothing that tells two names apart.
func part(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			b.WriteRune(r)
			continue
		}
		fmt.Fprintf(&b, "=%x=", r)
	}
	if b.Len() == 0 {
		return "="
	}
	return b.String()
}

// Encode makes the stored form of one write.
func (c *Claim) Encode() ([]byte, error) {
	c.Write = rand.Text()
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode claim of %s: %w", c.Labels.Plan, err)
	}
	return b, nil
}

// Decode reads what Encode wrote.
func Decode(b []byte) (*Claim, error) {
	var c Claim
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("decode claim: %w", err)
	}
	return &c, nil
}
