// Package paperspacetest is a stand-in of the parts of Paperspace's API v1 that lowtide asks, over a fake cloud: its paths,
// its key, its schema, its pages and its codes of refusal, written to the vendor's OpenAPI description.
//
// It promises to refuse what the vendor would: a wrong key, unknown or missing fields, a disk of no size that is sold, an
// unknown template, type, region or script. It sells what the fake cloud sells, at invented prices. It proves nothing
// about what the description leaves open: the bodies of startup scripts and the words of a quota are guesses.
package paperspacetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// Key is the key that the stand-in takes, Template the one operating-system template that there is.
const (
	Key      = "0123456789abcdef-paperspace-key"
	Template = "tkni3aa4"
)

// Market is a fake cloud that sells as this one does: on demand alone, no tokens, no notice.
func Market() fake.Config {
	return fake.Config{
		Cloud: "paperspace", Account: "main", NoTokens: true, NoHardEnd: true, Notice: -1, KeepGone: -1,
		Traces: fake.Places("ny2", "ca1", "ams1"),
		Types: []fake.Type{
			{Name: "A4000", GPU: "RTX A4000", GPUs: 1, OnDemand: 0.76},
			{Name: "A100-80G", GPU: "A100", GPUs: 1, OnDemand: 3.28},
			{Name: "H100x8", GPU: "H100", GPUs: 8, OnDemand: 47.6},
		},
	}
}

// Server is one account. It is an http.Handler.
type Server struct {
	mux   *http.ServeMux
	cloud *fake.Cloud
	knobs *fake.Knobs

	mu      sync.Mutex
	n       int
	scripts []script
	names   map[string]string // of machines, as they were sent, by the fake cloud's id
	states  map[string]string
}

type script struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Script string `json:"-"`
	Once   bool   `json:"isRunOnce"`
}

// New makes a stand-in of an account at c.
func New(c *fake.Cloud, k *fake.Knobs) *Server {
	s := &Server{mux: http.NewServeMux(), cloud: c, knobs: k, names: map[string]string{}, states: map[string]string{}}
	s.mux.HandleFunc("GET /os-templates", s.templates)
	s.mux.HandleFunc("GET /machine-availability", s.availability)
	s.mux.HandleFunc("POST /machines", s.create)
	s.mux.HandleFunc("GET /machines", s.list)
	s.mux.HandleFunc("GET /machines/{id}", s.one)
	s.mux.HandleFunc("DELETE /machines/{id}", s.remove)
	s.mux.HandleFunc("GET /startup-scripts", s.listScripts)
	s.mux.HandleFunc("POST /startup-scripts", s.write)
	s.mux.HandleFunc("DELETE /startup-scripts/{id}", s.unwrite)
	k.Left = s.Scripts
	return s
}

// Scripts are the names of the startup scripts that there are.
func (s *Server) Scripts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, x := range s.scripts {
		out = append(out, x.Name)
	}
	return out
}

// SetState makes the list say a state of a machine, by the vendor's id, whatever the fake cloud says.
func (s *Server) SetState(id, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states[inner(id)] = state
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("Authorization") != "Bearer "+Key || s.knobs.Expired {
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "Invalid API key")
		return
	}
	s.mux.ServeHTTP(w, r)
}

func (s *Server) templates(w http.ResponseWriter, r *http.Request) {
	if _, err := s.cloud.Offers(r.Context()); err != nil {
		sayNo(w, err)
		return
	}
	types := []any{map[string]any{"machineTypeLabel": "C5", "isAvailable": true}}
	for _, t := range Market().Types {
		types = append(types, map[string]any{"machineTypeLabel": t.Name, "isAvailable": true})
	}
	items := []any{
		map[string]any{"id": Template, "name": "ML-in-a-Box", "availableMachineTypes": types},
		map[string]any{"id": "t0nspur5", "name": "Ubuntu 22.04", "availableMachineTypes": types[:2]},
	}
	s.page(w, r, items, 1)
}

// page answers with one page, of size at most.
func (s *Server) page(w http.ResponseWriter, r *http.Request, items []any, size int) {
	q := r.URL.Query()
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil || limit < 1 || limit > 120 {
		refuse(w, http.StatusBadRequest, "BAD_REQUEST", "limit: a number from 1 to 120")
		return
	}
	from, _ := strconv.Atoi(q.Get("after"))
	from = min(from, len(items))
	to := min(from+min(size, limit), len(items))
	out := map[string]any{"items": append([]any{}, items[from:to]...), "hasMore": to < len(items)}
	if to < len(items) {
		out["nextPage"] = strconv.Itoa(to)
	}
	if s.knobs.Loop {
		out["hasMore"], out["nextPage"] = true, "0"
	}
	answer(w, out)
}

