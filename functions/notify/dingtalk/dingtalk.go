// Package dingtalk shows incidents through a DingTalk group robot, which only sends: messages follow each other.
//
// HTTP 200 is no success here: errcode in the body is. More than 20 messages a minute and the robot is mute for ten
// minutes, so it keeps well below.
package dingtalk

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lowtide/functions/notify"
	"lowtide/functions/notify/wire"
)

// Settings name the robot.
type Settings struct {
	Webhook string `yaml:"webhook"` // with its access_token
	Secret  string `yaml:"secret"`  // of the robot's signature; "": it asks for none
	Keyword string `yaml:"keyword"` // that the robot asks for; it is put under every message
}

// maxBytes is the largest body (open.dingtalk.com, custom robot: 20,000 bytes).
const maxBytes = 20_000

type channel struct {
	Settings
	wire wire.Client
	now  func() time.Time
}

// New makes the channel. h and now are nil but in tests.
func New(s Settings, h *http.Client, now func() time.Time) (notify.Channel, error) {
	if s.Webhook == "" {
		return nil, errors.New("dingtalk: give webhook")
	}
	if now == nil {
		now = time.Now
	}
	return &channel{s, wire.Client{HTTP: h, Secrets: []string{s.Secret}}, now}, nil
}

// Traits: 15 of the 20 a minute.
func (c *channel) Traits() notify.Traits {
	return notify.Traits{Links: true, PerMinute: 15, Burst: 2}
}

// Send posts m; a reference means nothing here.
func (c *channel) Send(ctx context.Context, m notify.Message, _ string) (string, error) {
	now := c.now()
	address, err := Address(c.Webhook, c.Secret, now)
	if err != nil {
		return "", err
	}
	var a struct {
		Code *int   `json:"errcode"`
		Msg  string `json:"errmsg"`
	}
	r, err := c.wire.JSON(ctx, http.MethodPost, address, nil, c.body(m), &a)
	switch {
	case a.Code == nil && err == nil:
		err = r.Refused("an answer without errcode")
	case a.Code == nil:
	case *a.Code == 0 && err == nil:
		return "", nil
	case *a.Code == 130101, *a.Code == 410100: // too many: mute for ten minutes
		return "", notify.Wait{For: 10*time.Minute + 5*time.Second}
	case *a.Code == 310000 && skewed(r.Header, now):
		err = r.For(fmt.Sprintf("errcode 310000; this host's clock is %s off the platform's", skew(r.Header, now)))
	case *a.Code == 310000, *a.Code == 300001, *a.Code == 300005, *a.Code == 40035, *a.Code == 43004, *a.Code == 400013:
		err = r.For("errcode " + strconv.Itoa(*a.Code))
	case *a.Code != 0:
		err = r.Refused("errcode " + strconv.Itoa(*a.Code))
	}
	return "", fmt.Errorf("dingtalk: %w", err)
}

// Address is the webhook with timestamp and signature, made for one message: HMAC-SHA256 with the secret as the key
// over milliseconds, line break and secret. Valid for an hour.
func Address(webhook, secret string, now time.Time) (string, error) {
	if secret == "" {
		return webhook, nil
	}
	u, err := url.Parse(webhook)
	if err != nil {
		return "", fmt.Errorf("dingtalk: the webhook is not a URL: %w", notify.ErrSettings) // its text is a secret
	}
	ms := strconv.FormatInt(now.UnixMilli(), 10)
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(ms + "\n" + secret))
	q := u.Query()
	q.Set("timestamp", ms)
	q.Set("sign", base64.StdEncoding.EncodeToString(h.Sum(nil)))
	u.RawQuery = q.Encode()
	return u.String(), nil
}

func skew(h http.Header, now time.Time) time.Duration {
	d, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return now.Sub(d).Round(time.Second)
}

func skewed(h http.Header, now time.Time) bool { return skew(h, now).Abs() > 30*time.Minute }

// literal keeps others' text from being a mention, a link or mark-up: DingTalk knows no escapes, so look-alikes.
var literal = strings.NewReplacer("@", "＠", "[", "［", "]", "］", "<", "＜", ">", "＞", "*", "∗", "`", "'", "!", "！")

func (c *channel) body(m notify.Message) map[string]any {
	if c.Keyword != "" {
		m.Lines = append([]string{c.Keyword}, m.Lines...)
	}
	cost := func(s string) int {
		b, _ := wire.Marshal(literal.Replace(s) + "\n\n> ")
		return len(b)
	}
	reserve := 1500
	for _, a := range m.Actions {
		reserve += len(a.URL) + 100
	}
	title, lines := notify.Fit(m.Title, m.Lines, maxBytes-reserve, cost, m.More)
	text := "#### " + literal.Replace(title)
	for _, l := range lines {
		text += "\n\n> " + literal.Replace(l)
	}
	head := notify.Cut(literal.Replace(title), 200)
	var buttons []map[string]string
	for _, a := range m.Actions {
		if a.URL != "" {
			buttons = append(buttons, map[string]string{"title": a.Text, "actionURL": a.URL})
		}
	}
	if len(buttons) > 0 {
		return map[string]any{"msgtype": "actionCard", "actionCard": map[string]any{"title": head, "text": text, "btnOrientation": "1", "btns": buttons}}
	}
	return map[string]any{"msgtype": "markdown", "markdown": map[string]any{"title": head, "text": text}, "at": map[string]any{"isAtAll": false}}
}
