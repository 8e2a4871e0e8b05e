// Package huawei is Huawei Cloud's ECS: on-demand and spot machines bought by token, subscriptions shown.
//
// It speaks the ECS and BSS APIs itself, signed with SDK-HMAC-SHA256. Flavours and their stock by zone are told by ECS,
// prices by BSS: what this account pays, in the currency that it names, yuan where it names none.
//
// No API tells the price of spot, and the vendor takes a limit for it that must lie between the market and the hourly
// price. So spot is offered only with a share of the hourly price from the settings, at that price, which is the limit
// that it is bought with: what is paid is less, or nothing is bought.
//
// Ascend 910B cards are no ECS flavour. They are rented by the month through ModelArts: their price is the user's book's,
// they are shown, and a launch is refused. Flavours of ECS with Ascend 310 cards are offered like others.
//
// A purchase is a job: its answer holds an id, and a lack of capacity is told by the job. Launch looks at it once; what
// fails later is listed as an error and ended. Machines carry our tags from their first moment and are deleted with their
// disk and address. After a machine was taken back by the vendor its disk and address may stay and bill: the vendor's pages
// disagree, no list of ours shows them, and nothing here deletes them.
//
// The vendor promises a notice of about five minutes, at the metadata service, which the agent asks. Of which zone its time
// is, the vendor does not say: the agent takes the earlier reading that is not over.
//
// Unverified: what a token answers that comes with other parameters; how a machine that is being taken back is listed.
//
// Sources: the vendor's API reference and SDK 3.1.219.
package huawei

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
const Cloud = "huawei"

// Settings are one account. Projects, KeyID and Secret are needed.
type Settings struct {
	Account   string
	Projects  map[string]string // region to project id; the regions to buy in
	KeyID     string
	Secret    string
	Token     string // of temporary credentials; "": none
	Endpoint  string // of all regions and services; "": the vendor's
	Billing   string // "https://bss.myhuaweicloud.com"; the international site has another
	SpotShare decimal.Decimal
	Images    map[string]string // region to image id; the region "" is every other
	Subnets   map[string]string // region to "vpc id/subnet id"
	Groups    map[string]string // region to security group id; the region "" is every other
	Disk      int               // GB of the system disk; 100
	Bandwidth int               // Mbit/s of a public address, paid by traffic; 0: no address
	PerSecond float64           // requests; 0: any number
	Boot      provider.Boot
	Client    *http.Client
	Now       func() time.Time
}

// Huawei is one account. It implements provider.Provider.
type Huawei struct {
	s    Settings
	wire *wire

	mu      sync.Mutex
	regions map[string]*region
	homes   provider.Homes
}

// New makes the adapter.
func New(s Settings) *Huawei {
	s.Account, s.Disk = cmp.Or(s.Account, "main"), cmp.Or(s.Disk, 100)
	s.Endpoint, s.Billing = strings.TrimRight(s.Endpoint, "/"), strings.TrimRight(cmp.Or(s.Billing, "https://bss.myhuaweicloud.com"), "/")
	if s.Client == nil {
		s.Client = &http.Client{Timeout: 30 * time.Second}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	h := &Huawei{s: s, wire: newWire(s), regions: map[string]*region{}}
	for name := range s.Projects {
		h.regions[name] = &region{name: name, prices: map[string]list{}}
	}
	return h
}

// notice is what ECS promises before it takes a spot machine.
const notice = 5 * time.Minute

// Traits implements provider.Provider. The listing delay is not published (unverified).
func (h *Huawei) Traits() provider.Traits {
	return provider.Traits{Cloud: Cloud, Account: h.s.Account, Tokens: true, ListingDelay: time.Minute, Notice: notice}
}

// Offers implements provider.Provider. A region that fails fails all: half a market is worse than yesterday's.
func (h *Huawei) Offers(ctx context.Context) ([]fleet.Offer, error) {
	return provider.Across(Cloud, "offers", fleet.Sorted(h.s.Projects), func(name string) ([]fleet.Offer, error) { return h.offers(ctx, h.regions[name]) })
}

// Launch implements provider.Provider.
func (h *Huawei) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	m, err := h.launch(ctx, want)
	if err != nil {
		return provider.Machine{}, fmt.Errorf("huawei: launch %s: %w", want.Offer, err)
	}
	return m, nil
}

func (h *Huawei) launch(ctx context.Context, want provider.Request) (none provider.Machine, err error) {
	p, err := h.purchase(want)
	if err != nil {
		return none, err
	}
	out, err := h.wire.create(ctx, want.Offer.Region, want.Token, p)
	if err != nil {
		return none, err
	}
	if len(out.IDs) != 1 || out.IDs[0] == "" {
		return none, fmt.Errorf("%w: an answer with %d machines", provider.ErrUnknown, len(out.IDs))
	}
	if err := h.wire.failure(ctx, want.Offer.Region, out.Job); err != nil {
		if e := h.end(context.WithoutCancel(ctx), out.IDs[0]); e != nil && !errors.Is(e, provider.ErrNotFound) {
			return none, fmt.Errorf("%w: its job failed, and what was made of %s could not be deleted: %w", provider.ErrUnknown, out.IDs[0], e)
		}
		return none, err
	}
	return h.readBack(ctx, out.IDs[0], want), nil
}

