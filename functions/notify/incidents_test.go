package notify_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/notify"
	"lowtide/functions/notify/notifytest"
	"lowtide/functions/notify/slack"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/fn/memory"
	"lowtide/shared/store"
)

// desk is notify on a virtual clock with some channels.
type desk struct {
	t     *testing.T
	host  *memory.Host
	books *mortal
	cfg   notify.Config
}

// mortal is a bucket whose writer may die right before a write: what was sent is then not stored, and the process with
// all it knew is gone.
type mortal struct {
	store.Bucket
	kill   func(key string) bool
	killed bool
	kills  int
}

var errKilled = errors.New("killed")

func (m *mortal) dies(key string) bool {
	if m.kill == nil || !m.kill(key) {
		return false
	}
	m.killed = true
	m.kills++
	return true
}

func (m *mortal) Create(ctx context.Context, key string, val []byte) (uint64, error) {
	if m.dies(key) {
		return 0, errKilled
	}
	return m.Bucket.Create(ctx, key, val)
}

func (m *mortal) Update(ctx context.Context, key string, val []byte, rev uint64) (uint64, error) {
	if m.dies(key) {
		return 0, errKilled
	}
	return m.Bucket.Update(ctx, key, val, rev)
}

func newDesk(t *testing.T, seed uint64, places func(*clock) []notify.Place) *desk {
	t.Helper()
	d := &desk{t: t, host: memory.New(seed, t0), books: &mortal{Bucket: store.Memory()}}
	c := &clock{t0}
	d.host.Every(100*time.Millisecond, func() { c.at = d.host.Now() })
	d.cfg = notify.Config{Fleet: "f", Books: d.books, Places: places(c)}
	fns, err := notify.New(d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range fns {
		now := f
		f.Handle = func(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
			said, err := now.Handle(ctx, batch)
			if d.books.killed { // a new process takes over
				d.books.killed = false
				fresh, nerr := notify.New(d.cfg)
				if nerr != nil {
					t.Fatal(nerr)
				}
				now = fresh[i]
			}
			return said, err
		}
		d.host.Add(f)
	}
	d.host.Every(30*time.Second, func() {
		d.host.Publish(events.New("f", "schedule", d.host.Now(), events.ClockTicked{What: "tick", Due: d.host.Now()}))
	})
	return d
}

func (d *desk) say(facts ...events.Fact) {
	for _, f := range facts {
		d.host.Publish(events.New("f", "test", d.host.Now(), f))
	}
}

func (d *desk) pass(t time.Duration) { d.host.Run(d.host.Now().Add(t)) }

// restart gives the functions the configuration as it is now.
func (d *desk) restart() {
	fns, err := notify.New(d.cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range fns {
		d.host.Restart(f.Name, f)
	}
}

// all makes a place of every platform, and returns them.
func all(t *testing.T, to *[]platform, r notify.Route, only ...string) func(*clock) []notify.Place {
	return func(c *clock) (places []notify.Place) {
		*to = slices.DeleteFunc(platforms(t, c, nil), func(p platform) bool { return len(only) > 0 && !slices.Contains(only, p.name) })
		for i, p := range *to {
			places = append(places, notify.Place{Name: fmt.Sprintf("c%d", i), Channel: p.channel, Route: r})
		}
		return places
	}
}

// one makes a place of a Slack channel.
func one(t *testing.T, to **notifytest.Slack, r notify.Route) func(*clock) []notify.Place {
	return func(c *clock) []notify.Place {
		*to = &notifytest.Slack{Token: secret, Channel: "C1", Board: notifytest.Board{Now: c.now}}
		ch, err := slack.New(slack.Settings{Token: secret, Channel: "C1", API: "https://slack.test/api/"}, notifytest.Client(*to))
		if err != nil {
			t.Fatal(err)
		}
		return []notify.Place{{Name: "ops", Channel: ch, Route: r}}
	}
}

func offer(zone string, hourly float64) fleet.Offer {
	return fleet.Offer{Cloud: "fake", Account: "main", Region: "sim-1", Zone: zone, Type: "p3.2xlarge", Market: fleet.Spot, Hourly: fleet.Known(fleet.Dollars(hourly))}
}

// run makes a machine carry a workload.
func run(w, m string, epoch uint64, hourly float64, at time.Time) []events.Fact {
	o := offer("sim-1a", hourly)
	return []events.Fact{
		events.PlanMade{Plan: fleet.Plan{ID: "p-" + m, Action: fleet.Launch, Machine: m, Workload: w, Offers: []fleet.Offer{o}, Made: at, Score: fleet.Score{Hourly: fleet.Dollars(hourly)}}},
		events.InstanceLaunched{Plan: "p-" + m, Machine: m, ID: "i-" + m, Workload: w, Offer: o, At: at},
		events.InstanceVerified{Machine: m, Ratio: 0.98},
		events.WorkloadStarted{Workload: w, Machine: m, Epoch: epoch, Step: int64(10 * (epoch - 1))},
	}
}

func saved(w, m string, epoch uint64, step int64) events.Fact {
	return events.CheckpointSaved{Workload: w, Machine: m, Epoch: epoch, Manifest: fleet.Manifest{ID: fmt.Sprint(epoch, "-", step), Epoch: epoch, Step: step}}
}

func taken(m string, at time.Time) events.Fact {
	return events.InstanceInterrupted{Cloud: "fake", Account: "main", Machine: m, ID: "i-" + m, EndsBy: at.Add(2 * time.Minute), Action: "terminate", Noticed: "eventbridge"}
}

// many machines are taken at once; fewer where a story has many faults besides, unless it is played at length.
const many = 200

// reclaim takes 200 machines within ten seconds and brings their work up again within a quarter of an hour.
func (d *desk) reclaim(many int, say func(...events.Fact)) {
	for i := range many {
		say(run(fmt.Sprintf("w%d", i), fmt.Sprintf("m%d", i), 1, 1, d.host.Now())...)
	}
	d.pass(10 * time.Minute)
	for i := range many {
		say(saved(fmt.Sprintf("w%d", i), fmt.Sprintf("m%d", i), 1, 5))
	}
	d.pass(6 * time.Minute)
	for i := range many {
		say(taken(fmt.Sprintf("m%d", i), d.host.Now()))
		d.pass(50 * time.Millisecond)
	}
	for i := range many {
		w := fmt.Sprintf("w%d", i)
		say(saved(w, fmt.Sprintf("m%d", i), 1, 10))
		say(run(w, fmt.Sprintf("n%d", i), 2, 0.9, d.host.Now())...)
		say(events.InstanceEnded{Machine: fmt.Sprintf("m%d", i), ID: fmt.Sprintf("i-m%d", i), At: d.host.Now()})
		if i%10 == 9 {
			d.pass(40 * time.Second)
		}
	}
}

func interrupted(b *notifytest.Board) (some []notifytest.Shown) {
	for _, m := range b.Messages() {
		if strings.Contains(m.Title, "taken") || strings.Contains(m.Title, "interrupted") {
			some = append(some, m)
		}
	}
	return some
}

func TestAReclaimOfTwoHundredMachinesIsAtMostThreeMessagesOnEveryChannel(t *testing.T) {
	var all_ []platform
	d := newDesk(t, 1, all(t, &all_, notify.Route{}))
	d.reclaim(many, d.say)
	d.pass(40 * time.Minute)
	for _, p := range all_ {
		shown := interrupted(p.board)
		if len(shown) == 0 || len(shown) > 3 {
			t.Errorf("%s: %d messages, want 1 to 3", p.name, len(shown))
			continue
		}
		first, last := shown[0], shown[len(shown)-1]
		if !strings.Contains(last.Title, "Over: 200 of 200") || !strings.Contains(last.Title, "180.00 USD/h now, 200.00 USD/h before") {
			t.Errorf("%s: the last message is %q, want that all run again, and the money", p.name, last.Title)
		}
		if p.channel.Traits().Edits && len(shown) != 1 {
			t.Errorf("%s can change messages and shows %d", p.name, len(shown))
		}
		if bad := p.board.Problems(); len(bad) > 0 || p.board.Refused() > 0 {
			t.Errorf("%s: %d over the limit; against the rules: %q", p.name, p.board.Refused(), bad)
		}
		if p.name == "dingtalk" {
			t.Logf("%s: %d messages\n%s\n…\n%s", p.name, len(shown), first.Title, last.Title)
		}
	}
}

func TestNothingIsLostWhenFactsComeTwiceAndOutOfOrderAndSendersDie(t *testing.T) {
	some := 60
	if rounds(1) > 1 {
		some = many
	}
	for seed := range uint64(rounds(1)) {
		var all_ []platform
		d := newDesk(t, seed, all(t, &all_, notify.Route{}, "slack bot", "dingtalk"))
		rng := rand.New(rand.NewPCG(seed, 7))
		d.host.Faults = memory.Faults{CrashBeforeAck: 0.05, CrashAfterHandle: 0.05, Double: 0.2}
		d.books.kill = func(key string) bool { return strings.HasPrefix(key, "f.") && rng.Float64() < 0.2 }
		var said []events.Fact
		extra := 0
		d.reclaim(some, func(facts ...events.Fact) {
			for _, f := range facts {
				said = append(said, f)
				e := events.New("f", "test", d.host.Now(), f)
				// A second later at most: what is later than that is another day's order of things.
				d.host.At(d.host.Now().Add(time.Duration(rng.Int64N(int64(time.Second)))), func() { d.host.Publish(e) })
				for extra < 1000 && rng.Float64() < 0.8 {
					extra++
					again := e
					again.ID = fmt.Sprintf("%s-again-%d", e.ID, extra)
					d.host.At(d.host.Now().Add(time.Duration(rng.Int64N(int64(20*time.Minute)))), func() { d.host.Publish(again) })
				}
			}
		})
		d.pass(2 * time.Hour)
		d.books.kill = nil
		d.pass(2 * time.Hour)
		if extra < 1000 || d.books.kills == 0 {
			t.Errorf("seed %d: %d facts came twice, %d senders died: the world was kind", seed, extra, d.books.kills)
		}
		for _, p := range all_ {
			numbers := map[string]int{}
			shown := interrupted(p.board)
			for _, m := range shown {
				numbers[number(m.Title)]++
			}
			if len(shown) == 0 || len(numbers) != 1 {
				t.Errorf("seed %d: %s: %d incidents in %d messages, want one: %v", seed, p.name, len(numbers), len(shown), numbers)
				continue
			}
			if most := 3 + d.books.kills; len(shown) > most { // who dies between sending and storing sends once more
				t.Errorf("seed %d: %s: %d messages, want %d at most", seed, p.name, len(shown), most)
			}
			if last := shown[len(shown)-1]; !strings.Contains(last.Title, fmt.Sprintf("Over: %d of %d", some, some)) {
				t.Errorf("seed %d: %s: the last is %q", seed, p.name, last.Title)
			}
			if bad := p.board.Problems(); len(bad) > 0 {
				t.Errorf("seed %d: %s: against the rules: %q", seed, p.name, bad)
			}
		}
	}
}

func number(title string) string {
	_, rest, _ := strings.Cut(strings.ReplaceAll(title, `\`, ""), "#")
	n, _, _ := strings.Cut(rest, " ")
	return n
}
