// Package discord shows incidents through a Discord webhook: one message each, changed in place.
package discord

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"lowtide/functions/notify"
	"lowtide/functions/notify/wire"
)

// Settings name the webhook.
type Settings struct {
	Webhook string `yaml:"webhook"`
	App     bool   `yaml:"app"` // the webhook is an application's own, whose buttons come to chatops; Discord takes them from no other
}

// Limits: 2000 characters of content, 4096 of an embed's description, 6000 of all embeds.
const (
	maxContent     = 2000
	maxDescription = 4096
)

type channel struct {
	Settings
	wire wire.Client
}

// New makes the channel. h is nil but in tests.
func New(s Settings, h *http.Client) (notify.Channel, error) {
	if s.Webhook == "" {
		return nil, errors.New("discord: give webhook")
	}
	return &channel{s, wire.Client{HTTP: h}}, nil
}

// Traits: Discord allows five requests in two seconds, and 30 a minute and channel.
func (c *channel) Traits() notify.Traits {
	return notify.Traits{Edits: true, Buttons: c.App, Links: true, PerMinute: 25, Burst: 3, Every: 30 * time.Second}
}

type answer struct {
	ID         string  `json:"id"`
	Code       int     `json:"code"`
	RetryAfter float64 `json:"retry_after"`
}

// Send posts m, or changes the message that ref names.
func (c *channel) Send(ctx context.Context, m notify.Message, ref string) (string, error) {
	u, err := url.Parse(c.Webhook)
	if err != nil {
		return ref, fmt.Errorf("discord: the webhook is not a URL: %w", notify.ErrSettings)
	}
	method := http.MethodPost
	if ref != "" {
		method = http.MethodPatch
		u = u.JoinPath("messages", ref)
	}
	q := u.Query()
	q.Set("wait", "true")
	u.RawQuery = q.Encode()
	var a answer
	r, err := c.wire.JSON(ctx, method, u.String(), nil, c.body(m), &a)
	var told notify.Wait
	switch {
	case errors.As(err, &told) && a.RetryAfter > 0:
		return ref, notify.Wait{For: time.Duration(a.RetryAfter * float64(time.Second))}
	case errors.As(err, &told):
		return ref, told
	case err != nil && a.Code == 10008: // unknown message
		return ref, fmt.Errorf("discord: %w", notify.ErrGone)
	case err != nil:
		return ref, fmt.Errorf("discord: %w", err)
	case a.ID == "":
		return ref, fmt.Errorf("discord: %w", r.Refused("an answer without an id"))
	}
	return a.ID, nil
}

var literal = strings.NewReplacer(
	`\`, `\\`, "*", `\*`, "_", `\_`, "~", `\~`, "`", "\\`", "|", `\|`, ">", `\>`, "[", `\[`, "]", `\]`, "<", `\<`, "#", `\#`, "@", "＠", "://", ":∕∕",
)

var colours = map[notify.Severity]int{notify.Info: 0x3b82f6, notify.Warning: 0xf59e0b, notify.Critical: 0xdc2626}

// maxButton is what a button may carry back, in characters.
const maxButton = 100

// buttons are the decisions as Discord's own: green and red. An empty list takes those of a message away that was changed.
func buttons(m notify.Message) []any {
	var row []any
	for _, a := range m.Actions {
		if a.Token == "" || len(a.Token) > maxButton || len(row) == 5 {
			continue
		}
		style := 3
		if a.Act == "deny" {
			style = 4
		}
		row = append(row, map[string]any{"type": 2, "style": style, "label": a.Text, "custom_id": a.Token})
	}
	if len(row) == 0 {
		return []any{}
	}
	return []any{map[string]any{"type": 1, "components": row}}
}

func (c *channel) body(m notify.Message) map[string]any {
	cost := func(s string) int { return utf8.RuneCountInString(literal.Replace(s)) + 1 }
	title, _ := notify.Fit(m.Title, nil, maxContent-4, cost, m.More)
	_, lines := notify.Fit("", m.Lines, maxDescription-900, cost, m.More)
	text := literal.Replace(strings.Join(lines, "\n"))
	for _, a := range m.Actions {
		if link := fmt.Sprintf("\n[%s](%s)", a.Text, a.URL); a.URL != "" && !c.App && utf8.RuneCountInString(text+link) <= maxDescription {
			text += link
		}
	}
	colour := colours[m.Severity]
	if m.Closed {
		colour = 0x16a34a
	}
	embeds := []any{}
	if text != "" {
		embeds = append(embeds, map[string]any{"description": text, "color": colour})
	}
	out := map[string]any{
		"content": "**" + literal.Replace(title) + "**", "embeds": embeds, "allowed_mentions": map[string]any{"parse": []string{}},
	}
	if c.App {
		out["components"] = buttons(m)
	}
	return out
}
