package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/chatops"
	"lowtide/functions/notify/notifytest"
	"lowtide/functions/rules"
	"lowtide/shared/fleet"
	"lowtide/shared/provider/fake"
)

func ruled(t *testing.T, b *bed, text string) {
	t.Helper()
	s, err := rules.Parse("rules.yaml", []byte(text), rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b.own = s
}

// alert posts what an Alertmanager posts.
func alert(t *testing.T, h http.Handler, token, status string) int {
	t.Helper()
	body := fmt.Sprintf(`{"version":"4","groupKey":"{}:{alertname=\"HighLatency\"}","status":"%[1]s","commonLabels":{"alertname":"HighLatency","severity":"critical","service":"serve"},
		"commonAnnotations":{"summary":"p99 is 900 ms"},"alerts":[{"status":"%[1]s","startsAt":"2026-03-01T12:00:00Z"}]}`, status)
	r := httptest.NewRequest(http.MethodPost, "/alertmanager", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

const replicas = `
rules:
  - name: scale-out
    fact: alert.received
    when: fact.firing && fact.labels.service == "serve"
    do:
      - scale: {name: serve, add: 1, max: 2, budget: %s, spec: {run: [train], env: {SEED: "7", STEPS: "60"}, steps: 60, work: 10m, checkpoint: 5m, autonomy: act}}
      - notify: "{{ fact.annotations.summary }}: one more of serve"
`

func TestAPrometheusAlertAddsAReplicaInsideItsBudget(t *testing.T) {
	var sl *notifytest.Slack
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		desk := chatops.Settings{}
		desk.Alerts.Bearer = "token-of-the-alertmanager"
		h, err := b.people(t.Context(), desk)
		if err != nil {
			t.Fatal(err)
		}
		b.pass(time.Minute)
		if code := alert(t, h, "a-forged-token-of-nobody", "firing"); code != http.StatusUnauthorized {
			t.Errorf("a forged alert is answered %d", code)
		}
		if code := alert(t, h, desk.Alerts.Bearer, "firing"); code != http.StatusOK {
			t.Fatalf("the alert is answered %d", code)
		}
		b.runs("serve-r1", 1, 10, time.Hour)
		w := b.work("serve-r1")
		if budget, ok := w.Spec.Budget.Get(); !ok || budget.String() != "20.00 USD" || w.Commit.Float() > 20 {
			t.Errorf("it runs with %+v, promised %s, want the rule's 20 USD", w.Spec.Budget, w.Commit)
		}
		if missing := b.inOrder(is[events.AlertReceived](), is[events.WorkloadAsked](), is[events.WorkloadSubmitted](), is[events.WorkloadAccepted](), is[events.InstanceLaunched](), is[events.InstanceVerified](), is[events.WorkloadStarted]()); missing > 0 {
			t.Errorf("%d facts of the way are missing\n%s", missing, b.story())
		}
		if acts := all[events.RuleActed](b); len(acts) != 2 || !acts[0].Done || acts[0].About != "serve" {
			t.Errorf("acts: %+v", acts)
		}
		b.until(5*time.Minute, "people are told", func() bool {
			for _, m := range sl.Messages() {
				if strings.Contains(m.Title, "p99 is 900 ms: one more of serve") {
					return true
				}
			}
			return false
		})
		b.until(time.Hour, "the replica has finished and is paid", func() bool {
			b.pass(10 * time.Second)
			return b.work("serve-r1").Phase == fleet.Finished && len(b.bill().Running()) == 0
		})
	}, func(b *bed) { sl, _ = chats(t, b); ruled(t, b, fmt.Sprintf(replicas, "20 USD")) })
}

func TestAReplicaThatItsBudgetDoesNotCoverIsNotBought(t *testing.T) {
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		b.pass(time.Minute)
		b.say(events.AlertReceived{Group: "g", Name: "HighLatency", Firing: true, Labels: map[string]string{"service": "serve"}})
		b.until(10*time.Minute, "the refusal", func() bool { return len(all[events.WorkloadRefused](b)) > 0 })
		b.pass(10 * time.Minute)
		if r := all[events.WorkloadRefused](b)[0]; r.Workload != "serve-r1" || !strings.Contains(r.Why, "budget") {
			t.Errorf("refused: %+v", r)
		}
		if n := len(b.bill()); n > 0 {
			t.Errorf("%d machines bought", n)
		}
	}, func(b *bed) { ruled(t, b, fmt.Sprintf(replicas, "0.10 USD")) })
}

