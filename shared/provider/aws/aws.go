// Package aws is Amazon EC2: on-demand and spot machines bought by token, reserved rates and capacity blocks shown.
//
// It speaks EC2's Query API and the Price List API itself, signed with the SDK's signer and credential chain: the SDK's
// own EC2 client would more than double the time that lowtide takes to build.
//
// Zones are zone ids ("use1-az1"): a zone's name means another place in another account. Every machine carries our tags
// from its first moment, on itself, its disks, its network interface and its spot request; disks go with the machine,
// whatever the image says; a machine that switches itself off is terminated. Spot is bought once, without a price limit:
// a limit only raises the rate of interruptions.
//
// It knows no stock: only a launch answers. Reserved instances and savings plans change the bill alone, so their rates are
// shown (fleet.Reserved, with a term) and cannot be launched; nor can capacity blocks, which a person buys. A machine of an
// on-demand capacity reservation that somebody made is launched by its id (fleet.Offer.Reservation), at no further price.
//
// Sources: the API models of aws-sdk-go-v2 and the EC2 user guide; error codes also from karpenter-provider-aws.
package aws

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// Cloud is this cloud's name.
const Cloud = "aws"

// notice is what EC2 promises before it takes a spot machine, best effort.
const notice = 2 * time.Minute

// Settings are one account. Regions and Credentials are needed.
type Settings struct {
	Account     string
	Regions     []string
	Credentials aws.CredentialsProvider
	Endpoint    string            // of EC2 and of prices, for all regions; "": the vendor's
	Images      map[string]string // region to AMI; the region "" is every other
	Subnets     map[string]string // zone id or name to subnet; a zone without one uses the default VPC
	Groups      []string          // security groups; none: the VPC's default
	Profile     string            // instance profile of the machines
	Blocks      []string          // types whose capacity blocks are shown
	Boot        provider.Boot
	Client      *http.Client
	Now         func() time.Time
}

// Chain is the SDK's own chain of credentials: variables, files, roles. It asks nobody until credentials are used.
func Chain(ctx context.Context) (aws.CredentialsProvider, error) {
	c, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("aws: credentials: %w", err)
	}
	return c.Credentials, nil
}

// AWS is one account. It implements provider.Provider.
type AWS struct {
	s    Settings
	wire *wire

	mu      sync.Mutex
	regions map[string]*region
	homes   provider.Homes
}

// New makes the adapter.
func New(s Settings) *AWS {
	s.Account = cmp.Or(s.Account, "main")
	if s.Client == nil {
		s.Client = &http.Client{Timeout: 30 * time.Second}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return &AWS{s: s, wire: newWire(s), regions: map[string]*region{}}
}

// Traits implements provider.Provider.
func (a *AWS) Traits() provider.Traits {
	return provider.Traits{Cloud: Cloud, Account: a.s.Account, Tokens: true, ListingDelay: time.Minute, Notice: notice, OffEnds: true}
}

// Offers implements provider.Provider. A region that fails fails all: half a market is worse than yesterday's.
func (a *AWS) Offers(ctx context.Context) ([]fleet.Offer, error) {
	return provider.Across(Cloud, "offers", a.s.Regions, func(name string) ([]fleet.Offer, error) { return a.offers(ctx, name) })
}

// Launch implements provider.Provider.
func (a *AWS) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	m, err := a.launch(ctx, want)
	if err != nil {
		return provider.Machine{}, fmt.Errorf("aws: launch %s: %w", want.Offer, err)
	}
	return m, nil
}

// Try asks EC2 whether Launch would be let through, without buying: permissions, image, subnet, quota. Nil: it would.
func (a *AWS) Try(ctx context.Context, want provider.Request) error {
	r, v, err := a.prepare(ctx, want)
	if err == nil {
		v.Set("DryRun", "true")
		err = a.wire.query(ctx, r.code, "RunInstances", v, nil)
	}
	if err = provider.Tried(err, "DryRunOperation"); err != nil {
		return fmt.Errorf("aws: try %s: %w", want.Offer, err)
	}
	return nil
}

