package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// maxAnswer bounds one answer of a cloud.
const maxAnswer = 256 << 20

// Answer is what a cloud answered to one request, whole.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Exchange sends one request and reads the whole answer. writes says that the request may change something: an answer
// that was lost is ErrUnknown then, and ErrUnavailable for what only reads; a request that was never sent is
// ErrUnavailable either way. No error repeats the request's URL, headers or body: they may hold secrets.
func Exchange(client *http.Client, req *http.Request, writes bool) (Answer, error) {
	lost := ErrUnavailable
	if writes {
		lost = ErrUnknown
	}
	if writes && req.Method == http.MethodGet && (req.Body == nil || req.Body == http.NoBody) {
		// Some clouds sell by GET, which http.Transport repeats by itself when an answer is lost. A body that can be read but
		// once keeps it from that; an empty one is not sent.
		req.Body, req.GetBody = io.NopCloser(strings.NewReader("")), nil
	}
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		switch dial := (*net.OpError)(nil); {
		case errors.Is(err, ErrRefusedHere):
			return Answer{}, err
		case errors.As(err, &dial) && dial.Op == "dial", req.Context().Err() != nil && !writes:
			lost = ErrUnavailable // nothing was sent, or nothing can have changed
		}
		return Answer{}, fmt.Errorf("%w: %w", lost, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return Answer{}, fmt.Errorf("%w: read the answer: %w", lost, err)
	}
	return Answer{resp.StatusCode, resp.Header, body}, nil
}

// JSON makes a request with a JSON body, and without one for a nil in.
func JSON(ctx context.Context, method, address string, in any) (*http.Request, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, fmt.Errorf("%w: the address of the cloud is not a URL", ErrInvalid)
	}
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// Status maps what a status alone says, for an answer that the cloud's own words do not explain; nil below 400.
func Status(status int, writes bool) error {
	switch {
	case status < http.StatusBadRequest:
		return nil
	case status == http.StatusTooManyRequests:
		return ErrThrottled
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusPaymentRequired:
		return ErrDenied
	case status == http.StatusNotFound, status == http.StatusGone:
		return ErrNotFound
	case status < http.StatusInternalServerError:
		return ErrInvalid
	case writes:
		return ErrUnknown // a proxy's 502 does not say what happened behind it
	}
	return ErrUnavailable
}

// ReadOnly refuses every request that reads does not know as reading, before it is sent: ErrRefusedHere.
func ReadOnly(to http.RoundTripper, reads func(*http.Request) bool) http.RoundTripper {
	return readOnly{to, reads}
}

type readOnly struct {
	to    http.RoundTripper
	reads func(*http.Request) bool
}

func (r readOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.reads(req) {
		return r.to.RoundTrip(req)
	}
	if req.Body != nil {
		_ = req.Body.Close()
	}
	return nil, fmt.Errorf("%w: dry run: a request that may change something at %s", ErrRefusedHere, req.URL.Host)
}

// Pages calls next with the token of the page before, "" first, until it returns "". A token that comes twice, or more
// pages than any account has, is a cloud that is not well: ErrUnavailable, and what was read must not be used.
func Pages(ctx context.Context, next func(token string) (string, error)) error {
	const most = 10000
	seen := map[string]bool{}
	for token := ""; ; {
		t, err := next(token)
		if err != nil || t == "" {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if seen[t] || len(seen) > most {
			return fmt.Errorf("%w: its pages go in a circle", ErrUnavailable)
		}
		seen[t], token = true, t
	}
}
