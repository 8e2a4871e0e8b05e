package pool

import (
	"container/list"
	"context"
	"math"
	"sync"
)

// levels are the levels for which tables of a lone zone exist; between them values are interpolated.
var levels = []float64{0.1, 0.3, 0.5, 0.7, 0.9}

// Tables holds solved value tables, the least recently used going first when they outgrow the limit. One table
// serves every job with the same step, delay, price ratio and level, whatever its time and work left. Its
// methods may be called at once from many goroutines; none is started. The zero value is not usable: NewTables.
type Tables struct {
	mu    sync.Mutex
	limit int
	bytes int
	order *list.List // of *entry, latest first
	at    map[key]*list.Element
}

// key is a table's horizon, rounded, the level of its zones, and how many they are: one alone, or some as strangers.
type key struct {
	horizon
	level float64
	zones int
}

// chain is the market of a table.
func (k key) chain() chain {
	if k.zones > 1 {
		return several(strangers(k.zones), k.level, make([]float64, len(fewClasses.from)), k.step)
	}
	return lone(k.ages(), k.level, k.step)
}

type entry struct {
	key   key
	table *table
}

// NewTables bounds the memory of all tables together, in bytes; 256 MB is what lowtide gives. A table that alone
// is larger is solved and used, but not kept.
func NewTables(limit int) *Tables {
	return &Tables{limit: limit, order: list.New(), at: map[key]*list.Element{}}
}

// Count is the number of tables held, and Bytes the memory they take.
func (t *Tables) Count() int { t.mu.Lock(); defer t.mu.Unlock(); return t.order.Len() }

// Bytes is the memory of the tables held.
func (t *Tables) Bytes() int { t.mu.Lock(); defer t.mu.Unlock(); return t.bytes }

// warm returns a table that is already solved, or nil.
func (t *Tables) warm(k key) *table {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.at[k]
	if !ok {
		return nil
	}
	t.order.MoveToFront(e)
	return e.Value.(*entry).table
}

// solved returns the table of k, computing it in the caller's goroutine if it is cold. Two callers may both
// compute it; they get equal tables.
func (t *Tables) solved(ctx context.Context, k key) (*table, error) {
	if tab := t.warm(k); tab != nil {
		return tab, nil
	}
	tab := newTable(k.horizon, k.chain())
	if err := tab.solve(ctx); err != nil {
		return nil, err
	}
	t.keep(k, tab)
	return tab, nil
}

func (t *Tables) keep(k key, tab *table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.at[k]; ok || tab.bytes() > t.limit {
		return
	}
	for t.bytes+tab.bytes() > t.limit {
		last := t.order.Back()
		old := t.order.Remove(last).(*entry)
		delete(t.at, old.key)
		t.bytes -= old.table.bytes()
	}
	t.at[k] = t.order.PushFront(&entry{k, tab})
	t.bytes += tab.bytes()
}

// most bounds a table's reach: further away than this many steps the step grows instead.
const most = 1200

// reach chooses the horizon of a job with left seconds to its deadline and slack seconds of it spare. The
// reach is rounded up so that many jobs share a table.
func reach(left, slack, delay, k, tick float64) horizon {
	f := math.Max(1, math.Round(natural/tick))
	step := f * tick
	for left/step > most {
		step *= 2
	}
	steps, spare := int(math.Ceil(left/step)), int(math.Ceil(math.Max(slack, 0)/step))+1
	spare = roundUp(spare)
	return horizon{step: step, delay: delay, k: k, left: roundUp(steps), fine: 3, near: min(40, spare), slack: spare}
}

// roundUp rounds to one of eight sizes an octave.
func roundUp(n int) int {
	unit := 1
	for n > 16*unit {
		unit *= 2
	}
	return (n + unit - 1) / unit * unit
}

// around finds the levels a value lies between and the share of the upper one.
func around(level float64) (lo, hi int, share float64) {
	last := len(levels) - 1
	if level <= levels[0] {
		return 0, 0, 0
	}
	if level >= levels[last] {
		return last, last, 0
	}
	for lo = 0; levels[lo+1] < level; lo++ {
	}
	return lo, lo + 1, (level - levels[lo]) / (levels[lo+1] - levels[lo])
}
