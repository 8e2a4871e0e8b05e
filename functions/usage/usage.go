// Package usage tells idle from busy: whether a workload does anything with the GPUs that are paid for it.
//
//	busy        the GPUs work, or did within the windows below
//	idle        for two windows nothing worked: GPU, its memory, its links, and the machine's network, disks and cores
//	held        idle, and memory or a process is still there: somebody may come back to it
//	underused   for an hour less than a smaller GPU could do
//
// It promises that unknown is never idle: a GPU that cannot be read, a run that starts, saves or restores, and minutes that
// were not heard count for neither. It takes two windows to become idle and one minute to be busy again.
// It stops nothing: rebalance does, by the workload's own policy and after a warning.
package usage

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

// Options are the windows. The zero Options work.
type Options struct {
	Idle      time.Duration // one window; two of them make a workload idle. 10 min
	Underused time.Duration // over which a workload's use is averaged; 1 h
	Again     time.Duration // between two words about a waste that lasts; 1 h
}

type judge struct {
	machines store.Bucket
	o        Options
}

// New makes the function. machines is its own bucket: a key a machine.
func New(machines store.Bucket, o Options) fn.Function {
	o.Idle, o.Underused = cmp.Or(o.Idle, 10*time.Minute), cmp.Or(o.Underused, time.Hour)
	o.Again = cmp.Or(o.Again, time.Hour)
	j := judge{machines, o}
	return fn.New("usage", fn.Hear(j.measured))
}

// State is what is remembered of one machine.
type State struct {
	Seq      uint64             `json:"seq"` // of the newest measurement that was counted
	Workload string             `json:"workload"`
	Epoch    uint64             `json:"epoch"`
	Points   []Point            `json:"points,omitempty"` // oldest first
	Base     map[string]float64 `json:"base,omitempty"`   // least power of each GPU while it did nothing, W
	Said     Word               `json:"said,omitzero"`
	SaidAt   time.Time          `json:"said_at,omitzero"`
	SaidSeq  uint64             `json:"said_seq,omitempty"`
	Since    time.Time          `json:"since,omitzero"` // of what was said
}

// measured takes one minute.
func (j judge) measured(ctx context.Context, m events.UtilisationMeasured) ([]events.Event, error) {
	if m.Workload == "" {
		return nil, nil // nobody's, or not yet: provisioned machines are rebalance's to look after
	}
	s, rev, err := j.read(ctx, m.Machine)
	if err != nil {
		return nil, err
	}
	d := fn.From(ctx)
	switch {
	case d.Seq < s.Seq:
		return nil, nil
	case d.Seq > s.Seq:
		s.take(m, d.At, j.o)
		s.Seq = d.Seq
		if word, since := s.conclude(j.o, d.At); word != s.Said || word.wastes() && d.At.Sub(s.SaidAt) >= j.o.Again {
			s.settle(word, since, d)
		}
		if err := j.write(ctx, m.Machine, s, rev); err != nil {
			return nil, err
		}
	}
	if s.SaidSeq != d.Seq {
		return nil, nil
	}
	return []events.Event{events.New(d.Event.Fleet, fmt.Sprintf("usage/%d", d.Seq), d.At, s.fact(m.Machine, j.o))}, nil
}

// settle takes a new word over. The normal state needs none until there was another.
func (s *State) settle(word Word, since time.Time, d fn.Delivery) {
	if word == Busy && !s.Said.wastes() {
		s.Said = Busy
		return
	}
	if word == Busy {
		s.Points = s.Points[len(s.Points)-1:] // the hour before must not make the next one look underused
	}
	s.Said, s.Since, s.SaidAt, s.SaidSeq = word, since, d.At, d.Seq
}

func (j judge) read(ctx context.Context, machine string) (State, uint64, error) {
	var s State
	rev, err := store.Load(ctx, j.machines, events.Token(machine), &s)
	if err != nil {
		return s, 0, fmt.Errorf("read the use of %s: %w", machine, err)
	}
	return s, rev, nil
}

func (j judge) write(ctx context.Context, machine string, s State, rev uint64) error {
	if _, err := store.Save(ctx, j.machines, events.Token(machine), s, rev); err != nil {
		return fmt.Errorf("keep the use of %s: %w", machine, err)
	}
	return nil
}
