package provision

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// joinFor is how long after its plan's expiry a machine may still join: boots are slow, and a token must not be good for ever.
const joinFor = 15 * time.Minute

// Join is Options.PerPlan for machines that fetch their own NATS user: where, and a token that proves which plan bought
// them. It is a function of the plan alone, so that a purchase that is asked for again carries the same bytes.
func Join(url string, key []byte) func(provider.Labels, fleet.Plan) map[string]string {
	return func(l provider.Labels, p fleet.Plan) map[string]string {
		until := p.Expires.Add(joinFor).UTC()
		return map[string]string{
			"LOWTIDE_JOIN": url, "LOWTIDE_WORKLOAD": l.Workload,
			"LOWTIDE_JOIN_UNTIL": until.Format(time.RFC3339), "LOWTIDE_JOIN_TOKEN": Token(key, l, until),
		}
	}
}

// Token proves that a machine was bought for a plan; it is good until a time, by seconds.
func Token(key []byte, l provider.Labels, until time.Time) string {
	mac := hmac.New(sha256.New, key)
	for _, part := range []string{l.Install, l.Fleet, l.Plan, l.Machine, l.Workload, until.UTC().Format(time.RFC3339)} {
		fmt.Fprintf(mac, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(mac.Sum(nil))
}
