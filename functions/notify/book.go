package notify

import (
	"path"
	"slices"
	"time"

	"lowtide/shared/fleet"
)

// Book is all that notify knows of one fleet: who is who, and the incidents. Its fold alone writes it.
type Book struct {
	Applied   fleet.Position       `json:"applied"`
	Fleet     string               `json:"fleet"`
	Now       time.Time            `json:"now"`
	Behind    bool                 `json:"behind,omitempty"` // facts of the past are being read up: nothing is shown
	Next      int                  `json:"next"`             // number of the last incident
	Machines  map[string]*Machine  `json:"machines"`
	Works     map[string]*Work     `json:"works"`
	Incidents map[int]*Incident    `json:"incidents"` // open ones, and closed ones for a day
	Silences  map[string]*Silence  `json:"silences,omitempty"`
	Decided   map[string]*Decision `json:"decided,omitempty"` // by plan: a word on a plan may be heard before the plan
	Saves     uint64               `json:"saves"`             // so that no two values are equal
}

// Machine is what is known of one. What no fact told is empty, and shown as unknown.
type Machine struct {
	ID       string      `json:"id,omitempty"`
	Cloud    string      `json:"cloud,omitempty"`
	Account  string      `json:"account,omitempty"`
	Workload string      `json:"workload,omitempty"`
	Offer    string      `json:"offer,omitempty"`
	Hourly   fleet.Money `json:"hourly,omitzero"`
	Epoch    uint64      `json:"epoch,omitempty"` // newest that ran there
	Gone     time.Time   `json:"gone,omitzero"`
}

// Work is what is known of a workload.
type Work struct {
	Team    string    `json:"team,omitempty"`
	Epoch   uint64    `json:"epoch,omitempty"`
	On      string    `json:"on,omitempty"`
	Began   time.Time `json:"began,omitzero"` // this run
	Step    int64     `json:"step,omitempty"` // newest durable
	SavedAt time.Time `json:"saved_at,omitzero"`
	Over    string    `json:"over,omitempty"` // how it ended
}

// Incident is what people are told about as one. Exactly one of the parts below Dry is set, by Kind.
type Incident struct {
	Number   int       `json:"number"`
	Kind     string    `json:"kind"`
	Key      string    `json:"key"` // what it is about; the newest of a key counts
	Team     string    `json:"team,omitempty"`
	Severity Severity  `json:"severity"`
	Opened   time.Time `json:"opened"`
	Changed  time.Time `json:"changed"`
	Closed   time.Time `json:"closed,omitzero"`
	Version  int       `json:"version"`
	Dry      bool      `json:"dry,omitempty"`

	Taken   []*Taken   `json:"taken,omitempty"`   // interrupted
	Life    *Life      `json:"life,omitempty"`    // workload
	Ask     *Ask       `json:"ask,omitempty"`     // approval
	Trouble []*Trouble `json:"trouble,omitempty"` // trouble
	Budget  *Budget    `json:"budget,omitempty"`  // budget
	Waste   *Waste     `json:"waste,omitempty"`   // waste
	Fault   *Fault     `json:"fault,omitempty"`   // checkpoint, stray
	Note    *Note      `json:"note,omitempty"`    // halted, channel, alert, rule, silence
	Paid    *Paid      `json:"paid,omitempty"`    // reservation
}

// Taken is one machine that a cloud takes, and what becomes of its work.
type Taken struct {
	Machine  string      `json:"machine"`
	Workload string      `json:"workload,omitempty"`
	Offer    string      `json:"offer,omitempty"`
	Hourly   fleet.Money `json:"hourly,omitzero"`
	At       time.Time   `json:"at"`
	EndsBy   time.Time   `json:"ends_by"`
	Epoch    uint64      `json:"epoch,omitempty"`
	Step     int64       `json:"step,omitempty"` // newest durable one
	SavedAt  time.Time   `json:"saved_at,omitzero"`
	Risk     fleet.Money `json:"risk,omitzero"` // paid since the last durable step when the notice came
	Saved    bool        `json:"saved,omitempty"`
	Next     string      `json:"next,omitempty"` // the replacement
	For      fleet.Money `json:"for,omitzero"`   // its price an hour
	NextIs   string      `json:"next_is,omitempty"`
	Stage    string      `json:"stage,omitempty"` // of the replacement: planned, bought, verified; rejected
	Trouble  string      `json:"trouble,omitempty"`
	End      string      `json:"end,omitempty"` // resumed, finished, paused, withdrawn, failed, idle; "" is open
	From     int64       `json:"from,omitempty"`
}

