package plan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
)

// paid is a reservation like the desk's offers.
func paid(id, typ string, count int, until time.Duration) *fleet.Reservation {
	r := &fleet.Reservation{ID: id, Cloud: "fake", Account: "a", Region: "r", Zone: "z1", Type: typ, Count: count, Hourly: fleet.Dollars(1)}
	if until > 0 {
		r.Until = t0.Add(until)
	}
	return r
}

// assigned is one look at the desk's fleet.
func (d *desk) assigned() plan.Assignment {
	book := plan.NewBook(&fleet.Markets{AsOf: d.now, Offers: d.offers, Pools: d.pools})
	return plan.Assign(d.f, book, pool.Solving{Tables: pool.NewTables(64 << 20)}, d.policy, d.now)
}

// job adds a workload of so much work; due zero: best effort.
func (d *desk) with(name string, work, due time.Duration) *fleet.Workload {
	s := *d.job.Spec
	s.Name, s.Work, s.Deadline = name, work, time.Time{}
	if due > 0 {
		s.Deadline = d.now.Add(due)
	}
	w := &fleet.Workload{Spec: &s, Phase: fleet.Accepted, Since: d.now}
	d.f.Workloads[name] = w
	return w
}

// holds puts a workload on a machine of an offer, which it has had for so long.
func (d *desk) holds(w *fleet.Workload, o fleet.Offer, had time.Duration) *fleet.Instance {
	m := &fleet.Instance{
		Name: "m-" + w.Spec.Name, ID: "i-" + w.Spec.Name, Workload: w.Spec.Name, Offer: o, Phase: fleet.Verified,
		Bought: d.now.Add(-had), ReadyAt: d.now.Add(-had), Heard: d.now, Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: 10},
	}
	w.On, w.Epoch, w.Saved, w.Slot = m.Name, 1, fleet.Manifest{ID: "s", Epoch: 1, Step: 10}, o.Reservation
	d.f.Machines[m.Name] = m
	return m
}

func (d *desk) of(r *fleet.Reservation) fleet.Offer {
	return plan.NewBook(&fleet.Markets{AsOf: d.now, Offers: d.offers}).Paid(r)
}

