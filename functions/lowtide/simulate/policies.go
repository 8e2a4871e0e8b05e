package simulate

import (
	"fmt"
	"strings"

	"lowtide/shared/plan/pool"
)

// tableMemory bounds the value tables of a run, in bytes.
const tableMemory = 256 << 20

// Names of the policies a run may compare, in the order of its table.
const (
	Demand  = "on-demand"
	Greedy  = "greedy"
	Text    = "uniform-text"
	Uniform = "uniform"
	Lowtide = "lowtide"
	Optimum = "optimum"
)

// Policies lists every policy by name. Uniform is Uniform Progress as released, uniform-text as published.
// They share one store of tables, which hold nothing of any job.
func Policies() []Policy {
	tables := pool.NewTables(tableMemory)
	follow := func(rule func(pool.Job) pool.Rule) Maker {
		return func(j pool.Job, history [][]bool) pool.Rule { return pool.Follow(rule(j), history) }
	}
	return []Policy{
		{Demand, func(pool.Job, [][]bool) pool.Rule { return pool.Only() }},
		{Greedy, follow(pool.Greedy)},
		{Text, follow(func(j pool.Job) pool.Rule { return pool.Uniform(j, pool.LeaveText) })},
		{Uniform, follow(func(j pool.Job) pool.Rule { return pool.Uniform(j, pool.LeaveReleased) })},
		{Lowtide, func(j pool.Job, history [][]bool) pool.Rule { return pool.New(tables, j, history) }},
		{Optimum, nil},
	}
}

// pick keeps the named policies, in the order of the table.
func pick(all []Policy, names []string) ([]Policy, error) {
	want := map[string]bool{}
	for _, n := range names {
		want[n] = true
	}
	var kept []Policy
	var known []string
	for _, p := range all {
		known = append(known, p.Name)
		if want[p.Name] {
			kept = append(kept, p)
			delete(want, p.Name)
		}
	}
	for n := range want {
		return nil, fmt.Errorf("no policy %q; take some of %s", n, strings.Join(known, ", "))
	}
	return kept, nil
}
