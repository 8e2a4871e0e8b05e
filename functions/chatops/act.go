package chatops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/order"
	"lowtide/shared/plan"
	"lowtide/shared/store"
)

// result is what an order comes to.
type result struct {
	text  string
	facts []events.Fact
	done  bool
}

func no(text string) result { return result{text: text} }

// act decides on one order of one person, on the fleet as it is.
func (d *desk) act(ctx context.Context, name string, p *Person, r request, o word) result {
	if p == nil {
		return no(d.lang("you are not known here; ask whoever runs lowtide to enter you as "+r.via+" "+r.user, "您尚未登记；请让 lowtide 管理员登记您的 "+r.via+" 账号 "+r.user))
	}
	if r := order.Role(p.Role); !r.May(o.verb) {
		return d.told(order.Refused(o.verb, name, r))
	}
	f, err := d.fleet(ctx)
	if err != nil {
		return no(d.lang("not done: the state cannot be read; try again", "未执行：无法读取状态，请重试"))
	}
	if o.reads() {
		return result{text: d.read(ctx, f, o), done: true}
	}
	if res, ok := d.hasty(ctx, r, o); ok {
		return res
	}
	return d.change(f, name, p, o)
}

// hasty stops a command that the same person gave a moment ago: a slow answer makes people press twice.
func (d *desk) hasty(ctx context.Context, r request, o word) (result, bool) {
	if o.again || o.hash != "" { // a click is bound to its plan, and cannot be done twice
		return result{}, false
	}
	ago, err := d.recently(ctx, "said "+digest(r.via, r.user, o.verb, o.about, o.money.String(), o.wait.String()), time.Minute)
	if err != nil || ago == 0 {
		return result{}, false
	}
	return no(d.lang(fmt.Sprintf("you said the same %s ago; it is done once. Say it with \"again\" at the end to have it twice", ago.Round(time.Second)),
		fmt.Sprintf("您在 %s 前说过同样的命令，只执行一次；如需再次执行请在末尾加 again", ago.Round(time.Second)))), true
}

// change says the facts of an order that changes something.
func (d *desk) change(f *fleet.Fleet, name string, p *Person, o word) result {
	if o.verb == "approve" || o.verb == "deny" {
		return d.decide(f, name, p, o)
	}
	until := time.Time{}
	if o.verb == "silence" || o.wait > 0 {
		until = d.Now().Add(o.wait)
	}
	return d.told(order.Carry(f, order.Order{Verb: o.verb, About: o.about, Money: o.money, Until: until, Why: o.why, By: name}))
}

// told is an answer in the desk's language.
func (d *desk) told(a order.Answer) result { return result{d.lang(a.EN, a.ZH), a.Facts, a.Done} }

func yes(text string, facts ...events.Fact) result { return result{text, facts, true} }

// decide gives a word on a plan: as it was shown, within its time, within the person's money.
func (d *desk) decide(f *fleet.Fleet, name string, p *Person, o word) result {
	pl := f.Plans[o.about]
	switch {
	case pl == nil || pl.Action != fleet.Launch:
		return no(d.lang("nothing is changed: plan "+o.about+" was decided, or its time was over", "未生效：计划 "+o.about+" 已有决定或已过期"))
	case pl.Approved && pl.By != "":
		return no(d.lang("nothing is changed: already approved by "+pl.By, "未生效：已由 "+pl.By+" 批准"))
	case pl.Approved:
		return no(d.lang("nothing is changed: it goes ahead without approval", "未生效：无需批准，已在执行"))
	case o.hash != "" && o.hash != pl.Hash():
		return no(d.lang("nothing is changed: the plan is another one by now; look at the newest message", "未生效：计划已变更，请查看最新消息"))
	case !d.Now().Before(pl.Expires) || !o.until.IsZero() && !d.Now().Before(o.until):
		return no(d.lang("nothing is changed: its time was over at "+stamp(pl.Expires), "未生效：已于 "+stamp(pl.Expires)+" 过期"))
	}
	if o.verb == "deny" {
		return yes(d.lang("rejected: nothing is bought for "+pl.Workload, "已拒绝：不为 "+pl.Workload+" 购买"), events.PlanRejected{Plan: pl.ID, Hash: pl.Hash(), By: name})
	}
	if most := pl.Highest(); !p.mayApprove(most.Float()) {
		return no(d.lang(fmt.Sprintf("nothing is changed: it may cost %s/h, and %s may approve %.2f USD/h at most", most, name, p.Approve),
			fmt.Sprintf("未生效：最高 %s/小时，%s 最多可批准 %.2f USD/小时", most, name, p.Approve)))
	}
	return yes(d.lang(fmt.Sprintf("approved: %s at up to %s/h for %s", pl.Offers[0], pl.Highest(), pl.Workload),
		fmt.Sprintf("已批准：%s，最高 %s/小时，用于 %s", pl.Offers[0], pl.Highest(), pl.Workload)), events.PlanApproved{Plan: pl.ID, Hash: pl.Hash(), By: name})
}

