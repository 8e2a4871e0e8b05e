package volcengine

import (
	"bytes"
	"context"
	"crypto/hmac"
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

// buys is the one action that may buy.
const buys = "RunInstances"

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
	q := r.URL.Query()
	action := q.Get("Action")
	return strings.HasPrefix(action, "Describe") || strings.HasPrefix(action, "QueryPrice") || action == buys && q.Get("DryRun") == "true"
}

// call makes one call of ECS, all of it in its address, as the vendor's own clients do. A nil out reads nothing but
// whether it was refused.
func (w *wire) call(ctx context.Context, region, action string, q url.Values, out any) error {
	q = maps.Clone(q)
	q.Set("Action", action)
	q.Set("Version", "2020-04-01")
	return w.send(ctx, request{http.MethodGet, "ecs", region, q, nil}, out)
}

// bill makes one call of the billing API.
func (w *wire) bill(ctx context.Context, region, action string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", action, provider.ErrInvalid, err)
	}
	return w.send(ctx, request{http.MethodPost, "billing", region, url.Values{"Action": {action}, "Version": {"2022-01-01"}}, body}, out)
}

// request is what is signed.
type request struct {
	method, service, region string
	query                   url.Values
	body                    []byte
}

func (w *wire) send(ctx context.Context, r request, out any) error {
	action := r.query.Get("Action")
	if err := w.pace.Wait(ctx); err != nil {
		return fmt.Errorf("%s: %w by lowtide's own pace: %w", action, provider.ErrThrottled, err)
	}
	writes := action == buys // an end may be repeated: a lost answer is no question
	err := w.clock.Send(w.s.Client, writes, func(at time.Time) (*http.Request, error) { return w.sign(ctx, r, at) },
		func(a provider.Answer) error { return read(a, writes, out) })
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}

// sign makes a request with its HMAC-SHA256 signature.
func (w *wire) sign(ctx context.Context, r request, at time.Time) (*http.Request, error) {
	if w.s.KeyID == "" || w.s.Secret == "" {
		return nil, fmt.Errorf("%w: no credentials are configured", provider.ErrDenied)
	}
	query := strings.ReplaceAll(r.query.Encode(), "+", "%20")
	req, err := http.NewRequestWithContext(ctx, r.method, w.s.Endpoint+"/?"+query, bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("%w: the endpoint is not a URL", provider.ErrInvalid)
	}
	stamp, body := at.Format("20060102T150405Z"), digest(r.body)
	h := map[string]string{"host": req.URL.Host, "x-date": stamp, "x-content-sha256": body}
	if r.body != nil {
		h["content-type"] = "application/json"
	}
	if w.s.Token != "" {
		h["x-security-token"] = w.s.Token
	}
	names := fleet.Sorted(h)
	canonical := r.method + "\n/\n" + query + "\n"
	for _, k := range names {
		canonical += k + ":" + h[k] + "\n"
		if k != "host" {
			req.Header.Set(k, h[k])
		}
	}
	signed := strings.Join(names, ";")
	canonical += "\n" + signed + "\n" + body
	scope := stamp[:8] + "/" + r.region + "/" + r.service + "/request"
	key := []byte(w.s.Secret)
	for _, part := range []string{stamp[:8], r.region, r.service, "request", "HMAC-SHA256\n" + stamp + "\n" + scope + "\n" + digest([]byte(canonical))} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	req.Header.Set("Authorization", fmt.Sprintf("HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%x", w.s.KeyID, scope, signed, key))
	return req, nil
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// instance is a machine as DescribeInstances shows it.
type instance struct {
	ID       string `json:"InstanceId"`
	Type     string `json:"InstanceTypeId"`
	Zone     string `json:"ZoneId"`
	Status   string
	Created  string `json:"CreatedAt"`
	Charge   string `json:"InstanceChargeType"`
	Strategy string `json:"SpotStrategy"`
	Tags     []struct{ Key, Value string }
}

func (i instance) tags() map[string]string {
	out := map[string]string{}
	for _, t := range i.Tags {
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

// state reads a status. One that is not known runs, so that it is looked after.
func (i instance) state() (provider.State, string) {
	switch i.Status {
	case "CREATING", "STARTING":
		return provider.Pending, ""
	case "DELETING":
		return provider.Ending, ""
	case "STOPPED", "STOPPING":
		return provider.Stopped, "stopped"
	case "ERROR":
		return provider.Stopped, "error"
	}
	return provider.Running, ""
}

// moment reads RFC 3339, also without its seconds; zero for anything else.
func moment(s string) time.Time {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}

// instances are all machines of a region that q asks for.
func (w *wire) instances(ctx context.Context, region string, q url.Values) ([]instance, error) {
	return pages[instance](ctx, w, region, "DescribeInstances", "Instances", q)
}

// pages are all rows of a list, from each page's field of that name.
func pages[T any](ctx context.Context, w *wire, region, action, field string, q url.Values) ([]T, error) {
	var out []T
	err := provider.Pages(ctx, func(token string) (string, error) {
		q := maps.Clone(q)
		if token != "" {
			q.Set("NextToken", token)
		}
		var page map[string]json.RawMessage
		if err := w.call(ctx, region, action, q, &page); err != nil {
			return "", err
		}
		var rows []T
		var next string
		for _, part := range []struct {
			raw json.RawMessage
			to  any
		}{{page[field], &rows}, {page["NextToken"], &next}} {
			if len(part.raw) > 0 && json.Unmarshal(part.raw, part.to) != nil {
				return "", fmt.Errorf("%s: %w: an answer that is not of its schema", action, provider.ErrUnavailable)
			}
		}
		out = append(out, rows...)
		return next, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
