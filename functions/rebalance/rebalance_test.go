package rebalance_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/plan"
	"lowtide/shared/store"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world drives one decider by hand: say facts to it, look at what it says.
type world struct {
	t      testing.TB
	d      *rebalance.Decider
	states store.Bucket
	cfg    rebalance.Config
	now    time.Time
	seq    uint64
	said   []events.Event
}

func offer(zone string, market fleet.Market, usd float64) fleet.Offer {
	return fleet.Offer{
		Cloud: "fake", Account: "a", Region: "r", Zone: zone, Type: "p3.2xlarge", Market: market, GPU: "V100", GPUs: 1,
		Hourly: fleet.Known(fleet.Dollars(usd)),
	}
}

func newWorld(t testing.TB, offers ...fleet.Offer) *world {
	states, market := store.Memory(), store.Memory()
	w := &world{t: t, states: states, now: t0, cfg: rebalance.Config{
		Fleet: "f", Install: "i1", States: states, Market: market, Policy: plan.Default, Batch: 256,
	}}
	b, err := json.Marshal(fleet.Markets{AsOf: t0, Offers: offers})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := market.Create(context.Background(), fleet.MarketKey, b); err != nil {
		t.Fatal(err)
	}
	w.d = rebalance.New(w.cfg)
	return w
}

// market replaces what prices wrote.
func (w *world) market(m fleet.Markets) {
	w.t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	_, rev, err := w.cfg.Market.Get(context.Background(), fleet.MarketKey)
	if err == nil {
		_, err = w.cfg.Market.Update(context.Background(), fleet.MarketKey, b, rev)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) deliver(facts ...events.Fact) []fn.Delivery {
	var batch []fn.Delivery
	for _, f := range facts {
		w.seq++
		batch = append(batch, fn.Delivery{Event: events.New("f", "test", w.now, f), Stream: "S", Seq: w.seq, At: w.now, Attempt: 1})
	}
	return batch
}

// hear says facts to the decider, after a while.
func (w *world) hear(after time.Duration, facts ...events.Fact) []events.Event {
	w.t.Helper()
	w.now = w.now.Add(after)
	said, err := w.d.Handle(context.Background(), w.deliver(facts...))
	if err != nil {
		w.t.Fatal(err)
	}
	w.said = said
	return said
}

func pick[E events.Fact](said []events.Event) (out []E) {
	for _, e := range said {
		if f, ok := e.Data.(E); ok {
			out = append(out, f)
		}
	}
	return out
}

func one[E events.Fact](t testing.TB, said []events.Event) E {
	t.Helper()
	all := pick[E](said)
	if len(all) != 1 {
		var zero E
		t.Fatalf("said %d × %s in %s", len(all), zero.Kind(), list(said))
	}
	return all[0]
}

func list(said []events.Event) string {
	var s []string
	for _, e := range said {
		s = append(s, fmt.Sprintf("%s %+v", e.Data.Kind(), e.Data))
	}
	return strings.Join(s, "\n")
}

func (w *world) fleet() *fleet.Fleet {
	w.t.Helper()
	f, _, err := rebalance.Fleet(context.Background(), w.states, "f")
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

func job(name string) fleet.Spec {
	return fleet.Spec{Name: name, Run: []string{"train"}, Work: 4 * time.Hour, Steps: 1000, Deadline: t0.Add(8 * time.Hour), Autonomy: fleet.Act}
}

// buy carries a plan out as provision would.
func (w *world) buy(p events.PlanMade) []events.Event {
	return w.hear(time.Second, events.InstanceLaunched{
		Plan: p.Plan.ID, Machine: p.Plan.Machine, ID: "id-" + p.Plan.Machine, Workload: p.Plan.Workload, Offer: p.Plan.Offers[0], At: w.now,
	})
}

// prove brings a bought machine to verified and returns what follows.
func (w *world) prove(machine string) []events.Event {
	w.t.Helper()
	var o events.OrderGiven
	for _, given := range pick[events.OrderGiven](w.hear(time.Minute, events.InstanceReady{Machine: machine})) {
		if given.Machine == machine {
			o = given
		}
	}
	if o.Order.Benchmark == nil {
		w.t.Fatalf("no benchmark ordered on %s", machine)
	}
	return w.hear(time.Minute, events.InstanceVerified{Machine: machine, Nonce: o.Order.Benchmark.Nonce, Ratio: 1})
}

func man(epoch uint64, step int64) fleet.Manifest {
	return fleet.Manifest{ID: fmt.Sprintf("e%d-s%d", epoch, step), Epoch: epoch, Step: step, Took: 5 * time.Second}
}

// running submits a job and brings it to its first run on spot.
func running(t testing.TB) (w *world, machine string) {
	w = newWorld(t, offer("z1", fleet.Spot, 1), offer("z2", fleet.Spot, 1.1), offer("z1", fleet.OnDemand, 3))
	p := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: job("a")}))
	w.buy(p)
	o := one[events.OrderGiven](t, w.prove(p.Plan.Machine))
	if o.Order.Start == nil || o.Order.Epoch != 1 || o.Order.Start.From != "" {
		t.Fatalf("want a start of epoch 1 from nothing, got %+v", o.Order)
	}
	w.hear(time.Second, events.WorkloadStarted{Workload: "a", Machine: p.Plan.Machine, Epoch: 1})
	return w, p.Plan.Machine
}

