package plan_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
)

// desk is a fleet with one workload, and a market, for one decision.
type desk struct {
	f       *fleet.Fleet
	job     *fleet.Workload
	now     time.Time
	policy  plan.Policy
	offers  []fleet.Offer
	pools   map[string]*fleet.PoolPast
	cold    bool
	decided plan.Decision
}

func offer(zone string, m fleet.Market, usd float64) fleet.Offer {
	return fleet.Offer{
		Cloud: "fake", Account: "a", Region: "r", Zone: zone, Type: "p3", Market: m, GPU: "V100", GPUs: 1, Hourly: fleet.Known(fleet.Dollars(usd)),
		Notice: 2 * time.Minute,
	}
}

// newDesk is a job of four hours, due in eight; on-demand at 3, spot at 1 that has been to be had for a day.
func newDesk() *desk {
	d := &desk{f: fleet.New("f", "i"), now: t0, policy: plan.Default, pools: map[string]*fleet.PoolPast{}}
	d.job = &fleet.Workload{
		Spec:  &fleet.Spec{Name: "a", Work: 4 * time.Hour, Steps: 1000, Deadline: t0.Add(8 * time.Hour), Autonomy: fleet.Act, SaveEvery: 10 * time.Minute},
		Phase: fleet.Accepted, Since: t0,
	}
	d.f.Workloads["a"] = d.job
	d.offers = []fleet.Offer{offer("z1", fleet.OnDemand, 3), d.sells("z1", 1, 1, true, 24*time.Hour)}
	return d
}

// sells is a spot pool: its price, its usual price, whether it is to be had, and since when that is so.
func (d *desk) sells(zone string, usd, usual float64, up bool, since time.Duration) fleet.Offer {
	o := offer(zone, fleet.Spot, usd)
	o.Stock = fleet.Known(map[bool]int{true: 3}[up])
	good := map[bool]float64{true: 20}[up]
	d.pools[o.Pool()] = &fleet.PoolPast{Up: up, Since: d.now.Add(-since), At: d.now, Good: good, Seen: 20, Usual: usual}
	return o
}

// runs puts the workload on a machine of an offer, for an hour now.
func (d *desk) runs(o fleet.Offer, step int64) *fleet.Instance {
	m := &fleet.Instance{
		Name: "m1", ID: "i1", Workload: "a", Offer: o, Phase: fleet.Verified, Bought: d.now.Add(-time.Hour), ReadyAt: d.now.Add(-50 * time.Minute), Heard: d.now,
		Run: fleet.Run{Epoch: 1, Phase: fleet.Running, Step: step},
	}
	d.job.On, d.job.Epoch, d.job.Saved = m.Name, 1, fleet.Manifest{ID: "s", Epoch: 1, Step: step}
	d.f.Machines[m.Name] = m
	return m
}

// leaves is a machine at 3 USD an hour, with a checkpoint of tens of gigabytes at 0.1 USD each, where spot at 0.5 is
// to be had in another region; the work is some hours.
func (d *desk) leaves(hours int64, gigabytes int64) *fleet.Offer {
	m := d.runs(offer("z1", fleet.Spot, 1.9), 1000-hours*1000/10)
	d.job.Spec.Work, d.job.Spec.Deadline = 10*time.Hour, d.now.Add(14*time.Hour)
	m.Offer.Egress = fleet.Known(fleet.Dollars(0.1))
	d.job.Saved.Bytes = gigabytes * 1e9
	there := d.sells("z2", 0.5, 0.5, true, 24*time.Hour)
	past := d.pools[there.Pool()]
	there.Region = "r2"
	d.pools[there.Pool()] = past
	d.offers = []fleet.Offer{d.offers[0], there}
	return &m.Offer
}

func (d *desk) decide() plan.Decision {
	var by plan.Oracle = pool.Solving{Tables: pool.NewTables(64 << 20)}
	if d.cold {
		by = pool.NewTables(64 << 20)
	}
	book := plan.NewBook(&fleet.Markets{AsOf: d.now, Offers: d.offers, Pools: d.pools})
	d.decided = plan.Decide(d.f, book, by, d.policy, d.job, d.now)
	return d.decided
}