// Life is a workload's way.
type Life struct {
	Workload string      `json:"workload"`
	Phase    string      `json:"phase"` // accepted, refused, paused, finished, withdrawn, failing
	Worst    fleet.Money `json:"worst,omitzero"`
	Baseline fleet.Money `json:"baseline,omitzero"`
	Bound    fleet.Money `json:"bound,omitzero"`
	Deadline time.Time   `json:"deadline,omitzero"`
	By       string      `json:"by,omitempty"`
	Why      string      `json:"why,omitempty"`
	Step     int64       `json:"step,omitempty"`
	End      time.Time   `json:"end,omitzero"`
	Code     int         `json:"code,omitempty"`
	Machine  string      `json:"machine,omitempty"`
}

// Ask is a plan that a person decides on.
type Ask struct {
	Plan    fleet.Plan `json:"plan"`
	Hash    string     `json:"hash"`
	Why     string     `json:"why,omitempty"` // why a person is asked
	Until   time.Time  `json:"until"`
	Default string     `json:"default"`         // what happens without an answer: "approve", "reject"
	State   string     `json:"state,omitempty"` // approved, rejected, expired; "" waits
	By      string     `json:"by,omitempty"`
	Only    bool       `json:"only,omitempty"` // observed: nobody is asked
	Refused []string   `json:"refused,omitempty"`
}

// Trouble is what stands in the way of a purchase.
type Trouble struct {
	Workload string `json:"workload"`
	Why      string `json:"why"`
	Count    int    `json:"count"`
	Over     bool   `json:"over,omitempty"`
}

// Budget is how far a budget is spent.
type Budget struct {
	Workload string      `json:"workload"`
	Spent    fleet.Money `json:"spent"`
	Budget   fleet.Money `json:"budget"`
	Gone     bool        `json:"gone,omitempty"`
}

// Waste is a workload that does little with what is paid for it.
type Waste struct {
	Workload string      `json:"workload"`
	Machine  string      `json:"machine"`
	Hourly   fleet.Money `json:"hourly,omitzero"`
	Idle     bool        `json:"idle,omitempty"` // else underused
	Held     bool        `json:"held,omitempty"` // memory or a process is still there
	Since    time.Time   `json:"since"`
	Why      string      `json:"why"`
	Action   string      `json:"action,omitempty"` // stop, smaller; "": it is only told
	At       time.Time   `json:"at,omitzero"`      // when that is done
	End      string      `json:"end,omitempty"`    // busy, kept, paused, finished, withdrawn
	By       string      `json:"by,omitempty"`     // who wants it kept
	Until    time.Time   `json:"until,omitzero"`   // and for how long
}

// Fault is something about a workload or a machine that went wrong, and how often.
type Fault struct {
	Workload string      `json:"workload,omitempty"`
	Machine  string      `json:"machine,omitempty"`
	ID       string      `json:"id,omitempty"`
	Offer    string      `json:"offer,omitempty"`
	Hourly   fleet.Money `json:"hourly,omitzero"`
	Why      string      `json:"why,omitempty"`
	Count    int         `json:"count"`
	Step     int64       `json:"step,omitempty"` // newest durable one
	SavedAt  time.Time   `json:"saved_at,omitzero"`
	Since    time.Time   `json:"since,omitzero"`
}

// Paid is capacity that is paid for and lies idle, or ends.
type Paid struct {
	Reservation string                   `json:"reservation"`
	Type        string                   `json:"type"`
	Count       int                      `json:"count"`
	Until       time.Time                `json:"until,omitzero"`
	Hourly      fleet.Money              `json:"hourly"` // of all, or of the idle ones
	Days        int                      `json:"days,omitempty"`
	Used        int                      `json:"used,omitempty"`
	OnDemand    fleet.Maybe[fleet.Money] `json:"on_demand,omitzero"`
	Idle        int                      `json:"idle,omitempty"` // 0: it is told of its end
	Since       time.Time                `json:"since,omitzero"`
	Wasted      fleet.Money              `json:"wasted,omitzero"`
	Outside     int                      `json:"outside,omitempty"` // machines of its type that are paid for beside it
}

