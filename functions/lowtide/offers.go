package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/functions/prices"
	"lowtide/shared/fleet"
	"lowtide/shared/gpu"
	"lowtide/shared/provider"
	clouds "lowtide/shared/provider/all"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/vast"
	"lowtide/shared/provider/vast/vasttest"
	"lowtide/shared/store"
)

// offered is one row of lowtide offers. Amounts are USD; what is not known is null.
type offered struct {
	Cloud    string       `json:"cloud"`
	Place    string       `json:"place"`
	Type     string       `json:"type"`
	GPU      string       `json:"gpu"`
	GPUs     int          `json:"gpus"`
	Market   fleet.Market `json:"market"`
	Term     string       `json:"term,omitempty"` // must be paid for so long
	List     *float64     `json:"list_per_hour"`  // as the cloud quotes it
	Hour     *float64     `json:"per_hour"`       // for this user: deals, coupons, VAT
	GPUHour  *float64     `json:"per_gpu_hour"`
	Rated    *float64     `json:"per_rated_tflops_hour"`    // the maker's FP16 figure
	Measured *float64     `json:"per_measured_tflops_hour"` // what benchmarks of this installation measured
	Stock    *int         `json:"stock"`
	Hazard   *float64     `json:"hazard_per_hour"` // interruptions measured
	Age      string       `json:"age"`
	Data     *float64     `json:"data,omitempty"` // for --with-data, out to the internet, once
	Job      *float64     `json:"per_hour_with_data,omitempty"`
	Includes string       `json:"includes,omitempty"`
	Doubt    string       `json:"doubt,omitempty"` // why its price is not believed: it is never planned on
	Rate     string       `json:"rate,omitempty"`  // the exchange rate behind it, and its day
}

// skippedCloud is a cloud that shows no offers.
type skippedCloud struct {
	Cloud string `json:"cloud"`
	Why   string `json:"why"`
}

// shop is what lowtide offers prints.
type shop struct {
	Example bool           `json:"example,omitempty"` // made up: nothing is sold
	Offers  []offered      `json:"offers"`
	Skipped []skippedCloud `json:"skipped"`
	Notes   []string       `json:"notes,omitempty"`
}

type offersFlags struct {
	clouds, models, markets []string
	region, data            string
	gpus, most              int
	hours                   float64
	public                  bool
}

func offersCommand() *cobra.Command {
	var o common
	var f offersFlags
	cmd := &cobra.Command{
		Use: "offers", Short: "What is sold where, ranked by what an hour of one GPU costs you", Args: cobra.NoArgs,
		Long: "Asks every configured cloud what it sells, and says of the others why they are skipped. With --state DIR it shows\n" +
			"what the lowtide of that directory knows, with measured hazards and speeds. With no cloud configured it shows an\n" +
			"example: Vast.ai's format from a stand-in inside this program, at made-up prices.\n\n" +
			"Settings are in the environment: " + strings.Join(clouds.Names(), ", ") + "; see the README.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := f.shop(cmd.Context(), o.state)
			if err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), s, func(w io.Writer) { s.print(w, f) })
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.clouds, "cloud", nil, "these clouds only")
	fl.StringSliceVar(&f.models, "gpu", nil, "these GPU models only: A100, H100, 'RTX 4090'")
	fl.StringSliceVar(&f.markets, "market", nil, "these markets only: on_demand, spot, reserved")
	fl.StringVar(&f.region, "region", "", "regions that begin so")
	fl.IntVar(&f.gpus, "gpus", 0, "at least so many GPUs on one machine")
	fl.IntVar(&f.most, "limit", 30, "rows to print; 0 prints all")
	fl.StringVar(&f.data, "with-data", "", "add what it costs to carry so much out to the internet: 500GB, 2TB")
	fl.Float64Var(&f.hours, "hours", 72, "with --with-data: the hours that the transfer is spread over")
	fl.BoolVar(&f.public, "public", false, "also ask clouds that show their offers to anybody")
	return o.on(cmd, true)
}

