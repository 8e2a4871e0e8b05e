// Package fake is a cloud with a durable bill: it sells machines at the prices of a market, takes spot machines
// back when the market says so, and remembers every machine it ever sold.
//
// It promises that what it answered is on its bill before it is answered (with Config.Dir: on disk), that one token
// buys once also after a lost answer, that the same seed, market and calls give the same faults, and that it makes no
// difference whether it lives in this process (Open) or in one of its own (Serve, Dial).
// It runs nothing itself: a Launcher does. Spot prices of a running machine stay as they were at its launch.
//
//	launch ──► pending ──Boot──► running ──► notice ──Notice──► gone   interrupted
//	                                │──── End ──► ending ──Ending──► gone   asked
//	                                │──── PowerOff ────────────────► gone   self
//	                                └──── HardEnd ─────────────────► gone   hard_end
package fake

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/market"
	"lowtide/shared/provider"
)

// Type is a machine type and what it costs, USD an hour.
type Type struct {
	Name     string
	GPU      string
	GPUs     int
	OnDemand float64 // 0: not sold on demand
	Spot     float64 // where the trace has no prices; 0: not sold as spot
	Speed    float64 // work per hour against the reference machine; 0: not told
}

// Host is a stranger who rents a machine out.
type Host struct {
	Name     string
	Throttle float64 // share of the rated speed that its GPUs give; 0: all
}

// V100 is the type that the recorded traces are of.
var V100 = Type{Name: "p3.2xlarge", GPU: "V100", GPUs: 1, OnDemand: 3.06, Spot: 0.9731}

// Config is what a cloud is. The zero value of a field means what its comment says.
type Config struct {
	Cloud   string // "fake"
	Account string // "main"
	Dir     string // holds the journal; "": in memory only
	Seed    uint64

	Traces []market.Trace // one a zone; none: one zone, "sim-1a", always up
	Origin time.Time      // the traces' start; zero: when the cloud was first opened
	Types  []Type         // none: V100
	Hosts  []Host         // of a marketplace, each with one machine of each type; none: the cloud's own machines, as many as wanted

	Reservations []fleet.Reservation // Booked before the first sale

	Notice       time.Duration // promised; 120 s, below 0: none
	Ahead        bool          // the notice comes before the trace goes down, not when it does
	Boot         time.Duration // from launch to boot; 20 s, below 0: at once
	Ending       time.Duration // from End to gone; 5 s, below 0: at once. It bills until gone.
	ListingDelay time.Duration // told in Traits; at least Faults.ListingLag
	KeepGone     time.Duration // how long List shows what is gone; 1 h, below 0: not at all
	NoTokens     bool          // Launch ignores the token
	NoHardEnd    bool          // the cloud cannot end a machine at a set time
	Quota        int           // most machines at once; 0: any number
	Foreign      int           // others' machines in the account
	Faults       Faults

	Now      func() time.Time                  // lowtide's time; time.Now
	Real     func(time.Duration) time.Duration // how long that takes on the wall; as long
	Clock    string                            // Now in words, for those who must reckon in the same time; "": wall time
	Launcher Launcher                          // nil: machines only bill
	Metadata string                            // URL that machines reach Serve at; "": they are told none
	OnNotice func(Notice)                      // called for each notice, never beside another call
}

func (c *Config) fill() {
	c.Cloud, c.Account = cmp.Or(c.Cloud, "fake"), cmp.Or(c.Account, "main")
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Real == nil {
		c.Real = func(d time.Duration) time.Duration { return d }
	}
	if len(c.Types) == 0 {
		c.Types = []Type{V100}
	}
	if len(c.Traces) == 0 {
		c.Traces = []market.Trace{{Zone: "sim-1a", Gap: 10 * 365 * 24 * time.Hour, Count: []int{1 << 20}}}
	}
	for _, d := range []struct {
		field *time.Duration
		zero  time.Duration
	}{{&c.Notice, 120 * time.Second}, {&c.Boot, 20 * time.Second}, {&c.Ending, 5 * time.Second}, {&c.KeepGone, time.Hour}} {
		*d.field = max(cmp.Or(*d.field, d.zero), 0)
	}
	c.ListingDelay = max(c.ListingDelay, c.Faults.ListingLag)
}

