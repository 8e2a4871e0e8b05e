package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/chatops"
	"lowtide/functions/notify"
	"lowtide/functions/notify/notifytest"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/provider/fake"
)

// proposal waits for the newest question.
func proposal(b *bed, n int) events.PlanProposed {
	b.t.Helper()
	b.until(15*time.Minute, "a proposal", func() bool { return len(all[events.PlanProposed](b)) >= n })
	p := all[events.PlanProposed](b)
	return p[len(p)-1]
}

func refusals(b *bed) (why []string) {
	for _, r := range all[events.ApprovalRefused](b) {
		why = append(why, r.Why)
	}
	return why
}

func TestADearMachineWaitsForAPersonAndStaleWordsChangeNothingAndSaySo(t *testing.T) {
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		job := spec("train", 3, 180)
		b.say(events.WorkloadSubmitted{Spec: job})
		p := proposal(b, 1)
		if !strings.Contains(p.Why, "is above 0.5000 USD/h") || p.Default != "reject" || p.Until.IsZero() {
			t.Errorf("asked %+v, want why, until when, and what happens without an answer", p)
		}
		b.say(events.PlanApproved{Plan: p.Plan.ID, Hash: "of-another-plan", By: "ada"}, events.PlanApproved{Plan: "p999", By: "ada"})
		b.pass(30 * time.Second)
		if n := len(b.bill()); n > 0 {
			t.Fatalf("%d machines bought on a stale word", n)
		}
		if why := strings.Join(refusals(b), "; "); !strings.Contains(why, "another one by now") || !strings.Contains(why, "no such plan") {
			t.Errorf("told %q", why)
		}
		b.say(events.PlanApproved{Plan: p.Plan.ID, Hash: p.Plan.Hash(), By: "ada"})
		first := b.runs("train", 1, 75, time.Hour)
		b.say(events.PlanApproved{Plan: p.Plan.ID, Hash: p.Plan.Hash(), By: "bob"}, events.PlanRejected{Plan: p.Plan.ID, By: "bob"})
		b.pass(time.Minute)
		if n := len(b.bill()); n != 1 {
			t.Errorf("%d machines after a second approval and a late no, want the one", n)
		}

		// The recovery costs no more than what a person approved: nobody is asked.
		b.local.Interrupt(first.id, 2*time.Minute)
		b.runs("train", 2, 76, time.Hour)
		if n := len(all[events.PlanProposed](b)); n != 1 {
			t.Errorf("%d proposals, want none for the recovery\n%s", n, b.story())
		}
		b.finishes(job, 2*time.Hour)
	}, func(b *bed) { b.ask = rebalance.Approval{Hourly: fleet.Dollars(0.5)} })
}

func TestWithoutAnAnswerTheDefaultIsDone(t *testing.T) {
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		job := spec("train", 3, 30)
		job.Tags = map[string]string{"team": "vision"}
		b.say(events.WorkloadSubmitted{Spec: job})
		p := proposal(b, 1)
		if p.Default != "approve" || p.Until.Sub(p.Plan.Made) != 3*time.Minute {
			t.Errorf("asked %+v", p)
		}
		b.pass(p.Until.Sub(b.clock.Now()) - 10*time.Second)
		if n := len(b.bill()); n > 0 {
			t.Errorf("%d machines bought before the wait was over", n)
		}
		b.until(time.Minute, "the purchase", func() bool { return len(b.bill()) == 1 })
		b.say(events.PlanRejected{Plan: p.Plan.ID, By: "ada"})
		b.finishes(job, time.Hour)
		if why := strings.Join(refusals(b), "; "); why == "" {
			t.Error("a no that came too late was not answered")
		}
	}, func(b *bed) {
		b.ask = rebalance.Approval{Tags: map[string]string{"team": "vision"}, Wait: 3 * time.Minute, Buy: true}
	})
}

