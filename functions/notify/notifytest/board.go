// Package notifytest holds stand-ins for the chat platforms: each checks what the real one checks (signature, schema,
// sizes, limits in its own time) and answers as it does, with HTTP 200 where the real one lies.
//
// They keep what people would see. They are no platform: what they do not check is not proven.
package notifytest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// Shown is one message as people see it now.
type Shown struct {
	Ref     string
	Title   string
	Text    string // the body, unescaped
	Buttons []Button
	Edits   int
	At      time.Time // posted
	Changed time.Time // last change
	Raw     string    // as it came last
}

// Button is what a person can press.
type Button struct{ Act, Token, Text, URL string }

// Board is what all stand-ins have: a clock, a wall of messages, a limit, and faults.
type Board struct {
	Now   func() time.Time
	Limit int           // messages in Per; beyond it the platform refuses
	Per   time.Duration // 0: no limit
	Block time.Duration // how long it refuses after one too many; 0: until the window is over
	// Fault, when set, is asked before each request: a status other than 0 is answered at once, and with Lost the
	// request is carried out all the same.
	Fault func() (status int, lost bool)

	mu       sync.Mutex
	shown    []*Shown
	taken    []time.Time
	blocked  time.Time
	refused  int
	problems []string
	next     int
}

// Messages are those that people see, oldest first.
func (b *Board) Messages() (all []Shown) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.shown {
		all = append(all, *s)
	}
	return all
}

// Problems are breaches of the platform's rules: a schema, a size, a signature.
func (b *Board) Problems() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.problems...)
}

// Refused counts requests over the limit.
func (b *Board) Refused() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

func (b *Board) now() time.Time {
	if b.Now == nil {
		return time.Now()
	}
	return b.Now()
}

func (b *Board) problem(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

// over counts a request and says whether it is one too many.
func (b *Board) over() bool {
	if b.Per == 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if now.Before(b.blocked) {
		b.refused++
		return true
	}
	var recent []time.Time
	for _, t := range b.taken {
		if now.Sub(t) < b.Per {
			recent = append(recent, t)
		}
	}
	b.taken = recent
	if len(recent) >= b.Limit {
		b.refused++
		b.blocked = now.Add(b.Block)
		return true
	}
	b.taken = append(b.taken, now)
	return false
}

// post hangs a message up.
func (b *Board) post(s Shown) *Shown {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	s.At = b.now()
	s.Changed = s.At
	if s.Ref == "" {
		s.Ref = fmt.Sprintf("m-%d", b.next)
	}
	b.shown = append(b.shown, &s)
	return &s
}

// edit changes a message; false if there is none of this reference.
func (b *Board) edit(ref string, to Shown) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.shown {
		if s.Ref == ref {
			s.Title, s.Text, s.Buttons, s.Raw = to.Title, to.Text, to.Buttons, to.Raw
			s.Edits++
			s.Changed = b.now()
			return true
		}
	}
	return false
}

// Remove takes a message away, as a person may.
func (b *Board) Remove(ref string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, s := range b.shown {
		if s.Ref == ref {
			b.shown = append(b.shown[:i], b.shown[i+1:]...)
			return
		}
	}
}

// guard answers faults. It says whether the request is answered; lost requests are carried out and the answer thrown
// away.
func (b *Board) guard(w http.ResponseWriter) (http.ResponseWriter, bool) {
	if b.Fault == nil {
		return w, false
	}
	status, lost := b.Fault()
	if status == 0 {
		return w, false
	}
	w.WriteHeader(status)
	fmt.Fprintln(w, "fault\x00\x1b[31m")
	return httptest.NewRecorder(), !lost
}

// Client sends every request to h without a network, so that it works in fake time too.
func Client(h http.Handler) *http.Client { return &http.Client{Transport: direct{h}} }

type direct struct{ h http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	in := r.Clone(r.Context())
	in.Header = r.Header.Clone()
	if in.Body == nil {
		in.Body = io.NopCloser(strings.NewReader(""))
	}
	rec := httptest.NewRecorder()
	d.h.ServeHTTP(rec, in)
	res := rec.Result()
	res.Request = r
	return res, nil
}
