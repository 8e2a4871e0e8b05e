package events

import "lowtide/shared/fleet"

// ReservationSet says which paid capacity a fleet has. A later one of the same ID replaces it; a count of 0 gives it up,
// and who runs there moves on.
type ReservationSet struct {
	Reservation fleet.Reservation `json:"reservation"`
	By          string            `json:"by,omitempty"`
}

// Kind is reservation.set.
func (ReservationSet) Kind() Kind { return "reservation.set" }

// Key is whom it is about.
func (f ReservationSet) Key() string { return keyOf(f.Reservation.ID) }
