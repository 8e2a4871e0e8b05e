package plan_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A world is one job on a random market, minute by minute, with a cloud that starts slowly, rejects, refuses and warns
// as it likes, inside the bounds that the policy states. Machines are started, proved, moved and billed as the decider
// and its cloud do it; only the plans are real.
type world struct {
	rng    *rand.Rand
	policy plan.Policy
	spec   fleet.Spec
	zones  []zone
	od     float64
	refuse []bool // by minute: on-demand is refused
	starts time.Duration
	reject float64
	notice time.Duration
	save   time.Duration // that a save takes
}

type zone struct {
	up    []bool // by minute
	price []float64
	speed float64
}

const warmup = 24 * 60 // minutes of market before the job

// minutes that a world lasts after the job began.
func (w *world) minutes() int { return int(w.spec.Deadline.Sub(t0)/time.Minute) + 120 }

func draw(seed uint64) *world {
	r := rand.New(rand.NewPCG(23, seed))
	w := &world{rng: r, od: 3, notice: []time.Duration{0, 30 * time.Second, 2 * time.Minute, 5 * time.Minute}[r.IntN(4)], save: []time.Duration{5, 45}[r.IntN(2)] * time.Second}
	most := []time.Duration{4, 12}[r.IntN(2)] * time.Minute
	w.starts = time.Duration((0.4 + 0.6*r.Float64()) * float64(most))
	w.reject = []float64{0, 0.1}[r.IntN(2)]
	refusal := time.Duration(r.IntN(6)) * time.Minute
	w.policy = plan.Default
	w.policy.Wake = []time.Duration{5, 10}[r.IntN(2)] * time.Minute
	w.policy.StartUp = most * 7 / 10
	// One rejection, a refusal that lasts and the time until it is forgotten, a lost wake, and minutes that are whole here.
	w.policy.StartMax = 2*most + 2*refusal + 5*time.Minute + w.policy.Wake
	work := []time.Duration{2, 5, 12}[r.IntN(3)] * time.Hour
	slack := time.Duration(float64(work) * []float64{0.1, 0.3, 0.8}[r.IntN(3)])
	w.spec = fleet.Spec{
		Name: "job", Work: work, Steps: int64(work / time.Second), Autonomy: fleet.Act, SaveEvery: 10 * time.Minute,
		Deadline: t0.Add(work + slack + w.policy.StartMax + 2*w.policy.Wake + time.Minute),
	}
	n := warmup + w.minutes()
	ratio := []float64{0.12, 0.33, 0.66, 0.95}[r.IntN(4)] // of spot to on-demand; prices lie on a ladder, so that worlds share tables
	for range 1 + r.IntN(3) {
		z := zone{speed: []float64{1, 1, 1.16}[r.IntN(3)]}
		scarce := 1.2 * r.NormFloat64()
		up, age, rung := r.IntN(2) == 0, 0, r.IntN(3)-1
		for range n {
			// Young runs and outages end far sooner than old ones, as on real markets.
			p := 0.03 / (1 + float64(age)/25)
			if sign := map[bool]float64{true: 1, false: -1}[up]; r.Float64() < p*math.Exp(sign*scarce/2) {
				up, age = !up, 0
			}
			age++
			if r.Float64() < 1.0/900 {
				rung = min(max(rung+2*r.IntN(2)-1, -1), 1)
			}
			z.up, z.price = append(z.up, up), append(z.price, w.od*ratio*math.Pow(1.16, float64(rung)))
		}
		w.zones = append(w.zones, z)
	}
	w.refuse = make([]bool, n)
	if refusal > 0 {
		for at := r.IntN(120); at < n; at += 60 + r.IntN(240) {
			for i := at; i < min(n, at+int(refusal/time.Minute)); i++ {
				w.refuse[i] = true
			}
		}
	}
	return w
}

// decide is a policy: what to do now.
type decide func(f *fleet.Fleet, b *plan.Book, now time.Time) plan.Decision

// run is one playing of a world.
type run struct {
	*world
	t        *testing.T
	decide   decide
	f        *fleet.Fleet
	job      *fleet.Workload
	memory   []pool.Memory
	at       int // minute of the market
	now      time.Time
	dice     *rand.Rand
	step     map[string]float64 // work done on a machine's run, s
	rejected bool               // the last machine was
	next     int
	cost     float64
	bought   int
}

