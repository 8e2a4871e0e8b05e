package chatops_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slack-go/slack"

	"lowtide/events"
	"lowtide/functions/chatops"
	"lowtide/shared/click"
	"lowtide/shared/fleet"
	"lowtide/shared/plan"
	"lowtide/shared/store"
)

var t0 = time.Unix(1790000000, 0).UTC()

const key = "S3CRET-s3cret-0123456789"

// bench is a desk, its time, and what it said.
type bench struct {
	t    testing.TB
	h    http.Handler
	now  time.Time
	cfg  chatops.Config
	plan fleet.Plan

	mu   sync.Mutex
	said []events.Event
}

func newBench(t testing.TB) *bench {
	b := &bench{t: t, now: t0}
	price := fleet.Known(fleet.Dollars(3))
	b.plan = fleet.Plan{
		ID: "p7", Action: fleet.Launch, Machine: "f-m8", Cloud: "fake", Account: "main", Workload: "train", Made: t0, Expires: t0.Add(10 * time.Minute),
		Offers: []fleet.Offer{{Cloud: "fake", Account: "main", Region: "r", Zone: "z", Type: "p3.2xlarge", Market: fleet.Spot, Hourly: price}},
		Score:  fleet.Score{Reason: "spot is to be had", Hourly: fleet.Dollars(3)},
	}
	states, market := store.Memory(), store.Memory()
	f := fleet.New("f", "install")
	f.Workloads["train"] = &fleet.Workload{Spec: &fleet.Spec{Name: "train", Autonomy: fleet.Suggest}, Phase: fleet.Accepted, On: "f-m1", Step: 7}
	f.Workloads["done"] = &fleet.Workload{Spec: &fleet.Spec{Name: "done"}, Phase: fleet.Finished}
	f.Plans["p7"] = &b.plan
	b.cfg = chatops.Config{
		Fleet: "f", States: states, Market: market, Seen: store.Memory(), Now: func() time.Time { return b.now }, Wall: func() time.Time { return b.now }, Policy: plan.Default,
		Say: func(_ context.Context, said ...events.Event) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.said = append(b.said, said...)
			return nil
		},
		HTTP: &http.Client{Transport: answers{b}},
	}
	b.cfg.People = map[string]*chatops.Person{
		"ada": {Slack: "UADA", Feishu: "ou_ada", DingTalk: "d-ada", Telegram: "42", Role: "operator", Approve: 5},
		"bob": {Slack: "UBOB", Role: "operator", Approve: 1}, "eve": {Slack: "UEVE", Role: "viewer"}, "root": {Slack: "UROOT", Role: "admin"},
		"link": {Link: true, Role: "operator", Approve: 4},
	}
	b.cfg.Slack.Secret, b.cfg.Feishu.EncryptKey, b.cfg.DingTalk.Secret, b.cfg.Telegram.Secret, b.cfg.Links.Secret, b.cfg.Alerts.Bearer = key, key, key, key, key, key
	b.store(f)
	b.open()
	return b
}

type answers struct{ b *bench }

var told []string // what was sent to Slack's response URLs

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	told = append(told, r.URL.Host+" "+string(body))
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("ok")), Request: r}, nil
}

func (b *bench) store(f *fleet.Fleet) {
	b.t.Helper()
	val, err := new(fleet.Encoder).Encode(f)
	if err != nil {
		b.t.Fatal(err)
	}
	_ = b.cfg.States.Delete(context.Background(), "f")
	if _, err := b.cfg.States.Create(context.Background(), "f", val); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) open() {
	b.t.Helper()
	h, err := chatops.New(b.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.h = h
}

func (b *bench) send(path string, head http.Header, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header = head
	w := httptest.NewRecorder()
	b.h.ServeHTTP(w, r)
	return w
}

// facts are what was said, without the audit.
func (b *bench) facts() (kinds []string) {
	for _, e := range b.said {
		if k := e.Data.Kind(); k != "person.acted" {
			kinds = append(kinds, string(k))
		}
	}
	return kinds
}

func (b *bench) audit() (all []events.PersonActed) {
	for _, e := range b.said {
		if a, ok := e.Data.(events.PersonActed); ok {
			all = append(all, a)
		}
	}
	return all
}

func slackHead(at time.Time, body string) http.Header {
	ts := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte("v0:" + ts + ":" + body))
	return http.Header{"X-Slack-Request-Timestamp": {ts}, "X-Slack-Signature": {"v0=" + hex.EncodeToString(mac.Sum(nil))}}
}

