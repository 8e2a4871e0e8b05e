// Package lambdalabs is Lambda's on-demand cloud: its own machines, by the hour, at one price in every region.
//
// An offer is a type in a region that has capacity now; how many machines that is, the cloud does not tell. A type that is
// sold out has no region and so no offer. There is no spot. Reserved capacity is sold by contract and not in the API: its
// price belongs in the book of prices. Types without GPUs are left out.
//
// The cloud knows no tokens. Every machine carries our labels as tags from its first moment (tags cannot be added later);
// Launch looks for the label before it buys, and callers list twice after a lost answer. The listing does not tell when
// billing began, so a tag of ours does. A launch is never tried to learn whether there is capacity: launches are rationed,
// and the list of types says it. The answer to a launch is an id and nothing more, and nothing is asked after it: a
// listing that is throttled right after a launch loses no machine.
//
// There is no notice. A machine that was taken back is listed as preempted; whether it bills until it is ended is
// unverified, so it counts as stopped and is ended. The cloud has no stop: what becomes of a machine that switches itself off,
// and whether it bills until it is ended through the API, is unverified, and taken to be so. Nothing outlives a machine: its
// disk is its own, and shared file systems are not used.
//
// Sources: the vendor's API description 1.10.0. What it leaves open is marked "unverified".
package lambdalabs

