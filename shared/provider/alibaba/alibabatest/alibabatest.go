// Package alibabatest is a stand-in of the parts of Alibaba Cloud's ECS that lowtide asks, over a fake cloud: ACS3
// signatures checked by its own reckoning, parameters against what each action takes, numbers also in quotes, pages by
// token and by offset, times to the minute, ECS's own error codes.
//
// It sells what the fake cloud sells, at invented prices, in two regions of the international site. What it cannot show:
// what ECS does beyond its reference.
package alibabatest

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
	"sync"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// What the stand-in takes. The key opens nothing.
const (
	KeyID  = "LTAI-EXAMPLE-KEY-ID"
	Secret = "example/secret+of=nobody"
	Image  = "ubuntu_22_04_x64_example.vhd"
	Group  = "sg-example"
)

// Switches are the account's VSwitches by zone.
var Switches = map[string]string{"ap-southeast-1a": "vsw-a", "ap-southeast-1b": "vsw-b", "eu-central-1a": "vsw-c"}

// Market is a fake cloud that sells as ECS does: types in zones, tokens, a notice of five minutes.
func Market() fake.Config {
	return fake.Config{
		Cloud: "alibaba", Account: "main", NoHardEnd: true, Notice: 5 * time.Minute, KeepGone: -1,
		Traces: fake.Places("ap-southeast-1a", "ap-southeast-1b", "eu-central-1a"),
		Types: []fake.Type{
			{Name: "ecs.gn6i-c4g1.xlarge", GPU: "T4", GPUs: 1, OnDemand: 1.62, Spot: 0.4},
			{Name: "ecs.gn6v-c10g1.20xlarge", GPU: "V100", GPUs: 8, OnDemand: 29.5, Spot: 8.85},
			{Name: "ecs.gn7i-c8g1.2xlarge", GPU: "A10", GPUs: 1, OnDemand: 1.9},
		},
	}
}

// memory is what ECS says one GPU of a type has, GiB.
var memory = map[string]float64{"T4": 16, "V100": 16, "A10": 24}

// Server is one account. It is an http.Handler.
type Server struct {
	cloud *fake.Cloud
	knobs *fake.Knobs

	mu     sync.Mutex
	nonces map[string]bool
}

// New makes a stand-in of an account at c.
func New(c *fake.Cloud, k *fake.Knobs) *Server {
	return &Server{cloud: c, knobs: k, nonces: map[string]bool{}}
}

// fail is an error in ECS's words.
type fail struct {
	status    int
	code, msg string
}

func (f fail) Error() string { return f.code }

// ServeHTTP answers one call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	clock := s.knobs.Now().Add(s.knobs.Skew)
	w.Header().Set("Date", clock.UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json;charset=utf-8")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	err = s.verify(r, body, clock)
	if err == nil && s.knobs.Expired {
		err = fail{http.StatusForbidden, "InvalidSecurityToken.Expired", "The security token you provided has expired."}
	}
	var out any
	if err == nil {
		out, err = s.act(r.Header.Get("x-acs-action"), r.Header.Get("x-acs-version"), r.URL.Query())
	}
	if err != nil {
		f := words(err)
		w.WriteHeader(f.status)
		out = object{"RequestId": "00000000-0000-0000-0000-000000000000", "HostId": r.Host, "Code": f.code, "Message": f.msg}
	}
	_ = json.NewEncoder(w).Encode(out)
}

type object = map[string]any

// takes are the parameters of each action, as fake.Takes has them.
var takes = map[string][]string{
	"DescribeInstanceTypes":     {"RegionId", "MaxResults", "NextToken"},
	"DescribeAvailableResource": {"!RegionId", "!DestinationResource", "InstanceChargeType", "SpotStrategy", "IoOptimized"},
	"DescribeSpotPriceHistory":  {"!RegionId", "!NetworkType", "!InstanceType", "OSType", "Offset"},
	"DescribePrice":             {"!RegionId", "ResourceType", "!InstanceType", "PriceUnit", "Period", "Amount", "SystemDisk.Category"},
	"DescribeInstances":         {"!RegionId", "InstanceIds", "MaxResults", "NextToken"},
	"DeleteInstances":           {"!RegionId", "!InstanceId.#", "Force"},
	"RunInstances": {
		"!RegionId", "!ImageId", "!InstanceType", "!ZoneId", "!VSwitchId", "!SecurityGroupId", "InstanceName", "InstanceChargeType", "!SpotStrategy", "SpotDuration",
		"SpotInterruptionBehavior", "Amount", "!ClientToken", "IoOptimized", "SystemDisk.Category", "SystemDisk.Size", "HttpEndpoint", "HttpTokens", "UserData",
		"InternetChargeType", "InternetMaxBandwidthOut", "RamRoleName", "DryRun", "Tag.#.Key", "Tag.#.Value",
	},
}