var trigger int

func slash(user, text string) string {
	trigger++
	return url.Values{"command": {"/lowtide"}, "text": {text}, "user_id": {user}, "trigger_id": {strconv.Itoa(trigger)}}.Encode()
}

func (b *bench) slack(user, text string) (int, string) {
	body := slash(user, text)
	w := b.send("/slack", slackHead(b.now, body), body)
	var out struct{ Text string }
	_ = json.Unmarshal(w.Body.Bytes(), &out)
	return w.Code, out.Text
}

func TestSlackIsBelievedOnlyWithItsSignatureInTimeAndOnce(t *testing.T) {
	b := newBench(t)
	body := slash("UADA", "pause train")
	good := slackHead(b.now, body)
	verifier, err := slack.NewSecretsVerifier(http.Header{"X-Slack-Request-Timestamp": {strconv.FormatInt(time.Now().Unix(), 10)}, "X-Slack-Signature": slackHead(time.Now(), body)["X-Slack-Signature"]}, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, _ = verifier.Write([]byte(body)); verifier.Ensure() != nil {
		t.Error("a second implementation does not take our test's signature")
	}
	upper := good.Clone()
	upper.Set("X-Slack-Signature", "v0="+strings.ToUpper(strings.TrimPrefix(good.Get("X-Slack-Signature"), "v0=")))
	none, noTime := good.Clone(), good.Clone()
	none.Del("X-Slack-Signature")
	noTime.Del("X-Slack-Request-Timestamp")
	for name, c := range map[string]struct {
		head http.Header
		body string
		want string
	}{
		"one flipped byte":  {good, strings.Replace(body, "pause", "pausf", 1), "signature"},
		"another's secret":  {http.Header{"X-Slack-Request-Timestamp": good["X-Slack-Request-Timestamp"], "X-Slack-Signature": {"v0=" + strings.Repeat("0", 64)}}, body, "signature"},
		"20 minutes old":    {slackHead(b.now.Add(-20*time.Minute), body), body, "five minutes"},
		"20 minutes ahead":  {slackHead(b.now.Add(20*time.Minute), body), body, "five minutes"},
		"no signature":      {none, body, "signature"},
		"no time":           {noTime, body, "signature"},
		"upper-case digits": {upper, body, "signature"},
		"nothing":           {http.Header{}, "", "signature"},
	} {
		w := b.send("/slack", c.head, c.body)
		if w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: got %d %s, want 401 with %q", name, w.Code, w.Body, c.want)
		}
	}
	if len(b.said) > 0 {
		t.Fatalf("said %v", b.facts())
	}
	old := slackHead(b.now.Add(-290*time.Second), body)
	if w := b.send("/slack", old, body); w.Code != http.StatusOK {
		t.Errorf("290 s old: got %d %s", w.Code, w.Body)
	}
	b.open() // another process
	if w := b.send("/slack", old, body); w.Code != http.StatusConflict {
		t.Errorf("the same again: got %d, want that it was taken before", w.Code)
	}
	if got := strings.Join(b.facts(), " "); got != "workload.paused" {
		t.Errorf("said %s, want one pause", got)
	}
}

func TestKnownSlackSignature(t *testing.T) {
	b := newBench(t)
	b.cfg.Slack.Secret = "lowtide-demo"
	b.open()
	head := http.Header{"X-Slack-Request-Timestamp": {"1790000000"}, "X-Slack-Signature": {"v0=d5593efcb4f533ec85a3d9d6df5dac3e817444b11f8edaa1f6da7e5f859cf521"}}
	if w := b.send("/slack", head, "payload=%7B%7D"); w.Code != http.StatusBadRequest {
		t.Errorf("got %d, want a good signature over an empty payload", w.Code)
	}
}

