// Package alertmanager tells incidents to an Alertmanager, for shops whose routes, silences and on-call live there. An
// open incident is told again before Alertmanager would take it for resolved; its end is told at once.
package alertmanager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lowtide/functions/notify"
	"lowtide/functions/notify/wire"
)

// Settings name the server.
type Settings struct {
	URL    string            `yaml:"url"`
	Bearer string            `yaml:"bearer"`
	Labels map[string]string `yaml:"labels"` // added to every alert
}

// maxText bounds the annotations: what Alertmanager hands on to others has bounds of its own.
const maxText = 64_000

// renew and lasts: an alert ends by itself after lasts unless it is renewed.
const (
	renew = 2 * time.Minute
	lasts = 5 * time.Minute
)

type channel struct {
	Settings
	wire wire.Client
	now  func() time.Time
}

// New makes the channel. h and now are nil but in tests.
func New(s Settings, h *http.Client, now func() time.Time) (notify.Channel, error) {
	if s.URL == "" {
		return nil, errors.New("alertmanager: give url")
	}
	if now == nil {
		now = time.Now
	}
	s.URL = strings.TrimSuffix(s.URL, "/")
	return &channel{s, wire.Client{HTTP: h, Secrets: []string{s.Bearer}}, now}, nil
}

// Traits: the same labels change the alert.
func (c *channel) Traits() notify.Traits {
	return notify.Traits{Edits: true, PerMinute: 300, Burst: 20, Every: 30 * time.Second, Renew: renew}
}

// Alert is one alert of POST /api/v2/alerts.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"`
}

// Send tells m.
func (c *channel) Send(ctx context.Context, m notify.Message, _ string) (string, error) {
	title, lines := notify.Fit(m.Title, m.Lines, maxText, func(s string) int { return len(s) + 1 }, m.More)
	a := Alert{
		Labels: map[string]string{
			"alertname": "lowtide_" + m.Kind, "fleet": m.Fleet, "incident": strconv.Itoa(m.Number), "severity": m.Severity.String(),
		},
		Annotations: map[string]string{"summary": title, "description": strings.Join(lines, "\n")},
		StartsAt:    m.Opened.UTC(), EndsAt: c.now().Add(lasts).UTC(),
	}
	if m.Workload != "" {
		a.Labels["workload"] = m.Workload
	}
	for k, v := range c.Labels {
		a.Labels[k] = v
	}
	if m.Closed {
		a.EndsAt = c.now().UTC()
	}
	head := http.Header{}
	if c.Bearer != "" {
		head.Set("Authorization", "Bearer "+c.Bearer)
	}
	if _, err := c.wire.JSON(ctx, http.MethodPost, c.URL+"/api/v2/alerts", head, []Alert{a}, nil); err != nil {
		return "", fmt.Errorf("alertmanager: %w", err)
	}
	return m.ID, nil
}
