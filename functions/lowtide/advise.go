package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/functions/ledger"
	"lowtide/functions/lowtide/advise"
	"lowtide/shared/fleet"
	clouds "lowtide/shared/provider/all"
	"lowtide/shared/store"
)

// asked is what lowtide advise was given.
type asked struct {
	demand, kind, decline, against string
	mix, saves, discount           string
	price, held                    float64
	terms                          []string
	slot                           time.Duration
}

// advised is what it answers for one type of machine.
type advised struct {
	Type    string          `json:"type"`
	Slots   int             `json:"slots"`
	Slot    time.Duration   `json:"slot"`
	Mean    float64         `json:"mean"` // machines
	Peak    float64         `json:"peak"`
	Price   float64         `json:"price"` // USD an hour without a commitment
	Decline float64         `json:"decline,omitempty"`
	Held    float64         `json:"held,omitempty"`
	Bound   float64         `json:"bound"`        // of the rule without foresight
	Random  float64         `json:"random_bound"` // of the randomised one, on the mean
	Terms   []advise.Advice `json:"terms"`
}

func adviseCommand() *cobra.Command {
	var o common
	var f asked
	cmd := &cobra.Command{
		Use: "advise", Short: "How much capacity is worth committing to, from how much was used", Args: cobra.NoArgs,
		Long: "Reckons for each term how many machines are worth committing to: the level that is used for at least the share\n" +
			"of the hours that its price is of the alternative's. The demand is the ledger's of a lowtide that runs, or a CSV file.\n\n" +
			"  lowtide advise --price-decline 40%/year                                     what was used, and the terms on offer\n" +
			"  lowtide advise --demand used.csv --price 3.06 --term 1y=1.93 --term 3y=1.29  lines of: time,machines\n" +
			"  lowtide advise --mix 60/40 --saves 38 --discount 43.75                      does a mix save what is said of it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.mix != "" {
				m, err := f.mixed()
				if err != nil {
					return usage(err)
				}
				return o.print(cmd.OutOrStdout(), m, m.print)
			}
			c := advise.Case{Price: f.price, Held: f.held, Slot: f.slot}
			var err error
			if c.Decline, err = decline(f.decline); err != nil {
				return usage(err)
			}
			if c.Terms, err = terms(f.terms); err != nil {
				return usage(err)
			}
			var all []advised
			if f.demand != "" {
				all, err = f.fromFile(c)
			} else {
				err = o.talk(cmd, func(cl *client) error {
					all, err = f.fromLedger(cmd, cl, c)
					return err
				})
			}
			if err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), all, func(w io.Writer) {
				for _, a := range all {
					a.print(w)
				}
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.demand, "demand", "", "CSV file of time,machines at equal distances; empty: what the ledger of a running lowtide says")
	fl.StringVar(&f.kind, "type", "", "only this machine type")
	fl.Float64Var(&f.price, "price", 0, "USD an hour of a machine without a commitment; 0: what was paid on the mean")
	fl.StringVar(&f.against, "against", "paid", "without --price: paid (what was really paid beside commitments) or on-demand")
	fl.StringArrayVar(&f.terms, "term", nil, "length=USD an hour of one machine: 1m=2.4, 1y=1.93; may be repeated; empty: the terms on offer")
	fl.Float64Var(&f.held, "held", 0, "machines that are committed to already")
	fl.StringVar(&f.decline, "price-decline", "", "how fast the price without a commitment falls: 40%/year")
	fl.DurationVar(&f.slot, "slot", 0, "distance of the lines of --demand; 0: that of the first two times")
	fl.StringVar(&f.mix, "mix", "", "only check a mix: 60/40 is 60 % of the hours reserved")
	fl.StringVar(&f.saves, "saves", "38", "with --mix: per cent that it is said to save")
	fl.StringVar(&f.discount, "discount", "43.75", "with --mix: per cent that reserved capacity is cheaper (43.75: Azure's A100, 1.8 instead of 3.2 USD)")
	return o.on(cmd, true)
}

