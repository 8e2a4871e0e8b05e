// Package volcenginetest is a stand-in of the parts of Volcano Engine's ECS and billing that lowtide asks, over a fake
// cloud: signatures checked by its own reckoning, parameters against what each action takes, pages by token, prices
// without a currency where the vendor has none, refusals inside a 200 of a deletion.
//
// It sells what the fake cloud sells, at invented prices. Its error codes are invented where the vendor publishes none.
// What it cannot show: what ECS does beyond its reference.
package volcenginetest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// What the stand-in takes. The key opens nothing.
const (
	KeyID  = "AKLTexamplekeyid0123456789"
	Secret = "examplesecret+of/nobody=="
	Image  = "image-example"
	Group  = "sg-example"
	Config = "ecs.{type}" // the account's configuration code
	Item   = "instance"
)

// Subnets are the account's subnets by zone.
var Subnets = map[string]string{"cn-beijing-a": "subnet-a", "cn-beijing-b": "subnet-b", "cn-shanghai-a": "subnet-c"}

// Market is a fake cloud that sells as ECS does: types in zones, tokens, a notice of five minutes.
func Market() fake.Config {
	return fake.Config{
		Cloud: "volcengine", Account: "main", NoHardEnd: true, Notice: 5 * time.Minute, KeepGone: -1,
		Traces: fake.Places("cn-beijing-a", "cn-beijing-b", "cn-shanghai-a"),
		Types: []fake.Type{
			{Name: "ecs.gni2.3xlarge", GPU: "A10", GPUs: 1, OnDemand: 14.4, Spot: 3.61},
			{Name: "ecs.pni2.28xlarge", GPU: "A100", GPUs: 8, OnDemand: 265.3, Spot: 88.4},
			{Name: "ecs.g1ve.2xlarge", GPU: "V100", GPUs: 1, OnDemand: 13.1},
		},
	}
}

// devices is what ECS calls the GPUs, and MiB of one.
var devices = map[string]struct {
	name string
	mib  int
}{"A10": {"NVIDIA A10", 24576}, "A100": {"NVIDIA A100-SXM4-80GB", 81920}, "V100": {"NVIDIA Tesla V100", 32768}}

// Server is one account. It is an http.Handler.
type Server struct {
	cloud *fake.Cloud
	knobs *fake.Knobs
}

// New makes a stand-in of an account at c.
func New(c *fake.Cloud, k *fake.Knobs) *Server { return &Server{c, k} }

// fail is an error in the vendor's words.
type fail struct {
	status int
	code   string
}

func (f fail) Error() string { return f.code }

type object = map[string]any

// ServeHTTP answers one call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	clock := s.knobs.Now().Add(s.knobs.Skew)
	w.Header().Set("Date", clock.UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	q := r.URL.Query()
	meta := object{
		"RequestId": "20260101000000000000000000000001", "Action": q.Get("Action"), "Version": q.Get("Version"), "Service": "ecs", "Region": "cn-beijing",
	}
	out := object{"ResponseMetadata": meta}
	region, err := verify(r, body, clock)
	if err == nil && s.knobs.Expired {
		err = fail{http.StatusUnauthorized, "InvalidSecurityToken"}
	}
	if err == nil {
		out["Result"], err = s.act(region, r.Method, q, body)
	}
	if err != nil {
		f := words(err)
		w.WriteHeader(f.status)
		delete(out, "Result")
		meta["Error"] = object{"CodeN": 0, "Code": f.code, "Message": "words that may repeat " + r.Header.Get("Authorization")}
	}
	_ = json.NewEncoder(w).Encode(out) // whoever has hung up is told nothing
}

