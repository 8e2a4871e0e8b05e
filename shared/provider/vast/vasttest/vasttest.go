// Package vasttest is a stand-in of Vast.ai's HTTP API over a fake cloud: its paths, its key, its schema, its pages and
// its ways of saying no, written to the vendor's API description.
//
// It promises to refuse what the vendor would: a wrong key, unknown or missing fields, an unknown ask. It sells what the
// fake cloud sells, at invented prices. It proves nothing about what the description leaves open.
package vasttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// Key is the key that the stand-in takes.
const Key = "vast-0123456789abcdef-key"

// Market is a fake cloud that sells as this market does: kinds of machines in countries, no tokens, no notice.
func Market() fake.Config {
	return fake.Config{
		Cloud: "vast", Account: "main", NoTokens: true, NoHardEnd: true, Notice: -1, KeepGone: -1, Traces: fake.Places("RO", "DE", "US"),
		Types: []fake.Type{
			{Name: "1x_RTX_3090_24GB", GPU: "RTX 3090", GPUs: 1, OnDemand: 0.25, Spot: 0.12},
			{Name: "2x_RTX_4090_24GB", GPU: "RTX 4090", GPUs: 2, OnDemand: 0.78, Spot: 0.41},
			{Name: "8x_A100_SXM4_80GB", GPU: "A100 SXM4", GPUs: 8, OnDemand: 6.72, Spot: 3.9},
			{Name: "1x_H100_SXM_80GB", GPU: "H100 SXM", GPUs: 1, OnDemand: 1.87, Spot: 1.1},
		},
	}
}

// Server is one account. It is an http.Handler.
type Server struct {
	mux   *http.ServeMux
	cloud *fake.Cloud
	knobs *fake.Knobs

	mu      sync.Mutex
	tried   map[string]int // creates seen, by pool: an ask is one machine and does not come back
	asks    map[int64]fleet.Offer
	labels  map[string]string // as they were sent, by the fake cloud's id
	env     map[string]map[string]string
	stopped map[string]bool
	boxes   map[string]int64
}

// New makes a stand-in of an account at c.
func New(c *fake.Cloud, k *fake.Knobs) *Server {
	s := &Server{
		mux: http.NewServeMux(), cloud: c, knobs: k, tried: map[string]int{}, asks: map[int64]fleet.Offer{},
		labels: map[string]string{}, env: map[string]map[string]string{}, stopped: map[string]bool{}, boxes: map[string]int64{},
	}
	s.mux.HandleFunc("POST /api/v0/bundles/", s.search)
	s.mux.HandleFunc("PUT /api/v0/asks/{id}/", s.private(s.create))
	s.mux.HandleFunc("GET /api/v1/instances/", s.private(s.list))
	s.mux.HandleFunc("GET /api/v0/instances/{id}/", s.private(s.one))
	s.mux.HandleFunc("DELETE /api/v0/instances/{id}/", s.private(s.destroy))
	return s
}

// ServeHTTP implements http.Handler. Answers are JSON unless they say otherwise.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	s.mux.ServeHTTP(w, r)
}

// Outbid stops a machine as the market does when somebody bids more: it stays, and its disk bills.
func (s *Server) Outbid(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped[inner(id)] = true
}

func (s *Server) private(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+Key || s.knobs.Expired {
			refuse(w, http.StatusUnauthorized, "auth_error", "Invalid user key")
			return
		}
		h(w, r)
	}
}

// ops are the conditions of a search; conditions are the fields that may have one.
var (
	ops        = []string{"eq", "neq", "gt", "lt", "gte", "lte", "in", "notin"}
	conditions = []string{"verified", "external", "rentable", "rented", "duration", "disk_space", "reliability2", "gpu_name", "num_gpus", "machine_id", "host_id"}
)

