// Package wecom shows incidents through a WeCom group robot, which only sends: messages follow each other.
//
// HTTP 200 is no success here: errcode in the body is. Sizes are counted in bytes, three to a Chinese character.
package wecom

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

// Settings name the robot.
type Settings struct {
	Webhook string `yaml:"webhook"` // with its key
}

// maxBytes is the largest markdown (developer.work.weixin.qq.com, path 91770: 4,096 bytes).
const maxBytes = 4096

type channel struct {
	Settings
	wire wire.Client
}

// New makes the channel. h is nil but in tests.
func New(s Settings, h *http.Client) (notify.Channel, error) {
	if s.Webhook == "" {
		return nil, errors.New("wecom: give webhook")
	}
	return &channel{s, wire.Client{HTTP: h}}, nil
}

// Traits: 15 of the 20 a minute.
func (c *channel) Traits() notify.Traits {
	return notify.Traits{Links: true, PerMinute: 15, Burst: 2}
}

// Send posts m; a reference means nothing here.
func (c *channel) Send(ctx context.Context, m notify.Message, _ string) (string, error) {
	var a struct {
		Code *int `json:"errcode"`
	}
	body := map[string]any{"msgtype": "markdown", "markdown": map[string]string{"content": content(m)}}
	r, err := c.wire.JSON(ctx, http.MethodPost, c.Webhook, nil, body, &a)
	switch {
	case a.Code == nil && err == nil:
		err = r.Refused("an answer without errcode")
	case a.Code == nil:
	case *a.Code == 0 && err == nil:
		return "", nil
	case *a.Code == 45009, *a.Code == 45033: // too many
		return "", notify.Wait{For: time.Minute}
	case *a.Code == 93000, *a.Code == 93008, *a.Code == 40008, *a.Code == 40058, *a.Code == 44004, *a.Code == 40001:
		err = r.For("errcode " + strconv.Itoa(*a.Code))
	case *a.Code != 0:
		err = r.Refused("errcode " + strconv.Itoa(*a.Code))
	}
	return "", fmt.Errorf("wecom: %w", err)
}

// literal keeps others' text from being a mention, a link or mark-up; WeCom knows no escapes, so look-alikes.
var literal = strings.NewReplacer("<", "＜", ">", "＞", "[", "［", "]", "］", "@", "＠", "*", "∗", "`", "'")

func content(m notify.Message) string {
	const head, quote = "**", "\n> "
	cost := func(s string) int { return len(literal.Replace(s)) + len(quote) }
	var links strings.Builder
	for _, a := range m.Actions {
		if a.URL != "" {
			fmt.Fprintf(&links, "\n[%s](%s)", a.Text, a.URL)
		}
	}
	title, lines := notify.Fit(m.Title, m.Lines, maxBytes-2*len(head)-links.Len(), cost, m.More)
	var b strings.Builder
	b.WriteString(head + literal.Replace(title) + head)
	for _, l := range lines {
		b.WriteString(quote + literal.Replace(l))
	}
	return b.String() + links.String()
}