// shop asks, judges and ranks.
func (f offersFlags) shop(ctx context.Context, state string) (*shop, error) {
	for _, m := range f.markets {
		if !slices.Contains([]fleet.Market{fleet.OnDemand, fleet.Spot, fleet.Reserved}, fleet.Market(m)) {
			return nil, usage(fmt.Errorf("--market %q: want on_demand, spot or reserved", m))
		}
	}
	gb, err := volume(f.data)
	if err != nil {
		return nil, usage(err)
	}
	if f.hours <= 0 {
		return nil, usage(fmt.Errorf("--hours %g: want hours above zero", f.hours))
	}
	book, err := clouds.Book(os.Getenv)
	if err != nil {
		return nil, usage(err)
	}
	s := &shop{Offers: []offered{}, Skipped: []skippedCloud{}}
	know := known{now: time.Now(), why: map[string]string{}}
	offers, err := s.gather(ctx, f, state, book, &know)
	if err != nil {
		return nil, err
	}
	if book.Rates.Stale(know.now) {
		s.Notes = append(s.Notes, "the exchange table is of "+book.Rates.AsOf.Format(time.DateOnly)+", more than a week old")
	}
	for _, o := range offers {
		if f.wants(o) {
			s.Offers = append(s.Offers, know.row(o, book, gb, f.hours))
		}
	}
	slices.SortStableFunc(s.Offers, func(a, b offered) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.Cloud, b.Cloud), cmp.Compare(a.Place, b.Place), cmp.Compare(a.Type, b.Type))
	})
	return s, nil
}

// gather reads what the lowtide of a state knows, or asks the clouds.
func (s *shop) gather(ctx context.Context, f offersFlags, state string, book fleet.Book, k *known) ([]fleet.Offer, error) {
	if state != "" {
		return s.fromState(ctx, state, k)
	}
	return s.ask(ctx, f, book, k)
}

func (f offersFlags) wants(o fleet.Offer) bool {
	model := func(m string) bool { c, _ := provider.ReadCard(m, 0); return c.Model == o.GPU }
	return (len(f.clouds) == 0 || slices.Contains(f.clouds, o.Cloud)) && (len(f.models) == 0 || slices.ContainsFunc(f.models, model)) &&
		(len(f.markets) == 0 || slices.Contains(f.markets, string(o.Market))) && strings.HasPrefix(o.Region, f.region) && o.GPUs >= f.gpus
}

// rank is what an hour of one GPU costs, with the data if it was asked for; unknown comes last.
func (r offered) rank() float64 {
	v := cmp.Or(r.Job, r.Hour)
	if v == nil {
		return math.Inf(1)
	}
	return *v / float64(max(r.GPUs, 1))
}

// known is what there is to know beside the offers themselves.
type known struct {
	now      time.Time
	asked    map[string]time.Time // cloud/account
	why      map[string]string    // by pool
	measured map[string]float64   // TFLOPS of one GPU, by pool
	pools    map[string]*fleet.PoolPast
}

func (k known) row(o fleet.Offer, book fleet.Book, gb, hours float64) offered {
	r := offered{
		Cloud: o.Cloud, Place: cmp.Or(o.Zone, o.Region), Type: o.Type, GPU: strings.TrimSpace(o.GPU + " " + o.Form), GPUs: o.GPUs, Market: o.Market,
		Includes: o.Price.Includes, Doubt: k.why[o.Pool()], Age: k.age(o),
	}
	if o.Memory > 0 {
		r.GPU += fmt.Sprintf(" %dGB", o.Memory)
	}
	if o.Term > 0 {
		r.Term = fmt.Sprintf("%.0fd", o.Term.Hours()/24)
	}
	if list, _, err := book.Hourly(o, k.now); err == nil {
		r.List = some(list.Float())
	}
	if c := o.Price.Amount.Currency; c != fleet.USD && r.List != nil {
		r.Rate = fmt.Sprintf("1 %s = %s USD on %s", c, book.Rates.USD[c], book.Rates.AsOf.Format(time.DateOnly))
	}
	if n, ok := o.Stock.Get(); ok {
		r.Stock = &n
	}
	if h, ok := o.Hazard.Get(); ok {
		r.Hazard = &h
	}
	hour, ok := o.PerHour()
	if !ok {
		return r
	}
	r.Hour = &hour
	if o.GPUs > 0 {
		r.GPUHour = some(hour / float64(o.GPUs))
		if t := rated(o); t > 0 {
			r.Rated = some(hour / float64(o.GPUs) / t)
		}
		if t := k.measured[o.Pool()]; t > 0 {
			r.Measured = some(hour / float64(o.GPUs) / t)
		}
	}
	if e, ok := o.Egress.Get(); ok && gb > 0 {
		if usd, err := book.Rates.InUSD(e); err == nil {
			r.Data = some(usd.Float() * gb)
			r.Job = some(hour + *r.Data/hours)
		}
	}
	return r
}

