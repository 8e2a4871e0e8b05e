package notify_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"lowtide/events"
	"lowtide/functions/notify"
	"lowtide/functions/notify/notifytest"
	"lowtide/shared/fleet"
)

var update = flag.Bool("update", false, "write new golden files; read the diff")

// everything is said once: each kind of incident, open and over.
func everything(d *desk) {
	promise := events.WorkloadAccepted{Workload: "train", Worst: fleet.Dollars(13.09), Baseline: fleet.Dollars(12.24), Bound: fleet.Dollars(19.1), Deadline: t0.Add(6 * time.Hour)}
	d.say(promise, events.WorkloadRefused{Workload: "huge", Why: "worst case 90 USD is above its budget of 20 USD"})
	plan := fleet.Plan{
		ID: "p7", Action: fleet.Launch, Machine: "m1", Workload: "train", Offers: []fleet.Offer{offer("sim-1a", 0.95), offer("sim-1b", 0.97)}, Made: t0, Expires: t0.Add(10 * time.Minute),
		Score: fleet.Score{
			Reason: "spot is to be had", RunnerUp: "p3.2xlarge spot fake/sim-1b", WhyLost: "0.02 USD/h dearer", Hourly: fleet.Dollars(0.95), HourlyNow: fleet.Dollars(1.2),
			OneOff: fleet.Dollars(0.2), Worst: fleet.Dollars(5.94), Payback: 40 * time.Minute,
		},
	}
	d.say(events.PlanProposed{Plan: plan, Why: "autonomy is suggest", Until: t0.Add(10 * time.Minute), Default: "reject"})
	d.say(events.PlanProposed{Plan: fleet.Plan{ID: "p8", Action: fleet.Launch, Machine: "x", Workload: "seen", Offers: plan.Offers, Made: t0, Expires: t0.Add(time.Hour), Score: plan.Score}, Observed: true})
	d.pass(time.Minute)
	d.say(events.ApprovalRefused{Plan: "p7", By: "bob", Why: "may approve 0.50 USD/h at most"})
	d.pass(time.Minute)
	d.say(events.PlanApproved{Plan: "p7", Hash: plan.Hash(), By: "ada"})
	d.say(run("train", "m1", 1, 0.95, t0)...)
	d.say(saved("train", "m1", 1, 40))
	d.pass(5 * time.Minute)
	d.say(taken("m1", d.host.Now()), events.BudgetWarned{Workload: "train", Spent: fleet.Dollars(8), Budget: fleet.Dollars(10)})
	d.say(events.PlanFailed{Plan: "p9", Machine: "m1", Action: fleet.Launch, Why: "no capacity"})
	d.pass(time.Minute)
	d.say(run("other", "o1", 1, 1, t0)...)
	d.say(events.InstanceRejected{Machine: "o1", Ratio: 0.71, Cause: "slow"})
	d.say(events.WorkloadFailed{Workload: "other", Machine: "o1", Step: 3, Code: 137, Why: "Traceback\nMemoryError"})
	d.say(events.PolicySet{Halt: "panic by ada", Stop: true, By: "ada"}, events.ChannelFailed{Channel: "ding", Why: "errcode 300001"})
	d.say(events.AlertReceived{Group: "g1", Name: "QueueLong", Firing: true, Annotations: map[string]string{"summary": "120 requests wait"}, From: "alertmanager"})
	d.say(events.AlertReceived{Group: "g2", Name: "Old", Firing: true, From: "alertmanager"}, events.AlertReceived{Group: "g2", Name: "Old", From: "alertmanager"})
	d.say(events.RuleFailed{Rule: "scale", Why: "line 3: no such field"}, events.RuleActed{Rule: "tell", Act: "notify", About: "train", Done: true, Severity: "info", Result: "a checkpoint at last"})
	paid := fleet.Reservation{ID: "cr-1", Cloud: "fake", Type: "p3.2xlarge", Count: 4, Until: t0.Add(29 * 24 * time.Hour), Hourly: fleet.Dollars(1.2)}
	d.say(events.ReservationExpiring{Reservation: paid, Days: 30, Used: 3, Hourly: fleet.Dollars(4.8), OnDemand: fleet.Known(fleet.Dollars(9.18))})
	d.say(events.ReservationIdle{Reservation: paid, Idle: 1, Since: t0, Hourly: fleet.Dollars(1.2), Wasted: fleet.Dollars(1.3), Outside: []string{"m1"}})
	over := paid
	over.ID = "cr-2"
	d.say(events.ReservationIdle{Reservation: over, Idle: 4, Since: t0, Hourly: fleet.Dollars(4.8), Wasted: fleet.Dollars(5)}, events.ReservationExpiring{Reservation: over, Days: 7, Hourly: fleet.Dollars(4.8)})
	over.Count = 0
	d.say(events.ReservationSet{Reservation: over})
	d.say(events.WorkloadAccepted{Workload: "idle", Worst: fleet.Dollars(1)}, events.WorkloadPaused{Workload: "idle", By: "ada"}, events.WorkloadWithdrawn{Workload: "gone", By: "ada"})
	d.pass(time.Minute)
	d.say(run("train", "m2", 2, 0.9, d.host.Now())...)
	d.pass(time.Minute)
	d.say(events.WorkloadFinished{Workload: "train", Machine: "m2", Step: 600}, events.BudgetExhausted{Workload: "spent", Spent: fleet.Dollars(10.2), Budget: fleet.Dollars(10)})
	d.pass(10 * time.Minute)
	d.say(run("lazy", "l1", 1, 3, d.host.Now())...)
	d.say(run("small", "s1", 1, 4, d.host.Now())...)
	d.say(saved("lazy", "l1", 1, 7), events.CheckpointFailed{Workload: "lazy", Machine: "l1", Epoch: 1, Why: "no space left on device"})
	d.pass(time.Minute)
	d.say(events.WorkloadIdle{Workload: "lazy", Machine: "l1", Epoch: 1, Since: t0, Held: true, Why: "no GPU, link, network, disk or core worked since 12:00; 900 MB of GPU memory are held"})
	d.say(events.WorkloadUnderused{Workload: "small", Machine: "s1", Epoch: 1, Since: t0, Needs: 0.2, Why: "8 % of the GPU used over 1h0m0s, 4000 MB of its memory"})
	d.pass(time.Minute)
	d.say(events.WorkloadWarned{Workload: "lazy", Action: fleet.IdleStop, Why: "idle", At: t0.Add(time.Hour)})
	d.say(events.InstanceFound{Cloud: "fake", Account: "main", Machine: "f-m99", ID: "i-99", Offer: offer("sim-1a", 2), Since: t0, Count: 2})
	d.pass(time.Minute)
	d.say(events.WorkloadKept{Workload: "lazy", By: "ada", Until: t0.Add(24 * time.Hour)}, events.WorkloadBusy{Workload: "small", Machine: "s1", Epoch: 1})
	d.say(saved("lazy", "l1", 1, 9), events.InstanceEnded{Machine: "f-m99", ID: "i-99", At: d.host.Now()})
	d.pass(10 * time.Minute)
	d.say(run("slow", "l2", 1, 3, d.host.Now())...) // and what stays open
	d.say(events.CheckpointFailed{Workload: "slow", Machine: "l2", Epoch: 1, Why: "no space left on device"}, events.CheckpointFailed{Workload: "slow", Machine: "l2", Epoch: 1, Why: "still none"})
	d.say(events.WorkloadIdle{Workload: "slow", Machine: "l2", Epoch: 1, Since: d.host.Now(), Why: "nothing worked"}, events.WorkloadWarned{Workload: "slow", Action: fleet.IdleStop, At: t0.Add(2 * time.Hour)})
	d.say(events.WorkloadUnderused{Workload: "other", Machine: "o1", Epoch: 1, Since: d.host.Now(), Why: "8 % of the GPU used"}, events.WorkloadWarned{Workload: "other", Action: fleet.IdleSmaller, At: t0.Add(2 * time.Hour)})
	d.say(events.InstanceFound{Cloud: "fake", Account: "main", Machine: "f-m98", ID: "i-98", Offer: offer("sim-1a", 2), Since: t0, Count: 3})
	d.pass(10 * time.Minute)
}

