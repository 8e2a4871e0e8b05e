package notify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"time"
)

// Record is what one channel has shown. Its sender alone writes it.
type Record struct {
	Posts  []*Post   `json:"posts"`
	Tokens float64   `json:"tokens"`
	Filled time.Time `json:"filled,omitzero"` // when Tokens was right
	Until  time.Time `json:"until,omitzero"`  // told, or resolved, to wait until then
	Fails  int       `json:"fails,omitempty"` // in a row
	Since  time.Time `json:"since,omitzero"`  // of the first of them
	Told   bool      `json:"told,omitempty"`  // others know that this channel fails
	Beat   string    `json:"beat,omitempty"`  // day of the last heartbeat
	Began  time.Time `json:"began,omitzero"`  // what was over long before is not told
	Saves  uint64    `json:"saves"`
}

// Post is one message on a channel: of one incident, or a digest of several.
type Post struct {
	Of    []int          `json:"of"`
	Ref   string         `json:"ref,omitempty"`
	Hash  map[int]string `json:"hash"`  // of each incident, as it was shown
	Seen  map[int]int    `json:"seen"`  // its version then, or a later one that looks the same
	Count int            `json:"count"` // messages about its first incident so far, this one too
	First time.Time      `json:"first"`
	At    time.Time      `json:"at"` // last sent
}

// act is what a sender does next.
type act struct {
	of   []*Incident
	post *Post // to change; nil: a new one
	beat bool
}

// last is the newest post of an incident.
func (r *Record) last(number int) *Post {
	for _, p := range slices.Backward(r.Posts) {
		if slices.Contains(p.Of, number) {
			return p
		}
	}
	return nil
}

// refill adds what the limit has given since. stretch is how much of lowtide's time a second of the wall is.
func (r *Record) refill(t Traits, now time.Time, stretch float64) {
	burst := float64(max(t.Burst, 1))
	if r.Filled.IsZero() {
		r.Tokens, r.Filled = burst, now
		return
	}
	if d := now.Sub(r.Filled); d > 0 {
		r.Tokens = min(burst, r.Tokens+d.Seconds()/stretch*t.PerMinute/60)
		r.Filled = now
	}
}

// next decides what a channel shows now, or when to look again; zero: when something changes.
func (s *sender) next(b *Book, r *Record, now time.Time) (do *act, at time.Time) {
	later := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	var fresh []*Incident
	var changed []*Post
	seen := map[*Post]bool{}
	for _, n := range b.numbers() {
		i := b.Incidents[n]
		if !s.wants(i) {
			continue
		}
		p := r.last(n)
		if p == nil && !i.Closed.IsZero() && i.Closed.Before(r.Began.Add(-2*stale)) {
			continue
		}
		due, anew := s.due(b, i, p, now)
		if due.IsZero() {
			continue
		}
		if hold := s.route.holds(b, i, now); hold.After(due) {
			due = hold
		}
		switch {
		case due.After(now):
			later(due)
		case anew:
			fresh = append(fresh, i)
		case !seen[p]:
			seen[p] = true
			changed = append(changed, p)
		}
	}
	beat := s.beatDue(r, now)
	if len(fresh) == 0 && len(changed) == 0 && !beat {
		return nil, at
	}
	if r.Until.After(now) {
		later(r.Until)
		return nil, at
	}
	if r.Tokens < 1 {
		wait := (1 - r.Tokens) * 60 / s.traits.PerMinute * s.stretch
		later(now.Add(time.Duration(math.Ceil(wait * float64(time.Second)))))
		return nil, at
	}
	return s.choose(b, r, fresh, changed), now
}

// choose puts the gravest first. What the limit does not let through one by one goes into a digest, but for questions:
// a digest has no buttons.
func (s *sender) choose(b *Book, r *Record, fresh []*Incident, changed []*Post) *act {
	news := slices.DeleteFunc(slices.Clone(fresh), (*Incident).asks)
	switch {
	case len(fresh) > max(1, int(r.Tokens)) && len(news) > 1:
		return &act{of: news}
	case len(fresh) > 0:
		slices.SortStableFunc(fresh, func(x, y *Incident) int { return int(y.Severity) - int(x.Severity) })
		return &act{of: fresh[:1]}
	case len(changed) > 0:
		worst := func(p *Post) (most Severity) {
			for _, n := range p.Of {
				if i := b.Incidents[n]; i != nil {
					most = max(most, i.Severity)
				}
			}
			return most
		}
		slices.SortStableFunc(changed, func(x, y *Post) int { return int(worst(y)) - int(worst(x)) })
		return &act{of: b.those(changed[0].Of), post: changed[0]}
	}
	return &act{beat: true}
}