func (s *Server) availability(w http.ResponseWriter, r *http.Request) {
	kind, region := r.URL.Query().Get("machineType"), r.URL.Query().Get("region")
	if !slices.ContainsFunc(Market().Types, func(t fake.Type) bool { return t.Name == kind }) || !slices.Contains([]string{"ny2", "ca1", "ams1"}, region) {
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no such machine type or region")
		return
	}
	all, err := s.cloud.Offers(r.Context())
	if err != nil {
		sayNo(w, err)
		return
	}
	i := slices.IndexFunc(all, func(o fleet.Offer) bool { return o.Type == kind && o.Zone == region && o.Stock.Or(1) > 0 })
	answer(w, map[string]any{"available": i >= 0})
}

// order is the body of a create, all that the description names and lowtide sends.
type order struct {
	Name     string `json:"name"`
	Type     string `json:"machineType"`
	Template string `json:"templateId"`
	Disk     int    `json:"diskSize"`
	Region   string `json:"region"`
	Address  string `json:"publicIpType"`
	Script   string `json:"startupScriptId"`
	Start    *bool  `json:"startOnCreate"`
	Password *bool  `json:"emailPassword"`
	Shutdown *bool  `json:"autoShutdownEnabled"`
	Snapshot *bool  `json:"autoSnapshotEnabled"`
}

// wrong says what is wrong with an order; "": nothing.
func (o order) wrong() string {
	switch {
	case o.Name == "" || o.Type == "" || o.Region == "":
		return "name, machineType and region are required"
	case o.Template != Template:
		return "no such template"
	case !slices.Contains([]int{50, 100, 250, 500, 1000, 2000, 4000, 8000, 12000, 16000}, o.Disk):
		return "diskSize"
	case !slices.Contains([]string{"dynamic", "static", "none"}, o.Address):
		return "publicIpType"
	case o.Start == nil || !*o.Start || o.Password == nil || *o.Password || o.Shutdown == nil || *o.Shutdown:
		return "it would not start, or mail a password, or shut itself down"
	}
	return ""
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var in order
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil || in.wrong() != "" {
		refuse(w, http.StatusBadRequest, "BAD_REQUEST", fmt.Sprintf("%v %s", err, in.wrong()))
		return
	}
	s.mu.Lock()
	i := slices.IndexFunc(s.scripts, func(x script) bool { return x.ID == in.Script })
	text := ""
	if i >= 0 {
		text = s.scripts[i].Script
	}
	s.mu.Unlock()
	if i < 0 {
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no such startup script")
		return
	}
	labels := provider.FromText(in.Name)
	m, err := s.cloud.Launch(context.WithoutCancel(r.Context()), provider.Request{
		Token: labels.Plan, Name: labels.Machine, Labels: labels, UserData: text,
		Offer: fleet.Offer{Region: in.Region, Zone: in.Region, Type: in.Type, Market: fleet.OnDemand},
	})
	if bill := s.cloud.Bill(); len(bill) > 0 { // also when the answer is lost
		if last := bill[len(bill)-1]; last.Labels == labels {
			s.mu.Lock()
			s.names[last.ID] = in.Name
			s.mu.Unlock()
		}
	}
	if err != nil {
		sayNo(w, err)
		return
	}
	answer(w, map[string]any{"event": map[string]any{"id": "0f0f0f0f", "name": "create", "state": "new", "error": nil}, "data": s.row(m)})
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	all, err := s.cloud.List(r.Context())
	if err != nil {
		sayNo(w, err)
		return
	}
	rows := []any{}
	for _, m := range all {
		rows = append(rows, s.row(m))
	}
	s.page(w, r, rows, 20)
}

func (s *Server) one(w http.ResponseWriter, r *http.Request) {
	all, err := s.cloud.List(r.Context())
	if err != nil {
		sayNo(w, err)
		return
	}
	for _, m := range all {
		if ID(m.ID) == r.PathValue("id") {
			answer(w, s.row(m))
			return
		}
	}
	refuse(w, http.StatusNotFound, "NOT_FOUND", "no such machine")
}