func (s *Server) search(w http.ResponseWriter, r *http.Request) {
	if s.knobs.Expired && r.Header.Get("Authorization") != "" {
		refuse(w, http.StatusUnauthorized, "auth_error", "Invalid user key")
		return
	}
	var q map[string]any
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		refuse(w, http.StatusBadRequest, "invalid_args", "not JSON")
		return
	}
	for k, v := range q {
		cond, isCond := v.(map[string]any)
		for op := range cond {
			isCond = isCond && slices.Contains(ops, op)
		}
		if slices.Contains([]string{"type", "order", "limit", "allocated_storage"}, k) || isCond && slices.Contains(conditions, k) {
			continue
		}
		refuse(w, http.StatusBadRequest, "invalid_args", "unknown condition "+k)
		return
	}
	market, ok := map[any]fleet.Market{"on-demand": fleet.OnDemand, "bid": fleet.Spot}[q["type"]]
	if !ok {
		refuse(w, http.StatusBadRequest, "invalid_args", "type")
		return
	}
	offers, err := s.cloud.Offers(r.Context())
	if err != nil {
		s.sayNo(w, err)
		return
	}
	storage, _ := q["allocated_storage"].(float64)
	rows := []map[string]any{}
	for _, o := range offers {
		if o.Market == market && o.Stock.Or(1) > 0 && matches(q["gpu_name"], o.GPU) && matches(q["num_gpus"], float64(o.GPUs)) {
			if row := s.ask(o, offers, storage); !barred(q["machine_id"], row["machine_id"]) {
				rows = append(rows, row)
			}
		}
	}
	answer(w, map[string]any{"offers": rows})
}

// matches judges {"eq": v}, the one condition that the stand-in applies; no condition matches all.
func matches(cond, is any) bool {
	c, ok := cond.(map[string]any)
	return !ok || c["eq"] == nil || fmt.Sprint(c["eq"]) == fmt.Sprint(is) // the vendor's client sends numbers as text
}

// barred judges {"notin": [v, …]}.
func barred(cond, is any) bool {
	c, _ := cond.(map[string]any)
	list, _ := c["notin"].([]any)
	return slices.ContainsFunc(list, func(v any) bool { return fmt.Sprint(v) == fmt.Sprint(is) })
}

func (s *Server) ask(o fleet.Offer, all []fleet.Offer, storage float64) map[string]any {
	s.mu.Lock()
	id, box := int64(20000000), int64(90000)
	for i, x := range all {
		if x.Pool() == o.Pool() {
			id, box = id+int64(i)*1000, box+int64(i)
		}
	}
	id += int64(s.tried[o.Pool()])
	s.asks[id] = o
	s.mu.Unlock()
	base, bid := 0.0, 0.0
	for _, x := range all {
		if x.Zone == o.Zone && x.Type == o.Type {
			if x.Market == fleet.Spot {
				bid = x.Price.Amount.Float()
			} else {
				base = x.Price.Amount.Float()
			}
		}
	}
	disk := storage * 0.15 / 730
	return map[string]any{
		"id": id, "ask_contract_id": id, "machine_id": box, "host_id": 50001, "gpu_name": o.GPU, "num_gpus": o.GPUs,
		"gpu_ram": gb(o.Type)*1024 - 13, "dph_base": base, "dph_total": round(base + disk), "min_bid": bid, "is_bid": o.Market == fleet.Spot,
		"storage_cost": 0.15, "storage_total_cost": round(disk), "inet_up_cost": 0.004, "inet_down_cost": 0.002,
		"credit_discount_max": 0.4, "reliability2": 0.992, "duration": 5.3e6, "end_date": 1893456000, "geolocation": "Somewhere, " + o.Zone,
		"verification": "verified", "rentable": true, "rented": false, "external": nil, "cpu_cores": nil, "cuda_max_good": 12.8,
	}
}

// gb is the end of a type's name.
func gb(kind string) float64 {
	n, _ := strconv.ParseFloat(strings.TrimSuffix(kind[strings.LastIndex(kind, "_")+1:], "GB"), 64)
	return n
}

func round(f float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', 6, 64), 64)
	return r
}