func (w *world) play(t *testing.T, d decide) *run {
	r := &run{world: w, t: t, decide: d, f: fleet.New("f", "i"), memory: make([]pool.Memory, len(w.zones)), step: map[string]float64{}, dice: rand.New(rand.NewPCG(29, uint64(w.spec.Work)))}
	r.job = &fleet.Workload{Spec: &w.spec, Phase: fleet.Accepted, Since: t0}
	r.f.Workloads["job"] = r.job
	for r.at = 0; r.at < warmup; r.at++ {
		r.look()
	}
	for ; r.at < warmup+w.minutes() && r.job.Phase == fleet.Accepted; r.at++ {
		r.now = t0.Add(time.Duration(r.at-warmup) * time.Minute)
		r.f.Now = r.now
		r.minute()
	}
	return r
}

func (r *run) look() {
	for z := range r.zones {
		r.memory[z].See(r.zones[z].up[r.at], 60)
	}
}

// offers is the market of this minute.
func (r *run) offers() []fleet.Offer {
	base := fleet.Offer{Cloud: "c", Account: "a", Region: "r", Type: "g1", GPU: "V100", GPUs: 1, Notice: r.notice}
	od := base
	od.Market, od.Hourly = fleet.OnDemand, fleet.Known(fleet.Dollars(r.od))
	out := []fleet.Offer{od}
	for z := range r.zones {
		o := base
		o.Market, o.Zone, o.Hourly = fleet.Spot, fmt.Sprint(z), fleet.Known(fleet.Dollars(r.zones[z].price[r.at]))
		o.Speed, o.Stock = fleet.Known(r.zones[z].speed), fleet.Known(map[bool]int{true: 4}[r.zones[z].up[r.at]])
		out = append(out, o)
	}
	return out
}

func (r *run) book() *plan.Book {
	m := &fleet.Markets{AsOf: r.now, Offers: r.offers(), Pools: map[string]*fleet.PoolPast{}}
	for i, o := range m.Offers[1:] {
		good, seen := r.memory[i].Kept()
		m.Pools[o.Pool()] = &fleet.PoolPast{
			Up: r.memory[i].Up, Since: r.now.Add(-time.Duration(r.memory[i].Age) * time.Second), At: r.now, Good: good, Seen: seen, Usual: r.zones[i].price[r.at],
		}
	}
	return plan.NewBook(m)
}

// minute lets machines work, the market change and the planner look.
func (r *run) minute() {
	r.look()
	changed := r.at == warmup
	for z := range r.zones {
		changed = changed || r.zones[z].up[r.at] != r.zones[z].up[r.at-1] || r.zones[z].price[r.at] != r.zones[z].price[r.at-1]
	}
	if changed {
		r.job.Review = time.Time{}
	}
	for _, name := range fleet.Sorted(r.f.Machines) {
		if m := r.f.Machines[name]; m != nil { // it may have been ended when its successor started
			r.machine(m)
		}
	}
	if r.job.Phase != fleet.Accepted {
		return
	}
	if r.now.Before(r.job.Review) {
		return
	}
	b := r.book()
	d := r.decide(r.f, b, r.now)
	r.job.Review = d.Review
	r.adopt(d)
	if d.Plan.Action == "" && !d.Stop && !d.Keep || r.job.Next == "" && d.Plan.Action != "" {
		return // nothing was decided, or the cloud refused at once
	}
	if again := r.decide(r.f, b, r.now); again.Plan.Action != "" || again.Stop || again.Keep {
		r.t.Errorf("planned twice at %s: first %+v, then %+v", r.now.Sub(t0), d, again)
	}
}

// adopt takes a decision over, as the decider and its cloud do.
func (r *run) adopt(d plan.Decision) {
	switch {
	case d.Keep:
		r.end(r.job.Next)
	case d.Stop:
		r.stop(r.f.Machines[r.job.On])
	case d.Plan.Action == fleet.Launch:
		r.buy(d.Plan)
	}
}

func (r *run) buy(p fleet.Plan) {
	if r.job.Next != "" {
		r.end(r.job.Next)
	}
	for _, o := range p.Offers {
		refused := r.refuse[r.at]
		if o.Market == fleet.Spot {
			var z int
			fmt.Sscan(o.Zone, &z)
			refused = !r.zones[z].up[r.at]
		}
		if refused {
			r.refused(o.Pool())
			continue
		}
		r.next++
		m := &fleet.Instance{Name: fmt.Sprintf("m%d", r.next), Workload: "job", Offer: o, Phase: fleet.Launched, Bought: r.now, Heard: r.now}
		r.f.Machines[m.Name] = m
		r.job.Next, r.job.Waiting = m.Name, time.Time{}
		r.bought++
		return
	}
	r.job.Review = r.now.Add(time.Minute)
}

