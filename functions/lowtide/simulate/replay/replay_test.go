package replay_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/simulate/replay"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/store"
)

var began = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)

func at(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }

func offer(zone string, m fleet.Market, hourly float64, stock int) fleet.Offer {
	return fleet.Offer{
		Cloud: "fake", Account: "main", Region: "r1", Zone: zone, Type: "big", Market: m, GPU: "V100", GPUs: 1,
		Hourly: fleet.Known(fleet.Dollars(hourly)), Stock: fleet.Known(stock),
	}
}

// story is a job of an hour that loses its first machine after half an hour; zone b is refused, then listed again.
// The lists are asked for each five minutes, but not from 90 on.
func story() (facts []events.Event, lists map[string][]fleet.Offer) {
	say := func(minute int, f events.Fact) { facts = append(facts, events.New("f", "test", at(minute), f)) }
	a, b, demand := offer("r1a", fleet.Spot, 1, 1), offer("r1b", fleet.Spot, 1.5, 1), offer("r1a", fleet.OnDemand, 3, 1)
	without := a
	without.Stock = fleet.Known(0)
	lists = map[string][]fleet.Offer{"d1": {a, b, demand}, "d2": {without, b, demand}}
	say(0, events.PriceChanged{Cloud: "fake", Region: "r1", Digest: "d1", Offers: 3})
	say(1, events.WorkloadSubmitted{Spec: fleet.Spec{Name: "w", Work: time.Hour, Steps: 60, GPUs: 1, Deadline: at(181)}})
	say(1, events.WorkloadAccepted{Workload: "w", Deadline: at(181)})
	say(2, events.InstanceLaunched{Machine: "m1", Workload: "w", Offer: a, At: at(2), Refused: []events.Refused{{Pool: b.Pool(), Why: "no_capacity"}}})
	say(7, events.WorkloadStarted{Workload: "w", Machine: "m1", Epoch: 1})
	say(30, events.WorkloadProgressed{Workload: "w", Machine: "m1", Epoch: 1, Step: 23})
	say(30, events.InstanceInterrupted{Machine: "m1", Cloud: "fake", Account: "main", EndsBy: at(32), Action: "terminate", Noticed: "eventbridge"})
	say(32, events.InstanceEnded{Machine: "m1", Cloud: "fake", Account: "main", At: at(32), Why: "interrupted"})
	say(33, events.PriceChanged{Cloud: "fake", Region: "r1", Digest: "d2", Offers: 3})
	say(34, events.InstanceLaunched{Machine: "m2", Workload: "w", Offer: b, At: at(34)})
	say(37, events.WorkloadStarted{Workload: "w", Machine: "m2", Epoch: 2, Step: 20})
	say(39, events.WorkloadStarted{Workload: "w", Machine: "m2", Epoch: 2, Step: 20}) // said again
	for minute := 40; minute < 90; minute += 5 {
		say(minute, events.ClockTicked{What: "tick", Due: at(minute)})
	}
	say(78, events.WorkloadFinished{Workload: "w", Machine: "m2", Epoch: 2})
	say(79, events.InstanceEnded{Machine: "m2", Cloud: "fake", Account: "main", At: at(79), Why: "asked"})
	say(150, events.ClockTicked{What: "tick", Due: at(150)})
	return facts, lists
}

