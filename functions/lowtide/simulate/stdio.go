package simulate

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"lowtide/shared/plan/pool"
)

// maxLine bounds one message: nine zones with 7 days of one-minute history are 200 KB.
const maxLine = 64 << 20

type message struct {
	Type string `json:"type"`

	Work     float64   `json:"work_s"`
	Deadline float64   `json:"deadline_s"`
	Delay    float64   `json:"delay_s"`
	Tick     float64   `json:"tick_s"`
	OnDemand float64   `json:"price_od"`
	Spot     float64   `json:"price_spot"`
	History  []float64 `json:"history"`

	Zones []struct {
		Zone      string    `json:"zone"`
		History   []float64 `json:"history"`
		Available bool      `json:"available"`
	} `json:"zones"`

	T           float64 `json:"t"`
	Available   bool    `json:"spot_available"`
	Running     string  `json:"running"`
	RunningZone string  `json:"running_zone"`
	WorkLeft    float64 `json:"work_left_s"`
	Overhead    float64 `json:"overhead_left_s"`
}

var errNoJob = errors.New("a tick came before any job; send a job first")

type answer struct {
	Action string  `json:"action"`
	Zone   *string `json:"zone,omitempty"`
}

// Serve is lowtide's policy under the policy protocol: it reads job and tick messages, one JSON object a line,
// and answers every tick with one line. It returns nil at the end of in. Nothing is learnt from one job for the
// next. A line that is not JSON ends it with an error; a line of an unknown type is skipped.
func Serve(in io.Reader, out, log io.Writer) error {
	s := session{tables: pool.NewTables(tableMemory), log: log}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 1<<16), maxLine)
	w := bufio.NewWriter(out)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		a, err := s.hear(lines.Bytes())
		if err != nil {
			return fmt.Errorf("simulate: line %d: %w", n, err)
		}
		if a == nil {
			continue
		}
		raw, err := json.Marshal(a)
		if err != nil {
			return fmt.Errorf("simulate: line %d: %w", n, err)
		}
		if _, err := w.Write(append(raw, '\n')); err != nil {
			return fmt.Errorf("simulate: answer line %d: %w", n, err)
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("simulate: answer line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("simulate: read: %w", err)
	}
	return nil
}

// Check refuses a job no policy can be asked about, in one line.
func Check(j pool.Job) error {
	for _, x := range []struct {
		name  string
		value float64
		zero  bool // may be 0
	}{{"work", j.Work, false}, {"deadline", j.Deadline, false}, {"delay", j.Delay, true}, {"tick", j.Tick, false}, {"on-demand price", j.OnDemand, false}, {"spot price", j.Spot, false}} {
		if !(x.value > 0 || x.zero && x.value == 0) || math.IsInf(x.value, 0) {
			return fmt.Errorf("%s is %v; it must be a number above 0", x.name, x.value)
		}
	}
	return nil
}

// session is one conversation: the job it is in, and tables, which hold nothing of any job.
type session struct {
	tables *pool.Tables
	rule   pool.Rule
	names  []string // of zones; one empty name for a single pool
	single bool
	log    io.Writer
}

func (s *session) hear(line []byte) (*answer, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(line, &kind); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	if kind.Type != "job" && kind.Type != "tick" {
		return nil, nil
	}
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, fmt.Errorf("a %s that does not read: %w", kind.Type, err)
	}
	if m.Type == "job" {
		return nil, s.job(m)
	}
	return s.tick(m)
}

func (s *session) job(m message) error {
	j := pool.Job{Work: m.Work, Deadline: m.Deadline, Delay: m.Delay, Tick: m.Tick, OnDemand: m.OnDemand, Spot: m.Spot}
	if err := Check(j); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	s.single, s.names = len(m.Zones) == 0, nil
	history := [][]bool{ups(m.History)}
	if s.single {
		s.names = []string{""}
	} else {
		history = nil
	}
	for _, z := range m.Zones {
		s.names, history = append(s.names, z.Zone), append(history, ups(z.History))
		if len(z.History) != len(m.Zones[0].History) {
			return fmt.Errorf("job: zone %q has %d ticks of history and %q %d; histories are equally long", z.Zone, len(z.History), m.Zones[0].Zone, len(m.Zones[0].History))
		}
	}
	if !j.Promisable() {
		fmt.Fprintln(s.log, "job: it cannot make its deadline even on demand; running it on demand, the sooner the better")
		s.rule = pool.Only()
		return nil
	}
	s.rule = pool.New(s.tables, j, history)
	return nil
}

func ups(xs []float64) []bool {
	up := make([]bool, len(xs))
	for i, x := range xs {
		up[i] = x > 0
	}
	return up
}

func (s *session) tick(m message) (*answer, error) {
	if s.rule == nil {
		return nil, errNoJob
	}
	v := pool.View{T: int(m.T), Zone: -1, Work: m.WorkLeft, Warmup: m.Overhead}
	if s.single {
		v.Up = []bool{m.Available}
	}
	if !s.single && len(m.Zones) != len(s.names) {
		return nil, fmt.Errorf("tick %d has %d zones and its job %d", v.T, len(m.Zones), len(s.names))
	}
	for i, z := range m.Zones {
		v.Up = append(v.Up, z.Available)
		if z.Zone == m.RunningZone {
			v.Zone = i
		}
	}
	switch m.Running {
	case "spot":
		v.Mode = pool.Spot
		if s.single {
			v.Zone = 0
		}
		if v.Zone < 0 {
			return nil, fmt.Errorf("tick %d runs in zone %q, which its job does not have", v.T, m.RunningZone)
		}
	case "on_demand":
		v.Mode, v.Zone = pool.OnDemand, -1
	case "idle":
		v.Zone = -1
	default:
		return nil, errors.New(`running is neither "idle", "spot" nor "on_demand"`)
	}
	c := s.rule.Choose(v)
	a := &answer{Action: c.Mode.String()}
	if c.Mode == pool.Spot && !s.single {
		a.Zone = &s.names[c.Zone]
	}
	return a, nil
}
