// Package awstest is a stand-in of the parts of Amazon EC2 and of the Price List API that lowtide asks, over a fake
// cloud: Signature Version 4 checked by its own reckoning, parameters against what each action takes, XML and JSON as
// the API models have them, pages by token, EC2's own error codes, disks that outlive a machine unless told otherwise.
//
// It sells what the fake cloud sells, at invented prices. What it cannot show: what EC2 does beyond its models.
package awstest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// The credentials that the stand-in takes. They are the vendor's printed example, and open nothing.
const (
	KeyID  = "AKIAIOSFODNN7EXAMPLE"
	Secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	Image  = "ami-0123456789abcdef0"
)

// Regions are what is sold in, by the first part of a zone id.
var regions = map[string]string{"use1": "us-east-1", "euc1": "eu-central-1"}

// Market is a fake cloud that sells as EC2 does: types in zones, tokens, a notice of two minutes.
func Market() fake.Config {
	return fake.Config{
		Cloud: "aws", Account: "main", NoHardEnd: true, Traces: fake.Places("use1-az1", "use1-az2", "euc1-az1"),
		Types: []fake.Type{
			{Name: "p3.2xlarge", GPU: "V100", GPUs: 1, OnDemand: 3.06, Spot: 0.97},
			{Name: "g5.xlarge", GPU: "A10G", GPUs: 1, OnDemand: 1.006, Spot: 0.43},
			{Name: "p4d.24xlarge", GPU: "A100", GPUs: 8, OnDemand: 21.95, Spot: 8.01},
			{Name: "p5.48xlarge", GPU: "H100", GPUs: 8, OnDemand: 55.04, Spot: 16.95},
		},
	}
}

// memory is what EC2 says one GPU of a type has, MiB.
var memory = map[string]int{"p3.2xlarge": 16384, "g5.xlarge": 24576, "p4d.24xlarge": 40960, "p5.48xlarge": 81920}

// Server is one account in two regions. It is an http.Handler.
type Server struct {
	cloud *fake.Cloud
	knobs *fake.Knobs

	mu    sync.Mutex
	disks map[string]map[string]bool // machine to device to "goes with it"
	tags  map[string]map[string]string
}

// New makes a stand-in of an account at c.
func New(c *fake.Cloud, k *fake.Knobs) *Server {
	s := &Server{cloud: c, knobs: k, disks: map[string]map[string]bool{}, tags: map[string]map[string]string{}}
	k.Left = s.left
	return s
}

// left are the disks of machines that are gone, and of their kind.
func (s *Server) left() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, r := range s.cloud.Bill() {
		for device, goes := range s.disks[r.ID] {
			if !r.Bills() && !goes {
				out = append(out, r.ID+device)
			}
		}
	}
	return out
}

// fail is an error in EC2's words.
type fail struct {
	status    int
	code, msg string
}

func (f fail) Error() string { return f.code }

// ServeHTTP answers both APIs.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	clock := s.knobs.Now().Add(s.knobs.Skew)
	w.Header().Set("Date", clock.UTC().Format(http.TimeFormat))
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	region, service, err := verify(r, body, clock)
	if err == nil && s.knobs.Expired {
		err = fail{http.StatusForbidden, "ExpiredToken", "The security token included in the request is expired"}
	}
	if r.Header.Get("X-Amz-Target") != "" {
		if err == nil && service != "pricing" {
			err = fail{http.StatusBadRequest, "InvalidSignatureException", "Credential should be scoped to correct service: 'pricing'."}
		}
		s.priceList(w, r, body, err)
		return
	}
	if err == nil && service != "ec2" {
		err = fail{http.StatusForbidden, "AuthFailure", "not scoped to ec2"}
	}
	v, perr := url.ParseQuery(string(body))
	if err == nil && perr != nil {
		err = fail{http.StatusBadRequest, "MalformedQueryString", "form"}
	}
	var out any
	if err == nil {
		out, err = s.act(region, v)
	}
	if err != nil {
		s.refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	fmt.Fprint(w, xml.Header)
	_ = xml.NewEncoder(w).EncodeElement(out, xml.StartElement{Name: xml.Name{Local: v.Get("Action") + "Response"}})
}