// Notice is a warning as the cloud gives it, to all who ask: machines by metadata, owners by Notices.
type Notice struct {
	Seq     int       `json:"seq"` // from 1
	Cloud   string    `json:"cloud"`
	Account string    `json:"account"`
	ID      string    `json:"id"`
	Machine string    `json:"machine"`
	Action  string    `json:"action"` // "terminate"
	At      time.Time `json:"at"`
	EndsBy  time.Time `json:"ends_by"`
}

// Cloud is one account. It is safe for concurrent use and implements provider.Provider.
type Cloud struct {
	cfg Config

	mu       sync.Mutex
	id       string    // random, as old as the bill
	clock    time.Time // everything due by then has happened
	rentals  map[string]*Rental
	order    []string // ids as they were sold
	live     map[string]*Rental
	tokens   map[string]string // token to id
	counter  int
	notices  []Notice
	writes   []Write
	script   map[string][]Fault
	asked    map[string]uint64 // calls so far, by kind and subject: the dice of the faults
	refuse   map[fleet.Market]bool
	reserved []fleet.Reservation
	journal  *journal
	broken   error // the journal could not be written: nothing is sold any more
	woken    chan struct{}

	todo     []func() // launcher and callbacks, in order, called without mu
	draining bool
}

// Open makes a cloud, or opens the one that lies in cfg.Dir with its machines and its bill.
// The launcher is told again what should run and what should not: the last process may have died before it did.
// Close it after use.
func Open(cfg Config) (*Cloud, error) {
	cfg.fill()
	c := &Cloud{
		cfg: cfg, rentals: map[string]*Rental{}, live: map[string]*Rental{}, tokens: map[string]string{},
		script: map[string][]Fault{}, asked: map[string]uint64{}, refuse: map[fleet.Market]bool{}, woken: make(chan struct{}, 1),
		clock: cfg.Now().UTC().Round(0),
	}
	if cfg.Dir != "" {
		j, err := openJournal(cfg.Dir, c.replay)
		if err != nil {
			return nil, fmt.Errorf("fake cloud: %w", err)
		}
		c.journal = j
	}
	c.mu.Lock()
	if c.id == "" {
		c.id = strings.ToLower(rand.Text()[:12])
		c.append(entry{ID: c.id})
	}
	if c.cfg.Origin.IsZero() {
		c.cfg.Origin = c.clock
		c.append(entry{Origin: &c.cfg.Origin})
	}
	for _, r := range cfg.Reservations {
		c.book(r)
	}
	c.resume()
	c.sellForeign()
	err := c.broken
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	c.Advance(cfg.Now())
	return c, nil
}

// Close closes the journal. Machines go on.
func (c *Cloud) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.journal == nil {
		return nil
	}
	c.broken = fmt.Errorf("fake: %w: closed", provider.ErrUnavailable)
	return c.journal.close()
}

// Traits implements provider.Provider.
func (c *Cloud) Traits() provider.Traits {
	return provider.Traits{
		Cloud: c.cfg.Cloud, Account: c.cfg.Account, Tokens: !c.cfg.NoTokens, ListingDelay: c.cfg.ListingDelay,
		Notice: c.cfg.Notice, HardEnd: !c.cfg.NoHardEnd, OffEnds: true,
	}
}

// Offers implements provider.Provider. Spot that is not to be had is listed with a stock of 0.
func (c *Cloud) Offers(ctx context.Context) ([]fleet.Offer, error) {
	now, done, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if f := c.fault("offers", ""); f == Throttled || f == Unavailable {
		return nil, f.err("offers")
	}
	var out []fleet.Offer
	for z := range c.cfg.Traces {
		for _, t := range c.cfg.Types {
			for _, m := range []fleet.Market{fleet.OnDemand, fleet.Spot} {
				if o, ok := c.offer(z, t, m, now); ok {
					out = append(out, o)
				}
			}
		}
	}
	return out, nil
}

