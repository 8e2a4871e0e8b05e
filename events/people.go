package events

import (
	"time"

	"lowtide/shared/fleet"
)

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

// RuleActed is the audit of one act of a user's rule, done or refused; what it tells people, too.
type RuleActed struct {
	Rule     string `json:"rule"`
	Act      string `json:"act"`             // notify, webhook, pause, resume, checkpoint, stop, budget, replan, submit, scale
	About    string `json:"about,omitempty"` // a workload, or whom the fact was about
	Done     bool   `json:"done"`
	Result   string `json:"result"`
	Severity string `json:"severity,omitempty"` // of what people are told: info, warning, critical
	Lasts    bool   `json:"lasts,omitempty"`    // it is so until the same rule says about the same that it is over
	Over     bool   `json:"over,omitempty"`     // what lasted is over
}

// Kind is rule.acted.
func (RuleActed) Kind() Kind { return "rule.acted" }

// Key is whom it is about.
func (f RuleActed) Key() string { return keyOf(f.Rule) }

// WebhookAsked asks for one POST to where a user's rule says; the address and its secret are the rule's, and in no fact.
type WebhookAsked struct {
	Rule  string `json:"rule"`
	Step  int    `json:"step"` // which of the rule's acts, from 0; those that end it go on behind those that begin it
	About string `json:"about,omitempty"`
	Body  []byte `json:"body"` // a CloudEvents document
}

// Kind is webhook.asked.
func (WebhookAsked) Kind() Kind { return "webhook.asked" }

// Key is whom it is about.
func (f WebhookAsked) Key() string { return keyOf(f.Rule) }

// WorkloadAsked is a workload file that a rule wants run; intake reads it as it reads everybody's.
type WorkloadAsked struct {
	Name   string                   `json:"name"`            // in place of the file's
	File   []byte                   `json:"file"`            // YAML
	Budget fleet.Maybe[fleet.Money] `json:"budget,omitzero"` // at most this, whatever the file says
	By     string                   `json:"by"`
}

// Kind is workload.asked.
func (WorkloadAsked) Kind() Kind { return "workload.asked" }

// Key is whom it is about.
func (f WorkloadAsked) Key() string { return keyOf(f.Name) }

// PlanAsked asks the planner to look at a workload again now, whatever it meant to wait for.
type PlanAsked struct {
	Workload string `json:"workload"`
	By       string `json:"by"`
}

// Kind is plan.asked.
func (PlanAsked) Kind() Kind { return "plan.asked" }

// Key is whom it is about.
func (f PlanAsked) Key() string { return keyOf(f.Workload) }

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
