// Package azure is Azure's virtual machines: on-demand and spot machines bought by name, reservations shown.
//
// It speaks Azure Resource Manager itself, with a service principal's secret, and reads prices from the Retail Prices API,
// which anybody may. That API lists everything that was ever sold with a size: rows are told apart by their product's and
// SKU's names (package comment of prices.go), and a size whose rows are still ambiguous then is not offered.
//
// No answer names the GPUs of a size: they are read from its name, and how many from a table; the API's own count says one
// for a sixth of a GPU. A size that only the API knows is offered without a model. Prices are a region's; with an account a
// size is offered in every zone that has it, so that a zone that refuses hides no other. Whether there is stock nothing
// tells; what the subscription may not use has a stock of 0.
//
// A machine's name follows from its token, and it is only ever created: one that is there already is ours if it carries
// the digest of the same order as a tag, and an invalid request else. Tags carry our labels from its first moment. Disk,
// network interface and address are made with it and go with it; since some were seen to stay after a failure, an end asks
// for their deletion by name as well. Spot is bought up to the on-demand price, and a machine that was taken back is
// deleted by the vendor, or listed as deallocated, which is stopped here.
//
// The principal needs to read the whole subscription, since others' machines are listed too, and to write in the group.
//
// Azure promises 30 seconds of notice, of which a third was seen, inside the machine alone: the agent asks for scheduled
// events. The first question switches that service on, which takes minutes, and is asked at boot.
//
// Unverified: that a create with If-None-Match is refused with 412 on a machine that is there; how long a list may lag.
//
// Sources: the vendor's REST reference, its Python SDK's models, and Azure/karpenter-provider-azure for error texts.
package azure

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// Cloud is this cloud's name.
const Cloud = "azure"

// Settings are one subscription. Regions are needed; without Subscription, Tenant, ClientID and Secret prices alone can be
// read.
type Settings struct {
	Account      string
	Regions      []string // "eastus"
	Subscription string
	Tenant       string
	ClientID     string // the service principal's id
	Secret       string
	Endpoint     string            // of all services; "": the vendor's
	Group        string            // resource group of the machines
	Images       map[string]string // region to "publisher:offer:sku:version" or an image's resource id; the region "" is every other
	Subnets      map[string]string // region to "network/subnet" in the group, or a subnet's resource id
	SSHKey       string            // public key of the operator: no Linux machine is made without one
	Disk         int               // GB of the system disk; 100
	Address      bool              // a public address
	Keep         time.Duration     // how long a region's prices and sizes are not asked for again, thousands of rows each; 0: each time
	Boot         provider.Boot
	Client       *http.Client
	Now          func() time.Time
}

// Azure is one subscription. It implements provider.Provider.
type Azure struct {
	s    Settings
	wire *wire

	mu      sync.Mutex
	prices  map[string]priceList // by region
	regions map[string]sizeList
	quoted  provider.Quotes // a listing tells no price
	kinds   map[string]kind // by size, as far as they were offered
}

// New makes the adapter.
func New(s Settings) *Azure {
	s.Account, s.Disk = cmp.Or(s.Account, "main"), cmp.Or(s.Disk, 100)
	if s.Client == nil {
		s.Client = &http.Client{Timeout: 60 * time.Second}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return &Azure{s: s, wire: newWire(s), prices: map[string]priceList{}, regions: map[string]sizeList{}, kinds: map[string]kind{}}
}

// notice is what Azure promises before it takes a spot machine.
const notice = 30 * time.Second

// Traits implements provider.Provider. The listing delay is not published (unverified).
func (a *Azure) Traits() provider.Traits {
	return provider.Traits{Cloud: Cloud, Account: a.s.Account, Tokens: true, ListingDelay: time.Minute, Notice: notice}
}

// Launch implements provider.Provider.
func (a *Azure) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	m, err := a.launch(ctx, want)
	if err != nil {
		return provider.Machine{}, fmt.Errorf("azure: launch %s: %w", want.Offer, err)
	}
	return m, nil
}