// offer is what a type costs in a zone now; false where it is not sold at all.
func (c *Cloud) offer(z int, t Type, m fleet.Market, now time.Time) (fleet.Offer, bool) {
	trace := c.cfg.Traces[z]
	price := t.OnDemand
	o := fleet.Offer{
		Cloud: c.cfg.Cloud, Account: c.cfg.Account, Region: region(trace.Zone), Zone: trace.Zone, Type: t.Name, Market: m,
		GPU: t.GPU, GPUs: t.GPUs, Marketplace: len(c.cfg.Hosts) > 0,
	}
	if m == fleet.Spot {
		price = t.Spot
		at := now.Sub(c.cfg.Origin)
		if first := c.cfg.Types[0].Spot; len(trace.Prices) > 0 && first > 0 {
			price = trace.Price(at) * t.Spot / first
		}
		if !trace.At(at) {
			o.Stock = fleet.Known(0)
		}
		o.Notice = c.cfg.Notice
	}
	if c.refuse[m] {
		o.Stock = fleet.Maybe[int]{} // the list does not know it; the launch does
	}
	if price <= 0 {
		return o, false
	}
	o.Price = fleet.Price{Amount: fleet.Dollars(price), Per: fleet.PerInstanceHour}
	o.Hourly = fleet.Known(fleet.Dollars(price))
	if t.Speed > 0 {
		o.Speed = fleet.Known(t.Speed)
	}
	return o, true
}

// region is a zone without its letter, as most clouds name them.
func region(zone string) string {
	if n := len(zone); n > 1 && zone[n-1] >= 'a' && zone[n-1] <= 'z' && zone[n-2] >= '0' && zone[n-2] <= '9' {
		return zone[:n-1]
	}
	return zone
}

// Launch implements provider.Provider. Conflicting parameters under a used token are ErrInvalid.
func (c *Cloud) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	now, done, err := c.enter(ctx)
	if err != nil {
		return provider.Machine{}, err
	}
	defer done()
	c.write(now, "launch", "", want.Token)
	f := c.fault("launch", cmp.Or(want.Token, want.Name))
	switch f {
	case Throttled, Unavailable, Denied, LostBefore:
		return provider.Machine{}, f.err("launch " + want.Offer.Type)
	}
	r, err := c.buy(now, want, f)
	if err != nil {
		return provider.Machine{}, err
	}
	c.writes[len(c.writes)-1].ID = r.ID
	if f == LostAnswer {
		return provider.Machine{}, f.err("launch " + want.Offer.Type)
	}
	return r.Machine, nil
}

// buy finds what the token bought, or sells.
func (c *Cloud) buy(now time.Time, want provider.Request, f Fault) (*Rental, error) {
	fail := func(err error) (*Rental, error) { return nil, fmt.Errorf("fake: launch %s: %w", want.Offer, err) }
	if id := c.tokens[want.Token]; id != "" && want.Token != "" && !c.cfg.NoTokens {
		if r := c.rentals[id]; r.Params == params(want) {
			return r, nil
		}
		return fail(fmt.Errorf("%w: token %q was used with other parameters", provider.ErrInvalid, want.Token))
	}
	z, t, ok := c.find(want.Offer)
	if !ok {
		return fail(provider.ErrInvalid)
	}
	o, ok := c.offer(z, t, want.Offer.Market, now)
	if want.Offer.Reservation != "" {
		o, ok = c.paid(z, t, want.Offer.Reservation, now)
	}
	switch {
	case !ok:
		return fail(provider.ErrInvalid)
	case c.cfg.Quota > 0 && len(c.live) >= c.cfg.Quota:
		return fail(provider.ErrQuota)
	case f == NoCapacity, c.refuse[o.Market], o.Stock.Or(1) <= 0:
		return fail(provider.ErrNoCapacity)
	}
	host, free := c.host(t, want.Avoid)
	if !free {
		return fail(provider.ErrNoCapacity)
	}
	o.Host, o.Stock = host.Name, fleet.Maybe[int]{}
	c.counter++
	r := &Rental{
		Machine:  provider.Machine{ID: fmt.Sprintf("i-%06d", c.counter), Labels: want.Labels, State: provider.Pending, Offer: o, Since: now},
		Name:     want.Name,
		Token:    want.Token,
		Params:   params(want),
		UserData: want.UserData,
		BootAt:   now.Add(c.cfg.Boot),
		ListedAt: now,
	}
	if !c.cfg.NoHardEnd {
		r.HardEnd = want.HardEnd
	}
	r.Throttle = host.Throttle
	c.spoil(r, f)
	switch {
	case o.Market == fleet.Spot:
		c.foresee(z, r)
	case o.Reservation != "":
		r.KillAt = c.booked(o.Reservation).Until
	}
	c.sell(r)
	if c.broken != nil {
		return nil, c.broken
	}
	return r, nil
}

