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
secrets: {HF_TOKEN: "env:HF_TOKEN", DB: "aws-sm:prod/db#password"}
gpus: 1
models: [V100]
work: 4h
steps: 1000
workdir: src
setup: |
  pip install -r requirements.txt
  ./build
image: example.org/train:1
verify: {command: python -c "import torch"}
data: {bucket: "s3://team/imagenet/", size: 1.5TB}
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
		Kit: fleet.Kit{
			Setup: []string{"sh", "-e", "-c", "pip install -r requirements.txt\n./build\n"}, Secrets: map[string]fleet.Secret{"HF_TOKEN": "env:HF_TOKEN", "DB": "aws-sm:prod/db#password"},
			Image: "example.org/train:1", Verify: []string{"sh", "-e", "-c", `python -c "import torch"`}, Data: fleet.Data{URL: "s3://team/imagenet/", Bytes: 1_500_000_000_000},
		},
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
		"a secret itself": {with("env:HF_TOKEN", "hf_abcdefghijkl"), []string{"field secrets", "hf_a…", "env:NAME"}},
		"a secret twice":  {with("SEED", "DB"), []string{"field secrets", "DB"}},
		"a file above":    {with("env:HF_TOKEN", "file:../key"), []string{"field secrets", "below"}},
		"models twice":    {with("gpus: 1", "gpus: {count: 1, models: [A100]}"), []string{"field gpus", "twice"}},
		"NVLink for one":  {with("gpus: 1", "gpus: {count: 1, nvlink: true}"), []string{"field gpus", "nvlink"}},
		"odd memory":      {with("gpus: 1", "gpus: {memory: lots}"), []string{"field gpus", "40GB"}},
		"odd CUDA":        {with("gpus: 1", "gpus: {cuda: latest}"), []string{"field gpus", "12.4"}},
		"unknown in gpus": {with("gpus: 1", "gpus: {size: 1}"), []string{"gpus", "nvlink"}},
		"clouds twice":    {with("gpus: 1", "clouds: [aws]\nallow: {clouds: [vast]}"), []string{"field allow", "twice"}},
		"odd border":      {good + "border: open\n", []string{"field border", "cross"}},
		"odd image":       {with("example.org/train:1", "--privileged"), []string{"field image"}},
		"data, no bucket": {with("s3://team/imagenet/", "imagenet"), []string{"field data", "bucket", "s3://"}},
		"data, no size":   {with("1.5TB", "much"), []string{"field data", "size", "500GB"}},
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

func TestWhatIsAskedOfMachinesAndPlacesIsInTheSpec(t *testing.T) {
	file := strings.Replace(strings.Replace(good, "gpus: 1\n", "gpus: {count: 8, models: [A100, H100], memory: 80GB, nvlink: true, cuda: \"12.4\"}\n", 1), "models: [V100]\n",
		"allow: {clouds: [aws, alibaba], regions: [eu-*, us-east-1], certifications: [ISO27001]}\n", 1)
	got, err := intake.Parse("w.yaml", []byte(file), now)
	if err != nil {
		t.Fatal(err)
	}
	want := fleet.Want{Memory: 80, NVLink: true, CUDA: "12.4", Regions: []string{"eu-*", "us-east-1"}, Certified: []string{"iso27001"}}
	if s := got.Spec; s.GPUs != 8 || len(s.Models) != 2 || len(s.Clouds) != 2 || !cmp.Equal(s.Want, want) {
		t.Errorf("got %+v", s)
	}
}

func TestDataStaysOnItsSideOfTheBorderUnlessItMayCross(t *testing.T) {
	const outside, china = "s3://team?region=eu-west-1", "s3://team?endpoint=https://oss-cn-beijing.aliyuncs.com&region=oss-cn-beijing"
	for name, c := range map[string]struct {
		border, data, bucket string
		side                 fleet.Side
		wrong                string
	}{
		"as the bucket":               {"", "", china, fleet.China, ""},
		"as the bucket, abroad":       {"", "", outside, fleet.Outside, ""},
		"a directory tells nothing":   {"", "", "file:///var/lowtide", fleet.Outside, ""},
		"a directory, and it is said": {"border: china\n", "", "file:///var/lowtide", fleet.China, ""},
		"against the bucket":          {"border: china\n", "", outside, "", "field border"},
		"data over there":             {"", china, outside, "", "field data"},
		"which may cross":             {"border: cross\n", china, outside, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			data := "s3://team/imagenet/?region=eu-west-1"
			if c.side == fleet.China {
				data = "s3://team?endpoint=https://obs.cn-north-4.myhuaweicloud.com"
			}
			if c.data != "" {
				data = c.data
			}
			a, err := intake.Parse("w.yaml", []byte(strings.Replace(good, "s3://team/imagenet/", data, 1)+c.border), now)
			if err != nil {
				t.Fatal(err)
			}
			err = a.At(c.bucket)
			switch {
			case c.wrong == "" && (err != nil || a.Spec.Want.Side != c.side):
				t.Errorf("got side %q, %v; want %q", a.Spec.Want.Side, err, c.side)
			case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong) || strings.Contains(err.Error(), "\n")):
				t.Errorf("got %v, want one line with %q", err, c.wrong)
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

func TestAFileThatIsNotOneSaysWhereAndHowToMendIt(t *testing.T) {
	const good = "name: a\nrun: [\"true\"]\nwork: 1h\n"
	for _, c := range []struct{ file, want string }{
		{good + "deadlin: 3h\n", `w.yaml: line 4: unknown field "deadlin"; did you mean "deadline"?`},
		{good + "zzzzzzzz: 3h\n", `w.yaml: line 4: unknown field "zzzzzzzz"`},
		{good + "steps: many\n", "w.yaml: line 4: field steps: want a whole number"},
		{good + "models: V100\n", "w.yaml: line 4: field models: want a list such as [a, b] and got a single text"},
		{"#!/bin/sh\necho $(date) : \"x\"\nif true; then\n", "w.yaml: line"},
	} {
		_, err := intake.Parse("w.yaml", []byte(c.file), time.Now())
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q:\ngot  %v\nwant %s", c.file, err, c.want)
		}
	}
}
