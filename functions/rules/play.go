package rules

import (
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
)

// Play shows what rules would have said on a record of facts, in its order and by its times, with a look at the clock each
// half minute between them. Nothing follows from what they say, and what rules of then said is left out. fleets is asked
// before each fact for the fleet as it was after it.
func Play(s *Set, name string, record []events.Event, fleets func(events.Event) *fleet.Fleet) []events.Event {
	k := &turn{set: s, book: newBook(), fleet: name, view: see(fleet.New(name, ""))}
	var seq uint64
	hear := func(e events.Event, at time.Time) {
		seq++
		k.begin(fn.Delivery{Event: e, Seq: seq, At: at}, false)
	}
	for _, e := range record {
		if e.Fleet != name || strings.HasPrefix(e.Source, "rules/") || e.Data.Kind() == "clock.ticked" {
			continue
		}
		for at := k.book.Now.Add(look); !k.book.Now.IsZero() && at.Before(e.Time); at = at.Add(look) {
			hear(events.Event{Fleet: name, Data: events.ClockTicked{What: "tick", Due: at}}, at)
		}
		if f := fleets(e); f != nil {
			k.view = see(f)
		}
		hear(e, e.Time)
	}
	return k.said
}

// look is how far the clock's looks lie apart.
const look = 30 * time.Second