func (s *Server) act(action, version string, v url.Values) (any, error) {
	known, ok := takes[action]
	if !ok || version != "2014-05-26" {
		return nil, fail{http.StatusNotFound, "InvalidAction.NotFound", "Specified api is not found, please check your url and method."}
	}
	unknown, lacks := fake.Takes(known, v)
	if unknown != "" {
		return nil, fail{http.StatusBadRequest, "InvalidParameter", unknown + " is not a parameter of " + action}
	}
	if lacks != "" {
		return nil, fail{http.StatusBadRequest, "MissingParameter", lacks + " is mandatory for this action."}
	}
	if n, err := strconv.Atoi(v.Get("MaxResults")); err == nil && n > 100 {
		return nil, fail{http.StatusBadRequest, "InvalidParameter", "MaxResults is at most 100"}
	}
	region := v.Get("RegionId")
	switch action {
	case "DescribeInstanceTypes":
		return s.types(v), nil
	case "DescribeAvailableResource":
		return s.resources(region, v)
	case "DescribeSpotPriceHistory":
		return s.history(region, v)
	case "DescribePrice":
		return s.price(v)
	case "DescribeInstances":
		return s.instances(region, v)
	case "RunInstances":
		return s.run(region, v)
	}
	return s.remove(region, v)
}

// in is a zone's region.
func in(zone string) string { return strings.TrimRight(zone, "abcdefghijklmnopqrstuvwxyz") }

// types lists what is sold, a machine without a GPU and one with a quarter of one.
func (s *Server) types(v url.Values) any {
	all := []object{
		{"InstanceTypeId": "ecs.g5.large", "GPUSpec": "", "GPUAmount": 0, "GPUMemorySize": 0},
		{"InstanceTypeId": "ecs.vgn6i-m4.xlarge", "GPUSpec": "NVIDIA T4", "GPUAmount": 1, "GPUMemorySize": 4},
	}
	for _, t := range Market().Types {
		all = append(all, object{"InstanceTypeId": t.Name, "GPUSpec": "NVIDIA " + t.GPU, "GPUAmount": t.GPUs, "GPUMemorySize": memory[t.GPU]})
	}
	from, to, next := s.slice(v, len(all), 2)
	return object{"InstanceTypes": object{"InstanceType": all[from:to]}, "NextToken": next}
}

