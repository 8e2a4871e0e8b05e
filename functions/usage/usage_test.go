package usage_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/usage"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type bench struct {
	t    *testing.T
	f    fn.Function
	now  time.Time
	seq  uint64
	last fn.Delivery
}

func newBench(t *testing.T) *bench {
	return &bench{t: t, f: usage.New(store.Memory(), usage.Options{}), now: t0}
}

func (b *bench) again() []events.Event {
	b.t.Helper()
	said, err := b.f.Handle(context.Background(), []fn.Delivery{b.last})
	if err != nil {
		b.t.Fatal(err)
	}
	return said
}

// minute says one measurement and returns the kind of what follows; "" is nothing.
func (b *bench) minute(m events.UtilisationMeasured) events.Fact {
	b.t.Helper()
	b.now, b.seq = b.now.Add(time.Minute), b.seq+1
	b.last = fn.Delivery{Event: events.New("f", "agent", b.now, m), Stream: "T", Seq: b.seq, At: b.now, Attempt: 1}
	if said := b.again(); len(said) > 0 {
		return said[0].Data
	}
	return nil
}

// minutes says the same so often, and lists what follows with the minute it came in.
func (b *bench) minutes(n int, m events.UtilisationMeasured) (out []string) {
	for i := range n {
		if f := b.minute(m); f != nil {
			out = append(out, fmt.Sprintf("%s@%d", f.Kind(), i+1))
		}
	}
	return out
}

func known(v float64) fleet.Maybe[float64] { return fleet.Known(v) }

// measured is a minute of a run whose GPU is read by its own counters, and nothing happens on the machine.
func measured(sm float64, change ...func(*events.UtilisationMeasured)) events.UtilisationMeasured {
	m := events.UtilisationMeasured{
		Machine: "m1", Workload: "w", Epoch: 1, Run: fleet.Running, Over: time.Minute, Source: "gpm",
		GPUs: []events.GPUUse{{
			UUID: "u1", SM: known(sm), Peak: known(sm), DRAM: known(sm / 2), Memory: known(100), Power: known(80 + 600*sm), PCIe: known(0), NVLink: known(0), Processes: known(0),
		}},
		CPU: known(0.01), Disk: known(0), Network: known(0),
	}
	for _, c := range change {
		c(&m)
	}
	return m
}

type change = func(*events.UtilisationMeasured)

func TestNothingForTwoWindowsIsIdleByAllSignals(t *testing.T) {
	const idle = "[workload.idle@20 workload.idle@80]" // said again each hour
	for name, c := range map[string]struct {
		change change
		want   string
	}{
		"nothing at all": {func(*events.UtilisationMeasured) {}, idle},
		"only the driver's samples": {func(m *events.UtilisationMeasured) {
			m.GPUs[0].SM, m.GPUs[0].Active, m.GPUs[0].Peak = fleet.Maybe[float64]{}, known(0), known(0)
		}, idle},
		"memory is held":          {func(m *events.UtilisationMeasured) { m.GPUs[0].Memory = known(40_000) }, idle},
		"downloading":             {func(m *events.UtilisationMeasured) { m.Network = known(20) }, "[workload.underused@60 workload.underused@120]"},
		"reading a disk":          {func(m *events.UtilisationMeasured) { m.Disk = known(200) }, "[workload.underused@60 workload.underused@120]"},
		"preparing data":          {func(m *events.UtilisationMeasured) { m.CPU = known(0.6) }, "[workload.underused@60 workload.underused@120]"},
		"memory traffic alone":    {func(m *events.UtilisationMeasured) { m.GPUs[0].DRAM = known(0.3) }, "[]"},
		"a little memory traffic": {func(m *events.UtilisationMeasured) { m.GPUs[0].DRAM = known(0.05) }, "[workload.underused@60 workload.underused@120]"},
		"copies over PCIe":        {func(m *events.UtilisationMeasured) { m.GPUs[0].PCIe = known(500) }, "[workload.underused@60 workload.underused@120]"},
		"one burst each minute":   {func(m *events.UtilisationMeasured) { m.GPUs[0].Peak = known(0.9) }, "[workload.underused@60 workload.underused@120]"},
		"saving":                  {func(m *events.UtilisationMeasured) { m.Busy = "save" }, "[]"},
		"restoring":               {func(m *events.UtilisationMeasured) { m.Run = fleet.Starting }, "[]"},
		"no GPU can be read":      {func(m *events.UtilisationMeasured) { m.GPUs, m.Source = nil, "" }, "[]"},
		"utilisation not supported": {func(m *events.UtilisationMeasured) {
			m.GPUs[0].SM, m.GPUs[0].Peak = fleet.Maybe[float64]{}, fleet.Maybe[float64]{}
		}, "[]"},
		"one of two GPUs in the dark": {func(m *events.UtilisationMeasured) { m.GPUs = append(m.GPUs, events.GPUUse{UUID: "u2"}) }, "[]"},
		"one of two GPUs at work":     {func(m *events.UtilisationMeasured) { m.GPUs = append(m.GPUs, measured(0.8).GPUs[0]) }, "[]"},
		"nobody's machine":            {func(m *events.UtilisationMeasured) { m.Workload = "" }, "[]"},
		"a few seconds":               {func(m *events.UtilisationMeasured) { m.Over = 5 * time.Second }, "[]"},
	} {
		if got := fmt.Sprint(newBench(t).minutes(121, measured(0, c.change))); got != c.want {
			t.Errorf("%s: said %s, want %s", name, got, c.want)
		}
	}
}