func TestWhoGetsThePaidMachine(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*desk)
		want   map[string]string
		leave  []string
	}{
		"an idle one is filled": {func(*desk) {}, map[string]string{"a": "cr"}, nil},
		"of two, the one whose alternative is dearer": {func(d *desk) {
			d.with("b", 8*time.Hour, 0)
		}, map[string]string{"b": "cr"}, nil},
		"one machine each": {func(d *desk) {
			d.with("b", 8*time.Hour, 0)
			d.f.Reserved["cr"].Count = 2
		}, map[string]string{"a": "cr", "b": "cr"}, nil},
		"who is only observed gets none": {func(d *desk) {
			s := *d.job.Spec
			s.Autonomy = fleet.Observe
			d.job.Spec = &s
		}, map[string]string{}, nil},
		"and keeps what it has when it is only observed from now on": {func(d *desk) {
			b := d.with("b", time.Hour, 0)
			d.holds(b, d.of(d.f.Reserved["cr"]), time.Hour)
			b.Spec.Autonomy = fleet.Observe
		}, map[string]string{"b": "cr"}, nil},
		"what does not fit gets none": {func(d *desk) {
			s := *d.job.Spec
			s.GPUs = 2
			d.job.Spec = &s
		}, map[string]string{}, nil},
		"one that is not open yet is not dealt out": {func(d *desk) { d.f.Reserved["cr"].From = d.now.Add(time.Hour) }, map[string]string{}, nil},
		"nor one that is over":                      {func(d *desk) { d.f.Reserved["cr"].Until = d.now.Add(-time.Hour) }, map[string]string{}, nil},
		"nor one that ends before it would pay":     {func(d *desk) { d.f.Reserved["cr"].Until = d.now.Add(40 * time.Minute) }, map[string]string{}, nil},
		"one that ends late enough is":              {func(d *desk) { d.f.Reserved["cr"].Until = d.now.Add(3 * time.Hour) }, map[string]string{"a": "cr"}, nil},
		"what has just refused is not asked again": {func(d *desk) {
			p := d.of(d.f.Reserved["cr"]).Pool()
			d.f.Refusals[p] = &fleet.Refusal{Pool: p, Until: d.now.Add(time.Minute)}
		}, map[string]string{}, nil},
		"who runs on spot moves there": {func(d *desk) { d.holds(d.job, d.offers[1], time.Hour) }, map[string]string{"a": "cr"}, nil},
		"but not within the minimum stay": {func(d *desk) {
			d.holds(d.job, d.offers[1], 5*time.Minute)
		}, map[string]string{}, nil},
		"nor for the last minutes of its work": {func(d *desk) {
			d.holds(d.job, d.offers[1], time.Hour).Run.Step = 980
			d.job.Saved.Step = 980
		}, map[string]string{}, nil},
		"who holds it keeps it from one that gains a little more": {func(d *desk) {
			b := d.with("b", 4*time.Hour, 0)
			d.holds(b, d.of(d.f.Reserved["cr"]), time.Hour)
			d.with("c", 4*time.Hour+5*time.Minute, 0)
			delete(d.f.Workloads, "a")
		}, map[string]string{"b": "cr"}, nil},
		"and yields to one that gains much more": {func(d *desk) {
			b := d.with("b", time.Hour, 0)
			d.holds(b, d.of(d.f.Reserved["cr"]), time.Hour)
			d.with("c", 9*time.Hour, 0)
			delete(d.f.Workloads, "a")
		}, map[string]string{"c": "cr"}, nil},
		"though not within the minimum stay": {func(d *desk) {
			b := d.with("b", time.Hour, 0)
			d.holds(b, d.of(d.f.Reserved["cr"]), 5*time.Minute)
			d.with("c", 9*time.Hour, 0)
			delete(d.f.Workloads, "a")
		}, map[string]string{"b": "cr"}, nil},
		"unless a promise would be broken": {func(d *desk) {
			b := d.with("b", time.Hour, 0)
			d.holds(b, d.of(d.f.Reserved["cr"]), 5*time.Minute)
			d.offers = d.offers[1:] // no on-demand
			d.job.Spec = d.due(4*time.Hour + 30*time.Minute)
		}, map[string]string{"a": "cr"}, []string{"b"}},
		"a deadline that cannot wait makes who holds it leave at once": {func(d *desk) {
			b := d.with("b", time.Hour, 0)
			d.holds(b, d.of(d.f.Reserved["cr"]), time.Hour)
			d.job.Spec = d.due(4*time.Hour + 25*time.Minute + 14*time.Minute)
		}, map[string]string{"a": "cr"}, []string{"b"}},
		"nor if whoever holds it has a promise that it could not keep then": {func(d *desk) {
			b := d.with("b", time.Hour, 100*time.Minute)
			d.holds(b, d.of(d.f.Reserved["cr"]), time.Hour)
			d.job.Spec = d.due(4*time.Hour + 25*time.Minute + 14*time.Minute)
		}, map[string]string{"b": "cr"}, nil},
		"nor if a person must approve of that": {func(d *desk) {
			b := d.with("b", time.Hour, 0)
			b.Spec.Autonomy = fleet.Suggest
			d.holds(b, d.of(d.f.Reserved["cr"]), time.Hour)
			d.job.Spec = d.due(4*time.Hour + 25*time.Minute + 14*time.Minute)
		}, map[string]string{"b": "cr"}, nil},
		"a machine bought before it was extended ends when it was bought to": {func(d *desk) {
			d.f.Reserved["cr"].Until = d.now.Add(300 * time.Hour)
			m := d.holds(d.job, d.of(d.f.Reserved["cr"]), time.Hour)
			m.HardEnd = d.now.Add(20 * time.Minute)
		}, map[string]string{}, nil},
		"a slow one is not given to who would be late on it": {func(d *desk) {
			slow := offer("z9", fleet.OnDemand, 1)
			slow.Type, slow.Speed = "slow", fleet.Known(0.2)
			d.offers = append(d.offers, slow)
			d.f.Reserved["cr"].Type = "slow"
			d.job.Spec = d.due(4*time.Hour + 40*time.Minute)
		}, map[string]string{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk()
			d.f.Reserved["cr"] = paid("cr", "p3", 1, 0)
			x.change(d)
			a := d.assigned()
			if !maps.Equal(a.Slots, x.want) || !slices.Equal(a.Leave, x.leave) {
				t.Errorf("got %v, leaving %v; want %v, leaving %v", a.Slots, a.Leave, x.want, x.leave)
			}
			if !a.Again.After(d.now) {
				t.Errorf("looks again at %s, now is %s", a.Again, d.now)
			}
		})
	}
}

