package memory

import "time"

// timers is a heap by time; what is due at one time comes in the order it was asked for.
type timers struct {
	heap  []timer
	count uint64
}

type timer struct {
	at    time.Time
	order uint64
	do    func()
}

func (a timer) before(b timer) bool {
	if c := a.at.Compare(b.at); c != 0 {
		return c < 0
	}
	return a.order < b.order
}

func (t *timers) next() (time.Time, bool) {
	if len(t.heap) == 0 {
		return time.Time{}, false
	}
	return t.heap[0].at, true
}

func (t *timers) push(at time.Time, do func()) {
	t.count++
	t.heap = append(t.heap, timer{at, t.count, do})
	for i := len(t.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !t.heap[i].before(t.heap[up]) {
			return
		}
		t.heap[i], t.heap[up] = t.heap[up], t.heap[i]
		i = up
	}
}

func (t *timers) pop() func() {
	first, n := t.heap[0], len(t.heap)-1
	t.heap[0] = t.heap[n]
	t.heap[n] = timer{}
	t.heap = t.heap[:n]
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			return first.do
		}
		if down+1 < n && t.heap[down+1].before(t.heap[down]) {
			down++
		}
		if !t.heap[down].before(t.heap[i]) {
			return first.do
		}
		t.heap[i], t.heap[down] = t.heap[down], t.heap[i]
		i = down
	}
}
