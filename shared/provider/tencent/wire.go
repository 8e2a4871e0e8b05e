package tencent

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lowtide/shared/provider"
)

const (
	version = "2017-03-12"
	buys    = "RunInstances" // the one action that may buy
)

// wire signs and sends.
type wire struct {
	s     Settings
	clock *provider.Clock
}

// Reads says whether a request changes nothing at this cloud: it asks, or it is a trial of a purchase.
func Reads(r *http.Request) bool {
	action := r.Header.Get("X-TC-Action")
	if action != buys || r.GetBody == nil {
		return strings.HasPrefix(action, "Describe")
	}
	body, err := r.GetBody()
	if err != nil {
		return false
	}
	defer body.Close()
	var order struct {
		Dry bool `json:"DryRun"`
	}
	return json.NewDecoder(body).Decode(&order) == nil && order.Dry
}

// query is what reads and ends ask.
type query struct {
	IDs     []string `json:"InstanceIds,omitempty"`
	Filters []filter `json:"Filters,omitempty"`
	Offset  int      `json:"Offset,omitempty"`
	Limit   int      `json:"Limit,omitempty"`
}

type filter struct {
	Name   string
	Values []string
}

// run is a purchase.
type run struct {
	Placement placement      `json:"Placement"`
	Type      string         `json:"InstanceType"`
	Image     string         `json:"ImageId"`
	Charge    string         `json:"InstanceChargeType"`
	Options   *marketOptions `json:"InstanceMarketOptions,omitempty"` // needed for spot
	Network   *network       `json:"VirtualPrivateCloud,omitempty"`
	Internet  *internet      `json:"InternetAccessible,omitempty"`
	Disk      *disk          `json:"SystemDisk,omitempty"`
	Groups    []string       `json:"SecurityGroupIds,omitempty"`
	Count     int            `json:"InstanceCount"`
	Name      string         `json:"InstanceName"`
	Tags      []tagged       `json:"TagSpecification"`
	UserData  string         `json:"UserData"`
	Timer     *timer         `json:"ActionTimer,omitempty"`
	Token     string         `json:"ClientToken"`
	Dry       bool           `json:"DryRun,omitempty"` // a trial: nothing is bought, and no id answered
}

type placement struct {
	Zone string `json:"Zone"`
}

type marketOptions struct {
	Kind string      `json:"MarketType"`
	Spot spotOptions `json:"SpotOptions"`
}

type spotOptions struct {
	Most string `json:"MaxPrice"` // an hour
	Kind string `json:"SpotInstanceType"`
}

type network struct {
	VPC    string `json:"VpcId"`
	Subnet string `json:"SubnetId"`
}

type internet struct {
	Charge  string `json:"InternetChargeType"`
	Mbit    int    `json:"InternetMaxBandwidthOut"`
	Address bool   `json:"PublicIpAssigned"`
}

type disk struct {
	GB int `json:"DiskSize"`
}

// timer ends a machine at a set time; the vendor takes times from five minutes on.
type timer struct {
	Action string `json:"TimerAction"`
	At     string `json:"ActionTime"`
}

type tagged struct {
	Kind string `json:"ResourceType"`
	Tags []tag  `json:"Tags"`
}

type tag struct {
	Key   string `json:"Key"`
	Value string `json:"Value"`
}

// instance is one machine as CVM shows it.
type instance struct {
	ID        string    `json:"InstanceId"`
	Type      string    `json:"InstanceType"`
	State     string    `json:"InstanceState"`
	Charge    string    `json:"InstanceChargeType"`
	Placement placement `json:"Placement"`
	Created   string    `json:"CreatedTime"` // RFC 3339, UTC; others' machines may have none
	Tags      []tag     `json:"Tags"`
}

func (i instance) tags() map[string]string {
	m := map[string]string{}
	for _, t := range i.Tags {
		m[t.Key] = t.Value
	}
	return m
}

