package prices_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/events"
	"lowtide/functions/prices"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/market"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/store"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// objects keeps values by digest.
type objects map[string][]byte

func (o objects) Put(_ context.Context, v []byte) (string, error) {
	h := sha256.Sum256(v)
	d := "sha256-" + hex.EncodeToString(h[:])
	o[d] = v
	return d, nil
}

func (o objects) Fetch(_ context.Context, d string) ([]byte, error) {
	if v, ok := o[d]; ok {
		return v, nil
	}
	return nil, store.ErrNotFound
}

// shop is an account that sells what the test says.
type shop struct {
	provider.Provider
	offers []fleet.Offer
	err    error
}

func (s *shop) Offers(context.Context) ([]fleet.Offer, error) {
	return append([]fleet.Offer(nil), s.offers...), s.err
}

func offer(zone, typ string, m fleet.Market, usd float64) fleet.Offer {
	return fleet.Offer{
		Cloud: "fake", Account: "main", Region: "r1", Zone: zone, Type: typ, Market: m, GPU: "V100", GPUs: 1,
		Price: fleet.Price{Amount: fleet.Dollars(usd), Per: fleet.PerInstanceHour},
	}
}

type bench struct {
	t       *testing.T
	now     time.Time
	seq     uint64
	bucket  store.Bucket
	objects objects
	shop    *shop
	f       fn.Function
	last    []fn.Delivery
}

func newBench(t *testing.T, p provider.Provider, opts prices.Options) *bench {
	b := &bench{t: t, now: start, bucket: store.Memory(), objects: objects{}}
	if p == nil {
		c, err := fake.Open(fake.Config{Now: func() time.Time { return b.now }})
		if err != nil {
			t.Fatal(err)
		}
		b.shop = &shop{Provider: c}
		p = b.shop
	}
	opts.Now = func() time.Time { return b.now }
	b.f = prices.New("prices", []string{"f1", "f2"}, []provider.Provider{p}, b.bucket, b.objects, opts)
	return b
}

func (b *bench) hear(facts ...events.Fact) []events.Event {
	b.t.Helper()
	b.last = nil
	for _, f := range facts {
		b.seq++
		b.last = append(b.last, fn.Delivery{Event: events.New("f1", "x", b.now, f), Stream: "FACTS", Seq: b.seq, At: b.now})
	}
	return b.again()
}

// again delivers the last batch once more.
func (b *bench) again() []events.Event {
	b.t.Helper()
	said, err := b.f.Handle(context.Background(), b.last)
	if err != nil {
		b.t.Fatal(err)
	}
	return said
}

// tick lets a minute pass and returns the summaries said to the first fleet.
func (b *bench) tick() (out []string) {
	b.t.Helper()
	b.now = b.now.Add(time.Minute)
	for _, e := range b.hear(events.ClockTicked{What: "tick", Due: b.now}) {
		if c := e.Data.(events.PriceChanged); e.Fleet == "f1" {
			out = append(out, c.Summary)
			var offers []fleet.Offer
			if v, err := b.objects.Fetch(context.Background(), c.Digest); err != nil || json.Unmarshal(v, &offers) != nil || len(offers) != c.Offers {
				b.t.Errorf("the digest gives %d offers (%v), the fact says %d", len(offers), err, c.Offers)
			}
		}
	}
	return out
}

