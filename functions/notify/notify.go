// Package notify tells people: it folds facts into incidents and shows each incident on every channel that wants it.
//
// It promises one message an incident, changed in place where the platform can, else told again at growing intervals
// and once at its end; that nothing is lost in a storm (what a platform's limit does not let through goes into a
// digest), that an older state is never shown after a newer one, and that the sender's death between sending and
// storing is the only way to a second message, which then carries the same incident number. A channel that fails
// delays nobody: each has a sender of its own, goes on from the state when it is back, and is told about on the others.
// It decides nothing about machines, and no word of it holds a URL or a token of a channel.
//
//	fold     facts → incidents, one book a fleet        book.go, fold.go
//	words    incident → message, en and zh-CN           words.go, words/
//	due      what a channel shows next, and when        due.go
//	send     one sender a channel, its record stored    send.go
//	wire     a POST whose errors keep secrets           wire/
//	slack, feishu, …  one folder a platform, all alike
package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"lowtide/events"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

// Severity orders what people hear of.
type Severity int

// The severities. Info is what went as planned; warning wants a look; critical cannot wait until the morning.
const (
	Info Severity = iota
	Warning
	Critical
)

var severities = []string{"info", "warning", "critical"}

// String is its name.
func (s Severity) String() string { return severities[min(max(s, Info), Critical)] }

// ParseSeverity reads a name; "" is info.
func ParseSeverity(s string) (Severity, error) {
	for i, name := range severities {
		if s == name || s == "" {
			return Severity(i), nil
		}
	}
	return Info, fmt.Errorf("severity %q: want info, warning or critical", s)
}

// Message is one incident, or a digest of several, as a channel shows it: plain text, not escaped for any platform.
type Message struct {
	ID       string   // stable for the incident: "team-a/12"; platforms with a key of their own use it
	Number   int      // of the incident; 0: not about one
	Version  int      // grows with the incident
	Kind     string   // "interrupted", "approval", …; "digest"
	Severity Severity // of the gravest in it
	Closed   bool     // it is over
	Title    string   // first line, with the money in it
	Lines    []string // most important first
	Actions  []Action // what a person may decide now
	Workload string   // whom it is about, where it is one
	Fleet    string
	Opened   time.Time
	Changed  time.Time
	Language string // "en", "zh-CN"
}

// Action is a decision that a person can take.
type Action struct {
	Act   string // "approve", "deny"
	Text  string // on the button
	Token string // what a button carries: opaque, signed
	URL   string // page where the same is decided; "" if there is none
}

// Traits are what a platform can do and allows.
type Traits struct {
	Edits     bool          // Send with a reference changes the message in place
	Buttons   bool          // it carries buttons back to us
	Links     bool          // it shows URLs of actions of its own accord
	PerMinute float64       // messages, with a margin under the platform's limit
	Burst     int           // messages at once
	Every     time.Duration // least time between two changes of one message
	Renew     time.Duration // repeats open incidents, for receivers that forget; 0: does not
}

// Channel is one place where people read.
type Channel interface {
	Traits() Traits
	// Send shows m and returns a reference to it. With ref, which an earlier Send of the same incident returned, it
	// changes that message where the platform can, else follows it up. Errors: Wait, ErrSettings, ErrGone; any other
	// is tried again. No error tells a URL, token or signature.
	Send(ctx context.Context, m Message, ref string) (string, error)
}

// The errors that a sender acts on.
var (
	// ErrSettings: the platform refuses us for good: key, signature, address, clock, size. A person must look.
	ErrSettings = errors.New("refused for good")
	// ErrGone: the message to change is not there any more; a new one is sent.
	ErrGone = errors.New("message is gone")
)

// Wait is a platform's word to come again later.
type Wait struct{ For time.Duration }

// Error says how long.
func (w Wait) Error() string { return "told to wait " + w.For.String() }

// Place is a channel and what it hears of.
type Place struct {
	Name    string // letters, digits, '-'
	Channel Channel
	Route   Route
}

// Config makes the functions of one fleet.
type Config struct {
	Fleet  string
	Books  store.Bucket // notify's own: the book under the fleet's name, a record a channel below it
	Places []Place
	Words  *Words                            // nil: the built-in ones
	Links  Links                             // signs decisions; zero: none are offered but the command's
	Now    func() time.Time                  // lowtide's: what is read up from the past is not told as news; nil: all is news
	Real   func(time.Duration) time.Duration // how long lowtide's time is on the wall; nil: as long
}

// stale is how old a fact or a tick may be to be of now.
const stale = 2 * time.Minute

// past says that something stored then is not of now: the process was away, or reads a stream up from its beginning.
func (c Config) past(at time.Time) bool { return c.Now != nil && c.Now().Sub(at) > stale }

// New makes the functions of one fleet: the fold, and a sender for each place. Without places there are none.
func New(cfg Config) ([]fn.Function, error) {
	if len(cfg.Places) == 0 {
		return nil, nil
	}
	if cfg.Words == nil {
		w, err := NewWords(nil)
		if err != nil {
			return nil, err
		}
		cfg.Words = w
	}
	fns := []fn.Function{(&keeper{cfg: cfg}).function()}
	books := &shelf{books: cfg.Books, fleet: cfg.Fleet}
	seen := map[string]bool{}
	for _, p := range cfg.Places {
		if p.Name == "" || seen[p.Name] {
			return nil, fmt.Errorf("notify: channel %q: want a name of its own", p.Name)
		}
		seen[p.Name] = true
		fns = append(fns, newSender(cfg, p, books).function())
	}
	return fns, nil
}

// Two makes the same of two functions, for hosts where one for each channel is too many: the fold, and one that serves all
// channels side by side. There a platform that hangs holds up the others' next look for as long as one send may take.
func Two(cfg Config) (fold, channels fn.Function, err error) {
	names := make([]fn.Function, 0, len(cfg.Places))
	if all, err := New(cfg); err != nil {
		return fold, channels, err
	} else if len(all) > 0 {
		fold, names = all[0], all[1:]
	} else {
		fold = (&keeper{cfg: cfg}).function()
	}
	channels = fn.Fold("notify-channels", 64, []events.Kind{"clock.ticked"}, func(ctx context.Context, batch []fn.Delivery) ([]events.Event, error) {
		said, errs := make([][]events.Event, len(names)), make([]error, len(names))
		var all sync.WaitGroup
		for i, f := range names {
			all.Go(func() { said[i], errs[i] = f.Handle(ctx, batch) })
		}
		all.Wait()
		return slices.Concat(said...), errors.Join(errs...) // where one has failed all look again: what is shown is shown
	})
	channels.Slow = callTime + 2*sendTime
	return fold, channels, nil
}

// Kinds are the kinds of incidents, as routes and silences name them.
var Kinds = []string{"interrupted", "workload", "approval", "trouble", "budget", "halted", "channel", "alert", "rule", "waste", "checkpoint", "stray", "reservation"}
