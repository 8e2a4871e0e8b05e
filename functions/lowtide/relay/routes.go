package relay

import (
	"fmt"
	"strings"
	"time"

	"lowtide/functions/census"
	"lowtide/functions/ledger"
	"lowtide/functions/notices"
	"lowtide/functions/prices"
	"lowtide/functions/provision"
	"lowtide/functions/rebalance"
	"lowtide/functions/verify"
	host "lowtide/shared/fn/jetstream"
	"lowtide/shared/provider"
)

// Routes are all functions that hear messages, for one fleet. What each hears, and how, is the function's own word; only
// its handler is elsewhere. accounts are "<cloud>/<account>": each has a serial consumer of plans.
func Routes(fleet string, accounts []string) ([]Route, error) {
	routes := []Route{
		{Function: rebalance.New(rebalance.Config{Fleet: fleet, Batch: 128}).Function()},
		{Function: notices.New([]string{fleet}, notices.Options{}).Function(), Concurrency: 4},
		{Function: verify.New(nil, verify.Options{}), Concurrency: 2},
		{Function: prices.New("prices", []string{fleet}, nil, nil, nil, prices.Options{})},
		{Function: ledger.New(fleet, nil)},
		{Function: census.New("census", "", account{}, nil, nil, census.Options{})},
	}
	if len(accounts) > 0 {
		routes = append(routes, Route{Function: provision.Twins("provision-twins", account{}, nil, provision.Options{}), Target: "provision"})
	}
	for _, a := range accounts {
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

// Consumers are the durable names under which a relay serves its routes.
func Consumers(fleet string, accounts []string) ([]string, error) {
	routes, err := Routes(fleet, accounts)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range routes {
		out = append(out, host.Consumer(r.Function, fleet))
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