// did is a decision in a word or two: what is bought where, or what is done instead.
func did(d plan.Decision) string {
	switch {
	case d.Plan.Action == fleet.Launch:
		return string(d.Plan.Offers[0].Market) + " " + d.Plan.Offers[0].Zone
	case d.Stop:
		return "stop"
	case d.Keep:
		return "keep"
	}
	return "nothing"
}

func TestWithADeadline(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*desk)
		want   string
		say    string
	}{
		"old cheap spot is taken":      {func(*desk) {}, "spot z1", "is expected to cost"},
		"dear spot is not":             {func(d *desk) { d.offers[1] = d.sells("z1", 3.4, 3.4, true, 24*time.Hour) }, "on_demand z1", "on demand is expected to cost"},
		"the older of two equals":      {func(d *desk) { d.offers = append(d.offers, d.sells("z0", 1, 1, true, 5*time.Minute)) }, "spot z1", "to be had for 24h"},
		"the cheaper of two old ones":  {func(d *desk) { d.offers = append(d.offers, d.sells("z0", 0.6, 0.6, true, 24*time.Hour)) }, "spot z0", "fake/z0 is expected"},
		"what has just refused is not": {func(d *desk) { d.refuse("z1") }, "nothing", "waiting is expected"},
		"waits while there is slack":   {func(d *desk) { d.offers[1] = d.sells("z1", 1, 1, false, 10*time.Minute) }, "nothing", "waiting is expected"},
		"an old outage is not waited for": {func(d *desk) {
			d.offers[1] = d.sells("z1", 1, 1, false, 70*time.Hour)
			d.job.Spec = d.due(5*time.Hour + 10*time.Minute)
		}, "on_demand z1", "on demand is expected"},
		"the guard buys on demand": {func(d *desk) { d.job.Spec = d.due(4*time.Hour + 30*time.Minute) }, "on_demand z1", "guard: "},
		"the guard without on-demand takes spot": {func(d *desk) {
			d.job.Spec, d.offers = d.due(4*time.Hour+30*time.Minute), d.offers[1:]
		}, "spot z1", "no on-demand is on offer"},
		"nothing on offer is said":    {func(d *desk) { d.job.Spec, d.offers = d.due(4*time.Hour+30*time.Minute), nil }, "nothing", "nothing is on offer"},
		"what runs on old spot stays": {func(d *desk) { d.runs(d.offers[1], 300) }, "nothing", "is expected to cost"},
		"a much cheaper pool is a move": {func(d *desk) {
			d.runs(d.offers[1], 300)
			d.offers = append(d.offers, d.sells("z2", 0.4, 0.4, true, 24*time.Hour))
		}, "spot z2", "paid back in"},
		"a little cheaper one is not": {func(d *desk) {
			d.runs(d.offers[1], 300)
			d.offers = append(d.offers, d.sells("z2", 0.95, 0.95, true, 24*time.Hour))
		}, "nothing", "is expected to cost"},
		"spot bought dear is not bought anew where it has become cheaper": {func(d *desk) {
			d.runs(offer("z1", fleet.Spot, 2.8), 300)
		}, "nothing", "fake/z1 is expected"},
		"spot that pays the present price is left when that rises": {func(d *desk) {
			d.runs(d.offers[1], 300).Offer.Floats = true
			d.offers[1] = d.sells("z1", 2.5, 1, true, 24*time.Hour)
			d.offers = append(d.offers, d.sells("z2", 1, 1, true, 24*time.Hour))
		}, "spot z2", "paid back in"},
		"spot that keeps its price stays": {func(d *desk) {
			d.runs(d.offers[1], 300)
			d.offers[1] = d.sells("z1", 2.5, 1, true, 24*time.Hour)
			d.offers = append(d.offers, d.sells("z2", 1, 1, true, 24*time.Hour))
		}, "nothing", "fake/z1 is expected"},
		"a transfer is paid out of what a move saves": {func(d *desk) { d.leaves(5, 20) }, "spot z2", "2.00 USD of it for the transfer"},
		"a dear one is not paid":                      {func(d *desk) { d.leaves(5, 60) }, "nothing", ""},
		"of what is not priced it is said":            {func(d *desk) { d.leaves(5, 60).Egress = fleet.Maybe[fleet.Money]{} }, "spot z2", "; transfer not priced"},
		"within the minimum stay nothing moves": {func(d *desk) {
			d.runs(d.offers[1], 300).ReadyAt = d.now.Add(-5 * time.Minute)
			d.offers = append(d.offers, d.sells("z2", 0.4, 0.4, true, 24*time.Hour))
		}, "nothing", "it stays 20m at least"},
		"on demand is left for old spot": {func(d *desk) { d.runs(d.offers[0], 300) }, "spot z1", "is expected to cost"},
		"on demand is not left for a spot minute": {func(d *desk) {
			d.runs(d.offers[0], 700)
			d.job.Spec = d.due(2 * time.Hour)
			d.offers[1] = d.sells("z1", 2.6, 2.6, true, time.Minute)
			d.pools[d.offers[1].Pool()].Good = 4 // of 20 hours
		}, "nothing", "on demand is expected"},
		"with much slack on-demand is given up to wait": {func(d *desk) {
			d.runs(d.offers[0], 500)
			d.job.Spec = d.due(40 * time.Hour)
			d.offers[1] = d.sells("z1", 0.5, 0.5, false, 30*time.Minute)
		}, "stop", "waiting is expected"},
		"but not without leave": {func(d *desk) {
			d.runs(d.offers[0], 500)
			d.job.Spec = d.due(40 * time.Hour)
			d.job.Spec.Autonomy = fleet.Suggest
			d.offers[1] = d.sells("z1", 0.5, 0.5, false, 30*time.Minute)
		}, "nothing", "waiting is expected"},
		"a move off on-demand that comes too late is given up": {func(d *desk) {
			d.runs(d.offers[0], 100)
			d.job.Next = "m2"
			d.f.Machines["m2"] = &fleet.Instance{Name: "m2", Workload: "a", Offer: d.offers[1], Phase: fleet.Launched, Bought: d.now}
			d.job.Spec = d.due(4 * time.Hour)
		}, "keep", "goes on on demand"},
		"what is made ready is waited for": {func(d *desk) {
			d.job.Next = "m2"
			d.f.Machines["m2"] = &fleet.Instance{Name: "m2", Workload: "a", Offer: d.offers[1], Phase: fleet.Launched, Bought: d.now}
		}, "nothing", "made ready"},
		"a halted fleet buys nothing":      {func(d *desk) { d.f.Halted = "panic" }, "nothing", "panic"},
		"cold, what runs goes on":          {func(d *desk) { d.cold = true; d.runs(d.offers[0], 300) }, "nothing", "while the expected costs are computed"},
		"cold, spot is taken by even pace": {func(d *desk) { d.cold = true }, "spot z1", "even pace"},
		"cold, the guard is what it is":    {func(d *desk) { d.cold = true; d.job.Spec = d.due(4*time.Hour + 30*time.Minute) }, "on_demand z1", "guard: "},
		"a faster machine is worth its price": {func(d *desk) {
			o := d.sells("z2", 1.5, 1.5, true, 24*time.Hour)
			o.Speed = fleet.Known(2.0)
			d.offers = append(d.offers, o)
		}, "spot z2", "fake/z2 is expected"},
		"slow starts make the guard step in": {func(d *desk) {
			d.job.Spec = d.due(5 * time.Hour)
			d.f.StartUps["fake"] = &fleet.StartUp{Boot: fleet.Took{Count: 5, Mean: 30 * time.Minute, Most: 30 * time.Minute}}
		}, "on_demand z1", "guard: "},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk()
			x.change(d)
			got := d.decide()
			if did(got) != x.want || !strings.Contains(got.Reason, x.say) {
				t.Errorf("got %s, want %s, saying %q\n%s", did(got), x.want, x.say, got.Reason)
				for _, o := range got.Options {
					t.Logf("%+v", o)
				}
			}
			if !got.Review.After(d.now) {
				t.Errorf("looks again at %s, now is %s", got.Review, d.now)
			}
		})
	}
}

