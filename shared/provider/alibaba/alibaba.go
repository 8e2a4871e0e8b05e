// Package alibaba is Alibaba Cloud's ECS: on-demand and spot machines bought by token, subscriptions shown.
//
// It speaks the RPC API of 2014-05-26 itself, signed with ACS3-HMAC-SHA256: the vendor's client takes minutes to build and
// reads prices into 32-bit floats.
//
// Prices are list prices of the machine alone; its disk and traffic come on top. They are in the currency that the API
// names: CNY at the China site, USD at the international one. Stock is what DescribeAvailableResource says: sold out is a
// stock of 0, anything else is unknown, since no number is told. Spot is bought as the market goes (SpotAsPriceGo), without
// a price limit, and the first hour is protected. Subscriptions are prices for a whole term; they are shown with it and
// cannot be launched.
//
// Machines carry our tags from their first moment, go with their disk, and have no address of their own: what bandwidth
// gives them goes with them too. A machine that is released is not listed any more.
//
// ECS promises a notice of five minutes, at its metadata service, which the agent asks; the list shows a machine that is
// being taken back as "interrupted".
//
// It does not read interruption rates: they are not per hour, and the vendor does not say of what they are a share.
//
// Sources: the vendor's API reference and Go SDK v7.7.0; error codes also from karpenter-provider-alibabacloud. What they
// leave open is marked "unverified".
package alibaba

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// Cloud is this cloud's name.
const Cloud = "alibaba"

// Settings are one account. Regions, KeyID and Secret are needed.
type Settings struct {
	Account   string
	Regions   []string // "cn-hangzhou"
	KeyID     string
	Secret    string
	Token     string            // of temporary credentials; "": none
	Endpoint  string            // for all regions; "": the vendor's
	Images    map[string]string // region to image id; the region "" is every other
	Switches  map[string]string // zone to VSwitch; a zone without one cannot be launched in
	Groups    map[string]string // region to security group; the region "" is every other
	Role      string            // RAM role of the machines; "": none
	Disk      int               // GB of the system disk; 100
	Bandwidth int               // Mbit/s of a public address, paid by traffic; 0: no address, the VSwitch needs a way out
	PerSecond float64           // requests; 0: any number
	Boot      provider.Boot
	Client    *http.Client
	Now       func() time.Time
}

// Alibaba is one account. It implements provider.Provider.
type Alibaba struct {
	s    Settings
	wire *wire

	mu      sync.Mutex
	regions map[string]*region
	homes   provider.Homes
}

// New makes the adapter.
func New(s Settings) *Alibaba {
	s.Account, s.Disk = cmp.Or(s.Account, "main"), cmp.Or(s.Disk, 100)
	if s.Client == nil {
		s.Client = &http.Client{Timeout: 30 * time.Second}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return &Alibaba{s: s, wire: newWire(s), regions: map[string]*region{}}
}

// notice is what ECS promises before it takes a spot machine.
const notice = 5 * time.Minute

// Traits implements provider.Provider.
func (a *Alibaba) Traits() provider.Traits {
	return provider.Traits{Cloud: Cloud, Account: a.s.Account, Tokens: true, ListingDelay: time.Minute, Notice: notice}
}

// Offers implements provider.Provider. A region that fails fails all: half a market is worse than yesterday's. What was
// read before it failed is kept, so that the next call goes on there.
func (a *Alibaba) Offers(ctx context.Context) ([]fleet.Offer, error) {
	return provider.Across(Cloud, "offers", a.s.Regions, func(name string) ([]fleet.Offer, error) { return a.offers(ctx, name) })
}

// Launch implements provider.Provider.
func (a *Alibaba) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	m, err := a.launch(ctx, want)
	if err != nil {
		return provider.Machine{}, fmt.Errorf("alibaba: launch %s: %w", want.Offer, err)
	}
	return m, nil
}

