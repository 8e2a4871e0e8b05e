package fleet

import (
	"fmt"
	"time"

	"github.com/shopspring/decimal"
)

// Currency is an ISO 4217 code.
type Currency string

// The currencies that the clouds of this project bill in.
const (
	USD Currency = "USD"
	CNY Currency = "CNY"
)

// Money is a decimal amount of one currency. The zero Money is 0 of no currency and adds to anything.
type Money struct {
	Amount   decimal.Decimal `json:"amount"`
	Currency Currency        `json:"currency"`
}

// Dollars is an amount of USD.
func Dollars(f float64) Money { return Money{decimal.NewFromFloat(f), USD} }

// Add returns m + n. Adding two currencies is a programmer's mistake and panics: convert with Rates first.
func (m Money) Add(n Money) Money {
	switch {
	case m.Currency == "":
		return n
	case n.Currency == "" || m.Currency == n.Currency:
		return Money{m.Amount.Add(n.Amount), m.Currency}
	}
	panic(fmt.Sprintf("fleet: add %s to %s without a rate", n.Currency, m.Currency))
}

// Times returns m × f.
func (m Money) Times(f float64) Money {
	return Money{m.Amount.Mul(decimal.NewFromFloat(f)), m.Currency}
}

// Float is the amount for reckoning with, when cents do not matter.
func (m Money) Float() float64 { return m.Amount.InexactFloat64() }

// String prints "12.3456 USD", with at least two and at most four digits.
func (m Money) String() string {
	if m.Currency == "" {
		return m.Amount.String()
	}
	digits := int32(2)
	if m.Amount.Abs().LessThan(decimal.NewFromInt(10)) {
		digits = 4
	}
	return m.Amount.StringFixed(digits) + " " + string(m.Currency)
}

// Unit is what a price is asked for.
type Unit string

// The units that the clouds quote. A month is 730 hours, as their own price pages reckon.
const (
	PerInstanceHour Unit = "instance-hour"
	PerGPUHour      Unit = "gpu-hour"
	PerMonth        Unit = "month"
)

// Price is what a cloud asks: an amount for a unit, and what that includes ("disk, public-ip").
type Price struct {
	Amount   Money  `json:"amount"`
	Per      Unit   `json:"per"`
	Includes string `json:"includes,omitempty"`
}

// Rates is a dated exchange table: how many USD one unit of a currency is worth. It comes from configuration.
type Rates struct {
	AsOf time.Time                    `json:"as_of"`
	USD  map[Currency]decimal.Decimal `json:"usd"`
}

// InUSD converts m. A currency without a rate is an error: a price that cannot be compared is not known.
func (r Rates) InUSD(m Money) (Money, error) {
	if m.Currency == USD {
		return m, nil
	}
	rate, ok := r.USD[m.Currency]
	if !ok || rate.Sign() <= 0 {
		return Money{}, fmt.Errorf("no exchange rate from %q to USD (table of %s); add it to rates", m.Currency, r.AsOf.Format(time.DateOnly))
	}
	return Money{m.Amount.Mul(rate), USD}, nil
}

// Hourly normalises p to USD per instance-hour for a machine with gpus GPUs.
func (r Rates) Hourly(p Price, gpus int) (Money, error) {
	usd, err := r.InUSD(p.Amount)
	if err != nil {
		return Money{}, err
	}
	switch p.Per {
	case PerInstanceHour:
		return usd, nil
	case PerGPUHour:
		return Money{usd.Amount.Mul(decimal.NewFromInt(int64(max(gpus, 1)))), USD}, nil
	case PerMonth:
		return Money{usd.Amount.DivRound(decimal.NewFromInt(730), 8), USD}, nil
	}
	return Money{}, fmt.Errorf("price per %q is not a unit lowtide knows (instance-hour, gpu-hour, month)", p.Per)
}
