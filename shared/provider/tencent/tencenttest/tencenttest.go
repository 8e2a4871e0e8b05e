// Package tencenttest is a stand-in of the parts of Tencent Cloud CVM that lowtide asks, over a fake cloud: signatures
// checked by its own reckoning, parameters against what each action takes, 200 for every answer, pages by number, the
// vendor's own codes, prices filled with zeros where they do not apply.
//
// It sells what the fake cloud sells, at invented prices. What it cannot show: what CVM does beyond its description, such
// as the code for a token that was used with other parameters, which is invented here.
package tencenttest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// The credentials that the stand-in takes are the vendor's printed example; they open nothing. Image is the image that it has in every region.
const (
	ID    = "AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE"
	Key   = "Gu5t9xGARNpq86cd98joQYCN3EXAMPLE"
	Image = "img-0example"
)

// Market is a fake cloud that sells as CVM does: types in zones, tokens, an end at a set time; what is gone is not listed.
func Market() fake.Config {
	return fake.Config{
		Cloud: "tencent", Account: "main", Notice: -1, KeepGone: -1, Traces: fake.Places("ap-guangzhou-6", "ap-guangzhou-7", "na-siliconvalley-2"),
		Types: []fake.Type{
			{Name: "GN7.2XLARGE32", GPU: "T4", GPUs: 1, OnDemand: 1.14, Spot: 0.17},
			{Name: "GN10Xp.2XLARGE40", GPU: "V100", GPUs: 1, OnDemand: 1.72, Spot: 0.26},
			{Name: "GT4.41XLARGE948", GPU: "A100", GPUs: 8, OnDemand: 31.4, Spot: 6.1},
			{Name: "PNV9.4XLARGE64", GPUs: 1, OnDemand: 2.5, Spot: 0.4}, // of a family that nobody knows
		},
	}
}

// Server is one account. It is an http.Handler.
type Server struct {
	cloud *fake.Cloud
	knobs *fake.Knobs
}

// New makes a stand-in of an account at c.
func New(c *fake.Cloud, k *fake.Knobs) *Server { return &Server{c, k} }

// fail is a refusal: the vendor's code.
type fail string

func (f fail) Error() string { return string(f) }

// ServeHTTP answers the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	clock := s.knobs.Now().Add(s.knobs.Skew)
	w.Header().Set("Date", clock.UTC().Format(http.TimeFormat))
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out := map[string]any{}
	err = verify(r, body, clock)
	if err == nil && s.knobs.Expired {
		err = fail("AuthFailure.TokenFailure")
	}
	if err == nil {
		out, err = s.act(r, body)
	}
	if err != nil {
		out = map[string]any{"Error": map[string]string{"Code": code(err), "Message": "words that may repeat " + r.Header.Get("Authorization")}}
	}
	out["RequestId"] = "00000000-0000-0000-0000-000000000000"
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"Response": out}) // whoever has hung up is told nothing
}

// code puts an error into the vendor's words.
func code(err error) string {
	var f fail
	switch {
	case errors.As(err, &f):
		return string(f)
	case errors.Is(err, provider.ErrUnknown):
		panic(http.ErrAbortHandler) // the answer is lost
	case errors.Is(err, provider.ErrThrottled):
		return "RequestLimitExceeded"
	case errors.Is(err, provider.ErrUnavailable):
		return "ServiceUnavailable"
	case errors.Is(err, provider.ErrDenied):
		return "UnauthorizedOperation"
	case errors.Is(err, provider.ErrNoCapacity):
		return "ResourcesSoldOut.SpecifiedInstanceType"
	case errors.Is(err, provider.ErrQuota):
		return "LimitExceeded.InstanceQuota"
	case errors.Is(err, provider.ErrNotFound):
		return "InvalidInstanceId.NotFound"
	case strings.Contains(err.Error(), "token"):
		return "InvalidParameterConflict"
	}
	return "InvalidParameterValue.InstanceTypeNotFound"
}

// decode refuses what an action does not take.
func decode(body []byte, in any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if d.Decode(in) != nil {
		return fail("UnknownParameter")
	}
	return nil
}

func (s *Server) act(r *http.Request, body []byte) (map[string]any, error) {
	region := r.Header.Get("X-TC-Region")
	switch {
	case r.Header.Get("X-TC-Version") != "2017-03-12":
		return nil, fail("NoSuchVersion")
	case r.Method != http.MethodPost, !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json"):
		return nil, fail("UnsupportedProtocol")
	case !slices.Contains([]string{"ap-guangzhou", "na-siliconvalley"}, region):
		return nil, fail("UnsupportedRegion")
	}
	switch r.Header.Get("X-TC-Action") {
	case "DescribeZoneInstanceConfigInfos":
		return s.quotas(region, body)
	case "DescribeInstances":
		return s.instances(region, body)
	case "RunInstances":
		return s.run(region, body)
	case "TerminateInstances":
		return s.terminate(region, body)
	}
	return nil, fail("InvalidAction")
}

// in is a zone's region.
func in(zone string) string { return zone[:strings.LastIndex(zone, "-")] }