func (a *Azure) launch(ctx context.Context, want provider.Request) (none provider.Machine, err error) {
	v, err := a.purchase(want)
	if err != nil {
		return none, err
	}
	name := nameOf(want.Token)
	made, err := a.wire.create(ctx, name, v)
	switch {
	case errors.Is(err, errThere):
		if made, err = a.wire.machine(ctx, a.s.Group, name); err != nil {
			return none, fmt.Errorf("%w: it is there, and cannot be read: %w", provider.ErrUnknown, err)
		}
		if made.Tags[tagOrder] != v.Tags[tagOrder] {
			return none, fmt.Errorf("%w: its token was used with other parameters", provider.ErrInvalid)
		}
	case errors.Is(err, provider.ErrNotFound): // the resource group, a subnet, an image
		return none, fmt.Errorf("%w: %w", provider.ErrInvalid, err)
	case err != nil:
		return none, err
	}
	if made.Properties.State == "Failed" {
		if err := a.end(context.WithoutCancel(ctx), name); err != nil && !errors.Is(err, provider.ErrNotFound) {
			return none, fmt.Errorf("%w: it failed, and what was made could not be deleted: %w", provider.ErrUnknown, err)
		}
		return none, fmt.Errorf("%w: it was made and failed", provider.ErrNoCapacity)
	}
	m := a.machine(made, "")
	m.Labels = want.Labels
	if m.Offer.Pool() == want.Offer.Pool() { // a listing tells no price: what was asked for is what is paid
		m.Offer.Price, m.Offer.Hourly = want.Offer.Price, want.Offer.Hourly
	}
	if m.Since.IsZero() {
		m.Since = a.s.Now().UTC()
	}
	return m, nil
}

// nameOf is a machine's name, of the cloud's letters.
func nameOf(token string) string {
	h := sha256.Sum256([]byte(token))
	return "lowtide-" + hex.EncodeToString(h[:10])
}

// tagOrder holds a digest of what was ordered: the cloud does not show user-data.
const tagOrder = "lowtide-order"

// purchase is one machine, a function of plan, offer and settings alone.
func (a *Azure) purchase(want provider.Request) (*vm, error) {
	o := want.Offer
	image := cmp.Or(a.s.Images[o.Region], a.s.Images[""])
	zone, placed := zoneOf(o)
	switch {
	case a.s.Subscription == "":
		return nil, fmt.Errorf("%w: no subscription is configured", provider.ErrDenied)
	case !slices.Contains(a.s.Regions, o.Region) || !placed:
		return nil, fmt.Errorf("%w: region %q is not configured, or %q is no zone of it", provider.ErrInvalid, o.Region, o.Zone)
	case o.Market != fleet.OnDemand && o.Market != fleet.Spot || o.Term > 0:
		return nil, fmt.Errorf("%w: %s capacity cannot be bought by the hour", provider.ErrInvalid, o.Market)
	case a.s.Group == "", image == "", a.s.Subnets[o.Region] == "", a.s.SSHKey == "":
		return nil, fmt.Errorf("%w: resource group, image, subnet or SSH key is not configured for %s", provider.ErrRefusedHere, o.Region)
	}
	script, err := a.s.Boot.Script(want.UserData, bootPrelude)
	if err != nil {
		return nil, err
	}
	if len(script) > 64<<10 {
		return nil, fmt.Errorf("%w: user-data of %d bytes, Azure takes 65536", provider.ErrInvalid, len(script))
	}
	v := a.draft(nameOf(want.Token), o, image, script)
	if zone != "" {
		v.Zones = []string{zone}
	}
	v.Tags = want.Tags()
	order, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", provider.ErrInvalid, err)
	}
	sum := sha256.Sum256(order)
	v.Tags[tagOrder] = hex.EncodeToString(sum[:10])
	return v, nil
}

// draft is a machine without its place and tags. All that is made with it goes with it.
func (a *Azure) draft(name string, o fleet.Offer, image, script string) *vm {
	ip := ipConfig{Name: "ip", Properties: ipProperties{Primary: true, Subnet: id{a.subnet(a.s.Subnets[o.Region])}}}
	if a.s.Address {
		ip.Properties.Address = &addressConfig{Name: name + "-ip", SKU: named{"Standard"}, Properties: goes{"Delete"}}
	}
	v := &vm{Location: o.Region}
	p := &v.Properties
	p.Hardware.Size = o.Type
	p.Storage = &storage{Image: imageOf(image), Disk: osDisk{
		Name: name + "-disk", Create: "FromImage", Delete: "Delete", GB: a.s.Disk, Managed: managed{"Premium_LRS"},
	}}
	p.OS = &osProfile{Computer: name, User: "lowtide", Data: base64.StdEncoding.EncodeToString([]byte(script))}
	p.OS.Linux.NoPassword = true
	p.OS.Linux.SSH.Keys = []sshKey{{"/home/lowtide/.ssh/authorized_keys", a.s.SSHKey}}
	p.Network = &network{Version: "2020-11-01", Interfaces: []nicConfig{{
		Name: name + "-nic", Properties: nicProperties{Primary: true, Delete: "Delete", IPs: []ipConfig{ip}},
	}}}
	if o.Market == fleet.Spot {
		p.Priority, p.Eviction, p.Billing = "Spot", "Delete", &billing{-1} // up to the on-demand price
	}
	return v
}

