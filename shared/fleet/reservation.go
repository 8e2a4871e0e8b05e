package fleet

import "time"

// Reservation is capacity that is paid whether it is used or not, from From to Until.
// It belongs to one fleet; one that several share is split: each is told its own part of Count, under the same ID.
type Reservation struct {
	ID      string    `json:"id"` // the cloud's, with which its machines are asked for
	Cloud   string    `json:"cloud"`
	Account string    `json:"account"`
	Region  string    `json:"region"`
	Zone    string    `json:"zone,omitempty"`
	Type    string    `json:"type"`
	GPU     string    `json:"gpu,omitempty"`  // canonical model; "": as the type is sold elsewhere
	GPUs    int       `json:"gpus,omitempty"` // of one machine, likewise
	Count   int       `json:"count"`          // machines; 0: given up
	From    time.Time `json:"from,omitzero"`  // zero: since ever
	Until   time.Time `json:"until,omitzero"` // zero: open-ended
	Hourly  Money     `json:"hourly"`         // what one machine of it costs an hour, used or not
}

// Open says that machines can be had of it now.
func (r *Reservation) Open(now time.Time) bool {
	return r.Count > 0 && !now.Before(r.From) && (r.Until.IsZero() || now.Before(r.Until))
}

// Cost is what it has cost until now, used or not; since is when it began where From is not told.
func (r *Reservation) Cost(since, now time.Time) Money {
	if !r.From.IsZero() {
		since = r.From
	}
	if !r.Until.IsZero() && r.Until.Before(now) {
		now = r.Until
	}
	return r.Hourly.Times(float64(r.Count) * max(now.Sub(since), 0).Hours())
}

// Used counts the machines that are taken from a reservation, or are about to be.
func (f *Fleet) Used(reservation string) int {
	n := 0
	for _, m := range f.Machines {
		if m.Offer.Reservation == reservation && m.Phase != Ended {
			n++
		}
	}
	return n
}

// Watch is what is noted of a reservation's use.
type Watch struct {
	At     time.Time `json:"at"`              // of the last note
	Idle   int       `json:"idle"`            // machines that lay idle then
	Since  time.Time `json:"since,omitzero"`  // some have, without a break; zero: none does
	Wasted Money     `json:"wasted,omitzero"` // in that time
	Told   time.Time `json:"told,omitzero"`   // of it
	Days   int       `json:"days,omitempty"`  // before its end that people were last told of it
}