// takes are the parameters of each action, "#" standing for a number.
var takes = map[string][]string{
	"DescribeAvailabilityZones":      {},
	"DescribeImages":                 {"ImageId.#"},
	"DescribeInstanceTypes":          {"Filter.#.Name", "Filter.#.Value.#", "MaxResults", "NextToken"},
	"DescribeInstanceTypeOfferings":  {"LocationType", "Filter.#.Name", "Filter.#.Value.#", "MaxResults", "NextToken"},
	"DescribeSpotPriceHistory":       {"StartTime", "MaxResults", "NextToken", "ProductDescription.#", "InstanceType.#"},
	"DescribeCapacityBlockOfferings": {"InstanceType", "InstanceCount", "CapacityDurationHours", "MaxResults", "NextToken"},
	"DescribeInstances":              {"InstanceId.#", "MaxResults", "NextToken"},
	"TerminateInstances":             {"InstanceId.#"},
	"CancelSpotInstanceRequests":     {"SpotInstanceRequestId.#"},
	"RunInstances": {
		"DryRun", "ImageId", "InstanceType", "MinCount", "MaxCount", "ClientToken", "UserData", "InstanceInitiatedShutdownBehavior", "SubnetId",
		"MetadataOptions.HttpTokens", "MetadataOptions.HttpPutResponseHopLimit", "Placement.AvailabilityZone", "SecurityGroupId.#",
		"IamInstanceProfile.Name", "BlockDeviceMapping.#.DeviceName", "BlockDeviceMapping.#.Ebs.DeleteOnTermination", "BlockDeviceMapping.#.Ebs.VolumeSize",
		"InstanceMarketOptions.MarketType", "InstanceMarketOptions.SpotOptions.SpotInstanceType",
		"InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", "TagSpecification.#.ResourceType",
		"TagSpecification.#.Tag.#.Key", "TagSpecification.#.Tag.#.Value",
		"CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId",
	},
}

var digits = regexp.MustCompile(`\.[0-9]+`)

func (s *Server) act(region string, v url.Values) (any, error) {
	action := v.Get("Action")
	known, ok := takes[action]
	if !ok || v.Get("Version") != "2016-11-15" {
		return nil, fail{http.StatusBadRequest, "InvalidAction", "The action " + action + " is not valid for this web service."}
	}
	for k := range v {
		if k != "Action" && k != "Version" && !slices.Contains(known, digits.ReplaceAllString(k, ".#")) {
			return nil, fail{http.StatusBadRequest, "UnknownParameter", "The parameter " + k + " is not recognized"}
		}
	}
	if v.Get("InstanceId.1") != "" && v.Get("MaxResults") != "" {
		return nil, fail{http.StatusBadRequest, "InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults"}
	}
	switch action {
	case "DescribeAvailabilityZones":
		return s.zones(region), nil
	case "DescribeImages":
		return images{Items: []image{{ID: v.Get("ImageId.1"), Root: "/dev/sda1", Disks: []mapping{
			{"/dev/sda1", &ebs{true, 75}}, {"/dev/sdb", &ebs{false, 100}}, {"/dev/sdc", nil},
		}}}}, nil
	case "DescribeInstanceTypes":
		return s.types(), nil
	case "DescribeInstanceTypeOfferings":
		return s.offerings(region), nil
	case "DescribeSpotPriceHistory":
		return s.spot(region, v)
	case "DescribeCapacityBlockOfferings":
		return blocks{}, nil
	case "DescribeInstances":
		return s.instances(region, v)
	case "RunInstances":
		return s.run(region, v)
	case "TerminateInstances":
		return s.terminate(v)
	}
	return struct{}{}, nil // CancelSpotInstanceRequests
}

func in(zone string) string {
	first, _, _ := strings.Cut(zone, "-")
	return regions[first]
}

// zoneName is an account's own name for a zone: not the id's number.
func zoneName(id string) string {
	letters := map[byte]string{'1': "c", '2': "a", '3': "b"}
	return in(id) + letters[id[len(id)-1]]
}

type zones struct {
	Items []zone `xml:"availabilityZoneInfo>item"`
}

