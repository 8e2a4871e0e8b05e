package intake_test

import (
	"strings"
	"testing"
	"time"

	"lowtide/functions/intake"
	"lowtide/shared/fleet"
)

const block = `id: cr-0a1
cloud: aws
account: "1"
region: us-east-1
zone: us-east-1a
type: p4d.24xlarge
count: 4
from: 2026-03-01T00:00:00Z
until: 240h
hourly: 11.5 USD
`

func TestAReservationFileBecomesAReservation(t *testing.T) {
	r, err := intake.Reservation("r.yaml", []byte(block), now)
	if err != nil {
		t.Fatal(err)
	}
	if r.ID != "cr-0a1" || r.Cloud != "aws" || r.Account != "1" || r.Zone != "us-east-1a" || r.Type != "p4d.24xlarge" || r.Count != 4 ||
		!r.Until.Equal(now.Add(240*time.Hour)) || r.From.Hour() != 0 || r.Hourly.String() != fleet.Dollars(11.5).String() {
		t.Errorf("got %+v", r)
	}
	least, err := intake.Reservation("r.yaml", []byte("id: a\ncloud: fake\nregion: r\ntype: p3\nhourly: 1\n"), now)
	if err != nil {
		t.Fatal(err)
	}
	if least.Account != "main" || least.Count != 1 || !least.Until.IsZero() || !least.Open(now) {
		t.Errorf("defaults: got %+v", least)
	}
}

func TestAPrepaidTermIsPricedByTheHourOfOneMachine(t *testing.T) {
	r, err := intake.Reservation("r.yaml", []byte(strings.Replace(block, "hourly: 11.5 USD", "total: 20160 USD", 1)), now)
	if err != nil {
		t.Fatal(err)
	}
	if hours := r.Until.Sub(r.From).Hours() * 4; r.Hourly.Float() < 20160/hours-0.001 || r.Hourly.Float() > 20160/hours+0.001 {
		t.Errorf("got %s an hour, want %.4f", r.Hourly, 20160/hours)
	}
	if got := r.Cost(now, r.Until).Float(); got < 20159 || got > 20161 {
		t.Errorf("the term costs %.2f, want 20160", got)
	}
}

func TestABadReservationFileIsRefusedInOneLine(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(block, old, new, 1) }
	for name, c := range map[string]struct{ file, want string }{
		"empty":                  {"", "at least id"},
		"an unknown field":       {block + "gpuss: 1\n", "gpuss"},
		"no id":                  {with("id: cr-0a1\n", ""), "field id"},
		"no place":               {with("region: us-east-1\nzone: us-east-1a\n", ""), "field zone"},
		"no type":                {with("type: p4d.24xlarge\n", ""), "field type"},
		"no machines":            {with("count: 4", "count: 0"), "--give-up"},
		"an end in the past":     {with("until: 240h", "until: 2026-02-01T00:00:00Z"), "field until"},
		"an end before its time": {with("from: 2026-03-01T00:00:00Z", "from: 300h"), "field until"},
		"no price":               {with("hourly: 11.5 USD\n", ""), "field hourly"},
		"two prices":             {block + "total: 5 USD\n", "field total"},
		"a term without an end":  {with("until: 240h\n", "") + "", ""},
		"a total without an end": {strings.Replace(with("until: 240h\n", ""), "hourly", "total", 1), "field total"},
		"another currency":       {with("11.5 USD", "11.5 CNY"), "field hourly"},
	} {
		_, err := intake.Reservation("r.yaml", []byte(c.file), now)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "r.yaml: ") || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: got %v, want one line with r.yaml and %q", name, err, c.want)
		}
	}
}