// decline reads "40%/year".
func decline(s string) (float64, error) {
	if s == "" {
		return 0, nil
	}
	x, err := percent(strings.TrimSuffix(strings.TrimSuffix(s, "/year"), "%"))
	if err != nil || x >= 1 {
		return 0, fmt.Errorf("--price-decline %q: want a share a year, such as 40%%/year", s)
	}
	return x, nil
}

func percent(s string) (float64, error) {
	x, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || !(x >= 0 && x <= 100) {
		return 0, fmt.Errorf("%q: want 0 to 100", s)
	}
	return x / 100, nil
}

func terms(list []string) (out []advise.Term, err error) {
	for _, s := range list {
		name, price, ok := strings.Cut(s, "=")
		length, err := clouds.ReadTerm(name)
		usd, perr := strconv.ParseFloat(price, 64)
		if !ok || err != nil || perr != nil || !(usd > 0) || math.IsInf(usd, 1) {
			return nil, fmt.Errorf("--term %q: want length=USD an hour of one machine, such as 1y=1.93", s)
		}
		out = append(out, advise.Term{Name: name, Length: length, Hourly: usd})
	}
	return out, nil
}

func (f asked) fromFile(c advise.Case) ([]advised, error) {
	if c.Price <= 0 || len(c.Terms) == 0 {
		return nil, usage(errors.New("--demand needs --price and at least one --term: a file does not tell what machines cost"))
	}
	file, err := os.Open(f.demand)
	if err != nil {
		return nil, usage(err)
	}
	defer file.Close()
	if c.Demand, c.Slot, err = readDemand(file, c.Slot); err != nil {
		return nil, usage(fmt.Errorf("%s: %w", f.demand, err))
	}
	a, err := answer(f.demand, c)
	if err != nil {
		return nil, usage(err)
	}
	return []advised{a}, nil
}

// readDemand reads time,machines; a first line of names is left out.
func readDemand(r io.Reader, slot time.Duration) (demand []float64, _ time.Duration, err error) {
	in := csv.NewReader(r)
	in.FieldsPerRecord = -1
	var first, last time.Time
	for n := 1; ; n++ {
		rec, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		if len(rec) < 2 {
			return nil, 0, fmt.Errorf("line %d: want time,machines", n)
		}
		x, err := strconv.ParseFloat(strings.TrimSpace(rec[1]), 64)
		if err != nil && n == 1 {
			continue
		}
		if err != nil || !(x >= 0) || math.IsInf(x, 1) {
			return nil, 0, fmt.Errorf("line %d: %q machines; want a number that is not negative", n, rec[1])
		}
		at, terr := time.Parse(time.RFC3339, strings.TrimSpace(rec[0]))
		switch {
		case terr != nil && slot == 0:
			return nil, 0, fmt.Errorf("line %d: %q is no time such as 2026-12-01T08:00:00Z; write times, or give --slot", n, rec[0])
		case first.IsZero():
			first = at
		case slot == 0:
			if slot = at.Sub(first); slot <= 0 {
				return nil, 0, fmt.Errorf("line %d: %s is not after the line before it", n, rec[0])
			}
		case terr == nil && !last.IsZero() && at.Sub(last) != slot:
			return nil, 0, fmt.Errorf("line %d: %s after the line before it, where the first two are %s apart; fill gaps with lines", n, at.Sub(last), slot)
		}
		last = at
		demand = append(demand, x)
	}
	if len(demand) < 2 || slot <= 0 {
		return nil, 0, errors.New("want two lines of time,machines at least")
	}
	return demand, slot, nil
}