type zone struct {
	Name  string `xml:"zoneName"`
	ID    string `xml:"zoneId"`
	Kind  string `xml:"zoneType"`
	State string `xml:"zoneState"`
}

func (s *Server) places() []string {
	var out []string
	for _, t := range Market().Traces {
		out = append(out, t.Zone)
	}
	return out
}

func (s *Server) zones(region string) zones {
	z := zones{Items: []zone{{region + "-atl-2a", "use1-atl2-az1", "local-zone", "available"}}}
	for _, id := range s.places() {
		if in(id) == region {
			z.Items = append(z.Items, zone{zoneName(id), id, "availability-zone", "available"})
		}
	}
	return z
}

type images struct {
	Items []image `xml:"imagesSet>item"`
}

type image struct {
	ID    string    `xml:"imageId"`
	Root  string    `xml:"rootDeviceName"`
	Disks []mapping `xml:"blockDeviceMapping>item"`
}

type mapping struct {
	Device string `xml:"deviceName"`
	EBS    *ebs   `xml:"ebs"`
}

type ebs struct {
	Goes bool `xml:"deleteOnTermination"`
	Size int  `xml:"volumeSize"`
}

type gpuTypes struct {
	Items []gpuType `xml:"instanceTypeSet>item"`
	Next  string    `xml:"nextToken,omitempty"`
}

type gpuType struct {
	Name string `xml:"instanceType"`
	GPUs []gpu  `xml:"gpuInfo>gpus>item"`
}

type gpu struct {
	Name   string `xml:"name"`
	Maker  string `xml:"manufacturer"`
	Count  int    `xml:"count"`
	Memory int    `xml:"memoryInfo>sizeInMiB"`
}

// types lists what is sold, a machine without a GPU and one with an eighth of one.
func (s *Server) types() gpuTypes {
	t := gpuTypes{Items: []gpuType{
		{Name: "g6f.large", GPUs: []gpu{{"L4", "NVIDIA", 1, 2861}}},
		{Name: "p9.none"},
	}}
	for _, x := range Market().Types {
		t.Items = append(t.Items, gpuType{x.Name, []gpu{{x.GPU, "NVIDIA", x.GPUs, memory[x.Name]}}})
	}
	return t
}

type offerings struct {
	Items []offering `xml:"instanceTypeOfferingSet>item"`
}

type offering struct {
	Type  string `xml:"instanceType"`
	Kind  string `xml:"locationType"`
	Place string `xml:"location"`
}

func (s *Server) offerings(region string) offerings {
	o := offerings{Items: []offering{{"p3.2xlarge", "availability-zone-id", "use1-atl2-az1"}}}
	for _, id := range s.places() {
		for _, t := range Market().Types {
			if in(id) == region {
				o.Items = append(o.Items, offering{t.Name, "availability-zone-id", id})
			}
		}
	}
	return o
}

type spotPrices struct {
	Items []spotPrice `xml:"spotPriceHistorySet>item"`
	Next  string      `xml:"nextToken"`
}

type spotPrice struct {
	Type   string `xml:"instanceType"`
	What   string `xml:"productDescription"`
	Price  string `xml:"spotPrice"`
	At     string `xml:"timestamp"`
	Zone   string `xml:"availabilityZone"`
	ZoneID string `xml:"availabilityZoneId"`
}

