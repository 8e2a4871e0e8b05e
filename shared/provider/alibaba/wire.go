package alibaba

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
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

// Reads says whether a request changes nothing at this cloud: it asks, or it is a trial of a purchase.
func Reads(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get(actionHeader), "Describe") ||
		r.Header.Get(actionHeader) == "RunInstances" && r.URL.Query().Get("DryRun") == "true"
}

const (
	actionHeader = "x-acs-action"
	algorithm    = "ACS3-HMAC-SHA256"
)

// host is ECS's address in a region.
func (w *wire) host(region string) string {
	if w.s.Endpoint != "" {
		return strings.TrimRight(w.s.Endpoint, "/") + "/"
	}
	return "https://ecs." + region + ".aliyuncs.com/"
}

// call makes one call. A nil out reads nothing.
func (w *wire) call(ctx context.Context, region, action string, v url.Values, out any) error {
	writes := action == "RunInstances" // an end may be repeated: a lost answer is no question
	v = maps.Clone(v)
	v.Set("RegionId", region)
	if out == nil {
		out = &struct{}{}
	}
	err := w.clock.Send(w.s.Client, writes, func(at time.Time) (*http.Request, error) {
		if err := w.pace.Wait(ctx); err != nil {
			return nil, fmt.Errorf("%w by lowtide's own pace: %w", provider.ErrThrottled, err)
		}
		return w.sign(ctx, region, action, v, at)
	}, func(a provider.Answer) error {
		if a.Status >= 300 {
			return explain(a, writes)
		}
		if json.Unmarshal(a.Body, out) != nil {
			return fmt.Errorf("%w: an answer that is not the JSON of its schema", provider.Lost(writes))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}

// sign makes a request with all parameters in its query, as the vendor's client does, and its signature.
func (w *wire) sign(ctx context.Context, region, action string, v url.Values, at time.Time) (*http.Request, error) {
	if w.s.KeyID == "" || w.s.Secret == "" {
		return nil, fmt.Errorf("%w: no credentials are configured", provider.ErrDenied)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.host(region), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%w: the endpoint is not a URL", provider.ErrInvalid)
	}
	req.URL.RawQuery = strings.ReplaceAll(v.Encode(), "+", "%20")
	body := digest("")
	h := map[string]string{
		"host": req.URL.Host, actionHeader: action, "x-acs-version": "2014-05-26", "x-acs-content-sha256": body,
		"x-acs-date": at.Format("2006-01-02T15:04:05Z"), "x-acs-signature-nonce": rand.Text(),
	}
	if w.s.Token != "" {
		h["x-acs-security-token"] = w.s.Token
	}
	var canonical strings.Builder
	canonical.WriteString(req.Method + "\n/\n" + req.URL.RawQuery + "\n")
	names := fleet.Sorted(h)
	for _, k := range names {
		canonical.WriteString(k + ":" + h[k] + "\n")
		if k != "host" {
			req.Header.Set(k, h[k])
		}
	}
	signed := strings.Join(names, ";")
	canonical.WriteString("\n" + signed + "\n" + body)
	mac := hmac.New(sha256.New, []byte(w.s.Secret))
	mac.Write([]byte(algorithm + "\n" + digest(canonical.String())))
	req.Header.Set("Authorization", fmt.Sprintf("%s Credential=%s,SignedHeaders=%s,Signature=%x", algorithm, w.s.KeyID, signed, mac.Sum(nil)))
	return req, nil
}

func digest(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

type number = provider.Number

// instance is a machine as DescribeInstances shows it.
type instance struct {
	ID       string `json:"InstanceId"`
	Type     string `json:"InstanceType"`
	Zone     string `json:"ZoneId"`
	Status   string `json:"Status"`
	Created  string `json:"CreationTime"` // to the minute
	Charge   string `json:"InstanceChargeType"`
	Strategy string `json:"SpotStrategy"`
	Tags     struct {
		Tag []struct {
			Key   string `json:"TagKey"`
			Value string `json:"TagValue"`
		} `json:"Tag"`
	} `json:"Tags"`
	Locks struct {
		Reasons []struct {
			Why string `json:"LockReason"`
		} `json:"LockReason"`
	} `json:"OperationLocks"`
}

func (i instance) tags() map[string]string {
	out := map[string]string{}
	for _, t := range i.Tags.Tag {
		out[t.Key] = t.Value
	}
	return out
}

func (i instance) market() fleet.Market {
	switch {
	case i.Charge == "PrePaid":
		return fleet.Reserved
	case strings.HasPrefix(i.Strategy, "Spot"):
		return fleet.Spot
	}
	return fleet.OnDemand
}

// state reads a status and the lock of a machine that ECS takes back: it runs for the five minutes of its notice.
func (i instance) state() (provider.State, string) {
	why := ""
	for _, l := range i.Locks.Reasons {
		switch l.Why {
		case "Recycling":
			why = "interrupted"
		case "financial":
			why = "unpaid"
		}
	}
	switch i.Status {
	case "Running":
		return provider.Running, why
	case "Stopping":
		return provider.Ending, why
	case "Stopped":
		if why == "" {
			why = "stopped"
		}
		return provider.Stopped, why
	}
	return provider.Pending, why
}

// moment reads "2017-12-10T04:04Z", or the same with seconds; zero for anything else.
func moment(s string) time.Time {
	for _, layout := range []string{"2006-01-02T15:04Z", time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}

// instances are all machines of a region that v asks for.
func (w *wire) instances(ctx context.Context, region string, v url.Values) ([]instance, error) {
	var out []instance
	err := w.pages(ctx, region, "DescribeInstances", v, func() page { return &instancesPage{} }, func(p page) {
		out = append(out, p.(*instancesPage).Instances.Instance...)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// page is one page of a list.
type page interface{ next() string }

type instancesPage struct {
	NextToken string
	Instances struct{ Instance []instance }
}

func (p *instancesPage) next() string { return p.NextToken }

type typesPage struct {
	NextToken     string
	InstanceTypes struct {
		InstanceType []struct {
			ID     string `json:"InstanceTypeId"`
			GPU    string `json:"GPUSpec"`
			GPUs   number `json:"GPUAmount"`
			Memory number `json:"GPUMemorySize"` // GiB of one GPU (unverified)
		}
	}
}

func (p *typesPage) next() string { return p.NextToken }

// pages makes a call for each page.
func (w *wire) pages(ctx context.Context, region, action string, v url.Values, fresh func() page, each func(page)) error {
	return provider.Pages(ctx, func(token string) (string, error) {
		q := maps.Clone(v)
		if token != "" {
			q.Set("NextToken", token)
		}
		p := fresh()
		if err := w.call(ctx, region, action, q, p); err != nil {
			return "", err
		}
		each(p)
		return p.next(), nil
	})
}
