package cli_test

import (
	"bytes"
	"strings"
	"testing"

	"lowtide/benchrunner/cli"
	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/bus"
)

func TestTheFactIsPrintedAndPublishedOnce(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	_, js := natstest.Connect(t, s)
	args := append([]string{"--event", "--nats", s.URL(), "--fleet", "team", "--machine", "m7", "--nonce", "order 1"}, without(brief, "--json")...)
	a := benchrunner(t, []string{"LOWTIDE_NATS_TOKEN=" + s.Token()}, append([]string{"run"}, args...)...)
	printed, err := events.Decode(bytes.TrimSpace(a.stdout))
	if err != nil {
		t.Fatalf("%v: exit %d, %s %s", err, a.code, a.stdout, a.stderr)
	}
	f, ok := printed.Data.(events.BenchmarkFinished)
	if !ok || f.Machine != "m7" || f.Nonce != "order 1" || len(f.Devices) != 1 || f.Devices[0].Work == 0 || f.Devices[0].Checksum == 0 {
		t.Errorf("printed %+v", printed.Data)
	}
	stored, err := bus.Last(t.Context(), js, bus.Facts, bus.Subject("team", "benchmark.finished", "m7"))
	if err != nil || stored.Event.ID != printed.ID {
		t.Errorf("stored %+v, %v, want the fact that was printed", stored.Event, err)
	}
}

func TestAResultThatCannotBePublishedIsPrintedAllTheSame(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	args := append([]string{"run", "--json", "--nats", s.URL(), "--machine", "m7"}, without(brief, "--json")...)
	if a := benchrunner(t, nil, args...); a.code != cli.ExitUsage || !strings.Contains(a.stderr, "--fleet") || len(a.stdout) > 0 {
		t.Errorf("a fact without a fleet: exit %d, %q", a.code, a.stderr)
	}
	wrong := []string{"LOWTIDE_NATS_TOKEN=wrong", "LOWTIDE_FLEET=team"}
	a := benchrunner(t, wrong, args...)
	if a.code != cli.ExitUsage || a.result.Nonce != "" || !strings.Contains(string(a.stdout), `"schema": 1`) || !strings.Contains(a.stderr, "not published") {
		t.Errorf("got exit %d, %q, %q", a.code, a.stdout[:min(len(a.stdout), 80)], a.stderr)
	}
}

// without is args without one of them, and without the command.
func without(args []string, one string) (rest []string) {
	for _, a := range args {
		if a != one && a != "run" {
			rest = append(rest, a)
		}
	}
	return rest
}