func TestWhoMayDoWhat(t *testing.T) {
	for _, c := range []struct{ user, text, fact, answer string }{
		{"UADA", "pause train", "workload.paused", "saves and stops"},
		{"UADA", "resume train", "workload.resumed", "goes on"},
		{"UADA", "checkpoint train", "checkpoint.asked", "save now"},
		{"UADA", "replan train", "plan.asked", "looks at train again"},
		{"UADA", "keep train 8h", "workload.kept", "left as it is"},
		{"UADA", "keep train soon", "", "say for how long"},
		{"UEVE", "keep train", "", "needs the role operator"},
		{"UADA", "silence train-* 2h nightly tests", "silence.set", "silent about"},
		{"UADA", "approve p7", "plan.approved", "approved"},
		{"UADA", "deny p7", "plan.rejected", "nothing is bought"},
		{"UADA", "批准 p7", "plan.approved", "approved"},
		{"UBOB", "approve p7", "", "may approve 1.00 USD/h at most"},
		{"UBOB", "deny p7", "plan.rejected", "rejected"},
		{"UEVE", "pause train", "", "needs the role operator"},
		{"UEVE", "status", "", "train: accepted on f-m1"},
		{"UEVE", "help", "", "approve PLAN"},
		{"UADA", "budget train 20 USD", "", "needs the role admin"},
		{"UROOT", "budget train 20 USD", "workload.changed", "is 20.00 USD"},
		{"UROOT", "stop train", "workload.withdrawn", "withdrawn"},
		{"UROOT", "panic leak in the pipeline", "policy.set", "nothing is bought"},
		{"UROOT", "go", "policy.set", "buys again"},
		{"UROOT", "approve p7", "plan.approved", "approved"},
		{"UNOBODY", "status", "", "not known here"},
		{"UADA", "pause nope", "", "there is no workload"},
		{"UADA", "pause done", "", "finished: nothing to change"},
		{"UADA", "approve p99", "", "was decided, or its time was over"},
		{"UADA", "fly away", "", "no command"},
		{"UADA", "pause", "", "of what?"},
		{"UADA", "pause train now", "", "one word too many"},
		{"UROOT", "budget train -5", "", "say budget"},
		{"UROOT", "budget train 5 CNY", "", "say budget"},
		{"UADA", "silence train", "", "say silence"},
		{"UADA", "plan", "", "waits for a person"},
	} {
		b := newBench(t)
		if strings.HasPrefix(c.text, "plan") {
			b.prices()
		}
		code, text := b.slack(c.user, c.text)
		if code != http.StatusOK || !strings.Contains(text, c.answer) {
			t.Errorf("%s %q: got %d %q, want %q", c.user, c.text, code, text, c.answer)
		}
		if got := strings.Join(b.facts(), " "); got != c.fact {
			t.Errorf("%s %q: said %q, want %q", c.user, c.text, got, c.fact)
		}
		if a := b.audit(); c.fact != "" && (len(a) != 1 || !a[0].Done || a[0].Via != "slack") {
			t.Errorf("%s %q: audit %+v", c.user, c.text, a)
		}
	}
}

