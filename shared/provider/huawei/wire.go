package huawei

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// wire signs and sends.
type wire struct {
	s     Settings
	clock *provider.Clock
	pace  *rate.Limiter
}

func newWire(s Settings) *wire {
	w := &wire{s: s, clock: provider.NewClock(s.Now), pace: rate.NewLimiter(rate.Inf, 1)}
	if s.PerSecond > 0 {
		w.pace = rate.NewLimiter(rate.Limit(s.PerSecond), max(int(s.PerSecond), 1))
	}
	return w
}

// Reads says whether a request changes nothing at this cloud: prices are asked by POST.
func Reads(r *http.Request) bool {
	return r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/bills/ratings/")
}

// id is a thing that is named by its id.
type id struct {
	ID string `json:"id"`
}

// order is a purchase.
type order struct {
	Name     string   `json:"name"`
	Type     string   `json:"flavorRef"`
	Image    string   `json:"imageRef"`
	VPC      string   `json:"vpcid"`
	NICs     []nic    `json:"nics"`
	Groups   []id     `json:"security_groups"`
	Address  *address `json:"publicip,omitempty"`
	Disk     disk     `json:"root_volume"`
	Zone     string   `json:"availability_zone,omitempty"`
	UserData string   `json:"user_data"`
	Count    int      `json:"count"`
	Tags     []tag    `json:"server_tags"`
	Extend   extend   `json:"extendparam"`
}

type nic struct {
	Subnet string `json:"subnet_id"`
}

type address struct {
	EIP    eip  `json:"eip"`
	Delete bool `json:"delete_on_termination"`
}

type eip struct {
	Kind      string    `json:"iptype"`
	Bandwidth bandwidth `json:"bandwidth"`
	Extend    eipExtend `json:"extendparam"`
}

type bandwidth struct {
	Mbit   int    `json:"size"`
	Share  string `json:"sharetype"`
	Charge string `json:"chargemode"`
}

type eipExtend struct {
	Charge string `json:"chargingMode"`
}

type disk struct {
	Kind string `json:"volumetype"`
	GB   int    `json:"size"`
}

type extend struct {
	Charge int    `json:"chargingMode"` // 0: by use
	Region string `json:"regionID"`
	Market string `json:"marketType,omitempty"`
	Limit  string `json:"spotPrice,omitempty"`
	Policy string `json:"interruption_policy,omitempty"`
}

type tag struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// made is the answer to a purchase.
type made struct {
	Job string   `json:"job_id"`
	IDs []string `json:"serverIds"`
}

func (w *wire) create(ctx context.Context, region, token string, o *order) (out made, err error) {
	body, err := json.Marshal(map[string]any{"server": o})
	if err != nil {
		return out, fmt.Errorf("%w: %w", provider.ErrInvalid, err)
	}
	return out, w.send(ctx, request{http.MethodPost, w.ecs(region, "/v1/", "/cloudservers"), nil, body, token}, true, &out)
}

// failure is why a job failed; nil if it did not, or nobody can tell yet.
func (w *wire) failure(ctx context.Context, region, job string) error {
	var out struct {
		Status   string `json:"status"`
		Code     string `json:"error_code"`
		Entities struct {
			Jobs []struct {
				Code string `json:"error_code"`
			} `json:"sub_jobs"`
		} `json:"entities"`
	}
	if job == "" || w.send(ctx, request{http.MethodGet, w.ecs(region, "/v1/", "/jobs/"+url.PathEscape(job)), nil, nil, ""}, false, &out) != nil || out.Status != "FAIL" {
		return nil
	}
	code := out.Code
	for _, j := range out.Entities.Jobs {
		if j.Code != "" {
			code = j.Code
		}
	}
	return fmt.Errorf("its job failed: %w", codes.Refusal(http.StatusBadRequest, code, false))
}

// server is a machine as ECS shows it.
type server struct {
	ID       string            `json:"id"`
	Status   string            `json:"status"`
	Task     string            `json:"OS-EXT-STS:task_state"`
	Zone     string            `json:"OS-EXT-AZ:availability_zone"`
	Created  string            `json:"created"`
	Flavor   id                `json:"flavor"`
	Metadata map[string]string `json:"metadata"`
	Tags     []string          `json:"tags"` // "key=value"
}

