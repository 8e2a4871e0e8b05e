// Package huaweitest is a stand-in of the parts of Huawei Cloud's ECS and BSS that lowtide asks, over a fake cloud:
// signatures checked by its own reckoning, unknown and missing fields refused, pages by number, lists of accelerators
// within texts, stock of all zones in one text, prices as numbers or in quotes, purchases that are jobs, and two forms of
// errors.
//
// It sells what the fake cloud sells, at invented prices. What it cannot show: what ECS does beyond its reference, such as
// the code for a token that was used with other parameters, which is invented here.
package huaweitest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	KeyID  = "HWEXAMPLEKEYID000000"
	Secret = "exampleSecretOfNobody0123456789abcdefghi"
	Image  = "image-example"
	Subnet = "vpc-example/subnet-example"
	Group  = "sg-example"
)

// Projects are the account's projects by region.
var Projects = map[string]string{"cn-north-4": "0a1b2c3d4e5f", "cn-east-3": "5f4e3d2c1b0a"}

// Market is a fake cloud that sells as ECS does: types in zones, tokens, a notice of five minutes.
func Market() fake.Config {
	return fake.Config{
		Cloud: "huawei", Account: "main", NoHardEnd: true, Notice: 5 * time.Minute, KeepGone: -1,
		Traces: fake.Places("cn-north-4a", "cn-north-4b", "cn-east-3a"),
		Types: []fake.Type{
			{Name: "pi2.2xlarge.4", GPU: "NVIDIA T4", GPUs: 1, OnDemand: 9.2, Spot: 3.1},
			{Name: "p2s.16xlarge.8", GPU: "NVIDIA V100", GPUs: 8, OnDemand: 181.6, Spot: 60},
			{Name: "kai1s.4xlarge.2", GPU: "Ascend 310", GPUs: 2, OnDemand: 7.4},
		},
	}
}

// Server is one account. It is an http.Handler.
type Server struct {
	mux   *http.ServeMux
	cloud *fake.Cloud
	knobs *fake.Knobs

	mu   sync.Mutex
	left []string
}

// New makes a stand-in of an account at c.
func New(c *fake.Cloud, k *fake.Knobs) *Server {
	s := &Server{mux: http.NewServeMux(), cloud: c, knobs: k}
	for pattern, h := range map[string]func(*http.Request, string, []byte) (any, error){
		"GET /v1/{project}/cloudservers/flavors":                 s.flavors,
		"GET /v1/{project}/cloudservers/flavor-sell-policies":    s.policies,
		"POST /v1/{project}/cloudservers":                        s.create,
		"GET /v1/{project}/cloudservers/detail":                  s.list,
		"GET /v1/{project}/cloudservers/{id}":                    s.one,
		"POST /v1/{project}/cloudservers/delete":                 s.remove,
		"GET /v1/{project}/jobs/{id}":                            s.job,
		"POST /v2/bills/ratings/on-demand-resources":             s.hours,
		"POST /v2/bills/ratings/period-resources/subscribe-rate": s.terms,
	} {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, h) })
	}
	k.Left = func() []string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Clone(s.left)
	}
	return s
}

// fail is a refusal: status and code.
type fail struct {
	status int
	code   string
}

func (f fail) Error() string { return f.code }

