package fake

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"regexp"
	"slices"
	"strings"
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

var digits = regexp.MustCompile(`\.\d+`)

// Takes checks the parameters of a call against those that it takes, ".#" standing for a number in a name and "!" marking
// what the call cannot do without: the first that it does not take, and the first that it lacks; "" for none.
func Takes(known []string, given url.Values) (unknown, lacks string) {
	names := map[string]bool{}
	for k := range given {
		name := digits.ReplaceAllString(k, ".#")
		if names[name] = true; !slices.Contains(known, name) && !slices.Contains(known, "!"+name) {
			unknown = k
		}
	}
	for _, k := range known {
		if name, needed := strings.CutPrefix(k, "!"); needed && !names[name] {
			return unknown, name
		}
	}
	return unknown, ""
}

// Canonical writes a query by RFC 3986, sorted, as the vendors' descriptions of their signatures have it.
func Canonical(query url.Values) string {
	var pairs []string
	for k, values := range query {
		for _, v := range values {
			pairs = append(pairs, Escape(k)+"="+Escape(v))
		}
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&")
}

// Escape writes a text by RFC 3986.
func Escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// Digest is the SHA-256 of a text in hex.
func Digest(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}
