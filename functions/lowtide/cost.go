package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/shopspring/decimal"
	"github.com/spf13/cobra"

	"lowtide/shared/fleet"
	clouds "lowtide/shared/provider/all"
)

// job is what lowtide cost reckons. Amounts are of one currency.
type job struct {
	price      fleet.Price // what one GPU, or one machine, costs an hour, or a month
	gpus       int
	machines   int
	hours      decimal.Decimal
	tiers      []tier
	off        decimal.Decimal // share off the list price
	share      decimal.Decimal // of the hours that are reserved
	shareOff   decimal.Decimal // off those
	term       decimal.Decimal // hours that are paid at least, used or not
	gb         decimal.Decimal
	egress     fleet.Money // a GB
	management fleet.Money
	vat        decimal.Decimal
	reserve    decimal.Decimal // share on top that is kept for failures
}

// tier is another price from an hour on.
type tier struct {
	from, price decimal.Decimal
}

// item is one line of a reckoning.
type item struct {
	What   string `json:"what"`
	How    string `json:"how"`
	Amount string `json:"amount"`
}

// reckoning is what a job costs, and how that comes about.
type reckoning struct {
	Items    []item          `json:"items"`
	Total    decimal.Decimal `json:"total"`
	Currency fleet.Currency  `json:"currency"`
	GPUHour  decimal.Decimal `json:"per_gpu_hour_used"`
	Notes    []string        `json:"notes,omitempty"`
}

var one, hundred = decimal.NewFromInt(1), decimal.NewFromInt(100)

// reckon is the formula of the documents: total = price of a card-hour × cards × hours + transfer + management. Stepped
// prices, terms, discounts, a mix with reserved capacity, tax and a reserve are lines of their own.
func (j job) reckon() (reckoning, error) {
	cur := j.price.Amount.Currency
	r := reckoning{Currency: cur}
	add := func(what string, amount decimal.Decimal, how string, args ...any) {
		r.Total = r.Total.Add(amount)
		r.Items = append(r.Items, item{what, fmt.Sprintf(how, args...), amount.StringFixed(2)})
	}
	cards := decimal.NewFromInt(int64(j.gpus * j.machines))
	units, unit := cards, "GPUs"
	switch j.price.Per {
	case fleet.PerInstanceHour, fleet.PerMonth:
		units, unit = decimal.NewFromInt(int64(j.machines)), "machines"
	}
	hours, rate := j.hours, j.price.Amount.Amount
	if j.term.GreaterThan(hours) {
		r.Notes = append(r.Notes, fmt.Sprintf("the term is %s hours: %s of them are paid and not used", j.term, j.term.Sub(hours)))
		hours = j.term
	}
	if j.price.Per == fleet.PerMonth {
		rate = rate.DivRound(decimal.NewFromInt(730), 8)
	}
	machines := decimal.Zero
	for i, t := range append([]tier{{decimal.Zero, rate}}, j.tiers...) {
		to := hours
		if i < len(j.tiers) {
			to = decimal.Min(hours, j.tiers[i].from)
		}
		if span := to.Sub(t.from); span.Sign() > 0 {
			amount := t.price.Mul(units).Mul(span)
			machines = machines.Add(amount)
			add("machines", amount, "%s %s × %s %s × %s h", t.price, cur, units, unit, span)
		}
	}
	if j.off.Sign() > 0 {
		less := machines.Mul(j.off)
		add("discount", less.Neg(), "%s %% off the machines", j.off.Mul(hundred))
		machines = machines.Sub(less)
	}
	if j.share.Sign() > 0 {
		saved := j.share.Mul(j.shareOff)
		add("reserved", machines.Mul(saved).Neg(), "%s %% of the hours at %s %% less: saves %s %%", j.share.Mul(hundred), j.shareOff.Mul(hundred), saved.Mul(hundred))
	}
	for _, m := range []fleet.Money{j.egress, j.management} {
		if m.Amount.Sign() != 0 && m.Currency != cur {
			return r, fmt.Errorf("%s beside a price in %s: give all amounts in one currency, or an exchange rate in the price book and --in", m, cur)
		}
	}
	if j.gb.Sign() > 0 {
		add("transfer", j.egress.Amount.Mul(j.gb), "%s %s × %s GB", j.egress.Amount, cur, j.gb)
	}
	if j.management.Amount.Sign() > 0 {
		add("management", j.management.Amount, "as given")
	}
	if j.vat.Sign() > 0 {
		add("VAT", r.Total.Mul(j.vat), "%s %%", j.vat.Mul(hundred))
	}
	if j.reserve.Sign() > 0 {
		add("reserve", r.Total.Mul(j.reserve), "%s %% kept for failures", j.reserve.Mul(hundred))
	}
	if used := cards.Mul(j.hours); used.Sign() > 0 {
		r.GPUHour = r.Total.DivRound(used, 4)
	}
	return r, nil
}