func (s server) tags() map[string]string {
	out := map[string]string{}
	for _, t := range s.Tags {
		k, v, _ := strings.Cut(t, "=")
		out[k] = v
	}
	return out
}

// market reads how a machine is charged.
func (s server) market() fleet.Market {
	switch s.Metadata["charging_mode"] {
	case "1":
		return fleet.Reserved
	case "2":
		return fleet.Spot
	}
	return fleet.OnDemand
}

// gone are the statuses of machines that bill no more.
var gone = []string{"DELETED", "SOFT_DELETED"}

// state reads a status. One that is not known runs, so that it is looked after.
func (s server) state() (provider.State, string) {
	switch {
	case s.Task == "deleting":
		return provider.Ending, ""
	case s.Status == "BUILD":
		return provider.Pending, ""
	case s.Status == "SHUTOFF":
		return provider.Stopped, "stopped"
	case s.Status == "ERROR":
		return provider.Stopped, "error"
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

func (w *wire) server(ctx context.Context, region, id string) (server, error) {
	var out struct {
		Server server `json:"server"`
	}
	err := w.send(ctx, request{http.MethodGet, w.ecs(region, "/v1/", "/cloudservers/"+url.PathEscape(id)), nil, nil, ""}, false, &out)
	if err == nil && out.Server.ID == "" {
		err = fmt.Errorf("%w: an answer without a machine", provider.ErrUnavailable)
	}
	return out.Server, err
}

// pageSize is how many machines a page holds.
const pageSize = 50

// servers are all machines of a region. Pages go by number, so that a list that changes meanwhile may lack one: it is an
// error then.
func (w *wire) servers(ctx context.Context, region string) ([]server, error) {
	var out []server
	seen, total := map[string]bool{}, -1
	err := provider.Pages(ctx, func(number string) (string, error) {
		if number == "" {
			number = "1"
		}
		var page struct {
			Count   *int     `json:"count"`
			Servers []server `json:"servers"`
		}
		q := url.Values{"limit": {strconv.Itoa(pageSize)}, "offset": {number}}
		if err := w.send(ctx, request{http.MethodGet, w.ecs(region, "/v1/", "/cloudservers/detail"), q, nil, ""}, false, &page); err != nil {
			return "", err
		}
		if page.Count == nil || total >= 0 && *page.Count != total {
			return "", fmt.Errorf("%w: its list changed while it was read, or tells no count", provider.ErrUnavailable)
		}
		total = *page.Count
		for _, s := range page.Servers {
			if seen[s.ID] {
				return "", fmt.Errorf("%w: its pages show a machine twice", provider.ErrUnavailable)
			}
			seen[s.ID], out = true, append(out, s)
		}
		switch n, _ := strconv.Atoi(number); {
		case len(out) >= total:
			return "", nil
		case len(page.Servers) == 0:
			return "", fmt.Errorf("%w: it shows %d of %d machines", provider.ErrUnavailable, len(out), total)
		default:
			return strconv.Itoa(n + 1), nil
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// remove deletes a machine with what came along: the vendor's defaults leave disk and address.
func (w *wire) remove(ctx context.Context, region, server string) error {
	body, err := json.Marshal(map[string]any{"servers": []id{{server}}, "delete_publicip": true, "delete_volume": true})
	if err != nil {
		return fmt.Errorf("%w: %w", provider.ErrInvalid, err)
	}
	return w.send(ctx, request{http.MethodPost, w.ecs(region, "/v1/", "/cloudservers/delete"), nil, body, ""}, false, nil)
}

// flavor is a machine type.
type flavor struct {
	ID    string            `json:"id"`
	Specs map[string]string `json:"os_extra_specs"`
}

func (w *wire) flavors(ctx context.Context, region string) ([]flavor, error) {
	var out struct {
		Flavors []flavor `json:"flavors"`
	}
	err := w.send(ctx, request{http.MethodGet, w.ecs(region, "/v1/", "/cloudservers/flavors"), nil, nil, ""}, false, &out)
	return out.Flavors, err
}

// spotSoldOut are the flavours and zones ("flavor/zone") of which no spot is to be had.
func (w *wire) spotSoldOut(ctx context.Context, region string) (map[string]bool, error) {
	type policy struct {
		ID     int64  `json:"id"`
		Flavor string `json:"flavor_id"`
		Status string `json:"sell_status"`
		Zone   string `json:"availability_zone_id"`
	}
	const most = 1000
	out := map[string]bool{}
	err := provider.Pages(ctx, func(marker string) (string, error) {
		q := url.Values{"sell_mode": {"spot"}, "limit": {strconv.Itoa(most)}}
		if marker != "" {
			q.Set("marker", marker)
		}
		var page struct {
			Policies []policy `json:"sell_policies"`
		}
		if err := w.send(ctx, request{http.MethodGet, w.ecs(region, "/v1/", "/cloudservers/flavor-sell-policies"), q, nil, ""}, false, &page); err != nil {
			return "", err
		}
		for _, p := range page.Policies {
			if p.Status == "sellout" {
				out[p.Flavor+"/"+p.Zone] = true
			}
		}
		if len(page.Policies) < most {
			return "", nil
		}
		return strconv.FormatInt(page.Policies[len(page.Policies)-1].ID, 10), nil
	})
	return out, err
}

// request is what is signed.
type request struct {
	method, address string
	query           url.Values
	body            []byte
	token           string // of a purchase
}

// ecs is an address of ECS in a region, with its project.
func (w *wire) ecs(region, version, path string) string {
	host := w.s.Endpoint
	if host == "" {
		host = "https://ecs." + region + ".myhuaweicloud.com"
	}
	return host + version + w.s.Projects[region] + path
}

// bss is an address of the billing API.
func (w *wire) bss(path string) string {
	if w.s.Endpoint != "" {
		return w.s.Endpoint + path
	}
	return w.s.Billing + path
}

// send signs and sends. writes says that it is a purchase: an end may be repeated, and a lost answer is no question.
func (w *wire) send(ctx context.Context, r request, writes bool, out any) error {
	if err := w.pace.Wait(ctx); err != nil {
		return fmt.Errorf("%w by lowtide's own pace: %w", provider.ErrThrottled, err)
	}
	return w.clock.Send(w.s.Client, writes, func(at time.Time) (*http.Request, error) { return w.sign(ctx, r, at) },
		func(a provider.Answer) error { return read(a, writes, out) })
}

// sign makes a request with its SDK-HMAC-SHA256 signature.
func (w *wire) sign(ctx context.Context, r request, at time.Time) (*http.Request, error) {
	if w.s.KeyID == "" || w.s.Secret == "" {
		return nil, fmt.Errorf("%w: no credentials are configured", provider.ErrDenied)
	}
	query := strings.ReplaceAll(r.query.Encode(), "+", "%20")
	req, err := http.NewRequestWithContext(ctx, r.method, r.address, bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("%w: the endpoint is not a URL", provider.ErrInvalid)
	}
	req.URL.RawQuery = query
	stamp := at.Format("20060102T150405Z")
	h := map[string]string{"host": req.URL.Host, "x-sdk-date": stamp}
	for k, v := range map[string]string{"x-client-token": r.token, "x-security-token": w.s.Token} {
		if v != "" {
			h[k] = v
		}
	}
	if r.body != nil {
		h["content-type"] = "application/json"
	}
	names := fleet.Sorted(h)
	canonical := r.method + "\n" + strings.TrimRight(req.URL.EscapedPath(), "/") + "/\n" + query + "\n"
	for _, k := range names {
		canonical += k + ":" + h[k] + "\n"
		if k != "host" {
			req.Header.Set(k, h[k])
		}
	}
	signed := strings.Join(names, ";")
	canonical += "\n" + signed + "\n" + digest(r.body)
	mac := hmac.New(sha256.New, []byte(w.s.Secret))
	mac.Write([]byte("SDK-HMAC-SHA256\n" + stamp + "\n" + digest([]byte(canonical))))
	req.Header.Set("Authorization", fmt.Sprintf("SDK-HMAC-SHA256 Access=%s, SignedHeaders=%s, Signature=%x", w.s.KeyID, signed, mac.Sum(nil)))
	return req, nil
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
