package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

// sender shows the incidents of one fleet on one channel.
type sender struct {
	name    string
	fleet   string
	book    *shelf
	books   store.Bucket
	channel Channel
	traits  Traits
	route   Route
	words   *Words
	links   Links
	past    func(time.Time) bool
	stretch float64 // lowtide's seconds in one of the wall

	hashes map[hashKey]string
	lost   *Record // sent and not stored: the store was away
	rev    uint64  // over which lost is to be stored
}

func newSender(cfg Config, p Place, book *shelf) *sender {
	s := &sender{
		name: p.Name, fleet: cfg.Fleet, book: book, books: cfg.Books, channel: p.Channel, traits: p.Channel.Traits(), route: p.Route.filled(),
		words: cfg.Words, links: cfg.Links, past: cfg.past, stretch: 1, hashes: map[hashKey]string{},
	}
	if cfg.Real != nil {
		s.stretch = float64(time.Hour) / float64(max(cfg.Real(time.Hour), 1))
	}
	return s
}

const (
	maxSends = 20               // in one call
	callTime = 25 * time.Second // after which a call begins no other send
	sendTime = 10 * time.Second // the longest that a platform may take
)

// function hears the clock: what the fold says when people should be told something, its own alarms, and the
// schedule, which makes up for any of them that is lost.
func (s *sender) function() fn.Function {
	f := fn.Fold("notify-"+s.name, 64, []events.Kind{"clock.ticked"}, s.handle)
	f.Slow = callTime + 2*sendTime
	return f
}

func (s *sender) handle(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
	var now time.Time
	var seq uint64
	for _, d := range batch {
		t, ok := d.Event.Data.(events.ClockTicked)
		if ok && !s.past(d.At) && d.Event.Fleet == s.fleet && (t.What == "tick" || t.What == "notify" || t.What == "notify-"+s.name) {
			now, seq = d.At, d.Seq
		}
	}
	if now.IsZero() {
		return nil, nil
	}
	b, err := s.book.read(ctx)
	if err != nil {
		return nil, err
	}
	if b.Behind {
		return nil, nil // the fold says when it has caught up, and so does the schedule
	}
	r, rev, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if r.Began.IsZero() {
		r.Began = now
	}
	return s.send(ctx, b, r, rev, now, seq)
}

// send shows what is due, one after the other, and stores each before the next.
func (s *sender) send(ctx context.Context, b *Book, r *Record, rev uint64, now time.Time, seq uint64) (said []events.Event, err error) {
	began := time.Now()
	r.forget(b)
	for range maxSends {
		at := now.Add(time.Duration(float64(time.Since(began)) * s.stretch))
		r.refill(s.traits, at, s.stretch)
		do, again := s.next(b, r, at)
		if do == nil {
			return s.arm(said, again, now, seq), nil
		}
		said = append(said, s.carry(ctx, b, r, do, at)...)
		if rev, err = s.save(ctx, r, rev); err != nil {
			return nil, err
		}
		if time.Since(began) > callTime {
			break
		}
	}
	return s.arm(said, now.Add(time.Second), now, seq), nil
}

// arm asks to be woken, unless the schedule does that anyway.
func (s *sender) arm(said []events.Event, at, now time.Time, seq uint64) []events.Event {
	if at.IsZero() || at.Sub(now) > time.Minute {
		return said
	}
	return append(said, wake(s.fleet, "notify-"+s.name, seq, now, at))
}

// carry sends one message and takes down what came of it. It says when the channel fails, and when it works again.
func (s *sender) carry(ctx context.Context, b *Book, r *Record, do *act, now time.Time) []events.Event {
	m, ref := s.message(b, do, now), ""
	if do.post != nil {
		ref = do.post.Ref
	}
	send, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	r.Tokens--
	ref, err := s.channel.Send(send, m, ref)
	if errors.Is(err, ErrGone) && do.post != nil {
		do.post = nil
		ref, err = s.channel.Send(send, m, "")
	}
	if err != nil {
		return s.failed(r, err, now)
	}
	r.Until, r.Fails = time.Time{}, 0
	if do.beat {
		r.Beat = now.In(s.route.Zone).Format(time.DateOnly)
	} else {
		r.shown(do, ref, func(i *Incident) string { return s.hash(b, i) }, now)
	}
	if !r.Told {
		return nil
	}
	since := r.Since
	r.Told = false
	return []events.Event{events.New(s.fleet, "notify/"+s.name, now, events.ChannelRecovered{Channel: s.name, Since: since})}
}

