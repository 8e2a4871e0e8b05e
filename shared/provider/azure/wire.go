package azure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"lowtide/shared/provider"
)

// The versions of the APIs that are asked.
const (
	computeVersion = "2024-07-01"
	skusVersion    = "2021-07-01"
	networkVersion = "2023-09-01"
	diskVersion    = "2023-10-02"
	pricesVersion  = "2023-01-01-preview"
)

// errThere means that a machine of that name is there already.
var errThere = errors.New("it is there already")

// wire sends, with a token that it renews.
type wire struct {
	s                  Settings
	login, arm, prices string

	renewing provider.Turn // a token is asked for once
	mu       sync.Mutex
	token    string
	until    time.Time
}

func newWire(s Settings) *wire {
	w := &wire{
		s: s, login: "https://login.microsoftonline.com", arm: "https://management.azure.com", prices: "https://prices.azure.com", renewing: provider.NewTurn(),
	}
	if s.Endpoint != "" {
		w.login = strings.TrimRight(s.Endpoint, "/")
		w.arm, w.prices = w.login, w.login
	}
	return w
}

// Reads says whether a request changes nothing at this cloud. A token is asked for by POST.
func Reads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/oauth2/v2.0/token")
}

type id struct {
	ID string `json:"id"`
}

type named struct {
	Name string `json:"name"`
}

type goes struct {
	Delete string `json:"deleteOption"`
}

// vm is a machine, as it is ordered and as it is listed.
type vm struct {
	ID         string            `json:"id,omitempty"`
	Name       string            `json:"name,omitempty"`
	Location   string            `json:"location"`
	Zones      []string          `json:"zones,omitempty"`
	Tags       map[string]string `json:"tags,omitempty"`
	Properties struct {
		Hardware struct {
			Size string `json:"vmSize"`
		} `json:"hardwareProfile"`
		Storage  *storage   `json:"storageProfile,omitempty"`
		OS       *osProfile `json:"osProfile,omitempty"`
		Network  *network   `json:"networkProfile,omitempty"`
		Priority string     `json:"priority,omitempty"`
		Eviction string     `json:"evictionPolicy,omitempty"`
		Billing  *billing   `json:"billingProfile,omitempty"`
		State    string     `json:"provisioningState,omitempty"`
		Created  string     `json:"timeCreated,omitempty"`
		View     *struct {
			Statuses []struct {
				Code string `json:"code"`
			} `json:"statuses"`
		} `json:"instanceView,omitempty"`
	} `json:"properties"`
}

type storage struct {
	Image image  `json:"imageReference"`
	Disk  osDisk `json:"osDisk"`
}

type image struct {
	ID        string `json:"id,omitempty"`
	Publisher string `json:"publisher,omitempty"`
	Offer     string `json:"offer,omitempty"`
	SKU       string `json:"sku,omitempty"`
	Version   string `json:"version,omitempty"`
}

type osDisk struct {
	Name    string  `json:"name"`
	Create  string  `json:"createOption"`
	Delete  string  `json:"deleteOption"`
	GB      int     `json:"diskSizeGB"`
	Managed managed `json:"managedDisk"`
}

type managed struct {
	Kind string `json:"storageAccountType"`
}

type osProfile struct {
	Computer string `json:"computerName"`
	User     string `json:"adminUsername"`
	Data     string `json:"customData"`
	Linux    struct {
		NoPassword bool `json:"disablePasswordAuthentication"`
		SSH        struct {
			Keys []sshKey `json:"publicKeys"`
		} `json:"ssh"`
	} `json:"linuxConfiguration"`
}

type sshKey struct {
	Path string `json:"path"`
	Key  string `json:"keyData"`
}

type network struct {
	Version    string      `json:"networkApiVersion"`
	Interfaces []nicConfig `json:"networkInterfaceConfigurations"`
}

type nicConfig struct {
	Name       string        `json:"name"`
	Properties nicProperties `json:"properties"`
}

type nicProperties struct {
	Primary bool       `json:"primary"`
	Delete  string     `json:"deleteOption"`
	IPs     []ipConfig `json:"ipConfigurations"`
}

type ipConfig struct {
	Name       string       `json:"name"`
	Properties ipProperties `json:"properties"`
}

type ipProperties struct {
	Primary bool           `json:"primary"`
	Subnet  id             `json:"subnet"`
	Address *addressConfig `json:"publicIPAddressConfiguration,omitempty"`
}

