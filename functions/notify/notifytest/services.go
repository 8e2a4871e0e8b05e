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
	"unicode/utf16"
	"unicode/utf8"
)

// Webhook is an endpoint that checks signature and CloudEvents' attributes, and keeps the newest version of a subject.
type Webhook struct {
	Board
	Secret string
}

// ServeHTTP takes an event.
func (h *Webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := h.guard(w)
	if done {
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	id, at := r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp")
	mac := hmac.New(sha256.New, []byte(h.Secret))
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	sec, err := strconv.ParseInt(at, 10, 64)
	if err != nil || h.now().Sub(time.Unix(sec, 0)).Abs() > 5*time.Minute || r.Header.Get("Webhook-Signature") != "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
		http.Error(w, "signature", http.StatusUnauthorized)
		return
	}
	if h.over() {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	var in struct {
		SpecVersion, ID, Type, Source, Subject string
		Time                                   time.Time
		Data                                   struct {
			Title string
			Lines []string
		}
	}
	if json.Unmarshal(body, &in) != nil || in.SpecVersion != "1.0" || in.ID == "" || in.Source == "" || in.Subject == "" || in.Time.IsZero() || in.ID != id {
		h.problem("webhook: not a CloudEvent: %.200s", body)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	m := Shown{Ref: in.Subject, Title: in.Data.Title, Text: strings.Join(in.Data.Lines, "\n"), Raw: string(body)}
	if !h.edit(in.Subject, m) {
		h.post(m)
	}
	w.WriteHeader(http.StatusNoContent)
}

// PagerDuty is Events v2.
type PagerDuty struct {
	Board
	Key      string
	Resolved []string
}

// ServeHTTP takes an event.
func (p *PagerDuty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := p.guard(w)
	if done {
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var in struct {
		Key     string `json:"routing_key"`
		Action  string `json:"event_action"`
		Dedup   string `json:"dedup_key"`
		Payload struct {
			Summary, Source, Severity string
			Details                   struct{ Lines []string } `json:"custom_details"`
		}
	}
	severities := map[string]bool{"critical": true, "error": true, "warning": true, "info": true}
	switch {
	case json.Unmarshal(body, &in) != nil || in.Dedup == "" || len(in.Dedup) > 255 || utf8.RuneCountInString(in.Payload.Summary) > 1024 || in.Payload.Source == "" || !severities[in.Payload.Severity]:
		p.problem("pagerduty: not an event: %.200s", body)
		w.WriteHeader(http.StatusBadRequest)
		return
	case in.Key != p.Key:
		http.Error(w, `{"status":"invalid event","message":"bad key `+in.Key+`"}`, http.StatusBadRequest)
		return
	case p.over():
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	m := Shown{Ref: in.Dedup, Title: in.Payload.Summary, Text: strings.Join(in.Payload.Details.Lines, "\n"), Raw: string(body)}
	if !p.edit(in.Dedup, m) {
		p.post(m)
	}
	if in.Action == "resolve" {
		p.Resolved = append(p.Resolved, in.Dedup)
	}
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprint(w, `{"status":"success"}`)
}

// Alertmanager takes alerts and keeps when they end.
type Alertmanager struct {
	Board
	Bearer string
	Ends   map[string]time.Time
}

// ServeHTTP takes alerts.
func (a *Alertmanager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := a.guard(w)
	if done {
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var in []struct {
		Labels, Annotations map[string]string
		StartsAt, EndsAt    time.Time
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer "+a.Bearer:
		http.Error(w, "who is "+r.Header.Get("Authorization"), http.StatusUnauthorized)
		return
	case a.over():
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case r.URL.Path != "/api/v2/alerts" || json.Unmarshal(body, &in) != nil || len(in) != 1 || in[0].Labels["alertname"] == "" || in[0].StartsAt.IsZero():
		a.problem("alertmanager: not alerts: %.200s", body)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if a.Ends == nil {
		a.Ends = map[string]time.Time{}
	}
	key := in[0].Labels["fleet"] + "/" + in[0].Labels["incident"]
	a.Ends[key] = in[0].EndsAt
	m := Shown{Ref: key, Title: in[0].Annotations["summary"], Text: in[0].Annotations["description"], Raw: string(body)}
	if !a.edit(key, m) {
		a.post(m)
	}
}

// Telegram is a bot's API for one chat.
type Telegram struct {
	Board
	Token, Chat string
}

// ServeHTTP answers as the Bot API.
func (g *Telegram) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := g.guard(w)
	if done {
		return
	}
	no := func(code int, why string, more string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"ok":false,"error_code":%d,"description":%q%s}`, code, why, more)
	}
	method, ok := strings.CutPrefix(r.URL.Path, "/bot"+g.Token+"/")
	if !ok {
		no(401, "Unauthorized", "")
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var in struct {
		Chat    string `json:"chat_id"`
		Text    string `json:"text"`
		Message int    `json:"message_id"`
		Markup  struct {
			Keys [][]struct {
				Text, URL string
				Data      string `json:"callback_data"`
			} `json:"inline_keyboard"`
		} `json:"reply_markup"`
	}
	if json.Unmarshal(body, &in) != nil || in.Text == "" || len(utf16.Encode([]rune(in.Text))) > 4096 || strings.Contains(in.Text, "@") {
		g.problem("telegram: not a message: %.200s", body)
		no(400, "Bad Request: message is too long", "")
		return
	}
	if in.Chat != g.Chat {
		no(400, "Bad Request: chat not found", "")
		return
	}
	if g.over() {
		no(429, "Too Many Requests", `,"parameters":{"retry_after":31}`)
		return
	}
	title, text, _ := strings.Cut(in.Text, "\n")
	m := Shown{Title: title, Text: text, Raw: string(body)}
	for _, row := range in.Markup.Keys {
		for _, k := range row {
			if len(k.Data) > 64 || k.Data == "" && k.URL == "" {
				g.problem("telegram: a button of %d bytes", len(k.Data))
			}
			m.Buttons = append(m.Buttons, Button{Token: k.Data, Text: k.Text, URL: k.URL})
		}
	}
	switch method {
	case "sendMessage":
		g.mu.Lock()
		id := g.next + 1
		g.mu.Unlock()
		m.Ref = strconv.Itoa(id)
		g.post(m)
		fmt.Fprintf(w, `{"ok":true,"result":{"message_id":%d}}`, id)
	case "editMessageText":
		if !g.edit(strconv.Itoa(in.Message), m) {
			no(400, "Bad Request: message to edit not found", "")
			return
		}
		fmt.Fprintf(w, `{"ok":true,"result":{"message_id":%d}}`, in.Message)
	default:
		no(404, "Not Found", "")
	}
}

// Discord is a webhook.
type Discord struct {
	Board
	Path string // "/api/webhooks/1/token"
	App  bool   // it is an application's own, and may carry buttons
}

// ServeHTTP answers as Discord.
func (d *Discord) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := d.guard(w)
	if done {
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, d.Path)
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"message":"Unknown Webhook","code":10015}`)
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var in struct {
		Content string
		Embeds  []struct{ Description string }
		Allowed *struct{ Parse []string } `json:"allowed_mentions"`

		Components []struct {
			Type       int
			Components []struct {
				Type, Style int
				Label       string
				ID          string `json:"custom_id"`
			}
		}
	}
	if json.Unmarshal(body, &in) != nil || in.Content == "" || utf8.RuneCountInString(in.Content) > 2000 || in.Allowed == nil || len(in.Allowed.Parse) > 0 || len(in.Embeds) > 1 || len(in.Embeds) == 1 && utf8.RuneCountInString(in.Embeds[0].Description) > 4096 {
		d.problem("discord: not a message: %.200s", body)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for _, row := range in.Components {
		if !d.App || row.Type != 1 || len(row.Components) == 0 || len(row.Components) > 5 {
			d.problem("discord: these buttons are not allowed here: %.200s", body)
		}
		for _, b := range row.Components {
			if b.Type != 2 || b.Style < 1 || b.Style > 4 || b.Label == "" || len(b.Label) > 80 || b.ID == "" || len(b.ID) > 100 {
				d.problem("discord: a button that it refuses: %.200s", body)
			}
		}
	}
	if d.over() {
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"message":"limited","retry_after":12.5,"global":false}`)
		return
	}
	m := Shown{Title: unescape(in.Content), Raw: string(body)}
	if len(in.Embeds) > 0 {
		m.Text = unescape(in.Embeds[0].Description)
	}
	if ref, ok := strings.CutPrefix(rest, "/messages/"); ok {
		if !d.edit(ref, m) {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message":"Unknown Message","code":10008}`)
			return
		}
		fmt.Fprintf(w, `{"id":%q}`, ref)
		return
	}
	fmt.Fprintf(w, `{"id":%q}`, d.post(m).Ref)
}

func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return strings.Trim(b.String(), "*")
}
