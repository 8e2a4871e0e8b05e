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

// Feishu is one chat: an app bot's API, and a custom bot under /open-apis/bot/v2/hook/.
type Feishu struct {
	Board
	App, Secret, Chat string
	Hook              string // last part of the custom bot's path
	HookSecret        string // "": no signature is asked for
	Keyword           string
	OldForm           bool // the custom bot answers StatusCode

	tokens int
	valid  string
	uuids  map[string]string
}

// Revoke makes the token that is out worthless.
func (f *Feishu) Revoke() { f.valid = "" }

// ServeHTTP answers as Feishu does: HTTP 200 whatever happened.
func (f *Feishu) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := f.guard(w)
	if done {
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if len(body) > 30<<10 {
		f.problem("feishu: %d bytes", len(body))
		f.answer(w, 230025, nil)
		return
	}
	switch p := r.URL.Path; {
	case strings.HasPrefix(p, "/open-apis/bot/v2/hook/"):
		f.robot(w, strings.TrimPrefix(p, "/open-apis/bot/v2/hook/"), body)
	case p == "/open-apis/auth/v3/tenant_access_token/internal":
		f.login(w, body)
	case f.valid == "" || r.Header.Get("Authorization") != "Bearer "+f.valid:
		w.WriteHeader(http.StatusBadRequest)
		f.answer(w, 99991663, nil)
	case f.over():
		w.WriteHeader(http.StatusBadRequest)
		f.answer(w, 230020, nil)
	case p == "/open-apis/im/v1/messages" && r.Method == http.MethodPost && r.URL.Query().Get("receive_id_type") == "chat_id":
		f.create(w, body)
	case strings.HasPrefix(p, "/open-apis/im/v1/messages/") && r.Method == http.MethodPatch:
		f.change(w, strings.TrimPrefix(p, "/open-apis/im/v1/messages/"), body)
	default:
		f.problem("feishu: %s %s is not known here", r.Method, p)
		f.answer(w, 99991400, nil)
	}
}

