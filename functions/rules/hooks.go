package rules

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fn"
)

const (
	hookTime = 10 * time.Second
	hookTry  = 5 // times, over about a minute and a half
)

// Hooks posts what rules ask for, signed as standardwebhooks.com describes, so that a slow receiver holds no rule up. A post
// may come twice, with the same Webhook-Id. The zero Function: no rule has a webhook. client is nil but in tests.
func Hooks(cfg Config, s *Set, client *http.Client) fn.Function {
	some := false
	for _, r := range s.rules {
		for _, d := range r.do {
			some = some || d.verb == "webhook"
		}
	}
	if !some {
		return fn.Function{}
	}
	if client == nil { // a message and its signature go where they were sent, or nowhere
		client = &http.Client{Timeout: hookTime, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	p := poster{cfg, s, client}
	f := fn.New("rules-hooks", fn.Hear(p.post))
	f.Slow = 2 * hookTime
	return f
}

type poster struct {
	cfg    Config
	set    *Set
	client *http.Client
}

// post carries one out. A receiver that is away is tried again; in the end people are told.
func (p poster) post(ctx context.Context, w events.WebhookAsked) ([]events.Event, error) {
	d := fn.From(ctx)
	if d.Event.Fleet != p.cfg.Fleet || p.cfg.Now != nil && p.cfg.Now().Sub(d.At) > late {
		return nil, nil
	}
	r := p.set.byName[w.Rule]
	if r == nil || w.Step < 0 || w.Step >= len(r.do) || r.do[w.Step].verb != "webhook" {
		return nil, nil // the rule is another one by now
	}
	why, again := p.send(ctx, r.do[w.Step].hook, d.Event.ID, w.Body)
	if again && d.Attempt < hookTry {
		return nil, fmt.Errorf("webhook of rule %s: %s", w.Rule, why)
	}
	acted := events.RuleActed{Rule: w.Rule, Act: "webhook", About: w.About, Done: why == "", Result: "sent"}
	if why != "" {
		acted.Result = "not sent: " + why
	}
	e := events.New(p.cfg.Fleet, "rules/"+w.Rule+"/hook", d.At, acted)
	e.ID = fmt.Sprintf("%s-%d", e.ID, d.Seq)
	e.Dry = d.Event.Dry
	return []events.Event{e}, nil
}

// send posts one body; why is "" when it was taken. No word of why holds the address, which is a secret.
func (p poster) send(ctx context.Context, h hook, id string, body []byte) (why string, again bool) {
	ctx, cancel := context.WithTimeout(ctx, hookTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return "its address is not a URL", false
	}
	req.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	req.Header.Set("Webhook-Id", id)
	if h.Secret != "" {
		at := strconv.FormatInt(time.Now().Unix(), 10) // the receiver's clock is the wall's
		req.Header.Set("Webhook-Timestamp", at)
		req.Header.Set("Webhook-Signature", sign(h.Secret, id, at, body))
	}
	if h.Bearer != "" {
		req.Header.Set("Authorization", "Bearer "+h.Bearer)
	}
	res, err := p.client.Do(req)
	if err != nil {
		return req.URL.Hostname() + " does not answer", true
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return "", false
	case res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500 || res.StatusCode == http.StatusRequestTimeout:
		return fmt.Sprintf("%s answers %d", req.URL.Hostname(), res.StatusCode), true
	}
	return fmt.Sprintf("%s refuses it with %d", req.URL.Hostname(), res.StatusCode), false
}

// sign is the signature header: HMAC-SHA256 over id, timestamp and body.
func sign(secret, id, at string, body []byte) string {
	key := []byte(secret)
	if b, ok := strings.CutPrefix(secret, "whsec_"); ok {
		if raw, err := base64.StdEncoding.DecodeString(b); err == nil {
			key = raw
		}
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + at + "."))
	h.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
}