func TestWhatIsPaidForIsTakenAtNoPriceAndLeftForAnotherMachine(t *testing.T) {
	d := newDesk()
	d.f.Reserved["cr"] = paid("cr", "p3", 1, 100*time.Hour)
	d.job.Slot = "cr"
	p := d.decide().Plan
	if len(p.Offers) != 1 || p.Offers[0].Reservation != "cr" || !p.Score.Hourly.Amount.IsZero() || !p.Score.Worst.Amount.IsZero() {
		t.Fatalf("got %+v, want the paid machine, at no price", p)
	}
	if p.HardEnd.After(t0.Add(100 * time.Hour)) {
		t.Errorf("the machine ends itself at %s, after its reservation", p.HardEnd)
	}
	d.holds(d.job, p.Offers[0], time.Hour)
	if got := did(d.decide()); got != "nothing" {
		t.Errorf("on it: %s, want it to stay: %s", got, d.decided.Reason)
	}
	d.job.Slot = "" // another needs it more
	if got := did(d.decide()); got != "spot z1" {
		t.Errorf("without its place: %s, want another machine: %s", got, d.decided.Reason)
	}
	b := d.with("b", 4*time.Hour, 8*time.Hour)
	b.Slot, d.job = "cr", b
	if got := did(d.decide()); got != "nothing" {
		t.Errorf("whose place is still taken: %s, want it to wait: %s", got, d.decided.Reason)
	}
}

// TestAPlanThatWasTakenOverIsFollowedByNone: whatever the fleet, the second look at the same state changes nothing.
func TestAPlanThatWasTakenOverIsFollowedByNone(t *testing.T) {
	by := pool.Solving{Tables: pool.NewTables(128 << 20)}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 9))
		f, book := drawnFleet(r)
		first := round(f, book, by)
		if again := round(f, book, by); len(again) > 0 {
			t.Fatalf("seed %d: first %v, and then %v", seed, first, again)
		}
	}
}

// drawnFleet is a fleet at any moment: workloads that run on spot, on demand, on paid machines, or wait.
func drawnFleet(r *rand.Rand) (*fleet.Fleet, *plan.Book) {
	d := newDesk()
	delete(d.f.Workloads, "a")
	d.offers = append(d.offers, d.sells("z2", 0.6+r.Float64(), 1, true, time.Duration(1+r.IntN(40))*time.Hour))
	big := offer("z1", fleet.OnDemand, 9)
	big.Type, big.GPUs, big.Speed = "p4", 4, fleet.Known(2.0)
	d.offers = append(d.offers, big)
	for i := range 1 + r.IntN(3) {
		id := fmt.Sprintf("cr-%d", i)
		d.f.Reserved[id] = paid(id, []string{"p3", "p4"}[r.IntN(2)], 1+r.IntN(3), time.Duration(r.IntN(12))*time.Hour)
	}
	used := map[string]int{}
	for i := range 2 + r.IntN(8) {
		due := time.Duration(0)
		if r.IntN(2) == 0 {
			due = time.Duration(6+r.IntN(20)) * time.Hour
		}
		w := d.with(fmt.Sprintf("w%d", i), time.Duration(30+r.IntN(300))*time.Minute, due)
		had := time.Duration(r.IntN(120)) * time.Minute
		switch id := fmt.Sprintf("cr-%d", r.IntN(3)); {
		case r.IntN(3) == 0 && d.f.Reserved[id] != nil && used[id] < d.f.Reserved[id].Count:
			used[id]++
			d.holds(w, d.of(d.f.Reserved[id]), had).Run.Step = int64(r.IntN(900))
		case r.IntN(2) == 0:
			d.holds(w, d.offers[r.IntN(3)], had).Run.Step = int64(r.IntN(900))
		}
	}
	return d.f, plan.NewBook(&fleet.Markets{AsOf: d.now, Offers: d.offers, Pools: d.pools})
}

// round takes one look over, as the decider does, and says what came of it.
func round(f *fleet.Fleet, book *plan.Book, by plan.Oracle) (did []string) {
	a := plan.Assign(f, book, by, plan.Default, t0)
	for _, name := range fleet.Sorted(f.Workloads) {
		if w := f.Workloads[name]; w.Slot != a.Slots[name] {
			did = append(did, fmt.Sprintf("%s: %q instead of %q", name, a.Slots[name], w.Slot))
			w.Slot = a.Slots[name]
		}
	}
	for _, name := range a.Leave {
		if on := f.Machines[f.Workloads[name].On]; !on.Order.Stop {
			did, on.Order.Stop = append(did, name+" leaves"), true
		}
	}
	for _, x := range plan.Make(f, book, by, plan.Default, t0) {
		w := f.Workloads[x.Workload]
		switch {
		case x.Plan.Action != "":
			did = append(did, x.Workload+" buys "+x.Plan.Offers[0].String())
			w.Next = fmt.Sprintf("n%d-%s", len(f.Machines), x.Workload)
			f.Machines[w.Next] = &fleet.Instance{Name: w.Next, Workload: x.Workload, Offer: x.Plan.Offers[0], Phase: fleet.Ordered}
		case x.Stop:
			did, f.Machines[w.On].Order.Stop = append(did, x.Workload+" stops"), true
		case x.Keep:
			did, w.Next = append(did, x.Workload+" keeps"), ""
		}
	}
	return did
}

