// Package azuretest is a stand-in of the parts of Azure that lowtide asks, over a fake cloud: its login, the resource
// manager's machines and sizes, and the public Retail Prices API with all the rows that nobody wants.
//
// It promises to refuse what the vendor would: a wrong or old token, a wrong API version, unknown or missing fields, a
// change of what cannot change. It sells what the fake cloud sells, at invented prices. It proves nothing about what the
// reference leaves open: that a create of what is there answers 412 is one such thing.
package azuretest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// What the stand-in takes. The secret opens nothing.
const (
	Subscription = "00000000-0000-0000-0000-000000000001"
	Tenant       = "00000000-0000-0000-0000-000000000002"
	Client       = "00000000-0000-0000-0000-000000000003"
	Secret       = "example~secret.of-nobody_0123456789"
	Group        = "gpus"
	Image        = "microsoft-dsvm:ubuntu-hpc:2204:latest"
	Subnet       = "net/machines"
	SSHKey       = "ssh-ed25519 AAAAexample operator"
)

// token is what the login gives; it is as secret.
const token = "eyJexample.token.0123456789"

// Secrets are all that may not be printed.
func Secrets() []string { return []string{Secret, url.QueryEscape(Secret), token} }

// Market is a fake cloud that sells as Azure does: sizes in numbered zones, tokens, a notice of 30 seconds.
func Market() fake.Config {
	return fake.Config{
		Cloud: "azure", Account: "main", NoHardEnd: true, Notice: 30 * time.Second, KeepGone: -1,
		Traces: fake.Places("eastus-1", "eastus-2", "westeurope-1"),
		Types: []fake.Type{
			{Name: "Standard_NC24ads_A100_v4", GPU: "A100", GPUs: 1, OnDemand: 3.673, Spot: 0.88},
			{Name: "Standard_ND96isr_H100_v5", GPU: "H100", GPUs: 8, OnDemand: 98.32, Spot: 39.3},
			{Name: "Standard_NC16as_T4_v3", GPU: "T4", GPUs: 1, OnDemand: 1.204},
			{Name: "Standard_NC128ds_xl_RTXPRO6000BSE_v6", GPUs: 1, OnDemand: 6.38}, // of a family that nobody knows
		},
	}
}

// Server is one subscription. It is an http.Handler.
type Server struct {
	mux   *http.ServeMux
	cloud *fake.Cloud
	knobs *fake.Knobs

	mu     sync.Mutex
	orders map[string]order  // by name
	ids    map[string]string // name to the fake cloud's id
	power  map[string]string // by name
	left   map[string]bool   // resources that were not made to go with their machine
}

// New makes a stand-in of a subscription at c.
func New(c *fake.Cloud, k *fake.Knobs) *Server {
	s := &Server{
		mux: http.NewServeMux(), cloud: c, knobs: k, orders: map[string]order{}, ids: map[string]string{}, power: map[string]string{}, left: map[string]bool{},
	}
	const sub = "/subscriptions/{sub}/"
	s.mux.HandleFunc("POST /{tenant}/oauth2/v2.0/token", s.login)
	s.mux.HandleFunc("GET /api/retail/prices", s.prices)
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET " + sub + "providers/Microsoft.Compute/skus":                                               s.skus,
		"GET " + sub + "providers/Microsoft.Compute/virtualMachines":                                    s.list,
		"PUT " + sub + "resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/{name}":      s.create,
		"GET " + sub + "resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/{name}":      s.one,
		"DELETE " + sub + "resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/{name}":   s.remove,
		"DELETE " + sub + "resourceGroups/{group}/providers/Microsoft.Network/networkInterfaces/{name}": s.unleave,
		"DELETE " + sub + "resourceGroups/{group}/providers/Microsoft.Network/publicIPAddresses/{name}": s.unleave,
		"DELETE " + sub + "resourceGroups/{group}/providers/Microsoft.Compute/disks/{name}":             s.unleave,
	} {
		s.mux.HandleFunc(pattern, s.private(h))
	}
	k.Left = func() []string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return fleet.Sorted(s.left)
	}
	return s
}

// SetPower makes the list say a power state of a machine, by its name, whatever the fake cloud says.
func (s *Server) SetPower(name, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.power[name] = state
}

// fail is a refusal in the vendor's words.
type fail struct {
	status     int
	code, text string
}

