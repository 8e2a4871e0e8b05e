package chatops

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
)

// dingtalk takes messages to an app's robot. DingTalk signs the time alone and not the body (open.dingtalk.com, robot
// callbacks): TLS has to keep the rest, and each message is taken once by its id.
func (d *desk) dingtalk(w http.ResponseWriter, r *http.Request, body []byte) {
	ts := r.Header.Get("Timestamp")
	mac := hmac.New(sha256.New, []byte(d.DingTalk.Secret))
	mac.Write([]byte(ts + "\n" + d.DingTalk.Secret))
	if !hmac.Equal([]byte(base64.StdEncoding.EncodeToString(mac.Sum(nil))), []byte(r.Header.Get("Sign"))) {
		refuse(w, errSignature)
		return
	}
	if err := d.fresh(ts); err != nil {
		refuse(w, err)
		return
	}
	var in struct {
		ID    string `json:"msgId"`
		Staff string `json:"senderStaffId"`
		Text  struct {
			Content string `json:"content"`
		} `json:"text"`
	}
	if json.Unmarshal(body, &in) != nil || in.ID == "" || in.Staff == "" {
		refuse(w, errBroken)
		return
	}
	if err := d.first(r.Context(), "dingtalk", in.ID); err != nil {
		refuse(w, err)
		return
	}
	text := d.command(r.Context(), request{"dingtalk", in.Staff, in.ID}, in.Text.Content)
	answer(w, map[string]any{"msgtype": "text", "text": map[string]string{"content": text}})
}
