package agent

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// say puts a fact under a fresh id: what is said again must not be taken for a repeat that the bus dropped.
func (a *Agent) say(f events.Fact) {
	a.serial++
	source := fmt.Sprintf("agent/%s/%d.%d", a.cfg.Machine, a.memo.Incarnation, a.serial)
	a.out = append(a.out, events.New(a.cfg.Fleet, source, a.now, f))
}

// heard says all there is to know, each beat and after each change.
func (a *Agent) heard() {
	if !a.dirty && a.now.Before(a.beatAt) {
		return
	}
	a.dirty, a.beatAt = false, a.now.Add(a.cfg.Beat)
	a.beats++
	r := a.memo.Run
	a.say(events.MachineHeard{
		Machine: a.cfg.Machine, ID: a.cfg.ID,
		Beat:   a.memo.Incarnation<<24 | a.beats, // counts up also when the agent is started anew
		Number: a.memo.Order.Number,
		Run:    fleet.Run{Epoch: r.Epoch, Phase: r.Phase, Step: a.step(), Code: r.Code}, Workload: r.Workload,
		Saved: r.Saved, Busy: a.busy(), Result: r.Result, Lease: a.lease(),
	})
}

func (a *Agent) busy() string {
	for _, name := range []string{"save", "restore", "benchmark"} {
		if a.work.busy(name) {
			return name
		}
	}
	if r := &a.memo.Run; r.Phase == fleet.Starting && a.place.epoch == r.Epoch && len(r.Start.Kit.Setup) > 0 {
		return "setup"
	}
	return ""
}

// answer says again what an order that was said again has led to already, of what was said again.
func (a *Agent) answer() {
	if a.again == nil {
		return
	}
	o, r := *a.again, a.memo.Run
	a.again, a.dirty = nil, true
	if b := a.memo.Bench; b != nil && o.Benchmark != nil && o.Benchmark.Nonce == b.Nonce && !a.saidNow(*b) {
		a.say(*b)
	}
	if o.Save != nil && a.memo.Answered.Save == o.Save.ID && !a.answeredNow() {
		a.sayAnswer()
	}
	if o.Epoch != r.Epoch || r.Epoch == 0 {
		return
	}
	if o.Start != nil && (r.Phase == fleet.Running || r.Phase.Over()) && !a.saidNow(a.startedFact()) {
		a.say(a.startedFact())
	}
	if r.Phase.Over() && !a.saidNow(a.overFact()) {
		a.say(a.overFact())
	}
}

// saidNow says that a fact of this kind goes out with this call anyway.
func (a *Agent) saidNow(f events.Fact) bool {
	for _, e := range a.out {
		if e.Data.Kind() == f.Kind() {
			return true
		}
	}
	return false
}

func (a *Agent) answeredNow() bool {
	if a.memo.Answered.Why != "" {
		return a.saidNow(events.CheckpointFailed{})
	}
	return a.saidNow(events.CheckpointSaved{})
}

func (a *Agent) startedFact() events.Fact {
	r := &a.memo.Run
	return events.WorkloadStarted{
		Workload: r.Workload, Machine: a.cfg.Machine, Epoch: r.Epoch, From: r.From, Step: r.FromStep, Restore: r.Restore,
	}
}

// overFact says how the run ended.
func (a *Agent) overFact() events.Fact {
	r := &a.memo.Run
	switch r.Phase {
	case fleet.RunFinished:
		return events.WorkloadFinished{
			Workload: r.Workload, Machine: a.cfg.Machine, Epoch: r.Epoch, Step: r.Step, Result: r.Result, Saved: r.Saved,
		}
	case fleet.RunFailed:
		return events.WorkloadFailed{
			Workload: r.Workload, Machine: a.cfg.Machine, Epoch: r.Epoch, Step: r.Step, Code: r.Code, Why: r.Why,
		}
	}
	return events.WorkloadStopped{Workload: r.Workload, Machine: a.cfg.Machine, Epoch: r.Epoch, Step: r.Step, Saved: r.Saved}
}

func (a *Agent) savedFact(save string, m fleet.Manifest) events.Fact {
	r := &a.memo.Run
	return events.CheckpointSaved{Workload: r.Workload, Machine: a.cfg.Machine, Epoch: r.Epoch, Save: save, Manifest: m}
}

// sayAnswer says what came of the order to save.
func (a *Agent) sayAnswer() {
	ans, r := a.memo.Answered, &a.memo.Run
	if ans.Why != "" {
		a.say(events.CheckpointFailed{Workload: r.Workload, Machine: a.cfg.Machine, Epoch: ans.Epoch, Save: ans.Save, Why: ans.Why})
		return
	}
	a.say(a.savedFact(ans.Save, ans.Manifest))
}

func (a *Agent) sayNotice() {
	n := a.memo.Notice
	a.say(events.InstanceInterrupted{
		Cloud: a.cfg.Cloud, Account: a.cfg.Account, Machine: a.cfg.Machine, ID: a.cfg.ID,
		EndsBy: n.Time, Action: cmp.Or(n.Action, "terminate"), Noticed: "metadata",
	})
}

const (
	tailLines = 20
	tailBytes = 4 << 10
)

// tail is the last lines of a log. It is clipped for a fact when secrets were taken out, so that no half of one is left.
func tail(log string) string {
	lines := strings.Split(strings.TrimRight(log, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// clip keeps the end of a text that is too long for a fact, in whole characters.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= tailBytes {
		return s
	}
	s = s[len(s)-tailBytes:]
	for len(s) > 0 && !utf8.RuneStart(s[0]) {
		s = s[1:]
	}
	return s
}

// mask hides the run's secrets in what is said.
func (a *Agent) mask(text string) string {
	for _, secret := range a.hidden() {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return text
}

// Hide takes the run's secrets out of a text; each is replaced by as many stars as it had bytes, so that places in the
// text stay the same.
func (a *Agent) Hide(text string) string {
	a.mu.Lock()
	all := a.hidden()
	a.mu.Unlock()
	for _, secret := range all {
		text = strings.ReplaceAll(text, secret, strings.Repeat("*", len(secret)))
	}
	return text
}

// secrets are the parts of a variable that must not be said: all of it, if its name tells, or an address's password.
func secrets(name, value string) []string {
	upper := strings.ToUpper(name)
	for _, word := range []string{"KEY", "TOKEN", "SECRET", "PASS", "PWD", "CREDENTIAL", "AUTH"} {
		if strings.Contains(upper, word) && value != "" {
			return []string{value}
		}
	}
	if u, err := url.Parse(value); err == nil && u.User != nil {
		if p, ok := u.User.Password(); ok && p != "" {
			return []string{p}
		}
	}
	return nil
}
