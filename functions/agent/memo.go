package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// memoName is the file of the memo.
const memoName = "agent.json"

// memo is what an agent keeps on disk. One value, so that no crash can leave two halves that disagree.
type memo struct {
	Incarnation uint64                    `json:"incarnation"` // of the process, from 1
	Since       time.Time                 `json:"since,omitzero"`
	Contact     time.Time                 `json:"contact,omitzero"` // when the decider was last heard: what the lease counts from
	Word        word                      `json:"word,omitzero"`    // what was heard then
	Order       fleet.Order               `json:"order,omitzero"`   // the highest read
	Run         run                       `json:"run,omitzero"`     // the newest run
	Answered    answered                  `json:"answered,omitzero"`
	Bench       *events.BenchmarkFinished `json:"bench,omitempty"` // newest answer
	Notice      Notice                    `json:"notice,omitzero"`
	Pruned      uint64                    `json:"pruned,omitempty"` // number of the order whose prune is done
}

// word is which saying of which order was heard.
type word struct {
	Number  uint64 `json:"number,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
}

// run is the newest run on this machine.
type run struct {
	Workload string         `json:"workload,omitempty"`
	Epoch    uint64         `json:"epoch,omitempty"`
	Phase    fleet.RunPhase `json:"phase,omitempty"`
	Start    fleet.Start    `json:"start,omitzero"`
	Step     int64          `json:"step,omitempty"`
	Code     int            `json:"code,omitempty"`
	Why      string         `json:"why,omitempty"`
	Result   string         `json:"result,omitempty"`

	From     string        `json:"from,omitempty"` // manifest restored
	FromStep int64         `json:"from_step,omitempty"`
	Restore  time.Duration `json:"restore,omitempty"`

	Saved fleet.Manifest `json:"saved,omitzero"`

	Told  time.Time `json:"told,omitzero"`  // when the process was told to end: from then on its exit is a stop
	Asked time.Time `json:"asked,omitzero"` // to save and stop
	Had   int64     `json:"had,omitempty"`  // newest complete step on this disk at that time
	Term  time.Time `json:"term,omitzero"`  // to end, saved or not
	Waits time.Time `json:"waits,omitzero"` // since when the process is gone, the run is to end, and only its upload is waited for
	Stale bool      `json:"stale,omitempty"`
	Spare string    `json:"spare,omitempty"` // why its last save was not begun
}

// lives says that the run is not over.
func (r *run) lives() bool { return r.Phase == fleet.Starting || r.Phase == fleet.Running }

// base is the step up to which nothing would be lost.
func (r *run) base() int64 { return max(r.FromStep, r.Saved.Step) }

// answered is the last order to save that was answered.
type answered struct {
	Save     string         `json:"save,omitempty"`
	Epoch    uint64         `json:"epoch,omitempty"`
	Manifest fleet.Manifest `json:"manifest,omitzero"`
	Why      string         `json:"why,omitempty"` // it failed
}

// recall reads the memo of an earlier process.
func (a *Agent) recall() error {
	b, err := a.deps.Disk.Load(memoName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", memoName, err)
	}
	if err := json.Unmarshal(b, &a.memo); err != nil {
		return fmt.Errorf("read %s: %w", memoName, err)
	}
	a.written = a.memo
	return nil
}

// keep writes the memo if it changed. Whoever acts on a change calls it first. What the memo points to is never
// changed in place, so a shallow copy serves to tell.
func (a *Agent) keep() error {
	if reflect.DeepEqual(a.memo, a.written) {
		return nil
	}
	b, err := json.Marshal(a.memo)
	if err == nil {
		err = a.deps.Disk.Store(memoName, b)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", memoName, err)
	}
	a.written = a.memo
	return nil
}
