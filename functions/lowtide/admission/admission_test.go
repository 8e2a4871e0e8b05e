package admission_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"lowtide/functions/lowtide/admission"
	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/functions/provision"
	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/store"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// bed is a desk behind HTTP, for a fleet with one machine.
type bed struct {
	*httptest.Server
	keys   accounts.Door
	states store.Bucket
	now    time.Time
	lose   atomic.Int32 // answers that get lost
	labels provider.Labels
	plan   fleet.Plan
}

func newBed(t *testing.T) *bed {
	t.Helper()
	d, err := accounts.Bootstrap(t.TempDir(), "f", "install", accounts.Functions("f"))
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{
		states: store.Memory(), now: time.Now().UTC(),
		labels: provider.Labels{Fleet: "f", Install: "install", Plan: "p1", Machine: "f-m2", Workload: "train-7"},
	}
	b.plan = fleet.Plan{ID: "p1", Machine: "f-m2", Expires: b.now.Add(10 * time.Minute)}
	if b.keys, err = d.Door(); err != nil {
		t.Fatal(err)
	}
	b.phase(t, fleet.Launched)
	desk := admission.New("f", "install", b.keys, b.states, store.Memory(), func() time.Time { return time.Now() }, func() time.Time { return b.now }, quiet)
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.lose.Add(-1) >= 0 {
			desk.ServeHTTP(httptest.NewRecorder(), r) // it took effect
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		desk.ServeHTTP(w, r)
	}))
	t.Cleanup(b.Close)
	return b
}

// phase saves the fleet with its machine in a phase.
func (b *bed) phase(t *testing.T, p fleet.Phase) {
	t.Helper()
	f := fleet.New("f", "install")
	f.Machines["f-m2"] = &fleet.Instance{Name: "f-m2", Plan: "p1", Workload: "train-7", Phase: p}
	val, err := new(fleet.Encoder).Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	if _, rev, gerr := b.states.Get(t.Context(), "f"); gerr == nil {
		_, err = b.states.Update(t.Context(), "f", val, rev)
	} else {
		_, err = b.states.Create(t.Context(), "f", val)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ask is what the machine's user-data makes it ask.
func (b *bed) ask() admission.Ask {
	data := provision.Join(b.URL, b.keys.Join)(b.labels, b.plan)
	until, _ := time.Parse(time.RFC3339, data["LOWTIDE_JOIN_UNTIL"])
	return admission.Ask{
		Fleet: "f", Plan: "p1", Machine: "f-m2", Workload: data["LOWTIDE_WORKLOAD"], Until: until, Token: data["LOWTIDE_JOIN_TOKEN"],
	}
}

func (b *bed) join(t *testing.T, file string, a admission.Ask) (*admission.Member, error) {
	t.Helper()
	m, err := admission.Open(b.URL, b.Client(), file, a)
	if err != nil {
		t.Fatal(err)
	}
	return m, m.Join(t.Context())
}

func TestAMachineGetsAnHoursUserForItsOwnKeyOnce(t *testing.T) {
	b := newBed(t)
	file := filepath.Join(t.TempDir(), "key")
	b.lose.Store(2)
	m, err := admission.Open(b.URL, b.Client(), file, b.ask())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.JWT(); err == nil {
		t.Error("there is a user before anybody admitted the machine")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	defer ended.Wait()
	defer cancel()
	failures := 0
	ended.Go(func() { m.Run(ctx, func(error) { failures++ }) })
	var token string
	for end := time.Now().Add(10 * time.Second); token == "" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // it runs beside us
		token, _ = m.JWT()
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	key, err := nkeys.FromSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	public, _ := key.PublicKey()
	if left := time.Until(time.Unix(claims.Expires, 0)); claims.Subject != public || claims.Name != "f-m2" || !claims.Tags.Contains("workload:train-7") ||
		claims.IssuerAccount != b.keys.Account || left > time.Hour || left < 59*time.Minute {
		t.Errorf("granted %+v, want an hour for this machine's key", claims)
	}
	if !claims.HasEmptyPermissions() {
		t.Error("the user carries permissions of its own: the account's template must give them")
	}
	// Its agent starts again, long after the token's time: the key is known.
	b.now = b.now.Add(24 * time.Hour)
	if _, err := b.join(t, file, b.ask()); err != nil {
		t.Errorf("joined again with its key: %v", err)
	}
	// A copy of the user-data, elsewhere, in time.
	b.now = b.now.Add(-24 * time.Hour)
	if _, err := b.join(t, filepath.Join(t.TempDir(), "thief"), b.ask()); err == nil {
		t.Error("a second key was admitted with the same token")
	}
	b.phase(t, fleet.Ended)
	if _, err := b.join(t, file, b.ask()); err == nil {
		t.Error("a machine that the fleet has ended was admitted")
	}
}

func TestWhoeverCannotProveItsPurchaseIsRefused(t *testing.T) {
	for name, change := range map[string]func(*bed, *admission.Ask){
		"AnotherToken":   func(_ *bed, a *admission.Ask) { a.Token = strings.Repeat("0", 64) },
		"NoToken":        func(_ *bed, a *admission.Ask) { a.Token = "" },
		"ALaterUntil":    func(_ *bed, a *admission.Ask) { a.Until = a.Until.Add(time.Hour) },
		"AnotherMachine": func(_ *bed, a *admission.Ask) { a.Machine = "f-m3" },
		"AnotherPlan":    func(_ *bed, a *admission.Ask) { a.Plan = "p9" },
		"AnotherJob":     func(_ *bed, a *admission.Ask) { a.Workload = "train-8" },
		"AnotherFleet":   func(_ *bed, a *admission.Ask) { a.Fleet = "g" },
		"TooLate":        func(b *bed, _ *admission.Ask) { b.now = b.now.Add(26 * time.Minute) },
	} {
		b := newBed(t)
		a := b.ask()
		change(b, &a)
		if _, err := b.join(t, filepath.Join(t.TempDir(), "key"), a); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v, want it refused at once", name, err)
		}
	}
	b := newBed(t)
	for name, body := range map[string]string{"Garbage": "abcd", "Nothing": "", "NoKey": `{"fleet":"f"}`} {
		resp, err := b.Client().Post(b.URL, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: status %d", name, resp.StatusCode)
		}
	}
	// A signature over something else.
	key, _ := nkeys.CreateUser()
	a := b.ask()
	a.Key, _ = key.PublicKey()
	a.At, a.Proof = time.Now(), "c29tZXRoaW5nIGVsc2U="
	raw, _ := json.Marshal(a)
	resp, err := b.Client().Post(b.URL, "application/json", strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a key whose seed it does not hold: status %d", resp.StatusCode)
	}
}

func TestTheTokenIsAFunctionOfThePlanAlone(t *testing.T) {
	b := newBed(t)
	first, again := provision.Join("u", b.keys.Join)(b.labels, b.plan), provision.Join("u", b.keys.Join)(b.labels, b.plan)
	for k := range first {
		if first[k] != again[k] {
			t.Errorf("%s: %q, then %q: a purchase that is asked for again must carry the same bytes", k, first[k], again[k])
		}
	}
	other := b.labels
	other.Machine = "f-m3"
	if provision.Join("u", b.keys.Join)(other, b.plan)["LOWTIDE_JOIN_TOKEN"] == first["LOWTIDE_JOIN_TOKEN"] {
		t.Error("two machines have one token")
	}
}