// takes are the parameters of each action, as fake.Takes has them.
var takes = map[string][]string{
	"DescribeInstanceTypes":     {"MaxResults", "NextToken"},
	"DescribeAvailableResource": {"!DestinationResource", "InstanceChargeType", "SpotStrategy", "ZoneId"},
	"DescribeSpotPriceHistory":  {"!InstanceTypeId", "ZoneId", "TimestampStart", "TimestampEnd", "MaxResults", "NextToken"},
	"DescribeInstances":         {"InstanceIds.#", "MaxResults", "NextToken"},
	"DeleteInstances":           {"!InstanceIds.#", "ClientToken"},
	"RunInstances": {
		"!ZoneId", "!InstanceTypeId", "!ImageId", "!InstanceName", "!NetworkInterfaces.#.SubnetId", "!NetworkInterfaces.#.SecurityGroupIds.#",
		"!Volumes.#.VolumeType", "!Volumes.#.Size", "Volumes.#.DeleteWithInstance", "InstanceChargeType", "SpotStrategy", "SpotPriceLimit", "Count", "MinCount",
		"Tags.#.Key", "Tags.#.Value", "ClientToken", "UserData", "EipAddress.ChargeType", "EipAddress.BandwidthMbps", "EipAddress.ReleaseWithInstance", "DryRun",
	},
}

func (s *Server) act(region, method string, q url.Values, body []byte) (any, error) {
	action, version := q.Get("Action"), q.Get("Version")
	q.Del("Action")
	q.Del("Version")
	if strings.HasPrefix(action, "QueryPrice") && version == "2022-01-01" && method == http.MethodPost {
		return s.price(action, body)
	}
	known, ok := takes[action]
	if !ok || version != "2020-04-01" || method != http.MethodGet {
		return nil, fail{http.StatusNotFound, "InvalidActionOrVersion"}
	}
	unknown, lacks := fake.Takes(known, q)
	if unknown != "" || lacks != "" {
		return nil, fail{http.StatusBadRequest, "InvalidParameter." + unknown + lacks}
	}
	if n, err := strconv.Atoi(q.Get("MaxResults")); err == nil && n > 100 {
		return nil, fail{http.StatusBadRequest, "InvalidParameter.MaxResults"}
	}
	switch action {
	case "DescribeInstanceTypes":
		return s.types(q), nil
	case "DescribeAvailableResource":
		return s.resources(region, q)
	case "DescribeSpotPriceHistory":
		return s.history(region, q)
	case "DescribeInstances":
		return s.instances(region, q)
	case "RunInstances":
		return s.run(region, q)
	}
	return s.remove(region, q)
}

// in is a zone's region.
func in(zone string) string { return zone[:strings.LastIndex(zone, "-")] }

// types lists what is sold, a machine without a GPU and one with a share of one.
func (s *Server) types(q url.Values) any {
	row := func(id, name string, count, mib int) object {
		return object{
			"InstanceTypeId": id, "InstanceTypeFamily": strings.Split(id, ".")[1], "Processor": object{"Cpus": 8}, "Memory": object{"Size": 32768},
			"Gpu": object{"GpuDevices": []object{{"Count": count, "ProductName": name, "Memory": object{"Size": mib, "EncryptedSize": 0}}}},
		}
	}
	all := []object{{"InstanceTypeId": "ecs.g3i.large", "Gpu": object{"GpuDevices": []object{}}}, row("ecs.vgn2i.large", "NVIDIA A10", 1, 6144)}
	for _, t := range Market().Types {
		all = append(all, row(t.Name, devices[t.GPU].name, t.GPUs, devices[t.GPU].mib))
	}
	from, to, next := s.slice(q, len(all), 2)
	return object{"InstanceTypes": all[from:to], "NextToken": next, "TotalCount": len(all)}
}

// slice is one page, of size at most, and the token of the next.
func (s *Server) slice(q url.Values, n, size int) (from, to int, next string) {
	if m, err := strconv.Atoi(q.Get("MaxResults")); err == nil {
		size = min(size, m)
	}
	from, _ = strconv.Atoi(strings.TrimPrefix(q.Get("NextToken"), "page-"))
	from = min(from, n)
	to = min(from+size, n)
	if to < n {
		next = fmt.Sprintf("page-%d", to)
	}
	if s.knobs.Loop {
		next = "page-0"
	}
	return from, to, next
}

