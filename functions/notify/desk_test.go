package notify_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/notify"
	"lowtide/functions/notify/dingtalk"
	"lowtide/functions/notify/notifytest"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/fn/memory"
	"lowtide/shared/store"
)

func titles(b *notifytest.Board) (all []string) {
	for _, m := range b.Messages() {
		all = append(all, m.Title)
	}
	return all
}

func TestManyThingsAtOnceAreADigestAndTheLimitIsNeverCrossed(t *testing.T) {
	var all_ []platform
	d := newDesk(t, 1, all(t, &all_, notify.Route{}, "slack bot", "feishu robot", "dingtalk", "wecom", "telegram", "webhook"))
	for i := range 120 { // 120 workloads refused within a minute, each for a reason of its own
		d.say(events.WorkloadRefused{Workload: fmt.Sprintf("w%03d", i), Why: fmt.Sprintf("needs %d USD", i)})
		d.pass(500 * time.Millisecond)
	}
	d.pass(10 * time.Minute)
	for _, p := range all_ {
		shown := p.board.Messages()
		if most := 3 * p.channel.Traits().PerMinute; float64(len(shown)) > min(most, 120) || p.board.Refused() > 0 {
			t.Errorf("%s: %d messages, %d over the limit", p.name, len(shown), p.board.Refused())
		}
		if p.name == "pagerduty" || p.name == "slack webhook" || p.name == "wecom" || p.name == "telegram" || p.name == "slack bot" {
			continue // short messages: the rest is counted, not named
		}
		var text strings.Builder
		for _, m := range shown {
			text.WriteString(strings.ReplaceAll(m.Title+m.Text, `\`, ""))
		}
		for i := range 120 {
			if w := fmt.Sprintf("w%03d", i); !strings.Contains(text.String(), w) && !strings.Contains(text.String(), "more") {
				t.Errorf("%s: %s is nowhere", p.name, w)
				break
			}
		}
	}
}

func TestAChannelThatFailsDelaysNobodyIsToldElsewhereAndCatchesUp(t *testing.T) {
	var all_ []platform
	d := newDesk(t, 1, all(t, &all_, notify.Route{}, "slack bot", "dingtalk"))
	works, fails := all_[0].board, all_[1].board
	down := true
	fails.Fault = func() (int, bool) {
		if down {
			return http.StatusBadGateway, false
		}
		return 0, false
	}
	d.say(run("train", "m1", 1, 1, d.host.Now())...)
	d.pass(time.Minute)
	d.say(taken("m1", d.host.Now()))
	d.pass(30 * time.Second)
	if n := len(interrupted(works)); n != 1 {
		t.Fatalf("%d messages on the channel that works within half a minute", n)
	}
	d.pass(2 * time.Minute)
	if got := strings.Join(titles(works), "\n"); !strings.Contains(got, "Channel c1 does not work") {
		t.Errorf("nobody was told that the other fails:\n%s", got)
	}
	d.say(run("train", "m2", 2, 0.5, d.host.Now())...)
	d.pass(time.Hour)
	down = false
	d.pass(10 * time.Minute)
	shown := interrupted(fails)
	if len(shown) != 1 || !strings.Contains(shown[0].Title, "Over: 1 of 1") {
		t.Errorf("when it works again it shows %+v, want the last state, once", shown)
	}
	if got := strings.Join(titles(works), "\n"); !strings.Contains(got, "Channel c1 works again") {
		t.Errorf("nobody was told that it works again:\n%s", got)
	}
	for _, line := range titles(fails) {
		if strings.Contains(line, "Channel c1") {
			t.Errorf("a channel is told about itself: %s", line)
		}
	}
}

func TestAnOlderStateNeverFollowsANewerOne(t *testing.T) {
	var s *notifytest.Slack
	d := newDesk(t, 1, one(t, &s, notify.Route{}))
	d.say(run("train", "m1", 1, 1, d.host.Now())...)
	d.say(run("train", "m2", 2, 0.9, d.host.Now())...) // the move is over …
	d.pass(time.Second)
	d.say(taken("m1", d.host.Now())) // … and then the notice is heard
	d.pass(10 * time.Minute)
	shown := interrupted(&s.Board)
	if len(shown) != 1 || !strings.Contains(shown[0].Title, "Over") || shown[0].Edits > 0 {
		t.Errorf("got %+v, want one message, that it is over", shown)
	}
}

func TestWhatNobodyToldIsUnknown(t *testing.T) {
	var s *notifytest.Slack
	d := newDesk(t, 1, one(t, &s, notify.Route{}))
	d.say(events.InstanceInterrupted{Cloud: "aws", Account: "1", ID: "i-0x", EndsBy: d.host.Now().Add(time.Minute), Action: "terminate"})
	d.pass(time.Minute)
	m := s.Messages()
	if len(m) != 1 || !strings.Contains(m[0].Text, "unknown workload: i-0x (unknown)") {
		t.Fatalf("got %+v", m)
	}
	d.say(events.InstanceLaunched{Machine: "i-0x", ID: "i-0x", Workload: "train", Offer: offer("sim-1a", 1), At: d.host.Now()})
	d.pass(time.Minute)
	if m := s.Messages(); len(m) != 1 || !strings.Contains(m[0].Text, "train: i-0x (p3.2xlarge spot fake/sim-1a") {
		t.Errorf("after the purchase was told: %+v", m)
	}
}

func TestRoutesQuietHoursAndSilences(t *testing.T) {
	warn := events.BudgetWarned{Workload: "train-1", Spent: fleet.Dollars(8), Budget: fleet.Dollars(10)}
	gone := events.BudgetExhausted{Workload: "train-1", Spent: fleet.Dollars(10), Budget: fleet.Dollars(10)}
	submit := events.WorkloadSubmitted{Spec: fleet.Spec{Name: "train-1", Tags: map[string]string{"team": "vision"}}}
	shanghai := time.FixedZone("CST", 8*3600) // t0 is 20:00 there
	for name, c := range map[string]struct {
		route notify.Route
		say   []events.Fact
		after time.Duration
		want  int
	}{
		"all":                     {notify.Route{}, []events.Fact{warn}, time.Minute, 1},
		"a lesser severity":       {notify.Route{Least: notify.Critical}, []events.Fact{warn}, time.Minute, 0},
		"it became critical":      {notify.Route{Least: notify.Critical}, []events.Fact{warn, gone}, time.Minute, 1},
		"the team's":              {notify.Route{Teams: []string{"vision"}}, []events.Fact{submit, warn}, time.Minute, 1},
		"another team's":          {notify.Route{Teams: []string{"speech"}}, []events.Fact{submit, warn}, time.Minute, 0},
		"a pattern":               {notify.Route{Workloads: []string{"train-*"}}, []events.Fact{warn}, time.Minute, 1},
		"another pattern":         {notify.Route{Workloads: []string{"serve-*"}}, []events.Fact{warn}, time.Minute, 0},
		"a kind":                  {notify.Route{Kinds: []string{"interrupted"}}, []events.Fact{warn}, time.Minute, 0},
		"quiet hours":             {notify.Route{Zone: shanghai, Quiet: notify.Quiet{From: 19 * time.Hour, Until: 21 * time.Hour}}, []events.Fact{warn}, 30 * time.Minute, 0},
		"quiet hours are over":    {notify.Route{Zone: shanghai, Quiet: notify.Quiet{From: 19 * time.Hour, Until: 21 * time.Hour}}, []events.Fact{warn}, 62 * time.Minute, 1},
		"quiet over midnight":     {notify.Route{Zone: shanghai, Quiet: notify.Quiet{From: 19 * time.Hour, Until: 7 * time.Hour}}, []events.Fact{warn}, 10 * time.Hour, 0},
		"critical breaks quiet":   {notify.Route{Zone: shanghai, Quiet: notify.Quiet{From: 19 * time.Hour, Until: 7 * time.Hour}}, []events.Fact{gone}, time.Minute, 1},
		"a silence":               {notify.Route{}, []events.Fact{events.SilenceSet{ID: "s", Workload: "train-*", Until: t0.Add(time.Hour)}, warn}, 30 * time.Minute, 0},
		"a silence ends":          {notify.Route{}, []events.Fact{events.SilenceSet{ID: "s", Workload: "train-*", Until: t0.Add(time.Hour)}, warn}, 62 * time.Minute, 1},
		"a silence of others":     {notify.Route{}, []events.Fact{events.SilenceSet{ID: "s", Workload: "serve-*", Until: t0.Add(time.Hour)}, warn}, time.Minute, 1},
		"a silence is taken back": {notify.Route{}, []events.Fact{events.SilenceSet{ID: "s", Until: t0.Add(time.Hour)}, warn, events.SilenceSet{ID: "s", Until: t0}}, time.Minute, 1},
		"an open one is repeated": {notify.Route{}, []events.Fact{warn}, 4*time.Hour + 2*time.Minute, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var s *notifytest.Slack
			d := newDesk(t, 1, one(t, &s, c.route))
			d.say(c.say...)
			d.pass(c.after)
			if got := s.Messages(); len(got) != c.want {
				t.Errorf("%d messages, want %d: %+v", len(got), c.want, got)
			}
		})
	}
}

func TestADryRunSaysSoInBothLanguages(t *testing.T) {
	for lang, want := range map[string]string{notify.English: "DRY RUN: #1", notify.Chinese: "【演练】#1"} {
		var s *notifytest.Slack
		d := newDesk(t, 1, one(t, &s, notify.Route{Language: lang}))
		e := events.New("f", "test", t0, events.InstanceInterrupted{Machine: "m1", EndsBy: t0.Add(time.Minute)})
		e.Dry = true
		d.host.Publish(e)
		d.pass(time.Minute)
		if m := s.Messages(); len(m) != 1 || !strings.HasPrefix(m[0].Title, want) {
			t.Errorf("%s: got %+v, want %q at its head", lang, m, want)
		}
	}
}

func TestALostAnswerIsNoSecondMessageWhereThePlatformKnowsRepeats(t *testing.T) {
	var all_ []platform
	d := newDesk(t, 1, all(t, &all_, notify.Route{}, "feishu app", "webhook", "pagerduty", "alertmanager"))
	for _, p := range all_ {
		n := 0
		p.board.Fault = func() (int, bool) { // the second request is carried out and its answer lost
			if n++; n == 2 {
				return http.StatusGatewayTimeout, true
			}
			return 0, false
		}
	}
	d.say(events.BudgetWarned{Workload: "w", Spent: fleet.Dollars(8), Budget: fleet.Dollars(10)})
	d.pass(20 * time.Second)
	d.say(events.BudgetExhausted{Workload: "w", Spent: fleet.Dollars(10), Budget: fleet.Dollars(10)})
	d.pass(10 * time.Minute)
	for _, p := range all_ {
		if got := p.board.Messages(); len(got) != 1 || !strings.Contains(got[0].Title, "SPENT: 10.00 USD") {
			t.Errorf("%s: %+v", p.name, got)
		}
	}
}

func TestAMessageThatSomebodyDeletedIsShownAnew(t *testing.T) {
	var s *notifytest.Slack
	d := newDesk(t, 1, one(t, &s, notify.Route{}))
	d.say(events.BudgetWarned{Workload: "w", Spent: fleet.Dollars(8), Budget: fleet.Dollars(10)})
	d.pass(time.Minute)
	s.Remove(s.Messages()[0].Ref)
	d.say(events.BudgetExhausted{Workload: "w", Spent: fleet.Dollars(10), Budget: fleet.Dollars(10)})
	d.pass(time.Minute)
	if m := s.Messages(); len(m) != 1 || !strings.Contains(m[0].Title, "SPENT") {
		t.Errorf("got %+v", m)
	}
}

func TestAHeartbeatComesOnceADay(t *testing.T) {
	var s *notifytest.Slack
	d := newDesk(t, 1, one(t, &s, notify.Route{Heartbeat: true, Hour: 9}))
	d.say(run("train", "m1", 1, 1.5, t0)...)
	d.pass(72 * time.Hour)
	if m := s.Messages(); len(m) != 4 || !strings.Contains(m[0].Title, "1.5000 USD/h for 1 machine") {
		t.Errorf("%d in three days that begin after its hour: %+v", len(m), m)
	}
}

func TestTroubleOfAnInterruptedWorkloadIsToldThere(t *testing.T) {
	var s *notifytest.Slack
	d := newDesk(t, 1, one(t, &s, notify.Route{}))
	d.say(run("train", "m1", 1, 1, t0)...)
	d.say(run("other", "m2", 1, 1, t0)...)
	d.say(taken("m1", t0))
	for i, w := range []string{"train", "other"} {
		m := fmt.Sprintf("n%d", i)
		d.say(events.PlanMade{Plan: fleet.Plan{ID: "p" + m, Action: fleet.Launch, Machine: m, Workload: w, Made: t0, Offers: []fleet.Offer{offer("a", 1)}}})
		d.say(events.PlanFailed{Plan: "p" + m, Machine: m, Action: fleet.Launch, Why: "no capacity"})
	}
	d.pass(time.Minute)
	got := strings.Join(titles(&s.Board), "\n")
	if len(s.Messages()) != 2 || strings.Count(got, "Cannot buy for 1 workload") != 1 {
		t.Errorf("got\n%s", got)
	}
}

func TestARobotOfTwentyAMinuteIsNotMutedByAStorm(t *testing.T) {
	var stand *notifytest.DingTalk
	d := newDesk(t, 1, func(c *clock) []notify.Place {
		stand = &notifytest.DingTalk{Token: "t", Board: notifytest.Board{Now: c.now}}
		ch, err := dingtalk.New(dingtalk.Settings{Webhook: "https://ding.test/?access_token=t"}, notifytest.Client(stand), c.now)
		if err != nil {
			t.Fatal(err)
		}
		return []notify.Place{{Name: "ding", Channel: ch, Route: notify.Route{Wait: time.Second}}}
	})
	const all = 150
	for i := range all { // one a second, each an incident of its own
		d.say(events.BudgetExhausted{Workload: fmt.Sprint("w", i), Spent: fleet.Dollars(1), Budget: fleet.Dollars(1)})
		d.pass(time.Second)
	}
	d.pass(5 * time.Minute)
	var text strings.Builder
	for _, m := range stand.Messages() {
		text.WriteString(m.Title + m.Text + " ")
	}
	for i := range all {
		if !strings.Contains(text.String(), fmt.Sprintf("of w%d is SPENT", i)) {
			t.Fatalf("w%d is not told", i)
		}
	}
	if n := len(stand.Messages()); stand.Refused() > 0 || n > 50 {
		t.Errorf("%d messages in two and a half minutes, %d over the limit", n, stand.Refused())
	}
}

func TestWhatWasOverBeforeSomebodyListenedIsNotToldAsNews(t *testing.T) {
	var s *notifytest.Slack
	d := newDesk(t, 1, one(t, &s, notify.Route{}))
	for _, name := range []string{"notify", "notify-ops"} {
		d.host.Pause(name) // nobody listens yet
	}
	d.say(run("train", "m1", 1, 1, t0)...)
	d.say(taken("m1", t0))
	d.pass(10 * time.Minute)
	d.say(run("train", "m2", 2, 1, d.host.Now())...)
	d.say(events.BudgetWarned{Workload: "train", Spent: fleet.Dollars(8), Budget: fleet.Dollars(10)})
	d.pass(24 * time.Hour)
	d.cfg.Now = d.host.Now
	d.restart()
	d.pass(time.Hour)
	if got := titles(&s.Board); len(got) != 1 || !strings.Contains(got[0], "has spent") {
		t.Errorf("got %q, want what is still open alone", got)
	}
	d.say(taken("m2", d.host.Now()))
	d.pass(time.Minute)
	if got := interrupted(&s.Board); len(got) != 1 || !strings.Contains(got[0].Text, "train: m2 (p3.2xlarge") {
		t.Errorf("got %+v, want the machine of long ago known", got)
	}
}

func TestNoSecretIsInAnyFactOrStoredValue(t *testing.T) {
	for _, answer := range []bool{false, true} {
		d := newDesk(t, 1, func(c *clock) (places []notify.Place) {
			for i, p := range platforms(t, c, echo{answer}) {
				places = append(places, notify.Place{Name: fmt.Sprint("c", i), Channel: p.channel})
			}
			return places
		})
		d.say(events.BudgetExhausted{Workload: "w", Spent: fleet.Dollars(10), Budget: fleet.Dollars(10)})
		d.pass(5 * time.Minute)
		var sinks strings.Builder
		failed := map[string]bool{}
		d.host.Stored(func(m fn.Delivery) {
			b, err := events.Encode(m.Event)
			if err != nil {
				t.Fatal(err)
			}
			if f, ok := m.Event.Data.(events.ChannelFailed); ok {
				failed[f.Channel] = true
			}
			sinks.Write(b)
		})
		keys, err := d.books.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			val, _, err := d.books.Get(t.Context(), k)
			if err != nil {
				t.Fatal(err)
			}
			sinks.Write(val)
		}
		if len(failed) != len(d.cfg.Places) {
			t.Errorf("%d of %d channels are said to fail", len(failed), len(d.cfg.Places))
		}
		if strings.Contains(strings.ToLower(sinks.String()), strings.ToLower(secret)) {
			t.Error("a secret is in a fact or a stored value")
		}
	}
}

func TestWhatARuleHasToTellIsNewsOrAStateThatEnds(t *testing.T) {
	var s *notifytest.Slack
	d := newDesk(t, 1, one(t, &s, notify.Route{}))
	d.say(
		events.RuleActed{Rule: "a", Act: "notify", About: "train", Done: true, Severity: "info", Result: "a checkpoint at last"},
		events.RuleActed{Rule: "b", Act: "notify", About: "train", Done: true, Severity: "critical", Result: "12 USD/h", Lasts: true},
		events.RuleActed{Rule: "c", Act: "pause", About: "train", Done: true, Result: "train saves and stops"},
		events.RuleActed{Rule: "d", Act: "webhook", About: "train", Result: "not sent: example.org refuses it with 403"},
		events.RuleActed{Rule: "b", Act: "notify", About: "other", Done: true, Over: true, Severity: "critical", Result: "over"}, // nobody was told that it began
	)
	d.pass(time.Minute)
	want := []string{"12 USD/h", "a checkpoint at last", "webhook: not sent: example.org refuses it with 403"}
	if got := titles(&s.Board); len(got) != 3 || !strings.Contains(got[0], want[0]) || !strings.Contains(strings.Join(got, "\n"), want[1]) || !strings.Contains(strings.Join(got, "\n"), want[2]) {
		t.Fatalf("told %q, want %q", got, want)
	}
	d.say(events.RuleActed{Rule: "b", Act: "notify", About: "train", Done: true, Over: true, Severity: "critical", Result: "over"})
	d.pass(time.Minute)
	m := s.Messages()
	if len(m) != 3 || !strings.Contains(m[0].Title, "Over: 12 USD/h") || !strings.Contains(m[0].Text, "Rule b") {
		t.Errorf("after its end: %+v", m)
	}
}

func TestAWasteIsOneMessageUntilItIsOverAndNothingLateOpensItAgain(t *testing.T) {
	var s *notifytest.Slack
	d := newDesk(t, 1, one(t, &s, notify.Route{}))
	d.say(run("train", "m1", 1, 3, d.host.Now())...)
	idle := func() events.Fact {
		return events.WorkloadIdle{Workload: "train", Machine: "m1", Epoch: 1, Since: t0, Why: fmt.Sprintf("nothing worked, seen at %s", d.host.Now().Format("15:04"))}
	}
	d.say(events.WorkloadWarned{Workload: "train", Action: fleet.IdleStop, Why: "idle", At: t0.Add(30 * time.Minute)}, idle()) // in either order
	d.pass(time.Minute)
	m := s.Messages()
	if len(m) != 1 || !strings.Contains(m[0].Title, "train is IDLE at 3.0000 USD/h") || !strings.Contains(m[0].Text, "lowtide keep train") {
		t.Fatalf("told %+v", m)
	}
	old := idle()
	d.pass(time.Hour)
	d.say(idle())
	d.pass(time.Minute)
	d.say(events.WorkloadBusy{Workload: "train", Machine: "m1", Epoch: 1})
	d.pass(time.Minute)
	d.say(old, events.WorkloadIdle{Workload: "train", Machine: "m0", Epoch: 0, Since: d.host.Now(), Why: "of a run before"})
	d.pass(10 * time.Minute)
	if m := s.Messages(); len(m) != 1 || !strings.Contains(m[0].Title, "train works again") {
		t.Errorf("told %+v, want the one message, that it works again", m)
	}
	d.say(events.WorkloadIdle{Workload: "train", Machine: "m1", Epoch: 1, Since: d.host.Now(), Why: "again"})
	d.pass(time.Minute)
	if m := s.Messages(); len(m) != 2 {
		t.Errorf("%d messages, want a second for a second waste", len(m))
	}
}

func TestTwoFunctionsTellTheSameAsOneForEachChannel(t *testing.T) {
	var all_ []platform
	d := newDesk(t, 1, all(t, &all_, notify.Route{}, "slack bot", "dingtalk", "webhook"))
	two := memory.New(1, t0)
	clock := &clock{t0}
	two.Every(100*time.Millisecond, func() { clock.at = two.Now() })
	var shown []platform
	places := all(t, &shown, notify.Route{}, "slack bot", "dingtalk", "webhook")(clock)
	fold, channels, err := notify.Two(notify.Config{Fleet: "f", Books: store.Memory(), Places: places})
	if err != nil {
		t.Fatal(err)
	}
	two.Add(fold)
	two.Add(channels)
	two.Every(30*time.Second, func() {
		two.Publish(events.New("f", "schedule", two.Now(), events.ClockTicked{What: "tick", Due: two.Now()}))
	})
	for _, h := range []*memory.Host{d.host, two} {
		say := func(facts ...events.Fact) {
			for _, f := range facts {
				h.Publish(events.New("f", "test", h.Now(), f))
			}
		}
		say(run("train", "m1", 1, 1, h.Now())...)
		h.Run(h.Now().Add(time.Minute))
		say(taken("m1", h.Now()))
		h.Run(h.Now().Add(time.Minute))
		say(run("train", "m2", 2, 0.5, h.Now())...)
		h.Run(h.Now().Add(time.Hour))
	}
	for i, p := range all_ {
		if got, want := strings.Join(titles(shown[i].board), "\n"), strings.Join(titles(p.board), "\n"); got != want || want == "" {
			t.Errorf("%s: %q, want %q", p.name, got, want)
		}
	}
}
