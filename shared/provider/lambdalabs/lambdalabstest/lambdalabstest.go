// Package lambdalabstest is a stand-in of Lambda's HTTP API over a fake cloud: its paths, its key, its schema and its codes
// of refusal, written to the vendor's API description 1.10.0.
//
// It promises to refuse what the vendor would: a wrong key, unknown or missing fields, more than one SSH key, tags that do
// not fit, an unknown type or region. It sells what the fake cloud sells, at invented prices. It proves nothing about what
// the description leaves open.
package lambdalabstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// Key is the key that the stand-in takes, SSHKey the one SSH key that is stored at the account, and Notebook what its
// machines' rows hold and nobody may print.
const (
	Key      = "secret_lambda-stand-in_0123456789abcdef"
	SSHKey   = "operator"
	Notebook = "jupyter-0123456789abcdef"
)

// Market is a fake cloud that sells as this one does: on demand alone, no tokens, no notice.
func Market() fake.Config {
	return fake.Config{
		Cloud: "lambdalabs", Account: "main", NoTokens: true, NoHardEnd: true, Notice: -1, KeepGone: -1,
		Traces: fake.Places("us-east-1", "us-west-1", "europe-central-1"),
		Types: []fake.Type{
			{Name: "gpu_1x_a10", GPU: "A10 (24 GB PCIe)", GPUs: 1, OnDemand: 1.29},
			{Name: "gpu_1x_a100_sxm4", GPU: "A100 (40 GB SXM4)", GPUs: 1, OnDemand: 1.99},
			{Name: "gpu_8x_a100_80gb_sxm4", GPU: "A100 (80 GB SXM4)", GPUs: 8, OnDemand: 22.32},
			{Name: "gpu_8x_h100_sxm5", GPU: "H100 (80 GB SXM5)", GPUs: 8, OnDemand: 31.92},
		},
	}
}

// Server is one account. It is an http.Handler.
type Server struct {
	mux   *http.ServeMux
	cloud *fake.Cloud
	knobs *fake.Knobs

	mu     sync.Mutex
	tags   map[string][]tag // as they were sent, by the fake cloud's id
	status map[string]string
}

// New makes a stand-in of an account at c.
func New(c *fake.Cloud, k *fake.Knobs) *Server {
	s := &Server{mux: http.NewServeMux(), cloud: c, knobs: k, tags: map[string][]tag{}, status: map[string]string{}}
	s.mux.HandleFunc("GET /api/v1/instance-types", s.types)
	s.mux.HandleFunc("GET /api/v1/instances", s.list)
	s.mux.HandleFunc("POST /api/v1/instance-operations/launch", s.launch)
	s.mux.HandleFunc("POST /api/v1/instance-operations/terminate", s.terminate)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("Authorization") != "Bearer "+Key || s.knobs.Expired {
		refuse(w, http.StatusUnauthorized, "global/invalid-api-key", "API key was invalid, expired, or deleted.")
		return
	}
	s.mux.ServeHTTP(w, r)
}

// SetStatus makes the list say a status of a machine, by the vendor's id, whatever the fake cloud says.
func (s *Server) SetStatus(id, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status[inner(id)] = status
}

func (s *Server) types(w http.ResponseWriter, r *http.Request) {
	offers, err := s.cloud.Offers(r.Context())
	if err != nil {
		s.sayNo(w, err)
		return
	}
	data := map[string]any{
		"cpu_4x_general": map[string]any{
			"instance_type": map[string]any{
				"name": "cpu_4x_general", "description": "4x CPU", "gpu_description": "N/A", "price_cents_per_hour": 20, "specs": specs(0),
			},
			"regions_with_capacity_available": []any{region("us-east-1")},
		},
	}
	regions := map[string][]any{}
	for _, o := range offers {
		if o.Market != fleet.OnDemand {
			continue
		}
		if o.Stock.Or(1) > 0 {
			regions[o.Type] = append(regions[o.Type], region(o.Zone))
		}
		data[o.Type] = map[string]any{"instance_type": describe(o), "regions_with_capacity_available": append([]any{}, regions[o.Type]...)}
	}
	answer(w, data)
}

func describe(o fleet.Offer) map[string]any {
	return map[string]any{
		"name": o.Type, "description": fmt.Sprintf("%dx %s", o.GPUs, o.GPU), "gpu_description": o.GPU,
		"price_cents_per_hour": int(math.Round(o.Price.Amount.Float() * 100)), "specs": specs(o.GPUs),
	}
}

func specs(gpus int) map[string]any {
	return map[string]any{"vcpus": 30, "memory_gib": 200, "storage_gib": 512, "gpus": gpus}
}

func region(name string) map[string]any {
	return map[string]any{"name": name, "description": "Somewhere"}
}

type tag struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// order is the body of a launch, all that the description names.
type order struct {
	Region      string           `json:"region_name"`
	Type        string           `json:"instance_type_name"`
	SSHKeys     []string         `json:"ssh_key_names"`
	Name        string           `json:"name"`
	Hostname    string           `json:"hostname"`
	FileSystems []string         `json:"file_system_names"`
	Mounts      []map[string]any `json:"file_system_mounts"`
	Image       map[string]any   `json:"image"`
	UserData    string           `json:"user_data"`
	Tags        []tag            `json:"tags"`
	Firewalls   []map[string]any `json:"firewall_rulesets"`
}

var tagKey = regexp.MustCompile(`^[a-z][a-z0-9:-]+$`)

// wrong says what is wrong with an order; "": nothing.
func (o order) wrong() string {
	switch {
	case o.Region == "" || o.Type == "":
		return "region_name and instance_type_name are required"
	case len(o.SSHKeys) != 1:
		return "exactly one SSH key"
	case len(o.Name) > 64:
		return "name is too long"
	case len(o.UserData) > 1<<20:
		return "user_data is too long"
	}
	for _, t := range o.Tags {
		if !tagKey.MatchString(t.Key) || len(t.Key) > 55 || len(t.Value) > 128 {
			return "tag " + t.Key
		}
	}
	return ""
}