func (a *Alibaba) launch(ctx context.Context, want provider.Request) (none provider.Machine, err error) {
	v, err := a.purchase(want)
	if err != nil {
		return none, err
	}
	var out struct {
		IDs struct {
			Set []string `json:"InstanceIdSet"`
		} `json:"InstanceIdSets"`
	}
	if err := a.wire.call(ctx, want.Offer.Region, "RunInstances", v, &out); err != nil {
		return none, err
	}
	if len(out.IDs.Set) != 1 || out.IDs.Set[0] == "" {
		return none, fmt.Errorf("%w: an answer with %d machines", provider.ErrUnknown, len(out.IDs.Set))
	}
	return a.readBack(ctx, out.IDs.Set[0], want), nil
}

// Try asks ECS whether Launch would be let through, without buying: parameters, limits, stock. Nil: it would.
func (a *Alibaba) Try(ctx context.Context, want provider.Request) error {
	v, err := a.purchase(want)
	if err == nil {
		v.Set("DryRun", "true")
		err = provider.Tried(a.wire.call(ctx, want.Offer.Region, "RunInstances", v, nil), "DryRunOperation")
	}
	if err != nil {
		return fmt.Errorf("alibaba: try %s: %w", want.Offer, err)
	}
	return nil
}

// purchase is one RunInstances, a function of plan, offer and settings alone.
func (a *Alibaba) purchase(want provider.Request) (url.Values, error) {
	o := want.Offer
	image := cmp.Or(a.s.Images[o.Region], a.s.Images[""])
	group := cmp.Or(a.s.Groups[o.Region], a.s.Groups[""])
	switch {
	case !slices.Contains(a.s.Regions, o.Region):
		return nil, fmt.Errorf("%w: region %q is not configured", provider.ErrInvalid, o.Region)
	case o.Market != fleet.OnDemand && o.Market != fleet.Spot || o.Term > 0:
		return nil, fmt.Errorf("%w: %s capacity cannot be bought by the hour", provider.ErrInvalid, o.Market)
	case image == "":
		return nil, fmt.Errorf("%w: no image is configured for %s", provider.ErrRefusedHere, o.Region)
	case group == "":
		return nil, fmt.Errorf("%w: no security group is configured for %s", provider.ErrRefusedHere, o.Region)
	case a.s.Switches[o.Zone] == "":
		return nil, fmt.Errorf("%w: no VSwitch is configured for zone %q", provider.ErrRefusedHere, o.Zone)
	}
	script, err := a.s.Boot.Script(want.UserData, bootPrelude)
	if err != nil {
		return nil, err
	}
	if len(script) > 16<<10 {
		return nil, fmt.Errorf("%w: user-data of %d bytes, ECS takes 16384", provider.ErrInvalid, len(script))
	}
	v := url.Values{
		"InstanceType": {o.Type}, "ImageId": {image}, "ZoneId": {o.Zone}, "VSwitchId": {a.s.Switches[o.Zone]}, "SecurityGroupId": {group},
		"InstanceName": {want.Name}, "InstanceChargeType": {"PostPaid"}, "SpotStrategy": {"NoSpot"}, "Amount": {"1"}, "ClientToken": {want.Token},
		"IoOptimized": {"optimized"}, "SystemDisk.Category": {diskKind}, "SystemDisk.Size": {strconv.Itoa(a.s.Disk)},
		"HttpEndpoint": {"enabled"}, "HttpTokens": {"required"}, "UserData": {base64.StdEncoding.EncodeToString([]byte(script))},
	}
	if o.Market == fleet.Spot { // always said: without a strategy the API sells on demand and says nothing
		v.Set("SpotStrategy", "SpotAsPriceGo")
		v.Set("SpotDuration", "1")
		v.Set("SpotInterruptionBehavior", "Terminate")
	}
	if a.s.Bandwidth > 0 {
		v.Set("InternetChargeType", "PayByTraffic")
		v.Set("InternetMaxBandwidthOut", strconv.Itoa(a.s.Bandwidth))
	}
	if a.s.Role != "" {
		v.Set("RamRoleName", a.s.Role)
	}
	tags := want.Labels.Tags()
	for i, k := range fleet.Sorted(tags) {
		v.Set(fmt.Sprintf("Tag.%d.Key", i+1), k)
		v.Set(fmt.Sprintf("Tag.%d.Value", i+1), tags[k])
	}
	return v, nil
}