func (r *run) refused(pool string) {
	x := r.f.Refusals[pool]
	if x == nil {
		x = &fleet.Refusal{Pool: pool}
		r.f.Refusals[pool] = x
	}
	x.Count++
	x.Until = r.now.Add(min(time.Minute<<min(x.Count-1, 2), 4*time.Minute))
}

// machine lets one minute pass on a machine.
func (r *run) machine(m *fleet.Instance) {
	hourly, _ := m.Offer.PerHour()
	r.cost += hourly / 60
	m.Heard = r.now
	spot := m.Offer.Market == fleet.Spot
	var z int
	if spot {
		fmt.Sscan(m.Offer.Zone, &z)
	}
	if m.Run.Phase == fleet.Running {
		r.step[m.Name] += 60 * m.Offer.Speed.Or(1)
		m.Run.Step = int64(r.step[m.Name])
		if m.Run.Step >= r.spec.Steps {
			r.job.Phase, r.job.Ended = fleet.Finished, r.now
			return
		}
		if r.now.Sub(r.job.Saved.At) >= r.spec.SaveEvery {
			r.saved(m)
		}
	}
	if spot && !r.zones[z].up[r.at] {
		r.lost(m)
		return
	}
	if r.job.Next == m.Name && r.now.Sub(m.Bought) >= r.starts {
		if !r.rejected && r.dice.Float64() < r.reject {
			r.rejected = true
			r.refused(m.Offer.Pool())
			r.end(m.Name)
			return
		}
		r.rejected = false
		r.start(m)
	}
}

func (r *run) saved(m *fleet.Instance) {
	r.job.Saved = fleet.Manifest{ID: "x", Epoch: r.job.Epoch, Step: max(m.Run.Step, r.job.Saved.Step), At: r.now, Took: r.save}
	r.job.SaveTook = r.save
}

func (r *run) start(m *fleet.Instance) {
	if on := r.f.Machines[r.job.On]; on != nil {
		r.stop(on)
	}
	r.job.Epoch++
	r.job.On, r.job.Next, r.job.Review = m.Name, "", time.Time{}
	m.Phase, m.ReadyAt = fleet.Verified, r.now
	m.Run = fleet.Run{Epoch: r.job.Epoch, Phase: fleet.Running, Step: r.job.Saved.Step}
	r.step[m.Name] = float64(r.job.Saved.Step)
}

// stop saves and ends what runs.
func (r *run) stop(m *fleet.Instance) {
	r.saved(m)
	r.end(m.Name)
}

// lost is the end of a spot machine: with enough notice nothing is lost. The replacement is planned at the end here, which
// is the worst case.
func (r *run) lost(m *fleet.Instance) {
	if m.Run.Phase == fleet.Running && r.notice >= r.save {
		r.saved(m)
	}
	r.end(m.Name)
}

func (r *run) end(name string) {
	delete(r.f.Machines, name)
	if r.job.On == name {
		r.job.On, r.job.Waiting = "", r.now
	}
	if r.job.Next == name {
		r.job.Next = ""
	}
	r.job.Review = time.Time{}
}