// since is when billing began; zero where it is not told.
func (i instance) since() time.Time {
	t, err := time.Parse(time.RFC3339, i.Created)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// state reads a machine's state. SHUTDOWN is a machine that waits in the recycle bin: it does not run, and an end
// destroys it for good. A state that is new runs, so that it is looked after.
func (i instance) state() (provider.State, string) {
	switch i.State {
	case "PENDING":
		return provider.Pending, ""
	case "STOPPED", "STOPPING", "SHUTDOWN":
		return provider.Stopped, "stopped"
	case "TERMINATING":
		return provider.Ending, ""
	case "LAUNCH_FAILED":
		return provider.Gone, "never made"
	}
	return provider.Running, ""
}

type instances struct {
	Total int        `json:"TotalCount"`
	Set   []instance `json:"InstanceSet"`
}

// pageSize is the most machines that the vendor shows at once.
const pageSize = 100

// instances are all machines of a region. Pages go by number, so that a list that changes meanwhile may lack one: it is
// an error then.
func (w *wire) instances(ctx context.Context, region string) ([]instance, error) {
	var out []instance
	seen, total := map[string]bool{}, -1
	err := provider.Pages(ctx, func(string) (string, error) {
		var page instances
		if err := w.call(ctx, region, "DescribeInstances", query{Offset: len(out), Limit: pageSize}, &page); err != nil {
			return "", err
		}
		if total >= 0 && page.Total != total {
			return "", fmt.Errorf("%w: its list changed while it was read", provider.ErrUnavailable)
		}
		total = page.Total
		for _, i := range page.Set {
			if seen[i.ID] {
				return "", fmt.Errorf("%w: its pages show %s twice", provider.ErrUnavailable, i.ID)
			}
			seen[i.ID], out = true, append(out, i)
		}
		switch {
		case len(out) >= total:
			return "", nil
		case len(page.Set) == 0:
			return "", fmt.Errorf("%w: it shows %d of %d machines", provider.ErrUnavailable, len(out), total)
		}
		return strconv.Itoa(len(out)), nil
	})
	return out, err
}

// call makes one request. A nil out reads nothing but whether it was refused.
func (w *wire) call(ctx context.Context, region, action string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", action, provider.ErrInvalid, err)
	}
	writes := action == buys // an end may be repeated: a lost answer is no question
	err = w.clock.Send(w.s.Client, writes, func(at time.Time) (*http.Request, error) { return w.sign(ctx, region, action, body, at) },
		func(a provider.Answer) error { return read(a, writes, out) })
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}

// sign makes a request with its TC3-HMAC-SHA256 signature.
func (w *wire) sign(ctx context.Context, region, action string, body []byte, at time.Time) (*http.Request, error) {
	end := w.s.Endpoint
	if end == "" {
		end = "https://cvm.tencentcloudapi.com"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(end, "/")+"/", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: the endpoint is not a URL", provider.ErrInvalid)
	}
	if w.s.ID == "" || w.s.Key == "" {
		return nil, fmt.Errorf("%w: no credentials are configured", provider.ErrDenied)
	}
	const kind, signed = "application/json; charset=utf-8", "content-type;host;x-tc-action"
	stamp, day := strconv.FormatInt(at.Unix(), 10), at.Format(time.DateOnly)
	canonical := "POST\n" + req.URL.EscapedPath() + "\n\ncontent-type:" + kind + "\nhost:" + req.URL.Host + "\nx-tc-action:" + strings.ToLower(action) + "\n\n" +
		signed + "\n" + digest(body)
	scope := day + "/cvm/tc3_request"
	text := "TC3-HMAC-SHA256\n" + stamp + "\n" + scope + "\n" + digest([]byte(canonical))
	key := mac(mac(mac([]byte("TC3"+w.s.Key), day), "cvm"), "tc3_request")
	for k, v := range map[string]string{
		"Content-Type": kind, "X-TC-Action": action, "X-TC-Version": version, "X-TC-Region": region, "X-TC-Timestamp": stamp, "X-TC-Token": w.s.Token,
		"Authorization": "TC3-HMAC-SHA256 Credential=" + w.s.ID + "/" + scope + ", SignedHeaders=" + signed + ", Signature=" + hex.EncodeToString(mac(key, text)),
	} {
		if v != "" {
			req.Header.Set(k, v)
		}
	}
	return req, nil
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