func TestAnInterruptionSavesBuysVerifiesAndStartsTheNextEpochFromTheLastCheckpoint(t *testing.T) {
	w, first := running(t)
	w.hear(10*time.Minute, events.CheckpointSaved{Workload: "a", Machine: first, Epoch: 1, Manifest: man(1, 40)})
	said := w.hear(time.Minute, events.InstanceInterrupted{Cloud: "fake", Account: "a", Machine: first, EndsBy: w.now.Add(3 * time.Minute), Action: "terminate", Noticed: "metadata"})
	order, p := one[events.OrderGiven](t, said), one[events.PlanMade](t, said)
	if order.Order.Save == nil || order.Order.Stop || order.Order.Start == nil {
		t.Errorf("on the notice the running job shall save and go on, got %+v", order.Order)
	}
	w.buy(p)
	said = w.hear(107*time.Second, events.ClockTicked{What: "wake"})
	if o := one[events.OrderGiven](t, said); !o.Order.Stop || o.Order.Save == nil {
		t.Errorf("at the last moment it shall save and stop, got %+v", o.Order)
	}
	said = w.prove(p.Plan.Machine)
	if n := len(pick[events.OrderGiven](said)); n != 0 {
		t.Fatalf("started while the old run may still be alive: %s", list(said))
	}
	said = w.hear(time.Second, events.WorkloadStopped{Workload: "a", Machine: first, Epoch: 1, Step: 60, Saved: man(1, 60)})
	o := one[events.OrderGiven](t, said)
	if o.Machine != p.Plan.Machine || o.Order.Epoch != 2 || o.Order.Start.From != "e1-s60" || o.Order.Start.Prior != "e1-s40" {
		t.Errorf("got %+v", o)
	}
}

func TestAMachineThatDiesUnsavedIsOverOnlyWhenTheCloudConfirms(t *testing.T) {
	w, first := running(t)
	said := w.hear(time.Minute, events.InstanceInterrupted{Machine: first, EndsBy: w.now.Add(70 * time.Second), Action: "terminate", Noticed: "eventbridge"})
	p := one[events.PlanMade](t, said)
	w.buy(p)
	said = w.prove(p.Plan.Machine)
	for _, o := range pick[events.OrderGiven](said) {
		if o.Order.Start != nil && o.Machine != first {
			t.Fatal("a second run while the first may live")
		}
	}
	said = w.hear(time.Minute, events.ClockTicked{What: "wake"})
	if end := one[events.PlanMade](t, said); end.Plan.Action != fleet.End || end.Plan.Machine != first {
		t.Fatalf("want the cloud to be asked to end %s, got %+v", first, end)
	}
	said = w.hear(time.Second, events.InstanceEnded{Cloud: "fake", Account: "a", Machine: first, ID: "id-" + first, At: w.now})
	if o := one[events.OrderGiven](t, said); o.Machine != p.Plan.Machine || o.Order.Epoch != 2 {
		t.Errorf("got %+v", o)
	}
}