func (f fail) Error() string { return f.code }

type object = map[string]any

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	s.mux.ServeHTTP(w, r)
}

func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	if r.ParseForm() != nil || r.PathValue("tenant") != Tenant || r.Form.Get("grant_type") != "client_credentials" || r.Form.Get("client_id") != Client ||
		r.Form.Get("client_secret") != Secret || !strings.HasSuffix(r.Form.Get("scope"), "/.default") || s.knobs.Expired {
		w.WriteHeader(http.StatusUnauthorized)
		answer(w, object{"error": "invalid_client", "error_description": "AADSTS7000222: " + r.Form.Get("client_secret")})
		return
	}
	answer(w, object{"token_type": "Bearer", "expires_in": 3599, "access_token": token})
}

func (s *Server) private(h func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var err error
		switch {
		case r.Header.Get("Authorization") != "Bearer "+token, s.knobs.Expired:
			err = fail{http.StatusUnauthorized, "ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than current UTC time."}
		case r.PathValue("sub") != Subscription:
			err = fail{http.StatusNotFound, "SubscriptionNotFound", "The subscription could not be found."}
		case r.PathValue("group") != "" && !strings.EqualFold(r.PathValue("group"), Group):
			err = fail{http.StatusNotFound, "ResourceGroupNotFound", "Resource group could not be found."}
		case r.URL.Query().Get("api-version") == "":
			err = fail{http.StatusBadRequest, "MissingApiVersionParameter", "The api-version query parameter is required."}
		default:
			err = h(w, r)
		}
		if err != nil {
			f := words(err)
			w.WriteHeader(f.status)
			answer(w, object{"error": object{"code": f.code, "message": f.text + " " + r.Header.Get("Authorization")}})
		}
	}
}

// page is one page of rows, of size at most, under a name, and the link to the next under another.
func (s *Server) page(w http.ResponseWriter, r *http.Request, rows []any, size int, under, next string) error {
	q := r.URL.Query()
	from, _ := strconv.Atoi(q.Get("$skip"))
	from = min(from, len(rows))
	to := min(from+size, len(rows))
	out := object{under: append([]any{}, rows[from:to]...), next: nil}
	if to < len(rows) || s.knobs.Loop {
		if q.Set("$skip", strconv.Itoa(to)); s.knobs.Loop {
			q.Set("$skip", "0")
		}
		host := "elsewhere.example:443" // to follow it would be to leave
		if r.TLS != nil {               // as the vendor's own clients ask, which follow it
			host = r.Host
		}
		out[next] = "https://" + host + r.URL.Path + "?" + q.Encode()
	}
	answer(w, out)
	return nil
}

// regionOf is a zone's region.
func regionOf(zone string) string { r, _, _ := strings.Cut(zone, "-"); return r }

// skus are the sizes in a region with their zones, one that this subscription may not use, a share of a GPU, and none.
func (s *Server) skus(w http.ResponseWriter, r *http.Request) error {
	name := strings.TrimSuffix(strings.TrimPrefix(r.URL.Query().Get("$filter"), "location eq '"), "'")
	all, err := s.cloud.Offers(r.Context())
	if err != nil {
		return err
	}
	row := func(size string, gpus string, zones []string, restricted bool) object {
		restrictions := []any{}
		if restricted {
			restrictions = append(restrictions, object{"type": "Location", "values": []string{name}, "reasonCode": "NotAvailableForSubscription", "restrictionInfo": object{"locations": []string{name}}})
		}
		return object{
			"resourceType": "virtualMachines", "name": size, "capabilities": []any{object{"name": "vCPUs", "value": "24"}, object{"name": "GPUs", "value": gpus}},
			"locationInfo": []any{object{"location": strings.ToUpper(name), "zones": zones}}, "restrictions": restrictions,
		}
	}
	rows := []any{
		object{"resourceType": "disks", "name": "Premium_LRS", "locationInfo": []any{object{"location": name}}},
		row("Standard_D4s_v5", "0", []string{"1"}, false), row("Standard_NV6ads_A10_v5", "1", []string{"1"}, false), row("Standard_NC64as_T4_v3", "4", nil, true),
	}
	for _, t := range Market().Types {
		var zones []string
		for _, o := range all {
			if o.Type == t.Name && o.Market == fleet.OnDemand && regionOf(o.Zone) == name {
				zones = append(zones, strings.TrimPrefix(o.Zone, name+"-"))
			}
		}
		if len(zones) > 0 {
			rows = append(rows, row(t.Name, strconv.Itoa(t.GPUs), zones, false))
		}
	}
	return s.page(w, r, rows, 3, "value", "nextLink")
}

