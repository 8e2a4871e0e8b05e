package intake_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lowtide/functions/intake"
	"lowtide/shared/fleet"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const good = `name: train-7
run: python train.py --steps 1000
env: {SEED: "7"}
gpus: 1
models: [V100]
work: 4h
steps: 1000
workdir: src
setup: |
  pip install -r requirements.txt
  ./build
deadline: 6h
budget: 20 USD
checkpoint: 5m
autonomy: act
when_idle: stop
idle_grace: 30m
`

func TestAWorkloadFileBecomesASpecWithEveryDefaultFilledIn(t *testing.T) {
	got, err := intake.Parse("w.yaml", []byte(good), now)
	if err != nil {
		t.Fatal(err)
	}
	want := fleet.Spec{
		Name: "train-7", Run: []string{"sh", "-c", "python train.py --steps 1000"}, Env: map[string]string{"SEED": "7"},
		GPUs: 1, Models: []string{"V100"}, Work: 4 * time.Hour, Steps: 1000, Deadline: now.Add(6 * time.Hour),
		Budget: fleet.Known(fleet.Dollars(20)), SaveEvery: 5 * time.Minute, Autonomy: fleet.Act, WhenIdle: fleet.IdleStop, IdleGrace: 30 * time.Minute,
		Kit: fleet.Kit{Setup: []string{"sh", "-e", "-c", "pip install -r requirements.txt\n./build\n"}},
	}
	if got.Workdir != "src" {
		t.Errorf("workdir: got %q", got.Workdir)
	}
	if d := cmp.Diff(got.Spec, want, cmp.Comparer(func(a, b fleet.Maybe[fleet.Money]) bool {
		x, _ := a.Get()
		y, _ := b.Get()
		return x.Amount.Equal(y.Amount) && x.Currency == y.Currency
	})); d != "" {
		t.Error(d)
	}
	asked, err := intake.Parse("w.yaml", []byte("name: a\nrun: [./a, b c]\nwork: 1h\n"), now)
	if err != nil {
		t.Fatal(err)
	}
	if least := asked.Spec; least.Autonomy != fleet.Observe || least.SaveEvery != 10*time.Minute || least.WhenIdle != fleet.IdleNotify || least.IdleGrace != 15*time.Minute || len(least.Run) != 2 {
		t.Errorf("defaults: got %+v", least)
	}
}

func TestABadFileIsRefusedInOneLineThatNamesFileFieldAndReason(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"unknown field":   {good + "gpu_kind: V100\n", []string{"gpu_kind"}},
		"impossible GPUs": {with("gpus: 1", "gpus: 900"), []string{"field gpus", "900"}},
		"negative GPUs":   {with("gpus: 1", "gpus: -1"), []string{"field gpus"}},
		"past deadline":   {with("deadline: 6h", "deadline: 2020-01-01T00:00:00Z"), []string{"field deadline", "past"}},
		"no deadline":     {with("deadline: 6h", "deadline: soon"), []string{"field deadline", "soon"}},
		"negative budget": {with("budget: 20 USD", "budget: -3 USD"), []string{"field budget", "-3"}},
		"odd currency":    {with("budget: 20 USD", "budget: 20 XYZ"), []string{"field budget", "XYZ"}},
		"no work":         {with("work: 4h\n", ""), []string{"field work", "missing"}},
		"no command":      {with("run: python train.py --steps 1000\n", ""), []string{"field run"}},
		"odd setup":       {with("setup: |\n  pip install -r requirements.txt\n  ./build\n", "setup: {a: b}\n"), []string{"command line"}},
		"bad name":        {with("train-7", "Train 7"), []string{"field name"}},
		"bad when_idle":   {with("when_idle: stop", "when_idle: burn"), []string{"field when_idle", "smaller"}},
		"bad idle_grace":  {with("idle_grace: 30m", "idle_grace: soon"), []string{"field idle_grace", "4h or 30m"}},
		"bad autonomy":    {with("autonomy: act", "autonomy: yolo"), []string{"field autonomy", "observe"}},
		"reserved name":   {with("SEED", "LOWTIDE_SEED"), []string{"field env", "LOWTIDE_SEED"}},
		"invalid UTF-8":   {"name: \xff\xfe", []string{"UTF-8"}},
		"empty":           {"", []string{"empty"}},
		"not YAML":        {"{[", nil},
		"a list":          {"- a\n- b\n", nil},
		"100 MB":          {string(bytes.Repeat([]byte("a"), 100<<20)), []string{"larger than"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := intake.Parse("dir/w.yaml", []byte(c.file), now)
			if err == nil {
				t.Fatal("taken")
			}
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
				t.Errorf("not one line: %q", err)
			}
			for _, w := range append(c.want, "dir/w.yaml") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("name: a\nrun: [a]\nwork: 1h"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := intake.Parse("f", b, now)
		s := a.Spec
		if err == nil && (s.Name == "" || s.Work <= 0 || len(s.Run) == 0) {
			t.Errorf("took %+v from %q", s, b)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("not one line: %q", err)
		}
	})
}
