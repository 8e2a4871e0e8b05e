package relay

import (
	"fmt"
	"strings"
	"time"

	"lowtide/functions/census"
	"lowtide/functions/intake"
	"lowtide/functions/ledger"
	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/functions/notices"
	"lowtide/functions/notify"
	"lowtide/functions/prices"
	"lowtide/functions/provision"
	"lowtide/functions/rebalance"
	"lowtide/functions/rules"
	"lowtide/functions/usage"
	"lowtide/functions/verify"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
	host "lowtide/shared/fn/jetstream"
	"lowtide/shared/provider"
)

// Routes are all functions that hear messages, for one fleet. What each hears, and how, is the function's own word; only
// its handler is elsewhere. plans are "<cloud>/<account>": each has a serial consumer of plans.
// own are users' automations, which say themselves what they hear; nil: there are none.
func Routes(fleet string, plans []string, own *rules.Set) ([]Route, error) {
	tell, channels, err := notify.Two(notify.Config{Fleet: fleet})
	if err != nil {
		return nil, err
	}
	routes := []Route{
		{Function: rebalance.New(rebalance.Config{Fleet: fleet, Batch: 128}).Function()},
		{Function: notices.New([]string{fleet}, notices.Options{}).Function(), Concurrency: 4},
		{Function: verify.New(nil, verify.Options{}), Concurrency: 2},
		{Function: prices.New("prices", []string{fleet}, nil, nil, nil, prices.Options{})},
		{Function: ledger.New(fleet, nil)},
		{Function: census.New("census", "", account{}, nil, nil, census.Options{})},
		{Function: intake.Function()},
		{Function: usage.New(nil, usage.Options{})},
		{Function: tell},
		{Function: channels, Target: "notify"},
	}
	if own != nil {
		for _, f := range rules.New(rules.Config{Fleet: fleet}, own) {
			routes = append(routes, Route{Function: f, Target: "rules"})
		}
	}
	if len(plans) > 0 {
		routes = append(routes, Route{Function: provision.Twins("provision-twins", account{}, nil, provision.Options{}), Target: "provision"})
	}
	for _, a := range plans {
		cloud, name, ok := strings.Cut(a, "/")
		if !ok || cloud == "" || name == "" {
			return nil, fmt.Errorf("account %q: want <cloud>/<account>, such as aws/main", a)
		}
		routes = append(routes, Route{
			Function: provision.New("provision", account{cloud: cloud, name: name}, nil, provision.Options{}), Late: LateLaunch,
		})
	}
	for i := range routes {
		f := &routes[i].Function
		if !f.Folds && f.Batch <= 1 {
			f.Batch = 16
		}
		f.Slow = max(f.Slow, 30*time.Second) + 15*time.Second // the function's own time, and a cold start
	}
	return routes, nil
}

// Consumers are those on which a relay serves its routes, and those of rules, whether there are any yet or not.
func Consumers(fleet string, plans []string) ([]accounts.Consumer, error) {
	routes, err := Routes(fleet, plans, nil)
	if err != nil {
		return nil, err
	}
	for _, name := range rules.Functions {
		routes = append(routes, Route{Function: fn.Function{Name: name}})
	}
	var out []accounts.Consumer
	for _, r := range routes {
		c := accounts.Consumer{Stream: bus.Facts, Name: host.Consumer(r.Function, fleet)}
		if len(r.Hears) > 0 {
			c.Stream = bus.StreamOf(r.Hears[0])
		}
		out = append(out, c)
	}
	return out, nil
}

// account is an account that is only named.
type account struct {
	provider.Provider
	cloud, name string
}

// Traits names it.
func (a account) Traits() provider.Traits { return provider.Traits{Cloud: a.cloud, Account: a.name} }
