package fleet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"time"
)

// Autonomy is how far lowtide may go on its own for a workload.
type Autonomy string

// The levels; the default of a workload file is observe.
const (
	Observe Autonomy = "observe" // say what one would do
	Suggest Autonomy = "suggest" // a person approves each plan
	Act     Autonomy = "act"
)

// Known says that it is one of the three.
func (a Autonomy) Known() bool { return a == Observe || a == Suggest || a == Act }

// Spec is a workload as its owner wrote it.
type Spec struct {
	Name               string            `json:"name"`
	Run                []string          `json:"run"` // command and arguments
	Env                map[string]string `json:"env,omitempty"`
	Tags               map[string]string `json:"tags,omitempty"`    // whose it is: "team" routes what people are told
	GPUs               int               `json:"gpus,omitempty"`    // GPUs on one machine; 0 takes any
	Models             []string          `json:"models,omitempty"`  // canonical GPU models that will do; none: all
	Clouds             []string          `json:"clouds,omitempty"`  // allowed clouds; none: all
	Work               time.Duration     `json:"work"`              // on the reference machine, start-up not counted
	Steps              int64             `json:"steps,omitempty"`   // the whole work in the job's own steps; 0: it does not say
	Deadline           time.Time         `json:"deadline,omitzero"` // zero: best effort
	Budget             Maybe[Money]      `json:"budget,omitzero"`
	Autonomy           Autonomy          `json:"autonomy"`
	SaveEvery          time.Duration     `json:"save_every,omitempty"` // the job's own checkpoint interval
	DeadlineOverBudget bool              `json:"deadline_over_budget,omitempty"`
	StartFirst         bool              `json:"start_first,omitempty"` // may run before the benchmark when waiting would miss the deadline
	WhenIdle           WhenIdle          `json:"when_idle,omitempty"`   // what is done when its GPUs lie idle or are far too large
	IdleGrace          time.Duration     `json:"idle_grace,omitempty"`  // from the warning until that; 0: 15 min
	Want               Want              `json:"want,omitzero"`         // more of its machines
	Kit                Kit               `json:"kit,omitzero"`
}

// Same says that two files ask for the same.
func (s Spec) Same(t Spec) bool {
	a, err := json.Marshal(s)
	b, err2 := json.Marshal(t)
	return err == nil && err2 == nil && bytes.Equal(a, b)
}

// WhenIdle is what may be done about a workload that wastes its GPUs; people are told in any case.
type WhenIdle string

// The policies; the default is to tell.
const (
	IdleNotify  WhenIdle = "notify"
	IdleStop    WhenIdle = "stop"    // save, stop and end the machine, until the workload is resumed
	IdleSmaller WhenIdle = "smaller" // go on with a machine that is enough; one that is idle altogether is stopped
)

// WorkloadPhase is where a workload stands.
type WorkloadPhase string

// The phases. Only finished, failed, refused and withdrawn are final.
const (
	Accepted  WorkloadPhase = "accepted" // its worst case fits; it runs, waits or moves
	Paused    WorkloadPhase = "paused"
	Finished  WorkloadPhase = "finished"
	Failed    WorkloadPhase = "failed"
	Refused   WorkloadPhase = "refused"
	Withdrawn WorkloadPhase = "withdrawn"
)

// Final says that nothing will run any more.
func (p WorkloadPhase) Final() bool {
	return p == Finished || p == Failed || p == Refused || p == Withdrawn
}

// Manifest is a durable checkpoint that the agent reported.
type Manifest struct {
	ID    string        `json:"id"`
	Epoch uint64        `json:"epoch"`
	Step  int64         `json:"step"`
	At    time.Time     `json:"at"`
	Bytes int64         `json:"bytes,omitempty"`
	Took  time.Duration `json:"took,omitempty"` // from the request to durable
}

