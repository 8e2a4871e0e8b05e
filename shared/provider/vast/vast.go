// Package vast is the marketplace Vast.ai: strangers' machines, rented by the hour or by a bid.
//
// An offer here is a kind of machine in a country ("2x_RTX_4090_24GB" in DE), with the price of the cheapest that may be
// rented now and the number of them: single machines come and go within seconds, so Launch searches again and takes the
// cheapest that costs no more than was planned.
//
// A host, to lowtide, is one box (the market's machine_id): what failed its benchmark is not rented again.
//
// The market knows no tokens and gives no notice. Every rent carries our labels from its first moment; Launch looks for
// the label before it buys, and callers list twice after a lost answer. A bid that is too low is answered with an error
// and a stopped machine, whose disk bills: it is destroyed at once. A machine that was outbid is listed as stopped.
//
// Sources: the vendor's API description and its command line client. What they leave open is marked "unverified".
package vast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// Cloud is this cloud's name.
const Cloud = "vast"

// Settings are one account. Only Now, Disk and Client have useful zero values; provider/all fills the rest.
type Settings struct {
	Account  string
	URL      string // "https://console.vast.ai"
	Key      string // "": offers can be read, and nothing else
	Image    string // the container that runs; it needs sh, sha256sum, and curl or wget
	Disk     int    // GB a machine; 50
	Over     float64
	Boot     provider.Boot
	Pace     Pace
	Client   *http.Client
	Now      func() time.Time
	Reliable float64 // least reliability of a host, 0 to 1; 0: any
}

// Vast is one account. It implements provider.Provider.
type Vast struct {
	s      Settings
	wire   *wire
	buying provider.Turn       // search and buy in turn: two buyers of one machine are both told yes
	taken  map[int64]time.Time // asks that were just tried: the search shows them for a while; of whoever is buying
}

const takenFor = 2 * time.Minute

