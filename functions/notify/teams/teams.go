// Package teams shows incidents in Microsoft Teams through a Workflows webhook, which takes Adaptive Cards and only
// sends: messages follow each other. (The older Office 365 connectors were switched off in May 2026.)
package teams

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"lowtide/functions/notify"
	"lowtide/functions/notify/wire"
)

// Settings name the workflow.
type Settings struct {
	Webhook string `yaml:"webhook"`
}

// maxBytes is the largest message (learn.microsoft.com, Teams webhooks: 28 KB).
const maxBytes = 28_000

type channel struct {
	Settings
	wire wire.Client
}

// New makes the channel. h is nil but in tests.
func New(s Settings, h *http.Client) (notify.Channel, error) {
	if s.Webhook == "" {
		return nil, errors.New("teams: give webhook")
	}
	return &channel{s, wire.Client{HTTP: h}}, nil
}

// Traits: four a second are allowed.
func (c *channel) Traits() notify.Traits {
	return notify.Traits{Links: true, PerMinute: 30, Burst: 3}
}

// Send posts m; a reference means nothing here.
func (c *channel) Send(ctx context.Context, m notify.Message, _ string) (string, error) {
	body := map[string]any{"type": "message", "attachments": []any{map[string]any{
		"contentType": "application/vnd.microsoft.card.adaptive", "content": card(m),
	}}}
	if _, err := c.wire.JSON(ctx, http.MethodPost, c.Webhook, nil, body, nil); err != nil {
		return "", fmt.Errorf("teams: %w", err)
	}
	return "", nil
}

// card holds all text as text runs, in which nothing is mark-up or a mention.
func card(m notify.Message) map[string]any {
	cost := func(s string) int { b, _ := wire.Marshal(text(s, false)); return len(b) + 1 }
	reserve := 600
	for _, a := range m.Actions {
		reserve += len(a.URL) + len(a.Text) + 100
	}
	title, lines := notify.Fit(m.Title, m.Lines, maxBytes-reserve, cost, m.More)
	body := []any{text(title, true)}
	for _, l := range lines {
		body = append(body, text(l, false))
	}
	out := map[string]any{"type": "AdaptiveCard", "$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "version": "1.4", "body": body}
	var links []any
	for _, a := range m.Actions {
		if a.URL != "" {
			links = append(links, map[string]string{"type": "Action.OpenUrl", "title": a.Text, "url": a.URL})
		}
	}
	if len(links) > 0 {
		out["actions"] = links
	}
	return out
}

func text(s string, bold bool) map[string]any {
	run := map[string]any{"type": "TextRun", "text": s}
	if bold {
		run["weight"] = "Bolder"
	}
	return map[string]any{"type": "RichTextBlock", "inlines": []any{run}}
}
