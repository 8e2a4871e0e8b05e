package notify_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"lowtide/functions/notify"
	"lowtide/functions/notify/alertmanager"
	"lowtide/functions/notify/dingtalk"
	"lowtide/functions/notify/discord"
	"lowtide/functions/notify/feishu"
	"lowtide/functions/notify/notifytest"
	"lowtide/functions/notify/pagerduty"
	"lowtide/functions/notify/slack"
	"lowtide/functions/notify/teams"
	"lowtide/functions/notify/telegram"
	"lowtide/functions/notify/webhook"
	"lowtide/functions/notify/wecom"
)

// secret stands for every token, key and webhook path: it may be seen nowhere.
const secret = "S3CRET-s3cret-S3CRET"

// clock is a time that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// platform is a channel and its stand-in.
type platform struct {
	name    string
	channel notify.Channel
	wrong   notify.Channel // with a key that the platform does not know
	board   *notifytest.Board
	handler http.Handler
}

// platforms makes each of them anew. h, when set, takes the stand-in's place on the wire.
func platforms(t *testing.T, c *clock, h http.RoundTripper) []platform {
	t.Helper()
	var all []platform
	add := func(name string, stand http.Handler, b *notifytest.Board, open func(key string, h *http.Client) (notify.Channel, error)) {
		b.Now = c.now
		client := notifytest.Client(stand)
		if h != nil {
			client = &http.Client{Transport: h}
		}
		good, err := open(secret, client)
		if err != nil {
			t.Fatal(err)
		}
		bad, err := open("another-"+secret, client)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, platform{name, good, bad, b, stand})
	}
	sl := &notifytest.Slack{Token: secret, Channel: "C1"}
	add("slack bot", sl, &sl.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return slack.New(slack.Settings{Token: key, Channel: "C1", API: "https://slack.test/api/"}, h)
	})
	hook := &notifytest.Slack{Hook: "/services/T0/B0/" + secret}
	add("slack webhook", hook, &hook.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return slack.New(slack.Settings{Webhook: "https://slack.test/services/T0/B0/" + key}, h)
	})
	app := &notifytest.Feishu{App: "cli_a", Secret: secret, Chat: "oc_1"}
	add("feishu app", app, &app.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return feishu.New(feishu.Settings{App: "cli_a", Secret: key, Chat: "oc_1", API: "https://feishu.test"}, h, c.now)
	})
	robot := &notifytest.Feishu{Hook: secret, HookSecret: secret, Keyword: "lowtide"}
	add("feishu robot", robot, &robot.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return feishu.New(feishu.Settings{Webhook: "https://feishu.test/open-apis/bot/v2/hook/" + secret, Secret: key, Keyword: "lowtide"}, h, c.now)
	})
	ding := &notifytest.DingTalk{Token: secret, Secret: secret, Keyword: "lowtide"}
	add("dingtalk", ding, &ding.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return dingtalk.New(dingtalk.Settings{Webhook: "https://ding.test/robot/send?access_token=" + key, Secret: key, Keyword: "lowtide"}, h, c.now)
	})
	wc := &notifytest.WeCom{Key: secret}
	add("wecom", wc, &wc.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return wecom.New(wecom.Settings{Webhook: "https://wecom.test/cgi-bin/webhook/send?key=" + key}, h)
	})
	tm := &notifytest.Teams{Path: "/workflows/" + secret}
	add("teams", tm, &tm.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return teams.New(teams.Settings{Webhook: "https://teams.test/workflows/" + key + "?sig=" + key}, h)
	})
	wh := &notifytest.Webhook{Secret: secret}
	add("webhook", wh, &wh.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return webhook.New(webhook.Settings{URL: "https://hook.test/in/" + secret, Secret: key}, h, c.now)
	})
	pd := &notifytest.PagerDuty{Key: secret}
	add("pagerduty", pd, &pd.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return pagerduty.New(pagerduty.Settings{Key: key, API: "https://pd.test"}, h)
	})
	am := &notifytest.Alertmanager{Bearer: secret}
	add("alertmanager", am, &am.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return alertmanager.New(alertmanager.Settings{URL: "https://am.test", Bearer: key}, h, c.now)
	})
	tg := &notifytest.Telegram{Token: secret, Chat: "-100"}
	add("telegram", tg, &tg.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return telegram.New(telegram.Settings{Token: key, Chat: "-100", API: "https://tg.test"}, h)
	})
	dc := &notifytest.Discord{Path: "/api/webhooks/1/" + secret}
	add("discord", dc, &dc.Board, func(key string, h *http.Client) (notify.Channel, error) {
		return discord.New(discord.Settings{Webhook: "https://discord.test/api/webhooks/1/" + key}, h)
	})
	return all
}

