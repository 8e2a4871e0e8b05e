// Package feishu shows incidents in a Feishu (Lark) chat: as an app bot one card each, changed in place, with buttons;
// as a custom bot, which cannot change what it sent, as cards that follow each other.
//
// HTTP 200 is no success here: the code in the body is.
package feishu

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"lowtide/functions/notify"
	"lowtide/functions/notify/wire"
)

// Settings name the chat. Either App, Secret and Chat of an app bot, or Webhook (and its Secret) of a custom bot.
type Settings struct {
	App     string `yaml:"app"`
	Secret  string `yaml:"secret"`
	Chat    string `yaml:"chat"` // chat_id, "oc_…"
	Webhook string `yaml:"webhook"`
	Keyword string `yaml:"keyword"` // that the custom bot asks for; it is put under every message
	API     string `yaml:"api"`     // "": Feishu's; https://open.larksuite.com for Lark, or a stand-in
}

// Limits (open.feishu.cn, custom bot guide): 100 a minute, 5 a second, 20 KB.
const maxBytes = 20_000

type channel struct {
	Settings
	wire wire.Client
	now  func() time.Time

	mu     sync.Mutex
	token  string
	expiry time.Time
}

// New makes the channel. h and now are nil but in tests.
func New(s Settings, h *http.Client, now func() time.Time) (notify.Channel, error) {
	if now == nil {
		now = time.Now
	}
	c := &channel{Settings: s, now: now, wire: wire.Client{HTTP: h, Secrets: []string{s.Secret}}}
	switch {
	case s.Webhook != "" && s.App == "" && s.Chat == "":
		return c, nil
	case s.Webhook != "" || s.App == "" || s.Secret == "" || s.Chat == "":
		return nil, errors.New("feishu: give app, secret and chat, or webhook (with its secret)")
	}
	if c.API == "" {
		c.API = "https://open.feishu.cn"
	}
	return c, nil
}

// Traits: an app bot changes its cards, but Feishu takes it ill when it does so often (230020).
func (c *channel) Traits() notify.Traits {
	app := c.App != ""
	return notify.Traits{Edits: app, Buttons: app, Links: true, PerMinute: 60, Burst: 3, Every: 30 * time.Second}
}

// answer is how every call of Feishu ends. StatusCode is the custom bot's older form.
type answer struct {
	Code       *int   `json:"code"`
	StatusCode *int   `json:"StatusCode"`
	Msg        string `json:"msg"`
	Data       struct {
		MessageID string `json:"message_id"`
	} `json:"data"`
	Token  string `json:"tenant_access_token"`
	Expire int    `json:"expire"`
}

// Send posts m, or changes the card that ref names.
func (c *channel) Send(ctx context.Context, m notify.Message, ref string) (string, error) {
	if c.App == "" {
		return "", c.robot(ctx, m)
	}
	ref, err := c.app(ctx, m, ref)
	if errors.Is(err, errToken) { // it was revoked before its time
		c.forget()
		ref, err = c.app(ctx, m, ref)
	}
	return ref, err
}

func (c *channel) robot(ctx context.Context, m notify.Message) error {
	body := map[string]any{"msg_type": "interactive", "card": c.card(m, 2*len(c.Webhook))}
	if c.Secret != "" { // made for each message: a stale one is refused after an hour
		body["timestamp"], body["sign"] = Sign(c.Secret, c.now())
	}
	var a answer
	r, err := c.wire.JSON(ctx, http.MethodPost, c.Webhook, nil, body, &a)
	return c.judge(a, r, err)
}

// Sign returns timestamp and signature of a custom bot's message: HMAC-SHA256 with timestamp, line break and secret as
// the key, over nothing.
func Sign(secret string, now time.Time) (timestamp, sign string) {
	timestamp = strconv.FormatInt(now.Unix(), 10)
	h := hmac.New(sha256.New, []byte(timestamp+"\n"+secret))
	return timestamp, base64.StdEncoding.EncodeToString(h.Sum(nil))
}

func (c *channel) app(ctx context.Context, m notify.Message, ref string) (string, error) {
	token, err := c.access(ctx)
	if err != nil {
		return ref, err
	}
	card, err := wire.Marshal(c.card(m, 0))
	if err != nil {
		return ref, err
	}
	head := http.Header{"Authorization": {"Bearer " + token}}
	client := c.wire
	client.Secrets = append([]string{token}, client.Secrets...)
	var a answer
	if ref != "" {
		r, err := client.JSON(ctx, http.MethodPatch, c.API+"/open-apis/im/v1/messages/"+url.PathEscape(ref), head, map[string]any{"content": string(card)}, &a)
		return ref, c.judge(a, r, err)
	}
	r, err := client.JSON(ctx, http.MethodPost, c.API+"/open-apis/im/v1/messages?receive_id_type=chat_id", head, map[string]any{
		"receive_id": c.Chat, "msg_type": "interactive", "content": string(card),
		// Feishu sends a message of one uuid once within an hour: a repeat after a lost answer is no second message.
		"uuid": once(m),
	}, &a)
	if err := c.judge(a, r, err); err != nil {
		return "", err
	}
	return a.Data.MessageID, nil
}

