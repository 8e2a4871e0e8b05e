// Package volcengine is Volcano Engine's ECS: spot and on-demand machines bought by token, subscriptions shown.
//
// It speaks the OpenAPI of 2020-04-01 itself, signed with the vendor's form of Signature V4.
//
// Spot prices come without a currency: the account's is a setting, yuan unless it is another. What a machine costs on
// demand and by subscription the billing API tells only for codes of configuration and charge item that differ by account
// and are published nowhere: with the account's in the settings they are asked for, without them on-demand machines are
// sold by the user's price book alone. Nothing is reckoned back from an average discount. Stock is what
// DescribeAvailableResource says: sold out is a stock of 0, anything else unknown, since no number is told.
//
// Spot is bought as the market goes (SpotAsPriceGo), without a limit. Machines carry our tags from their first moment,
// among them what was planned to be paid, since no listing tells a price; they go with their disk and their address. A
// machine that was deleted is not listed any more. An answer of 200 to a deletion may hold a refusal, which is one here.
//
// The vendor promises a notice of five minutes, at the metadata service, which the agent asks.
//
// Unverified, since no bytes of the vendor's were to be had: the codes of refusals, whether the memory of a GPU is told
// for one or for all, and what a token answers that comes with other parameters.
//
// Sources: the vendor's API reference and Go SDK v1.1.35.
package volcengine

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// Cloud is this cloud's name.
const Cloud = "volcengine"

// Settings are one account. Regions, KeyID and Secret are needed.
type Settings struct {
	Account   string
	Regions   []string // "cn-beijing"
	KeyID     string
	Secret    string
	Token     string            // of temporary credentials; "": none
	Currency  fleet.Currency    // of spot prices; CNY if ""
	Endpoint  string            // of all regions and services; "https://open.volcengineapi.com"
	Product   string            // the billing API's code of ECS; "ecs"
	Config    string            // the billing API's configuration code, "{type}" standing for the machine type; "": no prices are asked
	Item      string            // its charge item code, likewise
	Images    map[string]string // region to image id; the region "" is every other
	Subnets   map[string]string // zone to subnet; only there is bought
	Groups    map[string]string // region to security group; the region "" is every other
	Disk      int               // GiB of the system disk; 100
	Bandwidth int               // Mbit/s of a public address, paid by traffic; 0: no address, the subnet needs a way out
	PerSecond float64           // requests; 0: any number
	Boot      provider.Boot
	Client    *http.Client
	Now       func() time.Time
}

// Volcengine is one account. It implements provider.Provider.
type Volcengine struct {
	s    Settings
	wire *wire

	mu      sync.Mutex
	regions map[string]*region
	homes   provider.Homes
}

// New makes the adapter.
func New(s Settings) *Volcengine {
	s.Account, s.Disk, s.Currency = cmp.Or(s.Account, "main"), cmp.Or(s.Disk, 100), cmp.Or(s.Currency, fleet.CNY)
	s.Endpoint, s.Product = strings.TrimRight(cmp.Or(s.Endpoint, "https://open.volcengineapi.com"), "/"), cmp.Or(s.Product, "ecs")
	if s.Client == nil {
		s.Client = &http.Client{Timeout: 30 * time.Second}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return &Volcengine{s: s, wire: newWire(s), regions: map[string]*region{}}
}

// notice is what ECS promises before it takes a spot machine.
const notice = 5 * time.Minute

// Traits implements provider.Provider. The listing delay is not published (unverified).
func (v *Volcengine) Traits() provider.Traits {
	return provider.Traits{Cloud: Cloud, Account: v.s.Account, Tokens: true, ListingDelay: time.Minute, Notice: notice}
}

// Offers implements provider.Provider. A region that fails fails all: half a market is worse than yesterday's. What was
// read before it failed is kept for a while, so that the next call goes on there.
func (v *Volcengine) Offers(ctx context.Context) ([]fleet.Offer, error) {
	return provider.Across(Cloud, "offers", v.s.Regions, func(name string) ([]fleet.Offer, error) { return v.offers(ctx, name) })
}

// Launch implements provider.Provider.
func (v *Volcengine) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	m, err := v.launch(ctx, want)
	if err != nil {
		return provider.Machine{}, fmt.Errorf("volcengine: launch %s: %w", want.Offer, err)
	}
	return m, nil
}

