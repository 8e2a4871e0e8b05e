// Package order is what may be changed by a word: pause, budget, stop and the like, whoever says it, a person in chat or
// a rule of a user's own.
//
// It promises that both come through one door: a role that does not suffice, and a workload that is not there or over,
// change nothing and are told why; what is done is facts, and no more than the word said. It decides on no plan (that is
// a person's, bound to the plan as it was seen), reads no bucket and says nothing itself.
package order

import (
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// Role is how much somebody may do; each may what those before it may.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
	Admin    Role = "admin"
)

var rank = map[Role]int{Viewer: 1, Operator: 2, Admin: 3}

// Valid says that r is one of the roles.
func (r Role) Valid() bool { return rank[r] > 0 }

// verbs say what each word needs.
var verbs = map[string]Role{
	"approve": Operator, "deny": Operator, "pause": Operator, "resume": Operator, "checkpoint": Operator, "silence": Operator,
	"replan": Operator, "keep": Operator, "submit": Operator, "scale": Operator,
	"budget": Admin, "stop": Admin, "panic": Admin, "go": Admin,
}

// Needs is the role that a word needs; what changes nothing may be said by everybody who is named.
func Needs(verb string) Role {
	if r, ok := verbs[verb]; ok {
		return r
	}
	return Viewer
}

// May says whether the role suffices for a word.
func (r Role) May(verb string) bool { return rank[r] >= rank[Needs(verb)] }

// Order is one word.
type Order struct {
	Verb  string
	About string      // a workload; for silence a pattern
	Money fleet.Money // budget
	Until time.Time   // silence, keep; for keep zero is a day
	Why   string      // panic, silence
	By    string      // who says it
}

// Answer is what an order comes to, in both languages.
type Answer struct {
	EN, ZH string
	Facts  []events.Fact
	Done   bool
}

func yes(en, zh string, facts ...events.Fact) Answer { return Answer{en, zh, facts, true} }
func no(en, zh string) Answer                        { return Answer{EN: en, ZH: zh} }

// Refused answers a role that does not suffice.
func Refused(verb, by string, r Role) Answer {
	need := Needs(verb)
	return no(fmt.Sprintf("%s needs the role %s; %s is %s", verb, need, by, r), fmt.Sprintf("%s 需要角色 %s；%s 是 %s", verb, need, by, r))
}

// Carry finds the facts of an order on the fleet as it is. Whether the role suffices was asked before (May).
func Carry(f *fleet.Fleet, o Order) Answer {
	switch o.Verb {
	case "panic":
		why := "panic by " + o.By
		if o.Why != "" {
			why += ": " + o.Why
		}
		return yes("nothing is bought any more; every workload saves and stops", "已停止一切购买；所有任务保存后停止", events.PolicySet{Halt: why, Stop: true, By: o.By})
	case "go":
		return yes("lowtide buys again; paused workloads wait for resume", "lowtide 恢复购买；暂停的任务等待 resume", events.PolicySet{By: o.By})
	case "silence":
		at := o.Until.UTC().Format("2006-01-02 15:04:05 MST")
		return yes("silent about "+o.About+" until "+at, o.About+" 静默至 "+at,
			events.SilenceSet{ID: o.About, Workload: o.About, Until: o.Until, By: o.By, Why: o.Why})
	}
	w := f.Workloads[o.About]
	if w == nil {
		return no(fmt.Sprintf("there is no workload %q; status lists them", o.About), fmt.Sprintf("没有任务 %q；用 status 查看", o.About))
	}
	if w.Phase.Final() {
		return no(fmt.Sprintf("%s is %s: nothing to change any more", o.About, w.Phase), fmt.Sprintf("%s 已是 %s，无法更改", o.About, w.Phase))
	}
	return change(w, o)
}

// change is an order about a workload that lives.
func change(w *fleet.Workload, o Order) Answer {
	switch o.Verb {
	case "pause":
		return yes(o.About+" saves and stops; nothing is bought for it", o.About+" 保存后停止，不再为其购买", events.WorkloadPaused{Workload: o.About, By: o.By})
	case "resume":
		return yes(o.About+" goes on", o.About+" 继续", events.WorkloadResumed{Workload: o.About, By: o.By})
	case "stop":
		return yes(o.About+" saves, stops and is withdrawn", o.About+" 保存、停止并撤回", events.WorkloadWithdrawn{Workload: o.About, By: o.By})
	case "replan":
		return yes("the planner looks at "+o.About+" again", "重新规划 "+o.About, events.PlanAsked{Workload: o.About, By: o.By})
	case "keep":
		return yes(o.About+" is left as it is, however idle", o.About+" 保持不变，即使空闲", events.WorkloadKept{Workload: o.About, By: o.By, Until: o.Until})
	case "checkpoint":
		if w.On == "" {
			return no(o.About+" does not run: there is nothing to save", o.About+" 未在运行，无可保存")
		}
		return yes(o.About+" is told to save now", o.About+" 正在保存检查点", events.CheckpointAsked{Workload: o.About, By: o.By})
	case "budget":
		return yes(fmt.Sprintf("the budget of %s is %s from now on", o.About, o.Money), fmt.Sprintf("%s 的预算改为 %s", o.About, o.Money),
			events.WorkloadChanged{Workload: o.About, Budget: fleet.Known(o.Money)})
	}
	return no(o.Verb+" is not known", o.Verb+" 未知")
}
