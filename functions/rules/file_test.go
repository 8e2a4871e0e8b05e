package rules_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"lowtide/functions/rules"
)

func TestAFileThatIsWrongIsRefusedWithItsLine(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"not YAML":         {"rules:\n  - name: a\n    when: \"x\n", "r.yaml:3:11: not YAML: could not find end character"},
		"unknown field":    {"rules:\n  - name: a\n    wen: 'true'\n", `r.yaml:3:5: unknown field "wen"`},
		"not a list":       {"rules: 7\n", "r.yaml:1:8: "},
		"no name":          {"rules:\n  - do: [{notify: x}]\n", `r.yaml:2:7: name ""`},
		"a name twice":     {"rules:\n  - {name: a, fact: workload.idle, do: [{notify: x}]}\n  - {name: a, fact: workload.idle, do: [{notify: x}]}\n", "r.yaml:3:12: rule a: there are two"},
		"no such fact":     {"rules:\n  - name: a\n    fact: workload.ilde\n    do: [{notify: x}]\n", `r.yaml:3:11: rule a: there is no fact "workload.ilde"; there are plan.`[:60]},
		"telemetry":        {"rules:\n  - name: a\n    fact: utilisation.measured\n    do: [{notify: x}]\n", "r.yaml:3:11: rule a: utilisation.measured is telemetry"},
		"nothing wakes it": {"rules:\n  - name: a\n    do: [{notify: x}]\n", "rule a: nothing wakes it"},
		"does nothing":     {"rules:\n  - name: a\n    fact: workload.idle\n", "rule a: it does nothing"},
		"a mistyped name":  {"rules:\n  - name: a\n    fact: workload.idle\n    when: flet.hourly > 3\n    do: [{notify: x}]\n", `r.yaml:4:11: rule a: when: "flet" is not known here; there are fleet, workload`},
		"a mistyped field": {"rules:\n  - name: a\n    fact: workload.idle\n    when: fact.workload == 'x' && fact.sinze > now\n    do: [{notify: x}]\n", `r.yaml:4:39: rule a: when: there is no field "sinze"; workload.idle has epoch, held, machine, since, why, workload`},
		"in a block":       {"rules:\n  - name: a\n    fact: workload.idle\n    when: |\n      fleet.hourly > 3 &&\n      fleet.hurly > 4\n    do: [{notify: x}]\n", `r.yaml:6:`},
		"another type":     {"rules:\n  - name: a\n    fact: workload.idle\n    when: fact.workload > 3\n    do: [{notify: x}]\n", "r.yaml:4:25: rule a: when: found no matching overload for '_>_' applied to '(string, int)'"},
		"not a condition":  {"rules:\n  - name: a\n    fact: workload.idle\n    when: fleet.hourly\n    do: [{notify: x}]\n", "r.yaml:4:11: rule a: when: it is double, and must be true or false"},
		"in one kind only": {"rules:\n  - name: a\n    fact: [workload.idle, workload.busy]\n    when: fact.held\n    do: [{notify: x}]\n", `there is no field "held"; workload.busy has epoch, machine, workload`},
		"in a text":        {"rules:\n  - name: a\n    fact: workload.idle\n    do:\n      - notify: it is {{ fact.wy }}\n", `r.yaml:5:`},
		"two in a step":    {"rules:\n  - name: a\n    fact: workload.idle\n    do:\n      - {notify: x, pause: y}\n", "r.yaml:5:28: rule a: want one of notify"},
		"a bad length":     {"rules:\n  - name: a\n    fact: workload.idle\n    for: soon\n    do: [{notify: x}]\n", `r.yaml:4:10: rule a: "soon": want a duration`},
		"a bad schedule":   {"rules:\n  - name: a\n    at: 61 * * * *\n    do: [{notify: x}]\n", "r.yaml:3:9: rule a: at: "},
		"one never comes":  {"rules:\n  - name: a\n    at: 0 0 30 2 *\n    do: [{notify: x}]\n", "r.yaml:3:9: rule a: at: \"0 0 30 2 *\" never comes"},
		"a bad window":     {"rules:\n  - name: a\n    during: 25:00-07:00\n    do: [{notify: x}]\n", "r.yaml:3:13: rule a: during: "},
		"a bad zone":       {"timezone: Mars/Base\nrules: []\n", `r.yaml:1:11: timezone "Mars/Base" is not known`},
		"a bad role":       {"rules:\n  - name: a\n    role: king\n    fact: workload.idle\n    do: [{notify: x}]\n", `r.yaml:3:11: rule a: role "king"`},
		"a moment's end":   {"rules:\n  - name: a\n    fact: workload.idle\n    do: [{notify: x}]\n    after: [{notify: y}]\n", "rule a: after is what ends a state"},
		"no bound":         {"rules:\n  - name: a\n    fact: workload.idle\n    do:\n      - submit: {name: x, spec: {run: y}}\n", "r.yaml:5:17: rule a: budget: a rule spends nothing without a bound"},
		"no such file":     {"rules:\n  - name: a\n    fact: workload.idle\n    do:\n      - submit: {name: x, file: nowhere.yaml, budget: 1 USD}\n", "r.yaml:5:33: rule a: file: open nowhere.yaml"},
		"a missing secret": {"rules:\n  - name: a\n    fact: workload.idle\n    do: [{webhook: {url: \"${HOOK}\"}}]\n", "r.yaml: variable HOOK is not set"},
		"a bad URL":        {"rules:\n  - name: a\n    fact: workload.idle\n    do: [{webhook: {url: \"ftp://secret@x\"}}]\n", "r.yaml:4:26: rule a: webhook: want an http"},
	} {
		_, err := rules.Parse("r.yaml", []byte(c.text), rules.Options{Open: os.ReadFile})
		var p rules.Problem
		if err == nil || !errors.As(err, &p) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret@") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q in one line", name, err, c.want)
		}
	}
	if s, err := rules.Parse("r.yaml", nil, rules.Options{}); err != nil || len(s.Names()) != 0 {
		t.Errorf("an empty file is %v, %v", s.Names(), err)
	}
}

