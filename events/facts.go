package events

import (
	"reflect"
	"time"

	"lowtide/shared/fleet"
)

// Kinds lists every kind this version knows, with the type of its data.
func Kinds() map[Kind]reflect.Type { return kinds }

var kinds = func() map[Kind]reflect.Type {
	m := map[Kind]reflect.Type{}
	for _, f := range []Fact{
		ClockTicked{},
		PriceChanged{},
		NoticeReceived{},
		InstanceInterrupted{},
		InstanceAtRisk{},
		WorkloadSubmitted{},
		WorkloadChanged{},
		WorkloadWithdrawn{},
		WorkloadPaused{},
		WorkloadResumed{},
		WorkloadAccepted{},
		WorkloadRefused{},
		PolicySet{},
		BudgetWarned{},
		BudgetExhausted{},
		PlanProposed{},
		PlanApproved{},
		PlanRejected{},
		PlanMade{},
		PlanFailed{},
		InstanceLaunched{},
		InstanceEnded{},
		InstanceFound{},
		InstanceLost{},
		OrderGiven{},
		MachineHeard{},
		InstanceReady{},
		WorkloadStarted{},
		WorkloadProgressed{},
		WorkloadStopped{},
		WorkloadFinished{},
		WorkloadFailed{},
		CheckpointSaved{},
		CheckpointFailed{},
		BenchmarkFinished{},
		InstanceVerified{},
		InstanceRejected{},
		UtilisationMeasured{},
		WorkloadIdle{},
		WorkloadUnderused{},
		WorkloadBusy{},
		WorkloadWarned{},
		WorkloadKept{},
		ApprovalRefused{},
		ChangeRefused{},
		CheckpointAsked{},
		SilenceSet{},
		ReservationSet{},
		ReservationExpiring{},
		ReservationIdle{},
		ChannelFailed{},
		ChannelRecovered{},
		AlertReceived{},
		RuleFailed{},
		RuleActed{},
		WebhookAsked{},
		WorkloadAsked{},
		PlanAsked{},
		PersonActed{},
	} {
		m[f.Kind()] = reflect.TypeOf(f)
	}
	return m
}()

// ClockTicked wakes whoever looks after something: a schedule's tick (What "tick") or a fleet's own wake-up
// (What "wake").
type ClockTicked struct {
	What string    `json:"what"`
	Due  time.Time `json:"due"`
}

// PriceChanged says that what a cloud sells in a region is not what it was; the offers lie in the object store.
type PriceChanged struct {
	Cloud   string `json:"cloud"`
	Region  string `json:"region"`
	Digest  string `json:"digest"` // of the offers object
	Offers  int    `json:"offers"`
	Summary string `json:"summary,omitempty"` // what changed most, in words
}

// NoticeReceived is a cloud's word as it came, before anybody has read it: notices does.
type NoticeReceived struct {
	Cloud string `json:"cloud"` // whose door it came through
	Body  []byte `json:"body"`  // base64 on the wire
}

// ActionEnded is the action of a machine that is already going, whoever ended it: it counts as lost, and not as an
// interruption of the market's.
const ActionEnded = "ended"

// InstanceInterrupted says that a cloud will take, or has taken, a machine. Either Machine (our name) or ID is set.
type InstanceInterrupted struct {
	Cloud   string    `json:"cloud"`
	Account string    `json:"account"`
	Machine string    `json:"machine,omitempty"`
	ID      string    `json:"id,omitempty"`
	EndsBy  time.Time `json:"ends_by"`
	Action  string    `json:"action"`  // terminate, stop, hibernate; ActionEnded
	Noticed string    `json:"noticed"` // metadata, eventbridge, webhook, listing
}

// InstanceAtRisk is advice without a time: the cloud thinks that the machine may be taken soon.
type InstanceAtRisk struct {
	Cloud   string `json:"cloud"`
	Account string `json:"account"`
	Machine string `json:"machine,omitempty"`
	ID      string `json:"id,omitempty"`
	Noticed string `json:"noticed"`
}

// WorkloadSubmitted asks lowtide to run something.
type WorkloadSubmitted struct {
	Spec fleet.Spec `json:"spec"`
}

