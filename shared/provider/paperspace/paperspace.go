// Package paperspace is Paperspace's machines: on-demand machines with GPUs, bought by name.
//
// The API has no price list. An offer's price is what a machine of its type costs this account, once one was seen; before,
// it is of a small dated table (Rates), which is shown with its age. A type with neither is no offer. Which types there
// are, the operating-system templates tell, and whether one is to be had in a region, one question for each pair: there is
// stock or none, a number is not told. There is no spot; reserved capacity is by contract.
//
// The cloud knows no tokens and no tags. A machine's name is our label from its first moment; Launch looks for it before it
// buys, and callers list twice after a lost answer. What a machine runs at its start is a startup script of the account,
// which has the same name and goes after the machine: it holds the agent's credential.
//
// A lack of capacity is said in three ways: in a refusal's text, as an event's error right after the purchase, and, later,
// by a machine that is off and never was on. The first two are ErrNoCapacity here, and what was made is deleted; the third
// is listed as stopped. A machine that is off bills its disk, and so does one that switched itself off: it is ended.
//
// There is no notice. Unverified: how long a name may be, the units of storage rates, how long a list may lag.
//
// Sources: the vendor's OpenAPI description v1; prices of the table from skypilot-org/skypilot-catalog, series v6.
package paperspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// Cloud is this cloud's name.
const Cloud = "paperspace"

// Settings are one account. Key is needed; to launch, Templates and Boot too.
type Settings struct {
	Account   string
	URL       string // "https://api.paperspace.com/v1"
	Key       string // a team's
	Regions   []string
	Templates map[string]string // machine type to operating-system template; the type "" is every other
	Disk      int               // GB: 50, 100, 250, 500, 1000, 2000, …; 100 if 0
	PerSecond float64           // requests; 0: any number
	Boot      provider.Boot
	Client    *http.Client
	Now       func() time.Time
}

// Regions are those of the vendor.
func Regions() []string { return []string{"ny2", "ca1", "ams1"} }

// Disks are the sizes that are sold, GB.
func Disks() []int { return []int{50, 100, 250, 500, 1000, 2000, 4000, 8000, 12000, 16000} }

// Paperspace is one account. It implements provider.Provider.
type Paperspace struct {
	s      Settings
	wire   *wire
	buying provider.Turn // look and buy in turn: two buyers for one label would both find nothing

	mu    sync.Mutex
	paid  map[string]decimal.Decimal // by type: what this account's machines cost an hour
	looks map[string]looked          // by region and type
	names map[string]string          // machine id to name: scripts are found by it when the machine is gone
}