func TestTheWordsOfEachKindInBothLanguages(t *testing.T) {
	for _, lang := range []string{notify.English, notify.Chinese} {
		var hook []platform // it takes many messages, so nothing is in a digest
		d := newDesk(t, 1, all(t, &hook, notify.Route{Language: lang, Wait: time.Millisecond}, "webhook"))
		everything(d)
		var b strings.Builder
		for _, m := range hook[0].board.Messages() {
			b.WriteString(m.Title + "\n" + m.Text + "\n\n")
		}
		file := filepath.Join("testdata", lang+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), b.String()); diff != "" {
			t.Errorf("%s (run with -update and read the diff):\n%s", lang, diff)
		}
		if strings.Contains(b.String(), "<no value>") || strings.Contains(b.String(), "template") {
			t.Errorf("%s: a template is wrong:\n%s", lang, b.String())
		}
	}
}

func TestUsersWordsReplaceOursAndABadOneIsSaid(t *testing.T) {
	own := func(text string) (*notify.Words, error) {
		return notify.NewWords(fstest.MapFS{"en.tmpl": {Data: []byte(text)}})
	}
	if _, err := own(`{{define "budget"}}{{if}}`); err == nil || !strings.Contains(err.Error(), "en.tmpl") {
		t.Errorf("what cannot be parsed: got %v", err)
	}
	for text, want := range map[string]string{
		`{{define "budget"}}{{.Budget.Workload}} burns {{money .Budget.Spent}}{{end}}`: "#1 w burns 8.0000 USD",
		`{{define "budget"}}{{.Budget.NoSuchField}}{{end}}`:                            "#1 w has spent 8.0000 USD of its 10.00 USD",
	} {
		w, err := own(text)
		if err != nil {
			t.Fatal(err)
		}
		var s *notifytest.Slack
		d := newDesk(t, 1, one(t, &s, notify.Route{}))
		d.cfg.Words = w
		d.restart()
		d.say(events.BudgetWarned{Workload: "w", Spent: fleet.Dollars(8), Budget: fleet.Dollars(10)})
		d.pass(time.Minute)
		m := s.Messages()
		if len(m) != 1 || m[0].Title != want {
			t.Errorf("got %+v, want %q", m, want)
		}
		if strings.Contains(text, "NoSuch") && !strings.Contains(m[0].Text, "NoSuchField") {
			t.Errorf("nobody is told that the template is wrong: %q", m[0].Text)
		}
	}
}
