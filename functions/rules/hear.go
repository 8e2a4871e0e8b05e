package rules

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
)

// turn is one batch: it changes the book, and gathers what is said.
type turn struct {
	set     *Set
	book    *Book
	view    *View
	fleet   string
	said    []events.Event
	changed bool

	seq uint64 // of the delivery at hand
	n   int    // said on it so far
}

// begin hears one fact. One that comes too late is only passed by.
func (t *turn) begin(d fn.Delivery, late bool) {
	if d.At.After(t.book.Now) {
		t.book.Now = d.At
	}
	t.seq, t.n = d.Seq, 0
	if late {
		return
	}
	if tick, ok := d.Event.Data.(events.ClockTicked); ok {
		if tick.What == "tick" || tick.What == "rules" {
			t.tick()
		}
		return
	}
	rules := t.set.byKind[d.Event.Data.Kind()]
	if len(rules) == 0 {
		return
	}
	s := sceneOf(d.Event, t.book.Now, t.view)
	by, depth := origin(d.Event.Source)
	for _, r := range rules {
		if by == r.name || t.book.off(r) || r.window != nil && !r.window.holds(t.book.Now) {
			continue
		}
		t.hear(r, s, d.Event, depth)
	}
}

// hear is one fact on one rule.
func (t *turn) hear(r *rule, s *scene, e events.Event, depth int) {
	s.zone = r.zone
	holds, err := r.when.holds(s)
	switch {
	case err != nil:
		t.fail(r, fmt.Sprintf("when, on %s %s: %v", s.kind, s.key, err))
	case r.state:
		t.hold(r, s, holds, &e, depth)
	case t.news(r, s, holds):
		t.fire(r, s, depth)
	}
}

// news says whether a fact that fits is to be acted on. One that does not fit is remembered too, so that the one before it is
// news when it comes again.
func (t *turn) news(r *rule, s *scene, holds bool) bool {
	key := heldKey(r, s.key)
	seen := t.book.Seen[key]
	switch {
	case holds && s.digest() == "":
		return true
	case !holds && (seen == nil || seen.Last == ""):
		return false
	case !holds:
		seen.Last, t.changed = "", true
		return false
	case seen != nil && seen.repeats(s.digest(), t.book.Now):
		return false
	case seen == nil:
		seen = &Seen{Recent: map[string]time.Time{}}
		t.book.Seen[key] = seen
	}
	if seen.Recent == nil {
		seen.Recent = map[string]time.Time{}
	}
	seen.note(s.digest(), t.book.Now)
	t.changed = true
	return true
}

// origin reads a source of ours: rules/NAME or rules/NAME/DEPTH. Depth is how many rules stand behind a fact.
func origin(source string) (by string, depth int) {
	rest, ok := strings.CutPrefix(source, "rules/")
	if !ok {
		return "", 0
	}
	by, n, _ := strings.Cut(rest, "/")
	if depth, _ = strconv.Atoi(n); depth < 1 {
		depth = 1
	}
	return by, depth
}

// hold notes that a condition is true or not, and acts when it has been true for long enough.
func (t *turn) hold(r *rule, s *scene, holds bool, e *events.Event, depth int) {
	key := heldKey(r, s.key)
	h := t.book.Held[key]
	if !holds {
		if h != nil {
			t.release(r, s, h, key)
		}
		return
	}
	if h == nil {
		if len(t.book.Held) >= maxHeld {
			t.fail(r, fmt.Sprintf("too much: more than %d conditions are true at once", maxHeld))
			return
		}
		h = &Held{Since: t.book.Now}
		t.book.Held[key] = h
		t.changed = true
	}
	if e != nil && !h.Done {
		if doc, err := events.Encode(*e); err == nil { // it came as a message: it fits
			h.Fact, h.Depth = doc, depth
			t.changed = true
		}
	}
	if !h.Done && t.book.Now.Sub(h.Since) >= r.lasts {
		h.Done, t.changed = true, true
		t.fire(r, s, depth)
	}
}

