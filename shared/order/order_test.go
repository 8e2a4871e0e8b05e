package order_test

import (
	"testing"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/order"
)

func TestAWordBecomesFactsOnlyOnWhatLives(t *testing.T) {
	f := fleet.New("f", "install")
	f.Workloads["train"] = &fleet.Workload{Spec: &fleet.Spec{Name: "train"}, Phase: fleet.Accepted}
	f.Workloads["done"] = &fleet.Workload{Spec: &fleet.Spec{Name: "done"}, Phase: fleet.Finished}
	for _, c := range []struct {
		verb, about string
		want        events.Fact
	}{
		{"pause", "train", events.WorkloadPaused{Workload: "train", By: "rule x"}},
		{"resume", "train", events.WorkloadResumed{Workload: "train", By: "rule x"}},
		{"stop", "train", events.WorkloadWithdrawn{Workload: "train", By: "rule x"}},
		{"replan", "train", events.PlanAsked{Workload: "train", By: "rule x"}},
		{"checkpoint", "train", nil}, // it does not run
		{"pause", "done", nil},
		{"stop", "nobody", nil},
		{"dance", "train", nil},
	} {
		a := order.Carry(f, order.Order{Verb: c.verb, About: c.about, By: "rule x"})
		if a.EN == "" || a.ZH == "" || a.Done != (c.want != nil) || len(a.Facts) != map[bool]int{true: 1}[a.Done] || a.Done && a.Facts[0] != c.want {
			t.Errorf("%s %s: got %+v, want %+v", c.verb, c.about, a, c.want)
		}
	}
}

func TestARoleMayWhatThoseBelowItMay(t *testing.T) {
	for verb, least := range map[string]order.Role{"status": order.Viewer, "pause": order.Operator, "scale": order.Operator, "budget": order.Admin, "stop": order.Admin} {
		may := false
		for _, r := range []order.Role{"", order.Viewer, order.Operator, order.Admin} {
			may = may || r == least
			if r.May(verb) != may {
				t.Errorf("%q may %s: %v, want %v", r, verb, r.May(verb), may)
			}
		}
	}
}
