package intake

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
)

// reservation is the reservation file; the README explains it field by field.
type reservation struct {
	ID      string `yaml:"id"`
	Cloud   string `yaml:"cloud"`
	Account string `yaml:"account"`
	Region  string `yaml:"region"`
	Zone    string `yaml:"zone"`
	Type    string `yaml:"type"`
	GPU     string `yaml:"gpu"`
	GPUs    int    `yaml:"gpus"`
	Count   *int   `yaml:"count"`
	From    string `yaml:"from"`
	Until   string `yaml:"until"`
	Hourly  string `yaml:"hourly"`
	Total   string `yaml:"total"`
}

// maxCount is the most machines of one reservation that are believed.
const maxCount = 100000

// Reservation reads a reservation file called name. Relative times count from now. A price for the whole term (total,
// what a prepaid term or a capacity block costs) becomes the hourly price of one machine.
func Reservation(name string, b []byte, now time.Time) (fleet.Reservation, error) {
	var f reservation
	err := readable(b, "id, cloud, type and hourly")
	if err == nil {
		err = decode(b, &f)
	}
	var r fleet.Reservation
	if err == nil {
		r, err = f.read(now)
	}
	if err != nil {
		return fleet.Reservation{}, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

func (f reservation) read(now time.Time) (r fleet.Reservation, err error) {
	r = fleet.Reservation{
		ID: f.ID, Cloud: f.Cloud, Account: cmp.Or(f.Account, "main"), Region: f.Region, Zone: f.Zone, Type: f.Type, GPU: f.GPU, GPUs: f.GPUs, Count: 1,
	}
	if f.Count != nil {
		r.Count = *f.Count
	}
	if err := fleet.CheckName(f.ID); err != nil {
		return r, field("id", err)
	}
	switch {
	case f.Cloud == "":
		return r, field("cloud", errors.New("missing; name the cloud, such as aws"))
	case f.Type == "":
		return r, field("type", errors.New("missing; give the machine type, such as p4d.24xlarge"))
	case f.Zone == "" && f.Region == "":
		return r, field("zone", errors.New("missing; give zone, or region where any zone of it will do"))
	case f.GPUs < 0 || f.GPUs > fleet.MaxGPUs:
		return r, field("gpus", fmt.Errorf("%d GPUs on one machine are not sold; give 0 (as the type has) to %d", f.GPUs, fleet.MaxGPUs))
	case r.Count < 1 || r.Count > maxCount:
		return r, field("count", fmt.Errorf("%d machines; give 1 to %d (lowtide reserve --give-up ID ends one)", r.Count, maxCount))
	}
	if f.From != "" {
		if r.From, err = moment(f.From, now); err != nil {
			return r, field("from", err)
		}
	}
	if f.Until != "" {
		if r.Until, err = deadline(f.Until, now); err != nil {
			return r, field("until", err)
		}
		if !r.Until.After(r.From) {
			return r, field("until", errors.New("not after from; give the end of the term"))
		}
	}
	if r.Hourly, err = f.price(r, now); err != nil {
		return r, err
	}
	return r, nil
}

// price is what one machine costs an hour.
func (f reservation) price(r fleet.Reservation, now time.Time) (fleet.Money, error) {
	switch {
	case f.Hourly != "" && f.Total != "":
		return fleet.Money{}, field("total", errors.New("given beside hourly; give one of them"))
	case f.Hourly != "":
		m, err := money(f.Hourly)
		if err != nil {
			return fleet.Money{}, field("hourly", err)
		}
		return m, nil
	case f.Total == "":
		return fleet.Money{}, field("hourly", errors.New("missing; give what one machine costs an hour, such as 2.5 USD, or total for the term"))
	case r.Until.IsZero():
		return fleet.Money{}, field("total", errors.New("of a term without an end; give until"))
	}
	m, err := money(f.Total)
	if err != nil {
		return fleet.Money{}, field("total", err)
	}
	from := r.From
	if from.IsZero() {
		from = now
	}
	hours := decimal.NewFromFloat(r.Until.Sub(from).Hours() * float64(r.Count))
	return fleet.Money{Amount: m.Amount.DivRound(hours, 6), Currency: m.Currency}, nil
}

// moment is a time, or a duration from now; it may have passed.
func moment(s string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, s); err == nil {
		return at.UTC(), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is neither a time such as 2026-12-01T08:00:00+08:00 nor a duration such as 6h", s)
	}
	return now.Add(d).UTC(), nil
}