func each(t *testing.T, test func(t *testing.T, p platform, c *clock)) {
	c := &clock{}
	for i := range platforms(t, c, nil) {
		c := &clock{t0}
		p := platforms(t, c, nil)[i]
		t.Run(p.name, func(t *testing.T) { test(t, p, c) })
	}
}

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func message(title string, lines ...string) notify.Message {
	return notify.Message{
		ID: "f/12", Number: 12, Version: 3, Kind: "interrupted", Severity: notify.Warning, Title: title, Lines: lines, Fleet: "f",
		Opened: t0, Changed: t0, Language: notify.English,
	}
}

func TestAMessageIsShownAndChangedInPlaceWhereThePlatformCan(t *testing.T) {
	each(t, func(t *testing.T, p platform, c *clock) {
		m := message("#12 train loses its machine; 1.2 USD at risk", "step 40 saved", "buying f-m2")
		ref, err := p.channel.Send(t.Context(), m, "")
		if err != nil {
			t.Fatal(err)
		}
		m.Version, m.Closed, m.Title = 4, true, "#12 Over: train resumed; 0.9 USD/h"
		if _, err := p.channel.Send(t.Context(), m, ref); err != nil {
			t.Fatal(err)
		}
		shown := p.board.Messages()
		want := 2
		if p.channel.Traits().Edits {
			want = 1
		}
		if len(shown) != want {
			t.Fatalf("%d messages are seen, want %d: %+v", len(shown), want, shown)
		}
		if last := shown[len(shown)-1]; !strings.Contains(last.Title, "Over: train resumed; 0.9 USD/h") || !strings.Contains(last.Text, "step 40 saved") {
			t.Errorf("the last shows %+v", last)
		}
		if bad := p.board.Problems(); len(bad) > 0 {
			t.Errorf("against the rules: %q", bad)
		}
	})
}

func TestALongMessageIsCutAtSafePlacesAndSaysHowMuchIsMissing(t *testing.T) {
	each(t, func(t *testing.T, p platform, c *clock) {
		var lines []string
		for i := range 2000 {
			lines = append(lines, fmt.Sprintf("任务%d <a&b> \"q\" \\ %s", i, strings.Repeat("机", i%40)))
		}
		for n, m := range []notify.Message{
			message("#12 first line with 310 USD & more", lines...),
			message("#12 "+strings.Repeat("长&<>", 20_000), lines...),
			message("#12 one line", strings.Repeat("长&<>\"", 60_000)),
		} {
			c.at = c.at.Add(time.Minute)
			m.ID, m.Number = fmt.Sprintf("f/%d", n), n
			if _, err := p.channel.Send(t.Context(), m, ""); err != nil {
				t.Fatalf("%.40s: %v", m.Title, err)
			}
			shown := p.board.Messages()
			last := shown[len(shown)-1]
			if !utf8.ValidString(last.Title) || !utf8.ValidString(last.Text) || strings.ContainsRune(last.Raw, utf8.RuneError) {
				t.Error("a character was cut through")
			}
			if !strings.HasPrefix(strings.TrimLeft(last.Title, "＊#* "), "12 ") {
				t.Errorf("the first line is %.60s", last.Title)
			}
		}
		first := p.board.Messages()[0]
		if lines := strings.Count(first.Raw, "任务"); lines < 2000 && !strings.Contains(first.Text, "more") {
			t.Errorf("%d of 2000 lines, and nothing says so: …%s", lines, first.Text[max(0, len(first.Text)-100):])
		}
		if bad := p.board.Problems(); len(bad) > 0 {
			t.Errorf("against the rules: %.300q", bad)
		}
	})
}

func TestOthersTextIsNeitherMentionNorLink(t *testing.T) {
	hostile := []string{
		"<!channel> done", "<https://evil.example|click to approve>", `<at user_id="all">everyone</at>`, "@all @everyone @here", "[approve](https://evil.example)",
		"<@U123> **bold**", "@所有人",
	}
	raw := map[string][]string{
		"slack bot": {"<!channel>", "<https://evil", "<@U"}, "slack webhook": {"<!channel>", "<https://evil", "<@U"},
		"dingtalk": {"@all", "](https"}, "wecom": {"<@", "](https", "@all"}, "discord": {"@everyone", "](https://"}, "telegram": {"@all"},
	}
	each(t, func(t *testing.T, p platform, c *clock) {
		if _, err := p.channel.Send(t.Context(), message("#12 "+strings.Join(hostile, " "), hostile...), ""); err != nil {
			t.Fatal(err)
		}
		for _, bad := range raw[p.name] {
			if got := p.board.Messages()[0].Raw; strings.Contains(got, bad) {
				t.Errorf("%q goes out as it is: %s", bad, got)
			}
		}
		if bad := p.board.Problems(); len(bad) > 0 {
			t.Errorf("against the rules: %q", bad)
		}
	})
}