// prices answers all rows of a region: the wanted ones among those that are not.
func (s *Server) prices(w http.ResponseWriter, r *http.Request) {
	_, name, _ := strings.Cut(r.URL.Query().Get("$filter"), "armRegionName eq '")
	name = strings.TrimSuffix(name, "'")
	if _, err := s.cloud.Offers(r.Context()); err != nil {
		f := words(err)
		w.WriteHeader(f.status)
		answer(w, object{"Error": object{"Code": f.code, "Message": f.text}})
		return
	}
	var rows []any
	for _, t := range append(Market().Types, fake.Type{Name: "Standard_NV6ads_A10_v5", OnDemand: 0.454}, fake.Type{Name: "Standard_NC64as_T4_v3", OnDemand: 4.352}) {
		short := strings.ReplaceAll(strings.TrimPrefix(t.Name, "Standard_"), "_", " ")
		row := func(product, sku, kind, term string, price float64) {
			x := object{
				"currencyCode": "USD", "tierMinimumUnits": 0.0, "retailPrice": price, "unitPrice": price, "armRegionName": name, "armSkuName": t.Name, "productName": product,
				"skuName": sku, "serviceName": "Virtual Machines", "unitOfMeasure": "1 Hour", "type": kind, "isPrimaryMeterRegion": true,
			}
			if term != "" {
				x["reservationTerm"] = term
			}
			rows = append(rows, x)
		}
		const product = "Virtual Machines NC Series"
		row(product+" Windows", short, "Consumption", "", t.OnDemand+1)
		row(product, short, "Consumption", "", t.OnDemand)
		row(product, short+" Low Priority", "Consumption", "", t.OnDemand/5)
		row("NC Series Cloud Services", short, "Consumption", "", t.OnDemand+1)
		row(product+" Windows", short, "DevTestConsumption", "", t.OnDemand)
		row(product, short, "Reservation", "1 Year", t.OnDemand*8760*0.6)
		row(product, short, "Reservation", "3 Years", t.OnDemand*26280*0.4)
		if t.Spot > 0 {
			row(product, short+" Spot", "Consumption", "", t.Spot)
			row(product+" Windows", short+" Spot", "Consumption", "", t.Spot+1)
		}
	}
	_ = s.page(w, r, rows, 25, "Items", "NextPageLink")
}

// order is all that a create takes of us.
type order struct {
	Location   string            `json:"location"`
	Zones      []string          `json:"zones"`
	Tags       map[string]string `json:"tags"`
	Properties struct {
		Hardware struct {
			Size string `json:"vmSize"`
		} `json:"hardwareProfile"`
		Storage struct {
			Image struct {
				ID, Publisher, Offer, SKU, Version string
			} `json:"imageReference"`
			Disk struct {
				Name    string `json:"name"`
				Create  string `json:"createOption"`
				Delete  string `json:"deleteOption"`
				GB      int    `json:"diskSizeGB"`
				Managed struct {
					Kind string `json:"storageAccountType"`
				} `json:"managedDisk"`
			} `json:"osDisk"`
		} `json:"storageProfile"`
		OS struct {
			Computer string `json:"computerName"`
			User     string `json:"adminUsername"`
			Data     string `json:"customData"`
			Linux    struct {
				NoPassword bool `json:"disablePasswordAuthentication"`
				SSH        struct {
					Keys []struct {
						Path string `json:"path"`
						Key  string `json:"keyData"`
					} `json:"publicKeys"`
				} `json:"ssh"`
			} `json:"linuxConfiguration"`
		} `json:"osProfile"`
		Network struct {
			Version    string `json:"networkApiVersion"`
			Interfaces []struct {
				Name       string `json:"name"`
				Properties struct {
					Primary bool   `json:"primary"`
					Delete  string `json:"deleteOption"`
					IPs     []struct {
						Name       string `json:"name"`
						Properties struct {
							Primary bool `json:"primary"`
							Subnet  struct {
								ID string `json:"id"`
							} `json:"subnet"`
							Address *struct {
								Name       string         `json:"name"`
								SKU        object         `json:"sku"`
								Properties map[string]any `json:"properties"`
							} `json:"publicIPAddressConfiguration"`
						} `json:"properties"`
					} `json:"ipConfigurations"`
				} `json:"properties"`
			} `json:"networkInterfaceConfigurations"`
		} `json:"networkProfile"`
		Priority string `json:"priority"`
		Eviction string `json:"evictionPolicy"`
		Billing  *struct {
			Most float64 `json:"maxPrice"`
		} `json:"billingProfile"`
	} `json:"properties"`
}

