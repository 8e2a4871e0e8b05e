package rules

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/order"
)

// How much a rule may do before it is taken for one that wakes itself.
const (
	stretch  = 10 * time.Minute
	maxSame  = 20   // acts within a stretch about the same
	maxAll   = 1000 // about anything
	maxAsked = 50   // of them workloads that are new each time
	maxDepth = 4    // rules that wake each other, one after the other
	maxHeld  = 2000 // conditions that are true at once
)

// fail switches a rule off. The others go on.
func (t *turn) fail(r *rule, why string) {
	why = cut(oneLine(why), 500)
	t.book.Off[r.name] = &Off{Why: why, At: t.book.Now, Digest: r.digest}
	for key := range t.book.Held {
		if ruleOf(key) == r.name {
			delete(t.book.Held, key)
		}
	}
	t.changed = true
	t.say(r, t.bare(r), 1, events.RuleFailed{Rule: r.name, Why: why + "; it is off until it is changed"})
}

func cut(s string, n int) string {
	if x := []rune(s); len(x) > n {
		return string(x[:n]) + "…"
	}
	return s
}

// say gathers a fact. Its source tells how many rules stand behind it.
func (t *turn) say(r *rule, s *scene, depth int, fact events.Fact) {
	e := events.New(t.fleet, fmt.Sprintf("rules/%s/%d", r.name, depth), t.book.Now, fact)
	t.n++
	e.ID = fmt.Sprintf("%s-%d-%d", e.ID, t.seq, t.n) // the same delivery, heard again, says the same
	e.Dry = s.dry || r.dry
	t.said = append(t.said, e)
	t.changed = true
}

// fire does what a rule begins with.
func (t *turn) fire(r *rule, s *scene, depth int) {
	mine := t.count(r.name, r, false)
	same := t.count(heldKey(r, s.key), r, false)
	if r.every > 0 && same.N > 0 && t.book.Now.Sub(same.Last) < r.every {
		return
	}
	switch {
	case depth >= maxDepth:
		t.fail(r, fmt.Sprintf("a loop: %d rules woke each other, one after the other, the last of them by %s", depth, s.src))
		return
	case same.N >= maxSame:
		t.fail(r, fmt.Sprintf("a loop: it has acted %d times about %s since %s; every: 10m would bound that", same.N, or(s.key, "the fleet"), s.stamp(same.Since)))
		return
	case mine.N >= maxAll || mine.N >= maxAsked && r.asks():
		t.fail(r, fmt.Sprintf("too much: it has acted %d times since %s", mine.N, s.stamp(mine.Since)))
		return
	}
	t.count(r.name, r, true)
	t.count(heldKey(r, s.key), r, true)
	for i, d := range r.do[:r.after] {
		if !t.do(r, s, i, d, depth+1) {
			return
		}
	}
}

// asks says that a rule brings new workloads into the world.
func (r *rule) asks() bool {
	return slices.ContainsFunc(r.do, func(d *deed) bool { return d.verb == "submit" || d.verb == "scale" })
}

// count is how often something was done of late, one more if it is done now.
func (t *turn) count(key string, r *rule, now bool) *Count {
	c := t.book.Counts[key]
	if c == nil {
		c = &Count{Since: t.book.Now}
	}
	if t.book.Now.Sub(c.Since) > stretch {
		c.Since, c.N = t.book.Now, min(c.N, 1) // Last still holds for every
	}
	if now {
		c.N++
		c.Last, t.changed = t.book.Now, true
		t.book.Counts[key] = c
	}
	return c
}

// end does what ends a state: it is told where that was begun, and after is done.
func (t *turn) end(r *rule, s *scene, depth int) {
	for _, d := range r.do[:r.after] {
		if d.verb == "notify" {
			t.say(r, s, depth+1, events.RuleActed{Rule: r.name, Act: "notify", About: t.about(s), Done: true, Over: true, Severity: d.severity, Result: "over"})
		}
	}
	for i, d := range r.do[r.after:] {
		if !t.do(r, s, r.after+i, d, depth+1) {
			return
		}
	}
}

func (t *turn) about(s *scene) string {
	s.find()
	return or(s.workload.Name, s.key)
}

// do carries one act out. It returns false where the rule is switched off by it.
func (t *turn) do(r *rule, s *scene, i int, d *deed, depth int) bool {
	words, err := d.text.say(s)
	name := ""
	if err == nil {
		name, err = d.about.say(s)
	}
	if err != nil {
		t.fail(r, fmt.Sprintf("%s: %v", d.verb, err))
		return false
	}
	switch d.verb {
	case "notify":
		t.say(r, s, depth, events.RuleActed{
			Rule: r.name, Act: "notify", About: t.about(s), Done: true, Severity: d.severity, Lasts: r.state, Result: cut(words, 2000),
		})
	case "webhook":
		t.effect(r, s, depth, events.RuleActed{Rule: r.name, Act: "webhook", About: t.about(s), Done: true, Result: "asked for"},
			events.WebhookAsked{Rule: r.name, Step: i, About: t.about(s), Body: t.document(r, s, words)})
	case "submit":
		t.submit(r, s, d, name, depth)
	case "scale":
		t.scale(r, s, d, name, depth)
	default:
		t.order(r, s, d, name, depth)
	}
	return true
}

// effect says what is done and that it was done; in a dry run, what would be.
func (t *turn) effect(r *rule, s *scene, depth int, acted events.RuleActed, facts ...events.Fact) {
	if r.dry && acted.Done {
		acted.Done, acted.Result = false, "would be done: "+acted.Result
	}
	if acted.Done {
		for _, f := range facts {
			t.say(r, s, depth, f)
		}
	}
	t.say(r, s, depth, acted)
}

