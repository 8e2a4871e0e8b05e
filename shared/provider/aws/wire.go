package aws

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"lowtide/shared/provider"
)

// wire signs and sends.
type wire struct {
	s      Settings
	signer *v4.Signer
	clock  *provider.Clock
}

func newWire(s Settings) *wire {
	return &wire{s: s, signer: v4.NewSigner(), clock: provider.NewClock(s.Now)}
}

// Reads says whether a request changes nothing at this cloud.
func Reads(r *http.Request) bool {
	if t := r.Header.Get("X-Amz-Target"); t != "" {
		return strings.HasPrefix(t, "AWSPriceListService.Get")
	}
	action, v := form(r)
	if action == "RunInstances" && v.Get("DryRun") == "true" {
		return true // EC2's own: it says whether it would, and does not
	}
	return strings.HasPrefix(action, "Describe") || strings.HasPrefix(action, "Get")
}

// form is a request's action and parameters.
func form(r *http.Request) (string, url.Values) {
	if r.GetBody == nil {
		return "", nil
	}
	body, err := r.GetBody()
	if err != nil {
		return "", nil
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, 1<<20))
	if err != nil {
		return "", nil
	}
	v, err := url.ParseQuery(string(b))
	if err != nil {
		return "", nil
	}
	return v.Get("Action"), v
}

// host is a service's address in a region.
func (w *wire) host(service, region string) string {
	if w.s.Endpoint != "" {
		return strings.TrimRight(w.s.Endpoint, "/") + "/"
	}
	end := ".amazonaws.com/"
	if strings.HasPrefix(region, "cn-") {
		end = ".amazonaws.com.cn/"
	}
	return "https://" + service + "." + region + end
}

// query makes one call of the EC2 Query API. A nil out reads nothing.
func (w *wire) query(ctx context.Context, region, action string, v url.Values, out any) error {
	v = maps.Clone(v)
	v.Set("Action", action)
	v.Set("Version", "2016-11-15")
	body := []byte(v.Encode())
	writes := action == "RunInstances" // an end may be repeated: a lost answer is no question
	a, err := w.send(ctx, w.host("ec2", region), "ec2", region, http.Header{"Content-Type": {"application/x-www-form-urlencoded; charset=utf-8"}}, body, writes, func(a provider.Answer) error {
		return queryProblem(a, writes)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	if out == nil {
		out = &struct{}{}
	}
	if err := xml.Unmarshal(a.Body, out); err != nil {
		lost := provider.ErrUnavailable
		if writes {
			lost = provider.ErrUnknown
		}
		return fmt.Errorf("%s: %w: an answer that is not XML", action, lost)
	}
	return nil
}

// paged is one page of a list.
type paged interface{ next() string }

// pages makes a call for each page and hands them on when all are there.
func (w *wire) pages(ctx context.Context, region, action string, v url.Values, page func() paged, each func(paged)) error {
	var all []paged
	err := provider.Pages(ctx, func(token string) (string, error) {
		q := maps.Clone(v)
		if token != "" {
			q.Set("NextToken", token)
		}
		p := page()
		if err := w.query(ctx, region, action, q, p); err != nil {
			return "", err
		}
		all = append(all, p)
		return p.next(), nil
	})
	if err != nil {
		return err
	}
	for _, p := range all {
		each(p)
	}
	return nil
}

// priceHome is where the prices of a region's partition are told.
func priceHome(region string) string {
	if strings.HasPrefix(region, "cn-") {
		return "cn-northwest-1"
	}
	return "us-east-1"
}

// prices makes one call of the Price List API.
func (w *wire) prices(ctx context.Context, region string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%w: %w", provider.ErrInvalid, err)
	}
	home := priceHome(region)
	h := http.Header{"Content-Type": {"application/x-amz-json-1.1"}, "X-Amz-Target": {"AWSPriceListService.GetProducts"}}
	a, err := w.send(ctx, w.host("api.pricing", home), "pricing", home, h, body, false, jsonProblem)
	if err != nil {
		return fmt.Errorf("GetProducts: %w", err)
	}
	if err := json.Unmarshal(a.Body, out); err != nil {
		return fmt.Errorf("GetProducts: %w: an answer that is not JSON", provider.ErrUnavailable)
	}
	return nil
}

// send signs and sends, and once more with the cloud's clock if ours is off: a refused signature changed nothing.
func (w *wire) send(ctx context.Context, to, service, region string, h http.Header, body []byte, writes bool, problem func(provider.Answer) error) (provider.Answer, error) {
	var out provider.Answer
	err := w.clock.Send(w.s.Client, writes, func(at time.Time) (*http.Request, error) { return w.sign(ctx, to, service, region, h, body, at) },
		func(a provider.Answer) error {
			if out = a; a.Status < 300 {
				return nil
			}
			return problem(a)
		})
	return out, err
}

func (w *wire) sign(ctx context.Context, to, service, region string, h http.Header, body []byte, at time.Time) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: the endpoint is not a URL", provider.ErrInvalid)
	}
	for k, v := range h {
		req.Header[k] = v
	}
	if w.s.Credentials == nil {
		return nil, fmt.Errorf("%w: no credentials are configured", provider.ErrDenied)
	}
	var c aws.Credentials
	if c, err = w.s.Credentials.Retrieve(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %w", provider.ErrUnavailable, ctx.Err())
		}
		return nil, fmt.Errorf("%w: no credentials could be had from the SDK's chain", provider.ErrDenied) // its text names files and hosts
	}
	sum := sha256.Sum256(body)
	if err := w.signer.SignHTTP(ctx, c, req, hex.EncodeToString(sum[:]), service, region, at); err != nil {
		return nil, fmt.Errorf("%w: sign: %w", provider.ErrInvalid, err)
	}
	return req, nil
}
