package events

import "time"

// Facts between lowtide and people: what they decided, what they were told, what they let be done of itself.

// ApprovalRefused says that a person's word on a plan changed nothing, and why: the plan is another one by now, or
// decided, or gone.
type ApprovalRefused struct {
	Plan string `json:"plan"`
	By   string `json:"by"`
	Why  string `json:"why"`
}

// Kind is approval.refused.
func (ApprovalRefused) Kind() Kind { return "approval.refused" }

// Key is whom it is about.
func (f ApprovalRefused) Key() string { return keyOf(f.Plan) }

// ChangeRefused says that a change of a workload was not made, and why: nothing of it counts.
type ChangeRefused struct {
	Workload string `json:"workload"`
	Change   string `json:"change"` // id of the event that asked for it
	Why      string `json:"why"`
}

// Kind is change.refused.
func (ChangeRefused) Kind() Kind { return "change.refused" }

// Key is whom it is about.
func (f ChangeRefused) Key() string { return keyOf(f.Workload) }

// CheckpointAsked asks for a checkpoint now; the workload goes on.
type CheckpointAsked struct {
	Workload string `json:"workload"`
	By       string `json:"by"`
}

// Kind is checkpoint.asked.
func (CheckpointAsked) Kind() Kind { return "checkpoint.asked" }

// Key is whom it is about.
func (f CheckpointAsked) Key() string { return keyOf(f.Workload) }

// SilenceSet keeps people from being told of some incidents for a while. A later one of the same ID replaces it.
type SilenceSet struct {
	ID       string    `json:"id"`
	Workload string    `json:"workload,omitempty"` // pattern, "train-*"; "": all
	What     string    `json:"what,omitempty"`     // kind of incident; "": all
	Until    time.Time `json:"until"`              // past: the silence ends
	By       string    `json:"by"`
	Why      string    `json:"why,omitempty"`
}

// Kind is silence.set.
func (SilenceSet) Kind() Kind { return "silence.set" }

// Key is whom it is about.
func (f SilenceSet) Key() string { return keyOf(f.ID) }

// ChannelFailed says that people cannot be reached on a channel, and since when.
type ChannelFailed struct {
	Channel string    `json:"channel"`
	Since   time.Time `json:"since"`
	Why     string    `json:"why"` // without any secret
}

// Kind is channel.failed.
func (ChannelFailed) Kind() Kind { return "channel.failed" }

// Key is whom it is about.
func (f ChannelFailed) Key() string { return keyOf(f.Channel) }

// ChannelRecovered says that a channel that had failed works again.
type ChannelRecovered struct {
	Channel string    `json:"channel"`
	Since   time.Time `json:"since"` // of the failure that is over
}

// Kind is channel.recovered.
func (ChannelRecovered) Kind() Kind { return "channel.recovered" }

// Key is whom it is about.
func (f ChannelRecovered) Key() string { return keyOf(f.Channel) }

// AlertReceived is somebody else's alarm: an Alertmanager's group, or a CloudEvent.
type AlertReceived struct {
	Group       string            `json:"group"` // the sender's own grouping; the same group again replaces it
	Name        string            `json:"name"`
	Firing      bool              `json:"firing"`
	Count       int               `json:"count,omitempty"` // of alerts that fire
	Severity    string            `json:"severity,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	From        string            `json:"from"` // who sent it
	Since       time.Time         `json:"since,omitzero"`
}

// Kind is alert.received.
func (AlertReceived) Kind() Kind { return "alert.received" }

// Key is whom it is about.
func (f AlertReceived) Key() string { return keyOf(f.Group) }

// RuleFailed says that a user's rule was switched off, and why.
type RuleFailed struct {
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

// Kind is rule.failed.
func (RuleFailed) Kind() Kind { return "rule.failed" }

// Key is whom it is about.
func (f RuleFailed) Key() string { return keyOf(f.Rule) }

// PersonActed is the audit of one act of a person through chat or a link, done or refused.
type PersonActed struct {
	By     string `json:"by"`  // as configured, or the platform's id of somebody who is not
	Via    string `json:"via"` // "slack", "feishu", "link", …
	Act    string `json:"act"`
	About  string `json:"about,omitempty"`
	Done   bool   `json:"done"`
	Result string `json:"result"` // what the person was told
}

// Kind is person.acted.
func (PersonActed) Kind() Kind { return "person.acted" }

// Key is whom it is about.
func (f PersonActed) Key() string { return keyOf(f.Via, f.By) }
