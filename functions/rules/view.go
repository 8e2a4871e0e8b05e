package rules

import (
	"time"

	"lowtide/shared/fleet"
)

// View is the fleet as rules see it: what the decider saved last, at most about a second ago.
type View struct {
	Name      string               `json:"name"`
	Halted    string               `json:"halted"`  // why nothing is bought; "": it is
	Hourly    float64              `json:"hourly"`  // USD an hour of all that bills
	Spot      float64              `json:"spot"`    // of it on spot
	Running   int                  `json:"running"` // workloads that have a machine
	Waiting   int                  `json:"waiting"` // workloads that have none and want one
	Paused    int                  `json:"paused"`
	Idle      int                  `json:"idle"` // workloads that do nothing with their GPUs
	Asks      int                  `json:"asks"` // plans that wait for a person
	Workloads map[string]*Workload `json:"workloads"`
	Machines  map[string]*Machine  `json:"machines"`
	Prices    map[string]float64   `json:"prices"` // cheapest, USD an hour of one GPU, by "MODEL MARKET", such as "H100 spot"

	fleet *fleet.Fleet
}

// Workload is one, as rules see it. The zero Workload is one that is not known.
type Workload struct {
	Name     string                   `json:"name"`
	Phase    string                   `json:"phase"`
	Why      string                   `json:"why"`
	On       string                   `json:"on"` // machine
	Autonomy string                   `json:"autonomy"`
	Tags     map[string]string        `json:"tags"`
	GPUs     int                      `json:"gpus"`
	Step     int                      `json:"step"`
	Saved    int                      `json:"saved"` // newest durable step
	Done     float64                  `json:"done"`  // share of the work behind that step
	Moves    int                      `json:"moves"`
	Spent    float64                  `json:"spent"` // USD until the state was saved
	Worst    float64                  `json:"worst"` // USD promised
	Budget   fleet.Maybe[fleet.Money] `json:"budget"`
	Since    time.Time                `json:"since"`
	Waiting  time.Time                `json:"waiting"` // since when no machine carries it
	Deadline time.Time                `json:"deadline"`
	Idle     bool                     `json:"idle"`
	Hourly   float64                  `json:"hourly"` // USD an hour of its machines
}

// Machine is one, as rules see it. The zero Machine is one that is not known.
type Machine struct {
	Name     string    `json:"name"`
	ID       string    `json:"id"`
	Cloud    string    `json:"cloud"`
	Account  string    `json:"account"`
	Region   string    `json:"region"`
	Zone     string    `json:"zone"`
	Type     string    `json:"type"`
	Market   string    `json:"market"`
	GPU      string    `json:"gpu"`
	GPUs     int       `json:"gpus"`
	Phase    string    `json:"phase"`
	Cause    string    `json:"cause"`
	Workload string    `json:"workload"`
	Hourly   float64   `json:"hourly"`
	Bought   time.Time `json:"bought"`
	Heard    time.Time `json:"heard"`
	EndsBy   time.Time `json:"ends_by"` // announced by the cloud
}

// see makes the view of a fleet.
func see(f *fleet.Fleet) *View {
	v := &View{
		Name: f.Name, Halted: f.Halted, fleet: f,
		Workloads: make(map[string]*Workload, len(f.Workloads)), Machines: make(map[string]*Machine, len(f.Machines)),
	}
	for name, w := range f.Workloads {
		v.Workloads[name] = v.workload(w)
	}
	for name, m := range f.Machines {
		x := &Machine{
			Name: name, ID: m.ID, Cloud: m.Offer.Cloud, Account: m.Offer.Account, Region: m.Offer.Region, Zone: m.Offer.Zone, Type: m.Offer.Type,
			Market: string(m.Offer.Market), GPU: m.Offer.GPU, GPUs: m.Offer.GPUs, Phase: string(m.Phase), Cause: m.Cause, Workload: m.Workload,
			Bought: m.Bought, Heard: m.Heard, EndsBy: m.EndsBy,
		}
		x.Hourly, _ = m.Offer.PerHour()
		v.Machines[name] = x
		if w := v.Workloads[m.Workload]; w != nil && m.Phase != fleet.Ended {
			w.Spent += m.Cost(f.Now).Float()
		}
		if !m.Bills() {
			continue
		}
		v.Hourly += x.Hourly
		if m.Offer.Market == fleet.Spot {
			v.Spot += x.Hourly
		}
		if w := v.Workloads[m.Workload]; w != nil {
			w.Hourly += x.Hourly
		}
	}
	for _, p := range f.Plans {
		if p.Action == fleet.Launch && !p.Approved {
			v.Asks++
		}
	}
	return v
}

// workload sees one, and counts it.
func (v *View) workload(w *fleet.Workload) *Workload {
	x := &Workload{
		Name: w.Spec.Name, Phase: string(w.Phase), Why: w.Why, On: w.On, Autonomy: string(w.Spec.Autonomy), Tags: w.Spec.Tags, GPUs: w.Spec.GPUs,
		Step: int(w.Step), Saved: int(w.Saved.Step), Done: w.DoneShare(w.Saved.Step), Moves: w.Moves, Spent: w.Spent.Float(),
		Worst: w.Commit.Float(), Budget: w.Spec.Budget, Since: w.Since, Waiting: w.Waiting, Deadline: w.Spec.Deadline, Idle: w.Waste.Idle && w.Waste.Epoch == w.Epoch,
	}
	switch {
	case w.Phase == fleet.Paused:
		v.Paused++
	case w.Phase != fleet.Accepted:
	case w.On != "":
		v.Running++
	default:
		v.Waiting++
	}
	if x.Idle {
		v.Idle++
	}
	return x
}

// cheapest finds what one GPU of each model costs least on each market, among what is known and to be had by the hour.
func cheapest(offers []fleet.Offer) map[string]float64 {
	out := map[string]float64{}
	for _, o := range offers {
		hourly, known := o.PerHour()
		if !known || o.GPU == "" || o.GPUs < 1 || o.Term > 0 || o.Stock.Or(1) == 0 {
			continue
		}
		key, price := o.GPU+" "+string(o.Market), hourly/float64(o.GPUs)
		if old, ok := out[key]; !ok || price < old {
			out[key] = price
		}
	}
	return out
}