// WorkloadChanged replaces deadline, budget or autonomy of a running workload; zero fields stay as they are.
type WorkloadChanged struct {
	Workload string                   `json:"workload"`
	Deadline time.Time                `json:"deadline,omitzero"`
	Budget   fleet.Maybe[fleet.Money] `json:"budget,omitzero"`
	Autonomy fleet.Autonomy           `json:"autonomy,omitempty"`
}

// Done says that a workload is as the change wants it.
func (f WorkloadChanged) Done(s fleet.Spec) bool {
	budget, asked := f.Budget.Get()
	has, _ := s.Budget.Get()
	return (f.Autonomy == "" || f.Autonomy == s.Autonomy) && (f.Deadline.IsZero() || f.Deadline.Equal(s.Deadline)) &&
		(!asked || has.Currency == budget.Currency && has.Amount.Equal(budget.Amount))
}

// WorkloadWithdrawn asks to save, stop and forget a workload.
type WorkloadWithdrawn struct {
	Workload string `json:"workload"`
	By       string `json:"by,omitempty"`
}

// WorkloadPaused asks to save and stop; nothing is bought for it until it is resumed.
type WorkloadPaused struct {
	Workload string `json:"workload"`
	By       string `json:"by,omitempty"`
}

// WorkloadResumed ends a pause.
type WorkloadResumed struct {
	Workload string `json:"workload"`
	By       string `json:"by,omitempty"`
}

// WorkloadAccepted is a promise: the worst case, all on demand, fits deadline and budget.
type WorkloadAccepted struct {
	Workload string                   `json:"workload"`
	Asked    string                   `json:"asked,omitempty"`   // id of the event that asked for it
	Worst    fleet.Money              `json:"worst"`             // committed
	Baseline fleet.Money              `json:"baseline,omitzero"` // the work on demand from the first second, without any start-up
	Budget   fleet.Maybe[fleet.Money] `json:"budget,omitzero"`
	Bound    fleet.Money              `json:"bound"`             // the bill if the control plane dies for ever right after the next purchase
	Unbooted fleet.Money              `json:"unbooted,omitzero"` // the same for a machine that never boots: until its hard end, where the cloud keeps it
	Finish   time.Time                `json:"finish"`            // when it ends at the latest, all on demand from now
	Deadline time.Time                `json:"deadline,omitzero"` // promised
}

// WorkloadRefused says why a workload cannot be promised.
type WorkloadRefused struct {
	Workload string `json:"workload"`
	Asked    string `json:"asked,omitempty"` // id of the event that asked for it: a name may be asked for again
	Why      string `json:"why"`
}

// PolicySet changes what the fleet may do as a whole.
type PolicySet struct {
	Halt string `json:"halt"`           // why nothing may be bought; "" lifts it
	Stop bool   `json:"stop,omitempty"` // save and end everything of ours
	By   string `json:"by,omitempty"`
}

// BudgetWarned says that a workload has spent most of its budget.
type BudgetWarned struct {
	Workload string      `json:"workload"`
	Spent    fleet.Money `json:"spent"`
	Budget   fleet.Money `json:"budget"`
}

// BudgetExhausted says that a workload has spent its budget.
type BudgetExhausted struct {
	Workload string      `json:"workload"`
	Spent    fleet.Money `json:"spent"`
	Budget   fleet.Money `json:"budget"`
}

// PlanProposed waits for a person; or nobody is asked, and it only shows what would be done.
type PlanProposed struct {
	Plan     fleet.Plan `json:"plan"`
	Why      string     `json:"why,omitempty"`      // why a person is asked
	Until    time.Time  `json:"until,omitzero"`     // without an answer by then, Default is done
	Default  string     `json:"default,omitempty"`  // "approve" or "reject"
	Observed bool       `json:"observed,omitempty"` // the workload is only observed
}

// PlanApproved is a person's yes.
type PlanApproved struct {
	Plan string `json:"plan"`
	Hash string `json:"hash,omitempty"` // of the plan that the person saw (fleet.Plan.Hash); "": whatever it is now
	By   string `json:"by"`
}

// PlanRejected is a person's no.
type PlanRejected struct {
	Plan string `json:"plan"`
	Hash string `json:"hash,omitempty"` // as with PlanApproved
	By   string `json:"by"`
}

// PlanMade tells provision to carry a plan out. Attempt grows each time it is said again.
type PlanMade struct {
	Plan    fleet.Plan `json:"plan"`
	Install string     `json:"install"` // of the fleet, for the labels
	Attempt int        `json:"attempt"`
}

