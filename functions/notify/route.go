package notify

import (
	"path"
	"slices"
	"time"
)

// Route is what a channel hears of, in which language, and when. The zero Route hears all, in English and UTC.
type Route struct {
	Least     Severity
	Kinds     []string // none: all
	Teams     []string // the workload's tag "team"; none: all
	Workloads []string // patterns of path.Match; none: all
	Language  string
	Zone      *time.Location
	Quiet     Quiet         // what is not critical waits until they end
	Wait      time.Duration // before the first message, so that a storm is one incident; 0: 10 s
	Again     time.Duration // where messages cannot be changed: first update, then six times as long each; 0: 5 min
	Repeat    time.Duration // an open incident is told anew; 0: 4 h
	Heartbeat bool          // a line a day shows that the channel works
	Hour      int           // of the day, from which on the heartbeat is sent
}

// Quiet are hours of the day, by the route's zone: from until, also over midnight. Equal: none.
type Quiet struct{ From, Until time.Duration }

// ends is when quiet hours that hold now are over; zero if none hold.
func (q Quiet) ends(now time.Time, zone *time.Location) time.Time {
	if q.From == q.Until {
		return time.Time{}
	}
	local := now.In(zone)
	midnight := time.Date(local.Year(), local.Month(), local.Day(), 0, 0, 0, 0, zone)
	for _, day := range []int{-1, 0} {
		from, until := clock(midnight.AddDate(0, 0, day), q.From), clock(midnight.AddDate(0, 0, day), q.Until)
		if q.Until < q.From {
			until = clock(midnight.AddDate(0, 0, day+1), q.Until)
		}
		if !local.Before(from) && local.Before(until) {
			return until
		}
	}
	return time.Time{}
}

// clock is a time of a day, also on the days that have 23 or 25 hours.
func clock(midnight time.Time, d time.Duration) time.Time {
	return time.Date(midnight.Year(), midnight.Month(), midnight.Day(), int(d.Hours()), int(d.Minutes())%60, 0, 0, midnight.Location())
}

func (r Route) filled() Route {
	if r.Language == "" {
		r.Language = English
	}
	if r.Zone == nil {
		r.Zone = time.UTC
	}
	for _, d := range []struct {
		of  *time.Duration
		def time.Duration
	}{{&r.Wait, 10 * time.Second}, {&r.Again, 5 * time.Minute}, {&r.Repeat, 4 * time.Hour}} {
		if *d.of == 0 {
			*d.of = d.def
		}
	}
	return r
}

// wants says whether the channel hears of an incident at all.
func (r Route) wants(i *Incident) bool {
	return i.Severity >= r.Least && (len(r.Kinds) == 0 || slices.Contains(r.Kinds, i.Kind)) &&
		(len(r.Teams) == 0 || slices.Contains(r.Teams, i.Team)) &&
		(len(r.Workloads) == 0 || slices.ContainsFunc(r.Workloads, func(pattern string) bool {
			return slices.ContainsFunc(i.About(), func(w string) bool { ok, _ := path.Match(pattern, w); return ok })
		}))
}

// holds says when an incident may be shown, if not now: quiet hours and silences.
func (r Route) holds(b *Book, i *Incident, now time.Time) time.Time {
	until := time.Time{}
	if i.Severity < Critical {
		until = r.Quiet.ends(now, r.Zone)
	}
	for _, s := range b.Silences {
		if s.Until.After(now) && s.Until.After(until) && s.covers(i) {
			until = s.Until
		}
	}
	return until
}