// fromLedger takes what machines of each type ran, hour by hour, and what they cost.
func (f asked) fromLedger(cmd *cobra.Command, cl *client, c advise.Case) ([]advised, error) {
	ctx := cmd.Context()
	var book *ledger.Book
	b, err := store.Bind(ctx, cl.js, "ledger")
	if err == nil {
		book, _, err = ledger.Read(ctx, b, cl.Fleet)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, nobody(err)
	}
	if book == nil || len(book.Machines) == 0 {
		return nil, failed("the ledger holds no machine yet: there is no demand to go by; give --demand FILE")
	}
	m, err := cl.market(ctx)
	if err != nil {
		return nil, err
	}
	var all []advised
	uses := used(book, cl.clock.Now())
	for _, kind := range fleet.Sorted(uses) {
		u := uses[kind]
		if f.kind != "" && f.kind != u.typ {
			continue
		}
		one := c
		one.Demand, one.Slot = u.demand, time.Hour
		onDemand, sold := u.sold(m)
		if one.Price <= 0 {
			one.Price = u.paid()
			if f.against == "on-demand" || one.Price <= 0 {
				one.Price = onDemand
			}
		}
		if len(one.Terms) == 0 {
			one.Terms = sold
		}
		if one.Price <= 0 || len(one.Terms) == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: no term of it is on offer, or its price is not known; give --term and --price\n", kind)
			continue
		}
		a, err := answer(kind, one)
		if err != nil {
			return nil, failed("%v", err)
		}
		all = append(all, a)
	}
	if len(all) == 0 {
		return nil, failed("nothing to advise on")
	}
	return all, nil
}

// use is what ran of one type of a cloud.
type use struct {
	cloud, typ  string
	demand      []float64 // by the hour
	cost, hours float64   // of what was paid by the hour
}

func (u *use) paid() float64 {
	if u.hours <= 0 {
		return 0
	}
	return u.cost / u.hours
}

// used sums the ledger's machines up by cloud and type, from the first purchase until now.
func used(book *ledger.Book, now time.Time) map[string]*use {
	first := now
	for _, r := range book.Machines {
		if r.From.Before(first) {
			first = r.From
		}
	}
	first = first.Truncate(time.Hour)
	hours := int(now.Sub(first)/time.Hour) + 1
	out := map[string]*use{}
	for _, r := range book.Machines {
		key := r.Offer.Cloud + "/" + r.Offer.Type
		u := out[key]
		if u == nil {
			u = &use{cloud: r.Offer.Cloud, typ: r.Offer.Type, demand: make([]float64, hours)}
			out[key] = u
		}
		end := r.To
		if end.IsZero() {
			end = now
		}
		for h := int(r.From.Sub(first) / time.Hour); h < hours; h++ {
			from, to := first.Add(time.Duration(h)*time.Hour), first.Add(time.Duration(h+1)*time.Hour)
			if !from.Before(end) {
				break
			}
			if from.Before(r.From) {
				from = r.From
			}
			if end.Before(to) {
				to = end
			}
			u.demand[h] += to.Sub(from).Hours()
		}
		if r.Offer.Reservation == "" {
			u.cost += r.Cost(now).Float()
			u.hours += max(end.Sub(r.From).Hours(), 0)
		}
	}
	return out
}

// sold is what the type costs on demand, and for which terms it is on offer, at the lowest prices.
func (u *use) sold(m *fleet.Markets) (onDemand float64, out []advise.Term) {
	best := map[time.Duration]float64{}
	for _, o := range m.Offers {
		p, ok := o.PerHour()
		if !ok || o.Cloud != u.cloud || o.Type != u.typ || p <= 0 {
			continue
		}
		switch {
		case o.Market == fleet.OnDemand && (onDemand == 0 || p < onDemand):
			onDemand = p
		case o.Market == fleet.Reserved && o.Term > 0 && (best[o.Term] == 0 || p < best[o.Term]):
			best[o.Term] = p
		}
	}
	for length, p := range best {
		out = append(out, advise.Term{Name: fmt.Sprintf("%.0f days", length.Hours()/24), Length: length, Hourly: p})
	}
	return onDemand, out
}

func answer(kind string, c advise.Case) (advised, error) {
	a := advised{Type: kind, Slots: len(c.Demand), Slot: c.Slot, Price: c.Price, Decline: c.Decline, Held: c.Held, Bound: advise.Bound, Random: advise.RandomBound}
	for _, x := range c.Demand {
		a.Mean += x / float64(len(c.Demand))
		a.Peak = max(a.Peak, x)
	}
	var err error
	a.Terms, err = advise.For(c)
	if err != nil {
		return a, fmt.Errorf("%s: %w", kind, err)
	}
	return a, nil
}