func TestAnObservedWorkloadIsNeverBoughtFor(t *testing.T) {
	bubble(t, fake.Config{}, func(t *testing.T, b *bed) {
		job := spec("train", 3, 30)
		job.Autonomy = fleet.Observe
		b.say(events.WorkloadSubmitted{Spec: job})
		p := proposal(b, 1)
		b.say(events.PlanApproved{Plan: p.Plan.ID, By: "ada"})
		b.pass(time.Hour)
		if n := len(b.bill()); n > 0 || !p.Observed {
			t.Errorf("%d machines bought for a workload that is only observed (%+v)", n, p)
		}
		if why := strings.Join(refusals(b), "; "); !strings.Contains(why, "only observed") {
			t.Errorf("told %q", why)
		}
	}, func(b *bed) { b.ask = rebalance.Approval{Buy: true} })
}

// press sends what Slack sends when somebody presses a button.
func press(h http.Handler, secret, user, token string, now time.Time) int {
	payload, _ := json.Marshal(map[string]any{
		"type": "block_actions", "user": map[string]string{"id": user},
		"actions": []any{map[string]any{"action_id": "approve", "value": token, "action_ts": strconv.FormatInt(now.UnixNano(), 10)}},
	})
	body, ts := "payload="+url.QueryEscape(string(payload)), strconv.FormatInt(now.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("v0:" + ts + ":" + body))
	r := httptest.NewRequest(http.MethodPost, "/slack", strings.NewReader(body))
	r.Header.Set("X-Slack-Request-Timestamp", ts)
	r.Header.Set("X-Slack-Signature", "v0="+hex.EncodeToString(mac.Sum(nil)))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

func TestAButtonInChatBuysAndTheMessageSaysWhoApproved(t *testing.T) {
	const secret = "0123456789abcdef"
	var sl *notifytest.Slack
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		s := chatops.Settings{People: map[string]*chatops.Person{"ada": {Slack: "UADA", Role: "operator", Approve: 5}, "eve": {Slack: "UEVE", Role: "viewer"}}}
		s.Slack.Secret, s.Links.Secret = secret, secret
		h, err := b.people(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		job := spec("train", 3, 60)
		job.Autonomy = fleet.Suggest
		b.say(events.WorkloadSubmitted{Spec: job})
		asked := func() (m notifytest.Shown) {
			for _, one := range sl.Messages() {
				if len(one.Buttons) == 2 {
					m = one
				}
			}
			return m
		}
		b.until(5*time.Minute, "a message with buttons", func() bool { return asked().Ref != "" })
		m := asked()
		if !strings.Contains(m.Title, "Approve 0.9731 USD/h for train?") || !strings.Contains(m.Text, "Without an answer by") {
			t.Errorf("asked %q\n%s", m.Title, m.Text)
		}
		press(h, secret, "UEVE", m.Buttons[0].Token, time.Now())
		b.pass(10 * time.Second)
		if n := len(b.bill()); n > 0 {
			t.Fatalf("%d machines bought by somebody who may only look", n)
		}
		for range 2 {
			if code := press(h, secret, "UADA", m.Buttons[0].Token, time.Now()); code != http.StatusOK {
				t.Errorf("pressed: %d", code)
			}
			b.pass(time.Second)
		}
		b.until(time.Minute, "the purchase", func() bool { return len(b.bill()) == 1 })
		b.until(2*time.Minute, "the message changed", func() bool {
			for _, one := range sl.Messages() {
				if one.Ref == m.Ref {
					return strings.Contains(one.Title, "Approved by ada") && len(one.Buttons) == 0
				}
			}
			return false
		})
		var acts []string
		for _, a := range all[events.PersonActed](b) {
			acts = append(acts, a.By+" "+a.Act+" "+strconv.FormatBool(a.Done))
		}
		if got := strings.Join(acts, ", "); got != "eve approve false, ada approve true, ada approve false" && got != "eve approve false, ada approve true, ada approve true" {
			t.Errorf("the audit holds %s", got)
		}
		b.finishes(job, time.Hour)
		if n := len(b.bill()); n != 1 {
			t.Errorf("%d machines bought", n)
		}
	}, func(b *bed) {
		sl, _ = chats(t, b)
		b.told.Links = notify.Links{Secret: []byte(secret)}
	})
}