func (f *Feishu) answer(w http.ResponseWriter, code int, more map[string]any) {
	out := map[string]any{"code": code, "msg": "msg"}
	for k, v := range more {
		out[k] = v
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (f *Feishu) login(w http.ResponseWriter, body []byte) {
	var in struct {
		App    string `json:"app_id"`
		Secret string `json:"app_secret"`
	}
	if json.Unmarshal(body, &in) != nil || in.App != f.App || in.Secret != f.Secret {
		f.answer(w, 10003, nil)
		return
	}
	f.tokens++
	f.valid = fmt.Sprintf("t-token-%d", f.tokens)
	f.answer(w, 0, map[string]any{"tenant_access_token": f.valid, "expire": 7200})
}

func (f *Feishu) create(w http.ResponseWriter, body []byte) {
	var in struct {
		ReceiveID string `json:"receive_id"`
		MsgType   string `json:"msg_type"`
		Content   string `json:"content"`
		UUID      string `json:"uuid"`
	}
	if json.Unmarshal(body, &in) != nil || in.MsgType != "interactive" || len(in.UUID) > 50 {
		f.problem("feishu: not a message: %.200s", body)
		f.answer(w, 230001, nil)
		return
	}
	if in.ReceiveID != f.Chat {
		f.answer(w, 230002, nil)
		return
	}
	if f.uuids == nil {
		f.uuids = map[string]string{}
	}
	if ref := f.uuids[in.UUID]; ref != "" {
		f.answer(w, 0, map[string]any{"data": map[string]any{"message_id": ref}})
		return
	}
	m, bad := f.card([]byte(in.Content))
	if bad != "" {
		f.problem("feishu: %s", bad)
		f.answer(w, 230099, nil)
		return
	}
	p := f.post(m)
	f.uuids[in.UUID] = p.Ref
	f.answer(w, 0, map[string]any{"data": map[string]any{"message_id": p.Ref}})
}

func (f *Feishu) change(w http.ResponseWriter, ref string, body []byte) {
	var in struct {
		Content string `json:"content"`
	}
	if json.Unmarshal(body, &in) != nil {
		f.answer(w, 230001, nil)
		return
	}
	m, bad := f.card([]byte(in.Content))
	switch {
	case bad != "":
		f.problem("feishu: %s", bad)
		f.answer(w, 230099, nil)
	case !f.edit(ref, m):
		f.answer(w, 230110, nil)
	default:
		f.answer(w, 0, nil)
	}
}

func (f *Feishu) robot(w http.ResponseWriter, hook string, body []byte) {
	var in struct {
		Timestamp string          `json:"timestamp"`
		Sign      string          `json:"sign"`
		MsgType   string          `json:"msg_type"`
		Card      json.RawMessage `json:"card"`
	}
	switch {
	case hook != f.Hook:
		f.answer(w, 19001, nil)
	case len(body) > 20_000:
		f.problem("feishu: %d bytes of 20000", len(body))
		f.answer(w, 9499, nil)
	case json.Unmarshal(body, &in) != nil || in.MsgType != "interactive":
		f.problem("feishu: not a message: %.200s", body)
		f.answer(w, 9499, nil)
	case !f.signed(in.Timestamp, in.Sign):
		f.answer(w, 19021, nil)
	case f.Keyword != "" && !strings.Contains(string(body), f.Keyword):
		f.answer(w, 19024, nil)
	case f.over():
		f.answer(w, 11232, nil)
	default:
		m, bad := f.card(in.Card)
		if bad != "" {
			f.problem("feishu: %s", bad)
			f.answer(w, 11246, nil)
			return
		}
		f.post(m)
		if f.OldForm {
			fmt.Fprint(w, `{"StatusCode":0,"StatusMessage":"success"}`)
			return
		}
		f.answer(w, 0, nil)
	}
}

func (f *Feishu) signed(timestamp, sign string) bool {
	if f.HookSecret == "" {
		return true
	}
	sec, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || f.now().Sub(time.Unix(sec, 0)).Abs() > time.Hour {
		return false
	}
	h := hmac.New(sha256.New, []byte(timestamp+"\n"+f.HookSecret))
	return base64.StdEncoding.EncodeToString(h.Sum(nil)) == sign
}

// card checks a card: a header, and elements of kinds that mention nobody.
func (f *Feishu) card(raw []byte) (Shown, string) {
	type text struct {
		Tag     string `json:"tag"`
		Content string `json:"content"`
	}
	var in struct {
		Config struct {
			Multi bool `json:"update_multi"`
		} `json:"config"`
		Header struct {
			Title    text   `json:"title"`
			Template string `json:"template"`
		} `json:"header"`
		Elements []struct {
			Tag     string `json:"tag"`
			Text    text   `json:"text"`
			Actions []struct {
				Tag   string            `json:"tag"`
				Text  text              `json:"text"`
				Value map[string]string `json:"value"`
				URL   string            `json:"url"`
			} `json:"actions"`
		} `json:"elements"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return Shown{}, "a card that is not JSON"
	}
	m := Shown{Title: in.Header.Title.Content, Raw: string(raw)}
	if in.Header.Title.Tag != "plain_text" || m.Title == "" || len(in.Elements) == 0 || !in.Config.Multi {
		return m, "a card without title, elements or update_multi"
	}
	for _, e := range in.Elements {
		switch e.Tag {
		case "div":
			if e.Text.Tag != "plain_text" || e.Text.Content == "" {
				return m, "a div that is not plain text"
			}
			m.Text += e.Text.Content + "\n"
		case "action":
			for _, a := range e.Actions {
				if a.Tag != "button" || a.Text.Content == "" {
					return m, "an action that is no button"
				}
				m.Buttons = append(m.Buttons, Button{Act: a.Value["act"], Token: a.Value["token"], Text: a.Text.Content, URL: a.URL})
			}
		default:
			return m, "element " + e.Tag
		}
	}
	return m, ""
}
