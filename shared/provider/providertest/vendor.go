package providertest

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// Vendor is a cloud as the tests of its adapter know it: a stand-in of its HTTP API over a fake cloud, and the adapter
// that talks to it.
type Vendor struct {
	// Cloud is what is sold: types and places, with or without tokens. Now, Foreign, Quota and Faults are the suite's.
	Cloud fake.Config
	// Serve is the vendor's API over an account: it checks signatures or keys, the schema of what is asked, and pages
	// its lists as the vendor does.
	Serve func(c *fake.Cloud, k *fake.Knobs) http.Handler
	// Open makes the adapter for an account behind url. It must use the client and the clock.
	Open func(url string, client *http.Client, now func() time.Time) provider.Provider
	// Buys knows the one request that buys.
	Buys func(*http.Request) bool
	// Reads is the adapter's list of requests that change nothing.
	Reads func(*http.Request) bool
	// ID is the adapter's id of a machine of the fake cloud; nil: the same.
	ID func(string) string
	// Nobody is a well-formed id that no machine has.
	Nobody string
	// Secret are credentials in every form that might be printed.
	Secret []string
}

// bench is one account under test.
type bench struct {
	provider.Provider
	v     Vendor
	cloud *fake.Cloud
	knobs *fake.Knobs
	front *front
	url   string

	mu  sync.Mutex
	now time.Time
}

// open makes a fresh account. change, if any, may set what is the suite's.
func (v Vendor) open(t *testing.T, change func(*fake.Config)) *bench {
	t.Helper()
	b := &bench{v: v, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	cfg := v.Cloud
	cfg.Now, cfg.Foreign, cfg.Boot, cfg.Ending = b.clock, 3, time.Second, time.Second
	if change != nil {
		change(&cfg)
	}
	c, err := fake.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.cloud, b.knobs = c, &fake.Knobs{Now: b.clock}
	b.front = &front{to: v.Serve(c, b.knobs), buys: v.Buys}
	srv := httptest.NewServer(b.front)
	t.Cleanup(srv.Close)
	b.url = srv.URL
	b.Provider = v.Open(srv.URL, srv.Client(), b.clock)
	return b
}

func (b *bench) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *bench) pass(d time.Duration) {
	b.mu.Lock()
	b.now = b.now.Add(d)
	b.mu.Unlock()
	b.cloud.Advance(b.clock())
}

func (b *bench) id(of string) string {
	if b.v.ID == nil || of == "" {
		return of
	}
	return b.v.ID(of)
}

// bought are the machines ever sold, by the adapter's ids.
func (b *bench) bought() []string {
	var out []string
	for _, r := range b.cloud.Bill().Ours() {
		out = append(out, b.id(r.ID))
	}
	return out
}

// written are the machines that a write other than a launch was made on.
func (b *bench) written() []string {
	var out []string
	for _, w := range b.cloud.Writes() {
		if w.Call != "launch" {
			out = append(out, b.id(w.ID))
		}
	}
	return out
}

func (b *bench) foreign() []string {
	var out []string
	for _, r := range b.cloud.Bill() {
		if r.Foreign {
			out = append(out, b.id(r.ID))
		}
	}
	return out
}

// fail is World.Fail.
func (b *bench) fail(call string, err error) bool {
	f, ok := map[error]fake.Fault{
		provider.ErrNoCapacity: fake.NoCapacity, provider.ErrThrottled: fake.Throttled, provider.ErrUnavailable: fake.Unavailable,
		provider.ErrDenied: fake.Denied, provider.ErrUnknown: fake.LostAnswer,
	}[err]
	if !ok || call != "launch" && f != fake.Throttled && f != fake.Unavailable {
		return false
	}
	if call == "launch" && f == fake.Unavailable && !b.Traits().Tokens {
		return false // whether a purchase was made that was answered so is not known
	}
	b.cloud.Script(call, f)
	return true
}

func (b *bench) world() *World {
	return &World{Fail: b.fail, Pass: b.pass, Bought: b.bought, Written: b.written, Foreign: b.foreign(), EndTakes: 2 * time.Second, Nobody: b.v.Nobody}
}

// Run runs the conformance suite and the fault round through the stand-in.
func (v Vendor) Run(t *testing.T) {
	t.Run("Conformance", func(t *testing.T) {
		Run(t, func(t *testing.T) (provider.Provider, *World) {
			b := v.open(t, nil)
			return b, b.world()
		})
	})
	t.Run("Faults", v.faults)
}

// front stands before the stand-in and breaks what passes.
type front struct {
	to   http.Handler
	buys func(*http.Request) bool

	mu   sync.Mutex
	mode mode
}

// mode is how answers are broken.
type mode int

const (
	whole   mode = iota
	broken       // every request: a proxy's 502 in HTML, nothing passes
	cut          // every answer to what reads is cut off in its middle
	noBuy        // purchases only: a proxy's 502 in HTML, nothing passes
	lost         // purchases only: it happens, and the connection dies
	hung         // purchases only: it happens, and no answer ever comes
	garbled      // purchases only: it happens, and the answer is cut off in its middle
)

func (f *front) set(m mode) {
	f.mu.Lock()
	f.mode = m
	f.mu.Unlock()
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	m := f.mode
	f.mu.Unlock()
	buys := f.buys(r)
	switch {
	case m == broken, m == noBuy && buys:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusBadGateway)
		_, _ = w.Write([]byte("<html><body><h1>502 Bad Gateway</h1></body></html>"))
	case buys && (m == lost || m == hung || m == garbled), !buys && m == cut:
		rec := httptest.NewRecorder()
		f.to.ServeHTTP(rec, r)
		switch m {
		case lost:
			panic(http.ErrAbortHandler)
		case hung:
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.Header().Del("Content-Length")
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
	default:
		f.to.ServeHTTP(w, r)
	}
}
