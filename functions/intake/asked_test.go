package intake_test

import (
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/intake"
	"lowtide/shared/fleet"
	"lowtide/shared/fn/memory"
)

func TestWhatARuleAsksForIsReadAsPeoplesFilesAreAndBounded(t *testing.T) {
	for name, c := range map[string]struct{ file, budget, refused string }{
		"without a budget":   {"name: mine\nrun: ./serve\nwork: 1h\n", "5.0000 USD", ""},
		"with a lesser one":  {"run: ./serve\nwork: 1h\nbudget: 2 USD\n", "2.0000 USD", ""},
		"with a greater one": {"run: ./serve\nwork: 1h\nbudget: 20 USD\n", "5.0000 USD", ""},
		"without work":       {"run: ./serve\n", "", "rule out: field work: missing"},
		"that is none":       {"\xff", "", "rule out: not UTF-8"},
		"that is empty":      {"", "", "rule out: empty"},
	} {
		h := memory.New(1, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
		h.Add(intake.Function())
		h.Publish(events.New("f", "rules/out/1", h.Now(), events.WorkloadAsked{Name: "serve-r1", File: []byte(c.file), Budget: fleet.Known(fleet.Dollars(5)), By: "rule out"}))
		h.Run(h.Now().Add(time.Minute))
		if last, ok := h.Last("f", "workload.refused", "serve-r1"); ok != (c.refused != "") || ok && !strings.HasPrefix(last.Event.Data.(events.WorkloadRefused).Why, c.refused) {
			t.Errorf("%s: refused %v: %+v", name, ok, last.Event.Data)
		}
		last, ok := h.Last("f", "workload.submitted", "serve-r1")
		if ok != (c.refused == "") {
			t.Errorf("%s: submitted %v", name, ok)
			continue
		}
		if !ok {
			continue
		}
		s := last.Event.Data.(events.WorkloadSubmitted).Spec
		if b, known := s.Budget.Get(); s.Name != "serve-r1" || !known || b.String() != c.budget || s.Autonomy != fleet.Observe {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