// rent is the body of a create, all that the description names.
type rent struct {
	Client            string            `json:"client_id"`
	Image             string            `json:"image"`
	Env               map[string]string `json:"env"`
	Price             *float64          `json:"price"`
	Disk              float64           `json:"disk"`
	Label             string            `json:"label"`
	Extra             *string           `json:"extra"`
	OnStart           string            `json:"onstart"`
	Args              []string          `json:"args"`
	RunType           string            `json:"runtype"`
	ImageLogin        *string           `json:"image_login"`
	PythonUTF8        bool              `json:"python_utf8"`
	LangUTF8          bool              `json:"lang_utf8"`
	JupyterLab        bool              `json:"use_jupyter_lab"`
	JupyterDir        *string           `json:"jupyter_dir"`
	Force             bool              `json:"force"`
	CancelUnavailable bool              `json:"cancel_unavail"`
	Template          *string           `json:"template_hash_id"`
	User              *string           `json:"user"`
	SSHKey            *string           `json:"ssh_key"`
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var in rent
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil || in.Client != "me" || in.Image == "" || in.RunType == "" {
		refuse(w, http.StatusBadRequest, "invalid_args", fmt.Sprintf("body: %v", err))
		return
	}
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
	s.mu.Lock()
	o, ok := s.asks[id]
	ok = ok && id%1000 == int64(s.tried[o.Pool()])
	if ok {
		s.tried[o.Pool()]++
	}
	s.mu.Unlock()
	if !ok {
		refuse(w, http.StatusGone, "no_such_ask", fmt.Sprintf("error 410/3907: no_such_ask Instance type %d is no longer available.", id))
		return
	}
	o.Market = fleet.OnDemand
	if in.Price != nil && !s.knobs.Swap {
		o.Market = fleet.Spot
	}
	labels := provider.FromText(in.Label)
	m, err := s.cloud.Launch(context.WithoutCancel(r.Context()), provider.Request{
		Token: labels.Plan, Name: labels.Machine, Offer: o, Labels: labels, UserData: in.Env["LOWTIDE_MACHINE"],
	})
	if bill := s.cloud.Bill(); len(bill) > 0 { // also when the answer is lost
		if last := bill[len(bill)-1]; last.Labels == labels {
			s.mu.Lock()
			s.labels[last.ID], s.env[last.ID], s.boxes[last.ID] = in.Label, in.Env, 90000+(id-20000000)/1000
			s.mu.Unlock()
		}
	}
	if err != nil {
		s.sayNo(w, err)
		return
	}
	if in.Price != nil && *in.Price < m.Offer.Price.Amount.Float() && o.Market == fleet.Spot {
		s.Outbid(ID(m.ID))
		w.WriteHeader(http.StatusBadRequest)
		answer(w, map[string]any{"success": false, "error": "invalid_price", "msg": "bid below current minimum", "new_contract": number(m.ID)})
		return
	}
	answer(w, map[string]any{"success": true, "new_contract": number(m.ID)})
}

// page is the most machines that one page holds.
const page = 25

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	all, err := s.cloud.List(r.Context())
	if err != nil {
		s.sayNo(w, err)
		return
	}
	limit := page
	if l, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && l > 0 {
		limit = min(l, page)
	}
	from, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Query().Get("after_token"), "t"))
	rows := []map[string]any{}
	for _, m := range all[min(from, len(all)):min(from+limit, len(all))] {
		rows = append(rows, s.row(m))
	}
	var next any
	if from+limit < len(all) {
		next = fmt.Sprintf("t%d", from+limit)
	}
	if s.knobs.Loop {
		next = "t0"
	}
	answer(w, map[string]any{"success": true, "instances": rows, "next_token": next, "total_instances": len(all)})
}

func (s *Server) one(w http.ResponseWriter, r *http.Request) {
	all, err := s.cloud.List(r.Context())
	if err != nil {
		s.sayNo(w, err)
		return
	}
	for _, m := range all {
		if m.ID == inner(r.PathValue("id")) {
			answer(w, map[string]any{"instances": s.row(m)})
			return
		}
	}
	answer(w, map[string]any{"instances": nil})
}