var words = map[fleet.Market]string{fleet.OnDemand: "POSTPAID_BY_HOUR", fleet.Spot: "SPOTPAID"}

// quotas is what is sold, a subscription of each type, a machine without a GPU and one with a quarter of one.
func (s *Server) quotas(region string, body []byte) (map[string]any, error) {
	var q struct {
		Filters []struct {
			Name   string
			Values []string
		}
	}
	if err := decode(body, &q); err != nil {
		return nil, err
	}
	charges := []string{"POSTPAID_BY_HOUR"}
	for _, f := range q.Filters {
		if f.Name != "instance-charge-type" {
			return nil, fail("InvalidFilter")
		}
		charges = f.Values
	}
	all, err := s.cloud.Offers(context.Background())
	if err != nil {
		return nil, err
	}
	rows := []map[string]any{}
	add := func(zone, kind, charge string, gpus, hour float64, sold bool) {
		if in(zone) != region || !slices.Contains(charges, charge) {
			return
		}
		family, _, _ := strings.Cut(kind, ".")
		price := map[string]any{}
		for _, k := range []string{"UnitPrice", "UnitPriceDiscount", "UnitPriceSecondStep", "OriginalPrice", "DiscountPrice", "DiscountPriceThreeYear"} {
			price[k] = 0
		}
		price["DiscountPriceOneYear"], price["ChargeUnit"] = nil, "HOUR"
		if charge == "PREPAID" {
			price["OriginalPrice"], price["DiscountPrice"], price["DiscountPriceOneYear"] = hour*730, hour*438, hour*4380
		} else {
			price["UnitPrice"], price["UnitPriceDiscount"], price["OriginalPrice"] = hour*2, hour, 59
		}
		status, category := "SELL", "EnoughStock"
		if !sold {
			status, category = "SOLD_OUT", "WithoutStock"
		}
		rows = append(rows, map[string]any{
			"Zone": zone, "InstanceType": kind, "InstanceFamily": family, "InstanceChargeType": charge, "Cpu": 8, "Memory": 32, "Gpu": int(gpus),
			"GpuCount": gpus, "Status": status, "StatusCategory": category, "SoldOutReason": "", "Price": price,
		})
	}
	for _, o := range all {
		add(o.Zone, o.Type, words[o.Market], float64(o.GPUs), o.Price.Amount.Float(), o.Stock.Or(1) > 0)
		if o.Market == fleet.OnDemand {
			add(o.Zone, o.Type, "PREPAID", float64(o.GPUs), o.Price.Amount.Float(), true)
		}
	}
	for _, p := range Market().Traces {
		add(p.Zone, "S5.LARGE8", words[fleet.OnDemand], 0, 0.1, true)
		add(p.Zone, "GN7.LARGE20", words[fleet.OnDemand], 0.25, 0.3, true)
		add(p.Zone, "HCCPNV4h.34XLARGE1088", words[fleet.OnDemand], 8, 40, true)
	}
	return map[string]any{"InstanceTypeQuotaSet": rows}, nil
}

func (s *Server) instances(region string, body []byte) (map[string]any, error) {
	var q struct {
		InstanceIds   []string
		Offset, Limit int
	}
	if err := decode(body, &q); err != nil {
		return nil, err
	}
	if q.Limit > 100 || len(q.InstanceIds) > 0 && q.Limit+q.Offset > 0 {
		return nil, fail("InvalidParameterValue.LimitExceeded")
	}
	all, err := s.cloud.List(context.Background())
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(m provider.Machine) bool {
		return in(m.Offer.Zone) != region || len(q.InstanceIds) > 0 && !slices.Contains(q.InstanceIds, Number(m.ID))
	})
	size := min(20, max(q.Limit, 1))
	from, total := min(q.Offset, len(all)), len(all)
	if s.knobs.Loop {
		from, total = 0, 1<<20
	}
	set := []map[string]any{}
	for _, m := range all[from:min(from+size, len(all))] {
		set = append(set, show(m))
	}
	return map[string]any{"TotalCount": total, "InstanceSet": set}, nil
}

func show(m provider.Machine) map[string]any {
	tags := []map[string]string{}
	all := m.Labels.Tags()
	for _, k := range fleet.Sorted(all) {
		tags = append(tags, map[string]string{"Key": k, "Value": all[k]})
	}
	return map[string]any{
		"InstanceId": Number(m.ID), "InstanceType": m.Offer.Type, "InstanceChargeType": words[m.Offer.Market], "Placement": map[string]any{"Zone": m.Offer.Zone, "ProjectId": 0},
		"InstanceState": map[provider.State]string{provider.Pending: "PENDING", provider.Running: "RUNNING", provider.Ending: "TERMINATING"}[m.State],
		"CreatedTime":   m.Since.UTC().Format(time.RFC3339), "Tags": tags, "ExpiredTime": nil, "RestrictState": "NORMAL",
	}
}

