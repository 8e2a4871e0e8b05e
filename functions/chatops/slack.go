package chatops

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
)

// slack takes slash commands and buttons. Both come as forms, which are read from the bytes whose signature was
// checked.
func (d *desk) slack(w http.ResponseWriter, r *http.Request, body []byte) {
	if err := d.verifySlack(r.Header, body); err != nil {
		refuse(w, err)
		return
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		refuse(w, errBroken)
		return
	}
	if err := d.first(r.Context(), "slack", r.Header.Get("X-Slack-Signature")); err != nil {
		refuse(w, err)
		return
	}
	if raw := form.Get("payload"); raw != "" {
		d.slackButton(w, r, []byte(raw))
		return
	}
	user, id := form.Get("user_id"), form.Get("trigger_id")
	if user == "" || form.Get("command") == "" {
		refuse(w, errBroken)
		return
	}
	answerSlack(w, d.command(r.Context(), request{"slack", user, id + r.Header.Get("X-Slack-Signature")}, form.Get("text")))
}

// command reads and carries out a text.
func (d *desk) command(ctx context.Context, r request, text string) string {
	o, err := parse(text)
	if err != nil {
		return err.Error()
	}
	return d.take(ctx, r, o)
}

// verifySlack: docs.slack.dev, verifying requests from Slack.
func (d *desk) verifySlack(h http.Header, body []byte) error {
	ts := h.Get("X-Slack-Request-Timestamp")
	mac := hmac.New(sha256.New, []byte(d.Slack.Secret))
	mac.Write([]byte("v0:" + ts + ":"))
	mac.Write(body)
	if !hmac.Equal([]byte("v0="+hex.EncodeToString(mac.Sum(nil))), []byte(h.Get("X-Slack-Signature"))) {
		return errSignature
	}
	return d.fresh(ts)
}

func (d *desk) slackButton(w http.ResponseWriter, r *http.Request, raw []byte) {
	var in struct {
		Type string `json:"type"`
		User struct {
			ID string `json:"id"`
		} `json:"user"`
		Actions []struct {
			Value string `json:"value"`
			TS    string `json:"action_ts"`
		} `json:"actions"`
		ResponseURL string `json:"response_url"`
	}
	if json.Unmarshal(raw, &in) != nil || in.Type != "block_actions" || in.User.ID == "" || len(in.Actions) != 1 {
		refuse(w, errBroken)
		return
	}
	text := d.click(r.Context(), request{"slack", in.User.ID, in.Actions[0].TS + in.Actions[0].Value}, in.Actions[0].Value)
	d.respondSlack(r.Context(), in.ResponseURL, text) // the message itself is changed by notify, when the fact is heard
	w.WriteHeader(http.StatusOK)
}

// click carries out what a button holds.
func (d *desk) click(ctx context.Context, r request, token string) string {
	o, err := d.pressed(token)
	if err != nil {
		return d.lang("nothing is changed: ", "未生效：") + err.Error()
	}
	return d.take(ctx, r, o)
}

// respondSlack answers where Slack said. Only Slack's own host is spoken to; what does not arrive is shown by the
// changed message.
func (d *desk) respondSlack(ctx context.Context, address, text string) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Host != "hooks.slack.com" {
		return
	}
	body, err := json.Marshal(slackAnswer(text))
	if err != nil {
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if res, err := d.HTTP.Do(req); err == nil {
		_ = res.Body.Close()
	}
}

// literal is Slack's escapes for others' text.
var literal = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

func slackAnswer(text string) map[string]any {
	return map[string]any{"response_type": "ephemeral", "replace_original": false, "text": literal.Replace(text)}
}

func answerSlack(w http.ResponseWriter, text string) { answer(w, slackAnswer(text)) }

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(v)
}
