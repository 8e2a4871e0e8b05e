package intake

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"lowtide/shared/provider"
)

// More is what a workload needs to be told besides what another tool's file says. Empty fields leave the file's, or
// the default.
type More struct {
	Name, Work, Deadline, Budget, Autonomy, Checkpoint string
}

// Sky reads a task file of SkyPilot. Notes name each of its fields that is not honoured, or not as SkyPilot would, one a
// line. What would run something else than was meant is an error. The names of fields are SkyPilot's
// (docs.skypilot.co, "Task YAML").
func Sky(name string, b []byte, more More, now time.Time) (Asked, []string, error) {
	var doc map[string]any
	if err := unmarshal(b, &doc); err != nil || doc == nil {
		return Asked{}, nil, fmt.Errorf("%s: not a SkyPilot task: it cannot be read as YAML with fields", name)
	}
	s := &sky{file: file{
		Name: more.Name, Work: more.Work, Deadline: more.Deadline, Budget: more.Budget, Autonomy: more.Autonomy, Checkpoint: more.Checkpoint,
	}}
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		if read := skyFields[key]; read != nil {
			read(s, doc[key])
		} else {
			s.note(key, cmp.Or(skyElse[key], "lowtide does not know it"))
		}
	}
	if s.err == nil && more.Work == "" {
		s.err = errors.New("a SkyPilot task does not say how long it takes: add --work, such as --work 4h")
	}
	if s.err == nil {
		s.finish()
		spec, err := s.file.spec(now)
		if err == nil {
			err = spec.Check(now)
		}
		if err == nil {
			return Asked{Spec: spec, Workdir: s.file.Workdir}, s.notes, nil
		}
		s.err = err
	}
	return Asked{}, s.notes, fmt.Errorf("%s: %w", name, s.err)
}

func unmarshal(b []byte, v any) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("not YAML")
		}
	}()
	return yaml.Unmarshal(b, v)
}

// sky is a task while it is read.
type sky struct {
	file  file
	notes []string
	err   error
}

func (s *sky) note(field, why string) {
	s.notes = append(s.notes, field+": not honoured: "+why)
}

func (s *sky) told(field, what string) { s.notes = append(s.notes, field+": "+what) }

func (s *sky) wrong(field, why string) {
	if s.err == nil {
		s.err = fmt.Errorf("field %s: %s", field, why)
	}
}

// skyFields read what is honoured.
var skyFields = map[string]func(*sky, any){
	"name": func(s *sky, v any) {
		name := strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(text(v)))
		if s.file.Name == "" {
			s.file.Name = name
		}
	},
	"num_nodes": func(s *sky, v any) {
		if text(v) != "1" {
			s.wrong("num_nodes", text(v)+" machines at once are not run; lowtide runs a workload on one machine, with up to 16 GPUs")
		}
	},
	"workdir": func(s *sky, v any) {
		if s.file.Workdir = text(v); s.file.Workdir == "" {
			s.wrong("workdir", "only a directory is taken; check the repository out and name it")
		}
	},
	"setup":        func(s *sky, v any) { s.file.Setup = bash(v, "-e") },
	"run":          func(s *sky, v any) { s.file.Run = bash(v) },
	"envs":         skyEnvs,
	"secrets":      skySecrets,
	"resources":    skyResources,
	"file_mounts":  skyMounts,
	"job_recovery": func(s *sky, v any) { s.recovery("job_recovery", v) },
}

// skyElse says why the other fields of a task are not honoured.
var skyElse = map[string]string{
	"service": "lowtide serves nothing", "pool": "lowtide keeps no pools", "volumes": "disks are not attached", "config": "it is SkyPilot's own",
	"experimental": "it is SkyPilot's own", "event_callback": "people are told by --notify", "inputs": "it only informs SkyPilot", "outputs": "it only informs SkyPilot",
}

func bash(v any, flags ...string) command {
	if text(v) == "" {
		return nil
	}
	return append(append(command{"bash"}, flags...), "-c", text(v))
}

func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case bool, int, int64, uint64, float64:
		return fmt.Sprint(v)
	}
	return ""
}

func skyEnvs(s *sky, v any) {
	m, _ := v.(map[string]any)
	s.file.Env = map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if m[k] == nil {
			s.wrong("envs", k+" has no value; SkyPilot asks for it with --env, here it must be in the file")
		}
		s.file.Env[k] = text(m[k])
	}
}

func skySecrets(s *sky, v any) {
	m, _ := v.(map[string]any)
	s.file.Secrets = map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s.file.Secrets[k] = "env:" + k
		s.told("secrets."+k, "read from the variable LOWTIDE_SECRET_"+k+" where lowtide runs")
		if m[k] != nil {
			s.note("secrets."+k, "its value is in the file; lowtide takes references only")
		}
	}
}

// skyClouds are SkyPilot's names of the clouds that lowtide knows under others.
var skyClouds = map[string]string{"lambda": "lambdalabs", "aws": "aws", "azure": "azure", "vast": "vast", "paperspace": "paperspace"}

// skyIgnored says why fields of resources are not honoured.
var skyIgnored = map[string]string{
	"cpus": "offers are chosen by their GPUs", "memory": "offers are chosen by their GPUs", "instance_type": "offers are chosen by their GPUs",
	"zone": "zones are chosen by price and hazard", "disk_size": "machines come with the disk of the adapter's settings", "disk_tier": "disks are not chosen",
	"network_tier": "networks are not chosen", "ports": "no ports are opened", "labels": "machines carry lowtide's own labels; use tags",
	"accelerator_args": "it is for TPUs", "autostop": "machines end with their work, or by when_idle", "priority": "workloads do not wait for one another", "volumes": "disks are not attached",
}

