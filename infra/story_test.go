package infra_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/functions/lowtide/trainer"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
	"lowtide/shared/market"
	"lowtide/shared/plan"
	"lowtide/shared/provider/fake"
)

// speed is market seconds in a second of these stories: two minutes' notice are two seconds.
const speed = 60

// deployment is lowtide as it is deployed: what sam built under Lambda's emulator, the relay's process, NATS with its users, a
// cloud behind HTTP, and real agents that train, each with the NATS user that the relay's door gave it.
type deployment struct {
	*site
	clock     fn.Clock
	cloud     *fake.Cloud
	functions map[string]*emulated
	js        jetstream.JetStream

	mu    sync.Mutex
	facts []events.Event
}

func deploy(t *testing.T, replicas int, files ...string) *deployment {
	t.Helper()
	build, command := samBuild(t, host(t)), lowtide(t)
	d := &deployment{site: newSite(t, files...), functions: map[string]*emulated{}}
	d.js = d.setup(replicas)
	d.clock = fn.Clock{Origin: time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC), Start: time.Now(), Speed: speed}
	dir := t.TempDir()
	procs := &fake.Processes{Dir: filepath.Join(dir, "machines"), Command: []string{command, "agent"}}
	var err error
	d.cloud, err = fake.Open(fake.Config{
		Cloud: "aws", Account: "123456789012", Dir: filepath.Join(dir, "cloud"), Now: d.clock.Now, Real: d.clock.Real, Launcher: procs,
		Traces: []market.Trace{zone("us-east-1a", func(int) float64 { return 1 }), zone("us-east-1b", func(minute int) float64 {
			if minute < 12 {
				return 1.2
			}
			return 0.3
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		all.Wait()
		for _, r := range d.cloud.Bill() {
			procs.Kill(r.ID)
		}
		_ = d.cloud.Close()
	})
	all.Go(func() { _ = d.cloud.Run(ctx) })
	web := httptest.NewServer(fake.Serve(d.cloud))
	t.Cleanup(web.Close)

	policy, err := json.Marshal(plan.Policy{
		Wake: 5 * time.Minute, StartUp: 5 * time.Minute, StartMax: 30 * time.Minute, MinStay: 6 * time.Minute, Margin: 1.5,
		Silence: 10 * time.Minute, Lease: 6 * time.Hour, Grace: 15 * time.Minute, PlanLife: 10 * time.Minute, Offers: 4,
	})
	if err != nil {
		t.Fatal(err)
	}
	bench, _ := json.Marshal([]string{command, "benchrunner", "run", "--backend", "cpu"})
	data, _ := json.Marshal(map[string]string{
		"LOWTIDE_NATS": strings.Split(d.url(), ",")[0], "LOWTIDE_CLOCK": d.clock.String(), "LOWTIDE_BUCKET": "file://" + bucket(t, dir),
		"LOWTIDE_NATS_CA_FILE": d.ca(),
		"LOWTIDE_CKPT_KEY":     hex.EncodeToString([]byte("names-of-checkpoints")), "LOWTIDE_LEASE": "6h", "LOWTIDE_BENCH": string(bench),
		"LOWTIDE_CPU_CALIBRATION": filepath.Join(dir, "cpu-rating.json"), "LOWTIDE_POWEROFF": `["true"]`, // this host stays on
	})
	keys, err := d.keys.Door()
	if err != nil {
		t.Fatal(err)
	}
	door := fmt.Sprint("127.0.0.1:", natstest.Port(t))
	var targets []string
	for _, logical := range []string{"Notices", "Rebalance", "Verify", "Prices", "Census", "Provision", "Ledger", "Intake", "Clock"} {
		name := strings.ToLower(logical)
		d.functions[name] = emulate(t, build, logical, d.environment(t, name, "LOWTIDE_CLOCK="+d.clock.String(), "LOWTIDE_CLOUD="+web.URL,
			"LOWTIDE_POLICY="+string(policy), "LOWTIDE_USER_DATA="+string(data), "LOWTIDE_DRY=false",
			"LOWTIDE_JOIN=https://"+door+"/join", "LOWTIDE_JOIN_KEY="+base64.StdEncoding.EncodeToString(keys.Join))...)
		targets = append(targets, name+"="+d.functions[name].url)
	}
	d.listen(ctx, t, &all)
	d.relay(t, []string{"LOWTIDE_CLOCK=" + d.clock.String()}, []string{
		"--door", door, "--door-keys", filepath.Join(d.dir, accounts.DoorFile), "--door-cert", filepath.Join(d.dir, "cert.pem"),
		"--door-key", filepath.Join(d.dir, "key.pem"), "--install", install,
	}, targets...)
	var calls sync.WaitGroup
	calls.Go(func() { d.schedule(ctx, t) })
	calls.Go(func() { d.eventBridge(ctx, t) })
	t.Cleanup(func() { cancel(); calls.Wait() }) // before the emulators are stopped
	return d
}

func bucket(t *testing.T, dir string) string {
	t.Helper()
	b := filepath.Join(dir, "bucket")
	if err := os.MkdirAll(b, 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

// zone always has capacity, at a price by the minute.
func zone(name string, price func(minute int) float64) market.Trace {
	tr := market.Trace{Zone: name, Gap: time.Minute}
	for m := range 24 * 60 {
		tr.Count, tr.Prices = append(tr.Count, 10), append(tr.Prices, price(m))
	}
	return tr
}

// listen keeps the facts in stream order.
func (d *deployment) listen(ctx context.Context, t *testing.T, all *sync.WaitGroup) {
	t.Helper()
	con, err := d.js.OrderedConsumer(ctx, bus.Facts, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"lowtide.>"}})
	if err != nil {
		t.Fatal(err)
	}
	cc, err := con.Consume(func(m jetstream.Msg) {
		if e, err := events.Decode(m.Data()); err == nil {
			d.mu.Lock()
			d.facts = append(d.facts, e)
			d.mu.Unlock()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	all.Go(func() { <-ctx.Done(); cc.Stop() })
}

// schedule is AWS's Scheduler: a tick each half minute of the market's.
func (d *deployment) schedule(ctx context.Context, t *testing.T) {
	tick := time.NewTicker(d.clock.Real(30 * time.Second))
	defer tick.Stop()
	for {
		if _, err := d.functions["clock"].call(fmt.Appendf(nil, `{"due":%q}`, d.clock.Now().Format(time.RFC3339Nano))); err != nil && ctx.Err() == nil {
			t.Errorf("tick: %v", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// eventBridge hands the cloud's warnings to notices as AWS's document has them. The machines have no metadata: there is no
// other way.
func (d *deployment) eventBridge(ctx context.Context, t *testing.T) {
	for after := 0; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) { // the cloud has no way to wait for the next
		for _, n := range d.cloud.Notices(after) {
			after = n.Seq
			raw := strings.NewReplacer("i-0b662ef9931388ba0", n.ID, "2026-01-01T00:00:00Z", n.At.UTC().Format(time.RFC3339)).
				Replace(string(sample(t, "aws-event-spot-interruption-warning.json")))
			if _, err := d.functions["notices"].call([]byte(raw)); err != nil && ctx.Err() == nil {
				t.Errorf("warning: %v", err)
			}
		}
	}
}

// submit posts a workload file to intake's URL.
func (d *deployment) submit(t *testing.T, file string) {
	t.Helper()
	b, _ := json.Marshal(map[string]any{
		"rawPath": "/", "headers": map[string]string{"content-type": "application/yaml"}, "body": file,
		"requestContext": map[string]any{"http": map[string]string{"method": "POST"}},
	})
	if out := d.functions["intake"].invoke(t, b); out["statusCode"] != 202.0 {
		t.Fatalf("intake answered %v", out)
	}
}

// last is the newest fact of a type that is so.
func last[E events.Fact](d *deployment, so func(E) bool) (found E, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.facts {
		if f, is := e.Data.(E); is && so(f) {
			found, ok = f, true
		}
	}
	return found, ok
}

// inOrder says which of facts that must follow each other is missing first; len(want) if none.
func (d *deployment) inOrder(want ...func(events.Fact) bool) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := 0
	for _, e := range d.facts {
		if i < len(want) && want[i](e.Data) {
			i++
		}
	}
	return i
}

func is[E events.Fact](so func(E) bool) func(events.Fact) bool {
	return func(f events.Fact) bool { e, ok := f.(E); return ok && so(e) }
}

// story is what happened, for whoever reads a failure.
func (d *deployment) story() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	for _, e := range d.facts {
		switch e.Data.(type) {
		case events.ClockTicked, events.MachineHeard, events.WorkloadProgressed, events.InstanceFound:
		default:
			fmt.Fprintf(&b, "%s %s %.300s\n", e.Time.Format(time.TimeOnly), e.Data.Kind(), fmt.Sprintf("%+v", e.Data))
		}
	}
	return b.String()
}

// TestTheStoriesOfAPriceAndAWarningThroughWhatIsDeployed: a price falls elsewhere and the workload moves there; then its machine
// is taken, with a warning that comes through EventBridge alone; on one node and on three, with every write synced.
func TestTheStoriesOfAPriceAndAWarningThroughWhatIsDeployed(t *testing.T) {
	for name, c := range map[string]struct {
		replicas int
		files    []string
	}{
		"OneNode":    {1, []string{"one.conf"}},
		"ThreeNodes": {3, []string{"three-1.conf", "three-2.conf", "three-3.conf"}},
	} {
		t.Run(name, func(t *testing.T) {
			deployed(t)
			t.Parallel() // both wait for their markets most of the time
			const steps, seed = 240, 7
			d := deploy(t, c.replicas, c.files...)
			d.submit(t, fmt.Sprintf("name: train\nrun: [%q, trainer, --steps, \"%d\", --seed, \"%d\", --step-time, %s, --save-every, \"20\"]\nwork: 40m\nsteps: %d\ncheckpoint: 5m\nautonomy: act\n",
				lowtide(t), steps, seed, (40*time.Minute/steps/speed).String(), steps))
			wait := func(what string, so func() bool) {
				t.Helper()
				for end := time.Now().Add(3 * time.Minute); !so(); time.Sleep(50 * time.Millisecond) { // other processes
					if time.Now().After(end) {
						t.Fatalf("not within 3 minutes: %s\n%s", what, d.story())
					}
				}
			}
			runs := func(epoch uint64, on *string) func() bool {
				return func() bool {
					f, ok := last(d, func(f events.WorkloadStarted) bool { return f.Epoch >= epoch })
					*on = f.Machine
					return ok
				}
			}
			var first, second, third string
			wait("it runs", runs(1, &first))
			wait("it moved to the cheaper zone", runs(2, &second))
			launched, _ := last(d, func(f events.InstanceLaunched) bool { return f.Machine == second })
			if launched.Offer.Zone != "us-east-1b" {
				t.Errorf("it moved to %s, want us-east-1b, where the price fell\n%s", launched.Offer.Zone, d.story())
			}
			d.cloud.Interrupt(launched.ID, 2*time.Minute)
			wait("it runs again", runs(3, &third))
			wait("it is done and nothing bills", func() bool {
				_, ok := last(d, func(f events.WorkloadFinished) bool { return f.Workload == "train" })
				return ok && len(d.cloud.Bill().Ours().Running()) == 0
			})
			m := trainer.New(seed, steps)
			for !m.Done() {
				m.Step()
			}
			if f, _ := last(d, func(events.WorkloadFinished) bool { return true }); f.Result != m.Sum() {
				t.Errorf("it made %s, an uninterrupted run makes %s", f.Result, m.Sum())
			}
			if twice := d.cloud.Bill().Ours().Twice(); len(twice) > 0 {
				t.Errorf("bought twice: %v", twice)
			}
			want := []func(events.Fact) bool{
				is(func(f events.WorkloadSubmitted) bool { return f.Spec.Name == "train" }),
				is(func(f events.WorkloadAccepted) bool { return f.Workload == "train" }),
				is(func(f events.PlanMade) bool { return f.Plan.Machine == first }),
				is(func(f events.InstanceVerified) bool { return f.Machine == first }),
				is(func(f events.PlanMade) bool { return f.Plan.Machine == second }),
				is(func(f events.InstanceVerified) bool { return f.Machine == second }),
				is(func(f events.OrderGiven) bool { return f.Machine == first && f.Order.Stop }),
				is(func(f events.WorkloadStopped) bool { return f.Machine == first }),
				is(func(f events.WorkloadStarted) bool { return f.Machine == second && f.Step > 0 }),
				is(func(f events.InstanceInterrupted) bool { return f.ID == launched.ID && f.Noticed == "eventbridge" }),
				is(func(f events.OrderGiven) bool { return f.Machine == second && f.Order.Save != nil }),
				is(func(f events.InstanceVerified) bool { return f.Machine == third }),
				is(func(f events.WorkloadStarted) bool { return f.Machine == third && f.Step > 0 }),
				is(func(f events.WorkloadFinished) bool { return f.Workload == "train" }),
			}
			if got := d.inOrder(want...); got < len(want) {
				t.Errorf("fact %d of %d is missing or out of order\n%s", got+1, len(want), d.story())
			}
			if got := d.inOrder(
				is(func(f events.PriceChanged) bool {
					return strings.Contains(f.Summary, "us-east-1b") && strings.Contains(f.Summary, "0.3")
				}),
				is(func(f events.PlanMade) bool { return f.Plan.Machine == second }),
			); got < 2 {
				t.Errorf("the move was not planned after the price was told\n%s", d.story())
			}
			status := run(t, []string{
				"LOWTIDE_NATS_URL=" + d.url(), "LOWTIDE_NATS_CREDS=" + d.keys.Creds("admin"), "LOWTIDE_NATS_CA_FILE=" + d.ca(), "LOWTIDE_FLEET=" + fleetName,
			}, lowtide(t), "status", "--output", "json")
			if !strings.Contains(string(status), `"train"`) {
				t.Errorf("status tells nothing of it: %s", status)
			}
			if s, err := d.js.Stream(t.Context(), "KV_fleets"); err != nil || s.CachedInfo().Config.Replicas != c.replicas {
				t.Errorf("the state lies on %d servers, %v; want %d", s.CachedInfo().Config.Replicas, err, c.replicas)
			}
			if s, err := d.js.Stream(t.Context(), bus.Dead); err != nil || s.CachedInfo().State.Msgs > 0 {
				t.Errorf("%d dead letters, %v; want none", s.CachedInfo().State.Msgs, err)
			}
			t.Logf("%d facts, %d machines, %s", len(d.facts), len(d.cloud.Bill().Ours()), d.cloud.Bill().Ours().Total(d.clock.Now()))
		})
	}
}