func (v *Volcengine) launch(ctx context.Context, want provider.Request) (none provider.Machine, err error) {
	q, err := v.purchase(want)
	if err != nil {
		return none, err
	}
	var out struct {
		IDs []string `json:"InstanceIds"`
	}
	if err := v.wire.call(ctx, want.Offer.Region, buys, q, &out); err != nil {
		return none, err
	}
	if len(out.IDs) != 1 || out.IDs[0] == "" {
		return none, fmt.Errorf("%w: an answer with %d machines", provider.ErrUnknown, len(out.IDs))
	}
	return v.readBack(ctx, out.IDs[0], want), nil
}

// Try asks ECS whether Launch would be let through, without buying. Nil: it would. The code that says so is the neighbours'
// (unverified).
func (v *Volcengine) Try(ctx context.Context, want provider.Request) error {
	q, err := v.purchase(want)
	if err == nil {
		q.Set("DryRun", "true")
		err = provider.Tried(v.wire.call(ctx, want.Offer.Region, buys, q, nil), "DryRunOperation")
	}
	if err != nil {
		return fmt.Errorf("volcengine: try %s: %w", want.Offer, err)
	}
	return nil
}

// purchase is one RunInstances, a function of plan, offer and settings alone.
func (v *Volcengine) purchase(want provider.Request) (url.Values, error) {
	o := want.Offer
	image, group := cmp.Or(v.s.Images[o.Region], v.s.Images[""]), cmp.Or(v.s.Groups[o.Region], v.s.Groups[""])
	switch {
	case !slices.Contains(v.s.Regions, o.Region):
		return nil, fmt.Errorf("%w: region %q is not configured", provider.ErrInvalid, o.Region)
	case o.Market != fleet.OnDemand && o.Market != fleet.Spot || o.Term > 0:
		return nil, fmt.Errorf("%w: %s capacity cannot be bought by the hour", provider.ErrInvalid, o.Market)
	case image == "":
		return nil, fmt.Errorf("%w: no image is configured for %s", provider.ErrRefusedHere, o.Region)
	case group == "":
		return nil, fmt.Errorf("%w: no security group is configured for %s", provider.ErrRefusedHere, o.Region)
	case v.s.Subnets[o.Zone] == "":
		return nil, fmt.Errorf("%w: no subnet is configured for zone %q", provider.ErrRefusedHere, o.Zone)
	}
	script, err := v.s.Boot.Script(want.UserData, bootPrelude)
	if err != nil {
		return nil, err
	}
	if len(script) > 16<<10 {
		return nil, fmt.Errorf("%w: user-data of %d bytes, ECS takes 16384", provider.ErrInvalid, len(script))
	}
	q := url.Values{
		"ZoneId": {o.Zone}, "InstanceTypeId": {o.Type}, "ImageId": {image}, "InstanceName": {want.Name}, "Count": {"1"}, "MinCount": {"1"},
		"NetworkInterfaces.1.SubnetId": {v.s.Subnets[o.Zone]}, "NetworkInterfaces.1.SecurityGroupIds.1": {group},
		"Volumes.1.VolumeType": {"ESSD_PL0"}, "Volumes.1.Size": {strconv.Itoa(v.s.Disk)}, "Volumes.1.DeleteWithInstance": {"true"},
		"InstanceChargeType": {"PostPaid"}, "SpotStrategy": {strategies[o.Market]}, "ClientToken": {want.Token},
		"UserData": {base64.StdEncoding.EncodeToString([]byte(script))},
	}
	if v.s.Bandwidth > 0 {
		q.Set("EipAddress.ChargeType", "PayByTraffic")
		q.Set("EipAddress.BandwidthMbps", strconv.Itoa(v.s.Bandwidth))
		q.Set("EipAddress.ReleaseWithInstance", "true")
	}
	tags := want.Tags()
	for i, k := range fleet.Sorted(tags) {
		q.Set(fmt.Sprintf("Tags.%d.Key", i+1), k)
		q.Set(fmt.Sprintf("Tags.%d.Value", i+1), tags[k])
	}
	return q, nil
}