func (a advised) print(w io.Writer) {
	fmt.Fprintf(w, "%s: %.2f machines on the mean, %.2f at most, over %.0f days; %.4f USD/h without a commitment", a.Type, a.Mean, a.Peak, float64(a.Slots)*a.Slot.Hours()/24, a.Price)
	if a.Decline > 0 {
		fmt.Fprintf(w, ", falling by %.0f %% a year", 100*a.Decline)
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "\nTERM\tUSD/H\tPAYS IF USED\tPAID BACK IN\tCOMMIT TO\tSAVES\tUSD\tINSTEAD OF\tAT LEAST\tWITHOUT FORESIGHT\tRANDOMISED")
	note := false
	for _, t := range a.Terms {
		back, mark := fmt.Sprintf("%.1f months", t.PaidBack), ""
		if math.IsInf(t.PaidBack, 1) {
			back = "never"
		}
		if t.Prorated {
			mark, note = "*", true
		}
		fmt.Fprintf(w, "%s%s\t%.4f\t%.1f %%\t%s\t%.0f\t%.1f %%\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\n", t.Term, mark, t.Hourly, 100*t.BreakEven, back, t.Commit, 100*t.Saves, t.Cost, t.Alone, t.Best, t.Online, t.Random)
	}
	fmt.Fprintf(w, "\nAT LEAST is what one would have paid who knew all; WITHOUT FORESIGHT is the rule that commits to one more\n"+
		"machine when a term's worth was spent beside the commitments: never more than %.0f times the least, %.2f times on the mean when its\nthreshold is drawn. The advice takes the past for the future.\n", a.Bound, a.Random)
	if note {
		fmt.Fprintln(w, "* the history is shorter than the term, whose price counts for as long as the history is")
	}
}

// mixed is the check of a mix of reserved and other hours.
type mixed struct {
	Reserved float64  `json:"reserved"` // shares
	Discount float64  `json:"discount"`
	Saves    float64  `json:"saves"`
	Said     float64  `json:"said"`
	True     bool     `json:"true"`
	Needs    *float64 `json:"needs_discount,omitempty"` // none below 100 % does: left out
}

func (f asked) mixed() (m mixed, err error) {
	first, second, ok := strings.Cut(f.mix, "/")
	if m.Reserved, err = percent(first); err == nil && ok {
		var rest float64
		if rest, err = percent(second); err == nil && math.Abs(m.Reserved+rest-1) > 1e-9 {
			err = fmt.Errorf("%q is not 100 together", f.mix)
		}
	}
	if err != nil {
		return m, fmt.Errorf("--mix: %w; such as 60/40", err)
	}
	if m.Said, err = percent(f.saves); err != nil {
		return m, fmt.Errorf("--saves %w", err)
	}
	if m.Discount, err = percent(f.discount); err != nil {
		return m, fmt.Errorf("--discount %w", err)
	}
	m.Saves = advise.Mix(m.Reserved, m.Discount)
	m.True = math.Abs(m.Saves-m.Said) < 0.005
	if d, ok := advise.Discount(m.Reserved, m.Said); ok {
		m.Needs = &d
	}
	return m, nil
}

func (m mixed) print(w io.Writer) {
	fmt.Fprintf(w, "%.4g %% of the hours at %.4g %% less save %.4g %% against all on demand", 100*m.Reserved, 100*m.Discount, 100*m.Saves)
	switch {
	case m.True:
		fmt.Fprintln(w, ", as is said")
	case m.Needs == nil:
		fmt.Fprintf(w, "; %.4g %% cannot be: not even free hours would save so much\n", 100*m.Said)
	default:
		fmt.Fprintf(w, ", not %.4g %%: that needs hours at %.1f %% less\n", 100*m.Said, 100**m.Needs)
	}
}