// refuse makes a pool of spot refuse for a while.
func (d *desk) refuse(zone string) {
	pool := offer(zone, fleet.Spot, 1).Pool()
	d.f.Refusals[pool] = &fleet.Refusal{Pool: pool, Count: 1, Until: d.now.Add(time.Minute), Why: "no_capacity"}
}

// due is the job with another deadline.
func (d *desk) due(in time.Duration) *fleet.Spec {
	s := *d.job.Spec
	s.Deadline = d.now.Add(in)
	return &s
}

func TestBestEffortTakesTheCheapestUsefulHourAndWaitsForItsUsualPrice(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*desk)
		want   string
		say    string
	}{
		"spot at its usual price":                     {func(*desk) {}, "spot z1", "cheapest useful hours"},
		"spot a little above":                         {func(d *desk) { d.offers[1] = d.sells("z1", 1.2, 1, true, 24*time.Hour) }, "spot z1", "cheapest useful hours"},
		"spot far above it":                           {func(d *desk) { d.offers[1] = d.sells("z1", 1.5, 1, true, 24*time.Hour) }, "nothing", "after 24h0m more, what there is"},
		"far above it for longer than a day":          {func(d *desk) { d.offers[1] = d.sells("z1", 1.5, 1, true, 24*time.Hour); d.wait(25 * time.Hour) }, "spot z1", "cheapest useful hours"},
		"spot that is away":                           {func(d *desk) { d.offers[1] = d.sells("z1", 1, 1, false, time.Hour) }, "nothing", "waiting for spot at its usual price"},
		"spot that stays away":                        {func(d *desk) { d.offers[1] = d.sells("z1", 1, 1, false, 30*time.Hour); d.wait(25 * time.Hour) }, "on_demand z1", "cheapest useful hours"},
		"where no spot is sold":                       {func(d *desk) { d.offers = d.offers[:1] }, "on_demand z1", "cheapest useful hours"},
		"on-demand that is cheaper than spot":         {func(d *desk) { d.offers[0] = offer("z1", fleet.OnDemand, 0.9) }, "on_demand z1", "cheapest useful hours"},
		"nothing at all":                              {func(d *desk) { d.offers = nil }, "nothing", "nothing is to be had"},
		"a young pool that is a little cheaper loses": {func(d *desk) { d.offers = append(d.offers, d.sells("z0", 0.99, 0.99, true, 0)) }, "spot z1", ""},
		"what runs goes on":                           {func(d *desk) { d.runs(d.offers[1], 100); d.offers[1] = d.sells("z1", 2.9, 1, true, 24*time.Hour) }, "nothing", "it runs"},
		"a much cheaper pool is a move": {func(d *desk) {
			d.runs(d.offers[1], 100)
			d.offers = append(d.offers, d.sells("z2", 0.4, 0.4, true, 24*time.Hour))
		}, "spot z2", "paid back in"},
		"on-demand is left for spot": {func(d *desk) { d.runs(d.offers[0], 100) }, "spot z1", "paid back in"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk()
			s := *d.job.Spec
			s.Deadline = time.Time{}
			d.job.Spec = &s
			x.change(d)
			if got := d.decide(); did(got) != x.want || !strings.Contains(got.Reason, x.say) {
				t.Errorf("got %s, want %s, saying %q\n%s", did(got), x.want, x.say, got.Reason)
				for _, o := range got.Options {
					t.Logf("%+v", o)
				}
			}
		})
	}
}

