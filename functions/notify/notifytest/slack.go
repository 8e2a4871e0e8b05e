package notifytest

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// Slack is one channel: chat.postMessage, chat.update, and an incoming webhook under /services/.
type Slack struct {
	Board
	Token   string
	Channel string
	Hook    string // path of the incoming webhook
}

type slackText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type slackBlock struct {
	Type     string     `json:"type"`
	Text     *slackText `json:"text"`
	Elements []struct {
		Type     string    `json:"type"`
		ActionID string    `json:"action_id"`
		Value    string    `json:"value"`
		Text     slackText `json:"text"`
	} `json:"elements"`
}

// ServeHTTP answers as Slack's Web API.
func (s *Slack) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := s.guard(w)
	if done {
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if strings.HasPrefix(r.URL.Path, "/services/") {
		if r.URL.Path != s.Hook {
			http.Error(w, "no_service", http.StatusNotFound)
			return
		}
		s.webhook(w, body)
		return
	}
	form, err := url.ParseQuery(string(body))
	switch {
	case err != nil:
		s.answer(w, "invalid_form_data", "")
	case r.Header.Get("Authorization") != "Bearer "+s.Token && form.Get("token") != s.Token:
		s.answer(w, "invalid_auth", "")
	case form.Get("channel") != s.Channel:
		s.answer(w, "channel_not_found", "")
	case s.over():
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		s.carry(w, r.URL.Path, form)
	}
}

func (s *Slack) carry(w http.ResponseWriter, path string, form url.Values) {
	m, bad := s.read(form.Get("text"), []byte(form.Get("blocks")))
	if bad != "" {
		s.problem("slack: %s", bad)
		s.answer(w, "invalid_blocks", "")
		return
	}
	switch {
	case strings.HasSuffix(path, "chat.postMessage"):
		p := s.post(m)
		s.answer(w, "", p.Ref)
	case strings.HasSuffix(path, "chat.update"):
		if !s.edit(form.Get("ts"), m) {
			s.answer(w, "message_not_found", "")
			return
		}
		s.answer(w, "", form.Get("ts"))
	default:
		s.problem("slack: method %s is not known here", path)
		s.answer(w, "unknown_method", "")
	}
}

func (s *Slack) answer(w http.ResponseWriter, errWord, ts string) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"ok": errWord == "", "error": errWord, "channel": s.Channel, "ts": ts})
}

func (s *Slack) webhook(w http.ResponseWriter, body []byte) {
	var in struct {
		Text   string          `json:"text"`
		Blocks json.RawMessage `json:"blocks"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		http.Error(w, "invalid_payload", http.StatusBadRequest)
		return
	}
	if s.over() {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	m, bad := s.read(in.Text, in.Blocks)
	if bad != "" {
		s.problem("slack: %s", bad)
		http.Error(w, "invalid_blocks", http.StatusBadRequest)
		return
	}
	s.post(m)
	fmt.Fprint(w, "ok")
}

// read checks text and blocks against Slack's limits.
func (s *Slack) read(text string, raw []byte) (Shown, string) {
	var blocks []slackBlock
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return Shown{}, "blocks are not JSON"
	}
	m := Shown{Raw: string(raw), Title: html.UnescapeString(text)}
	if text == "" || utf8.RuneCountInString(text) > 40_000 {
		return m, "no text, or too long"
	}
	if len(blocks) == 0 || len(blocks) > 50 {
		return m, fmt.Sprintf("%d blocks", len(blocks))
	}
	for n, b := range blocks {
		switch b.Type {
		case "section":
			if b.Text == nil || b.Text.Text == "" || utf8.RuneCountInString(b.Text.Text) > 3000 {
				return m, "a section without text, or over 3000 characters"
			}
			if strings.Contains(b.Text.Text, "<!") || strings.Contains(b.Text.Text, "<http") || strings.Contains(b.Text.Text, "<@") {
				return m, "a mention or a link: " + b.Text.Text
			}
			if n > 0 {
				m.Text += html.UnescapeString(b.Text.Text) + "\n"
			}
		case "actions":
			if len(b.Elements) == 0 || len(b.Elements) > 25 {
				return m, "actions without elements"
			}
			for _, e := range b.Elements {
				if e.Type != "button" || e.ActionID == "" || len(e.Value) > 2000 || e.Text.Text == "" || utf8.RuneCountInString(e.Text.Text) > 75 {
					return m, "a button that is none"
				}
				m.Buttons = append(m.Buttons, Button{Act: e.ActionID, Token: e.Value, Text: e.Text.Text})
			}
		default:
			return m, "block " + b.Type
		}
	}
	return m, ""
}
