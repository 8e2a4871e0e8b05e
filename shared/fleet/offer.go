package fleet

import (
	"strings"
	"time"
)

// Market is how capacity is sold.
type Market string

// The markets.
const (
	OnDemand Market = "on_demand"
	Spot     Market = "spot"
	Reserved Market = "reserved" // already paid
)

// Offer is one thing that can be bought: a machine type, in a place, on a market, at a price.
type Offer struct {
	Cloud   string `json:"cloud"`
	Account string `json:"account"`
	Region  string `json:"region"`
	Zone    string `json:"zone,omitempty"`
	Type    string `json:"type"`
	Market  Market `json:"market"`

	GPU    string `json:"gpu,omitempty"` // canonical model, "V100"
	GPUs   int    `json:"gpus,omitempty"`
	Form   string `json:"form,omitempty"`   // "SXM4", "PCIe"; "": not told
	Memory int    `json:"memory,omitempty"` // GB of one GPU, as its maker counts; 0: not told
	CUDA   string `json:"cuda,omitempty"`   // highest version that the driver runs, "12.4"; "": not told

	Certified string `json:"certified,omitempty"` // what its cloud is certified for, as the price book says; words with commas between

	Price  Price          `json:"price"`            // as the cloud quotes it
	Hourly Maybe[Money]   `json:"hourly,omitzero"`  // what this account pays, in USD per instance-hour; unknown is never planned on
	Floats bool           `json:"floats,omitempty"` // what runs pays the pool's present price, not that of its launch
	Term   time.Duration  `json:"term,omitempty"`   // must be paid for so long, used or not; 0: by the hour. Never planned on.
	Quoted time.Time      `json:"quoted,omitzero"`  // when the price was set down, where it is older than the answer it came in
	Egress Maybe[Money]   `json:"egress,omitzero"`  // a GB out to the internet
	Disk   Maybe[Money]   `json:"disk,omitzero"`    // a GB-month of disk beyond what the price includes
	Stock  Maybe[int]     `json:"stock,omitzero"`   // machines to be had now; unknown is tried
	Speed  Maybe[float64] `json:"speed,omitzero"`   // work per hour against the workload's reference machine; unknown counts as 1
	Hazard Maybe[float64] `json:"hazard,omitzero"`  // measured interruptions per hour

	Notice      time.Duration `json:"notice,omitempty"`      // promised warning before the end; 0 is none
	Marketplace bool          `json:"marketplace,omitempty"` // strangers' machines: never start before the benchmark
	Host        string        `json:"host,omitempty"`        // whose, as the marketplace names it: known of what was bought, at the latest

	// Reservation names the paid capacity that the machine is taken from, where it is: such an offer is of the reserved market
	// and costs nothing more.
	Reservation string `json:"reservation,omitempty"`
}

// Pool names the market that this offer comes from; refusals and hazards are kept by it.
func (o Offer) Pool() string {
	pool := strings.Join([]string{o.Cloud, o.Account, o.Region, o.Zone, o.Type, string(o.Market)}, "/")
	if o.Term > 0 {
		pool += "/" + o.Term.String()
	}
	if o.Reservation != "" {
		pool += "/" + o.Reservation
	}
	return pool
}

// PerHour is the normalised price, or false where it is not known.
func (o Offer) PerHour() (float64, bool) {
	m, ok := o.Hourly.Get()
	return m.Float(), ok
}

// String prints "p3.2xlarge spot fake/us-east-1a".
func (o Offer) String() string {
	place := o.Zone
	if place == "" {
		place = o.Region
	}
	name := o.Type + " " + string(o.Market) + " " + o.Cloud + "/" + place
	if o.Reservation != "" {
		name += " (" + o.Reservation + ")"
	}
	return name
}

// MarketKey is where functions/prices keeps Markets, as Pack writes them, in its bucket.
const MarketKey = "market"

// Markets is what the decider plans on: every offer last seen, by cloud and region.
// Only functions/prices writes it.
type Markets struct {
	AsOf   time.Time            `json:"as_of"`
	Offers []Offer              `json:"offers"`
	Pools  map[string]*PoolPast `json:"pools,omitempty"` // by Offer.Pool
}

// PoolPast is what the facts of every fleet, and each look at the market, say about one pool.
type PoolPast struct {
	Hours         float64 `json:"hours,omitempty"`         // machine-hours run
	Interruptions int     `json:"interruptions,omitempty"` // ends that the cloud caused
	Refusals      int     `json:"refusals,omitempty"`
	Launches      int     `json:"launches,omitempty"`

	// Of spot alone. Good and Seen forget over a day, Ends and Due over two weeks, Usual over one.
	Up    bool      `json:"up,omitempty"`    // it was to be had at the last look
	Since time.Time `json:"since,omitzero"`  // since when that is so, as far as was seen
	At    time.Time `json:"at,omitzero"`     // of the last look; zero: none was taken
	Good  float64   `json:"good,omitempty"`  // hours in which it was to be had
	Seen  float64   `json:"seen,omitempty"`  // hours looked at
	Ends  float64   `json:"ends,omitempty"`  // times that it went
	Due   float64   `json:"due,omitempty"`   // and how often an ordinary pool of its age and level would have
	Usual float64   `json:"usual,omitempty"` // mean price, USD per instance-hour
}