func TestARedeliveredBatchCountsOnceAndIsAnsweredAgainUnderTheSameIDs(t *testing.T) {
	w := newWorld(t, offer("z1", fleet.Spot, 1), offer("z1", fleet.OnDemand, 3))
	batch := w.deliver(events.WorkloadSubmitted{Spec: job("a")})
	first, err := w.d.Handle(context.Background(), batch)
	if err != nil {
		t.Fatal(err)
	}
	again, err := rebalance.New(w.cfg).Handle(context.Background(), batch) // another process, after a crash
	if err != nil {
		t.Fatal(err)
	}
	ids := func(said []events.Event) (s []string) {
		for _, e := range said {
			s = append(s, e.ID)
		}
		return s
	}
	if a, b := fmt.Sprint(ids(first)), fmt.Sprint(ids(again)); a != b {
		t.Errorf("got %s, want %s", b, a)
	}
	if f := w.fleet(); len(f.Plans) != 1 || len(f.Machines) != 1 {
		t.Errorf("folded twice: %d plans, %d machines", len(f.Plans), len(f.Machines))
	}
}

func TestOrdersAreSaidBeforeAllElseInABatch(t *testing.T) {
	w := crowd(t, 12)
	var notices []events.Fact
	for _, name := range fleet.Sorted(w.fleet().Machines) {
		notices = append(notices, events.InstanceInterrupted{Cloud: "fake", Account: "a", Machine: name, EndsBy: w.now.Add(2 * time.Minute), Noticed: "test"})
	}
	said := w.hear(time.Second, notices...)
	if o, p := len(pick[events.OrderGiven](said)), len(pick[events.PlanMade](said)); o != 12 || p != 12 {
		t.Fatalf("%d orders and %d plans, want 12 of each", o, p)
	}
	for i, e := range said[:12] {
		if _, ok := e.Data.(events.OrderGiven); !ok {
			t.Errorf("%d: %s before the last order", i, e.Data.Kind())
		}
	}
}

func TestARejectedMachineIsEndedAndTheNextPoolIsBought(t *testing.T) {
	w := newWorld(t, offer("z1", fleet.Spot, 1), offer("z2", fleet.Spot, 1.1), offer("z1", fleet.OnDemand, 3))
	p := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: job("a")}))
	w.buy(p)
	o := one[events.OrderGiven](t, w.hear(time.Minute, events.InstanceReady{Machine: p.Plan.Machine}))
	w.hear(time.Second, events.InstanceRejected{Machine: p.Plan.Machine, Nonce: "not ours", Cause: "slow"})
	said := w.hear(time.Second, events.InstanceRejected{Machine: p.Plan.Machine, Nonce: o.Order.Benchmark.Nonce, Cause: "slow", Ratio: 0.6})
	var end, launch int
	for _, p2 := range pick[events.PlanMade](said) {
		switch {
		case p2.Plan.Action == fleet.End && p2.Plan.Machine == p.Plan.Machine:
			end++
		case p2.Plan.Action == fleet.Launch && p2.Plan.Offers[0].Zone == "z2":
			launch++
		}
	}
	if end != 1 || launch != 1 {
		t.Errorf("want one end and one launch elsewhere, got %s", list(said))
	}
}