// PlanFailed says that a plan did not come about, and what was refused.
type PlanFailed struct {
	Plan    string       `json:"plan"`
	Machine string       `json:"machine"`
	Action  fleet.Action `json:"action"`
	Why     string       `json:"why"`
	Refused []Refused    `json:"refused,omitempty"`
}

// Refused is one offer that was not sold.
type Refused struct {
	Pool string `json:"pool"`
	Why  string `json:"why"` // a word of the closed list of shared/provider
}

// InstanceLaunched says what was bought.
type InstanceLaunched struct {
	Plan     string      `json:"plan"`
	Machine  string      `json:"machine"`
	ID       string      `json:"id"`
	Workload string      `json:"workload,omitempty"`
	Offer    fleet.Offer `json:"offer"`             // as read back from the cloud
	At       time.Time   `json:"at"`                // when billing began
	Refused  []Refused   `json:"refused,omitempty"` // offers tried before
}

// InstanceEnded says that the cloud lists the machine no more.
type InstanceEnded struct {
	Plan    string    `json:"plan,omitempty"`
	Cloud   string    `json:"cloud"`
	Account string    `json:"account"`
	Machine string    `json:"machine"`
	ID      string    `json:"id"`
	At      time.Time `json:"at"`  // when billing ended
	Why     string    `json:"why"` // asked, interrupted, gone
}

// InstanceFound is a machine with our label that the listing shows.
type InstanceFound struct {
	Cloud    string      `json:"cloud"`
	Account  string      `json:"account"`
	Machine  string      `json:"machine"`
	ID       string      `json:"id"`
	Plan     string      `json:"plan"`
	Workload string      `json:"workload,omitempty"`
	Offer    fleet.Offer `json:"offer"`
	Since    time.Time   `json:"since"`
	Began    time.Time   `json:"began"` // when the listing began
	Count    int         `json:"count"` // of complete listings that showed it without a plan
}

// InstanceLost is a machine of ours that two complete listings did not show.
type InstanceLost struct {
	Cloud   string    `json:"cloud"`
	Account string    `json:"account"`
	Machine string    `json:"machine"`
	ID      string    `json:"id"`
	Began   time.Time `json:"began"` // when the second listing began
}

// OrderGiven is what one machine shall do. Attempt grows each time it is said again.
type OrderGiven struct {
	Machine string      `json:"machine"`
	Order   fleet.Order `json:"order"`
	Attempt int         `json:"attempt"`
}

// MachineHeard is an agent's regular word: all it knows, so that no single fact need arrive.
type MachineHeard struct {
	Machine  string         `json:"machine"`
	ID       string         `json:"id,omitempty"`
	Beat     uint64         `json:"beat"`   // counts up
	Number   uint64         `json:"number"` // of the highest order read
	Run      fleet.Run      `json:"run,omitzero"`
	Workload string         `json:"workload,omitempty"`
	Saved    fleet.Manifest `json:"saved,omitzero"` // newest durable checkpoint of this run
	Busy     string         `json:"busy,omitempty"` // benchmark, restore, setup, save
	Result   string         `json:"result,omitempty"`
	Lease    time.Time      `json:"lease,omitzero"` // when the machine ends itself without contact
}

// InstanceReady is an agent's first word.
type InstanceReady struct {
	Machine string        `json:"machine"`
	ID      string        `json:"id,omitempty"`
	Boot    time.Duration `json:"boot,omitempty"` // from the purchase until now, if known
}

// WorkloadStarted says that the process runs, and from which step.
type WorkloadStarted struct {
	Workload string        `json:"workload"`
	Machine  string        `json:"machine"`
	Epoch    uint64        `json:"epoch"`
	From     string        `json:"from,omitempty"` // manifest restored
	Step     int64         `json:"step"`
	Restore  time.Duration `json:"restore,omitempty"` // with the code and the setup
}

// WorkloadProgressed is said at most once a minute.
type WorkloadProgressed struct {
	Workload string `json:"workload"`
	Machine  string `json:"machine"`
	Epoch    uint64 `json:"epoch"`
	Step     int64  `json:"step"`
	Of       int64  `json:"of,omitempty"`
}