import (
	"cmp"
	"context"
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
const Cloud = "lambdalabs"

// Settings are one account. Key is needed; to launch, SSHKey and Boot too.
type Settings struct {
	Account string
	URL     string // "https://cloud.lambda.ai"
	Key     string
	SSHKey  string // name of a key that is stored at the account: the cloud takes no launch without one
	Boot    provider.Boot
	Pace    Pace
	Client  *http.Client
	Now     func() time.Time
}

// Lambda is one account. It implements provider.Provider.
type Lambda struct {
	s      Settings
	wire   *wire
	buying provider.Turn // look and buy in turn: two buyers for one label would both find nothing
}

// New makes the adapter.
func New(s Settings) *Lambda {
	s.Account, s.URL = cmp.Or(s.Account, "main"), strings.TrimRight(cmp.Or(s.URL, "https://cloud.lambda.ai"), "/")
	if s.Client == nil {
		s.Client = &http.Client{Timeout: 60 * time.Second}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return &Lambda{s: s, wire: newWire(s), buying: provider.NewTurn()}
}

// Traits implements provider.Provider. The listing delay is not published (unverified).
func (l *Lambda) Traits() provider.Traits {
	return provider.Traits{Cloud: Cloud, Account: l.s.Account, ListingDelay: time.Minute}
}

// Offers implements provider.Provider.
func (l *Lambda) Offers(ctx context.Context) ([]fleet.Offer, error) {
	kinds, err := l.wire.kinds(ctx)
	if err != nil {
		return nil, fmt.Errorf("lambdalabs: offers: %w", err)
	}
	var out []fleet.Offer
	for _, name := range fleet.Sorted(kinds) { // the vendor's object has no order
		k := kinds[name]
		for _, r := range k.Regions {
			o, sold := l.offer(k.Type, r.Name)
			if sold && o.GPUs > 0 {
				out = append(out, o)
			}
		}
	}
	return out, nil
}

// offer is a type in a region; false where it has no name, no place, no price, or only a share of a GPU.
func (l *Lambda) offer(t kind, region string) (fleet.Offer, bool) {
	card, _ := provider.ReadCard(t.GPU, 0)
	o := fleet.Offer{Cloud: Cloud, Account: l.s.Account, Region: region, Type: t.Name, Market: fleet.OnDemand}
	if t.Specs.GPUs > 0 {
		o.GPU, o.GPUs, o.Form, o.Memory = card.Model, t.Specs.GPUs, card.Form, card.Memory
	}
	if t.Cents > 0 {
		o.Price = fleet.Price{Amount: t.price(), Per: fleet.PerInstanceHour, Includes: "its disk"}
		o.Hourly = fleet.Known(o.Price.Amount)
	}
	return o, t.Name != "" && region != "" && t.Cents > 0 && !card.Slice
}

// Launch implements provider.Provider.
func (l *Lambda) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	m, err := l.launch(ctx, want)
	if err != nil {
		return provider.Machine{}, fmt.Errorf("lambdalabs: launch %s: %w", want.Offer, err)
	}
	return m, nil
}

func (l *Lambda) launch(ctx context.Context, want provider.Request) (none provider.Machine, err error) {
	o := want.Offer
	switch {
	case o.Market != fleet.OnDemand || o.Term > 0:
		return none, fmt.Errorf("%w: only on-demand machines are sold", provider.ErrInvalid)
	case l.s.SSHKey == "":
		return none, fmt.Errorf("%w: no SSH key is configured", provider.ErrRefusedHere)
	}
	p, err := l.purchase(want)
	if err != nil {
		return none, err
	}
	done, err := l.buying.Take(ctx)
	if err != nil {
		return none, err
	}
	defer done()
	kinds, err := l.wire.kinds(ctx)
	if err != nil {
		return none, fmt.Errorf("look what is sold: %w", err)
	}
	k, known := kinds[o.Type]
	if !known {
		return none, fmt.Errorf("%w: there is no such type", provider.ErrInvalid)
	}
	all, err := l.list(ctx)
	if err != nil {
		return none, fmt.Errorf("look for its label: %w", err)
	}
	if i := slices.IndexFunc(all, func(m provider.Machine) bool { return m.Labels == want.Labels }); i >= 0 {
		return all[i], nil
	}
	sold, ok := l.offer(k.Type, o.Region)
	switch most := o.Price.Amount.Amount.Mul(rise); {
	case !ok || !k.in(o.Region):
		return none, fmt.Errorf("%w: sold out in %s", provider.ErrNoCapacity, o.Region)
	case most.Sign() > 0 && sold.Price.Amount.Amount.GreaterThan(most):
		return none, fmt.Errorf("%w: none for the planned price", provider.ErrNoCapacity)
	}
	id, err := l.wire.launch(ctx, p)
	if err != nil {
		return none, err
	}
	return provider.Machine{ID: id, Labels: want.Labels, State: provider.Pending, Offer: sold, Since: p.since()}, nil
}

// rise is how much more than planned a machine may cost: prices may change between the plan and the purchase.
var rise = decimal.RequireFromString("1.05")

// The vendor's limits on a launch.
const (
	mostName     = 64
	mostTag      = 128
	mostUserData = 1 << 20
)

// tagSince holds when a machine was bought, in seconds since 1970: the listing does not tell.
const tagSince = "lowtide-since"

// purchase is the body of a launch.
func (l *Lambda) purchase(want provider.Request) (purchase, error) {
	script, err := l.s.Boot.Script(want.UserData, "")
	if err != nil {
		return purchase{}, err
	}
	if len(script) > mostUserData {
		return purchase{}, fmt.Errorf("%w: user-data of %d bytes, the cloud takes %d", provider.ErrInvalid, len(script), mostUserData)
	}
	p := purchase{
		Region: want.Offer.Region, Type: want.Offer.Type, SSHKeys: []string{l.s.SSHKey},
		Name: want.Name[:min(len(want.Name), mostName)], UserData: script,
	}
	tags := want.Labels.Tags()
	tags[tagSince] = strconv.FormatInt(l.s.Now().Unix(), 10)
	for _, k := range fleet.Sorted(tags) {
		if len(tags[k]) > mostTag {
			return purchase{}, fmt.Errorf("%w: %s of %d characters, the cloud keeps %d", provider.ErrInvalid, k, len(tags[k]), mostTag)
		}
		p.Tags = append(p.Tags, tag{k, tags[k]})
	}
	return p, nil
}

// List implements provider.Provider. A machine that has ended is not listed.
func (l *Lambda) List(ctx context.Context) ([]provider.Machine, error) {
	all, err := l.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("lambdalabs: list: %w", err)
	}
	return all, nil
}

func (l *Lambda) list(ctx context.Context) ([]provider.Machine, error) {
	rows, err := l.wire.instances(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]provider.Machine, 0, len(rows))
	for _, r := range rows {
		if r.Status != "terminated" {
			out = append(out, l.machine(r))
		}
	}
	return out, nil
}

func (l *Lambda) machine(r row) provider.Machine {
	tags := r.Tags.byKey()
	m := provider.Machine{ID: r.ID, Labels: provider.FromTags(tags), Since: moment(tags[tagSince])}
	m.Offer, _ = l.offer(r.Type, r.Region.Name)
	m.State, m.Why = r.state()
	return m
}

// moment reads what tagSince holds; zero for whatever else.
func moment(seconds string) time.Time {
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	return time.Unix(n, 0).UTC()
}

// End implements provider.Provider: the machine is terminated with its disk.
func (l *Lambda) End(ctx context.Context, id string) error {
	if err := l.wire.terminate(ctx, id); err != nil {
		return fmt.Errorf("lambdalabs: end %s: %w", id, err)
	}
	return nil
}