func TestHeldIsIdleWithSomethingToComeBackTo(t *testing.T) {
	for held, change := range map[bool]change{
		true: func(m *events.UtilisationMeasured) { m.GPUs[0].Processes = known(1) }, false: func(*events.UtilisationMeasured) {},
	} {
		b := newBench(t)
		b.minutes(19, measured(0, change))
		if f, ok := b.minute(measured(0, change)).(events.WorkloadIdle); !ok || f.Held != held || !f.Since.Equal(t0.Add(time.Minute)) {
			t.Errorf("held %v: got %+v", held, f)
		}
	}
}

func TestOneMinuteOfWorkEndsAnIdleSpellAndStartsItsCountAnew(t *testing.T) {
	b := newBench(t)
	if got := fmt.Sprint(b.minutes(25, measured(0)), b.minutes(1, measured(0.5)), b.minutes(19, measured(0)), b.minutes(1, measured(0))); got != "[workload.idle@20] [workload.busy@1] [] [workload.idle@1]" {
		t.Errorf("said %s", got)
	}
}

func TestMinutesThatWereNotReadDoNotMakeAWorkloadIdle(t *testing.T) {
	dark := measured(0, func(m *events.UtilisationMeasured) { m.GPUs = nil })
	b := newBench(t)
	b.minutes(15, measured(0))
	b.now = b.now.Add(30 * time.Minute) // the agent was not heard
	if got := fmt.Sprint(b.minutes(15, measured(0))); got != "[]" {
		t.Errorf("30 minutes of silence between two spells of 15: said %s", got)
	}
	b = newBench(t)
	b.minutes(18, measured(0))
	if got := fmt.Sprint(b.minutes(2, dark), b.minutes(2, measured(0))); got != "[] [workload.idle@2]" {
		t.Errorf("two dark minutes within: said %s, want idle once 20 quiet ones were seen", got)
	}
	b = newBench(t)
	b.minutes(25, measured(0))
	if got := fmt.Sprint(b.minutes(10, dark)); got != "[]" {
		t.Errorf("what cannot be seen changes nothing: said %s", got)
	}
}

func TestLittleUseForAnHourIsUnderusedAndNamesWhatIsEnough(t *testing.T) {
	b := newBench(t)
	little := measured(0.06, func(m *events.UtilisationMeasured) { m.GPUs[0].Memory = known(9_000) })
	if got := fmt.Sprint(b.minutes(50, little)); got != "[]" {
		t.Fatalf("said %s before the hour was over", got)
	}
	var f events.WorkloadUnderused
	for range 15 {
		if u, ok := b.minute(little).(events.WorkloadUnderused); ok {
			f = u
		}
	}
	if f.Needs != 0.13 || f.Memory != 11 {
		t.Errorf("got %+v, want twice the 6 %% and 20 %% more than 9 GB", f)
	}
	if got := fmt.Sprint(b.minutes(10, measured(0.2))); got != "[]" {
		t.Errorf("20 %% is not enough to call it busy: said %s", got)
	}
	if got := b.minutes(15, measured(0.9)); len(got) != 1 || got[0][:13] != "workload.busy" {
		t.Errorf("90 %% for a quarter of an hour: said %s", got)
	}
	if got := fmt.Sprint(b.minutes(200, measured(0.5))); got != "[]" {
		t.Errorf("a busy workload was called %s", got)
	}
}

func TestTheDriversSamplesAreHonestOnlyWhenTheyAreLow(t *testing.T) {
	sampled := func(active float64) events.UtilisationMeasured {
		return measured(0, func(m *events.UtilisationMeasured) {
			g := &m.GPUs[0]
			g.SM, g.Active, g.Peak, g.DRAM = fleet.Maybe[float64]{}, known(active), known(active), known(0.1)
		})
	}
	if got := fmt.Sprint(newBench(t).minutes(120, sampled(1))); got != "[]" {
		t.Errorf("one busy multiprocessor reads 100 %%: said %s", got)
	}
	if got := fmt.Sprint(newBench(t).minutes(61, sampled(0.1))); got != "[workload.underused@60]" {
		t.Errorf("a kernel in 10 %% of the time cannot be more than 10 %% of use: said %s", got)
	}
}

func TestPowerAboveTheCardsOwnRestIsWorkThatNoCounterShows(t *testing.T) {
	b := newBench(t)
	b.minutes(10, measured(0)) // 80 W at rest
	hot := measured(0, func(m *events.UtilisationMeasured) { m.GPUs[0].Power = known(140) })
	if got := fmt.Sprint(b.minutes(40, hot)); got != "[]" {
		t.Errorf("140 W of a card that rests at 80: said %s", got)
	}
}

func TestANewRunIsJudgedAnew(t *testing.T) {
	b := newBench(t)
	b.minutes(15, measured(0))
	next := measured(0, func(m *events.UtilisationMeasured) { m.Epoch = 2 })
	if got := fmt.Sprint(b.minutes(19, next), b.minutes(1, next)); got != "[] [workload.idle@1]" {
		t.Errorf("said %s", got)
	}
}

func TestARepeatedMeasurementCountsOnceAndIsAnsweredAgain(t *testing.T) {
	b := newBench(t)
	b.minutes(10, measured(0))
	for range 30 {
		if said := b.again(); len(said) > 0 {
			t.Fatalf("one minute, delivered 30 times, made it %s", said[0].Data.Kind())
		}
	}
	b.minutes(9, measured(0))
	first := b.minute(measured(0))
	if said := b.again(); len(said) != 1 || fmt.Sprint(said[0].Data) != fmt.Sprint(first) {
		t.Errorf("after a crash it said %v, want %v again", said, first)
	}
}