func TestEveryMistakeOfAFileIsToldAtOnce(t *testing.T) {
	_, err := rules.Parse("r.yaml", []byte("rules:\n  - {name: a, fact: x.y, do: [{notify: x}]}\n  - {name: b, when: 'zzz', do: [{notify: x}]}\n"), rules.Options{})
	if err == nil || strings.Count(err.Error(), "r.yaml:") != 2 {
		t.Errorf("got %v, want both", err)
	}
}

func TestSchedulesKeepTheClockOfTheirZone(t *testing.T) {
	b := newBench(t, `
timezone: Asia/Shanghai
rules:
  - {name: morning, at: "30 9 * * mon-fri", do: [{notify: "it is {{ now }} on {{ today }}"}]}
  - {name: berlin, timezone: Europe/Berlin, at: "30 2 * * *", do: [{notify: "{{ now }}"}]}
`)
	b.pass(24*time.Hour + time.Minute) // from Monday noon UTC, which is 20:00 in Shanghai
	b.want("morning notify  done: it is 2026-03-03 09:30 CST on 2026-03-03", "berlin notify  done: 2026-03-03 02:30 CET")
	b.pass(27 * 24 * time.Hour) // over the night of March 29 in which 02:30 is not in Berlin
	var berlin []string
	for _, line := range b.said() {
		if strings.HasPrefix(line, "berlin") && (strings.Contains(line, "-03-28") || strings.Contains(line, "-03-29") || strings.Contains(line, "-03-30")) {
			berlin = append(berlin, strings.TrimPrefix(line, "berlin notify  done: "))
		}
	}
	if len(berlin) < 2 || berlin[0] != "2026-03-28 02:30 CET" || berlin[len(berlin)-1] != "2026-03-30 02:30 CEST" || len(berlin) > 3 {
		t.Errorf("around the change of the clock: %q", berlin)
	}
}

func TestOffPeakHoursBeginAndEnd(t *testing.T) {
	b := newBench(t, `
timezone: Asia/Shanghai
rules:
  - name: night
    during: 22:00-07:00 mon-fri
    do: [{resume: "t*"}]
    after: [{pause: "t*"}]
  - name: only-at-night
    fact: workload.idle
    during: 22:00-07:00
    do: [{notify: idle}]
`)
	b.say(idle("train")) // 20:00 in Shanghai
	b.pass(3 * time.Hour)
	b.say(idle("train"))
	b.pass(12 * time.Hour)
	b.want("workload.resumed train", "night resume train done", "only-at-night notify train done", "workload.paused train", "night pause train done")
	for i, want := range []string{"22:00:00", "22:00:00", "", "07:00:00"} {
		at := b.events()[i].Time.In(time.FixedZone("CST", 8*3600)).Format("15:04:05")
		if want != "" && at != want {
			t.Errorf("%d was said at %s, want %s", i, at, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("rules:\n  - {name: a, fact: workload.idle, when: fact.held, for: 1m, do: [{notify: '{{ fact.why }}'}]}\n"))
	f.Add([]byte("timezone: Asia/Shanghai\nrules:\n  - {name: a, during: 22:00-07:00 mon-fri, do: [{scale: {name: x, spec: {run: y}, to: 3, max: 4, budget: 1 USD}}]}\n"))
	f.Add([]byte("rules:\n  - name: a\n    at: '@daily'\n    do: [{webhook: {url: 'https://x', secret: '${S}'}}]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := rules.Parse("r.yaml", b, rules.Options{Env: func(string) (string, bool) { return "a-secret-of-ours", true }})
		if err != nil && strings.Contains(err.Error(), "a-secret-of-ours") {
			t.Errorf("a secret is told: %v", err)
		}
	})
}
