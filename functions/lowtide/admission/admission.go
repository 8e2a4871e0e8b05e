// Package admission gives rented machines their NATS user, beside the relay: a token of the purchase is exchanged, once,
// for an hour's user of the machine's own subjects, which is renewed while the fleet lists the machine.
//
// It promises that the seed of a machine's key never leaves the machine: it sends the public key, and gets a signed
// statement about it; that a token is good for one key, so that a copy of the user-data admits nobody else, while an answer
// that was lost may be asked for again; and that it holds a key which can make nothing but agents.
// It gives no access to storage yet.
package admission

import (
	"context"
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/nats-io/nkeys"

	"lowtide/events"
	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/functions/provision"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/store"
)

// Bucket holds which key joined for which machine.
const Bucket = "joins"

const (
	good = time.Hour       // how long a user is good
	skew = 5 * time.Minute // how far a machine's clock may be off
)

// Ask is what a machine sends.
type Ask struct {
	Fleet    string    `json:"fleet"`
	Plan     string    `json:"plan"`
	Machine  string    `json:"machine"`
	Workload string    `json:"workload"`
	Key      string    `json:"key"`             // public
	Until    time.Time `json:"until,omitzero"`  // of the token
	Token    string    `json:"token,omitempty"` // to join; without it, to renew
	At       time.Time `json:"at"`
	Proof    string    `json:"proof"` // the key's signature over Statement
}

// Statement is what the key signs: that it wants this now, and holds its seed.
func (a Ask) Statement() []byte {
	return fmt.Appendf(nil, "lowtide join %s %s %s %s %s", a.Fleet, a.Plan, a.Machine, a.Key, a.At.UTC().Format(time.RFC3339Nano))
}

// Grant is the answer.
type Grant struct {
	JWT     string    `json:"jwt"`
	Expires time.Time `json:"expires"`
}

// The errors: refused for good, and nothing to say about the inside.
var errRefused = errors.New("refused")

// Desk admits machines of one fleet. New makes it.
type Desk struct {
	fleet, install string
	keys           accounts.Door
	states, joins  store.Bucket
	now            func() time.Time // wall time
	lowtide        func() time.Time // lowtide's time, in which plans expire
	log            *slog.Logger
}

// New makes a desk.
func New(fleetName, install string, keys accounts.Door, states, joins store.Bucket, now, lowtide func() time.Time, log *slog.Logger) *Desk {
	return &Desk{fleetName, install, keys, states, joins, now, lowtide, log}
}

// ServeHTTP takes POST of an Ask. It answers 200 with a Grant, 403 for what will never do, 503 for what may.
func (d *Desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var a Ask
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<10))
	if err == nil {
		err = json.Unmarshal(body, &a)
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	g, err := d.admit(ctx, a)
	switch {
	case errors.Is(err, errRefused):
		d.log.Warn("machine refused", "machine", a.Machine, "plan", a.Plan, "err", err)
		w.WriteHeader(http.StatusForbidden)
	case err != nil:
		d.log.Warn("machine not admitted", "machine", a.Machine, "err", err)
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		d.log.Info("machine admitted", "machine", a.Machine, "renewal", a.Token == "", "until", g.Expires)
		_ = json.NewEncoder(w).Encode(g)
	}
}

func (d *Desk) admit(ctx context.Context, a Ask) (Grant, error) {
	if err := d.proven(a); err != nil {
		return Grant{}, err
	}
	if err := d.listed(ctx, a); err != nil {
		return Grant{}, err
	}
	if err := d.claim(ctx, a); err != nil {
		return Grant{}, err
	}
	until := d.now().Add(good)
	jwt, err := d.keys.Mint(a.Key, a.Machine, a.Workload, until)
	return Grant{jwt, until.UTC().Truncate(time.Second)}, err
}

// proven checks that the machine holds the seed of its key, and that its token is the purchase's.
func (d *Desk) proven(a Ask) error {
	key, err := nkeys.FromPublicKey(a.Key)
	if err != nil || !nkeys.IsValidPublicUserKey(a.Key) {
		return fmt.Errorf("%w: %q is no user's key", errRefused, a.Key)
	}
	sig, err := base64.StdEncoding.DecodeString(a.Proof)
	switch {
	case err != nil || key.Verify(a.Statement(), sig) != nil:
		return fmt.Errorf("%w: the key has not signed this", errRefused)
	case d.now().Sub(a.At).Abs() > skew:
		return fmt.Errorf("%w: signed at %s; is the machine's clock right?", errRefused, a.At)
	case a.Fleet != d.fleet:
		return fmt.Errorf("%w: fleet %q is not served here", errRefused, a.Fleet)
	case a.Token == "":
		return nil // a renewal: claim knows the key
	}
	l := provider.Labels{Fleet: a.Fleet, Install: d.install, Plan: a.Plan, Machine: a.Machine, Workload: a.Workload}
	if !hmac.Equal([]byte(a.Token), []byte(provision.Token(d.keys.Join, l, a.Until))) {
		return fmt.Errorf("%w: not this purchase's token", errRefused)
	}
	if d.lowtide().After(a.Until) {
		return fmt.Errorf("%w: the token was good until %s", errRefused, a.Until)
	}
	return nil
}

// listed checks that the fleet has the machine, for this plan and workload, and has not ended it.
func (d *Desk) listed(ctx context.Context, a Ask) error {
	f, _, err := rebalance.Fleet(ctx, d.states, d.fleet)
	if err != nil {
		return err
	}
	var m *fleet.Instance
	if f != nil {
		m = f.Machines[a.Machine]
	}
	if m == nil || m.Plan != a.Plan || m.Phase == fleet.Ended {
		return fmt.Errorf("%w: the fleet has no machine %q of plan %q", errRefused, a.Machine, a.Plan)
	}
	if m.Workload != a.Workload {
		return fmt.Errorf("%w: machine %q is for %q, not %q", errRefused, a.Machine, m.Workload, a.Workload)
	}
	return nil
}

// claim binds a machine to the first key that joins for it.
func (d *Desk) claim(ctx context.Context, a Ask) error {
	key := events.Token(a.Machine)
	want := a.Plan + " " + a.Key
	if a.Token != "" {
		_, err := d.joins.Create(ctx, key, []byte(want)) // the same again is no conflict: its answer was lost
		if errors.Is(err, store.ErrConflict) {
			return fmt.Errorf("%w: the token was used by another key", errRefused)
		}
		return err
	}
	have, _, err := d.joins.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) || err == nil && string(have) != want {
		return fmt.Errorf("%w: this key has not joined", errRefused)
	}
	return err
}