// strategies are the vendor's words for the markets: always said, since without one it sells on demand and says nothing.
var strategies = map[fleet.Market]string{fleet.OnDemand: "NoSpot", fleet.Spot: "SpotAsPriceGo"}

// bootPrelude is what only the machine knows, and where its own notices are, which the agent reads.
const bootPrelude = `export LOWTIDE_ID="$(curl -fsS http://100.96.0.96/latest/instance_id)"
export LOWTIDE_METADATA=http://100.96.0.96/latest/spot_instance_termination_time
`

// readBack is the machine as ECS shows it: its answer to a purchase holds an id alone. It is bought, whether it can be
// shown yet or not.
func (v *Volcengine) readBack(ctx context.Context, id string, want provider.Request) provider.Machine {
	o := want.Offer
	m := provider.Machine{ID: id, State: provider.Pending, Offer: o, Since: v.s.Now().UTC()}
	m.Offer.Stock = fleet.Maybe[int]{}
	if found, err := v.find(ctx, o.Region, id); err == nil {
		m = v.machine(o.Region, found)
		if m.Offer.Pool() == o.Pool() { // what was asked for is what is paid
			m.Offer.Price, m.Offer.Hourly = o.Price, o.Hourly
		}
	}
	m.Labels = want.Labels
	v.homes.Seen(id, o.Region)
	return m
}

// List implements provider.Provider: the machines of every configured region.
func (v *Volcengine) List(ctx context.Context) ([]provider.Machine, error) {
	return provider.Across(Cloud, "list", v.s.Regions, func(name string) (out []provider.Machine, err error) {
		all, err := v.wire.instances(ctx, name, url.Values{"MaxResults": {"100"}})
		for _, i := range all {
			out = append(out, v.machine(name, i))
		}
		return out, err
	})
}

// find is one machine; ErrNotFound if the region has none of that id.
func (v *Volcengine) find(ctx context.Context, region, id string) (none instance, err error) {
	all, err := v.wire.instances(ctx, region, url.Values{"InstanceIds.1": {id}})
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
func (v *Volcengine) machine(region string, i instance) provider.Machine {
	o := fleet.Offer{Cloud: Cloud, Account: v.s.Account, Region: region, Zone: i.Zone, Type: i.Type, Market: i.market()}
	v.mu.Lock()
	v.homes.Seen(i.ID, region)
	o = v.regions[region].priced(o)
	if o.Market == fleet.Spot {
		o.Notice = notice
	}
	v.mu.Unlock()
	tags := i.tags()
	m := provider.Machine{ID: i.ID, Labels: provider.FromTags(tags), Offer: provider.Planned(o, tags), Since: moment(i.Created)}
	m.State, m.Why = i.state()
	return m
}

// End implements provider.Provider: the machine is deleted, running or not, with its disk and address.
func (v *Volcengine) End(ctx context.Context, id string) error {
	if err := v.end(ctx, id); err != nil {
		return fmt.Errorf("volcengine: end %s: %w", id, err)
	}
	return nil
}

func (v *Volcengine) end(ctx context.Context, id string) error {
	return v.homes.Visit(id, v.s.Regions, func(region string, known bool) error {
		if !known {
			if _, err := v.find(ctx, region, id); err != nil {
				return err
			}
		}
		return v.delete(ctx, region, id)
	})
}

// delete looks into the answer: a 200 does not say that the machine goes.
func (v *Volcengine) delete(ctx context.Context, region, id string) error {
	var out struct {
		Details []struct {
			ID    string `json:"InstanceId"`
			Error struct{ Code string }
		} `json:"OperationDetails"`
	}
	if err := v.wire.call(ctx, region, "DeleteInstances", url.Values{"InstanceIds.1": {id}}, &out); err != nil {
		return err
	}
	for _, d := range out.Details {
		if d.ID == id && d.Error.Code != "" {
			return fmt.Errorf("DeleteInstances: %w", codes.Refusal(http.StatusBadRequest, d.Error.Code, false))
		}
	}
	return nil
}