func (s *Server) row(m provider.Machine) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, ok := s.states[m.ID]
	if !ok {
		state = map[provider.State]string{provider.Pending: "provisioning", provider.Running: "ready", provider.Ending: "stopping"}[m.State]
	}
	name, ok := s.names[m.ID]
	switch {
	case ok:
	case m.Labels.Install != "": // another installation's
		name = m.Labels.Text()
	default:
		name = "somebody's"
	}
	return map[string]any{
		"id": ID(m.ID), "name": name, "state": state, "machineType": m.Offer.Type, "region": m.Offer.Zone, "usageRate": m.Offer.Price.Amount.Float(), "storageRate": 7,
		"accelerators": []any{map[string]any{"name": "Ampere A100", "memory": 85899345920, "count": m.Offer.GPUs}}, "dtCreated": m.Since.UTC().Format("2006-01-02T15:04:05.000Z"),
		"dtDeleted": nil, "reservation": nil, "publicIpType": "dynamic", "autoShutdownEnabled": false,
	}
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request) {
	if err := s.cloud.End(context.WithoutCancel(r.Context()), inner(r.PathValue("id"))); err != nil {
		sayNo(w, err)
		return
	}
	answer(w, map[string]any{"event": map[string]any{"id": "0f0f0f10", "name": "delete", "state": "new"}})
}

func (s *Server) listScripts(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	items := []any{map[string]any{"id": "ss0", "name": "somebody's", "isRunOnce": true, "dtCreated": time.Time{}}}
	for _, x := range s.scripts {
		if want := r.URL.Query().Get("name"); want == "" || want == x.Name {
			items = append(items, x)
		}
	}
	s.mu.Unlock()
	s.page(w, r, items, 2)
}

func (s *Server) write(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Name   string `json:"name"`
		Script string `json:"script"`
		Once   *bool  `json:"isRunOnce"`
	}
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil || in.Name == "" || in.Script == "" {
		refuse(w, http.StatusBadRequest, "BAD_REQUEST", "name and script are required")
		return
	}
	s.mu.Lock()
	s.n++
	x := script{ID: fmt.Sprintf("ss%d", s.n), Name: in.Name, Script: in.Script, Once: in.Once != nil && *in.Once}
	s.scripts = append(s.scripts, x)
	s.mu.Unlock()
	answer(w, x)
}

func (s *Server) unwrite(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	before := len(s.scripts)
	s.scripts = slices.DeleteFunc(s.scripts, func(x script) bool { return x.ID == r.PathValue("id") })
	gone := len(s.scripts) < before
	s.mu.Unlock()
	if !gone {
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no such startup script")
		return
	}
	answer(w, map[string]any{})
}

// sayNo puts an error of the fake cloud into the vendor's words.
func sayNo(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, provider.ErrUnknown):
		panic(http.ErrAbortHandler) // the answer is lost
	case errors.Is(err, provider.ErrThrottled):
		refuse(w, http.StatusTooManyRequests, "TOO_MANY_REQUESTS", "slow down")
	case errors.Is(err, provider.ErrUnavailable):
		refuse(w, http.StatusServiceUnavailable, "INTERNAL_SERVER_ERROR", "something went wrong")
	case errors.Is(err, provider.ErrDenied):
		refuse(w, http.StatusForbidden, "FORBIDDEN", "your team may not")
	case errors.Is(err, provider.ErrNoCapacity):
		refuse(w, http.StatusBadRequest, "BAD_REQUEST", "We are currently out of capacity for the selected machine type.")
	case errors.Is(err, provider.ErrQuota):
		refuse(w, http.StatusBadRequest, "BAD_REQUEST", "Your team has reached its machine limit.")
	case errors.Is(err, provider.ErrNotFound):
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no such machine")
	default:
		refuse(w, http.StatusBadRequest, "BAD_REQUEST", "invalid")
	}
}

func refuse(w http.ResponseWriter, status int, code, msg string) {
	w.WriteHeader(status)
	answer(w, map[string]any{"message": msg, "code": code})
}

func answer(w http.ResponseWriter, v any) {
	_ = json.NewEncoder(w).Encode(v) // whoever has hung up is told nothing
}

// ID is the vendor's id of a machine of the fake cloud: psi000001 is its i-000001.
func ID(id string) string { return "ps" + id[:1] + id[2:] }

func inner(id string) string {
	if len(id) < 4 {
		return id
	}
	return id[2:3] + "-" + id[3:]
}
