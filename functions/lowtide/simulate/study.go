package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"lowtide/shared/market"
	"lowtide/shared/plan/pool"
)

// Studies ask where cost comes from. They are commands, so that every figure can be had again.
//
//	halves    lowtide beside the reference, on each half of the zones and of the time apart
//	oracle    lowtide told one thing about the future: what is missing information worth?
//	ablation  the ring on the fake cloud with one thing less at a time (Ablation)
var studies = map[string]func(context.Context, flags, []market.Trace, io.Writer) ([]Table, error){
	"halves": halves,
	"oracle": oracle,
}

// named are the policies of some names, in the order of Policies, with the given ones behind.
func named(names []string, more ...Policy) []Policy {
	var out []Policy
	for _, p := range Policies() {
		for _, n := range names {
			if p.Name == n {
				out = append(out, p)
			}
		}
	}
	return append(out, more...)
}

// halves plays every second zone (and every zone set whole) on each half of the time apart.
func halves(ctx context.Context, f flags, traces []market.Trace, log io.Writer) ([]Table, error) {
	groups, err := f.groups(traces)
	if err != nil {
		return nil, err
	}
	var out []Table
	for part, name := range []string{"odd zones", "even zones", "zone sets"} {
		var mine []Group
		alone := 0
		for _, g := range groups {
			at := 2
			if len(g.Up) == 1 {
				at = alone % 2
				alone++
			}
			if at == part {
				mine = append(mine, g)
			}
		}
		if part == 2 {
			for _, g := range mine {
				tables, err := f.inHalves(ctx, g.Name, []Group{g}, traces, log)
				if err != nil {
					return nil, err
				}
				out = append(out, tables...)
			}
			continue
		}
		if len(mine) == 0 {
			continue
		}
		tables, err := f.inHalves(ctx, name, mine, traces, log)
		if err != nil {
			return nil, err
		}
		out = append(out, tables...)
	}
	return out, nil
}

// inHalves plays groups on the first half of the time, which is all they then have, and on the second, with the first
// as their history.
func (f flags) inHalves(ctx context.Context, name string, groups []Group, traces []market.Trace, log io.Writer) ([]Table, error) {
	first, second := make([]Group, len(groups)), make([]Group, len(groups))
	for i, g := range groups {
		middle := len(g.Up[0]) / 2
		first[i], second[i] = g, g
		second[i].From = middle
		first[i].Up = make([][]bool, len(g.Up))
		for z := range g.Up {
			first[i].Up[z] = g.Up[z][:middle]
		}
	}
	var out []Table
	for i, half := range [][]Group{first, second} {
		tables, err := f.compare(ctx, half, named([]string{"greedy", "lowtide", "optimum"}, Reference()), traces[0].Gap.Seconds(), log)
		if err != nil {
			return nil, err
		}
		for _, t := range tables {
			t.Groups = fmt.Sprintf("%s, %s half of the time, %s", name, []string{"first", "second"}[i], t.Groups)
			out = append(out, t)
		}
	}
	return out, nil
}

// oracle plays lowtide as it is, half blind, and told parts of the future.
func oracle(ctx context.Context, f flags, traces []market.Trace, log io.Writer) ([]Table, error) {
	groups, err := f.groups(traces)
	if err != nil {
		return nil, err
	}
	tables := pool.NewTables(tableMemory)
	told := func(name string, what func(up [][]bool, start int) pool.Told) Policy {
		return Policy{Name: name, See: func(j pool.Job, g Group, start int) pool.Rule {
			p := pool.New(tables, j, History(g.Up, start, j.Tick))
			p.Tell(what(g.Up, start))
			return p
		}}
	}
	blind := func(name string, every float64) Policy {
		return Policy{Name: name, See: func(j pool.Job, g Group, start int) pool.Rule {
			return pool.Guarded(j, &blindfold{rule: pool.New(tables, j, History(g.Up, start, j.Tick)), every: max(1, int(every*3600/j.Tick))})
		}}
	}
	return f.compare(ctx, groups, named([]string{"greedy", "lowtide", "optimum"},
		blind("probed each hour", 1), blind("probed each 6 h", 6),
		told("told best zone", func(up [][]bool, s int) pool.Told { return pool.Told{Best: best(up, s)} }),
		told("told back", func(up [][]bool, s int) pool.Told { return pool.Told{Back: back(up, s)} }),
		told("told life", func(up [][]bool, s int) pool.Told { return pool.Told{Life: life(up, s)} }),
		told("told life and back", func(up [][]bool, s int) pool.Told { return pool.Told{Life: life(up, s), Back: back(up, s)} }),
	), traces[0].Gap.Seconds(), log)
}