func (b *bench) market() fleet.Markets {
	b.t.Helper()
	v, _, err := b.bucket.Get(context.Background(), fleet.MarketKey)
	var m fleet.Markets
	if err == nil {
		err = fleet.Unpack(v, &m)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

func (b *bench) hourly(zone string) string {
	b.t.Helper()
	for _, o := range b.market().Offers {
		if o.Zone == zone {
			h, ok := o.Hourly.Get()
			if !ok {
				return "unknown"
			}
			return h.String()
		}
	}
	return "not sold"
}

func TestOnlyChangesThatMatterAreTold(t *testing.T) {
	b := newBench(t, nil, prices.Options{})
	step := func(want string, offers ...fleet.Offer) {
		t.Helper()
		b.shop.offers = offers
		got := strings.Join(b.tick(), "; ")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("said %q, want %q", got, want)
		}
	}
	od, spot := offer("a", "p3", fleet.OnDemand, 3.06), offer("a", "p3", fleet.Spot, 0.9731)
	step("is sold at", od, spot)
	step("", od, spot)
	spot.Price.Amount = fleet.Dollars(0.9735)
	step("", od, spot) // less than half a percent
	spot.Price.Amount = fleet.Dollars(1.2)
	step("p3/spot: 1.2000 USD/h, was 0.9731", od, spot)
	spot.Stock = fleet.Known(0)
	step("p3/spot has run out", od, spot)
	spot.Stock = fleet.Known(3)
	step("p3/spot is to be had again", od, spot)
	spot.Stock = fleet.Known(2)
	step("", od, spot)
	step("p3/spot is not sold any more", od)
	step("") // nothing at all is a feed that is broken, not a market that is gone
	step("", od)
}

func TestAMarketThatSwingsBackIsToldAgain(t *testing.T) {
	b := newBench(t, nil, prices.Options{})
	ids := map[string]bool{}
	n := 0
	for i := range 6 {
		o := offer("a", "p3", fleet.Spot, 1)
		o.Stock = fleet.Known(i % 2)
		b.shop.offers = []fleet.Offer{o}
		b.now = b.now.Add(time.Minute)
		for _, e := range b.hear(events.ClockTicked{What: "tick"}) {
			ids[e.ID] = true
			n++
		}
	}
	if n != 12 || len(ids) != 12 {
		t.Errorf("%d facts with %d ids, want 12 of each: the stream drops a repeated id", n, len(ids))
	}
}

func TestPricesAreInDollarsAnInstanceHour(t *testing.T) {
	rates := fleet.Rates{AsOf: start, USD: map[fleet.Currency]decimal.Decimal{fleet.CNY: decimal.NewFromFloat(0.14)}}
	b := newBench(t, nil, prices.Options{Book: fleet.Book{Rates: rates}})
	gpu, month, euro := offer("a", "p3", fleet.OnDemand, 0), offer("b", "p3", fleet.OnDemand, 2190), offer("c", "p3", fleet.OnDemand, 1)
	gpu.Price, gpu.GPUs = fleet.Price{Amount: fleet.Money{Amount: decimal.NewFromInt(10), Currency: fleet.CNY}, Per: fleet.PerGPUHour}, 4
	month.Price.Per = fleet.PerMonth
	euro.Price.Amount.Currency = "EUR"
	b.shop.offers = []fleet.Offer{gpu, month, euro}
	b.tick()
	for zone, want := range map[string]string{"a": "5.6000 USD", "b": "3.0000 USD", "c": "unknown"} {
		if got := b.hourly(zone); got != want {
			t.Errorf("%s: got %s, want %s", zone, got, want)
		}
	}
}

func TestAPriceThatCannotBeTrueIsNeverPlannedOn(t *testing.T) {
	b := newBench(t, nil, prices.Options{})
	od := offer("od", "p3", fleet.OnDemand, 3)
	for name, c := range map[string]struct {
		before, price float64
		want          string
	}{
		"free":              {0, 0, "unknown"},
		"negative":          {0, -1, "unknown"},
		"cheap":             {0, 0.151, "0.1510 USD"},
		"too cheap":         {0, 0.149, "unknown"},
		"too dear":          {0, 61, "unknown"},
		"moved":             {0.5, 5, "5.0000 USD"},
		"moved beyond":      {0.5, 10.5, "unknown"},
		"fell beyond":       {10, 0.4, "unknown"},
		"back to the known": {0.5, 0.5, "0.5000 USD"},
	} {
		zone := strings.ReplaceAll(name, " ", "-")
		b.shop.offers = []fleet.Offer{od, offer(zone, "p3", fleet.Spot, c.before)}
		b.tick()
		b.shop.offers[1].Price.Amount = fleet.Dollars(c.price)
		said := b.tick()
		if got := b.hourly(zone); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
		if b.hourly("od") != "3.0000 USD" {
			t.Errorf("%s: on demand is %s", name, b.hourly("od"))
		}
		if c.before > 0 && c.want == "unknown" && !strings.Contains(fmt.Sprint(said), "cannot be trusted") {
			t.Errorf("%s: said %q, want it flagged", name, said)
		}
	}
}

func TestACloudThatDoesNotAnswerKeepsItsOffersAndTheirAge(t *testing.T) {
	b := newBench(t, nil, prices.Options{})
	b.shop.offers = []fleet.Offer{offer("a", "p3", fleet.OnDemand, 3)}
	b.tick()
	b.shop.offers, b.shop.err = nil, provider.ErrThrottled
	for range 10 {
		if said := b.tick(); len(said) != 0 {
			t.Errorf("said %q while the cloud does not answer", said)
		}
	}
	book, _, err := prices.Read(t.Context(), b.bucket)
	if err != nil {
		t.Fatal(err)
	}
	age, known := book.Age("fake", "main", b.now)
	if !known || age != 10*time.Minute || book.Failed["fake/main"] != "throttled" || len(b.market().Offers) != 1 || !b.market().AsOf.Equal(start.Add(time.Minute)) {
		t.Errorf("age %v %v, market of %v with %d offers; want 10 min and one offer", age, known, b.market().AsOf, len(b.market().Offers))
	}
}

func TestEachFactCountsOnceInItsPool(t *testing.T) {
	b := newBench(t, nil, prices.Options{})
	o := offer("a", "p3", fleet.Spot, 1)
	other := offer("b", "p3", fleet.Spot, 1)
	b.shop.offers = []fleet.Offer{o, other, offer("c", "p3", fleet.OnDemand, 3)}
	refused := []events.Refused{{Pool: other.Pool(), Why: "no_capacity"}, {Pool: o.Pool(), Why: "quota"}}
	launched := events.InstanceLaunched{Machine: "m1", ID: "i-1", Offer: o, At: b.now, Refused: refused}
	b.hear(launched)
	b.again() // the host crashed before it acked
	launched.Refused = nil
	b.hear(launched) // said again
	b.now = b.now.Add(20 * time.Hour)
	b.tick()
	if got := *b.market().Pools[o.Pool()]; got.Launches != 1 || got.Hours < 20 || got.Hours > 20.1 || got.Interruptions != 0 {
		t.Errorf("while it runs: %+v, want one launch and 20 hours", got)
	}
	ended := events.InstanceEnded{Machine: "m1", ID: "i-1", At: start.Add(20 * time.Hour), Why: "gone"}
	b.hear(events.InstanceInterrupted{Cloud: "fake", Account: "main", ID: "i-1"}, ended, ended)
	b.hear(launched, events.PlanFailed{Refused: refused[:1]})
	b.now = b.now.Add(time.Hour)
	b.tick()
	m := b.market()
	if got := *m.Pools[o.Pool()]; got.Hours != 20 || got.Interruptions != 1 || got.Refusals != 0 || got.Launches != 1 {
		t.Errorf("got %+v, want 20 hours, one interruption and one launch", got)
	}
	if got := *m.Pools[other.Pool()]; got.Hours != 0 || got.Interruptions != 0 || got.Refusals != 2 || got.Launches != 0 {
		t.Errorf("refused pool: got %+v, want two refusals", got)
	}
	for _, of := range m.Offers {
		if h, ok := of.Hazard.Get(); ok != (of.Zone == "a") || ok && h != 0.05 {
			t.Errorf("%s: hazard %v %v, want 0.05 for the pool with 20 hours alone", of, h, ok)
		}
	}
}

func TestASpotPoolIsKnownByItsAgeItsLevelAndItsUsualPrice(t *testing.T) {
	b := newBench(t, nil, prices.Options{})
	show := func(stock int, usd float64) fleet.PoolPast {
		o := offer("a", "p3", fleet.Spot, usd)
		o.Stock = fleet.Known(stock)
		b.shop.offers = []fleet.Offer{o, offer("c", "p3", fleet.OnDemand, 3)}
		b.tick()
		return *b.market().Pools[o.Pool()]
	}
	var p fleet.PoolPast
	for range 120 {
		p = show(3, 1)
	}
	if age := b.now.Sub(p.Since); !p.Up || age < 118*time.Minute || age > 121*time.Minute {
		t.Errorf("up for two hours: got %v since %s, that is %s", p.Up, p.Since, age)
	}
	if p.Good != p.Seen || p.Seen < 1.8 || p.Seen > 2 || p.Ends != 0 || p.Due <= 0 || p.Usual != 1 {
		t.Errorf("up for two hours: got %+v, want all that was seen good, nothing ended, something due, 1 USD", p)
	}
	due := p.Due
	p = show(0, 1)
	if p.Up || p.Ends != 1 || p.Due < due || b.now.Sub(p.Since) > time.Minute {
		t.Errorf("gone: got %+v", p)
	}
	for range 60 {
		p = show(0, 2)
	}
	if age := b.now.Sub(p.Since); p.Up || age < 60*time.Minute || age > 62*time.Minute || p.Ends > 1 || p.Usual <= 1 || p.Usual > 1.02 {
		t.Errorf("gone for an hour: got %+v, age %s; want a usual price a little above 1", p, age)
	}
	if level := p.Good / p.Seen; level < 0.6 || level > 0.7 {
		t.Errorf("level %.2f, want two hours of three", level)
	}
	if _, ok := b.market().Pools[offer("c", "p3", fleet.OnDemand, 3).Pool()]; ok {
		t.Error("on-demand has a past")
	}
}

func TestWhatACloudDoesNotTellIsTakenFromPurchasesRefusalsAndInterruptions(t *testing.T) {
	b := newBench(t, nil, prices.Options{})
	o := offer("a", "p3", fleet.Spot, 1)
	b.shop.offers = []fleet.Offer{o}
	b.tick()
	past := func() fleet.PoolPast {
		b.tick()
		if p := b.market().Pools[o.Pool()]; p != nil {
			return *p
		}
		return fleet.PoolPast{}
	}
	if p := past(); !p.At.IsZero() {
		t.Errorf("nothing was tried: got %+v, want nothing known", p)
	}
	b.hear(events.PlanFailed{Refused: []events.Refused{{Pool: o.Pool(), Why: "no_capacity"}}})
	if p := past(); p.Up || p.At.IsZero() {
		t.Errorf("refused: got %+v", p)
	}
	b.now = b.now.Add(20 * time.Minute)
	b.hear(events.InstanceLaunched{Machine: "m1", ID: "i-1", Offer: o, At: b.now})
	for range 30 {
		b.tick()
	}
	if p := past(); !p.Up || b.now.Sub(p.Since) < 30*time.Minute || p.Seen < 0.5 {
		t.Errorf("a machine lives there: got %+v", p)
	}
	b.hear(events.InstanceInterrupted{Cloud: "fake", Account: "main", ID: "i-1"})
	if p := past(); p.Up || p.Ends != 1 {
		t.Errorf("interrupted: got %+v", p)
	}
}

func TestAFactThatWasNotPublishedIsSaidAgainUnderItsID(t *testing.T) {
	b := newBench(t, nil, prices.Options{})
	b.shop.offers = []fleet.Offer{offer("a", "p3", fleet.OnDemand, 3)}
	b.now = b.now.Add(time.Minute)
	first := b.hear(events.ClockTicked{What: "tick"})
	again := b.again()
	if len(first) != 2 || len(again) != 2 || first[0].ID != again[0].ID || first[1].ID != again[1].ID {
		t.Errorf("said %v, then %v; want the same two events", first, again)
	}
	if other := b.hear(events.ClockTicked{What: "wake"}); len(other) != 0 {
		t.Errorf("a fleet's own wake-up says %v", other)
	}
}

func TestARecordedOrDrawnMarketIsToldAsItChanges(t *testing.T) {
	now := start
	c, err := fake.Open(fake.Config{Now: func() time.Time { return now }, Traces: market.Model(3, 3, 195*time.Second, 200), Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, c, prices.Options{})
	changes := 0
	for range 200 {
		changes += len(b.tick())
		now = b.now
	}
	if changes < 5 || changes > 190 {
		t.Errorf("%d of 200 ticks told a change, want some and not all", changes)
	}
	if got := len(b.market().Offers); got != 6 {
		t.Errorf("%d offers, want 6", got)
	}
}

func TestQuotesThatCannotBeTrueAreToldWithTheReason(t *testing.T) {
	priced := func(zone string, m fleet.Market, usd float64, gpus int) fleet.Offer {
		o := offer(zone, "p"+fmt.Sprint(gpus), m, usd)
		o.GPUs = gpus
		return o
	}
	for name, c := range map[string]struct {
		offers []fleet.Offer
		why    string // of the last; "": it is believed
	}{
		"free":                            {[]fleet.Offer{priced("a", fleet.OnDemand, 0, 1)}, "no price"},
		"a sentinel":                      {[]fleet.Offer{priced("a", fleet.OnDemand, 700, 1)}, "not plausible"},
		"a cent for eight":                {[]fleet.Offer{priced("a", fleet.OnDemand, 0.01, 8)}, "not plausible"},
		"spot at on demand":               {[]fleet.Offer{priced("a", fleet.OnDemand, 3, 1), priced("a", fleet.Spot, 3, 1)}, ""},
		"spot above by rounding":          {[]fleet.Offer{priced("a", fleet.OnDemand, 27.43298, 8), priced("a", fleet.Spot, 27.433, 8)}, ""},
		"spot above on demand":            {[]fleet.Offer{priced("a", fleet.OnDemand, 3, 1), priced("a", fleet.Spot, 3.5, 1)}, "above on demand"},
		"spot above another zone's":       {[]fleet.Offer{priced("b", fleet.OnDemand, 3, 1), priced("a", fleet.Spot, 3.5, 1)}, ""},
		"a machine of eight at its price": {[]fleet.Offer{priced("a", fleet.OnDemand, 55.04, 8)}, ""},
	} {
		last := c.offers[len(c.offers)-1].Pool()
		judged, why := prices.Judge(fleet.Book{}, c.offers, start)
		_, believed := judged[len(judged)-1].PerHour()
		if got := why[last]; (c.why == "") != believed || !strings.Contains(got, c.why) || c.why == "" && got != "" {
			t.Errorf("%s: believed %v, %q; want %q", name, believed, got, c.why)
		}
	}
	var copied []fleet.Offer
	for i := range 12 {
		zone := fmt.Sprint("z", i)
		copied = append(copied, priced(zone, fleet.OnDemand, 3, 1), priced(zone, fleet.Spot, 3, 1))
	}
	copied[1].Price.Amount = fleet.Dollars(1)
	judged, why := prices.Judge(fleet.Book{}, copied, start)
	if _, ok := judged[1].PerHour(); ok || !strings.Contains(why[judged[1].Pool()], "11 of 12") {
		t.Errorf("a column that was copied is believed: %v", why)
	}
}

func TestWhatIsPaidForATermIsShownAndNeverPlannedOn(t *testing.T) {
	b := newBench(t, nil, prices.Options{})
	held := offer("a", "p3", fleet.Reserved, 1)
	held.Term = 8760 * time.Hour
	b.shop.offers = []fleet.Offer{offer("a", "p3", fleet.OnDemand, 3), held}
	b.tick()
	var m fleet.Markets
	v, _, err := b.bucket.Get(context.Background(), fleet.MarketKey)
	if err != nil || fleet.Unpack(v, &m) != nil || len(m.Offers) != 1 || m.Offers[0].Market != fleet.OnDemand {
		t.Errorf("the market is %+v (%v), want on demand alone", m.Offers, err)
	}
}

func TestMeasuredSpeedMakesASlowPoolDearPerUsefulHour(t *testing.T) {
	b := newBench(t, nil, prices.Options{})
	slow, fast, new, other := offer("a", "p3", fleet.Spot, 1), offer("b", "p3", fleet.Spot, 1), offer("c", "p3", fleet.Spot, 1), offer("d", "p4", fleet.Spot, 1)
	b.shop.offers = []fleet.Offer{slow, fast, new, other}
	for i, o := range []fleet.Offer{slow, fast, slow, fast} {
		name := fmt.Sprint("m", i)
		ratio := map[string]float64{"a": 0.6, "b": 1.0}[o.Zone]
		proof := events.InstanceVerified{Machine: name, Nonce: "n", Ratio: ratio}
		b.hear(events.InstanceLaunched{Machine: name, ID: name, Offer: o, At: b.now}, proof, proof) // a verdict is said again
		b.hear(events.InstanceRejected{Machine: name, Nonce: "n2", Ratio: ratio})
		b.hear(events.InstanceVerified{Machine: name, Nonce: "n3"}) // nothing was rated
	}
	b.tick()
	for _, o := range b.market().Offers {
		got, known := o.Speed.Get()
		want := map[string]float64{"a": 4.0 / 6, "b": 5.6 / 6, "c": 0.8}[o.Zone] // 2 of the type's mean, 4 of their own
		if o.Zone == "d" {
			if known {
				t.Errorf("a type that nobody measured has a speed of %v", got)
			}
			continue
		}
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("zone %s: got a speed of %v, want %v", o.Zone, got, want)
		}
	}
}