func TestARuleOnAnIdleWorkloadPausesItAndNothingElse(t *testing.T) {
	bubble(t, fake.Config{Traces: zones(nil, nil)}, func(t *testing.T, b *bed) {
		job, other := spec("train", 7, 180), spec("other", 8, 180)
		b.say(events.WorkloadSubmitted{Spec: job}, events.WorkloadSubmitted{Spec: other})
		on := b.runs("train", 1, 20, time.Hour)
		b.runs("other", 1, 20, time.Hour)
		b.say(events.WorkloadIdle{Workload: "train", Machine: on.name, Epoch: 1, Since: b.clock.Now().Add(-time.Hour), Why: "nothing moves"})
		b.until(10*time.Minute, "train is paused and its machine ended", func() bool { return b.work("train").Phase == fleet.Paused && b.work("train").On == "" })
		if w := b.work("train"); !strings.Contains(w.Why, "rule lunch-break") || w.Saved.Step < 20 {
			t.Errorf("train: %s, saved %d", w.Why, w.Saved.Step)
		}
		if b.work("other").Phase != fleet.Accepted {
			t.Errorf("other is %s", b.work("other").Phase)
		}
		b.say(events.WorkloadResumed{Workload: "train", By: "ada"})
		b.finishes(job, 2*time.Hour)
	}, func(b *bed) {
		ruled(t, b, `
rules:
  - name: lunch-break
    fact: workload.idle
    when: workload.phase == "accepted" && machine.hourly > 0.0 && fleet.running >= 2
    do: [{pause: "{{ key }}"}]
`)
	})
}

func TestRulesAreTriedOnTheFactsOfThePast(t *testing.T) {
	dir := t.TempDir()
	var lines []string
	at := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	record := func(f events.Fact) {
		doc, err := events.Encode(events.New("f", "test", at, f))
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(doc))
		at = at.Add(5 * time.Minute)
	}
	offer := fleet.Offer{Cloud: "fake", Account: "main", Region: "r", Type: "p3.2xlarge", Market: fleet.Spot, GPU: "V100", Hourly: fleet.Known(fleet.Dollars(3))}
	record(events.WorkloadSubmitted{Spec: spec("train", 7, 180)})
	record(events.WorkloadAccepted{Workload: "train", Worst: fleet.Dollars(9)})
	record(events.PlanMade{Plan: fleet.Plan{ID: "p1", Action: fleet.Launch, Machine: "m1", Cloud: "fake", Account: "main", Workload: "train", Offers: []fleet.Offer{offer}}})
	record(events.InstanceLaunched{Plan: "p1", Machine: "m1", ID: "i-1", Workload: "train", Offer: offer, At: at})
	record(events.WorkloadStarted{Workload: "train", Machine: "m1", Epoch: 1})
	record(events.WorkloadIdle{Workload: "train", Machine: "m1", Epoch: 1, Since: at, Why: "nothing moves"})
	at = at.Add(time.Hour)
	record(events.WorkloadFinished{Workload: "train", Machine: "m1", Epoch: 1})
	file := filepath.Join(dir, "rules.yaml")
	for name, text := range map[string]string{
		"events/day.jsonl": strings.Join(lines, "\n") + "\n", "job.yaml": "run: ./eval\nwork: 1h\n",
		"rules.yaml": `
rules:
  - {name: idle, fact: workload.idle, when: machine.hourly > 2 && workload.on == machine.name, for: 20m, do: [{pause: "{{ key }}"}]}
  - {name: eval, fact: workload.finished, do: [{submit: {name: "eval-{{ key }}", file: job.yaml, budget: 2 USD}}]}
`,
		"bad.yaml":  "rules:\n  - {name: bad, fact: workload.idle, when: 1 / fleet.asks > 0, do: [{notify: x}]}\n",
		"lost.yaml": "rules:\n  - {name: a, fact: workload.idle, do: [{submit: {name: x, file: no.yaml, budget: 2 USD}}]}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	command := func(args ...string) (string, int) {
		out, err := say(t, args...)
		var c coded
		if err == nil {
			return out, 0
		}
		if !errors.As(err, &c) {
			t.Fatal(err)
		}
		return out + err.Error(), c.code
	}
	out, code := command("rules", "test", file, "--events", filepath.Join(dir, "events"))
	for _, want := range []string{
		"2026-03-02 12:45:00  idle: pause train done: train saves and stops", "eval: submit eval-train done: asked for eval-train, at 2.0000 USD at most",
		"7 facts, 2 rules: 2 acts, 0 rules switched off",
	} {
		if !strings.Contains(out, want) || code != 0 {
			t.Errorf("exit %d, want %q in\n%s", code, want, out)
		}
	}
	if out, code := command("rules", "test", filepath.Join(dir, "bad.yaml"), "--events", filepath.Join(dir, "events")); code != exitFailed || !strings.Contains(out, "bad: SWITCHED OFF: when, on workload.idle train: division by zero") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	if out, code := command("rules", "check", file); code != 0 || !strings.Contains(out, "2 rules: idle, eval") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code := command("rules", "check", filepath.Join(dir, "lost.yaml")); code != exitUsage || !strings.Contains(out, "lost.yaml:2:") || !strings.Contains(out, "no.yaml") {
		t.Errorf("exit %d: %s", code, out)
	}
}