// life tells for how many ticks a zone stays up; at the trace's end nothing is taken.
func life(up [][]bool, start int) func(t, zone int) int {
	return func(t, zone int) int {
		n := 0
		for i := start + t; i < len(up[zone]) && up[zone][i]; i++ {
			n++
		}
		return n
	}
}

// back tells in how many ticks some zone is up.
func back(up [][]bool, start int) func(t int) int {
	return func(t int) int {
		for i := start + t; i < len(up[0]); i++ {
			for z := range up {
				if up[z][i] {
					return i - start - t
				}
			}
		}
		return len(up[0]) - start - t
	}
}

// best tells which zone stays up longest, the first of equals; -1 if none is up.
func best(up [][]bool, start int) func(t int) int {
	lives := life(up, start)
	return func(t int) int {
		zone, top := -1, 0
		for z := range up {
			if n := lives(t, z); n > top {
				zone, top = z, n
			}
		}
		return zone
	}
}

// blindfold lets a rule see zones it is not in only every so many ticks; an attempt to launch where spot is not to be
// had costs the tick and shows it.
type blindfold struct {
	rule  pool.Rule
	every int
	known []bool
}

// Choose implements pool.Rule.
func (b *blindfold) Choose(v pool.View) pool.Choice {
	if v.T%b.every == 0 || len(b.known) == 0 {
		b.known = append(b.known[:0], v.Up...)
	}
	if v.Mode == pool.Spot {
		b.known[v.Zone] = true
	}
	seen := v
	seen.Up = append([]bool(nil), b.known...)
	c := b.rule.Choose(seen)
	if v.Mode == pool.Spot {
		b.known[v.Zone] = false // if it is not there in the next tick it was lost
	}
	if c.Mode != pool.Spot || v.Up[c.Zone] {
		return c
	}
	b.known[c.Zone] = false
	return pool.Choice{Mode: pool.Idle, Zone: -1}
}

// ablate prints the ablation.
func (f flags) ablate(ctx context.Context, out, log io.Writer) error {
	if f.seeds < 1 {
		return errors.New("--seeds: at least 1")
	}
	b := Ablation{Seeds: f.seeds, Work: 8 * time.Hour}
	b.Done = bar(log, b.Lives())
	all, err := b.Play(ctx)
	if err != nil {
		return err
	}
	switch f.output {
	case "json":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(all)
	case "text":
	default:
		return fmt.Errorf("--output %q: want text or json", f.output)
	}
	fmt.Fprintf(out, "%d lives a line; cost over the work alone on demand; changes against \"as it is\" at 120 s, 95 %% intervals\n", f.seeds)
	fmt.Fprintf(out, "  %-7s %-19s %6s %7s %18s %18s %9s\n", "notice", "", "missed", "cost", "change", "minutes again", "machines")
	for _, w := range all {
		fmt.Fprintf(out, "  %5.0f s %-19s %6d %7.4f %+9.4f ± %.4f %9.1f (%+.1f ± %.1f) %6.1f\n", w.Notice, w.Arm, w.Missed, w.Cost, w.Change, w.Within, w.Again, w.AgainBy, w.AgainIn, w.Machines)
	}
	return nil
}