// spot is the history from a moment on: the price in force, and one before it that is over.
func (s *Server) spot(region string, v url.Values) (any, error) {
	if _, err := time.Parse(time.RFC3339, v.Get("StartTime")); err != nil {
		return nil, fail{http.StatusBadRequest, "InvalidParameterValue", "startTime"}
	}
	all, err := s.cloud.Offers(context.Background())
	if err != nil {
		return nil, err
	}
	var items []spotPrice
	at := s.knobs.Now().Add(-time.Hour).UTC()
	for _, o := range all {
		if o.Market != fleet.Spot || in(o.Zone) != region {
			continue
		}
		item := spotPrice{o.Type, "Linux/UNIX", o.Price.Amount.Amount.StringFixed(6), at.Format("2006-01-02T15:04:05.000Z"), zoneName(o.Zone), o.Zone}
		old := item
		old.Price, old.At = "99.000000", at.Add(-time.Hour).Format("2006-01-02T15:04:05.000Z")
		items = append(items, item, old)
	}
	from, to, next := s.slice(v, len(items), 5)
	return spotPrices{items[from:to], next}, nil
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

type blocks struct {
	Items []struct{} `xml:"capacityBlockOfferingSet>item"`
}

type reservations struct {
	Items []reservation `xml:"reservationSet>item"`
	Next  string        `xml:"nextToken,omitempty"`
}

type reservation struct {
	ID        string     `xml:"reservationId"`
	Instances []instance `xml:"instancesSet>item"`
}

type instance struct {
	ID         string   `xml:"instanceId"`
	Image      string   `xml:"imageId"`
	State      state    `xml:"instanceState"`
	Transition string   `xml:"reason"`
	Type       string   `xml:"instanceType"`
	Launched   string   `xml:"launchTime"`
	Zone       string   `xml:"placement>availabilityZone"`
	Lifecycle  string   `xml:"instanceLifecycle,omitempty"`
	Request    string   `xml:"spotInstanceRequestId,omitempty"`
	Reserved   string   `xml:"capacityReservationId,omitempty"`
	Reason     *reasons `xml:"stateReason,omitempty"`
	Tags       []tag    `xml:"tagSet>item"`
}

type state struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

type reasons struct {
	Code string `xml:"code"`
}

type tag struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

func (s *Server) instances(region string, v url.Values) (any, error) {
	all, err := s.cloud.List(context.Background())
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(m provider.Machine) bool { return in(m.Offer.Zone) != region })
	if id := v.Get("InstanceId.1"); id != "" {
		i := slices.IndexFunc(all, func(m provider.Machine) bool { return m.ID == inner(id) })
		if i < 0 {
			return nil, fail{http.StatusBadRequest, "InvalidInstanceID.NotFound", "The instance ID '" + id + "' does not exist"}
		}
		all = all[i : i+1]
	}
	from, to, next := s.slice(v, len(all), 20)
	out := reservations{Next: next}
	for _, m := range all[from:to] {
		out.Items = append(out.Items, reservation{"r-1", []instance{s.instance(m)}})
	}
	return out, nil
}

func (s *Server) instance(m provider.Machine) instance {
	names := map[provider.State]state{
		provider.Pending: {0, "pending"}, provider.Running: {16, "running"}, provider.Ending: {32, "shutting-down"}, provider.Gone: {48, "terminated"},
	}
	i := instance{
		ID: ID(m.ID), Image: Image, State: names[m.State], Type: m.Offer.Type, Zone: zoneName(m.Offer.Zone),
		Launched: m.Since.UTC().Format("2006-01-02T15:04:05.000Z"), Reserved: m.Offer.Reservation,
	}
	if m.Offer.Market == fleet.Spot {
		i.Lifecycle, i.Request = "spot", "sir-"+m.ID[2:]
	}
	if m.State == provider.Gone {
		i.Transition = "User initiated (" + m.Until.UTC().Format(time.DateTime) + " GMT)"
		i.Reason = &reasons{map[string]string{"interrupted": "Server.SpotInstanceTermination", "self": "Client.InstanceInitiatedShutdown"}[m.Why]}
		if i.Reason.Code == "" {
			i.Reason.Code = "Client.UserInitiatedShutdown"
		}
	}
	s.mu.Lock()
	tags := s.tags[m.ID]
	s.mu.Unlock()
	if tags == nil {
		tags = m.Labels.Tags() // another installation's
	}
	for _, k := range fleet.Sorted(tags) {
		i.Tags = append(i.Tags, tag{k, tags[k]})
	}
	return i
}