// Decision is what became of a plan.
type Decision struct {
	State string    `json:"state"` // as Ask.State
	By    string    `json:"by,omitempty"`
	At    time.Time `json:"at"`
}

// Note is news in words.
type Note struct {
	Name string `json:"name,omitempty"`
	Text string `json:"text"`
	By   string `json:"by,omitempty"`
}

// Silence keeps incidents from being shown for a while. An empty pattern covers all.
type Silence struct {
	Workload string    `json:"workload,omitempty"`
	Kind     string    `json:"kind,omitempty"`
	Until    time.Time `json:"until"`
}

func (s *Silence) covers(i *Incident) bool {
	if s.Kind != "" && s.Kind != i.Kind {
		return false
	}
	return s.Workload == "" || slices.ContainsFunc(i.About(), func(w string) bool { ok, _ := path.Match(s.Workload, w); return ok })
}

func newBook(name string) *Book {
	return &Book{
		Fleet: name, Machines: map[string]*Machine{}, Works: map[string]*Work{}, Incidents: map[int]*Incident{},
		Silences: map[string]*Silence{}, Decided: map[string]*Decision{},
	}
}

// About lists the workloads of an incident, each once.
func (i *Incident) About() (names []string) {
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, t := range i.Taken {
		add(t.Workload)
	}
	for _, t := range i.Trouble {
		add(t.Workload)
	}
	switch {
	case i.Life != nil:
		add(i.Life.Workload)
	case i.Ask != nil:
		add(i.Ask.Plan.Workload)
	case i.Budget != nil:
		add(i.Budget.Workload)
	case i.Waste != nil:
		add(i.Waste.Workload)
	case i.Fault != nil:
		add(i.Fault.Workload)
	}
	return names
}

// numbers are the incidents in order.
func (b *Book) numbers() []int {
	all := make([]int, 0, len(b.Incidents))
	for n := range b.Incidents {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// newest is the incident of a key, open or closed; nil if none is known.
func (b *Book) newest(key string) (found *Incident) {
	for _, i := range b.Incidents {
		if i.Key == key && (found == nil || i.Number > found.Number) {
			found = i
		}
	}
	return found
}

// open is the incident of a key that is not closed, or a new one.
func (b *Book) open(kind, key string, s Severity) *Incident {
	if i := b.newest(key); i != nil && i.Closed.IsZero() {
		return i
	}
	b.Next++
	i := &Incident{Number: b.Next, Kind: kind, Key: key, Severity: s, Opened: b.Now}
	b.Incidents[i.Number] = i
	return i
}

// touch notes that an incident has changed.
func (b *Book) touch(i *Incident) {
	i.Changed = b.Now
	i.Version++
}

// done closes an incident.
func (b *Book) done(i *Incident) {
	if i.Closed.IsZero() {
		i.Closed = b.Now
	}
}

// How long things are remembered.
const (
	keepClosed = 24 * time.Hour
	keepOpen   = 7 * 24 * time.Hour
	keepGone   = time.Hour
)

// forget drops what is old.
func (b *Book) forget() {
	for n, i := range b.Incidents {
		if !i.Closed.IsZero() && b.Now.Sub(i.Closed) > keepClosed || b.Now.Sub(i.Changed) > keepOpen {
			delete(b.Incidents, n)
		}
	}
	for name, m := range b.Machines {
		if !m.Gone.IsZero() && b.Now.Sub(m.Gone) > keepGone {
			delete(b.Machines, name)
		}
	}
	for id, s := range b.Silences {
		if b.Now.After(s.Until) {
			delete(b.Silences, id)
		}
	}
	for id, d := range b.Decided {
		if b.Now.Sub(d.At) > keepClosed {
			delete(b.Decided, id)
		}
	}
}
