// Package telegram shows incidents in a Telegram chat: one message each, changed in place, with buttons.
package telegram

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"lowtide/functions/notify"
	"lowtide/functions/notify/wire"
)

// Settings name the chat.
type Settings struct {
	Token string `yaml:"token"` // of the bot
	Chat  string `yaml:"chat"`
	API   string `yaml:"api"` // "": Telegram's
}

// Limits of the Bot API: 4096 UTF-16 units a message, 64 bytes behind a button.
const (
	maxText   = 4096
	maxButton = 64
)

type channel struct {
	Settings
	wire wire.Client
}

// New makes the channel. h is nil but in tests.
func New(s Settings, h *http.Client) (notify.Channel, error) {
	if s.Token == "" || s.Chat == "" {
		return nil, errors.New("telegram: give token and chat")
	}
	if s.API == "" {
		s.API = "https://api.telegram.org"
	}
	return &channel{s, wire.Client{HTTP: h, Secrets: []string{s.Token}}}, nil
}

// Traits: a group takes 20 a minute.
func (c *channel) Traits() notify.Traits {
	return notify.Traits{Edits: true, Buttons: true, Links: true, PerMinute: 15, Burst: 2, Every: 30 * time.Second}
}

type answer struct {
	OK          bool   `json:"ok"`
	Code        int    `json:"error_code"`
	Description string `json:"description"`
	Parameters  struct {
		RetryAfter int `json:"retry_after"`
	} `json:"parameters"`
	Result struct {
		ID int `json:"message_id"`
	} `json:"result"`
}

// Send posts m, or changes the message that ref names.
func (c *channel) Send(ctx context.Context, m notify.Message, ref string) (string, error) {
	method, body := "sendMessage", map[string]any{
		"chat_id": c.Chat, "text": text(m), "link_preview_options": map[string]bool{"is_disabled": true},
	}
	if keys := keyboard(m.Actions); len(keys) > 0 {
		body["reply_markup"] = map[string]any{"inline_keyboard": []any{keys}}
	}
	if ref != "" {
		id, err := strconv.Atoi(ref)
		if err != nil {
			return "", notify.ErrGone
		}
		method, body["message_id"] = "editMessageText", id
	}
	var a answer
	r, err := c.wire.JSON(ctx, http.MethodPost, c.API+"/bot"+c.Token+"/"+method, nil, body, &a)
	switch {
	case err == nil && a.OK:
		if ref == "" {
			ref = strconv.Itoa(a.Result.ID)
		}
		return ref, nil
	case a.Code == http.StatusTooManyRequests:
		return ref, notify.Wait{For: time.Duration(max(a.Parameters.RetryAfter, 1)) * time.Second}
	case strings.Contains(a.Description, "message is not modified"):
		return ref, nil
	case strings.Contains(a.Description, "message to edit not found"), strings.Contains(a.Description, "message can't be edited"):
		return ref, fmt.Errorf("telegram: %w", notify.ErrGone)
	case err == nil:
		err = r.Refused("not ok")
	}
	return ref, fmt.Errorf("telegram: %w", err)
}

// text is sent without a parse mode: nothing in it is mark-up. '@' alone would mention people.
func text(m notify.Message) string {
	literal := strings.NewReplacer("@", "＠")
	cost := func(s string) int { return len(utf16.Encode([]rune(literal.Replace(s)))) + 1 }
	title, lines := notify.Fit(m.Title, m.Lines, maxText, cost, m.More)
	return literal.Replace(strings.Join(append([]string{title}, lines...), "\n"))
}

func keyboard(actions []notify.Action) (keys []any) {
	for _, a := range actions {
		switch {
		case a.Token != "" && len(a.Token) <= maxButton:
			keys = append(keys, map[string]string{"text": a.Text, "callback_data": a.Token})
		case a.URL != "":
			keys = append(keys, map[string]string{"text": a.Text, "url": a.URL})
		}
	}
	return keys
}