func (s *Server) resources(region string, q url.Values) (any, error) {
	all, err := s.cloud.Offers(context.Background())
	if err != nil {
		return nil, err
	}
	market := fleet.OnDemand
	if strings.HasPrefix(q.Get("SpotStrategy"), "Spot") {
		market = fleet.Spot
	}
	byZone := map[string][]object{}
	for _, o := range all {
		if o.Market != market || in(o.Zone) != region {
			continue
		}
		status := "Available"
		if o.Stock.Or(1) <= 0 {
			status = "SoldOut"
		}
		byZone[o.Zone] = append(byZone[o.Zone], object{"Value": o.Type, "Status": status})
	}
	zones := []object{}
	for _, z := range fleet.Sorted(byZone) {
		zones = append(zones, object{"RegionId": region, "ZoneId": z, "Status": "Available", "AvailableResources": []object{
			{"Type": "InstanceType", "SupportedResources": byZone[z]},
		}})
	}
	return object{"AvailableZones": zones}, nil
}

// history is the last hours' prices of a type: one that is over, and the one in force.
func (s *Server) history(region string, q url.Values) (any, error) {
	all, err := s.cloud.Offers(context.Background())
	if err != nil {
		return nil, err
	}
	now := s.knobs.Now().UTC()
	rows := []object{}
	for _, o := range all {
		if o.Market != fleet.Spot || in(o.Zone) != region || o.Type != q.Get("InstanceTypeId") {
			continue
		}
		row := func(price float64, at time.Time) object {
			return object{"ZoneId": o.Zone, "InstanceTypeId": o.Type, "SpotPrice": price, "Timestamp": at.Format(time.RFC3339)}
		}
		rows = append(rows, row(o.Price.Amount.Float(), now.Add(-time.Hour)), row(99, now.Add(-2*time.Hour)))
	}
	from, to, next := s.slice(q, len(rows), 1)
	return object{"SpotPrices": rows[from:to], "NextToken": next}, nil
}

// price is that of one machine for an hour or for months, as text; this account pays nine tenths, and a subscription
// costs half.
func (s *Server) price(action string, body []byte) (any, error) {
	var in struct {
		Product    string
		ConfigList []struct {
			ConfigurationCode, ChargeItemCode, Count string
			Quantity, UseDuration                    int
		}
	}
	if err := json.Unmarshal(body, &in); err != nil || in.Product != "ecs" || len(in.ConfigList) != 1 {
		return nil, fail{http.StatusBadRequest, "InvalidParameter"}
	}
	c := in.ConfigList[0]
	for _, t := range Market().Types {
		if c.ConfigurationCode != "ecs."+t.Name || c.ChargeItemCode != Item {
			continue
		}
		hours := 1.0
		if action == "QueryPriceForSubscription" {
			hours = 365 * float64(c.UseDuration)
		}
		sum := func(times float64) string { return strconv.FormatFloat(t.OnDemand*hours*times, 'f', 4, 64) }
		return object{"Currency": "CNY", "TotalOriginalAmount": sum(1), "TotalDiscountAmount": sum(0.9), "ConfigList": []object{}}, nil
	}
	return nil, fail{http.StatusBadRequest, "InvalidParameter.ConfigurationCode"}
}

func (s *Server) instances(region string, q url.Values) (any, error) {
	all, err := s.cloud.List(context.Background())
	if err != nil {
		return nil, err
	}
	id := q.Get("InstanceIds.1")
	all = slices.DeleteFunc(all, func(m provider.Machine) bool {
		return in(m.Offer.Zone) != region || id != "" && m.ID != id || m.State == provider.Gone
	})
	from, to, next := s.slice(q, len(all), 20)
	rows := []object{}
	for _, m := range all[from:to] {
		rows = append(rows, row(m))
	}
	return object{"Instances": rows, "NextToken": next, "TotalCount": len(all)}, nil
}

func row(m provider.Machine) object {
	strategy := "NoSpot"
	if m.Offer.Market == fleet.Spot {
		strategy = "SpotAsPriceGo"
	}
	tags := []object{}
	for k, t := range m.Labels.Tags() {
		tags = append(tags, object{"Key": k, "Value": t})
	}
	return object{
		"InstanceId": m.ID, "InstanceTypeId": m.Offer.Type, "ZoneId": m.Offer.Zone, "InstanceChargeType": "PostPaid", "SpotStrategy": strategy,
		"Status":    map[provider.State]string{provider.Pending: "CREATING", provider.Running: "RUNNING", provider.Ending: "DELETING"}[m.State],
		"CreatedAt": m.Since.In(time.FixedZone("CST", 8*3600)).Format(time.RFC3339), "Tags": tags, "StoppedMode": "",
	}
}