// by is who a rule is, for those who ask.
func (r *rule) by() string { return "rule " + r.name }

// order is an act that people may say too, on each workload that a name or pattern means.
func (t *turn) order(r *rule, s *scene, d *deed, name string, depth int) {
	for _, w := range t.meant(name) {
		a := order.Carry(t.view.fleet, order.Order{Verb: d.verb, About: w, Money: d.money, By: r.by()})
		t.effect(r, s, depth, events.RuleActed{Rule: r.name, Act: d.verb, About: w, Done: a.Done, Result: a.EN}, a.Facts...)
	}
}

// meant are the workloads that live and fit a pattern; a plain name is itself.
func (t *turn) meant(name string) (all []string) {
	if !strings.ContainsAny(name, "*?[") {
		return []string{name}
	}
	for _, w := range fleet.Sorted(t.view.fleet.Workloads) {
		if ok, _ := path.Match(name, w); ok && !t.view.fleet.Workloads[w].Phase.Final() {
			all = append(all, w)
		}
	}
	return all
}

// submit asks for a workload under a name that nobody has had.
func (t *turn) submit(r *rule, s *scene, d *deed, name string, depth int) {
	acted := events.RuleActed{Rule: r.name, Act: "submit", About: name}
	switch {
	case !plainName.MatchString(name):
		acted.Result = fmt.Sprintf("%q is no name: want 1 to 48 of a-z, 0-9 and '-'", name)
	case t.view.fleet.Workloads[name] != nil || t.book.Asked[name] != nil:
		acted.Result = fmt.Sprintf("%s was there before, and a name is used once; {{ today }} or {{ key }} in it makes new ones", name)
	default:
		acted.Done, acted.Result = true, fmt.Sprintf("asked for %s, at %s at most", name, d.budget.Or(fleet.Money{}))
	}
	t.effect(r, s, depth, acted, t.ask(r, d, name, acted.Done))
}

// ask is the fact that asks for a workload; intake reads the file.
func (t *turn) ask(r *rule, d *deed, name string, really bool) events.Fact {
	if really && !r.dry {
		t.book.Asked[name] = &Asked{By: r.name, At: t.book.Now}
	}
	return events.WorkloadAsked{Name: name, File: d.file, Budget: d.budget, By: r.by()}
}

// scale brings the number of a workload's replicas to what is wanted, between min and max. Each replica is a workload of
// its own, with its own budget: NAME-r1, NAME-r2, …
func (t *turn) scale(r *rule, s *scene, d *deed, base string, depth int) {
	alive, last := t.replicas(base)
	want := len(alive)
	if d.work.To != nil {
		want = *d.work.To
	} else {
		want += *d.work.Add
	}
	want = min(max(want, d.work.Min), d.work.Max)
	acted := events.RuleActed{Rule: r.name, Act: "scale", About: base}
	if want == len(alive) {
		acted.Result = fmt.Sprintf("%d of %s run, no fewer than %d and no more than %d are wanted: nothing to do", want, base, d.work.Min, d.work.Max)
		t.effect(r, s, depth, acted)
		return
	}
	var facts []events.Fact
	for n := last + 1; len(alive)+len(facts) < want; n++ {
		facts = append(facts, t.ask(r, d, fmt.Sprintf("%s-r%d", base, n), true))
	}
	for len(alive) > want { // the newest goes first
		name := alive[len(alive)-1]
		alive = alive[:len(alive)-1]
		a := order.Carry(t.view.fleet, order.Order{Verb: "stop", About: name, By: r.by()})
		facts = append(facts, a.Facts...)
	}
	acted.Done, acted.Result = true, fmt.Sprintf("%s has %d replicas from now on, at %s at most each", base, want, d.budget.Or(fleet.Money{}))
	t.effect(r, s, depth, acted, facts...)
}

// replicas are those that live, or were just asked for, in the order of their numbers; last is the highest number ever.
func (t *turn) replicas(base string) (alive []string, last int) {
	number := func(name string) int {
		rest, ok := strings.CutPrefix(name, base+"-r")
		n, err := strconv.Atoi(rest)
		if !ok || err != nil || n < 1 {
			return 0
		}
		last = max(last, n)
		return n
	}
	for name, w := range t.view.fleet.Workloads {
		if number(name) > 0 && !w.Phase.Final() {
			alive = append(alive, name)
		}
	}
	for name := range t.book.Asked {
		if number(name) > 0 && t.view.fleet.Workloads[name] == nil {
			alive = append(alive, name)
		}
	}
	slices.SortFunc(alive, func(a, b string) int { return number(a) - number(b) })
	return alive, last
}

// document is what a webhook is told: the rule, its words, and the fact where it is not too long.
func (t *turn) document(r *rule, s *scene, words string) []byte {
	data := map[string]any{"rule": r.name, "about": t.about(s), "text": words, "dry": s.dry || r.dry}
	if s.fact != nil {
		data["kind"], data["key"] = s.kind, s.key
		if b, err := json.Marshal(s.fact); err == nil && len(b) <= 32<<10 {
			data["fact"] = json.RawMessage(b)
		}
	}
	b, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": fmt.Sprintf("%s-%d-%d", r.name, t.seq, t.n), "type": "lowtide.rule.acted", "source": "lowtide/" + t.fleet + "/rules",
		"subject": or(s.key, r.name), "time": t.book.Now.UTC(), "datacontenttype": "application/json", "data": data,
	})
	if err != nil {
		return nil // maps of plain values always encode
	}
	return b
}
