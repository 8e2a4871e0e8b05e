package fake

import (
	"time"

	"lowtide/shared/market"
)

// Knobs are what a test asks of a stand-in, a vendor's HTTP API over a Cloud, beside what its account does. The zero
// Knobs are a vendor in good health.
type Knobs struct {
	Now     func() time.Time // the vendor's clock without the skew; needed where requests carry a time
	Skew    time.Duration    // how far the vendor's clock is ahead
	Expired bool             // credentials are not taken any more, said in the vendor's words
	Loop    bool             // the pages of a list go in a circle
	Swap    bool             // a launch of spot is answered with an on-demand machine
	Left    func() []string  // set by the stand-in: what still bills that came with a machine (disks, addresses); nil: nothing can
}

// Places are zones in which everything is always to be had.
func Places(zones ...string) []market.Trace {
	var out []market.Trace
	for _, z := range zones {
		out = append(out, market.Trace{Zone: z, Gap: 10 * 365 * 24 * time.Hour, Count: []int{1 << 20}})
	}
	return out
}