// in turns a job's amounts into another currency.
func (j job) in(to fleet.Currency, rates fleet.Rates) (job, error) {
	rate := func(m fleet.Money) (fleet.Money, error) {
		if m.Currency == to || m.Currency == "" {
			return m, nil
		}
		usd, err := rates.InUSD(m)
		if err != nil || to == fleet.USD {
			return usd, err
		}
		one, err := rates.InUSD(fleet.Money{Amount: one, Currency: to})
		if err != nil {
			return m, err
		}
		return fleet.Money{Amount: usd.Amount.DivRound(one.Amount, 8), Currency: to}, nil
	}
	for i, t := range j.tiers {
		m, err := rate(fleet.Money{Amount: t.price, Currency: j.price.Amount.Currency})
		if err != nil {
			return j, err
		}
		j.tiers[i].price = m.Amount
	}
	for _, m := range []*fleet.Money{&j.price.Amount, &j.egress, &j.management} {
		var err error
		if *m, err = rate(*m); err != nil {
			return j, err
		}
	}
	return j, nil
}

func costCommand() *cobra.Command {
	var o common
	var f struct {
		price, data, egress, management, term, in, hours string
		off, vat, reserve, share, shareOff               string
		tiers                                            []string
		gpus, machines                                   int
	}
	cmd := &cobra.Command{
		Use: "cost", Short: "What a job costs: card-hours, transfer and management, with tiers, terms, taxes", Args: cobra.NoArgs,
		Long: "total = price of a card-hour × cards × hours + transfer + management. Nobody is asked; prices are what you give.\n\n" +
			"  lowtide cost --price '3.2 USD/gpu-hour' --gpus 4 --hours 72 --data 500GB --egress '0.05 USD'   = 946.60 USD\n" +
			"  lowtide cost --price '8 CNY/gpu-hour' --tier 96=6.4 --tier 360=4 --hours 500 --in USD           stepped, in dollars\n" +
			"  lowtide cost --price '3.2 USD/gpu-hour' --hours 8760 --reserved 60 --reserved-off 43.75         a mix saves 26.25 %",
		RunE: func(cmd *cobra.Command, _ []string) error {
			j := job{gpus: f.gpus, machines: f.machines}
			var err error
			if j.price, err = clouds.ReadPrice(f.price); err != nil {
				return usage(fmt.Errorf("--price: %w", err))
			}
			gb, err := volume(f.data)
			if err != nil {
				return usage(fmt.Errorf("--data: %w", err))
			}
			j.gb = decimal.NewFromFloat(gb)
			for _, m := range []struct {
				name, text string
				to         *fleet.Money
			}{{"--egress", f.egress, &j.egress}, {"--management", f.management, &j.management}} {
				if m.text == "" {
					continue
				}
				if *m.to, err = clouds.ReadMoney(m.text); err != nil {
					return usage(fmt.Errorf("%s: %w", m.name, err))
				}
			}
			if gb > 0 && f.egress == "" {
				return usage(fmt.Errorf("--data without --egress: what a GB costs differs by a factor of ten; give it, such as --egress '0.05 USD'"))
			}
			for _, p := range []struct {
				name, text string
				to         *decimal.Decimal
				scale      int32
			}{
				{"--hours", f.hours, &j.hours, 0},
				{"--discount", f.off, &j.off, -2},
				{"--vat", f.vat, &j.vat, -2},
				{"--reserve", f.reserve, &j.reserve, -2},
				{"--reserved", f.share, &j.share, -2},
				{"--reserved-off", f.shareOff, &j.shareOff, -2},
			} {
				if p.text == "" {
					continue
				}
				d, err := decimal.NewFromString(p.text)
				if err != nil || d.Sign() < 0 || p.scale != 0 && p.name != "--vat" && d.GreaterThan(hundred) {
					return usage(fmt.Errorf("%s %q: want a number that is not negative, in per cent at most 100", p.name, p.text))
				}
				*p.to = d.Shift(p.scale)
			}
			if j.hours.Sign() <= 0 || j.gpus <= 0 || j.machines <= 0 {
				return usage(fmt.Errorf("--hours, --gpus and --machines: want them above zero"))
			}
			if f.term != "" {
				t, err := clouds.ReadTerm(f.term)
				if err != nil {
					return usage(err)
				}
				j.term = decimal.NewFromFloat(t.Hours())
			}
			if j.tiers, err = tiers(f.tiers); err != nil {
				return usage(err)
			}
			var notes []string
			if f.in != "" && fleet.Currency(strings.ToUpper(f.in)) != j.price.Amount.Currency {
				book, err := clouds.Book(os.Getenv)
				if err != nil {
					return usage(err)
				}
				if j, err = j.in(fleet.Currency(strings.ToUpper(f.in)), book.Rates); err != nil {
					return usage(fmt.Errorf("--in %s: %w", f.in, err))
				}
				notes = append(notes, "at the exchange rates of "+book.Rates.AsOf.Format("2006-01-02"))
			}
			r, err := j.reckon()
			if err != nil {
				return usage(err)
			}
			r.Notes = append(r.Notes, notes...)
			return o.print(cmd.OutOrStdout(), r, r.print)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.price, "price", "", "what it costs: '3.2 USD/gpu-hour', '5 CNY/hour', '12000 USD/month'")
	fl.IntVar(&f.gpus, "gpus", 1, "GPUs of a machine")
	fl.IntVar(&f.machines, "machines", 1, "machines")
	fl.StringVar(&f.hours, "hours", "", "hours that it runs")
	fl.StringArrayVar(&f.tiers, "tier", nil, "another price from an hour on: 96=6.4; may be repeated")
	fl.StringVar(&f.off, "discount", "", "per cent off the list price")
	fl.StringVar(&f.share, "reserved", "", "per cent of the hours on reserved capacity")
	fl.StringVar(&f.shareOff, "reserved-off", "", "per cent that reserved capacity is cheaper")
	fl.StringVar(&f.term, "term", "", "shortest term that is paid: 1m, 1y, 3y")
	fl.StringVar(&f.data, "data", "", "data carried: 500GB, 2TB")
	fl.StringVar(&f.egress, "egress", "", "what a GB of it costs: '0.05 USD'")
	fl.StringVar(&f.management, "management", "", "management in all: '40 USD'")
	fl.StringVar(&f.vat, "vat", "", "per cent of tax on all")
	fl.StringVar(&f.reserve, "reserve", "", "per cent kept on top for failures (10 to 15 on marketplaces)")
	fl.StringVar(&f.in, "in", "", "currency to reckon in: USD, CNY; rates are in the price book (LOWTIDE_BOOK)")
	fl.StringVar(&o.output, "output", "text", "text or json")
	return cmd
}

// tiers reads "96=6.4".
func tiers(list []string) ([]tier, error) {
	var out []tier
	for _, s := range list {
		from, price, ok := strings.Cut(s, "=")
		f, err := decimal.NewFromString(strings.TrimSpace(from))
		p, perr := decimal.NewFromString(strings.TrimSpace(price))
		if !ok || err != nil || perr != nil || f.Sign() <= 0 || p.Sign() < 0 {
			return nil, fmt.Errorf("--tier %q: want an hour and the price from then on, such as 96=6.4", s)
		}
		out = append(out, tier{f, p})
	}
	slices.SortFunc(out, func(a, b tier) int { return a.from.Cmp(b.from) })
	return out, nil
}

func (r reckoning) print(w io.Writer) {
	for _, i := range r.Items {
		fmt.Fprintf(w, "%s\t%s\t= %s %s\n", i.What, i.How, i.Amount, r.Currency)
	}
	fmt.Fprintf(w, "total\t\t= %s %s\n", r.Total.StringFixed(2), r.Currency)
	fmt.Fprintf(w, "\t\t%s %s for an hour of one GPU that was used\n", r.GPUHour, r.Currency)
	for _, n := range r.Notes {
		fmt.Fprintln(w, n)
	}
}
