package gpu

import "time"

// Profile is what a benchmark multiplies when nobody tells it otherwise, and so what an answer to an order must show.
type Profile struct {
	Size    int           // edge of the matrices
	Windows int           // measured windows
	Measure time.Duration // all windows together
	WarmUp  time.Duration // the most a warm-up takes
}

// ProfileOf is a backend's profile. The cpu backend is for demonstrations, and short.
func ProfileOf(backend string) Profile {
	if backend == "cpu" {
		return Profile{Size: 128, Windows: 30, Measure: 300 * time.Millisecond, WarmUp: 100 * time.Millisecond}
	}
	return Profile{Size: 8192, Windows: 30, Measure: 30 * time.Second, WarmUp: 20 * time.Second}
}