// purchase is one order, a function of plan, offer and settings alone.
func (h *Huawei) purchase(want provider.Request) (*order, error) {
	o := want.Offer
	image, group := cmp.Or(h.s.Images[o.Region], h.s.Images[""]), cmp.Or(h.s.Groups[o.Region], h.s.Groups[""])
	vpc, subnet, placed := strings.Cut(h.s.Subnets[o.Region], "/")
	switch {
	case strings.HasPrefix(o.Type, "modelarts.") || strings.HasPrefix(o.Type, "snt9"):
		return nil, fmt.Errorf("%w: Ascend 910B is rented through ModelArts, not through ECS", provider.ErrRefusedHere)
	case h.s.Projects[o.Region] == "":
		return nil, fmt.Errorf("%w: region %q is not configured", provider.ErrInvalid, o.Region)
	case o.Market != fleet.OnDemand && o.Market != fleet.Spot || o.Term > 0:
		return nil, fmt.Errorf("%w: %s capacity cannot be bought by the hour", provider.ErrInvalid, o.Market)
	case image == "":
		return nil, fmt.Errorf("%w: no image is configured for %s", provider.ErrRefusedHere, o.Region)
	case group == "":
		return nil, fmt.Errorf("%w: no security group is configured for %s", provider.ErrRefusedHere, o.Region)
	case !placed:
		return nil, fmt.Errorf("%w: no subnet is configured for %s", provider.ErrRefusedHere, o.Region)
	}
	script, err := h.s.Boot.Script(want.UserData, bootPrelude)
	if err != nil {
		return nil, err
	}
	if len(script) > 32<<10 {
		return nil, fmt.Errorf("%w: user-data of %d bytes, ECS takes 32768", provider.ErrInvalid, len(script))
	}
	s := order{
		Name: want.Name, Type: o.Type, Image: image, VPC: vpc, Zone: o.Zone, UserData: base64.StdEncoding.EncodeToString([]byte(script)), Count: 1,
		NICs: []nic{{subnet}}, Groups: []id{{group}}, Disk: disk{"SSD", h.s.Disk}, Extend: extend{Region: o.Region},
	}
	if o.Market == fleet.Spot {
		limit := o.Price.Amount.Amount
		if limit.Sign() <= 0 {
			return nil, fmt.Errorf("%w: spot without a price has no limit", provider.ErrInvalid)
		}
		s.Extend.Market, s.Extend.Limit, s.Extend.Policy = "spot", limit.String(), "immediate"
	}
	if h.s.Bandwidth > 0 {
		s.Address = &address{EIP: eip{Kind: "5_bgp", Bandwidth: bandwidth{h.s.Bandwidth, "PER", "traffic"}, Extend: eipExtend{"postPaid"}}, Delete: true}
	}
	tags := want.Tags()
	for _, k := range fleet.Sorted(tags) {
		s.Tags = append(s.Tags, tag{k, tags[k]})
	}
	return &s, nil
}

// bootPrelude is what only the machine knows, and where its own notices are, which the agent reads.
const bootPrelude = `export LOWTIDE_ID="$(curl -fsS http://169.254.169.254/openstack/latest/meta_data.json | sed -n 's/.*"uuid": *"\([^"]*\)".*/\1/p')"
export LOWTIDE_METADATA=http://169.254.169.254/openstack/latest/spot/instance-action
`

// readBack is the machine as ECS shows it. It is bought, whether it can be shown yet or not.
func (h *Huawei) readBack(ctx context.Context, id string, want provider.Request) provider.Machine {
	o := want.Offer
	m := provider.Machine{ID: id, State: provider.Pending, Offer: o, Since: h.s.Now().UTC()}
	m.Offer.Stock = fleet.Maybe[int]{}
	if found, err := h.wire.server(ctx, o.Region, id); err == nil {
		m = h.machine(o.Region, found)
		if m.Offer.Pool() == o.Pool() { // what was asked for is what is paid
			m.Offer.Price, m.Offer.Hourly = o.Price, o.Hourly
		}
	}
	m.Labels = want.Labels
	h.homes.Seen(id, o.Region)
	return m
}

// List implements provider.Provider: the machines of every configured region.
func (h *Huawei) List(ctx context.Context) ([]provider.Machine, error) {
	return provider.Across(Cloud, "list", fleet.Sorted(h.s.Projects), func(name string) (out []provider.Machine, err error) {
		all, err := h.wire.servers(ctx, name)
		for _, s := range all {
			if !slices.Contains(gone, s.Status) {
				out = append(out, h.machine(name, s))
			}
		}
		return out, err
	})
}

// machine reads a server and remembers its region.
func (h *Huawei) machine(region string, s server) provider.Machine {
	o := fleet.Offer{Cloud: Cloud, Account: h.s.Account, Region: region, Zone: s.Zone, Type: s.Flavor.ID, Market: s.market()}
	tags := s.tags()
	h.mu.Lock()
	h.homes.Seen(s.ID, region)
	o = h.regions[region].priced(o)
	if o.Market == fleet.Spot {
		o.Notice = notice
	}
	h.mu.Unlock()
	m := provider.Machine{ID: s.ID, Labels: provider.FromTags(tags), Offer: provider.Planned(o, tags), Since: moment(s.Created)}
	m.State, m.Why = s.state()
	return m
}

// End implements provider.Provider: the machine is deleted with its disk and address.
func (h *Huawei) End(ctx context.Context, id string) error {
	if err := h.end(ctx, id); err != nil {
		return fmt.Errorf("huawei: end %s: %w", id, err)
	}
	return nil
}

// end looks first: a deletion is a job, which takes any id.
func (h *Huawei) end(ctx context.Context, id string) error {
	return h.homes.Visit(id, fleet.Sorted(h.s.Projects), func(region string, _ bool) error {
		s, err := h.wire.server(ctx, region, id)
		switch {
		case err != nil:
			return err
		case slices.Contains(gone, s.Status), s.Task == "deleting":
			return nil
		}
		return h.wire.remove(ctx, region, id)
	})
}