func (s *sender) message(b *Book, do *act, now time.Time) Message {
	switch {
	case do.beat:
		return s.beat(b, now)
	case len(do.of) > 1:
		return s.words.digest(b, do.of, s.route)
	}
	m := s.words.Message(b, do.of[0], s.route)
	if a := do.of[0].Ask; do.of[0].asks() && !do.of[0].Dry {
		m.Actions = s.links.actions(s.words, s.route, b.Fleet, a)
		if len(m.Actions) == 0 || !s.traits.Buttons && s.links.Base == "" {
			m.Actions = nil
			m.Lines = append(m.Lines, s.words.word(s.route, "command", a.Plan.ID))
		}
	}
	return m
}

// beat is the daily line.
func (s *sender) beat(b *Book, now time.Time) Message {
	var sum struct {
		Machines, Works, Open int
		Hourly                fleet.Money
	}
	for _, m := range b.Machines {
		if m.Gone.IsZero() && m.ID != "" {
			sum.Machines++
			sum.Hourly = sum.Hourly.Add(m.Hourly)
		}
	}
	for _, w := range b.Works {
		if w.Over == "" {
			sum.Works++
		}
	}
	for _, i := range b.Incidents {
		if i.Closed.IsZero() && i.Severity > Info {
			sum.Open++
		}
	}
	return Message{
		ID: b.Fleet + "/heartbeat", Kind: "heartbeat", Closed: true, Fleet: b.Fleet, Opened: now, Changed: now, Language: s.route.Language,
		Title: s.words.word(s.route, "heartbeat", sum),
	}
}

// tellAfter is how many failures in a row are told on the other channels.
const tellAfter = 3

var backoff = []time.Duration{2 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute}

// failed decides when to try again: what was to be shown is still in the book.
func (s *sender) failed(r *Record, err error, now time.Time) []events.Event {
	var told Wait
	if errors.As(err, &told) {
		r.Until = now.Add(time.Duration(float64(max(told.For, time.Second)) * s.stretch))
		r.Tokens = min(r.Tokens, 0)
		return nil
	}
	if r.Fails == 0 {
		r.Since = now
	}
	r.Until = now.Add(time.Duration(float64(backoff[min(r.Fails, len(backoff)-1)]) * s.stretch))
	r.Fails++
	if r.Told || r.Fails < tellAfter && !errors.Is(err, ErrSettings) {
		return nil
	}
	r.Told = true
	return []events.Event{events.New(s.fleet, "notify/"+s.name, now, events.ChannelFailed{Channel: s.name, Since: r.Since, Why: Cut(clean(err.Error()), 300)})}
}

func (s *sender) key() string { return s.fleet + "." + s.name }

// read returns what was shown; what a call before this could not store goes before what is stored.
func (s *sender) read(ctx context.Context) (*Record, uint64, error) {
	r := &Record{}
	rev, err := store.Load(ctx, s.books, s.key(), r)
	if err != nil {
		return nil, 0, fmt.Errorf("read what %s has shown: %w", s.name, err)
	}
	if s.lost != nil && s.rev == rev {
		return s.lost, rev, nil
	}
	s.lost = nil
	return r, rev, nil
}

func (s *sender) save(ctx context.Context, r *Record, rev uint64) (uint64, error) {
	r.Saves++
	next, err := store.Save(ctx, s.books, s.key(), r, rev)
	if err != nil {
		s.lost, s.rev = r, rev // sent it is: this process must not send it again
		return 0, fmt.Errorf("save what %s has shown: %w", s.name, err)
	}
	s.lost = nil
	return next, nil
}
