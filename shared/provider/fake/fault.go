package fake

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"lowtide/shared/provider"
)

// Fault is what goes wrong with one call.
type Fault string

// The faults.
const (
	None        Fault = ""
	NoCapacity  Fault = "no_capacity"  // launch
	Throttled   Fault = "throttled"    // every call
	Unavailable Fault = "unavailable"  // every call
	Denied      Fault = "denied"       // launch, end
	LostAnswer  Fault = "lost_answer"  // launch, end: it happened, and the caller does not hear so
	LostBefore  Fault = "lost_request" // launch, end: it did not happen, and the caller does not hear so
	NeverReady  Fault = "never_ready"  // launch: it bills and never boots
	BadGPU      Fault = "bad_gpu"      // launch: the GPU gives Faults.Throttle of its speed
)

// Faults are chances from 0 to 1, drawn from the seed by what is called about whom and how often it was called
// before, so that they do not depend on the order of concurrent calls.
type Faults struct {
	NoCapacity, Throttled, Unavailable, LostAnswer, LostBefore, NeverReady, BadGPU float64

	ShortNotice float64 // a quarter of the promised notice
	NoNotice    float64

	ListingLag time.Duration // from launch until List shows the machine, at most; drawn
	Throttle   float64       // speed of a bad GPU; 0 is 0.6
}

func (f Fault) err(what string) error {
	e := map[Fault]error{
		NoCapacity: provider.ErrNoCapacity, Throttled: provider.ErrThrottled, Unavailable: provider.ErrUnavailable, Denied: provider.ErrDenied,
		LostAnswer: provider.ErrUnknown, LostBefore: provider.ErrUnknown,
	}[f]
	if e == nil {
		return nil
	}
	return fmt.Errorf("fake: %s: %w", what, e)
}

// Script sets what goes wrong with the next calls of a kind ("offers", "launch", "list", "end"), before any chance.
func (c *Cloud) Script(call string, faults ...Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.script[call] = append(c.script[call], faults...)
}

// fault draws what goes wrong with a call about a subject.
func (c *Cloud) fault(call, subject string) Fault {
	if s := c.script[call]; len(s) > 0 {
		c.script[call] = s[1:]
		return s[0]
	}
	f := c.cfg.Faults
	kinds, chances := []Fault{Throttled, Unavailable}, []float64{f.Throttled, f.Unavailable}
	switch call {
	case "launch":
		kinds = append(kinds, NoCapacity, LostAnswer, LostBefore, NeverReady, BadGPU)
		chances = append(chances, f.NoCapacity, f.LostAnswer, f.LostBefore, f.NeverReady, f.BadGPU)
	case "end":
		kinds = append(kinds, LostAnswer, LostBefore)
		chances = append(chances, f.LostAnswer, f.LostBefore)
	}
	if i := c.rolls(call, subject, chances...); i >= 0 {
		return kinds[i]
	}
	return None
}

// spoil gives a machine its hidden faults.
func (c *Cloud) spoil(r *Rental, f Fault) {
	r.NeverReady = f == NeverReady
	if f == BadGPU {
		r.Throttle = c.cfg.Faults.Throttle
		if r.Throttle == 0 {
			r.Throttle = 0.6
		}
	}
	if lag := c.cfg.Faults.ListingLag; lag > 0 {
		r.ListedAt = r.Since.Add(time.Duration(c.roll("lag", r.ID) * float64(lag)))
	}
}

// rolls draws one of several chances; -1 is none of them.
func (c *Cloud) rolls(what, subject string, chances ...float64) int {
	sum := 0.0
	for _, p := range chances {
		sum += p
	}
	if sum == 0 {
		return -1
	}
	x := c.roll(what, subject)
	for i, p := range chances {
		if x -= p; x < 0 {
			return i
		}
	}
	return -1
}

// roll is a number in [0, 1) that depends on seed, what, subject and how often that was rolled.
func (c *Cloud) roll(what, subject string) float64 {
	key := what + "\x00" + subject
	c.asked[key]++
	b := binary.BigEndian.AppendUint64(nil, c.cfg.Seed)
	b = binary.BigEndian.AppendUint64(b, c.asked[key])
	h := sha256.Sum256(append(b, key...))
	return float64(binary.BigEndian.Uint64(h[:8])>>11) / (1 << 53)
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:12])
}