type object = map[string]any

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Server) serve(w http.ResponseWriter, r *http.Request, h func(*http.Request, string, []byte) (any, error)) {
	clock := s.knobs.Now().Add(s.knobs.Skew)
	w.Header().Set("Date", clock.UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	err = verify(r, body, clock)
	if err == nil && s.knobs.Expired {
		err = fail{http.StatusUnauthorized, "APIGW.0301"}
	}
	var out any
	if err == nil {
		region := ""
		for name, p := range Projects {
			if p == r.PathValue("project") {
				region = name
			}
		}
		if region == "" && r.PathValue("project") != "" {
			err = fail{http.StatusForbidden, "Ecs.0003"}
		} else {
			out, err = h(r, region, body)
		}
	}
	if err != nil {
		f := words(err)
		w.WriteHeader(f.status)
		text := "words that may repeat " + r.Header.Get("Authorization")
		out = object{"error": object{"code": f.code, "message": text}}
		if !strings.HasPrefix(f.code, "Ecs.") {
			out = object{"error_code": f.code, "error_msg": text, "request_id": "0"}
		}
	}
	_ = json.NewEncoder(w).Encode(out) // whoever has hung up is told nothing
}

// in is a zone's region.
func in(zone string) string { return zone[:len(zone)-1] }

// flavors is what is sold, a machine without a GPU and one with a share of one.
func (s *Server) flavors(r *http.Request, region string, _ []byte) (any, error) {
	all, err := s.cloud.Offers(r.Context())
	if err != nil {
		return nil, err
	}
	rows := []object{
		{"id": "s6.large.2", "os_extra_specs": object{"cond:operation:status": "normal", "ecs:performancetype": "normal"}},
		{"id": "g6v.large.2", "os_extra_specs": object{"cond:operation:status": "normal", "info:gpus": `[{"name": "NVIDIA T4", "memory_mb": 2048, "count": 1}]`}},
	}
	for _, t := range Market().Types {
		zones := map[fleet.Market][]string{}
		for _, o := range all {
			if o.Type != t.Name || in(o.Zone) != region {
				continue
			}
			status := "normal"
			if o.Stock.Or(1) <= 0 {
				status = "sellout"
			}
			zones[o.Market] = append(zones[o.Market], o.Zone+"("+status+")")
		}
		specs := object{
			"cond:operation:status": "abandon", "cond:operation:az": strings.Join(zones[fleet.OnDemand], ","), "ecs:performancetype": "gpu",
			"cond:spot:operation:az": strings.Join(zones[fleet.Spot], ","),
		}
		switch {
		case strings.HasPrefix(t.GPU, "Ascend"):
			specs["info:asic_accelerators"] = fmt.Sprintf(`[{"name": "%s", "memory_mb": 8192, "count": %d}]`, t.GPU, t.GPUs)
		case t.GPU == "NVIDIA V100":
			specs["info:gpu:name"] = fmt.Sprintf("%d * %s / %d * 32G", t.GPUs, t.GPU, t.GPUs)
		default:
			specs["info:gpus"] = fmt.Sprintf(`[{"name": "%s", "memory_mb": 16384, "count": %d, "alias_prefix": "nvidia"}]`, t.GPU, t.GPUs)
		}
		rows = append(rows, object{"id": t.Name, "name": t.Name, "vcpus": "8", "ram": 32768, "os_extra_specs": specs})
	}
	return object{"flavors": rows}, nil
}

func (s *Server) policies(r *http.Request, region string, _ []byte) (any, error) {
	if r.URL.Query().Get("sell_mode") != "spot" {
		return nil, fail{http.StatusBadRequest, "Ecs.0005"}
	}
	all, err := s.cloud.Offers(r.Context())
	if err != nil {
		return nil, err
	}
	rows := []object{}
	for i, o := range all {
		if o.Market == fleet.Spot && in(o.Zone) == region {
			status := "available"
			if o.Stock.Or(1) <= 0 {
				status = "sellout"
			}
			rows = append(rows, object{"id": i, "flavor_id": o.Type, "availability_zone_id": o.Zone, "sell_status": status, "sell_mode": "spot"})
		}
	}
	return object{"sell_policies": rows, "count": len(rows)}, nil
}

// decode refuses what a call does not take.
func decode(body []byte, in any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if d.Decode(in) != nil {
		return fail{http.StatusBadRequest, "Ecs.0005"}
	}
	return nil
}

// ratings is the body of both price calls.
type ratings struct {
	Project   string `json:"project_id"`
	Precision int    `json:"inquiry_precision"`
	Products  []struct {
		ID      string `json:"id"`
		Service string `json:"cloud_service_type"`
		Kind    string `json:"resource_type"`
		Spec    string `json:"resource_spec"`
		Region  string `json:"region"`
		Factor  string `json:"usage_factor"`
		Value   int    `json:"usage_value"`
		Measure int    `json:"usage_measure_id"`
		Period  int    `json:"period_type"`
		Periods int    `json:"period_num"`
		Number  int    `json:"subscription_num"`
	} `json:"product_infos"`
}

// prices answers each product with its list price for what asked tells; an unknown one refuses all.
func prices(body []byte, hours func(kind int) float64, row func(id string, list float64) object) ([]object, error) {
	var in ratings
	if err := decode(body, &in); err != nil {
		return nil, fail{http.StatusBadRequest, "CBC.0100"}
	}
	out := []object{}
	for _, p := range in.Products {
		i := slices.IndexFunc(Market().Types, func(t fake.Type) bool { return t.Name+".linux" == p.Spec })
		if i < 0 || p.Service != "hws.service.type.ec2" || p.Number != 1 || Projects[p.Region] != in.Project {
			return nil, fail{http.StatusBadRequest, "CBC.0100"}
		}
		out = append(out, row(p.ID, Market().Types[i].OnDemand*hours(p.Period)))
	}
	slices.Reverse(out) // the order means nothing: the id does
	return out, nil
}

// hours is what this account pays: nine tenths of the list.
func (s *Server) hours(_ *http.Request, _ string, body []byte) (any, error) {
	rows, err := prices(body, func(int) float64 { return 1 }, func(id string, list float64) object {
		return object{"id": id, "amount": list * 0.9, "official_website_amount": strconv.FormatFloat(list, 'f', 2, 64), "discount_amount": list * 0.1, "measure_id": 1}
	})
	return object{"amount": 1e6, "official_website_amount": 1e6, "measure_id": 1, "currency": "", "product_rating_results": rows}, err
}

// terms are subscriptions at half the price.
func (s *Server) terms(_ *http.Request, _ string, body []byte) (any, error) {
	rows, err := prices(body, func(kind int) float64 { return map[int]float64{2: 365, 3: 4380}[kind] }, func(id string, list float64) object {
		return object{"id": id, "official_website_amount": list, "measure_id": 1}
	})
	return object{"official_website_rating_result": object{"product_rating_results": rows, "measure_id": 1}, "optional_discount_rating_results": []any{}, "currency": "CNY"}, err
}

// order is all that a purchase takes of us.
type order struct {
	Server struct {
		Name     string `json:"name"`
		Type     string `json:"flavorRef"`
		Image    string `json:"imageRef"`
		VPC      string `json:"vpcid"`
		Zone     string `json:"availability_zone"`
		UserData string `json:"user_data"`
		Count    int    `json:"count"`
		NICs     []struct {
			Subnet string `json:"subnet_id"`
		} `json:"nics"`
		Groups []struct {
			ID string `json:"id"`
		} `json:"security_groups"`
		Disk struct {
			Kind string `json:"volumetype"`
			Size int    `json:"size"`
		} `json:"root_volume"`
		Address *struct {
			EIP struct {
				Kind      string `json:"iptype"`
				Bandwidth struct {
					Size   int    `json:"size"`
					Share  string `json:"sharetype"`
					Charge string `json:"chargemode"`
				} `json:"bandwidth"`
				Extend struct {
					Charge string `json:"chargingMode"`
				} `json:"extendparam"`
			} `json:"eip"`
			Delete bool `json:"delete_on_termination"`
		} `json:"publicip"`
		Tags []struct {
			Key   string `json:"key"`
			Value string `json:"value"`
		} `json:"server_tags"`
		Extend struct {
			Charge int    `json:"chargingMode"`
			Region string `json:"regionID"`
			Market string `json:"marketType"`
			Limit  string `json:"spotPrice"`
			Policy string `json:"interruption_policy"`
		} `json:"extendparam"`
	} `json:"server"`
}

// create is a purchase: every rule that ECS has for these parameters and that a test could break.
func (s *Server) create(r *http.Request, region string, body []byte) (any, error) {
	bad := fail{http.StatusBadRequest, "Ecs.0005"}
	var in order
	if err := decode(body, &in); err != nil {
		return nil, err
	}
	o := in.Server
	data, err := base64.StdEncoding.DecodeString(o.UserData)
	token := r.Header.Get("X-Client-Token")
	switch {
	case o.Name == "" || o.Image != Image || o.Count != 1 || o.Extend.Charge != 0 || in0(o.Zone) != region || o.Disk.Kind == "" || o.Disk.Size <= 0:
		return nil, bad
	case len(o.NICs) != 1 || o.VPC+"/"+o.NICs[0].Subnet != Subnet || len(o.Groups) != 1 || o.Groups[0].ID != Group:
		return nil, bad
	case err != nil || len(data) > 32768 || token == "" || len(token) > 64:
		return nil, bad
	}
	want := provider.Request{
		Token: token, Name: o.Name, UserData: string(data), Offer: fleet.Offer{Zone: o.Zone, Type: o.Type, Market: fleet.OnDemand},
	}
	tags := map[string]string{}
	for _, t := range o.Tags {
		if strings.ContainsAny(t.Value, " ,=") {
			return nil, bad
		}
		tags[t.Key] = t.Value
	}
	want.Labels = provider.FromTags(tags)
	if o.Extend.Market == "spot" {
		limit, err := strconv.ParseFloat(o.Extend.Limit, 64)
		if err != nil || o.Extend.Policy != "immediate" {
			return nil, bad
		}
		for _, t := range Market().Types {
			if t.Name == o.Type && limit < t.Spot {
				return nil, fail{http.StatusBadRequest, "Ecs.0703"}
			}
		}
		if !s.knobs.Swap {
			want.Offer.Market = fleet.Spot
		}
	}
	m, err := s.cloud.Launch(context.Background(), want)
	if err != nil {
		return nil, err
	}
	return object{"job_id": "job-" + m.ID, "serverIds": []string{m.ID}}, nil
}

// in0 is a zone's region, of a zone that may be empty.
func in0(zone string) string {
	if zone == "" {
		return ""
	}
	return in(zone)
}

func (s *Server) job(_ *http.Request, _ string, _ []byte) (any, error) {
	return object{"status": "RUNNING", "entities": object{"sub_jobs": []object{{"status": "RUNNING", "error_code": nil}}}, "error_code": nil}, nil
}

// list pages by number, from 1.
func (s *Server) list(r *http.Request, region string, _ []byte) (any, error) {
	all, err := s.machines(r, region)
	if err != nil {
		return nil, err
	}
	limit, lerr := strconv.Atoi(r.URL.Query().Get("limit"))
	number, nerr := strconv.Atoi(r.URL.Query().Get("offset"))
	if lerr != nil || nerr != nil || limit > 1000 || number < 1 {
		return nil, fail{http.StatusBadRequest, "Ecs.0005"}
	}
	count := len(all)
	if s.knobs.Loop {
		number, count = 1, 1<<20
	}
	from := min((number-1)*limit, len(all))
	rows := []object{}
	for _, m := range all[from:min(from+limit, len(all))] {
		rows = append(rows, row(m))
	}
	return object{"count": count, "servers": rows}, nil
}

func (s *Server) machines(r *http.Request, region string) ([]provider.Machine, error) {
	all, err := s.cloud.List(r.Context())
	return slices.DeleteFunc(all, func(m provider.Machine) bool { return in(m.Offer.Zone) != region || m.State == provider.Gone }), err
}

func (s *Server) one(r *http.Request, region string, _ []byte) (any, error) {
	all, err := s.machines(r, region)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if m.ID == r.PathValue("id") {
			return object{"server": row(m)}, nil
		}
	}
	return nil, fail{http.StatusNotFound, "Ecs.0114"}
}

