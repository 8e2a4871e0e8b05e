package agent

import (
	"context"
	"errors"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// Runner is the workload's process on this machine; there is one at a time, and it outlives the agent.
type Runner interface {
	// Prepare makes an empty place for a run of the epoch, and returns the directory to restore into. It may be
	// repeated until Start was called.
	Prepare(ctx context.Context, epoch uint64) (dir string, err error)
	// Place makes the directory of code with that hash on this machine, and asks for its bytes unless it is there.
	// ErrDamaged if they are others.
	Place(ctx context.Context, sum string, fetch func(context.Context) ([]byte, error)) (dir string, err error)
	// SetUp starts the command's setup, unless it has succeeded on this machine, and tells how it goes. It is called
	// until it is over. An error is one that calling again would not mend.
	SetUp(ctx context.Context, c Command) (Setup, error)
	// Check runs a command to its end, beside whatever else; it dies with ctx.
	Check(ctx context.Context, c Command) (Setup, error)
	// Start runs a command. An epoch that was started already, also by an earlier agent, is not started again and is
	// no error. It returns when the process is on record, so that Status of any later agent knows it.
	Start(ctx context.Context, c Command) error
	// Status tells of the newest run that was started; the zero Status if there was none.
	Status(ctx context.Context) (Status, error)
	// Save asks the process to save and stop: the deadline, in wall time, is written first (zero: none to speak of),
	// then the process is signalled, if it listens. It may be repeated.
	Save(ctx context.Context, by time.Time) error
	// Stop ends the process, and a setup: at once, or by asking. A process that is gone is no error.
	Stop(ctx context.Context, atOnce bool) error
}

// Command is one run to start.
type Command struct {
	Workload  string
	Epoch     uint64
	Run       []string
	Env       map[string]string
	Secrets   map[string]string // more of it, that is on no disk
	SaveEvery time.Duration     // lowtide's time
	Restored  string            // directory with the restored checkpoint; "": from the beginning
	Data      string            // URL of what the job reads; "": nothing
	Dir       string            // in which Setup and Run are started; "": the agent's own
	Image     string            // container image in which they run, where the machine can; "": none
	Setup     []string          // command that must have succeeded on this machine before; none: nothing
}

// Setup is how a setup, or a check, goes.
type Setup struct {
	Over bool
	Code int    // exit status, when over
	Tail string // last lines of what it printed, if it failed
}

// Status is a run as the machine shows it.
type Status struct {
	Epoch     uint64
	Alive     bool
	Code      int    // exit status, when not alive; negative: a signal, or not known
	Listening bool   // the process said that it can be signalled
	Step      int64  // newest that it told
	Of        int64  // all of its steps, if it told
	Newest    *Local // newest checkpoint that is complete on this machine's disk
	Wrong     string // why what the job says it saved is no checkpoint; "": it is one, or there is none
	Result    string // what it says it made
	Tail      string // last lines of its log, when not alive
}

// Local is a checkpoint on this machine's disk: complete, but lost with the machine.
type Local struct {
	Path  string
	Step  int64
	Bytes int64
}

// The errors of a Saver that the agent acts on.
var (
	ErrDamaged = errors.New("checkpoint damaged or gone")
	ErrStale   = errors.New("a later epoch has begun")
	ErrUnfit   = errors.New("no checkpoint")                         // what lies there can never be saved
	ErrChanged = errors.New("checkpoint changed while it was saved") // nor this, as long as it does
)

// Saver keeps checkpoints where they outlive the machine.
type Saver interface {
	// Save returns when the content of path is durable as the workload's checkpoint of the epoch and step; of the
	// manifest ID, Epoch, Step and Bytes are set. ErrStale if a later epoch has begun, ErrUnfit and ErrChanged if the path
	// is to blame. Any other error may pass.
	Save(ctx context.Context, workload string, epoch uint64, l Local) (fleet.Manifest, error)
	// Restore makes dir the checkpoint of that manifest, every byte checked. ErrDamaged if that cannot be.
	Restore(ctx context.Context, workload, manifest, dir string) (fleet.Manifest, error)
	// Begin fences: from here on saves of lower epochs are stale. from is what was restored, "" for nothing.
	Begin(ctx context.Context, workload string, epoch uint64, from string) error
	// Prune deletes what is not to be kept.
	Prune(ctx context.Context, epoch uint64, p fleet.Prune) error
}

// Bench proves the machine. An error, the second in a row, becomes the fact's Error.
type Bench interface {
	Run(ctx context.Context, machine string, b fleet.Benchmark) (events.BenchmarkFinished, error)
}

// Watch asks the cloud, from inside of the machine, whether it will be taken.
type Watch interface {
	Look(ctx context.Context) (n Notice, found bool, err error)
}

// Notice is a cloud's word that it will take this machine.
type Notice struct {
	Action string    `json:"action"` // terminate, stop, hibernate
	Time   time.Time `json:"time"`   // when, in lowtide's time
}

// Power ends this machine. It may be repeated; on success the machine is gone soon, and the agent with it.
type Power interface {
	Off(ctx context.Context, why string) error
}

// Disk keeps small values on this machine. Load of what was never stored is fs.ErrNotExist; Store is whole or not at
// all, also when the machine loses its power.
type Disk interface {
	Load(name string) ([]byte, error)
	Store(name string, val []byte) error
}