// asks says that a person may decide something.
func (i *Incident) asks() bool { return i.Ask != nil && !i.Ask.Only && i.Closed.IsZero() }

func (b *Book) those(numbers []int) (all []*Incident) {
	for _, n := range numbers {
		if i := b.Incidents[n]; i != nil {
			all = append(all, i)
		}
	}
	return all
}

// wants: also not about itself, where it could not be read.
func (s *sender) wants(i *Incident) bool {
	return s.route.wants(i) && (i.Kind != "channel" || i.Note.Name != s.name)
}

// due is when an incident must be shown, and whether anew or by changing its post; zero: it is shown as it is.
//
//	never shown                 after the route's wait, anew
//	changed, platform edits     after the platform's least time, in place; its end at once
//	changed, platform does not  its end at once, else at growing intervals, anew
//	open and unchanged          after the route's repeat, anew
func (s *sender) due(b *Book, i *Incident, p *Post, now time.Time) (at time.Time, anew bool) {
	if p == nil {
		if i.Severity == Critical {
			return i.Opened, true
		}
		return i.Opened.Add(s.route.Wait), true
	}
	open := i.Closed.IsZero()
	if p.Seen[i.Number] != i.Version {
		if at = s.changedAt(i, p); at.After(now) || p.Hash[i.Number] != s.hash(b, i) {
			return at, !s.traits.Edits
		}
		p.Seen[i.Number] = i.Version // rendered only when it is due, and it looks the same
	}
	if open && s.traits.Renew > 0 {
		return p.At.Add(s.traits.Renew), false
	}
	if open && i.Severity > Info {
		return p.At.Add(s.route.Repeat), true
	}
	return time.Time{}, false
}

// changedAt is when a change of an incident may be shown.
func (s *sender) changedAt(i *Incident, p *Post) time.Time {
	switch {
	case !i.Closed.IsZero():
		return i.Closed
	case s.traits.Edits:
		return later(p.At.Add(s.traits.Every), i.Changed)
	}
	again := s.route.Again
	for range min(p.Count-1, 5) {
		again *= 6
	}
	return later(p.At.Add(again), i.Changed)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// hash names what an incident looks like on this channel.
func (s *sender) hash(b *Book, i *Incident) string {
	if h, ok := s.hashes[hashKey{i.Number, i.Version}]; ok {
		return h
	}
	m := s.words.Message(b, i, s.route)
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %v", m.Title, m.Lines, m.Closed)
	sum := hex.EncodeToString(h.Sum(nil)[:8])
	if len(s.hashes) > 4096 {
		clear(s.hashes)
	}
	s.hashes[hashKey{i.Number, i.Version}] = sum
	return sum
}

type hashKey struct{ number, version int }

// beatDue says that today's line that shows that the channel works is still to be sent.
func (s *sender) beatDue(r *Record, now time.Time) bool {
	if !s.route.Heartbeat {
		return false
	}
	local := now.In(s.route.Zone)
	return local.Hour() >= s.route.Hour && r.Beat != local.Format(time.DateOnly)
}

// shown takes down what was sent. An older post of the same incidents stays, for its reference.
func (r *Record) shown(do *act, ref string, hash func(*Incident) string, now time.Time) {
	p := do.post
	if p == nil {
		p = &Post{First: now, Hash: map[int]string{}, Seen: map[int]int{}, Count: 1}
		for _, i := range do.of {
			p.Of = append(p.Of, i.Number)
			if old := r.last(i.Number); old != nil {
				p.Count = max(p.Count, old.Count+1)
			}
		}
		r.Posts = append(r.Posts, p)
	}
	for _, i := range do.of {
		p.Hash[i.Number], p.Seen[i.Number] = hash(i), i.Version
	}
	p.Ref, p.At = ref, now
}

// forget drops posts that nothing of the book is shown by any more.
func (r *Record) forget(b *Book) {
	r.Posts = slices.DeleteFunc(r.Posts, func(p *Post) bool {
		return !slices.ContainsFunc(p.Of, func(n int) bool { return b.Incidents[n] != nil && r.last(n) == p })
	})
}