// New makes the adapter.
func New(s Settings) *Paperspace {
	s.Account, s.URL = cmp.Or(s.Account, "main"), strings.TrimRight(cmp.Or(s.URL, "https://api.paperspace.com/v1"), "/")
	s.Disk = cmp.Or(s.Disk, 100)
	if len(s.Regions) == 0 {
		s.Regions = Regions()
	}
	if s.Client == nil {
		s.Client = &http.Client{Timeout: 60 * time.Second}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return &Paperspace{s: s, wire: newWire(s), buying: provider.NewTurn(), paid: map[string]decimal.Decimal{}, looks: map[string]looked{}, names: map[string]string{}}
}

// Traits implements provider.Provider. The listing delay is not published (unverified).
func (p *Paperspace) Traits() provider.Traits {
	return provider.Traits{Cloud: Cloud, Account: p.s.Account, ListingDelay: time.Minute}
}

// Offers implements provider.Provider. What is not to be had now is listed with a stock of 0.
func (p *Paperspace) Offers(ctx context.Context) ([]fleet.Offer, error) {
	types, err := p.wire.types(ctx)
	if err != nil {
		return nil, fmt.Errorf("paperspace: offers: %w", err)
	}
	var out []fleet.Offer
	for _, name := range types {
		for _, region := range p.s.Regions {
			o := p.offer(name, region)
			if o.GPU == "" || o.Price.Amount.Amount.Sign() <= 0 {
				continue
			}
			sold, err := p.stock(ctx, name, region)
			if err != nil {
				return nil, fmt.Errorf("paperspace: offers of %s in %s: %w", name, region, err)
			}
			if !sold {
				o.Stock = fleet.Known(0)
			}
			out = append(out, o)
		}
	}
	return out, nil
}

// keepStock is how long it is not asked again whether a type is to be had: that is a call for each type and region. A launch
// asks anew.
const keepStock = 5 * time.Minute

// looked is an answer, and when it came.
type looked struct {
	at   time.Time
	sold bool
}

func (p *Paperspace) stock(ctx context.Context, name, region string) (bool, error) {
	key, now := region+"/"+name, p.s.Now()
	p.mu.Lock()
	l, ok := p.looks[key]
	p.mu.Unlock()
	if ok && now.Sub(l.at) < keepStock {
		return l.sold, nil
	}
	sold, err := p.wire.available(ctx, name, region)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looks[key] = looked{now, sold}
	return sold, nil
}

// offer is a type in a region, at what it is known to cost.
func (p *Paperspace) offer(name, region string) fleet.Offer {
	o := fleet.Offer{Cloud: Cloud, Account: p.s.Account, Region: region, Type: name, Market: fleet.OnDemand}
	card, count := kind(name)
	if card.Model != "" {
		o.GPU, o.Form, o.Memory, o.GPUs = card.Model, card.Form, card.Memory, count
	}
	p.mu.Lock()
	paid, known := p.paid[name]
	p.mu.Unlock()
	switch usd, listed := rates[name]; {
	case known:
		o.Price = hour(paid, "as this account is billed; disk apart")
	case listed:
		o.Price, o.Quoted = hour(decimal.RequireFromString(usd), "of a table, not of the API; disk apart"), ratesAsOf
	}
	if o.Price.Amount.Amount.Sign() > 0 {
		o.Hourly = fleet.Known(o.Price.Amount)
	}
	return o
}

func hour(usd decimal.Decimal, includes string) fleet.Price {
	return fleet.Price{Amount: fleet.Money{Amount: usd, Currency: fleet.USD}, Per: fleet.PerInstanceHour, Includes: includes}
}

// Launch implements provider.Provider.
func (p *Paperspace) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	m, err := p.launch(ctx, want)
	if err != nil {
		return provider.Machine{}, fmt.Errorf("paperspace: launch %s: %w", want.Offer, err)
	}
	return m, nil
}

func (p *Paperspace) launch(ctx context.Context, want provider.Request) (none provider.Machine, err error) {
	o := want.Offer
	template := cmp.Or(p.s.Templates[o.Type], p.s.Templates[""])
	switch {
	case o.Market != fleet.OnDemand || o.Term > 0:
		return none, fmt.Errorf("%w: only on-demand machines are sold", provider.ErrInvalid)
	case !slices.Contains(p.s.Regions, o.Region):
		return none, fmt.Errorf("%w: region %q is not configured", provider.ErrInvalid, o.Region)
	case template == "":
		return none, fmt.Errorf("%w: no template is configured for %s", provider.ErrRefusedHere, o.Type)
	}
	text, err := p.s.Boot.Script(want.UserData, bootPrelude)
	if err != nil {
		return none, err
	}
	done, err := p.buying.Take(ctx)
	if err != nil {
		return none, err
	}
	defer done()
	sold, err := p.wire.available(ctx, o.Type, o.Region)
	switch {
	case errors.Is(err, provider.ErrNotFound):
		return none, fmt.Errorf("%w: there is no such type", provider.ErrInvalid)
	case err != nil:
		return none, fmt.Errorf("look whether it is to be had: %w", err)
	}
	all, err := p.list(ctx)
	if err != nil {
		return none, fmt.Errorf("look for its label: %w", err)
	}
	if i := slices.IndexFunc(all, func(m provider.Machine) bool { return m.Labels == want.Labels }); i >= 0 {
		return all[i], nil
	}
	if !sold {
		return none, fmt.Errorf("%w: sold out in %s", provider.ErrNoCapacity, o.Region)
	}
	return p.buy(ctx, want, template, text)
}

