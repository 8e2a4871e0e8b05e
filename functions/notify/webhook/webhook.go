// Package webhook tells incidents to any HTTP endpoint: a CloudEvents 1.0 document for each state, signed as
// standardwebhooks.com describes.
//
// The receiver keeps the highest version of a subject; the event's id names subject and version, so that a repeat is
// known by it.
package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lowtide/functions/notify"
	"lowtide/functions/notify/wire"
)

// Settings name the endpoint.
type Settings struct {
	URL    string `yaml:"url"`
	Secret string `yaml:"secret"` // "whsec_" and base64, or any text; "": unsigned
	Bearer string `yaml:"bearer"` // token for the Authorization header; "": none
}

type channel struct {
	Settings
	wire wire.Client
	now  func() time.Time
}

// New makes the channel. h and now are nil but in tests.
func New(s Settings, h *http.Client, now func() time.Time) (notify.Channel, error) {
	if s.URL == "" {
		return nil, errors.New("webhook: give url")
	}
	if now == nil {
		now = time.Now
	}
	return &channel{s, wire.Client{HTTP: h, Secrets: []string{s.Secret, s.Bearer}}, now}, nil
}

// Traits: each state is told; the receiver takes it for a change of the subject.
func (c *channel) Traits() notify.Traits {
	return notify.Traits{Edits: true, Buttons: true, Links: true, PerMinute: 300, Burst: 20, Every: 5 * time.Second}
}

// Event is the document.
type Event struct {
	SpecVersion string    `json:"specversion"`
	ID          string    `json:"id"`
	Type        string    `json:"type"` // lowtide.incident.opened, .changed, .closed; lowtide.heartbeat
	Source      string    `json:"source"`
	Subject     string    `json:"subject"`
	Time        time.Time `json:"time"`
	ContentType string    `json:"datacontenttype"`
	Data        Incident  `json:"data"`
}

// Incident is its data.
type Incident struct {
	Number   int       `json:"number"`
	Version  int       `json:"version"`
	Kind     string    `json:"kind"`
	Severity string    `json:"severity"`
	Closed   bool      `json:"closed"`
	Fleet    string    `json:"fleet"`
	Workload string    `json:"workload,omitempty"`
	Title    string    `json:"title"`
	Lines    []string  `json:"lines,omitempty"`
	Opened   time.Time `json:"opened"`
	Changed  time.Time `json:"changed"`
	Actions  []Action  `json:"actions,omitempty"`
}

// Action is a decision; a POST of the token to chatops takes it.
type Action struct {
	Act   string `json:"act"`
	Text  string `json:"text"`
	Token string `json:"token,omitempty"`
	URL   string `json:"url,omitempty"`
}

// Send tells m.
func (c *channel) Send(ctx context.Context, m notify.Message, ref string) (string, error) {
	body, err := wire.Marshal(event(m, ref))
	if err != nil {
		return ref, err
	}
	id, head := fmt.Sprintf("%s/%d", m.ID, m.Version), http.Header{}
	head.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	head.Set("Webhook-Id", id)
	if c.Secret != "" {
		at := strconv.FormatInt(c.now().Unix(), 10)
		head.Set("Webhook-Timestamp", at)
		head.Set("Webhook-Signature", Sign(c.Secret, id, at, body))
	}
	if c.Bearer != "" {
		head.Set("Authorization", "Bearer "+c.Bearer)
	}
	if _, err := c.wire.Do(ctx, http.MethodPost, c.URL, head, body); err != nil {
		return ref, fmt.Errorf("webhook: %w", err)
	}
	return m.ID, nil
}

func event(m notify.Message, ref string) Event {
	what := "lowtide.incident.changed"
	switch {
	case m.Kind == "heartbeat":
		what = "lowtide.heartbeat"
	case m.Closed:
		what = "lowtide.incident.closed"
	case ref == "":
		what = "lowtide.incident.opened"
	}
	e := Event{
		SpecVersion: "1.0", ID: fmt.Sprintf("%s/%d", m.ID, m.Version), Type: what, Source: "lowtide/notify", Subject: m.ID, Time: m.Changed.UTC(),
		ContentType: "application/json",
		Data: Incident{
			Number: m.Number, Version: m.Version, Kind: m.Kind, Severity: m.Severity.String(), Closed: m.Closed, Fleet: m.Fleet, Workload: m.Workload,
			Title: m.Title, Lines: m.Lines, Opened: m.Opened.UTC(), Changed: m.Changed.UTC(),
		},
	}
	for _, a := range m.Actions {
		e.Data.Actions = append(e.Data.Actions, Action(a))
	}
	return e
}

// Sign is the signature header: HMAC-SHA256 over id, timestamp and body.
func Sign(secret, id, timestamp string, body []byte) string {
	key := []byte(secret)
	if b, ok := strings.CutPrefix(secret, "whsec_"); ok {
		if raw, err := base64.StdEncoding.DecodeString(b); err == nil {
			key = raw
		}
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + timestamp + "."))
	h.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
}