// slice is one page, of size at most, and the token of the next.
func (s *Server) slice(v url.Values, n, size int) (from, to int, next string) {
	if m, err := strconv.Atoi(v.Get("MaxResults")); err == nil {
		size = min(size, m)
	}
	from, _ = strconv.Atoi(strings.TrimPrefix(v.Get("NextToken"), "page-"))
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

func (s *Server) resources(region string, v url.Values) (any, error) {
	all, err := s.cloud.Offers(context.Background())
	if err != nil {
		return nil, err
	}
	market := fleet.OnDemand
	if v.Get("SpotStrategy") != "NoSpot" {
		market = fleet.Spot
	}
	byZone := map[string][]object{}
	for _, o := range all {
		if o.Market != market || in(o.Zone) != region {
			continue
		}
		status, category := "Available", "WithStock"
		if o.Stock.Or(1) <= 0 {
			status, category = "SoldOut", "WithoutStock"
		}
		byZone[o.Zone] = append(byZone[o.Zone], object{"Value": o.Type, "Status": status, "StatusCategory": category})
	}
	var zones []object
	for _, z := range fleet.Sorted(byZone) {
		zones = append(zones, object{"RegionId": region, "ZoneId": z, "Status": "Available", "StatusCategory": "WithStock", "AvailableResources": object{
			"AvailableResource": []object{{"Type": "InstanceType", "SupportedResources": object{"SupportedResource": byZone[z]}}},
		}})
	}
	return object{"AvailableZones": object{"AvailableZone": zones}}, nil
}

// history is the last hours' prices of a type: the one in force, in quotes, and one before it that is over; by offset.
func (s *Server) history(region string, v url.Values) (any, error) {
	all, err := s.cloud.Offers(context.Background())
	if err != nil {
		return nil, err
	}
	onDemand := map[string]string{}
	for _, o := range all {
		if o.Market == fleet.OnDemand {
			onDemand[o.Zone+o.Type] = o.Price.Amount.Amount.String()
		}
	}
	now := s.knobs.Now().UTC()
	var rows []object
	for _, o := range all {
		if o.Market != fleet.Spot || in(o.Zone) != region || o.Type != v.Get("InstanceType") {
			continue
		}
		row := func(price any, at time.Time) object {
			return object{
				"ZoneId": o.Zone, "InstanceType": o.Type, "SpotPrice": price, "OriginPrice": onDemand[o.Zone+o.Type], "Timestamp": at.Format("2006-01-02T15:04:05Z"),
				"IoOptimized": "optimized", "NetworkType": "vpc",
			}
		}
		rows = append(rows, row(o.Price.Amount.Amount.String(), now.Add(-time.Hour)), row(99, now.Add(-2*time.Hour)))
	}
	from, _ := strconv.Atoi(v.Get("Offset"))
	from = min(from, len(rows))
	to := min(from+1, len(rows))
	out := object{"Currency": "USD", "SpotPrices": object{"SpotPriceType": rows[from:to]}}
	if to < len(rows) {
		out["NextOffset"] = to
	}
	return out, nil
}

// price is that of one machine with a disk, for an hour, a month or a year; a subscription costs half.
func (s *Server) price(v url.Values) (any, error) {
	i := slices.IndexFunc(Market().Types, func(t fake.Type) bool { return t.Name == v.Get("InstanceType") })
	hours := map[string]float64{"Hour": 1, "Month": 730 / 2.0, "Year": 8760 / 2.0}[v.Get("PriceUnit")]
	if i < 0 || hours == 0 {
		return nil, fail{http.StatusNotFound, "InvalidInstanceType.NotFound", "The specified InstanceType is not found."}
	}
	sum := Market().Types[i].OnDemand * hours
	return object{"PriceInfo": object{"Price": object{
		"Currency": "USD", "OriginalPrice": sum + 7, "TradePrice": sum + 7, "DetailInfos": object{"DetailInfo": []object{
			{"Resource": "systemDisk", "OriginalPrice": 7, "TradePrice": 7}, {"Resource": "instanceType", "OriginalPrice": sum, "TradePrice": sum},
		}},
	}}}, nil
}

func (s *Server) instances(region string, v url.Values) (any, error) {
	all, err := s.cloud.List(context.Background())
	if err != nil {
		return nil, err
	}
	var ids []string
	if text := v.Get("InstanceIds"); text != "" && json.Unmarshal([]byte(text), &ids) != nil {
		return nil, fail{http.StatusBadRequest, "InvalidParameter.InstanceIds", "a JSON list of ids"}
	}
	all = slices.DeleteFunc(all, func(m provider.Machine) bool {
		return in(m.Offer.Zone) != region || len(ids) > 0 && !slices.Contains(ids, m.ID) || m.State == provider.Gone
	})
	from, to, next := s.slice(v, len(all), 20)
	rows := []object{}
	for _, m := range all[from:to] {
		rows = append(rows, row(m))
	}
	return object{"NextToken": next, "Instances": object{"Instance": rows}}, nil
}

func row(m provider.Machine) object {
	strategy := "NoSpot"
	if m.Offer.Market == fleet.Spot {
		strategy = "SpotAsPriceGo"
	}
	var tags []object
	for k, t := range m.Labels.Tags() {
		tags = append(tags, object{"TagKey": k, "TagValue": t})
	}
	return object{
		"InstanceId": m.ID, "InstanceType": m.Offer.Type, "ZoneId": m.Offer.Zone, "InstanceChargeType": "PostPaid", "SpotStrategy": strategy,
		"Status":       map[provider.State]string{provider.Pending: "Pending", provider.Running: "Running", provider.Ending: "Stopping"}[m.State],
		"CreationTime": m.Since.UTC().Format("2006-01-02T15:04Z"), "Tags": object{"Tag": tags}, "OperationLocks": object{"LockReason": []object{}},
	}
}

// run is a purchase: every rule that ECS has for these parameters and that a test could break.
func (s *Server) run(region string, v url.Values) (any, error) {
	bad := func(code, msg string) (any, error) { return nil, fail{http.StatusBadRequest, code, msg} }
	data, err := base64.StdEncoding.DecodeString(v.Get("UserData"))
	zone := v.Get("ZoneId")
	spot := v.Get("SpotStrategy") == "SpotAsPriceGo"
	switch {
	case v.Get("ImageId") != Image:
		return bad("InvalidImageId.NotFound", "The specified ImageId does not exist.")
	case v.Get("SecurityGroupId") != Group:
		return bad("InvalidSecurityGroupId.NotFound", "The specified security group does not exist.")
	case in(zone) != region || v.Get("VSwitchId") != Switches[zone]:
		return bad("InvalidVSwitchId.NotFound", "The specified virtual switch does not exist in the zone.")
	case len(v.Get("ClientToken")) > 64:
		return bad("InvalidClientToken.Malformed", "at most 64 characters")
	case err != nil || len(data) > 16384:
		return bad("InvalidUserData.Base64FormatInvalid", "user data")
	case v.Get("Amount") != "1" || v.Get("InstanceChargeType") != "PostPaid" || !spot && v.Get("SpotStrategy") != "NoSpot":
		return bad("InvalidParameter", "count, charge type or strategy")
	case !spot && v.Get("SpotDuration")+v.Get("SpotInterruptionBehavior") != "":
		return bad("InvalidParameter.Conflict", "only with a spot strategy")
	}
	if v.Get("DryRun") == "true" {
		return bad("DryRunOperation", "Request validation has been passed with DryRun flag set.")
	}
	tags := map[string]string{}
	for i := 1; v.Get(fmt.Sprintf("Tag.%d.Key", i)) != ""; i++ {
		tags[v.Get(fmt.Sprintf("Tag.%d.Key", i))] = v.Get(fmt.Sprintf("Tag.%d.Value", i))
	}
	o := fleet.Offer{Type: v.Get("InstanceType"), Zone: zone, Market: fleet.OnDemand}
	if spot && !s.knobs.Swap {
		o.Market = fleet.Spot
	}
	m, err := s.cloud.Launch(context.Background(), provider.Request{
		Token: v.Get("ClientToken"), Name: v.Get("InstanceName"), Offer: o, Labels: provider.FromTags(tags), UserData: string(data),
	})
	if err != nil {
		return nil, err
	}
	return object{"InstanceIdSets": object{"InstanceIdSet": []string{m.ID}}}, nil
}

func (s *Server) remove(region string, v url.Values) (any, error) {
	id := v.Get("InstanceId.1")
	bill := s.cloud.Bill()
	i := slices.IndexFunc(bill, func(r fake.Rental) bool { return r.ID == id && r.Bills() && in(r.Offer.Zone) == region })
	switch {
	case i < 0:
		return nil, fail{http.StatusNotFound, "InvalidInstanceId.NotFound", "The specified InstanceId does not exist."}
	case !strings.EqualFold(v.Get("Force"), "true"): // Python clients write True
		return nil, fail{http.StatusForbidden, "IncorrectInstanceStatus", "The machine runs."}
	}
	if err := s.cloud.End(context.Background(), id); err != nil {
		return nil, err
	}
	return object{}, nil
}

// words puts an error into ECS's words.
func words(err error) fail {
	var f fail
	if errors.As(err, &f) {
		return f
	}
	switch {
	case errors.Is(err, provider.ErrUnknown):
		panic(http.ErrAbortHandler) // the answer is lost
	case errors.Is(err, provider.ErrThrottled):
		return fail{http.StatusBadRequest, "Throttling.User", "Request was denied due to user flow control."}
	case errors.Is(err, provider.ErrUnavailable):
		return fail{http.StatusServiceUnavailable, "ServiceUnavailable", "The request has failed due to a temporary failure of the server."}
	case errors.Is(err, provider.ErrDenied):
		return fail{http.StatusForbidden, "Forbidden.RAM", "User not authorized to operate on the specified resource."}
	case errors.Is(err, provider.ErrNoCapacity):
		return fail{http.StatusForbidden, "OperationDenied.NoStock", "The resource is out of stock in the specified zone."}
	case errors.Is(err, provider.ErrQuota):
		return fail{http.StatusForbidden, "QuotaExceed.ElasticQuota", "The number of vCPUs exceeds the quota."}
	case errors.Is(err, provider.ErrNotFound):
		return fail{http.StatusNotFound, "InvalidInstanceId.NotFound", "The specified InstanceId does not exist."}
	case strings.Contains(err.Error(), "token"):
		return fail{http.StatusBadRequest, "IdempotentParameterMismatch", "The specified parameter has changed while using an already used clientToken."}
	}
	return fail{http.StatusBadRequest, "InvalidInstanceType.ValueNotSupported", "The specified InstanceType is not supported."}
}