func (p *Person) mayApprove(hourly float64) bool {
	return p.Role == "admin" && p.Approve == 0 || hourly <= p.Approve
}

// fleet reads the decider's state.
func (d *desk) fleet(ctx context.Context) (*fleet.Fleet, error) {
	b, _, err := d.States.Get(ctx, d.Fleet)
	if errors.Is(err, store.ErrNotFound) {
		return fleet.New(d.Fleet, ""), nil
	}
	if err != nil {
		return nil, err
	}
	return fleet.Decode(b)
}

func (d *desk) market(ctx context.Context) (m fleet.Markets, err error) {
	b, _, err := d.Market.Get(ctx, fleet.MarketKey)
	if err == nil {
		err = fleet.Unpack(b, &m)
	}
	return m, err
}

// most is how many lines an answer has.
const most = 30

// read answers a question.
func (d *desk) read(ctx context.Context, f *fleet.Fleet, o word) string {
	switch o.verb {
	case "status":
		return d.status(f)
	case "help":
		return "status · offers · why WORKLOAD · plan · approve PLAN · deny PLAN · pause|resume|checkpoint|replan|stop WORKLOAD · keep WORKLOAD [8h] · budget WORKLOAD AMOUNT USD · silence WORKLOAD 2h [why] · panic [why] · go"
	}
	m, err := d.market(ctx)
	if err != nil {
		return d.lang("no price is known yet", "尚无价格")
	}
	if o.verb == "offers" {
		var lines []string
		for _, of := range m.Offers {
			price := "?"
			if h, ok := of.Hourly.Get(); ok {
				price = h.String() + "/h"
			}
			lines = append(lines, of.String()+"  "+price)
		}
		return bounded(lines)
	}
	book := plan.NewBook(&m)
	var lines []string
	for _, id := range fleet.Sorted(f.Plans) {
		if p := f.Plans[id]; o.verb == "plan" && p.Action == fleet.Launch {
			state := d.lang("goes ahead", "执行中")
			if !p.Approved {
				state = d.lang("waits for a person until ", "等待批准，截止 ") + stamp(p.Expires)
			}
			lines = append(lines, fmt.Sprintf("%s: %s %s, %s/h: %s (%s)", id, p.Workload, p.Offers[0], p.Highest(), p.Score.Reason, state))
		}
	}
	for _, name := range fleet.Sorted(f.Workloads) {
		w := f.Workloads[name]
		if w.Phase != fleet.Accepted || o.verb == "why" && name != o.about {
			continue
		}
		lines = append(lines, name+": "+plan.Decide(f, book, d.By, d.Policy, w, d.Now()).Reason)
	}
	if len(lines) == 0 && o.verb == "why" {
		if w := f.Workloads[o.about]; w != nil {
			return fmt.Sprintf("%s: %s %s", o.about, w.Phase, w.Why)
		}
		return d.lang(fmt.Sprintf("there is no workload %q", o.about), fmt.Sprintf("没有任务 %q", o.about))
	}
	return bounded(lines)
}

func (d *desk) status(f *fleet.Fleet) string {
	var lines []string
	if f.Halted != "" {
		lines = append(lines, d.lang("nothing is bought: ", "已停止购买：")+f.Halted)
	}
	hourly, n := fleet.Money{Currency: fleet.USD}, 0
	for _, m := range f.Machines {
		if m.Bills() {
			n++
			hourly = hourly.Add(m.Offer.Hourly.Or(fleet.Money{}))
		}
	}
	lines = append(lines, fmt.Sprintf(d.lang("%d machines, %s/h", "%d 台机器，%s/小时"), n, hourly))
	for _, name := range fleet.Sorted(f.Workloads) {
		w := f.Workloads[name]
		s := fmt.Sprintf("%s: %s", name, w.Phase)
		if w.On != "" {
			s += " on " + w.On
		}
		s += fmt.Sprintf(", step %d, saved %d, %s", w.Step, w.Saved.Step, plan.Spent(f, w, d.Now()))
		lines = append(lines, s)
	}
	return bounded(lines)
}

func bounded(lines []string) string {
	if len(lines) == 0 {
		return "–"
	}
	if rest := len(lines) - most; rest > 0 {
		lines = append(lines[:most:most], fmt.Sprintf("+%d", rest))
	}
	return strings.Join(lines, "\n")
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
