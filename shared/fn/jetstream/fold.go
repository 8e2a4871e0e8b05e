package jetstream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"lowtide/shared/fn"
)

// gate decides when a fold may take what it holds.
//
// A fold skips what is at or below its position, so a message handled after a later one would be lost. That could
// happen: a host that died with messages 1 to 3 in hand leaves them pending for a while, and the server gives 4 to the
// next host. So a fold takes only a beginning of what is delivered and not acknowledged, which is known in three ways:
//
//	all of it is in this hand      the consumer's info counts no more than are held
//	the first of it is             the info's ack floor ends right before it; then only that one is taken
//	no other hand got any          since the last time all was known, every delivery came here: their numbers follow
//	                               each other. This is the rule, and costs nothing
type gate struct {
	sure bool
	next uint64 // the consumer's next delivery
}

func (g *gate) saw(delivery uint64) {
	if delivery != g.next {
		g.sure = false
	}
	g.next = delivery + 1
}

// foldNext collects a batch and folds it.
func (w *worker) foldNext(ctx context.Context) error {
	n, err := w.collect(ctx)
	if err != nil || ctx.Err() != nil {
		w.giveBack()
		return err
	}
	w.fold(ctx, n)
	return nil
}

// collect waits for messages until some of the first of w.held may be folded, and says how many; 0 if none came.
func (w *worker) collect(ctx context.Context) (int, error) {
	wait := idle
	if len(w.held) > 0 {
		wait = shortly
	}
	for tries := 0; ctx.Err() == nil; tries++ {
		if err := w.take(ctx, wait); err != nil {
			return 0, err
		}
		if len(w.held) == 0 || w.gate.sure {
			return len(w.held), nil
		}
		info, err := w.con.Info(ctx)
		if err != nil {
			return 0, err
		}
		switch {
		case w.stale():
			w.giveBack() // somebody else may have them by now
			return 0, nil
		case info.NumAckPending <= len(w.held):
			w.gate.sure = true
			return len(w.held), nil
		case w.held[0].d.Seq == info.AckFloor.Stream+1:
			return 1, nil
		case tries > 8:
			// Others wait for ours as we for theirs. By chance one of us gets all.
			w.giveBack()
			pause(ctx, rand.N(200*time.Millisecond))
			return 0, nil
		}
		wait = shortly << min(tries, 6)
		for i := range w.held {
			_ = w.held[i].msg.InProgress()
			w.held[i].alive = time.Now()
		}
		if len(w.held) == max(1, w.f.Batch) {
			pause(ctx, wait)
		}
	}
	return 0, nil
}

// shortly is how long to wait first for messages that are in other hands.
const shortly = 3 * time.Millisecond

// take adds to what is held, up to a batch.
func (w *worker) take(ctx context.Context, wait time.Duration) error {
	room := max(1, w.f.Batch) - len(w.held)
	if room <= 0 {
		return nil
	}
	more, err := w.fetch(ctx, room, wait)
	for _, it := range more {
		w.gate.saw(it.md.Sequence.Consumer)
		w.held = put(w.held, it)
	}
	return err
}

// stale says that this host gave no sign of life for so long that the server may take it for dead.
func (w *worker) stale() bool {
	for _, it := range w.held {
		if time.Since(it.alive) > ackWait/2 || time.Now().Round(0).Sub(it.alive.Round(0)) > ackWait/2 {
			return true
		}
	}
	return false
}

// put keeps held in stream order, and of two deliveries of one message the later.
func put(held []item, it item) []item {
	i, found := slices.BinarySearchFunc(held, it.d.Seq, func(h item, seq uint64) int {
		switch {
		case h.d.Seq < seq:
			return -1
		case h.d.Seq > seq:
			return 1
		}
		return 0
	})
	if found {
		held[i] = it
		return held
	}
	return slices.Insert(held, i, it)
}

// giveBack lets another host have the messages at once. The server may take later ones out of the stream before it has read
// that these came back, so the gate is no longer sure.
func (w *worker) giveBack() {
	w.gate.sure = false
	for _, it := range w.held {
		_ = it.msg.Nak()
	}
	w.held = nil
}

// fold treats the first size of what is held to their end: handled, or dead, or the host stops. A failed batch stays in
// hand and is tried again here; were it given back, later messages would overtake it.
func (w *worker) fold(ctx context.Context, size int) {
	alive := w.keepAlive(slices.Clone(w.held))
	defer alive()
	tries, alone := 0, false
	for size > 0 {
		n := 1
		if !alone {
			n = readable(w.held[:size])
		}
		var err error
		if n == 0 || w.held[0].dead != nil {
			n, err = 1, fmt.Errorf("%w: %w", fn.ErrDead, w.held[0].dead)
		} else {
			err = w.try(ctx, w.held[:n])
		}
		fate := fn.Again
		switch {
		case err == nil:
			for i := range w.held[:n] {
				w.done(&w.held[i])
			}
			w.held, size, tries = w.held[n:], size-n, 0
			continue
		case ctx.Err() == nil:
			tries++
			w.log("fold", err, "seq", w.held[0].d.Seq, "size", n, "attempt", tries)
			fate = w.f.Fate(n, tries, passing(err), err)
		}
		switch {
		case fate == fn.Alone:
			tries, alone = 0, true
		case fate == fn.Dead && w.buryForSure(ctx, &w.held[0], err):
			w.held, size, tries = w.held[1:], size-1, 0
		case fate == fn.Dead || !pause(ctx, w.h.real(fn.Pace(tries))):
			w.giveBack()
			return
		default:
			for i := range w.held[:n] {
				w.held[i].d.Attempt++
			}
		}
	}
}

// readable counts the messages before the first that cannot be read.
func readable(items []item) int {
	if i := slices.IndexFunc(items, func(it item) bool { return it.dead != nil }); i >= 0 {
		return i
	}
	return len(items)
}

// buryForSure tries until it succeeds or the host stops: a fold cannot go on without, or its later messages would make this
// one look done.
func (w *worker) buryForSure(ctx context.Context, it *item, why error) bool {
	for n := 1; ; n++ {
		err := w.bury(ctx, it, why)
		if err == nil {
			return true
		}
		w.log("bury", err, "seq", it.d.Seq)
		if !pause(ctx, w.h.real(fn.Pace(n))) {
			return false
		}
	}
}
