package fleet

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/shopspring/decimal"
)

// Book is what this user pays where it is not what a cloud quotes: exchange rates, contracts, taxes, and the prices
// that no cloud's API tells. It comes from configuration; the zero Book pays what is quoted, in USD.
type Book struct {
	Rates  Rates
	Deals  []Deal
	Prices []Offer // dated quotes of the user's own

	Certified map[string][]string // what each cloud is certified for, as the user has it in writing
}

// Deal is a user's terms with a cloud. Empty fields match all; of several that match, the one that says most about
// the offer counts, for each of Times and VAT by itself.
type Deal struct {
	Cloud  string
	Type   string // a machine type, or a beginning of one with "*"
	Market Market
	Times  Maybe[decimal.Decimal] // of the list price is paid: 0.8 is 20 % off
	VAT    Maybe[decimal.Decimal] // on top: 0.06 is 6 %
	Until  time.Time              // a coupon's end; zero: none
}

// ErrNoPrice means that an offer has no price that could be true: zero, negative, or in no currency.
var ErrNoPrice = errors.New("no price")

// Hourly is what an offer costs in USD an instance-hour: as listed, and for this user, at a time.
func (b Book) Hourly(o Offer, now time.Time) (list, mine Money, err error) {
	if o.Price.Amount.Amount.Sign() <= 0 || o.Price.Amount.Currency == "" {
		return list, mine, fmt.Errorf("%s: %w", o, ErrNoPrice)
	}
	list, err = b.Rates.Hourly(o.Price, o.GPUs)
	if err != nil {
		return list, mine, fmt.Errorf("%s: %w", o, err)
	}
	times := b.best(o, now, func(d Deal) Maybe[decimal.Decimal] { return d.Times }).Or(decimal.NewFromInt(1))
	vat := b.best(o, now, func(d Deal) Maybe[decimal.Decimal] { return d.VAT }).Or(decimal.Zero)
	mine = Money{list.Amount.Mul(times).Mul(vat.Add(decimal.NewFromInt(1))), list.Currency}
	return list, mine, nil
}

// best is what the deal says that says most about the offer.
func (b Book) best(o Offer, now time.Time, of func(Deal) Maybe[decimal.Decimal]) (out Maybe[decimal.Decimal]) {
	most := -1
	for _, d := range b.Deals {
		says, matches := d.about(o)
		if v := of(d); matches && !v.IsZero() && says > most && (d.Until.IsZero() || now.Before(d.Until)) {
			most, out = says, v
		}
	}
	return out
}

// about says whether a deal is about an offer, and how much it says of it.
func (d Deal) about(o Offer) (says int, matches bool) {
	if d.Cloud != "" {
		if d.Cloud != o.Cloud {
			return 0, false
		}
		says++
	}
	if d.Market != "" {
		if d.Market != o.Market {
			return 0, false
		}
		says += 2
	}
	if d.Type == "" {
		return says, true
	}
	begin, open := strings.CutSuffix(d.Type, "*")
	if open && strings.HasPrefix(o.Type, begin) || d.Type == o.Type {
		return says + 4 + len(begin), true
	}
	return 0, false
}

// Stale says that the exchange table is older than a week: what is reckoned with it is marked.
func (r Rates) Stale(now time.Time) bool {
	return len(r.USD) > 0 && now.Sub(r.AsOf) > 7*24*time.Hour
}
