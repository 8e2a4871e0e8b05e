package chatops_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"lowtide/functions/chatops"
	"lowtide/shared/click"
)

// Every door is given what anybody may send: signed rightly, so that the parsers behind the signature are reached too,
// and not. Nothing may panic, and nothing that was not signed may be acted on.
func FuzzDoors(f *testing.F) {
	b := newBench(f)
	token := b.token(click.Approve)
	f.Add("pause train", token, []byte(`{"type":"block_actions"}`))
	f.Add("budget train 1e99 USD", "y.p7.h.1.x", []byte(`{"update_id":1,"message":{"text":"x"}}`))
	f.Add("silence * 2h", "", []byte(`{"encrypt":"AAAA"}`))
	f.Add("status", "", []byte(`{"id":"1","type":3,"user":{"id":"1"},"data":{"custom_id":"y.p7.h.1.x"}}`))
	f.Add("\x00", "....", []byte(`{"version":"4","groupKey":"g","status":"firing"}`))
	f.Fuzz(func(t *testing.T, text, token string, doc []byte) {
		b := newDiscord(t)
		doors := []string{"/slack", "/feishu", "/dingtalk", "/telegram", "/discord", "/decide", "/alertmanager", "/events"}
		for _, d := range doors {
			b.send(d, http.Header{}, string(doc))
		}
		if len(b.said) > 0 && !signedLink(doc) {
			t.Fatalf("said %v without a signature", b.facts())
		}
		b.slack("UROOT", text)
		b.press("UADA", token)
		raw := "payload=" + url.QueryEscape(string(doc))
		b.send("/slack", slackHead(b.now, raw), raw)
		sealed := seal(string(doc))
		b.send("/feishu", larkHead("1790000000", sealed), sealed)
		b.send("/telegram", http.Header{"X-Telegram-Bot-Api-Secret-Token": {key}}, string(doc))
		b.send("/discord", discordHead(b.now, string(doc)), string(doc))
		bearer := http.Header{"Authorization": {"Bearer " + key}}
		b.send("/alertmanager", bearer, string(doc))
		b.send("/events", bearer, string(doc))
	})
}

func signedLink(doc []byte) bool {
	form, err := url.ParseQuery(string(doc))
	if err != nil {
		return false
	}
	_, err = click.Open([]byte(key), "f", form.Get("t"))
	return err == nil
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte("people: {ada: {role: viewer}}"))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_, _ = chatops.Parse(text, func(string) (string, bool) { return "x", true })
	})
}

func FuzzClick(f *testing.F) {
	f.Add("y.p7.h.1.x")
	f.Fuzz(func(t *testing.T, token string) {
		if c, err := click.Open([]byte(key), "f", token); err == nil {
			if again := c.Sign([]byte(key), "f"); again != token {
				t.Errorf("%q opens, and is signed again as %q", token, again)
			}
			if c.Expires.Before(time.Unix(0, 0)) {
				t.Errorf("%q expires before time", token)
			}
		}
	})
}