// Workload is a spec and what has become of it.
type Workload struct {
	Spec     *Spec         `json:"spec"` // replaced, never edited: Encoder tells a change by the pointer
	Phase    WorkloadPhase `json:"phase"`
	Why      string        `json:"why,omitempty"`
	Asked    string        `json:"asked,omitempty"` // id of the event that asked for it, until that is answered
	Since    time.Time     `json:"since"`           // submitted
	Ended    time.Time     `json:"ended,omitzero"`
	Epoch    uint64        `json:"epoch"`            // of the newest run ordered; 0: none yet
	Slot     string        `json:"slot,omitempty"`   // reservation that it shall run on; "": none
	On       string        `json:"on,omitempty"`     // machine of that run, until the run is over
	Next     string        `json:"next,omitempty"`   // machine that is made ready to take over
	Step     int64         `json:"step"`             // newest step heard of
	Saved    Manifest      `json:"saved,omitzero"`   // newest durable checkpoint that counts
	Prior    Manifest      `json:"prior,omitzero"`   // the one before it; a restore may fall back to it
	Result   string        `json:"result,omitempty"` // what the job says it made, the weights' hash
	Commit   Money         `json:"commit,omitzero"`  // worst case, all on demand, accepted at submit
	Spent    Money         `json:"spent,omitzero"`   // machines that have ended
	Moves    int           `json:"moves,omitempty"`
	Lost     int64         `json:"lost,omitempty"`      // steps that had to be done again
	Review   time.Time     `json:"review,omitzero"`     // when the planner must look again
	Waiting  time.Time     `json:"waiting,omitzero"`    // since when no machine carries it; zero: one does
	SaveTook time.Duration `json:"save_took,omitempty"` // slowest recent save
	Fails    int           `json:"fails,omitempty"`     // runs that failed of themselves, in a row
	Allowed  Money         `json:"allowed,omitzero"`    // dearest launch, an hour, that a person has approved
	Of       int64         `json:"of,omitempty"`        // steps in all, as the job itself tells; the spec's go first
	Pace     Pace          `json:"pace,omitzero"`       // how fast it goes, against its own past
	Waste    Waste         `json:"waste,omitzero"`      // of its GPUs, while that lasts
	Needs    Needs         `json:"needs,omitzero"`      // what is enough for it, as its use showed; zero: not known, all it can get
	Keep     time.Time     `json:"keep,omitzero"`       // a person wants it left as it is until then
	Proofs   Money         `json:"proofs,omitzero"`     // what benchmarks of its machines have cost so far, within Spent
}

// Waste is a warning that stands: the workload does little with its GPUs.
type Waste struct {
	Idle  bool      `json:"idle,omitempty"` // else underused
	Epoch uint64    `json:"epoch,omitempty"`
	Needs Needs     `json:"needs,omitzero"` // of an underused one
	Why   string    `json:"why,omitempty"`
	At    time.Time `json:"at,omitzero"` // when the policy is carried out; zero: it is to tell, and nothing else
}

// Needs is what a workload uses of a machine, with room to spare.
type Needs struct {
	Speed  float64 `json:"speed,omitempty"`  // work per hour against the reference machine
	Memory int     `json:"memory,omitempty"` // of one GPU, GB; 0: not known
	As     float64 `json:"as,omitempty"`     // speed of the machine on which that was seen: what is enough is as fast
}

// Pace is how fast a workload goes on one type of machine, in its own steps.
type Pace struct {
	Type    string    `json:"type,omitempty"`
	Epoch   uint64    `json:"epoch,omitempty"`
	Step    int64     `json:"step,omitempty"` // where the present window began
	At      time.Time `json:"at,omitzero"`
	Usual   float64   `json:"usual,omitempty"`   // steps an hour
	Windows int       `json:"windows,omitempty"` // behind Usual
	Slow    int       `json:"slow,omitempty"`    // windows in a row that were slower
}

// DoneShare is the part of the work behind a step, 0 to 1; a job that names no steps has done what it saved none of.
func (w *Workload) DoneShare(step int64) float64 {
	of := cmp.Or(w.Spec.Steps, w.Of)
	if of <= 0 {
		return 0
	}
	return min(1, float64(step)/float64(of))
}

// Left is the work behind a step that is still to do, on the reference machine.
func (w *Workload) Left(step int64) time.Duration {
	return time.Duration((1 - w.DoneShare(step)) * float64(w.Spec.Work))
}