func once(m notify.Message) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%s %d %s", m.ID, m.Version, m.Title))
	return base64.RawURLEncoding.EncodeToString(h[:])[:40]
}

// access is a token of the app, kept until shortly before it ends.
func (c *channel) access(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token != "" && c.now().Before(c.expiry) {
		return c.token, nil
	}
	var a answer
	r, err := c.wire.JSON(ctx, http.MethodPost, c.API+"/open-apis/auth/v3/tenant_access_token/internal", nil,
		map[string]string{"app_id": c.App, "app_secret": c.Secret}, &a)
	if err := c.judge(a, r, err); err != nil {
		return "", err
	}
	c.token, c.expiry = a.Token, c.now().Add(time.Duration(a.Expire)*time.Second-5*time.Minute)
	return c.token, nil
}

func (c *channel) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = ""
}

var errToken = errors.New("feishu: the access token is not valid any more")

// judge reads the body's code.
func (c *channel) judge(a answer, r wire.Reply, err error) error {
	code := a.Code
	if code == nil {
		code = a.StatusCode
	}
	if code == nil {
		if err == nil {
			err = r.Refused("an answer without a code")
		}
		return fmt.Errorf("feishu: %w", err)
	}
	if *code == 0 {
		return wrap(err)
	}
	said := fmt.Sprintf("code %d", *code)
	switch *code {
	case 11232, 99991400, 230020: // too often
		return notify.Wait{For: wire.After(r.Header, time.Minute)}
	case 99991661, 99991663, 99991668: // token missing, invalid, expired
		return errToken
	case 230011, 231003, 230110: // recalled, not found, deleted
		return fmt.Errorf("feishu: %s: %w", said, notify.ErrGone)
	case 19021: // signature, or a clock that is wrong by more than an hour
		return fmt.Errorf("feishu: %w", r.For(said+" (secret or clock)"))
	case 9499, 19001, 19022, 19024, 10003, 10014, 230002, 230001, 230006, 230013, 230025, 230099, 11246:
		return fmt.Errorf("feishu: %w", r.For(said))
	}
	return fmt.Errorf("feishu: %w", r.Refused(said))
}

var colours = map[notify.Severity]string{notify.Info: "blue", notify.Warning: "orange", notify.Critical: "red"}

// card is the message in Feishu's card language. What others wrote stands in plain text, which mentions nobody.
func (c *channel) card(m notify.Message, spare int) map[string]any {
	colour := colours[m.Severity]
	if m.Closed {
		colour = "green"
	}
	if c.Keyword != "" {
		m.Lines = append([]string{c.Keyword}, m.Lines...)
	}
	// A card is JSON, and an app sends it as a string within JSON: quotes and backslashes grow twice.
	cost := func(s string) int {
		b, _ := json.Marshal(s)
		b, _ = json.Marshal(string(b))
		return len(b)
	}
	title, lines := notify.Fit(m.Title, m.Lines, maxBytes-2000-spare, cost, m.More)
	elements := []any{}
	if len(lines) > 0 {
		elements = append(elements, map[string]any{"tag": "div", "text": plain(strings.Join(lines, "\n"))})
	}
	var buttons []any
	for _, a := range m.Actions {
		kind := map[string]string{"approve": "primary", "deny": "danger"}[a.Act]
		if kind == "" {
			kind = "default"
		}
		b := map[string]any{"tag": "button", "text": plain(a.Text), "type": kind}
		if c.App != "" {
			b["value"] = map[string]string{"act": a.Act, "token": a.Token}
		} else {
			b["url"] = a.URL
		}
		buttons = append(buttons, b)
	}
	if len(buttons) > 0 {
		elements = append(elements, map[string]any{"tag": "action", "actions": buttons})
	}
	if len(elements) == 0 {
		elements = append(elements, map[string]any{"tag": "div", "text": plain(title)})
	}
	return map[string]any{
		"config":   map[string]any{"wide_screen_mode": true, "update_multi": true},
		"header":   map[string]any{"title": plain(title), "template": colour},
		"elements": elements,
	}
}

func plain(text string) map[string]string {
	return map[string]string{"tag": "plain_text", "content": text}
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("feishu: %w", err)
}