// greedy takes spot when it is to be had and waits when it is not, under the same guard; uniform is Uniform Progress with
// the exit by elapsed time.
func (w *world) simple(uniform bool) decide {
	return func(f *fleet.Fleet, _ *plan.Book, now time.Time) plan.Decision {
		job := f.Workloads["job"]
		d := plan.Decision{Review: now.Add(w.policy.Wake)}
		act := f.Machines[job.Next]
		on := f.Machines[job.On]
		left := job.Left(job.Saved.Step)
		if on != nil {
			left = job.Left(max(job.Saved.Step, on.Run.Step))
		}
		if act == nil {
			act = on
		}
		mode := pool.Idle
		if act != nil {
			mode = map[fleet.Market]pool.Mode{fleet.Spot: pool.Spot, fleet.OnDemand: pool.OnDemand}[act.Offer.Market]
		}
		at := warmup + int(now.Sub(t0)/time.Minute)
		best, least := -1, 0.0
		for z, x := range w.zones {
			r := f.Refusals[w.spot(z, at).Pool()]
			if p := x.price[at] / x.speed; x.up[at] && (best < 0 || p < least) && (r == nil || !now.Before(r.Until)) {
				best, least = z, p
			}
		}
		want := pool.Idle
		until := w.spec.Deadline.Sub(now)
		slack := until - job.Left(job.Saved.Step) - w.policy.StartMax - w.policy.Wake
		switch {
		case slack < 0:
			want = pool.OnDemand
		case uniform:
			j := pool.Job{
				Work: w.spec.Work.Seconds(), Deadline: w.spec.Deadline.Sub(t0).Seconds(), Delay: w.policy.StartUp.Seconds(), Tick: w.policy.Wake.Seconds(), OnDemand: 3, Spot: 1,
			}
			v := pool.View{T: int((now.Sub(t0) + w.policy.Wake - 1) / w.policy.Wake), Up: []bool{best >= 0 || mode == pool.Spot}, Mode: mode, Zone: -1, Work: left.Seconds()}
			if mode == pool.Spot {
				v.Zone = 0
			}
			since := -1
			if mode == pool.OnDemand {
				since = min(int(act.Bought.Sub(t0)/w.policy.Wake), v.T)
			}
			want = pool.UniformSince(j, pool.LeaveElapsed, since).Choose(v).Mode
		case mode != pool.Idle:
			want = mode
		case best >= 0:
			want = pool.Spot
		}
		if slack > 0 && slack < w.policy.Wake {
			d.Review = now.Add(max(slack, time.Second))
		}
		if want == mode || want == pool.Idle {
			return d
		}
		d.Plan = fleet.Plan{Action: fleet.Launch, Workload: "job"}
		if want == pool.OnDemand {
			d.Plan.Offers = []fleet.Offer{w.spot(-1, at)}
		} else {
			d.Plan.Offers = []fleet.Offer{w.spot(best, at)}
		}
		return d
	}
}

// spot is the offer of a zone, or of on-demand for -1.
func (w *world) spot(z, at int) fleet.Offer {
	r := run{world: w, at: at}
	return r.offers()[1+z]
}

func (w *world) ours(by plan.Oracle) decide {
	return func(f *fleet.Fleet, b *plan.Book, now time.Time) plan.Decision {
		return plan.Decide(f, b, by, w.policy, f.Workloads["job"], now)
	}
}

func TestInRandomWorldsNoJobMissesAndThePlansCostLessThanGreedy(t *testing.T) {
	n, memory := 60, 256<<20
	if os.Getenv("LOWTIDE_LONG") != "" {
		n, memory = 10000, 2<<30
	}
	by := pool.Solving{Tables: pool.NewTables(memory)}
	sum := map[string]float64{}
	bought := map[string]int{}
	for seed := range uint64(n) {
		w := draw(seed)
		if _, why := plan.Accept((&run{world: w, at: warmup, now: t0, memory: make([]pool.Memory, len(w.zones))}).book(), w.spec, w.policy, t0); why != "" {
			t.Fatalf("world %d: not promised: %s", seed, why)
		}
		full := w.od * w.spec.Work.Hours()
		for name, d := range map[string]decide{"ours": w.ours(by), "greedy": w.simple(false), "uniform": w.simple(true)} {
			r := w.play(t, d)
			if r.job.Phase != fleet.Finished || r.job.Ended.After(w.spec.Deadline) {
				t.Errorf("world %d: %s missed: %s, ended %s, deadline %s", seed, name, r.job.Phase, r.job.Ended.Sub(t0), w.spec.Deadline.Sub(t0))
			}
			sum[name] += r.cost / full / float64(n)
			bought[name] += r.bought
		}
	}
	t.Logf("%d worlds, cost as a share of on-demand, and machines a job: ours %.4f %.2f, greedy %.4f %.2f, uniform %.4f %.2f; %d tables, %d MB",
		n, sum["ours"], float64(bought["ours"])/float64(n), sum["greedy"], float64(bought["greedy"])/float64(n),
		sum["uniform"], float64(bought["uniform"])/float64(n), by.Count(), by.Bytes()>>20)
	if sum["ours"] > sum["greedy"] {
		t.Errorf("mean cost %.4f of on-demand, greedy's is %.4f", sum["ours"], sum["greedy"])
	}
}
