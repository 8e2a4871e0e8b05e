package jetstream

import (
	"context"
	"slices"
	"time"

	"lowtide/shared/fn"
)

// gate decides when a fold may take what it holds.
//
// A fold skips what is at or below its position, so a message handled after a later one would be lost. That could
// happen: a host that died with messages 1 to 3 in hand leaves them pending for a while, and the server gives 4 to the
// next host. So a fold takes its batch only when it holds every message that is delivered and not acknowledged.
// That is known in two ways: from the consumer's info, or because every delivery the consumer made since the last time
// it was known came here (their numbers follow each other), which costs nothing.
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
	held, err := w.collect(ctx)
	if err != nil {
		return err
	}
	w.fold(ctx, held)
	return nil
}

// collect waits for messages until they may be folded. Those in hand are kept alive meanwhile.
func (w *worker) collect(ctx context.Context) (held []item, err error) {
	defer func() {
		if err != nil || ctx.Err() != nil {
			w.giveBack(held)
			held = nil
		}
	}()
	wait := idle
	for tries := 0; ; tries++ {
		if room := max(1, w.f.Batch) - len(held); room > 0 {
			more, err := w.fetch(ctx, room, wait)
			for _, it := range more {
				w.gate.saw(it.md.Sequence.Consumer)
				held = put(held, it)
			}
			if err != nil || ctx.Err() != nil {
				return held, err
			}
		}
		if len(held) == 0 || w.gate.sure {
			return held, nil
		}
		info, err := w.con.Info(ctx)
		if err != nil {
			return held, err
		}
		if info.NumAckPending <= len(held) {
			w.gate.sure = true
			return held, nil
		}
		// Somebody else holds messages, or did and died: they are handled, or come here, within the ack wait.
		for _, it := range held {
			_ = it.msg.InProgress()
		}
		wait = min(10*time.Millisecond<<min(tries, 5), 300*time.Millisecond)
		if len(held) == max(1, w.f.Batch) && !pause(ctx, wait) {
			return held, nil
		}
	}
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
func (w *worker) giveBack(held []item) {
	w.gate.sure = false
	for _, it := range held {
		_ = it.msg.Nak()
	}
}

// fold treats a batch to its end: handled, or dead, or the host stops. A failed batch stays in hand and is tried again
// here; were it given back, later messages would overtake it.
func (w *worker) fold(ctx context.Context, held []item) {
	alive := w.keepAlive(slices.Clone(held))
	defer alive()
	held = slices.DeleteFunc(held, func(it item) bool {
		return it.dead != nil && w.buryForSure(ctx, &it, it.dead)
	})
	if ctx.Err() != nil {
		w.giveBack(held)
		return
	}
	tries, alone := 0, 0
	pass := func(n int) {
		held, tries, alone = held[n:], 0, max(0, alone-1)
	}
	for len(held) > 0 {
		n := len(held)
		if alone > 0 {
			n = 1
		}
		err := w.try(ctx, held[:n])
		if err == nil {
			for i := range held[:n] {
				w.done(&held[i])
			}
			pass(n)
			continue
		}
		if ctx.Err() != nil {
			w.giveBack(held)
			return
		}
		tries++
		w.log("fold", err, "seq", held[0].d.Seq, "size", n, "attempt", tries)
		switch w.f.Fate(n, tries, passing(err), err) {
		case fn.Dead:
			if !w.buryForSure(ctx, &held[0], err) {
				w.giveBack(held)
				return
			}
			pass(1)
		case fn.Alone:
			tries, alone = 0, n
		case fn.Again:
			if !pause(ctx, w.h.real(fn.Pace(tries))) {
				w.giveBack(held)
				return
			}
			for i := range held[:n] {
				held[i].d.Attempt++
			}
		}
	}
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