func (b *bench) prices() {
	b.t.Helper()
	val, err := fleet.Pack(fleet.Markets{Offers: b.plan.Offers}) // as prices writes it
	if err == nil {
		_, err = b.cfg.Market.Create(context.Background(), fleet.MarketKey, val)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func TestOffersAndReasonsAreTold(t *testing.T) {
	b := newBench(t)
	if _, text := b.slack("UEVE", "offers"); !strings.Contains(text, "no price is known") {
		t.Errorf("without prices: %q", text)
	}
	b.prices()
	if _, text := b.slack("UEVE", "offers"); !strings.Contains(text, "p3.2xlarge spot fake/z  3.0000 USD/h") {
		t.Errorf("offers: %q", text)
	}
	if _, text := b.slack("UEVE", "why train"); !strings.HasPrefix(text, "train: ") {
		t.Errorf("why: %q", text)
	}
}

func TestAHastyRepeatIsDoneOnce(t *testing.T) {
	b := newBench(t)
	b.slack("UADA", "pause train")
	b.now = b.now.Add(6 * time.Second)
	if _, text := b.slack("UADA", "pause train"); !strings.Contains(text, "6s ago") {
		t.Errorf("got %q", text)
	}
	if _, text := b.slack("UADA", "pause train again"); !strings.Contains(text, "saves and stops") {
		t.Errorf("on purpose: got %q", text)
	}
	b.now = b.now.Add(2 * time.Minute)
	b.slack("UADA", "pause train")
	if n := len(b.facts()); n != 3 {
		t.Errorf("%d pauses said, want 3", n)
	}
}

// token is what notify puts behind a button.
func (b *bench) token(act string) string {
	return click.Click{Act: act, Plan: b.plan.ID, Hash: b.plan.Hash(), Expires: b.plan.Expires}.Sign([]byte(key), "f")
}

var pressedAt int

func press(user, token string) string {
	pressedAt++
	payload, _ := json.Marshal(map[string]any{
		"type": "block_actions", "user": map[string]string{"id": user}, "response_url": "https://hooks.slack.com/actions/T/1/x",
		"actions": []any{map[string]any{"action_id": "approve", "value": token, "action_ts": strconv.Itoa(pressedAt)}},
	})
	return "payload=" + url.QueryEscape(string(payload))
}

func (b *bench) press(user, token string) string {
	told = nil
	body := press(user, token)
	if w := b.send("/slack", slackHead(b.now, body), body); w.Code != http.StatusOK {
		return w.Body.String()
	}
	return strings.Join(told, "\n")
}

func TestAClickCountsForThePlanAsItWasShown(t *testing.T) {
	b := newBench(t)
	yes := b.token(click.Approve)
	if text := b.press("UADA", yes); !strings.Contains(text, "approved") {
		t.Fatalf("got %q", text)
	}
	approved := b.said[0].Data.(events.PlanApproved)
	if approved.Hash != b.plan.Hash() || approved.By != "ada" || approved.Plan != "p7" {
		t.Errorf("said %+v", approved)
	}
	for name, c := range map[string]struct {
		change func(b *bench)
		token  func(b *bench) string
		want   string
	}{
		"the price rose":     {func(b *bench) { b.plan.Offers[0].Hourly = fleet.Known(fleet.Dollars(4)) }, nil, "another one by now"},
		"another type":       {func(b *bench) { b.plan.Offers[0].Type = "p4d" }, nil, "another one by now"},
		"its time is over":   {func(b *bench) { b.now = b.now.Add(11 * time.Minute) }, nil, "its time was over"},
		"somebody was first": {func(b *bench) { b.plan.Approved, b.plan.By = true, "bob" }, nil, "already approved by bob"},
		"it is gone":         {func(b *bench) { b.plan.Action = fleet.End }, nil, "was decided"},
		"forged":             {nil, func(b *bench) string { return b.token(click.Approve)[:20] + strings.Repeat("x", 30) }, "not"},
		"another act":        {nil, func(b *bench) string { return "n" + b.token(click.Approve)[1:] }, "signature is not ours"},
		"another fleet's": {nil, func(b *bench) string {
			return click.Click{Act: click.Approve, Plan: "p7", Hash: b.plan.Hash(), Expires: t0.Add(time.Hour)}.Sign([]byte(key), "g")
		}, "signature is not ours"},
		"dearer than she may":  {func(b *bench) { b.plan.Offers[0].Hourly = fleet.Known(fleet.Dollars(9)) }, func(b *bench) string { return b.token(click.Approve) }, "at most"},
		"an empty one":         {nil, func(*bench) string { return "" }, "not a decision"},
		"an act of the future": {nil, func(*bench) string { return "z.p7.h.1.x" }, "signature"},
	} {
		b := newBench(t)
		token := b.token(click.Approve)
		if c.change != nil {
			c.change(b)
			f := fleet.New("f", "install")
			f.Workloads["train"] = &fleet.Workload{Spec: &fleet.Spec{Name: "train"}, Phase: fleet.Accepted}
			f.Plans["p7"] = &b.plan
			b.store(f)
		}
		if c.token != nil {
			token = c.token(b)
		}
		if text := b.press("UADA", token); !strings.Contains(text, c.want) {
			t.Errorf("%s: told %q, want %q", name, text, c.want)
		}
		if got := b.facts(); len(got) > 0 {
			t.Errorf("%s: said %v, want nothing", name, got)
		}
	}
}

func seal(plain string) string {
	k := sha256.Sum256([]byte(key))
	block, _ := aes.NewCipher(k[:])
	pad := aes.BlockSize - len(plain)%aes.BlockSize
	in := append([]byte(plain), []byte(strings.Repeat(string(rune(pad)), pad))...)
	iv := []byte("0123456789abcdef")
	out := make([]byte, len(in))
	cipher.NewCBCEncrypter(block, iv).CryptBlocks(out, in)
	body, _ := json.Marshal(map[string]string{"encrypt": base64.StdEncoding.EncodeToString(append(iv, out...))})
	return string(body)
}

func larkHead(ts, body string) http.Header {
	sum := sha256.Sum256([]byte(ts + "nonce" + key + body))
	return http.Header{"X-Lark-Request-Timestamp": {ts}, "X-Lark-Request-Nonce": {"nonce"}, "X-Lark-Signature": {hex.EncodeToString(sum[:])}}
}

func larkPress(id, user, token string) string {
	v, _ := json.Marshal(map[string]any{
		"schema": "2.0", "header": map[string]string{"event_id": id, "event_type": "card.action.trigger"},
		"event": map[string]any{"operator": map[string]string{"open_id": user}, "action": map[string]any{"value": map[string]string{"act": "approve", "token": token}}},
	})
	return seal(string(v))
}

func TestFeishuIsBelievedOnlyWithItsSignatureInTimeAndOnce(t *testing.T) {
	b := newBench(t)
	if w := b.send("/feishu", http.Header{}, seal(`{"type":"url_verification","challenge":"c-1","token":"x"}`)); !strings.Contains(w.Body.String(), `"challenge":"c-1"`) {
		t.Errorf("challenge: %d %s", w.Code, w.Body)
	}
	body := larkPress("e1", "ou_ada", b.token(click.Approve))
	sec, ms := strconv.FormatInt(b.now.Unix(), 10), strconv.FormatInt(b.now.UnixMilli(), 10)
	late := strconv.FormatInt(b.now.Add(-25*time.Hour).Unix(), 10)
	for name, c := range map[string]struct {
		head http.Header
		body string
		want string
	}{
		"25 h old":    {larkHead(late, body), body, "five minutes"},
		"wrong key":   {http.Header{"X-Lark-Request-Timestamp": {sec}, "X-Lark-Signature": {"00"}}, body, "signature"},
		"no header":   {http.Header{}, body, "signature"},
		"not sealed":  {larkHead(sec, "{}"), "{}", "cannot be read"},
		"broken seal": {larkHead(sec, `{"encrypt":"AAAA"}`), `{"encrypt":"AAAA"}`, "signature"},
	} {
		if w := b.send("/feishu", c.head, c.body); w.Code < 400 || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: got %d %s, want %q", name, w.Code, w.Body, c.want)
		}
	}
	if len(b.said) > 0 {
		t.Fatalf("said %v", b.facts())
	}
	if w := b.send("/feishu", larkHead(ms, body), body); w.Code != 200 || !strings.Contains(w.Body.String(), "approved") {
		t.Errorf("in milliseconds: got %d %s", w.Code, w.Body)
	}
	b.now = b.now.Add(25 * time.Hour) // a fresh signature over the same event, a day later
	if w := b.send("/feishu", larkHead(strconv.FormatInt(b.now.Unix(), 10), body), body); w.Code != http.StatusConflict {
		t.Errorf("the same event after 25 h: got %d %s", w.Code, w.Body)
	}
	if got := strings.Join(b.facts(), " "); got != "plan.approved" {
		t.Errorf("said %s", got)
	}
}

func TestDingTalkAndTelegramHearCommandsOnce(t *testing.T) {
	b := newBench(t)
	ms := strconv.FormatInt(b.now.UnixMilli(), 10)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(ms + "\n" + key))
	head := http.Header{"Timestamp": {ms}, "Sign": {base64.StdEncoding.EncodeToString(mac.Sum(nil))}}
	body := `{"msgId":"m1","senderStaffId":"d-ada","text":{"content":" 暂停 train"}}`
	if w := b.send("/dingtalk", head, body); w.Code != 200 || !strings.Contains(w.Body.String(), "saves and stops") {
		t.Errorf("dingtalk: %d %s", w.Code, w.Body)
	}
	if w := b.send("/dingtalk", head, body); w.Code != http.StatusConflict {
		t.Errorf("dingtalk again: %d", w.Code)
	}
	if w := b.send("/dingtalk", http.Header{"Timestamp": {ms}, "Sign": {"x"}}, body); w.Code != http.StatusUnauthorized {
		t.Errorf("dingtalk forged: %d", w.Code)
	}
	tele := http.Header{"X-Telegram-Bot-Api-Secret-Token": {key}}
	query := fmt.Sprintf(`{"update_id":5,"callback_query":{"id":"q","from":{"id":42},"data":%q}}`, b.token(click.Deny))
	if len(b.token(click.Deny)) > 64 {
		t.Errorf("a token of %d bytes does not fit behind a button", len(b.token(click.Deny)))
	}
	if w := b.send("/telegram", tele, query); !strings.Contains(w.Body.String(), "rejected") {
		t.Errorf("telegram: %d %s", w.Code, w.Body)
	}
	b.send("/telegram", tele, query)
	if w := b.send("/telegram", http.Header{"X-Telegram-Bot-Api-Secret-Token": {"no"}}, query); w.Code != http.StatusUnauthorized {
		t.Errorf("telegram forged: %d", w.Code)
	}
	late := fmt.Sprintf(`{"update_id":6,"message":{"date":%d,"text":"resume train","from":{"id":42},"chat":{"id":1}}}`, b.now.Add(-time.Hour).Unix())
	b.send("/telegram", tele, late)
	if got := strings.Join(b.facts(), " "); got != "workload.paused plan.rejected" {
		t.Errorf("said %s", got)
	}
}

