// Package wire is one HTTP request to a platform, and what its answer means.
//
// It promises that no error holds the URL, its path or query, a token or a signature: they are secrets, and net/http
// puts URLs into its errors while platforms echo them. Answers are read up to a bound. It repeats nothing: the sender
// does.
package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"lowtide/functions/notify"
)

// Client posts for one channel.
type Client struct {
	HTTP    *http.Client // nil: one that follows no redirects
	Secrets []string     // masked wherever an answer repeats them
}

// plain follows no redirects: a message and its signature go where they were sent, or nowhere.
var plain = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// Reply is an answer.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte

	said string // the body, fit to be shown
}

// maxReply is how much of an answer is read.
const maxReply = 64 << 10

// JSON sends v with a method and decodes a JSON answer into out, which may be nil; also the answer of an error, in which
// some platforms tell more than their status does.
func (c Client) JSON(ctx context.Context, method, address string, header http.Header, v, out any) (Reply, error) {
	body, err := Marshal(v)
	if err != nil {
		return Reply{}, err
	}
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/json; charset=utf-8")
	r, err := c.Do(ctx, method, address, header, body)
	if out == nil {
		return r, err
	}
	if jerr := json.Unmarshal(r.Body, out); jerr != nil && err == nil {
		return r, r.Refused("an answer that is not JSON")
	}
	return r, err
}

// Marshal writes JSON with <, > and & as they are.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}

// Do sends one request. An answer that means "later" is a notify.Wait; one that says that we are refused for good wraps
// notify.ErrSettings; what is neither that nor a success is an error too.
func (c Client) Do(ctx context.Context, method, address string, header http.Header, body []byte) (Reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return Reply{}, fmt.Errorf("the address is not a URL: %w", notify.ErrSettings)
	}
	if req.URL.Scheme != "https" && req.URL.Scheme != "http" || req.URL.Host == "" {
		return Reply{}, fmt.Errorf("the address is not an http URL: %w", notify.ErrSettings)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	h := c.HTTP
	if h == nil {
		h = plain
	}
	res, err := h.Do(req)
	if err != nil {
		return Reply{}, c.hide(err, req.URL)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return Reply{}, c.hide(err, req.URL)
	}
	r := Reply{Status: res.StatusCode, Header: res.Header, Body: b, said: c.Said(string(b), req.URL)}
	return r, r.judge()
}

// judge reads the status alone. 2xx may still be a refusal: the body says.
func (r Reply) judge() error {
	switch {
	case r.Status >= 200 && r.Status < 300:
		return nil
	case r.Status == http.StatusTooManyRequests:
		return notify.Wait{For: After(r.Header, time.Minute)}
	case r.Status == http.StatusServiceUnavailable && r.Header.Get("Retry-After") != "":
		return notify.Wait{For: After(r.Header, time.Minute)}
	case r.Status >= 500, r.Status == http.StatusRequestTimeout, r.Status == http.StatusConflict:
		return r.Refused("HTTP " + strconv.Itoa(r.Status))
	}
	return r.For("HTTP " + strconv.Itoa(r.Status))
}

// Refused is an error worth another try.
func (r Reply) Refused(why string) error {
	return errors.New(strings.TrimSuffix(why+": "+r.said, ": "))
}

// For is an error that no repeat mends.
func (r Reply) For(why string) error {
	return fmt.Errorf("%s: %w", strings.TrimSuffix(why+": "+r.said, ": "), notify.ErrSettings)
}

// After reads Retry-After, seconds or a date, between a second and a day.
func After(h http.Header, otherwise time.Duration) time.Duration {
	v := h.Get("Retry-After")
	if sec, err := strconv.ParseFloat(v, 64); err == nil && sec >= 0 && sec < 1e6 {
		return min(max(time.Duration(sec*float64(time.Second)), time.Second), 24*time.Hour)
	}
	if at, err := http.ParseTime(v); err == nil {
		base := time.Now()
		if d, err := http.ParseTime(h.Get("Date")); err == nil {
			base = d // the platform's own clock
		}
		return min(max(at.Sub(base), time.Second), 24*time.Hour)
	}
	return otherwise
}

// hide takes the URL out of net/http's errors. The host stays: it is no secret, and tells which channel it is.
func (c Client) hide(err error, u *url.URL) error {
	var ue *url.Error
	for errors.As(err, &ue) {
		err = ue.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s does not answer: %w", u.Host, context.DeadlineExceeded)
	}
	return fmt.Errorf("%s: %s", u.Host, c.Said(err.Error(), u))
}

// maxSaid is how much of an answer an error repeats.
const maxSaid = 256

// Said makes text of a platform fit for a log: without our secrets and control characters, short.
func (c Client) Said(text string, u *url.URL) string {
	secrets := c.Secrets
	if u != nil {
		secrets = append([]string{u.String(), u.RequestURI(), u.EscapedPath()}, secrets...)
		for part := range strings.SplitSeq(u.Path, "/") {
			if len(part) >= 8 {
				secrets = append(secrets, part)
			}
		}
		for _, all := range u.Query() {
			secrets = append(secrets, all...)
		}
		if pw, ok := u.User.Password(); ok {
			secrets = append(secrets, pw)
		}
	}
	for _, s := range secrets {
		if len(s) >= 4 {
			text = strings.ReplaceAll(text, s, "***")
			text = strings.ReplaceAll(text, url.QueryEscape(s), "***")
		}
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == 0xfffd {
			return ' '
		}
		return r
	}, text)
	return notify.Cut(strings.Join(strings.Fields(text), " "), maxSaid)
}
