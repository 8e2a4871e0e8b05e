package settings_test

import (
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"lowtide/functions/notify"
	"lowtide/functions/notify/settings"
)

const file = `
language: zh-CN
timezone: Asia/Shanghai
words: words
links: {url: "https://lowtide.example.org/", secret: "${LINK_SECRET}"}
channels:
  ops:
    slack: {token: "${SLACK}", channel: C1}
    severity: warning
    language: en
    quiet: 22:00-07:00
  ding:
    dingtalk: {webhook: "https://oapi.example.org/robot/send?access_token=${DING}", secret: "${DING}"}
    team: [vision]
    workloads: ["train-*"]
    heartbeat: "09:00"
    repeat: 8h
`

func env(name string) (string, bool) {
	v, ok := map[string]string{"SLACK": "xoxb-1", "DING": "SECRETDING", "LINK_SECRET": "0123456789abcdef"}[name]
	return v, ok
}

func parse(text string) (settings.Settings, error) {
	return settings.Parse([]byte(text), fstest.MapFS{"words/en.tmpl": {Data: []byte(`{{define "budget"}}x{{end}}`)}}, settings.Options{Env: env})
}

func TestAFileMakesChannelsWithTheirRoutes(t *testing.T) {
	s, err := parse(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Places) != 2 || s.Places[0].Name != "ding" || s.Places[1].Name != "ops" || s.Links.Base != "https://lowtide.example.org" {
		t.Fatalf("got %+v", s)
	}
	ding, ops := s.Places[0].Route, s.Places[1].Route
	if ding.Language != notify.Chinese || ding.Zone.String() != "Asia/Shanghai" || !ding.Heartbeat || ding.Hour != 9 || ding.Repeat != 8*time.Hour || ding.Teams[0] != "vision" {
		t.Errorf("ding: %+v", ding)
	}
	if ops.Language != notify.English || ops.Least != notify.Warning || ops.Quiet != (notify.Quiet{From: 22 * time.Hour, Until: 7 * time.Hour}) {
		t.Errorf("ops: %+v", ops)
	}
}

func TestWhatIsWrongIsNamedInOneLineWithoutAnyValue(t *testing.T) {
	const secret = "xoxb-VERYSECRET"
	for name, c := range map[string]struct{ text, want string }{
		"unknown field":           {"channels:\n  a:\n    slack: {tokn: " + secret + ", channel: C}", `unknown field "tokn"`},
		"two platforms":           {"channels:\n  a: {slack: {token: t, channel: c}, wecom: {webhook: \"https://x/" + secret + "\"}}", "2 platforms"},
		"no platform":             {"channels: {a: {severity: info}}", "0 platforms"},
		"missing part":            {"channels: {a: {slack: {token: " + secret + "}}}", "token and channel"},
		"not set":                 {"channels: {a: {slack: {token: \"${NOPE}\", channel: C}}}", "variable NOPE is not set"},
		"severity":                {"channels: {a: {slack: {token: t, channel: c}, severity: loud}}", "severity"},
		"quiet":                   {"channels: {a: {slack: {token: t, channel: c}, quiet: nights}}", "quiet"},
		"zone":                    {"channels: {a: {slack: {token: t, channel: c}, timezone: Mars/Base}}", "timezone"},
		"language":                {"channels: {a: {slack: {token: t, channel: c}, language: de}}", "language"},
		"name":                    {"channels: {\"a b\": {slack: {token: t, channel: c}}}", "its name"},
		"wrong kind":              {"channels: " + secret, "not the kind of value"},
		"short link secret":       {"links: {secret: abc}", "16 characters"},
		"a password in the clear": {"channels: {a: {email: {server: \"h:25\", user: u, password: " + secret + ", from: a@b.org, to: [c@d.org], tls: none}}}", "password"},
	} {
		_, err := parse(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q in one line", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: a value is repeated: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file)
	f.Add("channels: {a: {webhook: {url: x}}}")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parse(text); err == nil {
			for _, p := range s.Places {
				if p.Channel == nil || p.Name == "" {
					t.Errorf("%q makes a place without a channel", text)
				}
			}
		}
	})
}