// wrong says what is wrong with an order; "": nothing.
func (o order) wrong(name string) string {
	p := o.Properties
	data, err := base64.StdEncoding.DecodeString(p.OS.Data)
	switch {
	case o.Location == "" || p.Hardware.Size == "" || len(o.Zones) > 1:
		return "location, size or zones"
	case p.Storage.Image.Publisher+":"+p.Storage.Image.Offer+":"+p.Storage.Image.SKU+":"+p.Storage.Image.Version != Image:
		return "image"
	case p.Storage.Disk.Create != "FromImage" || p.Storage.Disk.GB <= 0 || p.Storage.Disk.Managed.Kind == "":
		return "disk"
	case p.OS.Computer != name || p.OS.User == "" || err != nil || len(data) > 64<<10:
		return "osProfile"
	case !p.OS.Linux.NoPassword || len(p.OS.Linux.SSH.Keys) != 1 || p.OS.Linux.SSH.Keys[0].Key != SSHKey:
		return "a Linux machine needs a password or a key"
	case p.Network.Version == "" || len(p.Network.Interfaces) != 1 || len(p.Network.Interfaces[0].Properties.IPs) != 1:
		return "networkProfile"
	case !strings.HasSuffix(p.Network.Interfaces[0].Properties.IPs[0].Properties.Subnet.ID, "/virtualNetworks/net/subnets/machines"):
		return "subnet"
	case (p.Priority == "Spot") != (p.Billing != nil) || p.Priority == "Spot" && p.Eviction != "Delete" && p.Eviction != "Deallocate":
		return "priority, evictionPolicy and billingProfile go together"
	}
	for k, v := range o.Tags {
		if len(k) > 512 || len(v) > 256 || strings.ContainsAny(k, `<>%&\?/`) {
			return "tag " + k
		}
	}
	return ""
}

// create makes a machine, or, with If-None-Match, refuses where there is one.
func (s *Server) create(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	var o order
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&o); err != nil || o.wrong(name) != "" {
		return fail{http.StatusBadRequest, "InvalidParameter", fmt.Sprintf("%v %s", err, o.wrong(name))}
	}
	if _, there := s.find(r, name); there {
		if r.Header.Get("If-None-Match") == "*" {
			return fail{http.StatusPreconditionFailed, "PreconditionFailed", "The resource exists."}
		}
		return fail{http.StatusConflict, "PropertyChangeNotAllowed", "Changing property 'osProfile.customData' is not allowed."}
	}
	offer := fleet.Offer{Zone: o.Location + "-" + strings.Join(o.Zones, ""), Type: o.Properties.Hardware.Size, Market: fleet.OnDemand}
	if o.Properties.Priority == "Spot" && !s.knobs.Swap {
		offer.Market = fleet.Spot
	}
	labels := provider.FromTags(o.Tags)
	m, err := s.cloud.Launch(context.WithoutCancel(r.Context()), provider.Request{Token: name, Name: labels.Machine, Labels: labels, Offer: offer, UserData: o.Properties.OS.Data})
	if bill := s.cloud.Bill(); len(bill) > 0 { // also when the answer is lost
		if last := bill[len(bill)-1]; last.Labels == labels {
			s.mu.Lock()
			s.orders[name], s.ids[name] = o, last.ID
			p := o.Properties
			for left, goes := range map[string]bool{
				"disk " + p.Storage.Disk.Name:               p.Storage.Disk.Delete == "Delete",
				"interface " + p.Network.Interfaces[0].Name: p.Network.Interfaces[0].Properties.Delete == "Delete",
			} {
				if !goes {
					s.left[left] = true
				}
			}
			if a := p.Network.Interfaces[0].Properties.IPs[0].Properties.Address; a != nil && a.Properties["deleteOption"] != "Delete" {
				s.left["address "+a.Name] = true
			}
			s.mu.Unlock()
		}
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusCreated)
	answer(w, s.row(m, false))
	return nil
}