// release ends a state; what was begun for it is ended too.
func (t *turn) release(r *rule, s *scene, h *Held, key string) {
	delete(t.book.Held, key)
	t.changed = true
	if h.Done && !t.book.off(r) {
		t.end(r, s, h.Depth)
	}
}

// tick looks at all that time changes.
func (t *turn) tick() {
	for _, r := range t.set.rules {
		switch {
		case t.book.off(r):
		case r.at != nil:
			t.scheduled(r)
		case r.state && len(r.kinds) == 0:
			t.watch(r)
		}
	}
	for _, key := range fleet.Sorted(t.book.Held) {
		r := t.set.byName[ruleOf(key)]
		if r == nil || len(r.kinds) == 0 || t.book.off(r) {
			continue
		}
		t.again(r, key, t.book.Held[key])
	}
}

// bare is a scene without a fact.
func (t *turn) bare(r *rule) *scene { return &scene{now: t.book.Now, zone: r.zone, view: t.view} }

// watch looks at a rule about the fleet or the hour.
func (t *turn) watch(r *rule) {
	s := t.bare(r)
	holds := r.window == nil || r.window.holds(t.book.Now)
	if holds {
		var err error
		if holds, err = r.when.holds(s); err != nil {
			t.fail(r, fmt.Sprintf("when: %v", err))
			return
		}
	}
	t.hold(r, s, holds, nil, 0)
}

// again looks at a condition that a fact made true, on the fleet as it is now.
func (t *turn) again(r *rule, key string, h *Held) {
	e, err := events.Decode(h.Fact)
	if err != nil {
		delete(t.book.Held, key)
		return
	}
	s := sceneOf(e, t.book.Now, t.view)
	s.zone = r.zone
	holds := r.window == nil || r.window.holds(t.book.Now)
	if holds && r.when[s.kind] != nil {
		if holds, err = r.when.holds(s); err != nil {
			t.fail(r, fmt.Sprintf("when, on %s %s: %v", s.kind, s.key, err))
			return
		}
	}
	t.hold(r, s, holds, nil, h.Depth)
}

// scheduled acts when a schedule's moment has come: once, however many were missed, and not when it was long ago.
func (t *turn) scheduled(r *rule) {
	now := t.book.Now
	next := t.book.Next[r.name]
	if next == nil || next.Digest != r.digest {
		t.book.Next[r.name] = &Next{At: r.at.Next(now), Digest: r.digest}
		t.changed = true
		return
	}
	if next.At.After(now) {
		return
	}
	was := next.At
	next.At, t.changed = r.at.Next(now), true
	s := t.bare(r)
	if now.Sub(was) > late {
		t.say(r, s, 1, events.RuleActed{Rule: r.name, Act: "schedule", Result: "missed at " + s.stamp(was) + ": nobody was here; next at " + s.stamp(next.At)})
		return
	}
	holds, err := r.when.holds(s)
	switch {
	case err != nil:
		t.fail(r, fmt.Sprintf("when: %v", err))
	case holds:
		t.fire(r, s, 0)
	}
}

func (s *scene) stamp(at time.Time) string { return at.In(s.in()).Format("2006-01-02 15:04 MST") }

// arm asks to be woken at the first moment that is due, where the schedule's tick would be late.
func (t *turn) arm() {
	var first time.Time
	sooner := func(at time.Time) {
		if at.After(t.book.Now) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	for _, r := range t.set.rules {
		if next := t.book.Next[r.name]; r.at != nil && next != nil {
			sooner(next.At)
		}
		if r.window != nil && r.state {
			sooner(r.window.next(t.book.Now))
		}
	}
	for key, h := range t.book.Held {
		if r := t.set.byName[ruleOf(key)]; r != nil && !h.Done {
			sooner(h.Since.Add(r.lasts))
		}
	}
	if first.IsZero() || first.Equal(t.book.WakeAt) || first.Sub(t.book.Now) > time.Minute {
		return
	}
	t.book.WakeAt, t.changed = first, true
	e := events.New(t.fleet, "rules", t.book.Now, events.ClockTicked{What: "rules", Due: first})
	e.ID = fmt.Sprintf("%s-%d", e.ID, t.seq)
	e.At = first
	t.said = append(t.said, e)
}
