package notifytest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// DingTalk is a group robot: 20 a minute, then mute for ten minutes, unless Limit says otherwise.
type DingTalk struct {
	Board
	Token, Secret, Keyword string
}

// ServeHTTP answers as DingTalk: HTTP 200 whatever happened.
func (d *DingTalk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := d.guard(w)
	if done {
		return
	}
	if d.Per == 0 {
		d.Limit, d.Per, d.Block = 20, time.Minute, 10*time.Minute
	}
	w.Header().Set("Date", d.now().UTC().Format(http.TimeFormat))
	say := func(code int) { fmt.Fprintf(w, `{"errcode":%d,"errmsg":"msg"}`, code) }
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var in struct {
		MsgType  string `json:"msgtype"`
		Markdown struct {
			Title, Text string
		} `json:"markdown"`
		Card struct {
			Title, Text string
			Btns        []struct{ Title, ActionURL string }
		} `json:"actionCard"`
		At struct {
			All bool `json:"isAtAll"`
		} `json:"at"`
	}
	switch {
	case r.URL.Query().Get("access_token") != d.Token:
		say(300001)
	case !d.signed(r.URL.Query().Get("timestamp"), r.URL.Query().Get("sign")):
		say(310000)
	case d.Keyword != "" && !strings.Contains(string(body), d.Keyword):
		say(310000)
	case len(body) > 20_000:
		d.problem("dingtalk: %d bytes of 20000", len(body))
		say(460101)
	case json.Unmarshal(body, &in) != nil || in.MsgType != "markdown" && in.MsgType != "actionCard" || in.At.All:
		d.problem("dingtalk: not a message: %.200s", body)
		say(400013)
	case d.over():
		say(130101)
	default:
		m := Shown{Title: in.Markdown.Title + in.Card.Title, Text: in.Markdown.Text + in.Card.Text, Raw: string(body)}
		for _, b := range in.Card.Btns {
			m.Buttons = append(m.Buttons, Button{Text: b.Title, URL: b.ActionURL})
		}
		if m.Title == "" || m.Text == "" || strings.Contains(m.Text, "@") || strings.Contains(m.Text, "](") {
			d.problem("dingtalk: no title, no text, a mention or a link: %.200s", body)
		}
		d.post(m)
		say(0)
	}
}

func (d *DingTalk) signed(timestamp, sign string) bool {
	if d.Secret == "" {
		return true
	}
	ms, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || d.now().Sub(time.UnixMilli(ms)).Abs() > time.Hour {
		return false
	}
	h := hmac.New(sha256.New, []byte(d.Secret))
	h.Write([]byte(timestamp + "\n" + d.Secret))
	return base64.StdEncoding.EncodeToString(h.Sum(nil)) == sign
}

// WeCom is a group robot: 20 a minute unless Limit says otherwise.
type WeCom struct {
	Board
	Key string
}

// ServeHTTP answers as WeCom: HTTP 200 whatever happened.
func (c *WeCom) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := c.guard(w)
	if done {
		return
	}
	if c.Per == 0 {
		c.Limit, c.Per = 20, time.Minute
	}
	say := func(code int) { fmt.Fprintf(w, `{"errcode":%d,"errmsg":"msg"}`, code) }
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var in struct {
		MsgType  string `json:"msgtype"`
		Markdown struct{ Content string }
	}
	switch {
	case r.URL.Query().Get("key") != c.Key:
		say(93000)
	case json.Unmarshal(body, &in) != nil || in.MsgType != "markdown" || in.Markdown.Content == "":
		c.problem("wecom: not a message: %.200s", body)
		say(40008)
	case len(in.Markdown.Content) > 4096:
		c.problem("wecom: %d bytes of 4096", len(in.Markdown.Content))
		say(40058)
	case strings.ContainsAny(in.Markdown.Content, "<@"):
		c.problem("wecom: a mention or a tag: %.200s", in.Markdown.Content)
		say(40058)
	case c.over():
		say(45009)
	default:
		title, text, _ := strings.Cut(in.Markdown.Content, "\n")
		c.post(Shown{Title: strings.Trim(title, "*"), Text: text, Raw: in.Markdown.Content})
		say(0)
	}
}

// Teams is a Workflows webhook; it answers 202.
type Teams struct {
	Board
	Path string
}

// ServeHTTP answers as a workflow.
func (t *Teams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := t.guard(w)
	if done {
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var in struct {
		Type        string
		Attachments []struct {
			ContentType string
			Content     struct {
				Type    string
				Version string
				Body    []struct {
					Type    string
					Inlines []struct{ Type, Text string }
				}
				Actions []struct{ Type, Title, URL string }
			}
		}
	}
	switch {
	case r.URL.Path != t.Path:
		http.Error(w, "no such workflow "+r.URL.RequestURI(), http.StatusUnauthorized)
		return
	case t.over():
		w.Header().Set("Retry-After", "17")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case len(body) > 28_000:
		t.problem("teams: %d bytes of 28000", len(body))
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	case json.Unmarshal(body, &in) != nil || in.Type != "message" || len(in.Attachments) != 1 || in.Attachments[0].ContentType != "application/vnd.microsoft.card.adaptive" || in.Attachments[0].Content.Type != "AdaptiveCard":
		t.problem("teams: not a card: %.200s", body)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	m := Shown{Raw: string(body)}
	for n, b := range in.Attachments[0].Content.Body {
		if b.Type != "RichTextBlock" || len(b.Inlines) != 1 || b.Inlines[0].Type != "TextRun" {
			t.problem("teams: %s is not literal text", b.Type)
			continue
		}
		if n == 0 {
			m.Title = b.Inlines[0].Text
		} else {
			m.Text += b.Inlines[0].Text + "\n"
		}
	}
	for _, a := range in.Attachments[0].Content.Actions {
		m.Buttons = append(m.Buttons, Button{Text: a.Title, URL: a.URL})
	}
	t.post(m)
	w.WriteHeader(http.StatusAccepted)
}
