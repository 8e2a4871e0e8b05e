package events

import (
	"time"

	"lowtide/shared/fleet"
)

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

// ReservationExpiring says that paid capacity ends soon: 60, 30 and 7 days before.
type ReservationExpiring struct {
	Reservation fleet.Reservation        `json:"reservation"`
	Days        int                      `json:"days"`               // 60, 30 or 7
	Used        int                      `json:"used"`               // machines in use now
	Hourly      fleet.Money              `json:"hourly"`             // of all its machines, used or not
	OnDemand    fleet.Maybe[fleet.Money] `json:"on_demand,omitzero"` // what those in use would cost an hour on demand
}

// Kind is reservation.expiring.
func (ReservationExpiring) Kind() Kind { return "reservation.expiring" }

// Key is whom it is about.
func (f ReservationExpiring) Key() string { return keyOf(f.Reservation.ID) }

// ReservationIdle says that machines of paid capacity have not been used for an hour, and then each day.
type ReservationIdle struct {
	Reservation fleet.Reservation `json:"reservation"`
	Idle        int               `json:"idle"`              // machines
	Since       time.Time         `json:"since"`             // since when some were
	Hourly      fleet.Money       `json:"hourly"`            // what the idle ones cost an hour
	Wasted      fleet.Money       `json:"wasted"`            // since then
	Outside     []string          `json:"outside,omitempty"` // machines of the same type that are paid for beside it
}

// Kind is reservation.idle.
func (ReservationIdle) Kind() Kind { return "reservation.idle" }

// Key is whom it is about.
func (f ReservationIdle) Key() string { return keyOf(f.Reservation.ID) }