func some(f float64) *float64 { return &f }

func (k known) age(o fleet.Offer) string {
	at := o.Quoted
	if at.IsZero() {
		at = k.asked[o.Cloud+"/"+o.Account]
	}
	if at.IsZero() {
		return "?"
	}
	if d := k.now.Sub(at); d >= 48*time.Hour {
		return fmt.Sprintf("%.0fd", d.Hours()/24)
	} else if d >= time.Second {
		return d.Round(time.Second).String()
	}
	return "0s"
}

// rated is the maker's FP16 figure for one GPU of an offer, TFLOPS; 0 if it is not known which board that is.
func rated(o fleet.Offer) float64 {
	if r := board(o); r != nil {
		return r.Datasheet
	}
	return 0
}

// board is the row of the rated table that fits an offer's GPU best; nil: none does.
func board(o fleet.Offer) (found *gpu.Rating) {
	best := -1
	for _, r := range gpu.Ratings() {
		c, _ := provider.ReadCard(r.SKU, 0)
		if c.Model != o.GPU {
			continue
		}
		fit := 0
		if strings.HasPrefix(c.Form, o.Form) && o.Form != "" {
			fit += 2
		}
		if o.Memory == 0 || slices.Contains(r.Memory, float64(o.Memory)) {
			fit++
		}
		if fit > best {
			best, found = fit, &r
		}
	}
	return found
}

// volume reads "500GB" or "2TB"; "" is 0.
func volume(s string) (gb float64, err error) {
	if s == "" {
		return 0, nil
	}
	up := strings.ToUpper(strings.TrimSpace(s))
	times := 1.0
	n, isTB := strings.CutSuffix(up, "TB")
	if isTB {
		times = 1000
	} else {
		n = strings.TrimSuffix(up, "GB")
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(n), 64)
	if err != nil || v < 0 || math.IsNaN(v) || math.IsInf(v, 0) || n == up {
		return 0, fmt.Errorf("%q: want an amount of data such as 500GB or 2TB", s)
	}
	return v * times, nil
}

// ask asks every configured cloud; with none, the example.
func (s *shop) ask(ctx context.Context, f offersFlags, book fleet.Book, k *known) ([]fleet.Offer, error) {
	list, err := clouds.Open(ctx, clouds.Options{Getenv: os.Getenv, Public: f.public, Dry: true, Only: f.clouds})
	if err != nil {
		return nil, usage(err)
	}
	k.asked = map[string]time.Time{}
	var out []fleet.Offer
	open := 0
	for _, c := range list {
		if c.Provider == nil {
			s.Skipped = append(s.Skipped, skippedCloud{c.Name, c.Skipped})
			continue
		}
		open++
		offers, err := c.Provider.Offers(ctx)
		if err != nil {
			s.Skipped = append(s.Skipped, skippedCloud{c.Name, err.Error()})
			continue
		}
		if c.Lacks != "" {
			s.Notes = append(s.Notes, c.Name+" shows offers only: to launch there, set "+c.Lacks)
		}
		out = append(out, k.judge(offers, book, c.Provider.Traits())...)
	}
	own := slices.DeleteFunc(slices.Clone(book.Prices), func(o fleet.Offer) bool {
		return len(f.clouds) > 0 && !slices.Contains(f.clouds, o.Cloud)
	})
	judged, why := prices.Judge(book, own, k.now)
	out = append(out, judged...)
	for pool, w := range why {
		k.why[pool] = w
	}
	switch {
	case open > 0 && len(out) == 0:
		var lines []string
		for _, c := range s.Skipped {
			lines = append(lines, c.Cloud+": "+c.Why)
		}
		return nil, nobody(fmt.Errorf("no cloud shows any offer: %s", strings.Join(lines, "; ")))
	case open == 0 && len(own) == 0:
		s.Example = true
		return s.example(ctx, book, k)
	}
	return out, nil
}

// judge is one cloud's answer, now.
func (k *known) judge(offers []fleet.Offer, book fleet.Book, tr provider.Traits) []fleet.Offer {
	k.asked[tr.Cloud+"/"+tr.Account] = k.now
	offers, why := prices.Judge(book, offers, k.now)
	for pool, w := range why {
		k.why[pool] = w
	}
	return offers
}