// buy makes the startup script, if it is not there since an earlier try, and the machine. Of a refusal nothing is left.
func (p *Paperspace) buy(ctx context.Context, want provider.Request, template, text string) (none provider.Machine, err error) {
	name := want.Labels.Text()
	scripts, err := p.wire.scripts(ctx, name)
	if err != nil {
		return none, fmt.Errorf("look for its script: %w", err)
	}
	if len(scripts) == 0 {
		id, err := p.wire.write(ctx, name, text)
		if err != nil {
			return none, fmt.Errorf("write its script: %w", err)
		}
		scripts = []string{id}
	}
	made, err := p.wire.create(ctx, purchase{
		Name: name, Type: want.Offer.Type, Template: template, Disk: p.s.Disk, Region: want.Offer.Region, Address: "dynamic", Script: scripts[0], Start: true,
	})
	if err == nil {
		err = made.failure()
	}
	if err == nil {
		return p.machine(made.Machine), nil
	}
	if made.Machine.ID != "" { // it was made, and never will run
		if e := p.end(context.WithoutCancel(ctx), made.Machine.ID); e != nil {
			return none, fmt.Errorf("%w: refused, yet %s was made and could not be deleted: %w", provider.ErrUnknown, made.Machine.ID, e)
		}
	} else if !errors.Is(err, provider.ErrUnknown) {
		_ = p.unwrite(context.WithoutCancel(ctx), scripts) // a next try of this plan uses it, or its end deletes it
	}
	return none, err
}

// bootPrelude is what only the machine knows: its host name is its id (unverified).
const bootPrelude = `export LOWTIDE_ID="$(hostname)"
`

// List implements provider.Provider. A machine that was deleted is not listed.
func (p *Paperspace) List(ctx context.Context) ([]provider.Machine, error) {
	all, err := p.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("paperspace: list: %w", err)
	}
	return all, nil
}

func (p *Paperspace) list(ctx context.Context) ([]provider.Machine, error) {
	rows, err := p.wire.machines(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]provider.Machine, 0, len(rows))
	for _, r := range rows {
		if r.Deleted == "" {
			out = append(out, p.machine(r))
		}
	}
	return out, nil
}

// machine reads a row, and remembers what its type costs.
func (p *Paperspace) machine(r row) provider.Machine {
	p.mu.Lock()
	p.names[r.ID] = r.Name
	if r.Rate.Decimal.Sign() > 0 && r.Reservation == nil && r.State != "off" {
		p.paid[r.Type] = r.Rate.Decimal
	}
	p.mu.Unlock()
	o := p.offer(r.Type, regionOf(r.Region))
	if r.Rate.Decimal.Sign() > 0 {
		o.Price, o.Quoted = hour(r.Rate.Decimal, "as this account is billed; disk apart"), time.Time{}
		o.Hourly = fleet.Known(o.Price.Amount)
	}
	if o.GPU == "" && len(r.Accelerators) == 1 {
		a := r.Accelerators[0]
		card, _ := provider.ReadCard(a.Name, a.Memory/(1<<30))
		o.GPU, o.Form, o.Memory, o.GPUs = card.Model, card.Form, card.Memory, a.Count
	}
	if r.Reservation != nil {
		o.Market = fleet.Reserved
	}
	m := provider.Machine{ID: r.ID, Labels: provider.FromText(r.Name), Offer: o, Since: moment(r.Created)}
	m.State, m.Why = r.state()
	return m
}

// End implements provider.Provider: the machine is deleted with its disk and address, and before it its startup script.
func (p *Paperspace) End(ctx context.Context, id string) error {
	if err := p.end(ctx, id); err != nil {
		return fmt.Errorf("paperspace: end %s: %w", id, err)
	}
	return nil
}

// end asks for the machine's name before it deletes it: its script is found by it.
func (p *Paperspace) end(ctx context.Context, id string) error {
	p.mu.Lock()
	name := p.names[id]
	p.mu.Unlock()
	if name == "" {
		r, err := p.wire.machine(ctx, id)
		if err != nil {
			return err
		}
		name = r.Name
	}
	if provider.FromText(name) == (provider.Labels{}) {
		return p.wire.remove(ctx, id)
	}
	// The script first: a machine that is gone is not listed, and nobody would come back for what holds its credentials.
	scripts, err := p.wire.scripts(ctx, name)
	if err == nil {
		err = p.unwrite(ctx, scripts)
	}
	if gone := p.wire.remove(ctx, id); err == nil || gone != nil && !errors.Is(gone, provider.ErrNotFound) {
		return gone // the machine bills: it is ended whatever became of its script
	}
	return fmt.Errorf("its script: %w", err)
}

func (p *Paperspace) unwrite(ctx context.Context, scripts []string) error {
	for _, id := range scripts {
		if err := p.wire.unwrite(ctx, id); err != nil && !errors.Is(err, provider.ErrNotFound) {
			return err
		}
	}
	return nil
}