func skyResources(s *sky, v any) {
	m, _ := v.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(m)) {
		field, v := "resources."+key, m[key]
		switch key {
		case "accelerators":
			s.accelerators(field, v)
		case "infra", "cloud":
			s.infra(field, text(v))
		case "region":
			s.file.Allow.Regions = []string{text(v)}
		case "use_spot":
			s.told(field, "lowtide chooses between spot and on demand by itself, at every look")
		case "image_id":
			if image, ok := strings.CutPrefix(text(v), "docker:"); ok {
				s.file.Image = image
			} else {
				s.note(field, "machines start from the image of the adapter's settings; docker:IMAGE is taken")
			}
		case "job_recovery", "spot_recovery":
			s.recovery(field, v)
		case "any_of", "ordered":
			s.anyOf(field, v)
		default:
			s.note(field, cmp.Or(skyIgnored[key], "lowtide does not know it"))
		}
	}
}

func (s *sky) recovery(field string, v any) {
	s.told(field, "lowtide recovers always, by its own rule; a job that fails three times without a new checkpoint is given up")
	if m, ok := v.(map[string]any); ok {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			s.note(field+"."+key, "the rule is lowtide's")
		}
	}
}

func (s *sky) infra(field, where string) {
	parts := strings.Split(where, "/")
	cloud, known := skyClouds[strings.ToLower(parts[0])]
	switch {
	case parts[0] == "*" || where == "":
	case !known:
		s.wrong(field, fmt.Sprintf("lowtide buys nothing at %q; it may be aws, lambda, vast", parts[0]))
	case !slices.Contains(s.file.Allow.Clouds, cloud):
		s.file.Allow.Clouds = append(s.file.Allow.Clouds, cloud)
	}
	if len(parts) > 1 && parts[1] != "*" {
		s.file.Allow.Regions = append(s.file.Allow.Regions, parts[1])
	}
	if len(parts) > 2 && parts[2] != "*" {
		s.note(field, "zones are chosen by price and hazard")
	}
}

var skyMemory = regexp.MustCompile(`-([0-9]+)GB`)

// accelerators takes "A100:8", {A100: 8}, and lists or maps of them as alternatives, of one count.
func (s *sky) accelerators(field string, v any) {
	all := map[string]string{}
	add := func(one string) {
		name, count, _ := strings.Cut(one, ":")
		all[name] = cmp.Or(count, "1")
	}
	switch v := v.(type) {
	case string:
		add(v)
	case []any:
		for _, one := range v {
			add(text(one))
		}
	case map[string]any:
		for name, count := range v {
			all[name] = cmp.Or(text(count), "1")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		n, err := strconv.Atoi(all[name])
		if err != nil {
			s.wrong(field, fmt.Sprintf("%s of %s is no whole number of GPUs", all[name], name))
			return
		}
		if s.file.GPUs.Count > 0 && n != s.file.GPUs.Count {
			s.wrong(field, "alternatives of different counts are not taken; submit one of them")
			return
		}
		s.file.GPUs.Count = n
		card, known := provider.ReadCard(strings.ReplaceAll(name, "-", " "), 0)
		if !known {
			s.wrong(field, fmt.Sprintf("GPU %q is not known", name))
			return
		}
		if !slices.Contains(s.file.GPUs.Models, card.Model) {
			s.file.GPUs.Models = append(s.file.GPUs.Models, card.Model)
		}
		if m := skyMemory.FindStringSubmatch(name); m != nil && len(all) == 1 {
			s.file.GPUs.Memory = m[1] + "GB"
		}
	}
}

// anyOf merges alternatives that differ in GPUs or places; the rest of them is named.
func (s *sky) anyOf(field string, v any) {
	list, _ := v.([]any)
	for i, one := range list {
		m, _ := one.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(m)) {
			at := fmt.Sprintf("%s[%d].%s", field, i, key)
			switch key {
			case "accelerators":
				s.accelerators(at, m[key])
			case "infra", "cloud":
				s.infra(at, text(m[key]))
			case "region":
				s.file.Allow.Regions = append(s.file.Allow.Regions, text(m[key]))
			case "use_spot":
			default:
				s.note(at, cmp.Or(skyIgnored[key], "alternatives may differ in GPUs and places"))
			}
		}
	}
	s.told(field, "every alternative's GPUs may come in every alternative's place; the cheapest useful hour is taken")
}

func skyMounts(s *sky, v any) {
	m, _ := v.(map[string]any)
	for _, at := range slices.Sorted(maps.Keys(m)) {
		field := "file_mounts." + at
		source := text(m[at])
		if source == "" {
			if o, ok := m[at].(map[string]any); ok {
				source = cmp.Or(text(o["source"]), text(o["name"]), "a new bucket")
				if mode := text(o["mode"]); mode != "" {
					source += ", " + mode
				}
			}
		}
		if strings.Contains(source, "://") {
			s.note(field, "nothing is mounted; the job reads "+source+" itself (data: tells it where), and writes checkpoints to LOWTIDE_CKPT_DIR")
		} else {
			s.note(field, "nothing is mounted; put "+source+" into workdir, or into a bucket")
		}
	}
}

// finish adds what SkyPilot gives a job by itself, where the job asks for it.
func (s *sky) finish() {
	for name, value := range map[string]string{
		"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_GPUS_PER_NODE": strconv.Itoa(s.file.GPUs.Count),
	} {
		if strings.Contains(strings.Join(append(slices.Clone(s.file.Run), s.file.Setup...), " "), name) {
			if s.file.Env == nil {
				s.file.Env = map[string]string{}
			}
			s.file.Env[name] = value
		}
	}
	s.told("run", "a job that does not write checkpoints as lowtide's README says begins anew on each machine")
}