type addressConfig struct {
	Name       string `json:"name"`
	SKU        named  `json:"sku"`
	Properties goes   `json:"properties"`
}

type billing struct {
	Most float64 `json:"maxPrice"`
}

// place is the group and the name in a resource id.
func (v vm) place() (group, name string) {
	parts := strings.Split(v.ID, "/")
	for i := 0; i+1 < len(parts); i++ {
		switch strings.ToLower(parts[i]) {
		case "resourcegroups":
			group = parts[i+1]
		case "virtualmachines":
			name = parts[i+1]
		}
	}
	return group, name
}

// state reads how far a machine is made, and its power. A spot machine that is deallocated was taken back; one that
// stopped itself is allocated still, and bills.
func (v vm) state(power string) (provider.State, string) {
	switch {
	case v.Properties.State == "Deleting":
		return provider.Ending, ""
	case v.Properties.State == "Failed":
		return provider.Stopped, "failed"
	case power == "deallocated" || power == "deallocating":
		if v.Properties.Priority == "Spot" {
			return provider.Stopped, "interrupted"
		}
		return provider.Stopped, "stopped"
	case power == "stopped" || power == "stopping":
		return provider.Stopped, "stopped"
	case v.Properties.State == "Creating", power == "starting":
		return provider.Pending, ""
	}
	return provider.Running, ""
}