// order is all that RunInstances takes of us.
type order struct {
	Placement                                 struct{ Zone string }
	InstanceType, ImageId, InstanceChargeType string
	InstanceName, UserData, ClientToken       string
	InstanceCount                             int
	DryRun                                    bool
	InstanceMarketOptions                     *struct {
		MarketType  string
		SpotOptions struct{ MaxPrice, SpotInstanceType string }
	}
	VirtualPrivateCloud *struct{ VpcId, SubnetId string }
	InternetAccessible  *struct {
		InternetChargeType      string
		InternetMaxBandwidthOut int
		PublicIpAssigned        bool
	}
	SystemDisk       *struct{ DiskSize int }
	SecurityGroupIds []string
	TagSpecification []struct {
		ResourceType string
		Tags         []struct{ Key, Value string }
	}
	ActionTimer *struct{ TimerAction, ActionTime string }
}

// run is a purchase: every rule that CVM has for these parameters and that a test could break.
func (s *Server) run(region string, body []byte) (map[string]any, error) {
	var o order
	if err := decode(body, &o); err != nil {
		return nil, err
	}
	data, err := base64.StdEncoding.DecodeString(o.UserData)
	switch {
	case o.Placement.Zone == "" || o.InstanceType == "" || o.ImageId == "":
		return nil, fail("MissingParameter")
	case o.ImageId != Image:
		return nil, fail("InvalidImageId.NotFound")
	case err != nil || len(data) > 16<<10:
		return nil, fail("InvalidParameterValue.InvalidUserDataFormat")
	case o.InstanceCount != 1:
		return nil, fail("InvalidParameterValue.Range")
	case len(o.ClientToken) > 64:
		return nil, fail("InvalidClientToken.TooLong")
	case len(o.InstanceName) > 60:
		return nil, fail("InvalidInstanceName.TooLong")
	case !strings.HasPrefix(o.Placement.Zone, region+"-"):
		return nil, fail("InvalidZone.MismatchRegion")
	}
	want := provider.Request{
		Token: o.ClientToken, Name: o.InstanceName, UserData: string(data), Offer: fleet.Offer{Zone: o.Placement.Zone, Type: o.InstanceType, Market: fleet.OnDemand},
	}
	for _, t := range o.TagSpecification {
		if t.ResourceType != "instance" {
			return nil, fail("InvalidParameterValue")
		}
		tags := map[string]string{}
		for _, kv := range t.Tags {
			tags[kv.Key] = kv.Value
		}
		want.Labels = provider.FromTags(tags)
	}
	if o.ActionTimer != nil {
		at, err := time.Parse("2006-01-02T15:04:05Z", o.ActionTimer.ActionTime)
		if err != nil || o.ActionTimer.TimerAction != "TerminateInstances" || at.Before(s.knobs.Now().Add(5*time.Minute)) {
			return nil, fail("InvalidParameterValue.InvalidTimeFormat")
		}
		want.HardEnd = at
	}
	switch o.InstanceChargeType {
	case "SPOTPAID":
		if o.InstanceMarketOptions == nil || o.InstanceMarketOptions.MarketType != "spot" || o.InstanceMarketOptions.SpotOptions.SpotInstanceType != "one-time" {
			return nil, fail("InvalidInstanceChargeType.OnlySupportedForSpot")
		}
		if err := s.bid(o); err != nil {
			return nil, err
		}
		if !s.knobs.Swap {
			want.Offer.Market = fleet.Spot
		}
	case "POSTPAID_BY_HOUR":
		if o.InstanceMarketOptions != nil {
			return nil, fail("InvalidParameterCombination")
		}
	default:
		return nil, fail("InvalidParameterValue")
	}
	if o.DryRun {
		return map[string]any{}, nil
	}
	m, err := s.cloud.Launch(context.Background(), want)
	if err != nil {
		return nil, err
	}
	return map[string]any{"InstanceIdSet": []string{Number(m.ID)}}, nil
}

// bid refuses a limit under the going price.
func (s *Server) bid(o order) error {
	most, err := strconv.ParseFloat(o.InstanceMarketOptions.SpotOptions.MaxPrice, 64)
	if err != nil {
		return fail("InvalidParameterValue")
	}
	for _, t := range Market().Types {
		if t.Name == o.InstanceType && most < t.Spot {
			return fail("InvalidParameterValue.InsufficientPrice")
		}
	}
	return nil
}

func (s *Server) terminate(region string, body []byte) (map[string]any, error) {
	var q struct{ InstanceIds []string }
	if err := decode(body, &q); err != nil {
		return nil, err
	}
	if len(q.InstanceIds) != 1 {
		return nil, fail("InvalidParameterValueLimit")
	}
	for _, r := range s.cloud.Bill() {
		if Number(r.ID) != q.InstanceIds[0] || in(r.Offer.Zone) != region {
			continue
		}
		if r.State == provider.Ending {
			return nil, fail("UnsupportedOperation.InstanceStateTerminating")
		}
		return map[string]any{}, s.cloud.End(context.Background(), r.ID)
	}
	return nil, fail("InvalidInstanceId.NotFound")
}

// Number is CVM's id of a machine of the fake cloud: ins-i0000001 is its i-000001.
func Number(id string) string { return "ins-" + id[:1] + "0" + id[2:] }
