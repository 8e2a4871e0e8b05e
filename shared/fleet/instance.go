package fleet

import "time"

// Phase is where a machine stands. It only moves forward, but that a machine in doubt goes from verified back to ready.
type Phase string

// The phases of a machine, in order.
const (
	Ordered  Phase = "ordered"  // the plan is saved, perhaps bought
	Launched Phase = "launched" // the cloud sold it
	Ready    Phase = "ready"    // its agent speaks
	Verified Phase = "verified" // the benchmark passed
	Rejected Phase = "rejected" // the benchmark did not
	Ending   Phase = "ending"   // we asked the cloud to end it
	Ended    Phase = "ended"    // the cloud confirmed
)

var phaseOrder = map[Phase]int{Ordered: 0, Launched: 1, Ready: 2, Verified: 3, Rejected: 4, Ending: 5, Ended: 6}

// Before says that p comes before q, so that a late fact cannot move a machine back.
func (p Phase) Before(q Phase) bool { return phaseOrder[p] < phaseOrder[q] }

// Instance is one machine: planned, bought, proved, used, ended.
type Instance struct {
	Name     string    `json:"name"`         // ours, made before the purchase; subjects use it
	ID       string    `json:"id,omitempty"` // the cloud's
	Plan     string    `json:"plan"`
	Workload string    `json:"workload,omitempty"`
	Offer    Offer     `json:"offer"`
	Phase    Phase     `json:"phase"`
	Cause    string    `json:"cause,omitempty"` // why it is rejected, doomed or ending
	Bought   time.Time `json:"bought,omitzero"`
	ReadyAt  time.Time `json:"ready_at,omitzero"`
	Heard    time.Time `json:"heard,omitzero"`     // last word of its agent
	Told     time.Time `json:"told,omitzero"`      // last word to it, in whole seconds: what its lease counts from
	EndsBy   time.Time `json:"ends_by,omitzero"`   // earliest announced end; zero: not doomed
	Gone     time.Time `json:"gone,omitzero"`      // when the cloud confirmed the end
	Order    Order     `json:"order,omitzero"`     // what it shall do, the last word
	Run      Run       `json:"run,omitzero"`       // what it does, as its agent told last
	Acked    uint64    `json:"acked,omitempty"`    // highest order number that the agent says it has read
	Answered string    `json:"answered,omitempty"` // last ordered save that was answered, durable or not
	HardEnd  time.Time `json:"hard_end,omitzero"`  // the machine ends itself then
	Proved   time.Time `json:"proved,omitzero"`    // when a benchmark passed last
	Doubt    string    `json:"doubt,omitempty"`    // why it must pass another
}

// Doomed says that the cloud has announced the end.
func (i *Instance) Doomed() bool { return !i.EndsBy.IsZero() }

// Bills says that the machine costs money, as far as we know.
func (i *Instance) Bills() bool { return !i.Bought.IsZero() && i.Phase != Ended }

// Cost is what the machine has cost until now, at the price it was bought at; unknown prices cost nothing known.
func (i *Instance) Cost(now time.Time) Money {
	if i.Bought.IsZero() {
		return Money{}
	}
	end := now
	if !i.Gone.IsZero() {
		end = i.Gone
	}
	hourly, ok := i.Offer.Hourly.Get()
	if !ok || end.Before(i.Bought) {
		return Money{}
	}
	return hourly.Times(end.Sub(i.Bought).Hours())
}

// RunPhase is what the workload's process does on a machine.
type RunPhase string

// The phases of a run; stopped, finished and failed end it.
const (
	NoRun       RunPhase = ""
	Starting    RunPhase = "starting" // restoring, setting up
	Running     RunPhase = "running"
	RunStopped  RunPhase = "stopped" // saved as ordered, or killed as ordered
	RunFinished RunPhase = "finished"
	RunFailed   RunPhase = "failed"
)

// Over says that the process is gone.
func (p RunPhase) Over() bool { return p == RunStopped || p == RunFinished || p == RunFailed }

// Run is one run of a workload on a machine.
type Run struct {
	Epoch uint64   `json:"epoch,omitempty"`
	Phase RunPhase `json:"phase,omitempty"`
	Step  int64    `json:"step,omitempty"`
	Code  int      `json:"code,omitempty"` // exit status when over
}

// Order is desired state (its parts are replaced, never edited): the last one a machine is given replaces all before it. The agent keeps the
// highest Number on disk and reads the newest on start.
type Order struct {
	Number    uint64     `json:"number,omitempty"`
	Epoch     uint64     `json:"epoch,omitempty"` // of Start; Save and Stop are for the run of this epoch
	Benchmark *Benchmark `json:"benchmark,omitempty"`
	Start     *Start     `json:"start,omitempty"` // the workload shall run
	Save      *Save      `json:"save,omitempty"`  // a checkpoint shall be made durable
	Stop      bool       `json:"stop,omitempty"`  // after the save, if any, the process shall end
	Prune     *Prune     `json:"prune,omitempty"`
}

// Benchmark asks for one proof. The answer must carry the nonce.
type Benchmark struct {
	Nonce string `json:"nonce"`
	Suite string `json:"suite"` // "quick" or "full"
	Check *Check `json:"check,omitempty"`
}

// Check is a workload's own word on a machine: a command that must succeed after the benchmark.
type Check struct {
	Workload string            `json:"workload"`
	Command  []string          `json:"command"`
	Env      map[string]string `json:"env,omitempty"`
	Code     string            `json:"code,omitempty"`  // as in Kit
	Image    string            `json:"image,omitempty"` // as in Kit
}

// Start is a run: what to run and from which checkpoint.
type Start struct {
	Workload  string            `json:"workload"`
	Run       []string          `json:"run"`
	Env       map[string]string `json:"env,omitempty"`
	SaveEvery time.Duration     `json:"save_every,omitempty"`
	From      string            `json:"from,omitempty"`  // manifest to restore; "": from the beginning
	Prior     string            `json:"prior,omitempty"` // manifest to fall back to when From is damaged
	Kit       Kit               `json:"kit,omitzero"`
}

// Save asks for a checkpoint.
type Save struct {
	ID string    `json:"id"`
	By time.Time `json:"by,omitzero"` // everything must be durable by then; zero: in its own time
}

// Prune asks to delete the workload's manifests that Keep does not name, and the chunks that nothing names.
type Prune struct {
	Workload string   `json:"workload"`
	Keep     []string `json:"keep"`
}