func TestAnOpenItemIsSaidAgainWithAnAttemptUntilItIsAnswered(t *testing.T) {
	w := newWorld(t, offer("z1", fleet.Spot, 1), offer("z1", fleet.OnDemand, 3))
	first := one[events.PlanMade](t, w.hear(0, events.WorkloadSubmitted{Spec: job("a")}))
	if n := len(pick[events.PlanMade](w.hear(2*time.Second, events.ClockTicked{What: "wake"}))); n != 0 {
		t.Error("said again before 5 s")
	}
	second := one[events.PlanMade](t, w.hear(3*time.Second, events.ClockTicked{What: "wake"}))
	if second.Attempt != first.Attempt+1 || second.Plan.ID != first.Plan.ID {
		t.Errorf("got %+v after %+v", second, first)
	}
	w.buy(second)
	if n := len(pick[events.PlanMade](w.hear(time.Minute, events.ClockTicked{What: "wake"}))); n != 0 {
		t.Error("said again although it is answered")
	}
}

func TestStaleEpochsCountForNothing(t *testing.T) {
	w, first := running(t)
	w.hear(time.Minute, events.CheckpointSaved{Workload: "a", Machine: first, Epoch: 1, Manifest: man(1, 10)})
	p := one[events.PlanMade](t, w.hear(time.Minute, events.InstanceInterrupted{Machine: first, EndsBy: w.now.Add(2 * time.Minute)}))
	w.buy(p)
	w.prove(p.Plan.Machine)
	w.hear(time.Second, events.InstanceEnded{Machine: first, ID: "id-" + first, At: w.now})
	// The machine that was said to be dead comes back with a later step of the old epoch.
	w.hear(time.Minute, events.CheckpointSaved{Workload: "a", Machine: first, Epoch: 1, Manifest: man(1, 900)},
		events.WorkloadFinished{Workload: "a", Machine: first, Epoch: 1, Step: 1000, Result: "x"})
	f := w.fleet()
	if a := f.Workloads["a"]; a.Saved.Step != 10 || a.Phase != fleet.Accepted || a.Epoch != 2 {
		t.Errorf("a zombie's facts counted: %+v", a)
	}
}

func TestThePromiseIsRefusedWhenOnDemandCannotKeepIt(t *testing.T) {
	w := newWorld(t, offer("z1", fleet.Spot, 1), offer("z1", fleet.OnDemand, 3))
	late := job("late")
	late.Deadline = t0.Add(4*time.Hour + 5*time.Minute)
	poor := job("poor")
	poor.Budget = fleet.Known(fleet.Dollars(5))
	big := job("big")
	big.GPUs = 8
	said := w.hear(0, events.WorkloadSubmitted{Spec: late}, events.WorkloadSubmitted{Spec: poor}, events.WorkloadSubmitted{Spec: big})
	if n := len(pick[events.WorkloadRefused](said)); n != 3 || len(pick[events.PlanMade](said)) != 0 {
		t.Errorf("want three refusals and no purchase, got %s", list(said))
	}
}

func TestNearItsDeadlineAWorkloadGoesOnDemandInTime(t *testing.T) {
	w, first := running(t)
	// Spot goes on for a while without a single durable checkpoint: the guard must count from zero.
	var p events.PlanMade
	for w.now.Before(t0.Add(8*time.Hour)) && p.Plan.ID == "" {
		said := w.hear(5*time.Minute, events.MachineHeard{Machine: first, Beat: w.seq, Workload: "a", Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: 1}})
		for _, m := range pick[events.PlanMade](said) {
			p = m
		}
	}
	if p.Plan.ID == "" || p.Plan.Offers[0].Market != fleet.OnDemand {
		t.Fatalf("want on-demand, got %+v", p)
	}
	if finish := w.now.Add(4*time.Hour + plan.Default.StartMax); finish.After(t0.Add(8 * time.Hour)) {
		t.Errorf("bought at %s: all on demand it ends at %s, after the deadline", w.now, finish)
	}
}