// example is the market's stand-in inside this process, read by the real adapter over HTTP.
func (s *shop) example(ctx context.Context, book fleet.Book, k *known) ([]fleet.Offer, error) {
	c, err := fake.Open(vasttest.Market())
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: vasttest.New(c, &fake.Knobs{}), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = srv.Serve(ln) }()
	defer srv.Close()
	v := vast.New(vast.Settings{URL: "http://" + ln.Addr().String()})
	offers, err := v.Offers(ctx)
	if err != nil {
		return nil, err
	}
	return k.judge(offers, book, v.Traits()), nil
}

// fromState reads what a lowtide that runs knows.
func (s *shop) fromState(ctx context.Context, state string, k *known) ([]fleet.Offer, error) {
	c, err := dial(ctx, state)
	if err != nil {
		return nil, err
	}
	defer c.nc.Close()
	b, err := store.Bind(ctx, c.js, marketBucket)
	if err != nil {
		return nil, nobody(err)
	}
	memory, _, err := prices.Read(ctx, b)
	if err != nil {
		return nil, nobody(err)
	}
	k.now, k.asked = c.clock.Now(), memory.Asked
	for account, word := range memory.Failed {
		cloud, _, _ := strings.Cut(account, "/")
		s.Notes = append(s.Notes, cloud+" did not answer last ("+word+"): its offers are as old as they say")
	}
	slices.Sort(s.Notes)
	val, _, err := b.Get(ctx, fleet.MarketKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil, failed("no price is known yet")
	}
	var m fleet.Markets
	if err == nil {
		err = fleet.Unpack(val, &m)
	}
	if err != nil {
		return nil, nobody(fmt.Errorf("read market: %w", err))
	}
	k.measured, k.pools = map[string]float64{}, m.Pools
	for _, sp := range memory.Speeds {
		for _, o := range m.Offers {
			if share, ok := o.Speed.Get(); ok && sp.Type == o.Cloud+"/"+o.Type {
				k.measured[o.Pool()] = rated(o) * share // benchmarks tell the share of the rated speed
			}
		}
	}
	return m.Offers, nil
}

func (s *shop) print(w io.Writer, f offersFlags) {
	if s.Example {
		fmt.Fprintln(w, "no cloud is configured: this is an example in Vast.ai's format, at made-up prices; nothing here is sold")
	}
	head := "USD/H\tLIST\tUSD/GPU-H\tUSD/TFLOPS-H\tMEASURED\tMARKET\tGPU\tTYPE\tWHERE\tSTOCK\tHAZARD/H\tAGE"
	if f.data != "" {
		head += "\tDATA\tUSD/H+DATA"
	}
	fmt.Fprintln(w, head+"\tNOTE")
	shown := s.Offers
	if f.most > 0 {
		shown = shown[:min(f.most, len(shown))]
	}
	for _, r := range shown {
		market := string(r.Market)
		if r.Term != "" {
			market += " " + r.Term
		}
		stock := "?"
		if r.Stock != nil {
			stock = strconv.Itoa(*r.Stock)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%dx %s\t%s\t%s/%s\t%s\t%s\t%s", amount(r.Hour, 4), amount(r.List, 4), amount(r.GPUHour, 4),
			amount(r.Rated, 5), amount(r.Measured, 5), market, r.GPUs, cmp.Or(r.GPU, "?"), r.Type, r.Cloud, r.Place, stock, amount(r.Hazard, 3), r.Age)
		if f.data != "" {
			fmt.Fprintf(w, "\t%s\t%s", amount(r.Data, 2), amount(r.Job, 4))
		}
		fmt.Fprintf(w, "\t%s\n", strings.Join(slices.DeleteFunc([]string{r.Doubt, r.Rate}, func(s string) bool { return s == "" }), "; "))
	}
	if n := len(s.Offers) - len(shown); n > 0 {
		fmt.Fprintf(w, "… and %d more; --limit 0 prints all\n", n)
	}
	fmt.Fprintln(w)
	for _, n := range s.Notes {
		fmt.Fprintln(w, n)
	}
	for _, c := range s.Skipped {
		fmt.Fprintf(w, "skipped %s: %s\n", c.Cloud, c.Why)
	}
}

// amount prints a number; "?" is not known.
func amount(f *float64, digits int) string {
	if f == nil {
		return "?"
	}
	return strconv.FormatFloat(*f, 'f', digits, 64)
}