func (a *AWS) launch(ctx context.Context, want provider.Request) (none provider.Machine, err error) {
	r, v, err := a.prepare(ctx, want)
	if err != nil {
		return none, err
	}
	o := want.Offer
	var out struct {
		Instances []instance `xml:"instancesSet>item"`
	}
	if err := a.wire.query(ctx, o.Region, "RunInstances", v, &out); err != nil {
		return none, err
	}
	if len(out.Instances) != 1 || out.Instances[0].ID == "" {
		return none, fmt.Errorf("%w: an answer with %d machines", provider.ErrUnknown, len(out.Instances))
	}
	m := a.machine(r, out.Instances[0])
	m.Labels = want.Labels
	if m.Offer.Pool() == o.Pool() { // EC2 tells no price: what was asked for is what is paid
		m.Offer.Price, m.Offer.Hourly = o.Price, o.Hourly
	}
	return m, nil
}

// prepare checks a request and makes the call of it.
func (a *AWS) prepare(ctx context.Context, want provider.Request) (r *region, v url.Values, err error) {
	o := want.Offer
	image := cmp.Or(a.s.Images[o.Region], a.s.Images[""])
	switch {
	case !slices.Contains(a.s.Regions, o.Region):
		return nil, nil, fmt.Errorf("%w: region %q is not configured", provider.ErrInvalid, o.Region)
	case o.Market != fleet.OnDemand && o.Market != fleet.Spot && o.Reservation == "" || o.Term > 0:
		return nil, nil, fmt.Errorf("%w: %s capacity cannot be bought by the hour", provider.ErrInvalid, o.Market)
	case image == "":
		return nil, nil, fmt.Errorf("%w: no image is configured for %s", provider.ErrRefusedHere, o.Region)
	}
	script, err := a.s.Boot.Script(want.UserData, bootPrelude)
	if err != nil {
		return nil, nil, err
	}
	if len(script) > 16<<10 {
		return nil, nil, fmt.Errorf("%w: user-data of %d bytes, EC2 takes 16384", provider.ErrInvalid, len(script))
	}
	r, err = a.region(ctx, o.Region)
	if err != nil {
		return nil, nil, err
	}
	disks, err := a.disks(ctx, r, image)
	if err != nil {
		return nil, nil, err
	}
	v, err = a.purchase(r, want, image, script, disks)
	return r, v, err
}

// purchase is one RunInstances, a function of plan, offer and settings alone.
func (a *AWS) purchase(r *region, want provider.Request, image, script string, disks []disk) (url.Values, error) {
	o := want.Offer
	v := url.Values{
		"ImageId": {image}, "InstanceType": {o.Type}, "MinCount": {"1"}, "MaxCount": {"1"}, "ClientToken": {want.Token},
		"UserData": {base64.StdEncoding.EncodeToString([]byte(script))}, "InstanceInitiatedShutdownBehavior": {"terminate"},
		"MetadataOptions.HttpTokens": {"required"}, "MetadataOptions.HttpPutResponseHopLimit": {"2"},
	}
	name := r.name(o.Zone)
	switch subnet := cmp.Or(a.s.Subnets[o.Zone], a.s.Subnets[name]); {
	case subnet != "":
		v.Set("SubnetId", subnet)
	case name == "" && o.Zone == "":
		return nil, fmt.Errorf("%w: a capacity reservation is of one zone; name it in the reservation's file", provider.ErrInvalid)
	case name == "":
		return nil, fmt.Errorf("%w: no zone %q in %s for this account", provider.ErrInvalid, o.Zone, o.Region)
	default:
		v.Set("Placement.AvailabilityZone", name)
	}
	for i, g := range a.s.Groups {
		v.Set("SecurityGroupId."+strconv.Itoa(i+1), g)
	}
	if a.s.Profile != "" {
		v.Set("IamInstanceProfile.Name", a.s.Profile)
	}
	for i, d := range disks {
		p := "BlockDeviceMapping." + strconv.Itoa(i+1) + "."
		v.Set(p+"DeviceName", d.Device)
		v.Set(p+"Ebs.DeleteOnTermination", "true")
		if d.EBS.Size > 0 {
			v.Set(p+"Ebs.VolumeSize", strconv.Itoa(d.EBS.Size))
		}
	}
	if o.Reservation != "" { // one that does not ask for it by name may be kept out of it
		v.Set("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId", o.Reservation)
	}
	tagged := []string{"instance", "volume", "network-interface"}
	if o.Market == fleet.Spot {
		v.Set("InstanceMarketOptions.MarketType", "spot")
		v.Set("InstanceMarketOptions.SpotOptions.SpotInstanceType", "one-time")
		v.Set("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", "terminate")
		tagged = append(tagged, "spot-instances-request")
	}
	tags := want.Labels.Tags()
	for i, what := range tagged {
		p := "TagSpecification." + strconv.Itoa(i+1) + "."
		v.Set(p+"ResourceType", what)
		v.Set(p+"Tag.1.Key", "Name")
		v.Set(p+"Tag.1.Value", want.Name)
		for j, k := range fleet.Sorted(tags) {
			v.Set(p+"Tag."+strconv.Itoa(j+2)+".Key", k)
			v.Set(p+"Tag."+strconv.Itoa(j+2)+".Value", tags[k])
		}
	}
	return v, nil
}