func (s *Server) row(m provider.Machine) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	var label any
	if l, ok := s.labels[m.ID]; ok {
		label = l
	} else if m.Labels.Install != "" {
		label = m.Labels.Text() // another installation's
	}
	actual, intended := "running", "running"
	if m.State == provider.Pending {
		actual = "loading"
	}
	if s.stopped[m.ID] {
		actual, intended = "exited", "stopped"
	}
	env := [][]string{}
	for _, k := range slices.Sorted(maps.Keys(s.env[m.ID])) {
		env = append(env, []string{k, s.env[m.ID][k]})
	}
	return map[string]any{
		"id": number(m.ID), "label": label, "actual_status": actual, "intended_status": intended, "cur_state": intended, "next_state": intended,
		"is_bid": m.Offer.Market == fleet.Spot, "dph_base": m.Offer.Price.Amount.Float(), "dph_total": m.Offer.Price.Amount.Float() + 0.01,
		"gpu_name": m.Offer.GPU, "num_gpus": m.Offer.GPUs, "gpu_ram": gb(m.Offer.Type)*1024 - 13, "geolocation": "Somewhere, " + m.Offer.Zone,
		"start_date": float64(m.Since.UnixMicro()) / 1e6, "end_date": 2034617753.0, "machine_id": s.boxes[m.ID], "extra_env": env, "status_msg": nil,
		"ssh_host": "ssh.example", "ssh_port": 10882, "min_bid": 0.02, "cpu_cores": nil,
	}
}

func (s *Server) destroy(w http.ResponseWriter, r *http.Request) {
	if err := s.cloud.End(context.WithoutCancel(r.Context()), inner(r.PathValue("id"))); err != nil {
		s.sayNo(w, err)
		return
	}
	answer(w, map[string]any{"success": true})
}

// sayNo puts an error of the fake cloud into the market's words.
func (s *Server) sayNo(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, provider.ErrUnknown):
		panic(http.ErrAbortHandler) // the answer is lost
	case errors.Is(err, provider.ErrThrottled):
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, "API requests too frequent: endpoint threshold=4.5")
	case errors.Is(err, provider.ErrUnavailable):
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, "<html>upstream</html>")
	case errors.Is(err, provider.ErrDenied):
		refuse(w, http.StatusUnauthorized, "auth_error", "this key has no access to the route")
	case errors.Is(err, provider.ErrNoCapacity):
		refuse(w, http.StatusNotFound, "invalid_args", "error 404/3603: no_such_ask Instance type by id is not available.")
	case errors.Is(err, provider.ErrQuota):
		refuse(w, http.StatusBadRequest, "limit_exceeded", "too many instances")
	case errors.Is(err, provider.ErrNotFound):
		refuse(w, http.StatusNotFound, "no_such_instance", "no such instance")
	default:
		refuse(w, http.StatusBadRequest, "invalid_args", "invalid")
	}
}

func refuse(w http.ResponseWriter, status int, code, msg string) {
	w.WriteHeader(status)
	answer(w, map[string]any{"success": false, "error": code, "msg": msg})
}

func answer(w http.ResponseWriter, v any) {
	_ = json.NewEncoder(w).Encode(v) // whoever has hung up is told nothing
}

// The market's ids are numbers: 1000001 is the fake cloud's i-000001, 2000001 its x-000001.
func number(id string) int64 {
	n, _ := strconv.ParseInt(id[2:], 10, 64)
	if id[0] == 'x' {
		return 2000000 + n
	}
	return 1000000 + n
}

// ID is the market's id of a machine of the fake cloud.
func ID(id string) string { return strconv.FormatInt(number(id), 10) }

func inner(id string) string {
	n, _ := strconv.ParseInt(id, 10, 64)
	if n >= 2000000 {
		return fmt.Sprintf("x-%06d", n-2000000)
	}
	return fmt.Sprintf("i-%06d", n-1000000)
}
