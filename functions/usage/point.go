package usage

import (
	"fmt"
	"math"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// The limits below which a signal says "nothing". None of them has been measured on many cards: they are as low as the noise
// of the counters, because a wrong "idle" stops somebody's work and a wrong "busy" only costs money.
const (
	quietSM      = 0.02 // of the multiprocessors, at the minute's highest reading
	quietActive  = 0.03 // of the time with any kernel, likewise
	quietDRAM    = 0.01
	quietTraffic = 1.0  // MB/s over PCIe and NVLink
	quietPower   = 1.10 // times the least that the card drew while it did nothing
	quietNetwork = 1.0  // MB/s: downloading a model is work
	quietDisk    = 5.0  // MB/s
	quietCPU     = 0.10 // of all cores: preparing data is work
	heldMemory   = 500  // MB
	underShare   = 0.15 // of a GPU, on average: less is underused
	fullShare    = 0.25 // of the last minutes: more is busy again
	roomToSpare  = 2.0  // a smaller GPU must do twice what is used
	memoryRoom   = 1.2
	shortest     = 50 * time.Second // a measurement over less is none
)

// Kind is what one minute was.
type Kind string

// The kinds. A minute that is unknown counts for nothing.
const (
	Unknown Kind = "?"
	Quiet   Kind = "q" // nothing at all
	Held    Kind = "h" // nothing, with memory or a process held
	Works   Kind = "w" // something on this machine worked
)

// Point is one minute.
type Point struct {
	At     time.Time `json:"t"`
	Kind   Kind      `json:"k"`
	Use    float64   `json:"u"`           // of the GPU that was used most, 0 to 1; below 0: unknown
	Memory int       `json:"m,omitempty"` // MB held on one GPU, at most
}

// point judges one minute. base holds the least power of each GPU and learns from it.
func point(m events.UtilisationMeasured, at time.Time, base map[string]float64) Point {
	p := Point{At: at, Kind: Unknown, Use: -1}
	if m.Run != fleet.Running || m.Busy != "" || m.Over < shortest || len(m.GPUs) == 0 {
		return p
	}
	quiet, held := true, false
	for _, g := range m.GPUs {
		share, known := useOf(g)
		if !known { // memory traffic alone is no answer to whether anything computes
			return Point{At: at, Kind: Unknown, Use: -1} // one GPU in the dark may be the one that works
		}
		p.Use = max(p.Use, share)
		p.Memory = max(p.Memory, int(g.Memory.Or(0)))
		quiet = quiet && still(g, base)
		held = held || g.Memory.Or(0) > heldMemory || g.Processes.Or(0) > 0
	}
	p.Use = math.Round(p.Use*1e4) / 1e4
	host := m.Network.Or(0) > quietNetwork || m.Disk.Or(0) > quietDisk || m.CPU.Or(0) > quietCPU
	switch {
	case !quiet || host:
		p.Kind = Works
	case held:
		p.Kind = Held
	default:
		p.Kind = Quiet
	}
	return p
}

// useOf is the share of a GPU that was used, of its cores or of its memory, by the best signal that is there. The time with any kernel is only an upper
// bound of it: little of it means little use, much of it proves nothing.
func useOf(g events.GPUUse) (float64, bool) {
	if v, ok := g.SM.Get(); ok {
		return max(v, g.Tensor.Or(0), g.DRAM.Or(0)), true
	}
	return g.Active.Get()
}

// still says that a GPU did nothing, by every signal that is known.
func still(g events.GPUUse, base map[string]float64) bool {
	limit := quietActive
	if _, ok := g.SM.Get(); ok {
		limit = quietSM
	}
	share, _ := useOf(g)
	if max(share, g.Peak.Or(0)) >= limit || g.DRAM.Or(0) >= quietDRAM || g.PCIe.Or(0)+g.NVLink.Or(0) >= quietTraffic {
		return false
	}
	power, known := g.Power.Get()
	if !known || power <= 0 {
		return true
	}
	least, seen := base[g.UUID]
	if !seen || power < least {
		base[g.UUID] = power
		return true
	}
	return power < quietPower*least
}

// take adds a minute, and forgets what is over.
func (s *State) take(m events.UtilisationMeasured, at time.Time, o Options) {
	if m.Workload != s.Workload || m.Epoch != s.Epoch {
		*s = State{Workload: m.Workload, Epoch: m.Epoch, Base: s.Base, Seq: s.Seq}
	}
	if s.Base == nil {
		s.Base = map[string]float64{}
	}
	s.Points = append(s.Points, point(m, at, s.Base))
	keep := max(o.Underused, 2*o.Idle) + 2*time.Minute
	for len(s.Points) > 0 && at.Sub(s.Points[0].At) > keep {
		s.Points = s.Points[1:]
	}
}

// Word is what is concluded of a workload.
type Word string

// The words.
const (
	Nothing   Word = ""
	Busy      Word = "busy"
	Idle      Word = "idle"
	IdleHeld  Word = "held"
	Underused Word = "underused"
)

func (w Word) wastes() bool { return w == Idle || w == IdleHeld || w == Underused }

// gap is the longest silence within a window: agents speak each minute.
const gap = 3 * time.Minute

// conclude looks back over the windows.
func (s *State) conclude(o Options, now time.Time) (Word, time.Time) {
	if len(s.Points) == 0 || s.Points[len(s.Points)-1].Kind == Unknown {
		return s.Said, s.Since // what cannot be seen changes nothing
	}
	if word, since, ok := s.idle(o, now); ok {
		return word, since
	}
	mean, from, covered := s.average(now, o.Underused)
	if s.Said == Underused {
		if recent, _, _ := s.average(now, o.Underused/4); recent < fullShare {
			return Underused, s.Since
		}
		return Busy, now
	}
	if covered && mean < underShare {
		return Underused, from
	}
	return Busy, now
}

// idle finds an unbroken quiet of two windows up to now. A few minutes that could not be read do not break it, and do not
// count for it either.
func (s *State) idle(o Options, now time.Time) (Word, time.Time, bool) {
	held, since := false, now
	var minutes time.Duration
	last := now
	for i := len(s.Points) - 1; i >= 0; i-- {
		p := s.Points[i]
		if last.Sub(p.At) > gap || p.Kind == Works {
			break
		}
		if p.Kind == Unknown {
			continue // and the gap to the next known one grows
		}
		last, since = p.At, p.At
		held = held || p.Kind == Held
		minutes += time.Minute
	}
	if minutes < 2*o.Idle {
		return "", time.Time{}, false
	}
	if held {
		return IdleHeld, since, true
	}
	return Idle, since, true
}

// average is the mean use over a time up to now; covered says that the time was heard well enough to judge by.
func (s *State) average(now time.Time, over time.Duration) (mean float64, from time.Time, covered bool) {
	sum, n := 0.0, 0
	from = now
	for _, p := range s.Points {
		if now.Sub(p.At) > over || p.Use < 0 {
			continue
		}
		sum, n = sum+p.Use, n+1
		if p.At.Before(from) {
			from = p.At
		}
	}
	if n == 0 {
		return 1, now, false
	}
	enough := time.Duration(n)*time.Minute >= over*5/6 && now.Sub(from) >= over-time.Minute
	return sum / float64(n), from, enough
}

// fact says the word.
func (s *State) fact(machine string, o Options) events.Fact {
	last := s.Points[len(s.Points)-1]
	switch s.Said {
	case Idle, IdleHeld:
		why := fmt.Sprintf("no GPU, link, network, disk or core worked since %s", s.Since.UTC().Format("15:04"))
		if s.Said == IdleHeld {
			why += fmt.Sprintf("; %d MB of GPU memory are held", last.Memory)
		}
		return events.WorkloadIdle{Workload: s.Workload, Machine: machine, Epoch: s.Epoch, Since: s.Since, Held: s.Said == IdleHeld, Why: why}
	case Underused:
		mean, _, _ := s.average(last.At, o.Underused)
		most := 0
		for _, p := range s.Points {
			most = max(most, p.Memory)
		}
		return events.WorkloadUnderused{
			Workload: s.Workload, Machine: machine, Epoch: s.Epoch, Since: s.Since,
			Needs: min(1, math.Round(mean*roomToSpare*100+0.5)/100), Memory: int(math.Ceil(float64(most) * memoryRoom / 1000)),
			Why: fmt.Sprintf("%.0f %% of the GPU used over %s, %d MB of its memory", 100*mean, o.Underused, most),
		}
	}
	return events.WorkloadBusy{Workload: s.Workload, Machine: machine, Epoch: s.Epoch}
}