// crowd is a fleet of n running workloads.
func crowd(t testing.TB, n int) *world {
	offers := []fleet.Offer{offer("z1", fleet.OnDemand, 3)}
	for z := range 20 {
		offers = append(offers, offer(fmt.Sprintf("us-east-%d", z), fleet.Spot, 1+float64(z)/100))
	}
	w := newWorld(t, offers...)
	for start := 0; start < n; start += 200 {
		var submit []events.Fact
		for i := start; i < min(start+200, n); i++ {
			submit = append(submit, events.WorkloadSubmitted{Spec: job(fmt.Sprintf("train-%d", i))})
		}
		var launched, ready, verified, started []events.Fact
		for _, p := range pick[events.PlanMade](w.hear(time.Second, submit...)) {
			launched = append(launched, events.InstanceLaunched{Plan: p.Plan.ID, Machine: p.Plan.Machine, ID: fmt.Sprintf("i-%016x", w.seq*7919), Workload: p.Plan.Workload, Offer: p.Plan.Offers[0], At: w.now})
			ready = append(ready, events.InstanceReady{Machine: p.Plan.Machine})
		}
		w.hear(time.Second, launched...)
		for _, o := range pick[events.OrderGiven](w.hear(time.Second, ready...)) {
			verified = append(verified, events.InstanceVerified{Machine: o.Machine, Nonce: o.Order.Benchmark.Nonce, Ratio: 1})
		}
		for _, o := range pick[events.OrderGiven](w.hear(time.Second, verified...)) {
			started = append(started, events.WorkloadStarted{Workload: o.Order.Start.Workload, Machine: o.Machine, Epoch: o.Order.Epoch})
			m := man(o.Order.Epoch, 40+int64(len(started)))
			m.ID, m.At = fmt.Sprintf("%016x", w.seq*104729+uint64(len(started))), w.now
			started = append(started, events.CheckpointSaved{Workload: o.Order.Start.Workload, Machine: o.Machine, Epoch: 1, Manifest: m})
		}
		w.hear(time.Second, started...)
	}
	return w
}

func TestFiveThousandWorkloadsFitIntoHalfAMebibyte(t *testing.T) {
	w := crowd(t, 5000)
	b, _, err := w.states.Get(context.Background(), "f")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes, %.0f a workload", len(b), float64(len(b))/5000)
	if len(b) > 512<<10 {
		t.Errorf("%d bytes, more than 512 KiB", len(b))
	}
}

// BenchmarkFoldPlanSave is one fact folded, settled, planned on and saved, the bucket apart.
func BenchmarkFoldPlanSave(b *testing.B) {
	for _, n := range []int{10, 1000, 5000} {
		b.Run(fmt.Sprintf("workloads=%d", n), func(b *testing.B) {
			w := crowd(b, n)
			f := w.fleet()
			machine := f.Workloads["train-7"].On
			b.ResetTimer()
			for i := range b.N { // a fact each millisecond: none waits so long that others fall due
				w.hear(time.Millisecond, events.WorkloadProgressed{Workload: "train-7", Machine: machine, Epoch: 1, Step: int64(100 + i)})
			}
		})
	}
}

func TestMachinesAreNotSilentWhileNobodyListened(t *testing.T) {
	w, first := running(t)
	w.hear(time.Minute, events.MachineHeard{Machine: first, Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: 5}})
	said := w.hear(time.Hour, events.ClockTicked{What: "tick"}) // lowtide was away, its machine was not
	if bought := pick[events.PlanMade](said); len(bought) > 0 {
		t.Fatalf("bought a replacement for a machine that nobody could hear: %s", list(said))
	}
	for range 9 {
		if said = w.hear(time.Minute, events.ClockTicked{What: "tick"}); len(pick[events.PlanMade](said)) > 0 {
			t.Fatalf("bought a replacement after %s: %s", w.now.Sub(w.fleet().Hearing), list(said))
		}
	}
	var bought []events.PlanMade
	for range 12 { // but now it could have spoken for ten minutes; it is looked at after ten more at the latest
		bought = append(bought, pick[events.PlanMade](w.hear(time.Minute, events.ClockTicked{What: "tick"}))...)
	}
	if len(bought) == 0 || bought[0].Plan.Action != fleet.Launch {
		t.Errorf("got %+v, want a replacement of the machine that stays silent", bought)
	}
}