func (s *Server) launch(w http.ResponseWriter, r *http.Request) {
	var in order
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil || in.wrong() != "" {
		refuse(w, http.StatusBadRequest, "global/invalid-parameters", fmt.Sprintf("%v %s", err, in.wrong()))
		return
	}
	if in.SSHKeys[0] != SSHKey {
		refuse(w, http.StatusNotFound, "global/object-does-not-exist", "no such SSH key")
		return
	}
	byKey := map[string]string{}
	for _, t := range in.Tags {
		byKey[t.Key] = t.Value
	}
	labels := provider.FromTags(byKey)
	m, err := s.cloud.Launch(context.WithoutCancel(r.Context()), provider.Request{
		Token: labels.Plan, Name: in.Name, Labels: labels, UserData: in.UserData,
		Offer: fleet.Offer{Region: in.Region, Zone: in.Region, Type: in.Type, Market: fleet.OnDemand},
	})
	if bill := s.cloud.Bill(); len(bill) > 0 { // also when the answer is lost
		if last := bill[len(bill)-1]; last.Labels == labels {
			s.mu.Lock()
			s.tags[last.ID] = in.Tags
			s.mu.Unlock()
		}
	}
	if err != nil {
		s.sayNo(w, err)
		return
	}
	answer(w, map[string]any{"instance_ids": []string{ID(m.ID)}})
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	all, err := s.cloud.List(r.Context())
	if err != nil {
		s.sayNo(w, err)
		return
	}
	rows := []any{}
	for _, m := range all {
		rows = append(rows, s.row(m))
	}
	if s.knobs.Loop { // a list without pages goes in a circle by naming a machine again
		rows = append(rows, rows...)
	}
	answer(w, rows)
}

func (s *Server) row(m provider.Machine) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, ok := s.status[m.ID]
	if !ok {
		status = map[provider.State]string{
			provider.Pending: "booting", provider.Running: "active", provider.Ending: "terminating", provider.Gone: "terminated",
		}[m.State]
	}
	row := map[string]any{
		"id": ID(m.ID), "name": "somebody's", "status": status, "ssh_key_names": []string{SSHKey}, "file_system_names": []string{},
		"region": region(m.Offer.Zone), "instance_type": describe(m.Offer), "hostname": "host.example", "is_reserved": false,
		"jupyter_token": Notebook, "jupyter_url": "https://notebook.example/?token=" + Notebook, "actions": map[string]any{},
	}
	if t, ok := s.tags[m.ID]; ok {
		row["tags"] = t
	} else if m.Labels.Install != "" { // another installation's
		var t []tag
		for k, v := range m.Labels.Tags() {
			t = append(t, tag{k, v})
		}
		row["tags"] = t
	}
	return row
}

func (s *Server) terminate(w http.ResponseWriter, r *http.Request) {
	var in struct {
		IDs []string `json:"instance_ids"`
	}
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil || len(in.IDs) == 0 {
		refuse(w, http.StatusBadRequest, "global/invalid-parameters", fmt.Sprintf("body: %v", err))
		return
	}
	ended := []any{}
	for _, id := range in.IDs {
		if err := s.cloud.End(context.WithoutCancel(r.Context()), inner(id)); err != nil {
			s.sayNo(w, err)
			return
		}
		ended = append(ended, map[string]any{"id": id, "status": "terminating"})
	}
	answer(w, map[string]any{"terminated_instances": ended})
}

// sayNo puts an error of the fake cloud into the vendor's words.
func (s *Server) sayNo(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, provider.ErrUnknown):
		panic(http.ErrAbortHandler) // the answer is lost
	case errors.Is(err, provider.ErrThrottled):
		refuse(w, http.StatusTooManyRequests, "global/too-many-requests", "slow down")
	case errors.Is(err, provider.ErrUnavailable):
		refuse(w, http.StatusServiceUnavailable, "provider/internal-unavailable", "Provider unavailable")
	case errors.Is(err, provider.ErrDenied):
		refuse(w, http.StatusForbidden, "global/account-inactive", "Your account is inactive.")
	case errors.Is(err, provider.ErrNoCapacity):
		refuse(w, http.StatusBadRequest, "instance-operations/launch/insufficient-capacity", "Not enough capacity to fulfill launch request.")
	case errors.Is(err, provider.ErrQuota):
		refuse(w, http.StatusBadRequest, "global/quota-exceeded", "Quota exceeded.")
	case errors.Is(err, provider.ErrNotFound), errors.Is(err, provider.ErrInvalid):
		refuse(w, http.StatusNotFound, "global/object-does-not-exist", "Specified instance does not exist.")
	default:
		refuse(w, http.StatusBadRequest, "global/invalid-parameters", "Invalid request data.")
	}
}

func refuse(w http.ResponseWriter, status int, code, msg string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": code, "message": msg, "suggestion": nil}})
}

func answer(w http.ResponseWriter, data any) {
	_ = json.NewEncoder(w).Encode(map[string]any{"data": data}) // whoever has hung up is told nothing
}

// ID is the vendor's id of a machine of the fake cloud: 32 hexadecimal digits, "a…" for i-000001, "b…" for x-000001.
func ID(id string) string {
	letter := "a"
	if id[0] == 'x' {
		letter = "b"
	}
	return letter + strings.Repeat("0", 25) + id[2:]
}

func inner(id string) string {
	if len(id) != 32 {
		return id
	}
	if id[0] == 'b' {
		return "x-" + id[26:]
	}
	return "i-" + id[26:]
}
