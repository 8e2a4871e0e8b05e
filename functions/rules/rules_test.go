package rules_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/rules"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/fn/memory"
	"lowtide/shared/store"
)

var t0 = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC) // a Monday

// bench is a set of rules on a virtual clock, beside a fleet that the test makes.
type bench struct {
	t      testing.TB
	host   *memory.Host
	states store.Bucket
	books  store.Bucket
	fleet  *fleet.Fleet
	rev    uint64
}

func parse(t testing.TB, text string) *rules.Set {
	t.Helper()
	s, err := rules.Parse("rules.yaml", []byte(text), rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newBench(t testing.TB, text string) *bench {
	b := &bench{t: t, host: memory.New(1, t0), states: store.Memory(), books: store.Memory(), fleet: fleet.New("f", "install")}
	b.fleet.Now = t0
	b.workload("train", fleet.Accepted, "m1")
	b.fleet.Machines["m1"] = &fleet.Instance{
		Name: "m1", Workload: "train", Phase: fleet.Verified, Bought: t0.Add(-time.Hour),
		Offer: fleet.Offer{Cloud: "fake", Account: "main", Type: "p3.2xlarge", Market: fleet.Spot, GPU: "V100", Hourly: fleet.Known(fleet.Dollars(3))},
	}
	b.save()
	for _, f := range rules.New(b.config(), parse(t, text)) {
		b.host.Add(f)
	}
	b.host.Every(30*time.Second, func() {
		b.host.Publish(events.New("f", "schedule", b.host.Now(), events.ClockTicked{What: "tick", Due: b.host.Now()}))
	})
	return b
}

func (b *bench) config() rules.Config {
	return rules.Config{Fleet: "f", Books: b.books, States: b.states, Now: b.host.Now}
}

// change has other rules from now on.
func (b *bench) change(text string) {
	for _, f := range rules.New(b.config(), parse(b.t, text)) {
		b.host.Restart(f.Name, f)
	}
}

func (b *bench) workload(name string, p fleet.WorkloadPhase, on string) {
	b.fleet.Workloads[name] = &fleet.Workload{Spec: &fleet.Spec{Name: name, Autonomy: fleet.Act, Tags: map[string]string{"team": "vision"}}, Phase: p, On: on, Since: t0}
}

// save lets rules see the fleet as the test has made it; a process looks again after a second, a new one at once.
func (b *bench) save() {
	b.t.Helper()
	b.fleet.Next++
	v, err := (&fleet.Encoder{}).Encode(b.fleet)
	if err == nil {
		b.rev, err = store.Put(context.Background(), b.states, "f", v, b.rev)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) say(facts ...events.Fact) {
	for _, f := range facts {
		e := events.New("f", "test", b.host.Now(), f)
		e.ID += fmt.Sprint(b.host.Now().UnixNano())
		b.host.Publish(e)
	}
}

func (b *bench) pass(d time.Duration) { b.host.Run(b.host.Now().Add(d)) }

// said are the facts of rules, in words, since the story began.
func (b *bench) said() (all []string) {
	seen := map[string]bool{}
	for _, e := range b.events() {
		if seen[e.ID] {
			b.t.Errorf("%s was stored twice", e.ID)
		}
		seen[e.ID] = true
		switch f := e.Data.(type) {
		case events.RuleActed:
			state := map[bool]string{true: "done", false: "refused"}[f.Done]
			all = append(all, fmt.Sprintf("%s %s %s %s: %s", f.Rule, f.Act, f.About, state, f.Result))
		case events.RuleFailed:
			all = append(all, fmt.Sprintf("%s FAILED: %s", f.Rule, f.Why))
		default:
			all = append(all, string(f.Kind())+" "+f.Key())
		}
	}
	return all
}

func (b *bench) events() (all []events.Event) {
	for _, d := range stored(b.host) {
		if strings.HasPrefix(d.Source, "rules/") {
			all = append(all, d)
		}
	}
	return all
}

// want compares what rules said, each line by its beginning.
func (b *bench) want(lines ...string) {
	b.t.Helper()
	got := b.said()
	ok := len(got) == len(lines)
	for i := 0; ok && i < len(got); i++ {
		ok = strings.HasPrefix(got[i], lines[i])
	}
	if !ok {
		b.t.Errorf("rules said\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(lines, "\n  "))
	}
}

func idle(w string) events.WorkloadIdle {
	return events.WorkloadIdle{Workload: w, Machine: "m1", Epoch: 1, Since: t0.Add(-time.Hour), Why: "nothing moves"}
}

func TestAFactThatFitsIsActedOnAndEachActIsAFact(t *testing.T) {
	b := newBench(t, `
rules:
  - name: save-money
    fact: workload.idle
    when: workload.tags["team"] == "vision" && machine.hourly > 2 && now - fact.since > duration("30m")
    do:
      - pause: "{{ fact.workload }}"
      - notify: "{{ fact.workload }} is idle since {{ fact.since }} at {{ machine.hourly }} USD/h: {{ fact.why }}"
  - name: others
    fact: workload.idle
    when: workload.name == "other"
    do: [{pause: other}]
`)
	b.say(idle("train"))
	b.pass(time.Second)
	b.want(
		"workload.paused train", "save-money pause train done: train saves and stops",
		"save-money notify train done: train is idle since 2026-03-02 11:00 UTC at 3 USD/h: nothing moves",
	)
	if f, ok := b.events()[0].Data.(events.WorkloadPaused); !ok || f.By != "rule save-money" {
		t.Errorf("got %+v, want that the rule is named", b.events()[0].Data)
	}
}

func TestAnActGoesThroughTheDoorThatPeopleGoThrough(t *testing.T) {
	b := newBench(t, `
role: admin
rules:
  - name: r
    fact: alert.received
    do:
      - pause: nobody
      - checkpoint: waits
      - stop: done
      - budget: {workload: train, amount: 20 USD}
      - resume: "t*"
`)
	b.workload("waits", fleet.Accepted, "")
	b.workload("done", fleet.Finished, "")
	b.save()
	b.say(events.AlertReceived{Group: "g", Name: "Hot", Firing: true})
	b.pass(time.Second)
	b.want(
		`r pause nobody refused: there is no workload "nobody"`,
		"r checkpoint waits refused: waits does not run",
		"r stop done refused: done is finished",
		"workload.changed train", "r budget train done: the budget of train is 20.00 USD",
		"workload.resumed train", "r resume train done",
	)
	if _, err := rules.Parse("r", []byte("rules: [{name: r, fact: workload.idle, do: [{stop: x}]}]"), rules.Options{}); err == nil || !strings.Contains(err.Error(), "needs the role admin") {
		t.Errorf("an operator's rule may stop: %v", err)
	}
}

func TestADryRuleSaysWhatItWouldDo(t *testing.T) {
	b := newBench(t, `
rules:
  - name: careful
    dry: true
    fact: workload.idle
    do: [{pause: train}, {notify: idle}]
`)
	b.say(idle("train"))
	b.pass(time.Second)
	b.want("careful pause train refused: would be done: train saves and stops", "careful notify train done: idle")
	for _, e := range b.events() {
		if !e.Dry {
			t.Errorf("%s is not marked dry", e.Data.Kind())
		}
	}
}

func TestAStateMustLastAndEndsOnce(t *testing.T) {
	const text = `
rules:
  - name: long
    fact: [workload.idle, workload.busy]
    when: kind == "workload.idle"
    for: 10m
    do: [{notify: {text: "idle", severity: info}}]
    after: [{resume: "{{ key }}"}]
`
	b := newBench(t, text)
	b.say(idle("train"))
	b.pass(9 * time.Minute)
	b.say(events.WorkloadBusy{Workload: "train", Machine: "m1", Epoch: 1})
	b.pass(20 * time.Minute)
	b.want() // it did not last
	b.say(idle("train"))
	b.pass(5 * time.Minute)
	b.say(idle("train")) // again: it goes on, and does not begin anew
	b.pass(5*time.Minute + time.Second)
	b.want("long notify train done: idle")
	b.pass(time.Hour)
	b.want("long notify train done: idle")
	b.say(events.WorkloadBusy{Workload: "train", Machine: "m1", Epoch: 1})
	b.pass(time.Minute)
	b.want("long notify train done: idle", "long notify train done: over", "workload.resumed train", "long resume train done")
}

func TestAStateOfTheFleetIsActedOnWhenItBegins(t *testing.T) {
	b := newBench(t, `
rules:
  - name: dear
    when: fleet.hourly > 10
    for: 2m
    do: [{notify: "{{ fleet.hourly }} USD/h on {{ fleet.running }} workloads"}]
`)
	b.pass(10 * time.Minute)
	b.want()
	b.fleet.Machines["m1"].Offer.Hourly = fleet.Known(fleet.Dollars(12.5))
	b.save()
	time.Sleep(1100 * time.Millisecond) // the fleet is looked at once in a second of the wall
	b.pass(time.Hour)
	b.want("dear notify  done: 12.5 USD/h on 1 workloads")
}

func TestWhatIsNotKnownIsNotTrueAndSwitchesNothingOff(t *testing.T) {
	b := newBench(t, `
rules:
  - {name: a, fact: alert.received, when: 'fact.labels["severity"] == "page"', do: [{notify: a}]}
  - {name: b, fact: alert.received, when: fact.labels.severity != "page", do: [{notify: b}]}
  - {name: c, fact: workload.accepted, when: fact.budget < 5, do: [{notify: c}]}
  - {name: d, fact: workload.accepted, when: "!has(fact.budget)", do: [{notify: "budget {{ fact.budget }}"}]}
`)
	b.say(events.AlertReceived{Group: "g", Name: "x", Firing: true, Labels: map[string]string{"job": "train"}})
	b.say(events.WorkloadAccepted{Workload: "train"})
	b.pass(time.Second)
	b.want("d notify train done: budget unknown")
	b.say(events.WorkloadAccepted{Workload: "train", Budget: fleet.Known(fleet.Dollars(4))})
	b.say(events.AlertReceived{Group: "h", Name: "x", Firing: true, Labels: map[string]string{"severity": "page"}})
	b.pass(time.Second)
	b.want("d notify train done: budget unknown", "c notify train done: c", "a notify h done: a")
}

func TestARuleThatErrsIsSwitchedOffAloneUntilItIsChanged(t *testing.T) {
	const text = `
rules:
  - {name: bad, fact: workload.idle, when: 1 / fleet.asks > 0, do: [{notify: bad}]}
  - {name: worse, fact: workload.idle, do: [{notify: "{{ 1 %% fleet.asks }}"}]}
  - {name: heavy, fact: workload.idle, when: "%s.all(a, %[1]s.all(b, %[1]s.all(c, %[1]s.all(d, a+b+c+d > -1))))", do: [{notify: heavy}]}
  - {name: good, fact: workload.idle, do: [{notify: good}]}
`
	list := "[" + strings.Repeat("1,", 40) + "1]"
	b := newBench(t, fmt.Sprintf(text, list))
	b.say(idle("train"), idle("other"))
	b.pass(time.Second)
	b.want("bad FAILED: when, on workload.idle train: division by zero", "worse FAILED: notify: modulus by zero", "heavy FAILED: when, on workload.idle train: ", "good notify train done", "good notify other done")
	b.change(strings.ReplaceAll(fmt.Sprintf(text, list), "1 / fleet.asks > 0", "fleet.asks == 0"))
	b.pass(time.Minute)
	b.say(idle("third"))
	b.pass(time.Second)
	if got := b.said()[5:]; len(got) != 2 || got[0] != "bad notify third done: bad" || got[1] != "good notify third done: good" {
		t.Errorf("after the change: %q", got)
	}
}

func TestRulesThatWakeEachOtherAreCutOff(t *testing.T) {
	b := newBench(t, `
rules:
  - {name: ping, fact: workload.paused, do: [{resume: "{{ fact.workload }}"}]}
  - {name: pong, fact: workload.resumed, do: [{pause: "{{ fact.workload }}"}]}
  - {name: self, fact: rule.acted, when: fact.act == "notify", do: [{notify: again}]}
`)
	b.say(events.WorkloadPaused{Workload: "train", By: "ada"})
	b.pass(time.Minute)
	var failed, acts int
	for _, e := range b.events() {
		switch f := e.Data.(type) {
		case events.RuleFailed:
			failed++
			if !strings.Contains(f.Why, "loop") {
				t.Errorf("%s: %s", f.Rule, f.Why)
			}
		case events.RuleActed:
			acts++
		}
	}
	if failed != 1 || acts > 5 {
		t.Errorf("%d switched off after %d acts:\n%s", failed, acts, strings.Join(b.said(), "\n"))
	}
}

func TestALoopThroughTheRingIsCutOffToo(t *testing.T) {
	b := newBench(t, `
rules:
  - {name: ring, fact: workload.resumed, do: [{pause: train}]}
  - {name: calm, fact: workload.resumed, every: 1h, do: [{notify: resumed}]}
`)
	for range 40 { // others make the fact again, each time
		b.say(events.WorkloadResumed{Workload: "train", By: "ada"})
		b.pass(10 * time.Second)
	}
	var acted, failed, calm int
	for _, line := range b.said() {
		switch {
		case strings.HasPrefix(line, "ring pause"):
			acted++
		case strings.HasPrefix(line, "ring FAILED: a loop: it has acted 20 times about train"):
			failed++
		case strings.HasPrefix(line, "calm"):
			calm++
		}
	}
	if acted != 20 || failed != 1 || calm != 1 {
		t.Errorf("acted %d times, failed %d times, want 20 and 1; the bounded one %d times, want once", acted, failed, calm)
	}
}

func TestWhatIsDoneIsDoneOnceOverCrashesAndRepeats(t *testing.T) {
	b := newBench(t, `
rules:
  - {name: r, fact: workload.idle, do: [{pause: "{{ key }}"}, {notify: x}]}
`)
	b.host.Faults = memory.Faults{CrashBeforeAck: 0.3, CrashAfterHandle: 0.3}
	for i := range 15 {
		name := fmt.Sprintf("w%d", i)
		b.workload(name, fleet.Accepted, "")
	}
	b.save()
	for i := range 15 {
		b.say(idle(fmt.Sprintf("w%d", i)))
		b.pass(20 * time.Second)
	}
	b.pass(5 * time.Minute)
	count := map[string]int{}
	for _, line := range b.said() {
		count[line]++
	}
	for i := range 15 {
		for _, line := range []string{fmt.Sprintf("workload.paused w%d", i), fmt.Sprintf("r notify w%d done: x", i)} {
			if count[line] != 1 {
				t.Errorf("%q was said %d times", line, count[line])
			}
		}
	}
}

func TestAFactThatIsSaidAgainIsTheSameFact(t *testing.T) {
	b := newBench(t, `
rules:
  - {name: s, fact: workload.started, do: [{notify: started}]}
  - {name: a, fact: alert.received, when: fact.firing, do: [{notify: alert}]}
  - {name: p, fact: workload.paused, do: [{notify: paused}]}
`)
	started := func(epoch uint64) events.Fact {
		return events.WorkloadStarted{Workload: "train", Machine: "m1", Epoch: epoch}
	}
	alert := func(firing bool, since time.Time) events.Fact {
		return events.AlertReceived{Group: "g", Name: "Hot", Firing: firing, Since: since}
	}
	for _, f := range []events.Fact{
		started(1), started(1), started(2), started(1), started(2), // the agent says it until it is heard, and words overtake each other
		alert(true, t0), alert(true, t0), alert(false, t0), alert(true, t0.Add(time.Minute)),
		events.WorkloadPaused{Workload: "train", By: "ada"},
		events.WorkloadPaused{Workload: "train", By: "ada"}, // it may have run between
	} {
		b.say(f)
		b.pass(time.Second)
	}
	b.pass(2 * time.Hour)
	b.say(started(2))
	b.pass(time.Second)
	b.want("s notify train done", "s notify train done", "a notify g done", "a notify g done", "p notify train done", "p notify train done")
}

func TestWhatHappenedLongAgoIsNotActedOn(t *testing.T) {
	b := newBench(t, `
rules:
  - {name: r, fact: workload.idle, do: [{pause: train}]}
  - {name: nightly, at: "0 13 * * *", do: [{pause: train}]}
`)
	b.pass(time.Minute) // its schedule is known
	lag := time.Duration(0)
	cfg := b.config()
	cfg.Now = func() time.Time { return b.host.Now().Add(lag) }
	for _, f := range rules.New(cfg, parse(t, "rules:\n  - {name: r, fact: workload.idle, do: [{pause: train}]}\n  - {name: nightly, at: \"0 13 * * *\", do: [{pause: train}]}\n")) {
		b.host.Restart(f.Name, f)
	}
	lag = 30 * time.Minute // it reads up what was said half an hour ago
	b.say(idle("train"))
	b.pass(90 * time.Minute) // over its hour
	b.want()
	lag = 0
	b.pass(time.Minute)
	b.want("nightly schedule  refused: missed at 2026-03-02 13:00 UTC: nobody was here; next at 2026-03-03 13:00 UTC")
}

func stored(h *memory.Host) (all []events.Event) {
	h.Stored(func(d fn.Delivery) { all = append(all, d.Event) })
	return all
}
