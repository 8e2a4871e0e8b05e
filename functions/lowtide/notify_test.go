package main

import (
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/notify"
	"lowtide/functions/notify/feishu"
	"lowtide/functions/notify/notifytest"
	"lowtide/functions/notify/slack"
	"lowtide/shared/provider/fake"
)

// chats are a Slack channel in English and a Feishu chat in Chinese.
func chats(t *testing.T, b *bed) (*notifytest.Slack, *notifytest.Feishu) {
	sl := &notifytest.Slack{Token: "xoxb-secret", Channel: "C1"}
	fs := &notifytest.Feishu{App: "cli_a", Secret: "app-secret", Chat: "oc_1"}
	en, err := slack.New(slack.Settings{Token: sl.Token, Channel: sl.Channel, API: "https://slack.test/api/"}, notifytest.Client(sl))
	if err != nil {
		t.Fatal(err)
	}
	zh, err := feishu.New(feishu.Settings{App: fs.App, Secret: fs.Secret, Chat: fs.Chat, API: "https://feishu.test"}, notifytest.Client(fs), nil)
	if err != nil {
		t.Fatal(err)
	}
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	if err != nil {
		t.Fatal(err)
	}
	b.told.Places = []notify.Place{
		{Name: "ops", Channel: en, Route: notify.Route{Language: notify.English}},
		{Name: "yunwei", Channel: zh, Route: notify.Route{Language: notify.Chinese, Zone: shanghai}},
	}
	return sl, fs
}

func TestAnInterruptionIsOneMessageInEachChatAndIsChangedUntilTheWorkRunsAgain(t *testing.T) {
	var sl *notifytest.Slack
	var fs *notifytest.Feishu
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		job := spec("train", 7, 180)
		b.say(events.WorkloadSubmitted{Spec: job})
		first := b.runs("train", 1, 75, time.Hour)
		b.local.Interrupt(first.id, 2*time.Minute)
		b.pass(15 * time.Second)
		for name, shown := range map[string][]notifytest.Shown{"slack": sl.Messages(), "feishu": fs.Messages()} {
			m := about(shown, "train", first.name)
			if len(m) != 1 || m[0].Edits > 0 {
				t.Errorf("%s: after the notice there are %d messages about it: %+v", name, len(m), shown)
			}
		}
		second := b.runs("train", 2, 76, time.Hour)
		b.pass(time.Minute)
		en, zh := about(sl.Messages(), "train", first.name), about(fs.Messages(), "train", first.name)
		if len(en) != 1 || len(zh) != 1 {
			t.Fatalf("%d messages in Slack and %d in Feishu, want one each\n%+v", len(en), len(zh), sl.Messages())
		}
		for _, want := range []string{"Over: 1 of 1", "resumed", "USD/h now"} {
			if !strings.Contains(en[0].Title, want) {
				t.Errorf("Slack's first line is %q, want %q in it", en[0].Title, want)
			}
		}
		for _, want := range []string{"已结束", "从第", "USD/小时"} {
			if !strings.Contains(zh[0].Title, want) {
				t.Errorf("Feishu's first line is %q, want %q in it", zh[0].Title, want)
			}
		}
		for _, m := range append(en, zh...) {
			if m.Edits == 0 || !strings.Contains(m.Text, second.name) {
				t.Errorf("changed %d times, want a message that was changed and names %s: %s", m.Edits, second.name, m.Text)
			}
		}
		b.finishes(job, 2*time.Hour)
		if p := append(sl.Problems(), fs.Problems()...); len(p) > 0 {
			t.Errorf("against the platforms' rules: %q", p)
		}
		t.Logf("Slack: %s\n%s\nFeishu: %s\n%s", en[0].Title, en[0].Text, zh[0].Title, zh[0].Text)
	}, func(b *bed) { sl, fs = chats(t, b) })
}

// about are the messages about a workload's machine.
func about(all []notifytest.Shown, words ...string) (some []notifytest.Shown) {
next:
	for _, m := range all {
		for _, w := range words {
			if !strings.Contains(m.Title+"\n"+m.Text, w) {
				continue next
			}
		}
		if strings.Contains(m.Title, "taken") || strings.Contains(m.Title, "interrupted") || strings.Contains(m.Title, "回收") || strings.Contains(m.Title, "中断") {
			some = append(some, m)
		}
	}
	return some
}