// WorkloadStopped says that the process ended because it was told to.
type WorkloadStopped struct {
	Workload string         `json:"workload"`
	Machine  string         `json:"machine"`
	Epoch    uint64         `json:"epoch"`
	Step     int64          `json:"step"`
	Saved    fleet.Manifest `json:"saved,omitzero"` // newest durable checkpoint
}

// WorkloadFinished says that the work is done; its result is durable.
type WorkloadFinished struct {
	Workload string         `json:"workload"`
	Machine  string         `json:"machine"`
	Epoch    uint64         `json:"epoch"`
	Step     int64          `json:"step"`
	Result   string         `json:"result,omitempty"`
	Saved    fleet.Manifest `json:"saved,omitzero"`
}

// WorkloadFailed says that the process ended of itself with an error.
type WorkloadFailed struct {
	Workload string `json:"workload"`
	Machine  string `json:"machine"`
	Epoch    uint64 `json:"epoch"`
	Step     int64  `json:"step"`
	Code     int    `json:"code"`
	Why      string `json:"why"` // last lines of the log, bounded
}

// CheckpointSaved says that a checkpoint is durable.
type CheckpointSaved struct {
	Workload string         `json:"workload"`
	Machine  string         `json:"machine"`
	Epoch    uint64         `json:"epoch"`
	Save     string         `json:"save,omitempty"` // the order's, if it was ordered
	Manifest fleet.Manifest `json:"manifest"`
}

// CheckpointFailed says that an ordered or periodic save did not become durable.
type CheckpointFailed struct {
	Workload string `json:"workload"`
	Machine  string `json:"machine"`
	Epoch    uint64 `json:"epoch"`
	Save     string `json:"save,omitempty"`
	Why      string `json:"why"`
}

// BenchmarkFinished is what the benchmark runner measured; verify judges it.
type BenchmarkFinished struct {
	Machine string        `json:"machine"`
	Nonce   string        `json:"nonce"`
	Backend string        `json:"backend"`
	Suite   string        `json:"suite"`
	Size    int           `json:"size,omitempty"` // edge of the matrices it multiplied
	Elapsed time.Duration `json:"elapsed"`        // all of it, by the machine's clock
	Devices []Device      `json:"devices,omitempty"`
	Verdict string        `json:"verdict"` // pass, fail, inconclusive: the runner's own; verify has the last word
	Causes  []string      `json:"causes,omitempty"`
	Ran     string        `json:"ran,omitempty"`   // podman, docker, nerdctl; process: not in a container
	Error   string        `json:"error,omitempty"` // the runner could not run

	Framework *Framework `json:"framework,omitempty"` // the workload's own check, which runs on what has passed; nil: it has none
}

// Framework is how a workload's own check of a machine ended.
type Framework struct {
	Code int    `json:"code"`           // exit status; -1: it did not come to one
	Tail string `json:"tail,omitempty"` // last lines of what it printed, if it failed
}

// Device is one GPU (or CPU) as measured.
type Device struct {
	Name     string        `json:"name"`
	UUID     string        `json:"uuid,omitempty"`
	Measured float64       `json:"measured_tflops"`
	Rated    float64       `json:"rated_tflops"`
	Ratio    float64       `json:"ratio"`
	Lower    float64       `json:"lower95"`
	Upper    float64       `json:"upper95"`
	Work     time.Duration `json:"work,omitempty"`     // that it multiplied, by its own clock
	Checksum float64       `json:"checksum,omitempty"` // of its product: only the nonce's data give it
}

// InstanceVerified says that a machine may be trusted.
type InstanceVerified struct {
	Machine string  `json:"machine"`
	Nonce   string  `json:"nonce"`
	Ratio   float64 `json:"ratio"` // worst device, measured / rated; 0: nothing to compare with
	Note    string  `json:"note,omitempty"`

	Took time.Duration `json:"took,omitempty"` // from the order to the answer: what the gate cost, at the machine's price
}

// CauseFramework begins the cause of a rejection by the workload's own check.
const CauseFramework = "framework"

// InstanceRejected says that a machine is not what was paid for.
type InstanceRejected struct {
	Machine string  `json:"machine"`
	Nonce   string  `json:"nonce"`
	Ratio   float64 `json:"ratio"`
	Cause   string  `json:"cause"`

	Took time.Duration `json:"took,omitempty"` // from the order to the answer
}