// host is the first that is free and not to be avoided; false if none is. A cloud without hosts has none to tell.
func (c *Cloud) host(t Type, avoid []string) (Host, bool) {
	for _, h := range c.cfg.Hosts {
		taken := slices.Contains(avoid, h.Name)
		for _, r := range c.live {
			taken = taken || r.Offer.Host == h.Name && r.Offer.Type == t.Name
		}
		if !taken {
			return h, true
		}
	}
	return Host{}, len(c.cfg.Hosts) == 0
}

// foresee writes down when the market takes a spot machine back.
func (c *Cloud) foresee(z int, r *Rental) {
	down, ok := goesDown(c.cfg.Traces[z], r.Since.Sub(c.cfg.Origin))
	if !ok {
		return
	}
	at := c.cfg.Origin.Add(down)
	lead := c.cfg.Notice
	switch c.rolls("notice", r.ID, c.cfg.Faults.NoNotice, c.cfg.Faults.ShortNotice) {
	case 0:
		lead = 0
	case 1:
		lead /= 4
	}
	r.NoticeAt, r.KillAt = at, at.Add(lead)
	if c.cfg.Ahead {
		r.NoticeAt, r.KillAt = at.Add(-lead), at
		if r.NoticeAt.Before(r.Since) {
			r.NoticeAt = r.Since
		}
	}
	if lead == 0 {
		r.NoticeAt = time.Time{}
	}
}

// goesDown is the offset of the first tick after from in which nothing is to be had.
// The end of the trace takes nothing: nobody knows what came after.
func goesDown(t market.Trace, from time.Duration) (time.Duration, bool) {
	if t.Gap <= 0 {
		return 0, false
	}
	for i := max(int(from/t.Gap), 0); i < len(t.Count); i++ {
		if t.Count[i] <= 0 {
			return time.Duration(i) * t.Gap, true
		}
	}
	return 0, false
}

func (c *Cloud) find(o fleet.Offer) (zone int, t Type, ok bool) {
	zone = -1
	for i, tr := range c.cfg.Traces {
		if tr.Zone == o.Zone || zone < 0 && o.Zone == "" && region(tr.Zone) == o.Region { // a reservation may be of a region
			zone = i
		}
	}
	for _, have := range c.cfg.Types {
		if have.Name == o.Type && zone >= 0 {
			return zone, have, true
		}
	}
	return 0, Type{}, false
}

// params is what must be equal under one token.
func params(want provider.Request) string {
	want.HardEnd = want.HardEnd.UTC() // the same moment, however it was written
	want.Offer = fleet.Offer{
		Region: want.Offer.Region, Zone: want.Offer.Zone, Type: want.Offer.Type, Market: want.Offer.Market, Reservation: want.Offer.Reservation,
	}
	b, err := json.Marshal(want)
	if err != nil {
		panic(fmt.Sprintf("fake: request cannot be encoded: %v", err)) // plain data
	}
	return digest(b)
}