// diskKind is the system disk that every GPU family of the last generations takes (unverified for the oldest).
const diskKind = "cloud_essd"

// readBack is the machine as ECS shows it: its answer to a purchase holds an id alone. It is bought, whether it can be
// shown yet or not.
func (a *Alibaba) readBack(ctx context.Context, id string, want provider.Request) provider.Machine {
	o := want.Offer
	m := provider.Machine{ID: id, State: provider.Pending, Offer: o, Since: a.s.Now().UTC()}
	m.Offer.Stock = fleet.Maybe[int]{}
	if found, err := a.find(ctx, o.Region, id); err == nil {
		m = a.machine(a.region(o.Region), found)
		if m.Offer.Pool() == o.Pool() { // ECS tells no price: what was asked for is what is paid
			m.Offer.Price, m.Offer.Hourly = o.Price, o.Hourly
		}
	}
	m.Labels = want.Labels
	a.homes.Seen(id, o.Region)
	return m
}

// bootPrelude is what only the machine knows, and where its own notices are, which the agent reads.
const bootPrelude = `token=$(curl -fsS -X PUT -H 'X-aliyun-ecs-metadata-token-ttl-seconds: 300' http://100.100.100.200/latest/api/token)
export LOWTIDE_ID="$(curl -fsS -H "X-aliyun-ecs-metadata-token: $token" http://100.100.100.200/latest/meta-data/instance-id)"
export LOWTIDE_METADATA=http://100.100.100.200/latest/meta-data/instance/spot/termination-time
export LOWTIDE_METADATA_TOKEN=http://100.100.100.200/latest/api/token
`

// List implements provider.Provider: the machines of every configured region. A machine that was released is not listed.
func (a *Alibaba) List(ctx context.Context) ([]provider.Machine, error) {
	return provider.Across(Cloud, "list", a.s.Regions, func(name string) (out []provider.Machine, err error) {
		all, err := a.wire.instances(ctx, name, url.Values{"MaxResults": {"100"}})
		for _, i := range all {
			out = append(out, a.machine(a.region(name), i))
		}
		return out, err
	})
}

// find is one machine; ErrNotFound if the region has none of that id.
func (a *Alibaba) find(ctx context.Context, region, id string) (none instance, err error) {
	ids, err := json.Marshal([]string{id})
	if err != nil {
		return none, fmt.Errorf("%w: %w", provider.ErrInvalid, err)
	}
	all, err := a.wire.instances(ctx, region, url.Values{"InstanceIds": {string(ids)}})
	if err != nil {
		return none, err
	}
	for _, i := range all {
		if i.ID == id {
			return i, nil
		}
	}
	return none, provider.ErrNotFound
}

// machine reads an instance and remembers its region.
func (a *Alibaba) machine(r *region, i instance) provider.Machine {
	o := fleet.Offer{Cloud: Cloud, Account: a.s.Account, Region: r.code, Zone: i.Zone, Type: i.Type, Market: i.market()}
	a.mu.Lock()
	a.homes.Seen(i.ID, r.code)
	o = r.priced(o)
	if o.Market == fleet.Spot {
		o.Notice = notice
	}
	a.mu.Unlock()
	m := provider.Machine{ID: i.ID, Labels: provider.FromTags(i.tags()), Offer: o, Since: moment(i.Created)}
	m.State, m.Why = i.state()
	return m
}

// End implements provider.Provider: the machine is released, running or not, with its disk and address.
func (a *Alibaba) End(ctx context.Context, id string) error {
	if err := a.end(ctx, id); err != nil {
		return fmt.Errorf("alibaba: end %s: %w", id, err)
	}
	return nil
}

func (a *Alibaba) end(ctx context.Context, id string) error {
	return a.homes.Visit(id, a.s.Regions, func(region string, known bool) error {
		if !known {
			if _, err := a.find(ctx, region, id); err != nil {
				return err
			}
		}
		return a.release(ctx, region, id)
	})
}

func (a *Alibaba) release(ctx context.Context, region, id string) error {
	return a.wire.call(ctx, region, "DeleteInstances", url.Values{"InstanceId.1": {id}, "Force": {"true"}}, nil)
}
