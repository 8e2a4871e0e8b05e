package notify

import "lowtide/events"

// ends tells of paid capacity that ends soon, in one incident until it is renewed or over.
func (b *Book) ends(f events.ReservationExpiring) *Incident {
	r := f.Reservation
	i := b.open("reservation", "reserved/ends/"+r.ID, Info)
	if i.Paid != nil && i.Paid.Days <= f.Days {
		return nil
	}
	i.Paid = &Paid{Reservation: r.ID, Type: r.Type, Count: r.Count, Until: r.Until, Hourly: f.Hourly, Days: f.Days, Used: f.Used, OnDemand: f.OnDemand}
	if f.Days <= 7 {
		i.Severity = Warning
	}
	b.touch(i)
	return i
}

// unused tells of paid capacity that lies idle, in one incident until a machine of it is taken.
func (b *Book) unused(f events.ReservationIdle) *Incident {
	r := f.Reservation
	i := b.open("reservation", "reserved/idle/"+r.ID, Warning)
	now := &Paid{
		Reservation: r.ID, Type: r.Type, Count: r.Count, Until: r.Until, Hourly: f.Hourly,
		Idle: f.Idle, Since: f.Since, Wasted: f.Wasted, Outside: len(f.Outside),
	}
	if i.Paid != nil && same(i.Paid, now) {
		return nil
	}
	i.Paid = now
	b.touch(i)
	return i
}

// settled closes the newest incident of a key, if it is open.
func (b *Book) settled(key string) {
	if i := b.newest(key); i != nil && i.Closed.IsZero() {
		b.done(i)
		b.touch(i)
	}
}
