// Package tencent is Tencent Cloud CVM: hourly and spot machines bought by token, subscriptions shown.
//
// It speaks API 3.0 itself, signed with TC3-HMAC-SHA256. One call tells the price and the stock of every type in a
// region. Every machine carries our tags from its first moment. What an answer does not tell is not guessed: the
// currency of prices is the account's and comes from the settings, and a family that the table of GPUs lacks is shown
// without a model.
//
// A launch is read back: the answer to a purchase is but an id, and a machine may still fail to be made. Spot is bought
// once, for at most twice what it was offered at: the vendor wants a limit, and takes the going price below it. A
// machine that switches itself off goes on billing until lowtide ends it, or the time that was set for its end comes.
//
// The vendor's notice is a plain text in the machine, which the agent asks for. That it comes two minutes ahead is what
// is heard of it, and not the vendor's word (unverified).
//
// Unverified: what a token answers that comes with other parameters; how long a list may lag; that the set end comes; how
// a machine that was taken back is listed before it vanishes.
//
// Sources: the vendor's API 2017-03-12, its SDK models and printed examples.
package tencent

import (
	"cmp"
	"context"
	"encoding/base64"
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
const Cloud = "tencent"

// Settings are one account. Regions, ID, Key and Currency are needed.
type Settings struct {
	Account   string
	Regions   []string
	ID, Key   string            // SecretId and SecretKey
	Token     string            // of temporary credentials; "": they last
	Currency  fleet.Currency    // CNY on the China site, USD on the international one: no answer tells
	Endpoint  string            // of all regions; "": the vendor's
	Images    map[string]string // region to image; the region "" is every other
	Subnets   map[string]string // zone to "vpc-…/subnet-…"; a zone without one uses the default network
	Groups    []string          // security groups; none: the default
	Bandwidth int               // Mbit/s outwards of a public address, billed by traffic; 0: no public address
	Disk      int               // GB of the system disk; 0: the vendor's default
	Boot      provider.Boot
	Client    *http.Client
	Now       func() time.Time
}

// Tencent is one account. It implements provider.Provider.
type Tencent struct {
	s    Settings
	wire *wire

	mu     sync.Mutex
	quoted provider.Quotes // a listing tells no price
	homes  provider.Homes
}

// New makes the adapter.
func New(s Settings) *Tencent {
	s.Account = cmp.Or(s.Account, "main")
	if s.Client == nil {
		s.Client = &http.Client{Timeout: 30 * time.Second}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return &Tencent{s: s, wire: &wire{s: s, clock: provider.NewClock(s.Now)}}
}

// notice is what is heard of CVM before it takes a spot machine.
const notice = 2 * time.Minute

// Traits implements provider.Provider.
func (t *Tencent) Traits() provider.Traits {
	return provider.Traits{Cloud: Cloud, Account: t.s.Account, Tokens: true, ListingDelay: time.Minute, Notice: notice, HardEnd: true}
}

// Launch implements provider.Provider.
func (t *Tencent) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	m, err := t.launch(ctx, want)
	if err != nil {
		return provider.Machine{}, fmt.Errorf("tencent: launch %s: %w", want.Offer, err)
	}
	return m, nil
}

func (t *Tencent) launch(ctx context.Context, want provider.Request) (none provider.Machine, err error) {
	p, err := t.purchase(want)
	if err != nil {
		return none, err
	}
	var out struct {
		IDs []string `json:"InstanceIdSet"`
	}
	if err := t.wire.call(ctx, want.Offer.Region, buys, p, &out); err != nil {
		return none, err
	}
	if len(out.IDs) != 1 || out.IDs[0] == "" {
		return none, fmt.Errorf("%w: an answer with %d machines", provider.ErrUnknown, len(out.IDs))
	}
	return t.readBack(ctx, out.IDs[0], want)
}

// Try asks CVM whether Launch would be let through, without buying: parameters, limits, stock. Nil: it would.
func (t *Tencent) Try(ctx context.Context, want provider.Request) error {
	p, err := t.purchase(want)
	if err == nil {
		p.Dry = true
		var out struct {
			IDs []string `json:"InstanceIdSet"`
		}
		if err = t.wire.call(ctx, want.Offer.Region, buys, p, &out); err == nil && len(out.IDs) > 0 {
			err = fmt.Errorf("%w: it took a trial for more than one", provider.ErrUnknown)
		}
	}
	if err != nil {
		return fmt.Errorf("tencent: try %s: %w", want.Offer, err)
	}
	return nil
}

// readBack is the machine as the cloud shows it. It is bought, whether it can be shown yet or not.
func (t *Tencent) readBack(ctx context.Context, id string, want provider.Request) (provider.Machine, error) {
	i, err := t.instance(ctx, want.Offer.Region, id)
	if err != nil || i == nil {
		o := want.Offer
		o.Stock = fleet.Maybe[int]{}
		t.homes.Seen(id, o.Region)
		return provider.Machine{ID: id, Labels: want.Labels, State: provider.Pending, Offer: o, Since: t.s.Now().UTC()}, nil
	}
	if i.State == "LAUNCH_FAILED" {
		return provider.Machine{}, fmt.Errorf("%w: %s could not be made", provider.ErrNoCapacity, id)
	}
	m := t.machine(want.Offer.Region, *i)
	m.Labels = want.Labels
	if m.Offer.Pool() == want.Offer.Pool() { // a listing tells no price: what was asked for is what is paid
		m.Offer.Price, m.Offer.Hourly = want.Offer.Price, want.Offer.Hourly
	}
	return m, nil
}

// most is how far above its offer spot may go before it is not bought: spot costs a fifth of the list price at most, so
// that even this stays far under on demand.
var most = decimal.NewFromInt(2)

// purchase is one RunInstances, a function of plan, offer and settings alone.
func (t *Tencent) purchase(want provider.Request) (*run, error) {
	o := want.Offer
	image := cmp.Or(t.s.Images[o.Region], t.s.Images[""])
	switch {
	case !slices.Contains(t.s.Regions, o.Region):
		return nil, fmt.Errorf("%w: region %q is not configured", provider.ErrInvalid, o.Region)
	case charges[o.Market] == "" || o.Market == fleet.Reserved || o.Term > 0:
		return nil, fmt.Errorf("%w: %s capacity cannot be bought by the hour", provider.ErrInvalid, o.Market)
	case image == "":
		return nil, fmt.Errorf("%w: no image is configured for %s", provider.ErrRefusedHere, o.Region)
	}
	script, err := t.s.Boot.Script(want.UserData, bootPrelude)
	if err != nil {
		return nil, err
	}
	if len(script) > 16<<10 {
		return nil, fmt.Errorf("%w: user-data of %d bytes, CVM takes 16384", provider.ErrInvalid, len(script))
	}
	p := &run{
		Placement: placement{Zone: o.Zone}, Type: o.Type, Image: image, Charge: charges[o.Market], Count: 1, Name: short(want.Name),
		Token: want.Token, UserData: base64.StdEncoding.EncodeToString([]byte(script)), Groups: t.s.Groups,
		Tags: []tagged{{Kind: "instance", Tags: tags(want.Labels)}},
	}
	if o.Market == fleet.Spot {
		limit := o.Price.Amount.Amount.Mul(most).RoundUp(2)
		if limit.Sign() <= 0 {
			return nil, fmt.Errorf("%w: spot without a price has no limit", provider.ErrInvalid)
		}
		p.Options = &marketOptions{Kind: "spot", Spot: spotOptions{Most: limit.StringFixed(2), Kind: "one-time"}}
	}
	if !want.HardEnd.IsZero() {
		p.Timer = &timer{Action: "TerminateInstances", At: want.HardEnd.UTC().Format("2006-01-02T15:04:05Z")}
	}
	if vpc, subnet, ok := strings.Cut(t.s.Subnets[o.Zone], "/"); ok {
		p.Network = &network{VPC: vpc, Subnet: subnet}
	}
	if t.s.Bandwidth > 0 {
		p.Internet = &internet{Charge: "TRAFFIC_POSTPAID_BY_HOUR", Mbit: t.s.Bandwidth, Address: true}
	}
	if t.s.Disk > 0 {
		p.Disk = &disk{GB: t.s.Disk}
	}
	return p, nil
}

func tags(l provider.Labels) []tag {
	all := l.Tags()
	var out []tag
	for _, k := range fleet.Sorted(all) {
		out = append(out, tag{k, all[k]})
	}
	return out
}

// short is a name as CVM takes it, at most 60 bytes: it is for people's eyes, the tags count.
func short(name string) string { return name[:min(len(name), 60)] }

// bootPrelude is what only the machine knows, and where its own notices are, which the agent reads.
const bootPrelude = `export LOWTIDE_ID="$(curl -fsS http://metadata.tencentyun.com/latest/meta-data/instance-id)"
export LOWTIDE_METADATA=http://metadata.tencentyun.com/latest/meta-data/spot/termination-time
`

// List implements provider.Provider: the machines of every configured region. What has ended is not listed.
func (t *Tencent) List(ctx context.Context) ([]provider.Machine, error) {
	return provider.Across(Cloud, "list", t.s.Regions, func(region string) (out []provider.Machine, err error) {
		all, err := t.wire.instances(ctx, region)
		for _, i := range all {
			out = append(out, t.machine(region, i))
		}
		return out, err
	})
}

// instance asks for one machine; nil if there is none there.
func (t *Tencent) instance(ctx context.Context, region, id string) (*instance, error) {
	var out instances
	err := t.wire.call(ctx, region, "DescribeInstances", query{IDs: []string{id}}, &out)
	switch {
	case errors.Is(err, provider.ErrNotFound), err == nil && len(out.Set) == 0:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &out.Set[0], nil
}

// machine reads an instance and remembers its region.
func (t *Tencent) machine(region string, i instance) provider.Machine {
	o := fleet.Offer{
		Cloud: Cloud, Account: t.s.Account, Region: region, Zone: i.Placement.Zone, Type: i.Type, Market: market(i.Charge),
	}
	t.mu.Lock()
	t.homes.Seen(i.ID, region)
	o = t.quoted.Price(o)
	if o.Market == fleet.Spot {
		o.Notice = notice
	}
	t.mu.Unlock()
	m := provider.Machine{ID: i.ID, Labels: provider.FromTags(i.tags()), Offer: o, Since: i.since()}
	m.State, m.Why = i.state()
	if m.State == provider.Gone {
		m.Until = t.s.Now().UTC()
	}
	return m
}

// End implements provider.Provider. The system disk and the public address go with the machine.
func (t *Tencent) End(ctx context.Context, id string) error {
	if err := t.end(ctx, id); err != nil {
		return fmt.Errorf("tencent: end %s: %w", id, err)
	}
	return nil
}

// end looks first: an end that is under way may not be asked for again, and another region's machine is not found.
func (t *Tencent) end(ctx context.Context, id string) error {
	return t.homes.Visit(id, t.s.Regions, func(region string, _ bool) error {
		i, err := t.instance(ctx, region, id)
		switch {
		case err != nil:
			return err
		case i == nil:
			return provider.ErrNotFound
		}
		if s, _ := i.state(); s == provider.Ending || s == provider.Gone {
			return nil
		}
		err = t.wire.call(ctx, region, "TerminateInstances", query{IDs: []string{id}}, nil)
		if err != nil && !errors.Is(err, provider.ErrNotFound) {
			return err
		}
		return nil
	})
}