func TestTooManyMeansWaitAndNotASuccess(t *testing.T) {
	each(t, func(t *testing.T, p platform, c *clock) {
		p.board.Limit, p.board.Per = 1, time.Minute
		if _, err := p.channel.Send(t.Context(), message("#12 a"), ""); err != nil {
			t.Fatal(err)
		}
		_, err := p.channel.Send(t.Context(), message("#13 b"), "")
		var told notify.Wait
		if !errors.As(err, &told) || told.For < time.Second {
			t.Errorf("got %v, want to be told to wait", err)
		}
		if n := len(p.board.Messages()); n != 1 || p.board.Refused() != 1 {
			t.Errorf("%d are seen and %d refused", n, p.board.Refused())
		}
	})
}

func TestAWrongKeyIsRefusedForGoodAndNoErrorTellsASecret(t *testing.T) {
	each(t, func(t *testing.T, p platform, c *clock) {
		_, err := p.wrong.Send(t.Context(), message("#12 a"), "")
		if !errors.Is(err, notify.ErrSettings) {
			t.Errorf("a wrong key: got %v, want refused for good", err)
		}
		silent(t, err)
		p.board.Fault = func() (int, bool) { return http.StatusBadGateway, false }
		_, err = p.channel.Send(t.Context(), message("#12 a"), "")
		if err == nil || errors.Is(err, notify.ErrSettings) || strings.ContainsAny(err.Error(), "\x00\x1b") {
			t.Errorf("a bad gateway: got %v, want an error worth another try, in printable letters", err)
		}
		silent(t, err)
	})
}

// echo breaks every request with an error that repeats the URL, or answers with it.
type echo struct{ answer bool }

func (e echo) RoundTrip(r *http.Request) (*http.Response, error) {
	if !e.answer {
		return nil, fmt.Errorf("lookup of %s with %v", r.URL, r.Header)
	}
	return &http.Response{
		StatusCode: http.StatusNotFound, Request: r, Header: http.Header{}, Body: &body{strings.NewReader("no_service for " + r.URL.RequestURI() + r.Header.Get("Authorization") + "\x1b[2J\n")},
	}, nil
}

type body struct{ *strings.Reader }

func (body) Close() error { return nil }

func TestNoSecretIsInAnyErrorWhateverThePlatformRepeats(t *testing.T) {
	for _, answer := range []bool{false, true} {
		for _, p := range platforms(t, &clock{t0}, echo{answer}) {
			_, err := p.channel.Send(t.Context(), message("#12 a"), "")
			if err == nil {
				t.Errorf("%s: no error", p.name)
				continue
			}
			silent(t, err)
		}
	}
}

func silent(t *testing.T, err error) {
	t.Helper()
	for e := err; e != nil; e = errors.Unwrap(e) {
		if strings.Contains(strings.ToLower(fmt.Sprintf("%v %+v %#v", e, e, e)), strings.ToLower(secret)) {
			t.Errorf("a secret is in %#v", e)
		}
	}
}

func TestAMessageThatIsGoneIsSaidToBe(t *testing.T) {
	each(t, func(t *testing.T, p platform, c *clock) {
		if !p.channel.Traits().Edits || p.name == "webhook" || p.name == "pagerduty" || p.name == "alertmanager" {
			return // they have no message that a person could take away
		}
		ref, err := p.channel.Send(t.Context(), message("#12 a"), "")
		if err != nil {
			t.Fatal(err)
		}
		p.board.Remove(ref)
		if _, err := p.channel.Send(t.Context(), message("#12 b"), ref); !errors.Is(err, notify.ErrGone) {
			t.Errorf("got %v, want gone", err)
		}
	})
}

func TestSignaturesAreMadeForEachMessage(t *testing.T) {
	each(t, func(t *testing.T, p platform, c *clock) {
		for _, after := range []time.Duration{0, 61 * time.Minute, 24 * time.Hour} {
			c.at = t0.Add(after)
			if _, err := p.channel.Send(context.Background(), message("#12 a"), ""); err != nil {
				t.Errorf("%s later: %v", after, err)
			}
		}
	})
}