// New makes the adapter.
func New(s Settings) *Vast {
	s.Account, s.URL = cmp.Or(s.Account, "main"), strings.TrimRight(cmp.Or(s.URL, "https://console.vast.ai"), "/")
	s.Disk, s.Over = cmp.Or(s.Disk, 50), cmp.Or(s.Over, 1.1)
	if s.Client == nil {
		s.Client = &http.Client{Timeout: 30 * time.Second}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return &Vast{s: s, wire: newWire(s), buying: provider.NewTurn(), taken: map[int64]time.Time{}}
}

// Traits implements provider.Provider.
func (v *Vast) Traits() provider.Traits {
	return provider.Traits{Cloud: Cloud, Account: v.s.Account, ListingDelay: 30 * time.Second, Marketplace: true, OffEnds: true}
}

// Offers implements provider.Provider. Prices hold the disk of Settings.Disk; that of a bid is what would be bid.
func (v *Vast) Offers(ctx context.Context) ([]fleet.Offer, error) {
	var out []fleet.Offer
	for _, m := range []fleet.Market{fleet.OnDemand, fleet.Spot} {
		asks, err := v.wire.search(ctx, v.filter(m))
		if err != nil {
			return nil, fmt.Errorf("vast: offers: %w", err)
		}
		out = append(out, v.pools(asks, m)...)
		if m == fleet.OnDemand {
			out = append(out, v.pools(asks, fleet.Reserved)...)
		}
	}
	return out, nil
}

// filter asks for machines that can be rented now, of hosts that were looked at, for a day at least.
func (v *Vast) filter(m fleet.Market) query {
	q := query{
		"type": "on-demand", "order": [][]string{{"dph_total", "asc"}}, "limit": mostAsks, "allocated_storage": v.s.Disk,
		"verified": is("eq", true), "external": is("eq", false), "rentable": is("eq", true), "rented": is("eq", false),
		"duration": is("gte", 86400), "disk_space": is("gte", v.s.Disk),
	}
	if m == fleet.Spot {
		q["type"] = "bid"
	}
	if v.s.Reliable > 0 {
		q["reliability2"] = is("gte", v.s.Reliable)
	}
	return q
}

// pools are asks by kind and country, each at its cheapest.
func (v *Vast) pools(asks []ask, m fleet.Market) []fleet.Offer {
	best := map[string]*fleet.Offer{}
	var order []string
	for _, a := range asks {
		o, ok := v.offer(a, m)
		if !ok {
			continue
		}
		key := o.Region + "/" + o.Type
		b := best[key]
		if b == nil {
			best[key], order = &o, append(order, key)
			continue
		}
		n, least := b.Stock.Or(0)+1, b.CUDA
		if o.CUDA == "" || least != "" && fleet.Version(o.CUDA, least) < 0 {
			least = o.CUDA // any of them may be the one that is rented
		}
		if o.Price.Amount.Amount.LessThan(b.Price.Amount.Amount) {
			*b = o
		}
		b.Stock, b.CUDA = fleet.Known(n), least
	}
	out := make([]fleet.Offer, 0, len(order))
	for _, key := range order {
		out = append(out, *best[key])
	}
	return out
}

// offer is one ask on a market; false where it is not sold there, or is not what it seems.
func (v *Vast) offer(a ask, m fleet.Market) (fleet.Offer, bool) {
	price, ok := v.price(a, m)
	if !ok || a.GPUs <= 0 || a.GPU == "" {
		return fleet.Offer{}, false
	}
	card, _ := provider.ReadCard(a.GPU, a.RAM/1024)
	if card.Slice {
		return fleet.Offer{}, false
	}
	o := fleet.Offer{
		Cloud: Cloud, Account: v.s.Account, Region: country(a.Place), Type: kind(a.GPU, a.GPUs, card.Memory), Market: m,
		GPU: card.Model, GPUs: a.GPUs, Form: card.Form, Memory: card.Memory, CUDA: a.CUDA.String(), Marketplace: true, Stock: fleet.Known(1),
		Price: fleet.Price{Amount: usd(price), Per: fleet.PerInstanceHour, Includes: fmt.Sprintf("%d GB disk", v.s.Disk)},
	}
	o.Hourly = fleet.Known(o.Price.Amount)
	if a.Egress.Valid {
		o.Egress = fleet.Known(usd(a.Egress.Decimal))
	}
	if a.Storage.Valid {
		o.Disk = fleet.Known(usd(a.Storage.Decimal))
	}
	if m == fleet.Reserved {
		o.Term = time.Duration(int(a.Duration/month.Seconds())) * month
		o.Price.Includes += ", at the host's largest discount for paying ahead"
	}
	return o, true
}

const month = 730 * time.Hour

// price is what an ask costs an hour with the disk. A missing price means that it is not sold so.
func (v *Vast) price(a ask, m fleet.Market) (decimal.Decimal, bool) {
	disk := a.DiskHour.Decimal
	switch m {
	case fleet.Spot:
		return v.bid(a).Add(disk).Round(6), a.MinBid.Valid && a.MinBid.Decimal.Sign() > 0
	case fleet.Reserved:
		off := a.PrepaidOff
		if !off.Valid || off.Decimal.Sign() <= 0 || off.Decimal.GreaterThanOrEqual(decimal.NewFromInt(1)) || a.Duration < month.Seconds() {
			return decimal.Decimal{}, false
		}
		return a.Base.Decimal.Mul(decimal.NewFromInt(1).Sub(off.Decimal)).Add(disk).Round(6), a.Base.Decimal.Sign() > 0
	}
	return a.Total.Decimal.Round(6), a.Total.Decimal.Sign() > 0
}

// bid is what is bid for an ask: a little over the lowest, since whoever is outbid loses the machine.
func (v *Vast) bid(a ask) decimal.Decimal {
	return a.MinBid.Decimal.Mul(decimal.NewFromFloat(v.s.Over)).Round(6)
}

func usd(d decimal.Decimal) fleet.Money { return fleet.Money{Amount: d, Currency: fleet.USD} }

// kind names a machine type; split reads it back.
func kind(gpu string, n, memory int) string {
	return fmt.Sprintf("%dx_%s_%dGB", n, strings.ReplaceAll(gpu, " ", "_"), memory)
}

func split(kind string) (gpu string, n int, ok bool) {
	count, rest, ok := strings.Cut(kind, "x_")
	n, err := strconv.Atoi(count)
	i := strings.LastIndex(rest, "_")
	if !ok || err != nil || i < 0 {
		return "", 0, false
	}
	return strings.ReplaceAll(rest[:i], "_", " "), n, true
}

// country is the end of "City, CC"; "ZZ" is a place that the host does not tell.
func country(place string) string {
	i := strings.LastIndex(place, ",")
	cc := strings.ToUpper(strings.TrimSpace(place[i+1:]))
	if len(cc) != 2 {
		return "ZZ"
	}
	return cc
}

// Launch implements provider.Provider.
func (v *Vast) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	m, err := v.launch(ctx, want)
	if err != nil {
		return m, fmt.Errorf("vast: launch %s: %w", want.Offer, err)
	}
	return m, nil
}