func TestALinkIsShownByGetAndTakenByPostOnce(t *testing.T) {
	b := newBench(t)
	token := b.token(click.Approve)
	get := func(token string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		b.h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/decide?t="+url.QueryEscape(token), nil))
		return w
	}
	for range 3 { // previews
		if w := get(token); w.Code != 200 || !strings.Contains(w.Body.String(), "3.0000 USD/h") || !strings.Contains(w.Body.String(), "Approve") || w.Header().Get("Referrer-Policy") != "no-referrer" {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
	}
	if len(b.said) > 0 {
		t.Fatalf("a GET said %v", b.facts())
	}
	if w := get(token + "x"); w.Code != http.StatusForbidden {
		t.Errorf("forged: %d", w.Code)
	}
	form := url.Values{"t": {token}}.Encode()
	if w := b.send("/decide", http.Header{}, form); !strings.Contains(w.Body.String(), "approved") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if w := b.send("/decide", http.Header{}, form); w.Code != http.StatusConflict {
		t.Errorf("again: got %d %s", w.Code, w.Body)
	}
	if got := strings.Join(b.facts(), " "); got != "plan.approved" {
		t.Errorf("said %s", got)
	}
	delete(b.cfg.People, "link")
	b.open()
	if w := get(token); w.Code != http.StatusForbidden {
		t.Errorf("where links may not decide: %d", w.Code)
	}
}

func TestAlertsOfOthersBecomeFacts(t *testing.T) {
	b := newBench(t)
	head := http.Header{"Authorization": {"Bearer " + key}}
	fire := `{"version":"4","groupKey":"{}:{alertname=\"QueueLong\"}","status":"firing","commonLabels":{"alertname":"QueueLong","severity":"critical","workload":"serve"},"commonAnnotations":{"summary":"120 wait"},"alerts":[{"status":"firing","startsAt":"2026-03-01T12:00:00Z"},{"status":"resolved"}]}`
	if w := b.send("/alertmanager", head, fire); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	a := b.said[0].Data.(events.AlertReceived)
	if !a.Firing || a.Name != "QueueLong" || a.Count != 1 || a.Severity != "critical" || a.Labels["workload"] != "serve" || a.Annotations["summary"] != "120 wait" {
		t.Errorf("got %+v", a)
	}
	b.send("/alertmanager", head, strings.Replace(fire, `"status":"firing","commonLabels"`, `"status":"resolved","commonLabels"`, 1))
	if over := b.said[1].Data.(events.AlertReceived); over.Firing || over.Group != a.Group {
		t.Errorf("the end: %+v", over)
	}
	b.send("/events", head, `{"specversion":"1.0","id":"1","type":"com.example.disk.opened","source":"/host1","subject":"d","data":{"severity":"warning","summary":"disk full","used":0.97}}`)
	b.send("/events", head, `{"specversion":"1.0","id":"2","type":"com.example.disk.resolved","source":"/host1","subject":"d","data":{}}`)
	if one, two := b.said[2].Data.(events.AlertReceived), b.said[3].Data.(events.AlertReceived); one.Group != two.Group || !one.Firing || two.Firing || one.Labels["used"] != "0.97" {
		t.Errorf("got %+v and %+v", one, two)
	}
	for name, c := range map[string]struct {
		path string
		head http.Header
		body string
		code int
	}{
		"no bearer": {"/alertmanager", http.Header{}, fire, 401}, "version 3": {"/alertmanager", head, `{"version":"3"}`, 400},
		"not JSON": {"/events", head, "x", 400}, "wrong bearer": {"/events", http.Header{"Authorization": {"Bearer x"}}, "{}", 401},
	} {
		if w := b.send(c.path, c.head, c.body); w.Code != c.code {
			t.Errorf("%s: got %d, want %d", name, w.Code, c.code)
		}
	}
}

func TestADoorWithoutItsSecretIsClosedAndALargeBodyIsRefused(t *testing.T) {
	b := newBench(t)
	large := strings.Repeat("x", 300<<10)
	if w := b.send("/slack", slackHead(b.now, large), large); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("large: %d", w.Code)
	}
	b.cfg.Slack.Secret = ""
	b.open()
	if code, _ := b.slack("UADA", "status"); code != http.StatusNotFound {
		t.Errorf("closed: %d", code)
	}
}

