package chatops_test

import (
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/shared/click"
)

// discordKey is the application's, made from a fixed seed.
var discordKey = ed25519.NewKeyFromSeed([]byte("0123456789abcdef0123456789abcdef"))

func discordHead(at time.Time, body string) http.Header {
	ts := strconv.FormatInt(at.Unix(), 10)
	return http.Header{"X-Signature-Timestamp": {ts}, "X-Signature-Ed25519": {hex.EncodeToString(ed25519.Sign(discordKey, []byte(ts+body)))}}
}

func newDiscord(t testing.TB) *bench {
	b := newBench(t)
	b.cfg.Discord.PublicKey = hex.EncodeToString(discordKey.Public().(ed25519.PublicKey))
	b.cfg.People["ada"].Discord = "80351110224678912"
	b.open()
	return b
}

// discord sends one interaction and returns the status and the words of the answer.
func (b *bench) discord(head http.Header, body string) (int, string) {
	w := b.send("/discord", head, body)
	var out struct {
		Type int
		Data struct {
			Content string
			Flags   int
		}
	}
	if w.Code == http.StatusOK && (json.Unmarshal(w.Body.Bytes(), &out) != nil || out.Type != 1 && (out.Type != 4 || out.Data.Flags != 64)) {
		b.t.Errorf("answered %s", w.Body)
	}
	return w.Code, out.Data.Content
}

func button(id int, user, token string) string {
	return fmt.Sprintf(`{"id":"%d","type":3,"member":{"user":{"id":"%s"}},"data":{"component_type":2,"custom_id":"%s"}}`, id, user, token)
}

func TestDiscordsButtonsApproveOnceAndForgeriesChangeNothing(t *testing.T) {
	b := newDiscord(t)
	if code, _ := b.discord(discordHead(b.now, `{"id":"1","type":1}`), `{"id":"1","type":1}`); code != http.StatusOK {
		t.Errorf("the ping is answered %d", code)
	}
	body := button(2, "80351110224678912", b.token(click.Approve))
	if len(b.token(click.Approve)) > 100 {
		t.Error("a token does not fit behind a button")
	}
	late := discordHead(b.now.Add(-20*time.Minute), body)
	forged := discordHead(b.now, body)
	forged.Set("X-Signature-Ed25519", strings.Repeat("0", 128))
	other := discordHead(b.now, body+" ")
	for name, head := range map[string]http.Header{"late": late, "early": discordHead(b.now.Add(20*time.Minute), body), "forged": forged, "of another body": other, "unsigned": {}} {
		if code, _ := b.discord(head, body); code != http.StatusUnauthorized {
			t.Errorf("%s: answered %d, want 401", name, code)
		}
	}
	if len(b.said) > 0 {
		t.Fatalf("said %v", b.facts())
	}
	if code, text := b.discord(discordHead(b.now, body), body); code != http.StatusOK || !strings.HasPrefix(text, "approved: p3.2xlarge spot") {
		t.Errorf("answered %d %q", code, text)
	}
	if code, _ := b.discord(discordHead(b.now, body), body); code != http.StatusConflict {
		t.Errorf("the same again is answered %d", code)
	}
	approved := 0
	for _, e := range b.said {
		if f, ok := e.Data.(events.PlanApproved); ok {
			approved++
			if f.By != "ada" || f.Hash != b.plan.Hash() {
				t.Errorf("approved %+v", f)
			}
		}
	}
	if approved != 1 {
		t.Errorf("approved %d times: %v", approved, b.facts())
	}
	stranger := button(3, "1", b.token(click.Approve))
	if _, text := b.discord(discordHead(b.now, stranger), stranger); !strings.Contains(text, "not known here") {
		t.Errorf("a stranger is told %q", text)
	}
}

func TestDiscordsCommandsAreReadAndTheirAnswersMentionNobody(t *testing.T) {
	b := newDiscord(t)
	body := `{"id":"9","type":2,"user":{"id":"80351110224678912"},"data":{"name":"lowtide","options":[{"name":"text","type":3,"value":"pause train"}]}}`
	if code, text := b.discord(discordHead(b.now, body), body); code != http.StatusOK || text != "train saves and stops; nothing is bought for it" {
		t.Errorf("answered %d %q", code, text)
	}
	body = `{"id":"10","type":2,"user":{"id":"80351110224678912"},"data":{"name":"lowtide","options":[{"name":"text","type":3,"value":"pause @everyone"}]}}`
	if _, text := b.discord(discordHead(b.now, body), body); strings.Contains(text, "@everyone") {
		t.Errorf("answered %q", text)
	}
	for _, body := range []string{`{"id":"11","type":3}`, `{`, `{"id":"","type":2,"user":{"id":"1"}}`, `{"id":"12","type":7,"user":{"id":"1"}}`} {
		if code, _ := b.discord(discordHead(b.now, body), body); code != http.StatusBadRequest {
			t.Errorf("%s: answered %d", body, code)
		}
	}
}
