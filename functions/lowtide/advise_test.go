package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/functions/ledger"
	"lowtide/shared/fleet"
)

// says runs a command in this process.
func says(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := root()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestAdviseChecksTheDocumentsMix(t *testing.T) {
	out, err := says(t, "advise", "--mix", "60/40")
	if err != nil || !strings.Contains(out, "26.25 %") || !strings.Contains(out, "63.3 % less") {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestAdviseReadsADemandFileAndRefusesABadOneInOneLine(t *testing.T) {
	const head = "time,machines\n2026-01-01T00:00:00Z,4\n2026-01-01T01:00:00Z,4\n"
	for name, c := range map[string]struct{ file, want string }{
		"good":     {head + "2026-01-01T02:00:00Z,2\n", ""},
		"a gap":    {head + "2026-01-01T04:00:00Z,2\n", "line 4"},
		"negative": {head + "2026-01-01T02:00:00Z,-2\n", "line 4"},
		"no time":  {"0,4\n1,4\n", "--slot"},
		"one line": {"2026-01-01T00:00:00Z,4\n", "two lines"},
	} {
		file := filepath.Join(t.TempDir(), "used.csv")
		if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := says(t, "advise", "--demand", file, "--price", "3", "--term", "1m=1")
		switch {
		case c.want == "" && (err != nil || !strings.Contains(out, "COMMIT TO")):
			t.Errorf("%s: %q, %v", name, out, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: got %v, want one line with %q", name, err, c.want)
		}
	}
}

func TestDemandIsWhatTheLedgersMachinesRanByTheHour(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	o := fleet.Offer{Cloud: "fake", Type: "p3", Hourly: fleet.Known(fleet.Dollars(2))}
	free := o
	free.Reservation, free.Hourly = "cr-1", fleet.Known(fleet.Dollars(0))
	u := used(&ledger.Book{Machines: map[string]*ledger.Receipt{
		"a": {Offer: o, From: at.Add(30 * time.Minute), To: at.Add(90 * time.Minute)},
		"b": {Offer: free, From: at},
	}}, at.Add(2*time.Hour))["fake/p3"]
	if u == nil || len(u.demand) != 3 || u.demand[0] != 1.5 || u.demand[1] != 1.5 || u.demand[2] != 0 || u.paid() != 2 {
		t.Errorf("got %+v, want one and a half machines in two hours, at 2 USD beside what is reserved", u)
	}
}

func TestChooseRanksTheOffersWithReasons(t *testing.T) {
	out, err := says(t, "choose", "--for", "training", "--limit", "0")
	if err != nil || !strings.Contains(out, "A800 clusters") || !strings.Contains(out, "nvlink no") {
		t.Errorf("got %q, %v", out, err)
	}
	if _, err := says(t, "choose", "--for", "fun"); err == nil || !strings.Contains(err.Error(), "experiment") {
		t.Errorf("an unknown purpose: %v", err)
	}
}