func TestNoSecretIsInAnyAnswerOrFact(t *testing.T) {
	b := newBench(t)
	var all strings.Builder
	for _, text := range []string{"pause train", "approve p7", "fly", "status", "budget " + key, key} {
		_, out := b.slack("UADA", text)
		if !strings.Contains(text, key) {
			all.WriteString(out)
		}
	}
	token := b.token(click.Approve)
	all.WriteString(b.press("UADA", token))
	all.WriteString(b.send("/slack", http.Header{}, "x").Body.String())
	for _, e := range b.said {
		if doc, err := events.Encode(e); err == nil {
			all.Write(doc)
		}
	}
	if s := all.String(); strings.Contains(s, token) || strings.Contains(s, key) {
		t.Errorf("a secret or a signed token is in %s", s)
	}
}

func TestSettingsAreReadAndWhatIsWrongIsNamed(t *testing.T) {
	env := func(string) (string, bool) { return "0123456789", true }
	s, err := chatops.Parse([]byte("listen: 127.0.0.1:0\nslack: {signing_secret: \"${S}\"}\npeople:\n  ada: {slack: U1, role: operator, approve: 5}\n"), env)
	if err != nil || s.Slack.Secret != "0123456789" || s.People["ada"].Approve != 5 {
		t.Errorf("got %+v, %v", s, err)
	}
	for text, want := range map[string]string{
		"people: {ada: {role: king}}": "people: ada: role", "slack: {signing_secret: abc}": "too short", "slak: {}": "line 1", "language: de": "language",
	} {
		if _, err := chatops.Parse([]byte(text), env); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	if _, err := chatops.Parse([]byte("slack: {signing_secret: \"${NO}\"}"), func(string) (string, bool) { return "", false }); err == nil || !strings.Contains(err.Error(), "NO") {
		t.Errorf("a variable that is not set: %v", err)
	}
}