// run is a purchase: every rule that EC2 has for these parameters and that a test could break.
func (s *Server) run(region string, v url.Values) (any, error) {
	bad := func(code, msg string) (any, error) { return nil, fail{http.StatusBadRequest, code, msg} }
	data, err := base64.StdEncoding.DecodeString(v.Get("UserData"))
	switch {
	case v.Get("ImageId") != Image:
		return bad("InvalidAMIID.NotFound", "image")
	case v.Get("MinCount") != "1" || v.Get("MaxCount") != "1":
		return bad("InvalidParameterValue", "count")
	case len(v.Get("ClientToken")) > 64:
		return bad("InvalidParameterValue", "clientToken")
	case err != nil || len(data) > 16384:
		return bad("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.")
	case v.Get("SubnetId") != "":
		return bad("InvalidSubnetID.NotFound", "subnet")
	}
	o := fleet.Offer{Type: v.Get("InstanceType"), Market: fleet.OnDemand}
	for _, id := range s.places() {
		if zoneName(id) == v.Get("Placement.AvailabilityZone") && in(id) == region {
			o.Zone = id
		}
	}
	if o.Zone == "" {
		return bad("InvalidParameterValue", "Invalid availability zone")
	}
	if v.Get("InstanceMarketOptions.MarketType") == "spot" && !s.knobs.Swap {
		o.Market = fleet.Spot
	}
	if id := v.Get("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"); id != "" {
		if o.Market == fleet.Spot {
			return bad("InvalidParameterCombination", "a spot request cannot target a capacity reservation")
		}
		o.Market, o.Reservation = fleet.Reserved, id
	}
	if v.Get("DryRun") == "true" {
		return nil, fail{http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set."}
	}
	tags := tagsOf(v, "instance")
	labels := provider.FromTags(tags)
	m, err := s.cloud.Launch(context.Background(), provider.Request{
		Token: v.Get("ClientToken"), Name: tags["Name"], Offer: o, Labels: labels, UserData: string(data),
	})
	s.mu.Lock()
	for _, r := range s.cloud.Bill() { // also when the answer is lost
		if r.Token == v.Get("ClientToken") && !r.Foreign && s.tags[r.ID] == nil {
			s.tags[r.ID], s.disks[r.ID] = tags, disksOf(v)
		}
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return struct {
		ID    string     `xml:"reservationId"`
		Items []instance `xml:"instancesSet>item"`
	}{"r-1", []instance{s.instance(m)}}, nil
}

func tagsOf(v url.Values, what string) map[string]string {
	out := map[string]string{}
	for i := 1; v.Get(fmt.Sprintf("TagSpecification.%d.ResourceType", i)) != ""; i++ {
		if v.Get(fmt.Sprintf("TagSpecification.%d.ResourceType", i)) != what {
			continue
		}
		for j := 1; ; j++ {
			k := v.Get(fmt.Sprintf("TagSpecification.%d.Tag.%d.Key", i, j))
			if k == "" {
				break
			}
			out[k] = v.Get(fmt.Sprintf("TagSpecification.%d.Tag.%d.Value", i, j))
		}
	}
	return out
}

// disksOf are the image's disks with what the launch says of them.
func disksOf(v url.Values) map[string]bool {
	out := map[string]bool{"/dev/sda1": true, "/dev/sdb": false}
	for i := 1; v.Get(fmt.Sprintf("BlockDeviceMapping.%d.DeviceName", i)) != ""; i++ {
		out[v.Get(fmt.Sprintf("BlockDeviceMapping.%d.DeviceName", i))] = v.Get(fmt.Sprintf("BlockDeviceMapping.%d.Ebs.DeleteOnTermination", i)) == "true"
	}
	return out
}

func (s *Server) terminate(v url.Values) (any, error) {
	if err := s.cloud.End(context.Background(), inner(v.Get("InstanceId.1"))); err != nil {
		return nil, err
	}
	return struct{}{}, nil
}

// refuse puts an error into EC2's words.
func (s *Server) refuse(w http.ResponseWriter, err error) {
	f := words(err)
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(f.status)
	fmt.Fprintf(w, "%s<Response><Errors><Error><Code>%s</Code><Message>", xml.Header, f.code)
	_ = xml.EscapeText(w, []byte(f.msg))
	fmt.Fprint(w, "</Message></Error></Errors><RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>")
}

func words(err error) fail {
	var f fail
	if errors.As(err, &f) {
		return f
	}
	switch {
	case errors.Is(err, provider.ErrUnknown):
		panic(http.ErrAbortHandler) // the answer is lost
	case errors.Is(err, provider.ErrThrottled):
		return fail{http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded."}
	case errors.Is(err, provider.ErrUnavailable):
		return fail{http.StatusServiceUnavailable, "Unavailable", "The service is unavailable. Please try again shortly."}
	case errors.Is(err, provider.ErrDenied):
		return fail{http.StatusForbidden, "UnauthorizedOperation", "You are not authorized to perform this operation."}
	case errors.Is(err, provider.ErrNoCapacity):
		return fail{http.StatusInternalServerError, "InsufficientInstanceCapacity", "We currently do not have sufficient capacity in the Availability Zone you requested."}
	case errors.Is(err, provider.ErrQuota):
		return fail{http.StatusBadRequest, "VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit allows."}
	case errors.Is(err, provider.ErrNotFound):
		return fail{http.StatusBadRequest, "InvalidInstanceID.NotFound", "The instance ID does not exist"}
	case strings.Contains(err.Error(), "token"):
		return fail{http.StatusBadRequest, "IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."}
	}
	return fail{http.StatusBadRequest, "InvalidParameterValue", "Invalid value for instanceType."}
}

// ID is EC2's id of a machine of the fake cloud: i-000001 and x-000001 in 17 hexadecimal digits.
func ID(id string) string {
	first := map[byte]string{'i': "0", 'x': "f"}[id[0]]
	return "i-" + first + "0000000000" + id[2:]
}

func inner(id string) string {
	if len(id) != 19 {
		return id
	}
	return map[byte]string{'0': "i-", 'f': "x-"}[id[2]] + id[13:]
}

// priceList answers GetProducts: on demand, a reserved instance's rate, and rows that are no price.
func (s *Server) priceList(w http.ResponseWriter, r *http.Request, body []byte, err error) {
	var in struct {
		ServiceCode, FormatVersion, NextToken string
		MaxResults                            int
		Filters                               []struct{ Type, Field, Value string }
	}
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.DisallowUnknownFields()
	bad := dec.Decode(&in)
	region := ""
	for _, f := range in.Filters {
		if f.Field == "regionCode" {
			region = f.Value
		}
	}
	if err == nil && (r.Header.Get("X-Amz-Target") != "AWSPriceListService.GetProducts" || bad != nil || in.ServiceCode != "AmazonEC2" || in.MaxResults > 100 || region == "") {
		err = fail{http.StatusBadRequest, "InvalidParameterException", "request"}
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	if err != nil {
		f := words(err)
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"__type": "com.amazonaws.pricing#" + f.code, "message": f.msg})
		return
	}
	var list []string
	for _, t := range Market().Types {
		list = append(list, entry(t.Name, t.OnDemand))
	}
	list = append(list, entry("p3.8xlarge", 0), entry("m5.large", 0.096))
	from, to, next := s.slice(url.Values{"NextToken": {in.NextToken}}, len(list), 3)
	if s.knobs.Loop {
		next = "page-0"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"FormatVersion": "aws_v1", "PriceList": list[from:to], "NextToken": next})
}

func entry(kind string, usd float64) string {
	dim := func(key, unit string, usd float64) map[string]any {
		return map[string]any{key: map[string]any{"unit": unit, "pricePerUnit": map[string]string{"USD": strconv.FormatFloat(usd, 'f', 10, 64)}}}
	}
	b, _ := json.Marshal(map[string]any{ // plain data
		"product": map[string]any{"attributes": map[string]string{"instanceType": kind, "operatingSystem": "Linux"}},
		"terms": map[string]any{
			"OnDemand": map[string]any{"S.JRTCKXETXF": map[string]any{"priceDimensions": dim("S.1", "Hrs", usd), "termAttributes": map[string]string{}}},
			"Reserved": map[string]any{
				"S.4NA7Y494T4": map[string]any{
					"priceDimensions": dim("S.2", "Hrs", usd*0.63),
					"termAttributes":  map[string]string{"LeaseContractLength": "1yr", "OfferingClass": "standard", "PurchaseOption": "No Upfront"},
				},
				"S.ALLUP": map[string]any{
					"priceDimensions": dim("S.3", "Quantity", usd*5000),
					"termAttributes":  map[string]string{"LeaseContractLength": "1yr", "OfferingClass": "standard", "PurchaseOption": "All Upfront"},
				},
			},
		},
	})
	return string(b)
}
