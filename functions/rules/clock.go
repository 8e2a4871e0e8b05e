package rules

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // zones also where the host has none

	"github.com/netresearch/go-cron"
)

// schedule are moments.
type schedule interface{ Next(time.Time) time.Time }

// parseSchedule reads five fields of cron, in a zone. Where both days are named, both must fit.
func parseSchedule(text, zone string) (schedule, error) {
	if strings.ContainsAny(text, "=") || strings.HasPrefix(strings.TrimSpace(text), "@every") {
		return nil, fmt.Errorf("%q: want five fields (minute hour day month weekday) or @daily, @hourly, @weekly; the zone is the field timezone", text)
	}
	s, err := cron.ParseStandard("CRON_TZ=" + zone + " " + text)
	if err != nil {
		return nil, fmt.Errorf("%q: want five fields: minute hour day month weekday: %w", text, err)
	}
	if s.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("%q never comes", text)
	}
	return s, nil
}

// window is a stretch of certain days: from until, by the clock of a zone, also over midnight.
type window struct {
	from, until int // minutes of the day
	days        [7]bool
	zone        *time.Location
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// parseWindow reads "22:00-07:00" or "22:00-07:00 mon-fri,sun". A day is the one on which it begins.
func parseWindow(text string, zone *time.Location) (w window, err error) {
	bad := func() error {
		return fmt.Errorf("%q: want hours such as 22:00-07:00, and perhaps days: mon-fri,sun", text)
	}
	parts := strings.Fields(strings.ToLower(text))
	if len(parts) == 0 || len(parts) > 2 {
		return w, bad()
	}
	from, until, ok := strings.Cut(parts[0], "-")
	if w.from, err = minutes(from); err != nil || !ok {
		return w, bad()
	}
	if w.until, err = minutes(until); err != nil || w.from == w.until {
		return w, bad()
	}
	w.zone = zone
	if len(parts) == 1 {
		w.days = [7]bool{true, true, true, true, true, true, true}
		return w, nil
	}
	for _, span := range strings.Split(parts[1], ",") {
		first, last, _ := strings.Cut(span, "-")
		if last == "" {
			last = first
		}
		i, j := weekday(first), weekday(last)
		if i < 0 || j < 0 {
			return w, bad()
		}
		for ; ; i = (i + 1) % 7 {
			w.days[i] = true
			if i == j {
				break
			}
		}
	}
	return w, nil
}

func weekday(name string) int {
	for i, d := range weekdays {
		if d == name {
			return i
		}
	}
	return -1
}

// minutes reads 22:00; 24:00 is the day's end.
func minutes(s string) (int, error) {
	h, m, ok := strings.Cut(s, ":")
	hour, err1 := strconv.Atoi(h)
	minute, err2 := strconv.Atoi(m)
	if !ok || err1 != nil || err2 != nil || hour < 0 || minute < 0 || minute > 59 || hour*60+minute > 24*60 {
		return 0, fmt.Errorf("%q is no time of day", s)
	}
	return hour*60 + minute, nil
}

// edges are the window that began on the day of local, moved by some days. Days of 23 or 25 hours keep the clock's hours.
func (w window) edges(local time.Time, day int) (from, until time.Time, ok bool) {
	at := func(day, minute int) time.Time {
		return time.Date(local.Year(), local.Month(), local.Day()+day, minute/60, minute%60, 0, 0, w.zone)
	}
	from, until = at(day, w.from), at(day, w.until)
	if w.until <= w.from {
		until = at(day+1, w.until)
	}
	return from, until, w.days[at(day, 12*60).Weekday()]
}

// holds says whether a moment is inside.
func (w window) holds(t time.Time) bool {
	local := t.In(w.zone)
	for _, day := range []int{-1, 0} {
		if from, until, ok := w.edges(local, day); ok && !t.Before(from) && t.Before(until) {
			return true
		}
	}
	return false
}

// next is when holds changes, within eight days.
func (w window) next(t time.Time) (best time.Time) {
	local := t.In(w.zone)
	for day := -1; day <= 8; day++ {
		from, until, ok := w.edges(local, day)
		for _, edge := range []time.Time{from, until} {
			if ok && edge.After(t) && w.holds(edge) != w.holds(t) && (best.IsZero() || edge.Before(best)) {
				best = edge
			}
		}
	}
	return best
}
