package agenttest

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Log notes what the workloads of all machines did. The zero Log is ready.
type Log struct {
	Steps []Step
	Lives []*Life
}

// Step is one executed step of a workload; N is its number, from 1.
type Step struct {
	Workload string
	Epoch    uint64
	Machine  string
	N        int64
	At       time.Time
}

// Life is one process: from its start to its end, and the steps between. Ended is zero while it lives.
type Life struct {
	Workload string
	Epoch    uint64
	Machine  string
	Began    time.Time
	Ended    time.Time
	From, To int64
}

func (l *Log) step(s Step) { l.Steps = append(l.Steps, s) }

func (l *Log) begin(life Life) *Life {
	l.Lives = append(l.Lives, &life)
	return &life
}

// Executed is how many steps of a workload were executed, also those that were done again.
func (l *Log) Executed(workload string) int {
	n := 0
	for _, s := range l.Steps {
		if s.Workload == workload {
			n++
		}
	}
	return n
}

// Overlaps tells of processes of one workload that lived at the same time, and of epochs that ran twice; none is
// what the design wants. A process that ends in the instant in which another starts does not overlap it.
func (l *Log) Overlaps() []string {
	var out []string
	lives := slices.Clone(l.Lives)
	slices.SortStableFunc(lives, func(a, b *Life) int {
		return cmp.Or(cmp.Compare(a.Workload, b.Workload), a.Began.Compare(b.Began))
	})
	for i, a := range lives {
		for _, b := range lives[i+1:] {
			if a.Workload != b.Workload {
				break
			}
			if a.Epoch == b.Epoch {
				out = append(out, fmt.Sprintf("%s: epoch %d ran on %s and on %s", a.Workload, a.Epoch, a.Machine, b.Machine))
			}
			if a.Ended.IsZero() || b.Began.Before(a.Ended) {
				out = append(out, fmt.Sprintf("%s: epoch %d on %s still lived when epoch %d began on %s", a.Workload, a.Epoch, a.Machine, b.Epoch, b.Machine))
			}
		}
	}
	return out
}