// run is a purchase: every rule that ECS has for these parameters and that a test could break.
func (s *Server) run(region string, q url.Values) (any, error) {
	bad := func(code string) (any, error) { return nil, fail{http.StatusBadRequest, code} }
	data, err := base64.StdEncoding.DecodeString(q.Get("UserData"))
	zone, strategy := q.Get("ZoneId"), q.Get("SpotStrategy")
	switch {
	case q.Get("ImageId") != Image:
		return bad("InvalidImage.NotFound")
	case q.Get("NetworkInterfaces.1.SecurityGroupIds.1") != Group:
		return bad("InvalidSecurityGroup.NotFound")
	case in(zone) != region || q.Get("NetworkInterfaces.1.SubnetId") != Subnets[zone]:
		return bad("InvalidSubnet.NotFound")
	case len(q.Get("ClientToken")) > 64:
		return bad("InvalidClientToken.Malformed")
	case err != nil || len(data) > 16384:
		return bad("InvalidUserData.Malformed")
	case q.Get("Count") != "1" || q.Get("InstanceChargeType") != "PostPaid" || strategy != "NoSpot" && strategy != "SpotAsPriceGo":
		return bad("InvalidParameter")
	}
	if q.Get("DryRun") == "true" {
		return bad("DryRunOperation")
	}
	tags := map[string]string{}
	for i := 1; q.Get(fmt.Sprintf("Tags.%d.Key", i)) != ""; i++ {
		tags[q.Get(fmt.Sprintf("Tags.%d.Key", i))] = q.Get(fmt.Sprintf("Tags.%d.Value", i))
	}
	o := fleet.Offer{Type: q.Get("InstanceTypeId"), Zone: zone, Market: fleet.OnDemand}
	if strategy == "SpotAsPriceGo" && !s.knobs.Swap {
		o.Market = fleet.Spot
	}
	m, err := s.cloud.Launch(context.Background(), provider.Request{
		Token: q.Get("ClientToken"), Name: q.Get("InstanceName"), Offer: o, Labels: provider.FromTags(tags), UserData: string(data),
	})
	if err != nil {
		return nil, err
	}
	return object{"InstanceIds": []string{m.ID}}, nil
}

// remove refuses inside a 200, as the vendor does.
func (s *Server) remove(region string, q url.Values) (any, error) {
	id := q.Get("InstanceIds.1")
	bill := s.cloud.Bill()
	i := slices.IndexFunc(bill, func(r fake.Rental) bool { return r.ID == id && r.Bills() && in(r.Offer.Zone) == region })
	detail := object{"InstanceId": id}
	if i < 0 {
		detail["Error"] = object{"Code": "InvalidInstance.NotFound", "Message": "The specified instance does not exist."}
	} else if err := s.cloud.End(context.Background(), id); err != nil {
		return nil, err
	}
	return object{"OperationDetails": []object{detail}}, nil
}

// words puts an error into the vendor's words.
func words(err error) fail {
	var f fail
	if errors.As(err, &f) {
		return f
	}
	switch {
	case errors.Is(err, provider.ErrUnknown):
		panic(http.ErrAbortHandler) // the answer is lost
	case errors.Is(err, provider.ErrThrottled):
		return fail{http.StatusTooManyRequests, "AccountFlowLimitExceeded"}
	case errors.Is(err, provider.ErrUnavailable):
		return fail{http.StatusServiceUnavailable, "ServiceUnavailable"}
	case errors.Is(err, provider.ErrDenied):
		return fail{http.StatusForbidden, "AccessDenied"}
	case errors.Is(err, provider.ErrNoCapacity):
		return fail{http.StatusBadRequest, "OperationDenied.NoStock"}
	case errors.Is(err, provider.ErrQuota):
		return fail{http.StatusBadRequest, "LimitExceeded.MaximumInstances"}
	case errors.Is(err, provider.ErrNotFound):
		return fail{http.StatusNotFound, "InvalidInstance.NotFound"}
	case strings.Contains(err.Error(), "token"):
		return fail{http.StatusBadRequest, "IdempotentParameterMismatch"}
	}
	return fail{http.StatusBadRequest, "InvalidInstanceType.NotFound"}
}
