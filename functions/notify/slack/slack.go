// Package slack shows incidents in a Slack channel: with a bot token one message each, changed in place, with buttons;
// with an incoming webhook, which cannot change what it sent, as messages that follow each other.
//
// What others wrote (names of jobs, machines' tags) is shown as it is: it mentions nobody and links nowhere.
package slack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/slack-go/slack"

	"lowtide/functions/notify"
	"lowtide/functions/notify/wire"
)

// Settings name the channel. Either Token and Channel, or Webhook.
type Settings struct {
	Token   string `yaml:"token"`   // of a bot with chat:write
	Channel string `yaml:"channel"` // its id, "C0123"
	Webhook string `yaml:"webhook"` // an incoming webhook's URL
	API     string `yaml:"api"`     // of a stand-in; "": Slack's
}

// Slack's limits (docs.slack.dev, rate limits and block kit).
const (
	maxSection = 3000 // characters
	maxPlain   = 4000
)

type channel struct {
	Settings
	bot  *slack.Client
	wire wire.Client
}

// New makes the channel. h is nil but in tests.
func New(s Settings, h *http.Client) (notify.Channel, error) {
	c := &channel{Settings: s, wire: wire.Client{HTTP: h, Secrets: []string{s.Token}}}
	switch {
	case s.Webhook != "" && s.Token == "" && s.Channel == "":
		return c, nil
	case s.Webhook != "" || s.Token == "" || s.Channel == "":
		return nil, errors.New("slack: give token and channel, or webhook alone")
	}
	var opts []slack.Option
	if h != nil {
		opts = append(opts, slack.OptionHTTPClient(h))
	}
	if s.API != "" {
		opts = append(opts, slack.OptionAPIURL(s.API))
	}
	c.bot = slack.New(s.Token, opts...)
	return c, nil
}

// Traits: a bot changes its messages; Slack takes one message a second and channel.
func (c *channel) Traits() notify.Traits {
	bot := c.bot != nil
	return notify.Traits{Edits: bot, Buttons: bot, Links: true, PerMinute: 50, Burst: 3, Every: 30 * time.Second}
}

// Send posts m, or changes the message that ref names.
func (c *channel) Send(ctx context.Context, m notify.Message, ref string) (string, error) {
	title, blocks := layout(m)
	if c.bot == nil {
		r, err := c.wire.JSON(ctx, http.MethodPost, c.Webhook, nil, slack.WebhookMessage{Text: title, Blocks: &slack.Blocks{BlockSet: blocks}}, nil)
		if err == nil && strings.TrimSpace(string(r.Body)) != "ok" {
			err = r.Refused("an answer that is not ok")
		}
		return "", wrap(err)
	}
	opts := []slack.MsgOption{
		slack.MsgOptionText(title, false), slack.MsgOptionBlocks(blocks...), slack.MsgOptionDisableLinkUnfurl(), slack.MsgOptionDisableMediaUnfurl(),
	}
	var err error
	if ref == "" {
		_, ref, err = c.bot.PostMessageContext(ctx, c.Channel, opts...)
	} else {
		_, ref, _, err = c.bot.UpdateMessageContext(ctx, c.Channel, ref, opts...)
	}
	if err != nil {
		return "", c.meaning(err)
	}
	return ref, nil
}

// layout is the title for notifications, and the blocks.
func layout(m notify.Message) (string, []slack.Block) {
	cost := func(s string) int { return utf8.RuneCountInString(Escape(s)) + 1 }
	title, _ := notify.Fit(m.Title, nil, maxSection-2, cost, m.More)
	_, lines := notify.Fit("", m.Lines, maxSection, cost, m.More)
	blocks := []slack.Block{section("*" + Escape(title) + "*")}
	if len(lines) > 0 {
		blocks = append(blocks, section(Escape(strings.Join(lines, "\n"))))
	}
	var buttons []slack.BlockElement
	for _, a := range m.Actions {
		b := slack.NewButtonBlockElement(a.Act, a.Token, slack.NewTextBlockObject(slack.PlainTextType, a.Text, false, false))
		switch {
		case a.Act == "approve":
			b.Style = slack.StylePrimary
		case a.Act == "deny":
			b.Style = slack.StyleDanger
		}
		buttons = append(buttons, b)
	}
	if len(buttons) > 0 {
		blocks = append(blocks, slack.NewActionBlock("decide", buttons...))
	}
	plain, _ := notify.Fit(m.Title, nil, maxPlain, cost, m.More)
	return Escape(plain), blocks
}

// section is text in which nothing is made a mention or link of its own accord.
func section(text string) slack.Block {
	t := slack.NewTextBlockObject(slack.MarkdownType, text, false, true)
	return slack.NewSectionBlock(t, nil, nil)
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "*", "∗", "`", "'", "~", "∼")

// Escape makes others' text literal: Slack's three escapes, and look-alikes for what would become bold, code or struck.
func Escape(s string) string { return escaper.Replace(s) }

// For good, or gone: Slack's words for it (docs.slack.dev, chat.postMessage and chat.update, errors).
var (
	forGood = []string{
		"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "channel_not_found", "not_in_channel",
		"is_archived", "missing_scope", "msg_too_long", "invalid_blocks", "invalid_arguments", "restricted_action", "no_permission",
	}
	gone = []string{"message_not_found", "cant_update_message", "edit_window_closed"}
)

// meaning sorts what slack-go returns.
func (c *channel) meaning(err error) error {
	var limited *slack.RateLimitedError
	if errors.As(err, &limited) {
		return notify.Wait{For: max(limited.RetryAfter, time.Second)}
	}
	said := c.wire.Said(err.Error(), nil)
	var answer slack.SlackErrorResponse
	if errors.As(err, &answer) {
		for _, word := range gone {
			if answer.Err == word {
				return fmt.Errorf("slack: %s: %w", said, notify.ErrGone)
			}
		}
		for _, word := range forGood {
			if answer.Err == word {
				return fmt.Errorf("slack: %s: %w", said, notify.ErrSettings)
			}
		}
	}
	return fmt.Errorf("slack: %s", said)
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("slack: %w", err)
}