func TestAClockThatIsWrongIsNamed(t *testing.T) {
	real, host := &clock{t0}, &clock{t0.Add(70 * time.Minute)}
	stand := &notifytest.DingTalk{Token: "t", Secret: secret, Board: notifytest.Board{Now: real.now}}
	ch, err := dingtalk.New(dingtalk.Settings{Webhook: "https://ding.test/robot/send?access_token=t", Secret: secret}, notifytest.Client(stand), host.now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = ch.Send(t.Context(), message("#1 a"), ""); !errors.Is(err, notify.ErrSettings) || !strings.Contains(err.Error(), "clock is 1h10m0s off") {
		t.Errorf("got %v, want the clock named", err)
	}
}

func TestKnownSignatures(t *testing.T) {
	if ts, sign := feishu.Sign("lowtide-demo", time.Unix(1790000000, 0)); ts != "1790000000" || sign != "/zQh8itbsYssRB76VwyLtx1wMrPE2NdeLlsUfIdDKm8=" {
		t.Errorf("feishu: %s %s", ts, sign)
	}
	got, err := dingtalk.Address("https://ding.test/?access_token=t", "lowtide-demo", time.UnixMilli(1790000000123))
	if err != nil || !strings.Contains(got, "sign=%2FN%2FAPY2TBFdHkM84vNfhdDqDjt5Z6aeR45mPjQ%2FJPKs%3D") || !strings.Contains(got, "timestamp=1790000000123") {
		t.Errorf("dingtalk: %s, %v", got, err)
	}
}

func TestFeishuLiesAreSeenThrough(t *testing.T) {
	for _, c := range []struct {
		body string
		want error // nil: success
	}{
		{`{"code":0}`, nil},
		{`{"StatusCode":0}`, nil},
		{`{"code":19021,"msg":"sign match fail"}`, notify.ErrSettings},
		{`{"code":11232,"msg":"frequency limited"}`, notify.Wait{}},
		{`{}`, errors.New("")},
		{`<html>`, errors.New("")},
	} {
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.body) })
		ch, err := feishu.New(feishu.Settings{Webhook: "https://feishu.test/hook"}, notifytest.Client(h), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ch.Send(t.Context(), message("#1 a"), "")
		var told notify.Wait
		switch {
		case c.want == nil && err != nil, c.want != nil && err == nil:
			t.Errorf("%s: got %v", c.body, err)
		case errors.Is(c.want, notify.ErrSettings) && !errors.Is(err, notify.ErrSettings):
			t.Errorf("%s: got %v, want refused for good", c.body, err)
		case errors.As(c.want, &told) && !errors.As(err, &told):
			t.Errorf("%s: got %v, want to wait", c.body, err)
		}
	}
}

func TestARevokedFeishuTokenIsReplaced(t *testing.T) {
	stand := &notifytest.Feishu{App: "cli_a", Secret: secret, Chat: "oc_1"}
	ch, err := feishu.New(feishu.Settings{App: "cli_a", Secret: secret, Chat: "oc_1", API: "https://feishu.test"}, notifytest.Client(stand), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := ch.Send(t.Context(), message("#1 a"), ""); err != nil {
			t.Fatal(err)
		}
		stand.Revoke()
	}
}

func TestDiscordsOwnButtonsAreShownWhileADecisionIsOpenAndOnlyByAnApplication(t *testing.T) {
	for _, app := range []bool{true, false} {
		dc := &notifytest.Discord{Path: "/api/webhooks/1/" + secret, App: app, Board: notifytest.Board{Now: (&clock{t0}).now}}
		ch, err := discord.New(discord.Settings{Webhook: "https://discord.test/api/webhooks/1/" + secret, App: app}, notifytest.Client(dc))
		if err != nil {
			t.Fatal(err)
		}
		if ch.Traits().Buttons != app {
			t.Errorf("app %v: it says that it carries buttons: %v", app, ch.Traits().Buttons)
		}
		m := message("#12 Approve 3 USD/h for train?")
		m.Actions = []notify.Action{
			{Act: "approve", Text: "Approve", Token: "y.p7.h.1.x", URL: "https://lowtide.test/decide?t=1"}, {Act: "deny", Text: "Deny", Token: "n.p7.h.1.x", URL: "https://lowtide.test/decide?t=2"},
		}
		ref, err := ch.Send(t.Context(), m, "")
		if err != nil {
			t.Fatal(err)
		}
		shown := dc.Messages()[0].Raw
		if has := strings.Contains(shown, `"custom_id":"y.p7.h.1.x"`) && strings.Contains(shown, `"style":4`); has != app {
			t.Errorf("app %v: buttons %v in %s", app, has, shown)
		}
		if has := strings.Contains(shown, "https://lowtide.test/decide"); has == app {
			t.Errorf("app %v: links %v in %s", app, has, shown)
		}
		m.Actions, m.Closed = nil, true
		if _, err := ch.Send(t.Context(), m, ref); err != nil {
			t.Fatal(err)
		}
		if shown := dc.Messages()[0].Raw; strings.Contains(shown, "custom_id") || app && !strings.Contains(shown, `"components":[]`) {
			t.Errorf("app %v: after the decision: %s", app, shown)
		}
		if p := dc.Problems(); len(p) > 0 {
			t.Errorf("app %v: %q", app, p)
		}
	}
}