func row(m provider.Machine) object {
	charge, task := "0", ""
	if m.Offer.Market == fleet.Spot {
		charge = "2"
	}
	if m.State == provider.Ending {
		task = "deleting"
	}
	tags := []string{}
	for k, v := range m.Labels.Tags() {
		tags = append(tags, k+"="+v)
	}
	return object{
		"id": m.ID, "name": "n", "status": map[provider.State]string{provider.Pending: "BUILD", provider.Running: "ACTIVE", provider.Ending: "ACTIVE"}[m.State],
		"OS-EXT-STS:task_state": task, "OS-EXT-AZ:availability_zone": m.Offer.Zone, "created": m.Since.UTC().Format(time.RFC3339),
		"flavor": object{"id": m.Offer.Type}, "metadata": object{"charging_mode": charge, "os_bit": "64"}, "tags": tags,
	}
}

// remove keeps the disk and the address of a machine unless it is told not to.
func (s *Server) remove(r *http.Request, region string, body []byte) (any, error) {
	var in struct {
		Servers []struct {
			ID string `json:"id"`
		} `json:"servers"`
		Address bool `json:"delete_publicip"`
		Disk    bool `json:"delete_volume"`
	}
	if err := decode(body, &in); err != nil || len(in.Servers) != 1 {
		return nil, fail{http.StatusBadRequest, "Ecs.0005"}
	}
	id := in.Servers[0].ID
	if err := s.cloud.End(context.Background(), id); err != nil && !errors.Is(err, provider.ErrNotFound) { // a job takes any id
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !in.Address {
		s.left = append(s.left, "address of "+id)
	}
	if !in.Disk {
		s.left = append(s.left, "disk of "+id)
	}
	return object{"job_id": "job-delete"}, nil
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
		return fail{http.StatusTooManyRequests, "APIGW.0308"}
	case errors.Is(err, provider.ErrUnavailable):
		return fail{http.StatusServiceUnavailable, "Ecs.0702"}
	case errors.Is(err, provider.ErrDenied):
		return fail{http.StatusForbidden, "Ecs.0003"}
	case errors.Is(err, provider.ErrNoCapacity):
		return fail{http.StatusBadRequest, "Ecs.0018"}
	case errors.Is(err, provider.ErrQuota):
		return fail{http.StatusForbidden, "Ecs.0001"}
	case errors.Is(err, provider.ErrNotFound):
		return fail{http.StatusNotFound, "Ecs.0114"}
	}
	return fail{http.StatusBadRequest, "Ecs.0005"}
}
