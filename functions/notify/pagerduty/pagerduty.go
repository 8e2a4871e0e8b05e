// Package pagerduty raises incidents in PagerDuty by Events v2: one alert each, by its key; it is resolved when the
// incident is over.
package pagerduty

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"lowtide/functions/notify"
	"lowtide/functions/notify/wire"
)

// Settings name the service.
type Settings struct {
	Key string `yaml:"key"` // routing (integration) key
	API string `yaml:"api"` // "": PagerDuty's
}

// Limits of Events v2: a key of 255 characters, a summary of 1024, an event of 512 KB.
const (
	maxKey     = 255
	maxSummary = 1024
	maxDetails = 100_000
)

type channel struct {
	Settings
	wire wire.Client
}

// New makes the channel. h is nil but in tests.
func New(s Settings, h *http.Client) (notify.Channel, error) {
	if s.Key == "" {
		return nil, errors.New("pagerduty: give key")
	}
	if s.API == "" {
		s.API = "https://events.pagerduty.com"
	}
	return &channel{s, wire.Client{HTTP: h, Secrets: []string{s.Key}}}, nil
}

// Traits: an event with a known key changes its alert.
func (c *channel) Traits() notify.Traits {
	return notify.Traits{Edits: true, Links: true, PerMinute: 100, Burst: 20, Every: time.Minute}
}

// Send triggers, or resolves, the alert of m's incident.
func (c *channel) Send(ctx context.Context, m notify.Message, ref string) (string, error) {
	key := ref
	if key == "" {
		key = notify.Cut("lowtide/"+m.ID, maxKey)
	}
	if m.Closed && ref == "" && m.Severity == notify.Info {
		return key, nil // nobody is paged for what is over and went as planned
	}
	action := "trigger"
	if m.Closed {
		action = "resolve"
	}
	_, lines := notify.Fit("", m.Lines, maxDetails, func(s string) int { return 2*len(s) + 8 }, m.More)
	body := map[string]any{
		"routing_key": c.Key, "event_action": action, "dedup_key": key,
		"payload": map[string]any{
			"summary": notify.Cut(m.Title, maxSummary), "source": "lowtide/" + m.Fleet, "severity": m.Severity.String(),
			"timestamp": m.Changed.UTC().Format(time.RFC3339), "class": m.Kind, "component": m.Workload,
			"custom_details": map[string]any{"lines": lines},
		},
	}
	var links []any
	for _, a := range m.Actions {
		if a.URL != "" {
			links = append(links, map[string]string{"href": a.URL, "text": a.Text})
		}
	}
	if len(links) > 0 {
		body["links"] = links
	}
	if _, err := c.wire.JSON(ctx, http.MethodPost, c.API+"/v2/enqueue", nil, body, nil); err != nil {
		return ref, fmt.Errorf("pagerduty: %w", err)
	}
	return key, nil
}