// subnet is a subnet's resource id.
func (a *Azure) subnet(s string) string {
	network, subnet, ok := strings.Cut(s, "/")
	if !ok || network == "" {
		return s
	}
	return a.wire.group(a.s.Group) + "/providers/Microsoft.Network/virtualNetworks/" + network + "/subnets/" + subnet
}

// imageOf reads "publisher:offer:sku:version", or an image's resource id.
func imageOf(s string) image {
	if p := strings.Split(s, ":"); len(p) == 4 {
		return image{Publisher: p[0], Offer: p[1], SKU: p[2], Version: p[3]}
	}
	return image{ID: s}
}

// zoneOf is the cloud's word for an offer's zone: "1" of "eastus-1".
func zoneOf(o fleet.Offer) (string, bool) {
	if o.Zone == "" {
		return "", true
	}
	return strings.CutPrefix(o.Zone, o.Region+"-")
}

// bootPrelude is what only the machine knows: its name, and where its own notices are, which the agent reads.
const bootPrelude = `export LOWTIDE_ID="$(curl -fsS -H Metadata:true 'http://169.254.169.254/metadata/instance/compute/name?api-version=2021-02-01&format=text')"
export LOWTIDE_METADATA='http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'
curl -fsS -m 150 -H Metadata:true "$LOWTIDE_METADATA" >/dev/null 2>&1 &
`

// List implements provider.Provider: the machines of the whole subscription, in every region. What is gone is not listed.
func (a *Azure) List(ctx context.Context) ([]provider.Machine, error) {
	all, power, err := a.wire.machines(ctx)
	if err != nil {
		return nil, fmt.Errorf("azure: list: %w", err)
	}
	out := make([]provider.Machine, 0, len(all))
	for _, v := range all {
		out = append(out, a.machine(v, power[strings.ToLower(v.ID)]))
	}
	return out, nil
}

// machine reads a machine; power is "" where it is not told.
func (a *Azure) machine(v vm, power string) provider.Machine {
	o := fleet.Offer{Cloud: Cloud, Account: a.s.Account, Region: region(v.Location), Type: v.Properties.Hardware.Size, Market: fleet.OnDemand}
	if len(v.Zones) == 1 {
		o.Zone = o.Region + "-" + v.Zones[0]
	}
	if v.Properties.Priority == "Spot" || v.Properties.Priority == "Low" {
		o.Market = fleet.Spot
	}
	a.mu.Lock()
	if k, ok := a.kinds[o.Type]; ok {
		o = k.of(o)
	}
	o = a.quoted.Price(o)
	if o.Market == fleet.Spot {
		o.Notice = notice
	}
	a.mu.Unlock()
	m := provider.Machine{ID: a.idOf(v), Labels: provider.FromTags(v.Tags), Offer: provider.Planned(o, v.Tags), Since: moment(v.Properties.Created)}
	m.State, m.Why = v.state(power)
	return m
}

// idOf is a machine's name, and with its group where that is not ours.
func (a *Azure) idOf(v vm) string {
	group, name := v.place()
	if group == "" || strings.EqualFold(group, a.s.Group) {
		return cmp.Or(name, v.Name)
	}
	return group + "/" + name
}

// End implements provider.Provider: the machine is deleted with its disk, network interface and address.
func (a *Azure) End(ctx context.Context, id string) error {
	if err := a.end(ctx, id); err != nil {
		return fmt.Errorf("azure: end %s: %w", id, err)
	}
	return nil
}

func (a *Azure) end(ctx context.Context, id string) error {
	group, name, other := strings.Cut(id, "/")
	if !other {
		group, name = a.s.Group, id
	}
	v, err := a.wire.machine(ctx, group, name)
	if errors.Is(err, provider.ErrNotFound) && !other { // of our own group, by a name that only we give
		a.sweep(ctx, group, name)
	}
	if err != nil {
		return err
	}
	if err := a.wire.remove(ctx, group, "Microsoft.Compute/virtualMachines/"+name, computeVersion); err != nil {
		return err
	}
	if provider.FromTags(v.Tags) != (provider.Labels{}) {
		a.sweep(ctx, group, name)
	}
	return nil
}

// sweep deletes what goes with a machine. While that is being deleted they are in use, which is no error; what stayed of a
// failed create, or of a machine that the vendor took, is deleted here.
func (a *Azure) sweep(ctx context.Context, group, name string) {
	for _, left := range []struct{ path, version string }{
		{"Microsoft.Network/networkInterfaces/" + name + "-nic", networkVersion},
		{"Microsoft.Network/publicIPAddresses/" + name + "-ip", networkVersion},
		{"Microsoft.Compute/disks/" + name + "-disk", diskVersion},
	} {
		_ = a.wire.remove(ctx, group, left.path, left.version)
	}
}
