package simulate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"lowtide/functions/lowtide/simulate"
)

// tables runs the command and reads what it prints as JSON.
func tables(t *testing.T, args ...string) []simulate.Table {
	t.Helper()
	if raced {
		t.Skip("studies solve a table a job, too slow under the race detector; go test without -race plays them")
	}
	var out bytes.Buffer
	c := simulate.Command()
	c.SetArgs(append(args, "--output", "json", "--deadlines", "52", "--delays", "0.2"))
	c.SetOut(&out)
	c.SetErr(&bytes.Buffer{})
	if err := c.ExecuteContext(context.Background()); err != nil {
		t.Fatal(err)
	}
	var got []simulate.Table
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, out.Bytes())
	}
	return got
}

func byName(t *testing.T, table simulate.Table, names ...string) map[string]simulate.Score {
	t.Helper()
	got := map[string]simulate.Score{}
	for _, s := range table.Scores {
		got[s.Policy] = s
		if s.Missed > 0 {
			t.Errorf("%s, %s: %d missed", table.Groups, s.Policy, s.Missed)
		}
	}
	for _, n := range names {
		if _, ok := got[n]; !ok {
			t.Errorf("%s: no %s in %+v", table.Groups, n, table.Scores)
		}
	}
	return got
}

func TestKnowingTheLengthOfARunIsWorthSomethingAndSeeingLessCosts(t *testing.T) {
	recorded(t) // or skip
	for _, zones := range []string{"east-1d", "east-1f+east-2b"} {
		for _, table := range tables(t, "--data", dataDir(), "--study", "oracle", "--windows", "8", "--zones", zones) {
			s := byName(t, table, "greedy", "lowtide", "optimum", "told life", "told back", "told best zone", "told life and back", "probed each hour", "probed each 6 h")
			if s["told life"].Cost >= s["lowtide"].Cost || s["probed each 6 h"].Cost <= s["lowtide"].Cost || s["told life"].Cost < s["optimum"].Cost {
				t.Errorf("%s: told %.4f, lowtide %.4f, half blind %.4f, optimum %.4f", zones, s["told life"].Cost, s["lowtide"].Cost, s["probed each 6 h"].Cost, s["optimum"].Cost)
			}
		}
	}
}

func TestHalvesArePlayedApartBesideTheReference(t *testing.T) {
	got := tables(t, "--study", "halves", "--windows", "2")
	var names []string
	for _, table := range got {
		names = append(names, table.Groups)
		byName(t, table, "greedy", "lowtide", "optimum", "reference")
		if table.Windows != 2 || len(table.Zones) == 0 || table.Tick != 195 || table.Gang != 1 || table.Work != 48 {
			t.Errorf("the table does not say what was played: %+v", table)
		}
	}
	all := strings.Join(names, "; ")
	if len(got) != 4 || !strings.Contains(all, "odd zones, first half") || !strings.Contains(all, "even zones, second half") {
		t.Errorf("got %s", all)
	}
}

func TestTheReferenceCostsWhatIsPublished(t *testing.T) {
	recorded(t) // or skip
	if raced {
		t.Skip("nine tables, too slow under the race detector; go test without -race solves them")
	}
	for _, table := range tables(t, "--data", dataDir(), "--policies", "reference") {
		if got := byName(t, table, "reference")["reference"].Cost; got < 0.6445 || got > 0.6465 {
			t.Errorf("R=52 d=0.2: got %.4f, published 0.6455", got)
		}
	}
}

func TestSharedTablesDecideNearlyAsWellAsAJobsOwn(t *testing.T) {
	for _, zones := range []string{"model-1a", "model-1a+model-1b"} {
		for _, table := range tables(t, "--policies", "live,lowtide,uniform-elapsed", "--windows", "10", "--zones", zones) {
			s := byName(t, table, "live", "lowtide", "uniform-elapsed")
			t.Logf("%s: live %.4f, lowtide %.4f, uniform-elapsed %.4f", zones, s["live"].Cost, s["lowtide"].Cost, s["uniform-elapsed"].Cost)
			if s["live"].Cost > s["lowtide"].Cost+0.02 || s["live"].Cost > s["uniform-elapsed"].Cost {
				t.Errorf("%s: live costs %.4f, lowtide %.4f, uniform-elapsed %.4f", zones, s["live"].Cost, s["lowtide"].Cost, s["uniform-elapsed"].Cost)
			}
		}
	}
}