func moment(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// group is a resource group's path.
func (w *wire) group(name string) string {
	return "/subscriptions/" + url.PathEscape(w.s.Subscription) + "/resourceGroups/" + url.PathEscape(name)
}

// create makes a machine, if there is none of that name: errThere.
func (w *wire) create(ctx context.Context, name string, v *vm) (out vm, err error) {
	address := w.group(w.s.Group) + "/providers/Microsoft.Compute/virtualMachines/" + name + "?api-version=" + computeVersion
	err = w.call(ctx, http.MethodPut, address, v, &out)
	if err == nil && out.ID == "" {
		err = fmt.Errorf("%w: an answer without a machine", provider.ErrUnknown)
	}
	return out, err
}

func (w *wire) machine(ctx context.Context, group, name string) (out vm, err error) {
	address := w.group(group) + "/providers/Microsoft.Compute/virtualMachines/" + url.PathEscape(name) + "?api-version=" + computeVersion
	err = w.call(ctx, http.MethodGet, address, nil, &out)
	if err == nil && out.ID == "" {
		err = fmt.Errorf("%w: an answer without a machine", provider.ErrUnavailable)
	}
	return out, err
}

func (w *wire) remove(ctx context.Context, group, path, version string) error {
	return w.call(ctx, http.MethodDelete, w.group(group)+"/providers/"+path+"?api-version="+version, nil, nil)
}

// machines are all machines of the subscription, and their power by resource id, which another form of the call tells.
func (w *wire) machines(ctx context.Context) (all []vm, power map[string]string, err error) {
	path := "/subscriptions/" + url.PathEscape(w.s.Subscription) + "/providers/Microsoft.Compute/virtualMachines"
	if all, err = pages[vm](ctx, w, path, url.Values{"api-version": {computeVersion}}); err != nil {
		return nil, nil, err
	}
	views, err := pages[vm](ctx, w, path, url.Values{"api-version": {computeVersion}, "statusOnly": {"true"}})
	if err != nil {
		return nil, nil, err
	}
	power = map[string]string{}
	for _, v := range views {
		if v.Properties.View == nil {
			continue
		}
		for _, s := range v.Properties.View.Statuses {
			if p, ok := strings.CutPrefix(s.Code, "PowerState/"); ok {
				power[strings.ToLower(v.ID)] = p
			}
		}
	}
	return all, power, nil
}

// sku is a size as the subscription may use it.
type sku struct {
	Kind         string `json:"resourceType"`
	Name         string `json:"name"`
	Capabilities []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"capabilities"`
	Places []struct {
		Location string   `json:"location"`
		Zones    []string `json:"zones"`
	} `json:"locationInfo"`
	Restrictions []struct {
		Kind string `json:"type"` // "Location", "Zone"
		Why  string `json:"reasonCode"`
		Info struct {
			Zones []string `json:"zones"`
		} `json:"restrictionInfo"`
	} `json:"restrictions"`
}

func (w *wire) skus(ctx context.Context, region string) ([]sku, error) {
	return pages[sku](ctx, w, "/subscriptions/"+url.PathEscape(w.s.Subscription)+"/providers/Microsoft.Compute/skus",
		url.Values{"api-version": {skusVersion}, "$filter": {"location eq '" + region + "'"}})
}

// pages are all rows of a list. Of the link to the next page only the query is used: nothing is sent to where an answer
// points.
func pages[T any](ctx context.Context, w *wire, path string, q url.Values) ([]T, error) {
	var out []T
	first := q.Encode()
	err := provider.Pages(ctx, func(token string) (string, error) {
		if token == "" {
			token = first
		}
		var page struct {
			Value *[]T   `json:"value"`
			Next  string `json:"nextLink"`
		}
		if err := w.call(ctx, http.MethodGet, path+"?"+token, nil, &page); err != nil {
			return "", err
		}
		if page.Value == nil {
			return "", fmt.Errorf("%w: a page that is not as described", provider.ErrUnavailable)
		}
		out = append(out, *page.Value...)
		return query(page.Next)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// query is that of a link; "" for none.
func query(link string) (string, error) {
	if link == "" {
		return "", nil
	}
	u, err := url.Parse(link)
	if err != nil || u.RawQuery == "" {
		return "", fmt.Errorf("%w: a link to the next page that leads nowhere", provider.ErrUnavailable)
	}
	return u.RawQuery, nil
}

// call makes one request to the resource manager. A PUT alone buys: it only ever creates.
func (w *wire) call(ctx context.Context, method, path string, in, out any) error {
	token, err := w.bearer(ctx)
	if err != nil {
		return err
	}
	req, err := provider.JSON(ctx, method, w.arm+path, in)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	buys := method == http.MethodPut
	if buys {
		req.Header.Set("If-None-Match", "*")
	}
	a, err := provider.Exchange(w.s.Client, req, buys)
	switch {
	case err != nil:
		return err
	case buys && a.Status == http.StatusPreconditionFailed:
		return errThere
	case a.Status >= 300:
		if a.Status == http.StatusUnauthorized {
			w.forget()
		}
		return explain(a, buys)
	case out != nil && json.Unmarshal(a.Body, out) != nil:
		return fmt.Errorf("%w: an answer that is not as described", provider.Lost(buys))
	}
	return nil
}

// forget drops a token that was refused.
func (w *wire) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.token = ""
}

func (w *wire) held() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.s.Now().Before(w.until) {
		return w.token
	}
	return ""
}

// bearer is a token that is good for some minutes still.
func (w *wire) bearer(ctx context.Context) (string, error) {
	if w.s.Subscription == "" || w.s.Tenant == "" || w.s.ClientID == "" || w.s.Secret == "" {
		return "", fmt.Errorf("%w: no subscription or no credentials are configured", provider.ErrDenied)
	}
	if t := w.held(); t != "" {
		return t, nil
	}
	done, err := w.renewing.Take(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	if t := w.held(); t != "" {
		return t, nil
	}
	form := url.Values{
		"grant_type": {"client_credentials"}, "client_id": {w.s.ClientID}, "client_secret": {w.s.Secret}, "scope": {"https://management.azure.com/.default"},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.login+"/"+url.PathEscape(w.s.Tenant)+"/oauth2/v2.0/token", strings.NewReader(form.Encode()))
	if err != nil {
		return "", fmt.Errorf("%w: the endpoint is not a URL", provider.ErrInvalid)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	a, err := provider.Exchange(w.s.Client, req, false)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	var out struct {
		Token string  `json:"access_token"`
		Lasts float64 `json:"expires_in"` // seconds
	}
	switch bad := json.Unmarshal(a.Body, &out); {
	case a.Status == http.StatusTooManyRequests || a.Status >= 500:
		return "", fmt.Errorf("token: %w", explain(a, false))
	case a.Status >= 300: // a wrong or expired secret is a 400 or a 401
		return "", fmt.Errorf("token: %w (status %d)", provider.ErrDenied, a.Status)
	case bad != nil || out.Token == "":
		return "", fmt.Errorf("token: %w: an answer that is not as described", provider.ErrUnavailable)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.token, w.until = out.Token, w.s.Now().Add(time.Duration(out.Lasts)*time.Second-5*time.Minute)
	return out.Token, nil
}