func (v *Vast) launch(ctx context.Context, want provider.Request) (none provider.Machine, err error) {
	gpu, n, ok := split(want.Offer.Type)
	if !ok || want.Offer.Market == fleet.Reserved {
		return none, fmt.Errorf("%w: a type is written 2x_RTX_4090_24GB, on demand or spot", provider.ErrInvalid)
	}
	script, err := v.s.Boot.Script("", bootPrelude)
	if err != nil {
		return none, err
	}
	done, err := v.buying.Take(ctx)
	if err != nil {
		return none, err
	}
	defer done()
	all, err := v.list(ctx)
	if err != nil {
		return none, fmt.Errorf("look for its label: %w", err)
	}
	if i := slices.IndexFunc(all, func(m provider.Machine) bool { return m.Labels == want.Labels && m.State != provider.Gone }); i >= 0 {
		return all[i], nil
	}
	q := v.filter(want.Offer.Market)
	q["gpu_name"], q["num_gpus"] = is("eq", gpu), is("eq", n)
	if len(want.Avoid) > 0 {
		q["machine_id"] = is("notin", numbers(want.Avoid))
	}
	asks, err := v.wire.search(ctx, q)
	if err != nil {
		return none, fmt.Errorf("search: %w", err)
	}
	asks = slices.DeleteFunc(asks, func(a ask) bool { return slices.Contains(want.Avoid, host(a.Box)) })
	if len(asks) == 0 {
		if err := v.known(ctx, gpu); err != nil {
			return none, err
		}
	}
	return v.buy(ctx, want, asks, script)
}

// known tells a kind that is rented out from one that does not exist.
func (v *Vast) known(ctx context.Context, gpu string) error {
	if _, ok := provider.ReadCard(gpu, 0); ok {
		return fmt.Errorf("%w: none can be rented", provider.ErrNoCapacity)
	}
	return fmt.Errorf("%w: no such GPU as %q", provider.ErrInvalid, gpu)
}

// rise is how much more than planned a machine may cost: the market moves between the plan and the purchase.
var rise = decimal.RequireFromString("1.05")

// buy takes the cheapest ask that can be had; at most three are tried.
func (v *Vast) buy(ctx context.Context, want provider.Request, asks []ask, script string) (none provider.Machine, err error) {
	now := v.s.Now()
	most := want.Offer.Price.Amount.Amount.Mul(rise)
	err = fmt.Errorf("%w: none for the planned price", provider.ErrNoCapacity)
	tries := 0
	for _, a := range v.cheapest(asks, want.Offer) {
		price, _ := v.price(a, want.Offer.Market)
		if slices.Contains(want.Avoid, strconv.FormatInt(a.Box, 10)) {
			continue
		}
		if now.Sub(v.taken[a.ID]) < takenFor || most.Sign() > 0 && price.GreaterThan(most) {
			continue
		}
		if tries++; tries > 3 {
			break
		}
		c := create{
			Client: "me", Image: v.s.Image, Disk: v.s.Disk, Label: want.Labels.Text(), OnStart: script, RunType: "ssh",
			Env: environment(want.UserData), CancelUnavailable: true,
		}
		if want.Offer.Market == fleet.Spot {
			bid := v.bid(a)
			c.Price = &bid
		}
		var id int64
		id, err = v.wire.create(ctx, a.ID, c)
		if err == nil || errors.Is(err, provider.ErrNoCapacity) || errors.Is(err, provider.ErrUnknown) {
			v.taken[a.ID] = now
		}
		if err == nil {
			return v.readBack(ctx, id, want, a), nil
		}
		if !errors.Is(err, provider.ErrNoCapacity) {
			return none, err
		}
	}
	return none, err
}