// wait lets the job have waited for so long.
func (d *desk) wait(since time.Duration) {
	d.job.Since = d.now.Add(-since)
	d.job.Waiting = d.job.Since
}

func TestADecisionShowsEveryOptionWithItsCostItsAgeAndWhyItLost(t *testing.T) {
	d := newDesk()
	d.offers = append(d.offers, d.sells("z2", 1.2, 1.2, true, time.Hour))
	got := d.decide()
	if len(got.Options) != 4 {
		t.Fatalf("%d options, want two pools, waiting and on demand: %+v", len(got.Options), got.Options)
	}
	seen := map[string]plan.Option{}
	last := 0.0
	for i, o := range got.Options {
		cost, known := o.Expected.Get()
		if !known || cost < last || (i == 0) != o.Chosen || o.Why == "" {
			t.Errorf("option %d: %+v, want rising costs, the first chosen, and a reason each", i, o)
		}
		last, seen[o.What] = cost, o
	}
	old, young := seen["p3 spot fake/z1"], seen["p3 spot fake/z2"]
	if old.Since != 24*time.Hour || young.Since != time.Hour || old.Lost <= 0 || young.Lost <= old.Lost {
		t.Errorf("an old pool %+v and a young one %+v, want their ages, and the young one likelier to go", old, young)
	}
	if seen["on demand"].Hourly != 3 || seen["waiting"].Hourly != 0 {
		t.Errorf("got %+v", seen)
	}
	d.job.Next = "m2"
	d.f.Machines["m2"] = &fleet.Instance{Name: "m2", Workload: "a", Offer: d.offers[2], Phase: fleet.Ordered}
	if late := d.decide(); len(late.Options) != 4 || did(late) != "nothing" || !strings.Contains(late.Reason, "ordered or proposed: p3 spot fake/z2") {
		t.Errorf("while a machine is ordered: %s, %s with %d options", did(late), late.Reason, len(late.Options))
	}
	if sc := got.Plan.Score; sc.RunnerUp == "" || !strings.Contains(sc.WhyLost, "more until done") || !strings.Contains(got.Reason, sc.RunnerUp) {
		t.Errorf("score %+v, want the runner-up and what it would cost more", sc)
	}
}

