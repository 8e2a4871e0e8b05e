package simulate_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"lowtide/functions/lowtide/simulate"
	"lowtide/shared/plan/pool"
)

// The worked example of the protocol: spot if up, else wait, under the guard.
func TestTheWorkedExampleCostsWhatItSays(t *testing.T) {
	j := pool.Job{Work: 2400, Deadline: 5000, Delay: 300, Tick: 600, OnDemand: 3.06, Spot: 0.9731}
	up := []bool{true, true, false, false, true, true, true, true}
	up = append([]bool{false}, up...)
	got := simulate.Play(j, pool.Guarded(j, pool.SlackWait(j, -1)), [][]bool{up}, 0)
	if math.Abs(simulate.Normal(j, got.Cost)-0.9090) > 5e-5 || got.Finish != 4800 || got.Missed {
		t.Errorf("got %+v, normalised %.4f; want 0.9090, done at 4800 s, on the deadline", got, simulate.Normal(j, got.Cost))
	}
}

const zonesJob = `{"type":"job","work_s":1800,"deadline_s":4800,"delay_s":300,"tick_s":600,"price_od":3.06,"price_spot":0.9731,"zones":[{"zone":"a","history":[0,1,1]},{"zone":"b","history":[1,0,0]}]}`

func TestEveryTickIsAnsweredInOneLineAndNothingElse(t *testing.T) {
	in := strings.Join([]string{
		`{"type":"hello"}`, zonesJob,
		`{"type":"tick","t":0,"zones":[{"zone":"a","available":true},{"zone":"b","available":false}],"running":"idle","running_zone":"","work_left_s":1800,"overhead_left_s":0}`,
		`{"type":"tick","t":1,"zones":[{"zone":"a","available":false},{"zone":"b","available":false}],"running":"on_demand","running_zone":"","work_left_s":1500,"overhead_left_s":0}`,
	}, "\n") + "\n"
	var out, log bytes.Buffer
	if err := simulate.Serve(strings.NewReader(in), &out, &log); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("got %d answers, want 2: %q", len(lines), out.String())
	}
	if lines[0] != `{"action":"spot","zone":"a"}` {
		t.Errorf("got %s, want spot in the only zone up", lines[0])
	}
}

func TestABrokenConversationEndsWithTheLineAndTheReason(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"{\n", "line 1: not a JSON object"},
		{`{"type":"tick","t":0,"running":"idle"}` + "\n", "before any job"},
		{`{"type":"job","work_s":0,"deadline_s":4800,"delay_s":300,"tick_s":600,"price_od":3,"price_spot":1}` + "\n", "work is 0"},
		{zonesJob + "\n" + `{"type":"tick","t":0,"zones":[],"running":"idle"}` + "\n", "0 zones and its job 2"},
	} {
		err := simulate.Serve(strings.NewReader(c.in), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q", c.in, err, c.want)
		}
	}
}

// over plays a rule through the protocol.
type over struct {
	t    *testing.T
	ask  *io.PipeWriter
	hear *json.Decoder
}

func (o over) Choose(v pool.View) pool.Choice {
	zones := []map[string]any{}
	for z, up := range v.Up {
		zones = append(zones, map[string]any{"zone": fmt.Sprint("z", z), "available": up})
	}
	m := map[string]any{"type": "tick", "t": v.T, "running": v.Mode.String(), "work_left_s": v.Work, "overhead_left_s": v.Warmup}
	if len(v.Up) == 1 {
		m["spot_available"] = v.Up[0]
	} else {
		m["zones"], m["running_zone"] = zones, ""
		if v.Mode == pool.Spot {
			m["running_zone"] = fmt.Sprint("z", v.Zone)
		}
	}
	if err := json.NewEncoder(o.ask).Encode(m); err != nil {
		o.t.Fatal(err)
	}
	var a struct{ Action, Zone string }
	if err := o.hear.Decode(&a); err != nil {
		o.t.Fatal(err)
	}
	switch a.Action {
	case "spot":
		zone := 0
		if len(v.Up) > 1 {
			fmt.Sscanf(a.Zone, "z%d", &zone)
		}
		return pool.Choice{Mode: pool.Spot, Zone: zone}
	case "on_demand":
		return pool.Choice{Mode: pool.OnDemand, Zone: -1}
	}
	return pool.Choice{Mode: pool.Idle, Zone: -1}
}

func TestOverTheProtocolThePlannerDecidesAsItDoesInside(t *testing.T) {
	j := pool.Job{Work: 6 * 3600, Deadline: 9 * 3600, Delay: 700, Tick: 300, OnDemand: 3, Spot: 1}
	for zones := 1; zones <= 3; zones++ {
		up := make([][]bool, zones)
		for z := range up {
			for i := range 600 {
				up[z] = append(up[z], (i*i/97+z*31+i/(20+7*z))%3 > 0)
			}
		}
		start := 300
		history := simulate.History(up, start, j.Tick)
		want := simulate.Play(j, pool.New(pool.NewTables(1<<28), j, history), up, start)

		inR, inW := io.Pipe()
		outR, outW := io.Pipe()
		served := make(chan error, 1)
		go func() {
			err := simulate.Serve(inR, outW, io.Discard)
			outW.CloseWithError(err)
			served <- err
		}()
		m := map[string]any{"type": "job", "work_s": j.Work, "deadline_s": j.End(), "delay_s": j.Delay, "tick_s": j.Tick, "price_od": j.OnDemand, "price_spot": j.Spot}
		bits := func(h []bool) (out []int) {
			for _, b := range h {
				out = append(out, map[bool]int{true: 1}[b])
			}
			return out
		}
		if zones == 1 {
			m["history"] = bits(history[0])
		} else {
			var zs []map[string]any
			for z, h := range history {
				zs = append(zs, map[string]any{"zone": fmt.Sprint("z", z), "history": bits(h)})
			}
			m["zones"] = zs
		}
		if err := json.NewEncoder(inW).Encode(m); err != nil {
			t.Fatal(err)
		}
		got := simulate.Play(j, over{t, inW, json.NewDecoder(outR)}, up, start)
		inW.Close()
		if err := <-served; err != nil {
			t.Errorf("%d zones: end of stdin: got %v, want a clean end", zones, err)
		}
		if got != want {
			t.Errorf("%d zones: got %+v, want %+v", zones, got, want)
		}
		if got.Missed || got.Invalid > 0 {
			t.Errorf("%d zones: %+v", zones, got)
		}
	}
}
