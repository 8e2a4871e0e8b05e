package checkpoint

import (
	"fmt"
	"math"
	"time"
)

// Budget is what must be known to tell whether a save fits into a notice.
type Budget struct {
	Bytes     int64         // to upload
	PerSecond float64       // measured upload rate, bytes per second; zero if never measured
	Serialise time.Duration // until the job has written its files
	Window    time.Duration // until the machine is gone
	Margin    time.Duration // to be left at the end, for the commit and for bad luck
}

// Verdict is whether a save can finish, with the numbers behind it.
type Verdict struct {
	OK    bool
	Known bool          // false if no rate was ever measured; then OK is false
	Needs time.Duration // to serialise and upload, without the margin
	Budget
}

// CanFinish tells whether a save that begins now is over in time. One that is not must not be begun: it would spend
// the notice on nothing, and the last complete checkpoint serves as well.
func CanFinish(b Budget) Verdict {
	v := Verdict{Budget: b}
	if !(b.PerSecond > 0) || b.Bytes < 0 {
		return v
	}
	v.Known = true
	upload := float64(b.Bytes) / b.PerSecond * float64(time.Second)
	if upload > float64(math.MaxInt64/4) { // more than seventy years; time.Duration would overflow
		upload = float64(math.MaxInt64 / 4)
	}
	v.Needs = b.Serialise + time.Duration(math.Ceil(upload))
	v.OK = v.Needs+b.Margin <= b.Window
	return v
}

// String says the verdict in one line, for logs and people.
func (v Verdict) String() string {
	if !v.Known {
		return fmt.Sprintf("not begun: upload rate not measured, window %s", v.Window)
	}
	sign, word := ">", "not begun"
	if v.OK {
		sign, word = "<=", "fits"
	}
	return fmt.Sprintf("%s: %s to save %d bytes at %.0f B/s + margin %s %s window %s",
		word, v.Needs.Round(100*time.Millisecond), v.Bytes, v.PerSecond, v.Margin, sign, v.Window)
}