func TestOneLaunchAtATimeAsksAPoolThatRefused(t *testing.T) {
	d := newDesk()
	for _, name := range []string{"b", "c"} {
		w, s := *d.job, *d.job.Spec
		s.Name, w.Spec = name, &s
		d.f.Workloads[name] = &w
	}
	pool := d.offers[1].Pool()
	plans := func() (bought []string) {
		book := plan.NewBook(&fleet.Markets{AsOf: d.now, Offers: d.offers, Pools: d.pools})
		for _, x := range plan.Make(d.f, book, pooled, d.policy, d.now) {
			if x.Plan.Action == fleet.Launch {
				bought = append(bought, x.Workload+" "+string(x.Plan.Offers[0].Market))
			} else if !strings.Contains(x.Reason, "another workload is asking") {
				t.Errorf("%s: %s", x.Workload, x.Reason)
			}
		}
		return bought
	}
	for _, x := range []struct {
		what    string
		refusal fleet.Refusal
		want    string
	}{
		{"it refused", fleet.Refusal{Count: 1, Why: "no_capacity", Until: d.now}, "a spot"},
		{"it has sold since", fleet.Refusal{Count: 1, Until: d.now}, "a spot, b spot, c spot"},
	} {
		x.refusal.Pool = pool
		d.f.Refusals[pool] = &x.refusal
		if got := strings.Join(plans(), ", "); got != x.want {
			t.Errorf("%s: got %s, want %s", x.what, got, x.want)
		}
	}
	// Its plan is open: the others wait for what comes of it.
	d.f.Refusals[pool].Why = "no_capacity"
	d.f.Plans["p1"] = &fleet.Plan{ID: "p1", Action: fleet.Launch, Approved: true, Workload: "a", Offers: d.offers[1:]}
	delete(d.f.Workloads, "a")
	if got := plans(); len(got) != 0 {
		t.Errorf("got %s, want none", got)
	}
}

var pooled = pool.Solving{Tables: pool.NewTables(64 << 20)}

func TestWhereNoWorkIsLeftTheSumsAreStillNumbers(t *testing.T) {
	d := newDesk() // the job made all of its steps, and failed before it could say that it was done
	d.job.Spec.Deadline = time.Time{}
	d.job.Saved, d.job.Step, d.job.Epoch = fleet.Manifest{ID: "s", Epoch: 1, Step: 1000}, 1000, 1
	got := d.decide()
	if strings.Contains(got.Reason, "NaN") || got.Plan.Action != fleet.Launch {
		t.Errorf("decided %q with %+v, want a last start for a sum of money", got.Reason, got.Plan.Action)
	}
	for _, o := range got.Options {
		if usd, known := o.Expected.Get(); known && math.IsNaN(usd) {
			t.Errorf("%s is expected to cost %v", o.What, usd)
		}
	}
}
