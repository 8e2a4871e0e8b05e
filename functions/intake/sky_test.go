package intake_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lowtide/functions/intake"
	"lowtide/shared/fleet"
)

const task = `name: My_Train
num_nodes: 1
workdir: ~/src
resources:
  infra: aws/us-east-1/us-east-1a
  accelerators: A100-80GB:8
  use_spot: true
  disk_size: 512
  ports: 8080
  image_id: docker:example.org/train:1
  job_recovery: {strategy: EAGER_NEXT_REGION, max_restarts_on_errors: 3}
envs: {SEED: 7, MODE: fast}
secrets: {HF_TOKEN: null}
file_mounts:
  /data: s3://team/imagenet
  /ckpt: {name: my-ckpts, mode: MOUNT}
  /conf: ./conf
setup: |
  pip install -r requirements.txt
run: |
  torchrun --nproc-per-node=$SKYPILOT_NUM_GPUS_PER_NODE train.py
service: {readiness_probe: /}
novelty: 1
`

func TestASkyPilotTaskBecomesAWorkloadAndEachFieldThatIsNotHonouredIsNamed(t *testing.T) {
	got, notes, err := intake.Sky("sky.yaml", []byte(task), intake.More{Work: "4h", Deadline: "6h", Autonomy: "act"}, now)
	if err != nil {
		t.Fatal(err)
	}
	want := fleet.Spec{
		Name: "my-train", Run: []string{"bash", "-c", "torchrun --nproc-per-node=$SKYPILOT_NUM_GPUS_PER_NODE train.py\n"},
		Env:  map[string]string{"SEED": "7", "MODE": "fast", "SKYPILOT_NUM_GPUS_PER_NODE": "8"},
		GPUs: 8, Models: []string{"A100"}, Clouds: []string{"aws"}, Work: 4 * time.Hour, Deadline: now.Add(6 * time.Hour),
		SaveEvery: 10 * time.Minute, Autonomy: fleet.Act, WhenIdle: fleet.IdleNotify, IdleGrace: 15 * time.Minute,
		Want: fleet.Want{Memory: 80, Regions: []string{"us-east-1"}},
		Kit: fleet.Kit{
			Setup: []string{"bash", "-e", "-c", "pip install -r requirements.txt\n"}, Image: "example.org/train:1", Secrets: map[string]fleet.Secret{"HF_TOKEN": "env:HF_TOKEN"},
		},
	}
	if d := cmp.Diff(got.Spec, want, cmp.Comparer(func(a, b fleet.Maybe[fleet.Money]) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if got.Workdir != "~/src" {
		t.Errorf("workdir %q", got.Workdir)
	}
	all := strings.Join(notes, "\n")
	for _, field := range []string{
		"resources.infra: not", "resources.disk_size: not", "resources.ports: not", "resources.job_recovery.strategy: not", "resources.job_recovery.max_restarts_on_errors: not",
		"file_mounts./data: not", "file_mounts./ckpt: not", "file_mounts./conf: not", "service: not", "novelty: not", "resources.use_spot: lowtide", "secrets.HF_TOKEN: read", "run: ",
	} {
		if !strings.Contains(all, field) {
			t.Errorf("%q is not told in\n%s", field, all)
		}
	}
	for _, n := range notes {
		if strings.Contains(n, "\n") {
			t.Errorf("not one line: %q", n)
		}
	}
}

func TestWhatSkyPilotWouldRunOtherwiseIsRefused(t *testing.T) {
	with := func(old, new string) string {
		if !strings.Contains(task, old) {
			t.Fatalf("no %q", old)
		}
		return strings.Replace(task, old, new, 1)
	}
	for name, c := range map[string]struct {
		file, work string
		want       string
	}{
		"several machines":   {with("num_nodes: 1", "num_nodes: 4"), "4h", "num_nodes"},
		"another cloud":      {with("aws/us-east-1/us-east-1a", "gcp/us-central1"), "4h", "gcp"},
		"no length":          {task, "", "--work"},
		"unknown GPU":        {with("A100-80GB:8", "Z900:8"), "4h", "Z900"},
		"part of a GPU":      {with("A100-80GB:8", "{A100: 0.5}"), "4h", "whole"},
		"different counts":   {with("A100-80GB:8", "[\"A100:8\", \"V100:4\"]"), "4h", "counts"},
		"an env to be asked": {with("SEED: 7", "SEED: null"), "4h", "SEED"},
		"a repository":       {with("~/src", "{url: \"https://example.org/a\"}"), "4h", "workdir"},
		"no YAML":            {"{[", "4h", "YAML"},
		"a list":             {"- a", "4h", "YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := intake.Sky("sky.yaml", []byte(c.file), intake.More{Work: c.work}, now)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "sky.yaml: ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, c.want)
			}
		})
	}
}

func TestAlternativesOfASkyPilotTaskAreMerged(t *testing.T) {
	const file = "name: a\nrun: ./a\nresources:\n  any_of:\n  - {infra: aws, accelerators: A100:8}\n  - {infra: lambda/us-east-1, accelerators: H100:8, use_spot: true, disk_size: 1}\n"
	got, notes, err := intake.Sky("sky.yaml", []byte(file), intake.More{Work: "1h"}, now)
	if err != nil {
		t.Fatal(err)
	}
	if s := got.Spec; s.GPUs != 8 || strings.Join(s.Models, " ") != "A100 H100" || strings.Join(s.Clouds, " ") != "aws lambdalabs" || !strings.Contains(strings.Join(notes, "\n"), "resources.any_of[1].disk_size: not") {
		t.Errorf("got %+v\n%q", s, notes)
	}
}

func FuzzSky(f *testing.F) {
	f.Add([]byte(task))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, _, err := intake.Sky("f", b, intake.More{Work: "1h"}, now)
		if err == nil && (a.Spec.Name == "" || len(a.Spec.Run) == 0) {
			t.Errorf("took %+v from %q", a.Spec, b)
		}
	})
}
