// Command lambda is chatops on AWS: chat platforms, and whoever else may send alerts, post to its URL. Each request is
// checked against its own secret. Its settings are LOWTIDE_CHATOPS, or the secret that LOWTIDE_CHATOPS_SECRET names: a
// chatops file with its secrets in it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"lowtide/events"
	"lowtide/functions/chatops"
	"lowtide/shared/fn/lambda"
	"lowtide/shared/plan"
	"lowtide/shared/store"
)

func main() {
	lambda.Main("chatops", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		door, err := open(ctx, h)
		if err != nil {
			return lambda.Handlers{}, err
		}
		return lambda.Handlers{URL: func(ctx context.Context, r lambda.Request) (lambda.Response, []events.Event, error) {
			return serve(ctx, door, r), nil, nil // what is said is stored before the answer: the door says it itself
		}}, nil
	})
}

func open(ctx context.Context, h *lambda.Host) (http.Handler, error) {
	text, err := h.Setting(ctx, "LOWTIDE_CHATOPS")
	if err != nil {
		return nil, err
	}
	s, err := chatops.Parse([]byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		return nil, fmt.Errorf("LOWTIDE_CHATOPS: %w", err)
	}
	cfg := chatops.Config{Fleet: h.Fleet, Say: h.Say, Now: h.Clock.Now, Policy: plan.Default, Settings: s}
	if own := h.Getenv("LOWTIDE_POLICY"); own != "" {
		if err := json.Unmarshal([]byte(own), &cfg.Policy); err != nil {
			return nil, fmt.Errorf("LOWTIDE_POLICY: %w", err)
		}
	}
	for name, to := range map[string]*store.Bucket{"fleets": &cfg.States, "market": &cfg.Market, "chatops": &cfg.Seen} {
		if *to, err = h.Bucket(ctx, name); err != nil {
			return nil, err
		}
	}
	return chatops.New(cfg)
}

// answer is what a handler writes.
type answer struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// serve hands one request on, with the bytes as they were sent: signatures are over them.
func serve(ctx context.Context, door http.Handler, r lambda.Request) lambda.Response {
	req, err := http.NewRequestWithContext(ctx, r.Method, (&url.URL{Path: r.Path, RawQuery: r.Query}).String(), bytes.NewReader(r.Body))
	if err != nil {
		return lambda.Response{Status: http.StatusBadRequest, Body: "no request\n"}
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	a := &answer{header: http.Header{}}
	door.ServeHTTP(a, req)
	out := lambda.Response{Status: a.status, Header: map[string]string{}, Body: a.body.String()}
	for name := range a.header {
		out.Header[name] = a.header.Get(name)
	}
	return out
}