// find is a machine by its name.
func (s *Server) find(r *http.Request, name string) (provider.Machine, bool) {
	for _, b := range s.cloud.Bill() {
		if s.name(b.ID) == name && b.Bills() {
			return b.Machine, true
		}
	}
	return provider.Machine{}, false
}

// name is the name of a machine of the fake cloud.
func (s *Server) name(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, of := range s.ids {
		if of == id {
			return name
		}
	}
	return "somebody-" + id
}

// Name is how the adapter knows a machine of the fake cloud.
func (s *Server) Name(id string) string {
	if n := s.name(id); !strings.HasPrefix(n, "somebody-") {
		return n
	}
	return "others/somebody-" + id
}

func (s *Server) row(m provider.Machine, status bool) object {
	name := s.name(m.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	group, tags := strings.ToUpper(Group), s.orders[name].Tags
	if s.ids[name] == "" {
		group, tags = "others", m.Labels.Tags()
	}
	id := "/subscriptions/" + Subscription + "/resourceGroups/" + group + "/providers/Microsoft.Compute/virtualMachines/" + name
	state := map[provider.State]string{provider.Pending: "Creating", provider.Running: "Succeeded", provider.Ending: "Deleting"}[m.State]
	power := s.power[name]
	if power == "" {
		power = "running"
	}
	if status {
		return object{"id": id, "properties": object{"instanceView": object{"statuses": []any{
			object{"code": "ProvisioningState/" + strings.ToLower(state)}, object{"code": "PowerState/" + power},
		}}}}
	}
	region, zone, _ := strings.Cut(m.Offer.Zone, "-")
	priority := "Regular"
	if m.Offer.Market == fleet.Spot {
		priority = "Spot"
	}
	return object{
		"id": id, "name": name, "location": region, "zones": []string{zone}, "tags": tags,
		"properties": object{
			"vmId": "0", "hardwareProfile": object{"vmSize": m.Offer.Type}, "priority": priority, "provisioningState": state,
			"timeCreated": m.Since.UTC().Format(time.RFC3339Nano),
		},
	}
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	all, err := s.cloud.List(r.Context())
	if err != nil {
		return err
	}
	rows := []any{}
	for _, m := range all {
		if m.State != provider.Gone {
			rows = append(rows, s.row(m, r.URL.Query().Get("statusOnly") == "true"))
		}
	}
	return s.page(w, r, rows, 20, "value", "nextLink")
}

func (s *Server) one(w http.ResponseWriter, r *http.Request) error {
	m, there := s.find(r, r.PathValue("name"))
	if !there {
		return provider.ErrNotFound
	}
	answer(w, s.row(m, false))
	return nil
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request) error {
	m, there := s.find(r, r.PathValue("name"))
	if !there {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if err := s.cloud.End(context.WithoutCancel(r.Context()), m.ID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// unleave refuses what is in use, as the vendor does while a machine is being deleted.
func (s *Server) unleave(w http.ResponseWriter, _ *http.Request) error {
	return fail{http.StatusConflict, "NicInUse", "is used by existing resource"}
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
		return fail{http.StatusTooManyRequests, "TooManyRequests", "The request is being throttled."}
	case errors.Is(err, provider.ErrUnavailable):
		return fail{http.StatusConflict, "AnotherOperationInProgress", "Another operation is in progress."}
	case errors.Is(err, provider.ErrDenied):
		return fail{http.StatusForbidden, "AuthorizationFailed", "The client does not have authorization to perform action."}
	case errors.Is(err, provider.ErrNoCapacity):
		return fail{http.StatusConflict, "SkuNotAvailable", "The requested VM size is currently not available in location."}
	case errors.Is(err, provider.ErrQuota):
		return fail{http.StatusConflict, "OperationNotAllowed", "Operation could not be completed as it results in exceeding approved Total Regional Cores quota."}
	case errors.Is(err, provider.ErrNotFound):
		return fail{http.StatusNotFound, "ResourceNotFound", "The resource was not found."}
	}
	return fail{http.StatusBadRequest, "InvalidParameter", "The value of parameter vmSize is invalid."}
}

func answer(w http.ResponseWriter, v any) {
	_ = json.NewEncoder(w).Encode(v) // whoever has hung up is told nothing
}