// BenchmarkAssign deals 200 reservations out to 2,000 workloads with 20,000 offers, tables warm.
func BenchmarkAssign(b *testing.B) {
	by := pool.Solving{Tables: pool.NewTables(256 << 20)}
	f, m := crowd(2000, 20000)
	for i := range 200 {
		id := fmt.Sprintf("cr-%03d", i)
		r := paid(id, fmt.Sprintf("t%d", i%100), 1+i%5, time.Duration(10+i)*time.Hour)
		f.Reserved[id] = r
	}
	book := plan.NewBook(m)
	a := plan.Assign(f, book, by, plan.Default, t0)
	for b.Loop() {
		plan.Assign(f, book, by, plan.Default, t0)
	}
	b.ReportMetric(float64(len(a.Slots)), "slots")
}

func TestWhatFitsOnlyPaidCapacityIsTakenWithoutADeadlineAndTermsAreNoFallBack(t *testing.T) {
	term := offer("z1", fleet.Reserved, 2)
	term.Type, term.GPU, term.Term = "big", "H100", 30*24*time.Hour
	book := plan.NewBook(&fleet.Markets{AsOf: t0, Offers: []fleet.Offer{offer("z1", fleet.OnDemand, 3), term}})
	s := fleet.Spec{Name: "a", Work: time.Hour, Models: []string{"H100"}, Autonomy: fleet.Act}
	if _, why := plan.Accept(book, s, plan.Default, t0); why == "" {
		t.Error("what is only sold for a term is taken for something to run on")
	}
	mine := paid("cr", "big", 1, 0)
	if _, why := plan.Accept(book, s, plan.Default, t0, mine); why != "" {
		t.Errorf("refused beside paid capacity that fits: %s", why)
	}
	s.Deadline = t0.Add(10 * time.Hour)
	if _, why := plan.Accept(book, s, plan.Default, t0, mine); why == "" {
		t.Error("a deadline is promised on capacity that another may need more")
	}
}

func TestABudgetHoldsWhatStrangersMachinesMayFail(t *testing.T) {
	for share, want := range map[float64]string{0: "spot z1", 0.125: "nothing"} {
		d := newDesk()
		d.offers[1].Marketplace, d.policy.Failures = true, share
		s := *d.job.Spec
		s.Deadline, s.Budget = time.Time{}, fleet.Known(fleet.Dollars(4.2)) // four hours at 1 USD
		d.job.Spec = &s
		if got := did(d.decide()); got != want {
			t.Errorf("with %g kept: %s, want %s: %s", share, got, want, d.decided.Reason)
		}
	}
}

func TestWhoHasItsPlaceBackGivesUpWhatWasToFollowAndWhoWaitsForOneGoesOn(t *testing.T) {
	d := newDesk()
	d.f.Reserved["cr"] = paid("cr", "p3", 1, 0)
	d.holds(d.job, d.of(d.f.Reserved["cr"]), time.Hour)
	d.job.Next = "next"
	d.f.Machines["next"] = &fleet.Instance{Name: "next", ID: "i-next", Workload: "a", Offer: d.offers[1], Phase: fleet.Launched, Bought: d.now, Heard: d.now}
	if got := d.decide(); !got.Keep || got.Stop || got.Plan.Action != "" {
		t.Errorf("back in its place: %+v, want its next machine to be given up", got)
	}
	d = newDesk()
	d.f.Reserved["cr"], d.f.Reserved["other"] = paid("cr", "p3", 1, 0), paid("other", "p3", 1, 0)
	d.holds(d.job, d.of(d.f.Reserved["cr"]), time.Hour)
	d.holds(d.with("b", 4*time.Hour, 0), d.of(d.f.Reserved["other"]), time.Hour)
	d.job.Slot = "other" // which b has, for as long as it likes
	if got := d.decide(); got.Stop || got.Plan.Action != "" {
		t.Errorf("its next place is taken: %+v, want it to go on where it runs", got)
	}
}
