package fn

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"

	"lowtide/events"
)

// Traced puts what was said under the trace of what was heard, as W3C Trace Context has it: the same trace, a span of its
// own. Without a parent nothing changes.
func Traced(parent string, said []events.Event) []events.Event {
	child := Span(parent)
	if child == "" || len(said) == 0 {
		return said
	}
	said = slices.Clone(said)
	for i := range said {
		if said[i].Trace == "" {
			said[i].Trace = child
		}
	}
	return said
}

// Span is a new span under a traceparent; "" if that is none.
func Span(parent string) string {
	p := strings.Split(parent, "-")
	if len(p) < 4 || len(p[0]) != 2 || len(p[1]) != 32 || len(p[2]) != 16 || len(p[3]) != 2 {
		return ""
	}
	return "00-" + p[1] + "-" + random(8) + "-" + p[3]
}

// Root begins a trace, sampled.
func Root() string { return "00-" + random(16) + "-" + random(8) + "-01" }

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