func TestAnEarlierDeadlineIsAPromiseToo(t *testing.T) {
	w, _ := running(t)
	spec := w.fleet().Workloads["a"].Spec
	said := w.hear(time.Minute, events.WorkloadChanged{Workload: "a", Deadline: w.now.Add(spec.Work / 2)})
	if no := one[events.ChangeRefused](t, said); no.Workload != "a" || !strings.Contains(no.Why, "deadline") {
		t.Errorf("got %+v", no)
	}
	if got := w.fleet().Workloads["a"].Spec.Deadline; !got.Equal(spec.Deadline) {
		t.Errorf("the deadline is %s, want %s as before", got, spec.Deadline)
	}
	later := spec.Deadline.Add(time.Hour)
	w.hear(time.Minute, events.WorkloadChanged{Workload: "a", Deadline: later})
	if got := w.fleet().Workloads["a"].Spec.Deadline; !got.Equal(later) {
		t.Errorf("the deadline is %s, want %s", got, later)
	}
}

func TestWhatNobodyCanPlanIsRefusedWhateverDoorItCameThrough(t *testing.T) {
	for says, change := range map[string]func(*fleet.Spec){
		"name":      func(s *fleet.Spec) { s.Name = "../../etc" },
		"run":       func(s *fleet.Spec) { s.Run = nil },
		"work":      func(s *fleet.Spec) { s.Work = -time.Hour },
		"gpus":      func(s *fleet.Spec) { s.GPUs = -3 },
		"steps":     func(s *fleet.Spec) { s.Steps = -1 },
		"ten years": func(s *fleet.Spec) { s.Deadline = time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC) },
		"budget":    func(s *fleet.Spec) { s.Budget = fleet.Known(fleet.Dollars(-1)) },
		"65536":     func(s *fleet.Spec) { s.Env = map[string]string{"A": strings.Repeat("x", fleet.MaxSpec)} },
	} {
		w := newWorld(t, offer("z1", fleet.Spot, 1), offer("z1", fleet.OnDemand, 3))
		s := job("a")
		change(&s)
		if no := one[events.WorkloadRefused](t, w.hear(time.Second, events.WorkloadSubmitted{Spec: s})); !strings.Contains(no.Why, says) {
			t.Errorf("refused because %q, want %q", no.Why, says)
		}
		if n := len(w.fleet().Workloads); n > 0 {
			t.Errorf("%s: %d workloads were taken", says, n)
		}
	}
}

func TestADeadlineTooFarAwayChangesNothingAndStopsNothing(t *testing.T) {
	w, first := running(t)
	far := time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC)
	if no := one[events.ChangeRefused](t, w.hear(time.Second, events.WorkloadChanged{Workload: "a", Deadline: far})); !strings.Contains(no.Why, "ten years") {
		t.Errorf("refused because %q", no.Why)
	}
	said := w.hear(time.Minute, events.InstanceInterrupted{Machine: first, EndsBy: w.now.Add(2 * time.Minute), Action: "terminate", Noticed: "metadata"})
	if p := one[events.PlanMade](t, said); p.Plan.Action != fleet.Launch {
		t.Errorf("got %+v, want a replacement", p.Plan)
	}
}

func TestAMachineThatWasTakenCostsUntilItsAnnouncedEndWheneverThatIsHeard(t *testing.T) {
	w, first := running(t)
	bought := w.fleet().Machines[first].Bought
	by := w.now.Add(3 * time.Minute)
	w.hear(time.Minute, events.InstanceInterrupted{Machine: first, EndsBy: by, Action: "terminate", Noticed: "metadata"})
	w.hear(8*time.Hour, events.InstanceEnded{Cloud: "fake", Account: "a", Machine: first, ID: "id-" + first, At: w.now.Add(8 * time.Hour), Why: "gone"})
	want := by.Sub(bought).Hours() // at 1 USD an hour
	if got := w.fleet().Workloads["a"].Spent.Float(); got < want-0.001 || got > want+0.001 {
		t.Errorf("spent %.4f USD, want %.4f: the cloud took it as announced", got, want)
	}
}