// bootPrelude is what only the machine knows, and where its own notices are, which the agent reads.
const bootPrelude = `token=$(curl -fsS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' http://169.254.169.254/latest/api/token)
export LOWTIDE_ID="$(curl -fsS -H "X-aws-ec2-metadata-token: $token" http://169.254.169.254/latest/meta-data/instance-id)"
export LOWTIDE_METADATA=http://169.254.169.254/latest/meta-data/spot/instance-action
export LOWTIDE_METADATA_TOKEN=http://169.254.169.254/latest/api/token
`

// List implements provider.Provider: the machines of every configured region, also those that ended within the hour.
func (a *AWS) List(ctx context.Context) ([]provider.Machine, error) {
	return provider.Across(Cloud, "list", a.s.Regions, func(name string) (out []provider.Machine, err error) {
		r, err := a.region(ctx, name)
		if err == nil {
			err = a.instances(ctx, name, url.Values{"MaxResults": {"1000"}}, func(i instance) { out = append(out, a.machine(r, i)) })
		}
		return out, err
	})
}

func (a *AWS) instances(ctx context.Context, region string, v url.Values, each func(instance)) error {
	return a.wire.pages(ctx, region, "DescribeInstances", v, func() paged { return &instancesPage{} }, func(p paged) {
		for _, res := range p.(*instancesPage).Reservations {
			for _, i := range res.Instances {
				each(i)
			}
		}
	})
}

// machine reads an instance and remembers its region.
func (a *AWS) machine(r *region, i instance) provider.Machine {
	zone := cmp.Or(i.Placement.ZoneID, r.id(i.Placement.Zone))
	o := fleet.Offer{
		Cloud: Cloud, Account: a.s.Account, Region: r.code, Zone: zone, Type: i.Type, Market: fleet.OnDemand,
	}
	switch i.Lifecycle {
	case "spot":
		o.Market, o.Notice = fleet.Spot, notice
	case "capacity-block":
		o.Market = fleet.Reserved
	}
	a.mu.Lock()
	a.homes.Seen(i.ID, r.code)
	if i.Reservation == "" {
		o = r.quoted.Price(o)
	} else { // it costs nothing more than the reservation
		o.Market, o.Reservation = fleet.Reserved, i.Reservation
		o.Price, o.Hourly = fleet.Price{Per: fleet.PerInstanceHour}, fleet.Known(fleet.Dollars(0))
	}
	a.mu.Unlock()
	m := provider.Machine{ID: i.ID, Labels: provider.FromTags(i.tags()), Offer: o, Since: i.Launched.UTC()}
	m.State, m.Why = i.state()
	if m.State == provider.Gone {
		m.Until = i.ended(a.s.Now().UTC())
	}
	return m
}

// End implements provider.Provider. The spot request of a machine goes first: a persistent one would start another.
func (a *AWS) End(ctx context.Context, id string) error {
	if err := a.end(ctx, id); err != nil {
		return fmt.Errorf("aws: end %s: %w", id, err)
	}
	return nil
}

func (a *AWS) end(ctx context.Context, id string) error {
	return a.homes.Visit(id, a.s.Regions, func(name string, _ bool) error {
		var found *instance
		err := a.instances(ctx, name, url.Values{"InstanceId.1": {id}}, func(i instance) { found = &i })
		switch {
		case err != nil:
			return err
		case found == nil:
			return provider.ErrNotFound
		}
		if found.SpotRequest != "" {
			err := a.wire.query(ctx, name, "CancelSpotInstanceRequests", url.Values{"SpotInstanceRequestId.1": {found.SpotRequest}}, nil)
			if err != nil && !errors.Is(err, provider.ErrNotFound) {
				return fmt.Errorf("cancel its spot request: %w", err)
			}
		}
		return a.wire.query(ctx, name, "TerminateInstances", url.Values{"InstanceId.1": {id}}, nil)
	})
}