// cheapest are the asks that are of the pool, the cheapest first.
func (v *Vast) cheapest(asks []ask, of fleet.Offer) []ask {
	out := slices.DeleteFunc(slices.Clone(asks), func(a ask) bool {
		o, ok := v.offer(a, of.Market)
		return !ok || o.Pool() != of.Pool()
	})
	slices.SortStableFunc(out, func(a, b ask) int {
		pa, _ := v.price(a, of.Market)
		pb, _ := v.price(b, of.Market)
		return cmp.Or(pa.Cmp(pb), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// readBack is the machine as the market shows it. It is bought, whether it can be shown yet or not.
func (v *Vast) readBack(ctx context.Context, id int64, want provider.Request, a ask) provider.Machine {
	row, err := v.wire.instance(ctx, id)
	if err == nil && row != nil {
		m := v.machine(*row)
		m.Labels = want.Labels // the label goes with the rent; a listing may be a moment behind
		return m
	}
	o, _ := v.offer(a, want.Offer.Market)
	o.Stock, o.Host = fleet.Maybe[int]{}, host(a.Box)
	return provider.Machine{ID: strconv.FormatInt(id, 10), Labels: want.Labels, State: provider.Pending, Offer: o, Since: v.s.Now().UTC()}
}

// List implements provider.Provider. A machine that has ended is not listed.
func (v *Vast) List(ctx context.Context) ([]provider.Machine, error) {
	all, err := v.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("vast: list: %w", err)
	}
	return all, nil
}

func (v *Vast) list(ctx context.Context) ([]provider.Machine, error) {
	rows, err := v.wire.instances(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]provider.Machine, 0, len(rows))
	for _, r := range rows {
		out = append(out, v.machine(r))
	}
	return out, nil
}

func (v *Vast) machine(r row) provider.Machine {
	card, _ := provider.ReadCard(r.GPU, r.RAM/1024)
	market := fleet.OnDemand
	if r.Bid {
		market = fleet.Spot
	}
	m := provider.Machine{
		ID: strconv.FormatInt(r.ID, 10), Labels: provider.FromText(r.Label), Since: moment(r.Start),
		Offer: fleet.Offer{
			Cloud: Cloud, Account: v.s.Account, Region: country(r.Place), Type: kind(r.GPU, r.GPUs, card.Memory), Market: market,
			GPU: card.Model, GPUs: r.GPUs, Form: card.Form, Memory: card.Memory, Marketplace: true, Host: host(r.Box),
		},
	}
	if r.Total.Valid && r.Total.Decimal.Sign() > 0 {
		m.Offer.Price = fleet.Price{Amount: usd(r.Total.Decimal), Per: fleet.PerInstanceHour, Includes: "its disk"}
		m.Offer.Hourly = fleet.Known(m.Offer.Price.Amount)
	}
	m.State, m.Why = r.state()
	return m
}

// numbers are the market's ids of machines; what is none of its ids is nothing to avoid.
func numbers(hosts []string) []int64 {
	out := []int64{}
	for _, h := range hosts {
		if n, err := strconv.ParseInt(h, 10, 64); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// host names a stranger's machine, so that a bad one is not rented again; "" where the market does not tell.
func host(box int64) string {
	if box == 0 {
		return ""
	}
	return strconv.FormatInt(box, 10)
}

func moment(epoch float64) time.Time {
	if epoch <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(epoch * 1e6)).UTC()
}

// End implements provider.Provider: the machine is destroyed with its disk.
func (v *Vast) End(ctx context.Context, id string) error {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return fmt.Errorf("vast: end %q: %w: ids are numbers", id, provider.ErrNotFound)
	}
	if err := v.wire.destroy(ctx, n); err != nil {
		return fmt.Errorf("vast: end %s: %w", id, err)
	}
	return nil
}

// environment turns KEY=value lines into the container's environment.
func environment(lines string) map[string]string {
	env := map[string]string{}
	for line := range strings.Lines(lines) {
		if k, val, ok := strings.Cut(strings.TrimRight(line, "\n"), "="); ok {
			env[k] = val
		}
	}
	return env
}

// bootPrelude is what only the container knows: its own id, and the key with which it may end itself (unverified).
const bootPrelude = `export LOWTIDE_ID="${CONTAINER_ID:-}"
export LOWTIDE_POWEROFF='["sh","-c","curl -fsS -X DELETE -H \"Authorization: Bearer $CONTAINER_API_KEY\" https://console.vast.ai/api/v0/instances/$CONTAINER_ID/"]'
`