// List implements provider.Provider.
func (c *Cloud) List(ctx context.Context) ([]provider.Machine, error) {
	now, done, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if f := c.fault("list", ""); f == Throttled || f == Unavailable {
		return nil, f.err("list")
	}
	var out []provider.Machine
	for _, id := range c.order {
		r := c.rentals[id]
		if now.Before(r.ListedAt) || r.State == provider.Gone && now.Sub(r.Until) >= c.cfg.KeepGone {
			continue
		}
		out = append(out, r.Machine)
	}
	return out, nil
}

// End implements provider.Provider.
func (c *Cloud) End(ctx context.Context, id string) error {
	now, done, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	c.write(now, "end", id, "")
	f := c.fault("end", id)
	if f == Throttled || f == Unavailable || f == LostBefore || f == Denied {
		return f.err("end " + id)
	}
	r := c.rentals[id]
	if r == nil {
		return fmt.Errorf("fake: end %s: %w", id, provider.ErrNotFound)
	}
	if r.State == provider.Pending || r.State == provider.Running {
		r.State, r.Why, r.GoneAt = provider.Ending, "asked", now.Add(c.cfg.Ending)
		c.record(r)
		c.kill(r)
		c.wake()
		c.advance(now)
	}
	if f == LostAnswer {
		return f.err("end " + id)
	}
	return c.broken
}

// PowerOff is a machine that shuts itself down for good: it bills no more. Repeats and unknown ids do nothing.
func (c *Cloud) PowerOff(id string) {
	now, done, err := c.enter(context.Background())
	if err != nil {
		return
	}
	defer done()
	if r := c.live[id]; r != nil && r.State != provider.Ending {
		c.gone(r, now, "self")
	}
}

// Refuse makes a market refuse every launch with no capacity, or lifts that.
func (c *Cloud) Refuse(m fleet.Market, refused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse[m] = refused
}

// Interrupt takes a machine back as the market would, with notice from now. It says whether the machine was there.
func (c *Cloud) Interrupt(id string, notice time.Duration) bool {
	now, done, err := c.enter(context.Background())
	if err != nil {
		return false
	}
	defer done()
	r := c.live[id]
	if r == nil {
		return false
	}
	r.NoticeAt, r.KillAt, r.Noticed = now, now.Add(notice), false
	if notice <= 0 {
		r.NoticeAt = time.Time{}
	}
	c.record(r)
	c.wake()
	c.advance(now)
	return true
}

// Interruption is what the metadata of a machine says: the announced end, if there is one.
func (c *Cloud) Interruption(id string) (endsBy time.Time, ok bool) {
	_, done, err := c.enter(context.Background())
	if err != nil {
		return time.Time{}, false
	}
	defer done()
	r := c.live[id]
	if r == nil || !r.Noticed {
		return time.Time{}, false
	}
	return r.KillAt, true
}

// Notices lists the notices after a sequence number; 0 lists all since the cloud was opened.
func (c *Cloud) Notices(after int) []Notice {
	_, done, err := c.enter(context.Background())
	if err != nil {
		return nil
	}
	defer done()
	if after < 0 || after >= len(c.notices) {
		return nil
	}
	return append([]Notice(nil), c.notices[after:]...)
}

// enter locks the cloud with everything due by now done. done unlocks and runs the launcher.
func (c *Cloud) enter(ctx context.Context) (now time.Time, done func(), err error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, nil, fmt.Errorf("fake: %w: %w", provider.ErrUnavailable, err)
	}
	now = c.cfg.Now().UTC().Round(0) // no monotonic part: the journal does not keep it
	c.mu.Lock()
	if c.broken != nil {
		defer c.mu.Unlock()
		return now, nil, c.broken
	}
	if now.Before(c.clock) {
		now = c.clock
	}
	c.advance(now)
	return now, func() { c.mu.Unlock(); c.drain() }, nil
}