func check(t *testing.T, r replay.Record) {
	t.Helper()
	lives := r.Lives()
	if len(lives) != 1 {
		t.Fatalf("got %d lives, want 1", len(lives))
	}
	l := lives[0]
	if want := 0.5*1 + 0.75*1.5; math.Abs(l.Cost-want) > 1e-9 || l.Launches != 2 || l.Missed || !l.Finished.Equal(at(78)) {
		t.Errorf("as it was: got %v USD, %d launches, missed %v, finished %s; want %v, 2, false, %s", l.Cost, l.Launches, l.Missed, l.Finished, want, at(78))
	}
	if want := (5*time.Minute + 3*time.Minute + 3*time.Minute) / 2; l.Delay != want || l.Starts != 2 { // three steps of a minute were made again
		t.Errorf("delay: got %s of %d starts, want %s of 2", l.Delay, l.Starts, want)
	}
	if l.OnDemand != 3 || l.Start != 1 || len(l.Pools) != 2 {
		t.Fatalf("got on-demand %v, start %d, %d pools; want 3, 1, 2", l.OnDemand, l.Start, len(l.Pools))
	}
	for _, x := range []struct {
		pool, minute int
		up           bool
	}{{0, 0, true}, {0, 31, true}, {0, 32, false}, {0, 140, false}, {1, 1, true}, {1, 2, false}, {1, 32, false}, {1, 33, true}, {1, 140, true}} {
		if got := l.Pools[x.pool].Up[x.minute]; got != x.up {
			t.Errorf("%s at minute %d: up %v, want %v", l.Pools[x.pool].Name, x.minute, got, x.up)
		}
	}
	// From 1 to 33 nobody looked, and from 85 to 150.
	if want := 32*time.Minute + 65*time.Minute; l.Unseen != want {
		t.Errorf("unseen %s, want %s", l.Unseen, want)
	}
}

func write(t *testing.T, file string, raw []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func encoded(t *testing.T, e events.Event) []byte {
	t.Helper()
	raw, err := events.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestFilesTellALife(t *testing.T) {
	dir := t.TempDir()
	facts, lists := story()
	var lines []byte
	for _, e := range facts {
		lines = append(append(lines, encoded(t, e)...), '\n')
	}
	write(t, filepath.Join(dir, "events.jsonl"), lines)
	for digest, list := range lists {
		raw, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "offers", digest+".json"), raw)
	}
	r, err := replay.Read(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	check(t, r)
	if err := os.RemoveAll(filepath.Join(dir, "offers")); err != nil {
		t.Fatal(err)
	}
	if r, err = replay.Read(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	l := r.Lives()[0]
	if l.Bare != 2 || l.Unseen < 148*time.Minute || len(l.Pools) != 2 {
		t.Errorf("without offers: %d bare changes, %s unseen, %d pools; want 2, all of it, and the 2 that were bought", l.Bare, l.Unseen, len(l.Pools))
	}
}

func TestTheStateOfARunTellsTheSameAndIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	server, err := embedded.Start(filepath.Join(dir, "nats"), embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := server.Connect()
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := bus.Setup(ctx, js, 1); err != nil {
		t.Fatal(err)
	}
	objects, err := store.OpenObjects(ctx, js, "offers", 1)
	if err != nil {
		t.Fatal(err)
	}
	facts, lists := story()
	for i := range facts {
		if c, ok := facts[i].Data.(events.PriceChanged); ok {
			raw, err := json.Marshal(lists[c.Digest])
			if err != nil {
				t.Fatal(err)
			}
			if c.Digest, err = objects.Put(ctx, raw); err != nil {
				t.Fatal(err)
			}
			facts[i].Data = c
		}
	}
	if _, err := bus.Publish(ctx, js, facts...); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	server.Shutdown()
	before := tree(t, dir)
	r, err := replay.Read(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	check(t, r)
	if after := tree(t, dir); after != before {
		t.Errorf("the directory was changed:\n%s\nwas\n%s", after, before)
	}
}

// tree lists the files below a directory with their sizes and times.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, i os.FileInfo, err error) error {
		if err == nil && !i.IsDir() {
			b.WriteString(path + " " + i.ModTime().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWhatCannotBeReadIsSaidInOneLine(t *testing.T) {
	empty, broken, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "x.json")
	write(t, filepath.Join(broken, "a.jsonl"), []byte("\n{\"no\": 1}\n"))
	write(t, file, nil)
	for dir, want := range map[string]string{
		filepath.Join(empty, "none"): "no such directory",
		file:                         "give the directory that holds it",
		empty:                        "no events in it",
		broken:                       "a.jsonl line 2",
	} {
		_, err := replay.Read(context.Background(), dir)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line with %q", dir, err, want)
		}
	}
}
