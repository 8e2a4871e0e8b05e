// Package intake takes what people ask for: a workload file becomes a workload.submitted, a reservation file a
// reservation.set.
//
// It promises that a file it cannot take is refused in one line that names the file, the field, the reason and the
// mend, before anything is said; and that what it takes is complete, whatever door it came through: defaults are filled
// in here and nowhere else. It does not promise anything about money or time: rebalance accepts or refuses.
package intake

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/shopspring/decimal"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// MaxBytes is the largest workload file.
const MaxBytes = 1 << 20

// file is the workload file; the README explains it field by field.
type file struct {
	Name               string            `yaml:"name"`
	Run                command           `yaml:"run"`
	Workdir            string            `yaml:"workdir"`
	Setup              command           `yaml:"setup"`
	Image              string            `yaml:"image"`
	Verify             verifyFile        `yaml:"verify"`
	Data               dataFile          `yaml:"data"`
	Env                map[string]string `yaml:"env"`
	Secrets            map[string]string `yaml:"secrets"`
	Tags               map[string]string `yaml:"tags"`
	GPUs               gpusFile          `yaml:"gpus"`
	Models             []string          `yaml:"models"`
	Clouds             []string          `yaml:"clouds"`
	Allow              allowFile         `yaml:"allow"`
	Border             string            `yaml:"border"`
	Work               string            `yaml:"work"`
	Steps              int64             `yaml:"steps"`
	Deadline           string            `yaml:"deadline"`
	Budget             string            `yaml:"budget"`
	DeadlineOverBudget bool              `yaml:"deadline_over_budget"`
	Checkpoint         string            `yaml:"checkpoint"`
	Autonomy           string            `yaml:"autonomy"`
	WhenIdle           string            `yaml:"when_idle"`
	IdleGrace          string            `yaml:"idle_grace"`
}

// verifyFile is a workload's own check.
type verifyFile struct {
	Command command `yaml:"command"`
}

// dataFile is what a job reads.
type dataFile struct {
	Bucket string `yaml:"bucket"`
	Size   string `yaml:"size"`
}

func (d dataFile) read() (fleet.Data, error) {
	if d == (dataFile{}) {
		return fleet.Data{}, nil
	}
	u, err := url.Parse(d.Bucket)
	if err != nil || u.Scheme == "" || u.User != nil {
		return fleet.Data{}, errors.New("bucket: want the URL of a bucket and a prefix such as s3://team/imagenet/, without credentials")
	}
	n, err := bytesOf(d.Size)
	if err != nil {
		return fleet.Data{}, fmt.Errorf("size: %w", err)
	}
	return fleet.Data{URL: d.Bucket, Bytes: n}, nil
}

// units of sizes, as sellers count.
var units = []struct {
	name string
	n    float64
}{{"TIB", 1 << 40}, {"GIB", 1 << 30}, {"MIB", 1 << 20}, {"KIB", 1 << 10}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1}}

func bytesOf(s string) (int64, error) {
	up := strings.ToUpper(strings.TrimSpace(s))
	for _, u := range units {
		number, ok := strings.CutSuffix(up, u.name)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(f > 0) || f*u.n > 1e18 {
			break
		}
		return int64(f * u.n), nil
	}
	return 0, fmt.Errorf("%q is not a size; write 500GB or 1.5TiB", s)
}

// command is a list of arguments, or one line that a shell runs.
type command []string

// UnmarshalYAML takes both forms.
func (c *command) UnmarshalYAML(b []byte) error {
	var list []string
	if yaml.Unmarshal(b, &list) == nil {
		*c = list
		return nil
	}
	var line string
	if err := yaml.Unmarshal(b, &line); err != nil {
		return errors.New("want a command line or a list of arguments")
	}
	if strings.TrimSpace(line) != "" {
		*c = []string{"sh", "-c", line}
	}
	return nil
}

// Asked is what a workload file asks for.
type Asked struct {
	Spec    fleet.Spec
	Workdir string // directory beside the file that the workload brings along; whoever takes the file packs it. "": none

	border string
}

// Parse reads a workload file called name. Relative deadlines count from now.
func Parse(name string, b []byte, now time.Time) (Asked, error) {
	a, err := parse(b, now)
	if err != nil {
		return Asked{}, fmt.Errorf("%s: %w", name, err)
	}
	return a, nil
}

func parse(b []byte, now time.Time) (Asked, error) {
	if err := check(b); err != nil {
		return Asked{}, err
	}
	var f file
	if err := decode(b, &f); err != nil {
		return Asked{}, err
	}
	s, err := f.spec(now)
	return Asked{Spec: s, Workdir: f.Workdir, border: f.Border}, err
}

// check refuses what is no text of ours before any of it is read.
func check(b []byte) error { return readable(b, "name, run and work") }

// readable says why a file cannot be looked into; least is what must be in it.
func readable(b []byte, least string) error {
	switch {
	case len(b) > MaxBytes:
		return fmt.Errorf("larger than %d bytes; put data into a bucket and name it", MaxBytes)
	case !utf8.Valid(b):
		return errors.New("not UTF-8; save the file as UTF-8")
	case len(bytes.TrimSpace(b)) == 0:
		return errors.New("empty; it needs at least " + least)
	}
	return nil
}

// decode reads YAML. The library panics on some inputs that fuzzing found; to whoever wrote the file that is one more
// way in which it cannot be read.
func decode(b []byte, f any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("it cannot be read as YAML; see the README's example")
		}
	}()
	if err := yaml.UnmarshalWithOptions(b, f, yaml.Strict()); err != nil {
		return words(err, b)
	}
	return nil
}

// spec checks field by field, in the order of the file.
func (f file) spec(now time.Time) (fleet.Spec, error) {
	s := fleet.Spec{
		Name: f.Name, Run: f.Run, Env: f.Env, Tags: f.Tags, GPUs: f.GPUs.Count, Models: f.Models, Clouds: f.Clouds,
		Steps: f.Steps, DeadlineOverBudget: f.DeadlineOverBudget,
		Kit: fleet.Kit{Setup: strict(f.Setup), Image: f.Image, Verify: strict(f.Verify.Command)},
	}
	err := f.variables(&s)
	if err != nil {
		return s, err
	}
	if strings.ContainsAny(f.Image, " \t\n") || strings.HasPrefix(f.Image, "-") {
		return s, field("image", fmt.Errorf("%q is no name of an image; write registry/name:tag or registry/name@sha256:…", f.Image))
	}
	if s.Kit.Data, err = f.Data.read(); err != nil {
		return s, field("data", err)
	}
	if err = f.machines(&s); err != nil {
		return s, err
	}
	if s.Work, err = positive(f.Work); err != nil {
		return s, field("work", err)
	}
	if f.Deadline != "" {
		if s.Deadline, err = deadline(f.Deadline, now); err != nil {
			return s, field("deadline", err)
		}
	}
	if f.Budget != "" {
		m, err := money(f.Budget)
		if err != nil {
			return s, field("budget", err)
		}
		s.Budget = fleet.Known(m)
	}
	s.SaveEvery = 10 * time.Minute
	if f.Checkpoint != "" {
		if s.SaveEvery, err = positive(f.Checkpoint); err != nil {
			return s, field("checkpoint", err)
		}
	}
	if s.Autonomy = cmp.Or(fleet.Autonomy(f.Autonomy), fleet.Observe); !s.Autonomy.Known() {
		return s, field("autonomy", fmt.Errorf("%q is none of observe, suggest, act", f.Autonomy))
	}
	switch s.WhenIdle = fleet.WhenIdle(f.WhenIdle); s.WhenIdle {
	case "":
		s.WhenIdle = fleet.IdleNotify
	case fleet.IdleNotify, fleet.IdleStop, fleet.IdleSmaller:
	default:
		return s, field("when_idle", fmt.Errorf("%q is none of notify, stop, smaller", f.WhenIdle))
	}
	s.IdleGrace = 15 * time.Minute
	if f.IdleGrace != "" {
		if s.IdleGrace, err = positive(f.IdleGrace); err != nil {
			return s, field("idle_grace", err)
		}
	}
	if err := s.Check(now); err != nil { // what no door may let through is said in one place
		return s, fmt.Errorf("field %w", err)
	}
	return s, nil
}

// Changes are what a person gave of a workload that is there, as in its file; what is empty stays as it is.
type Changes struct{ Autonomy, Deadline, Budget string }

// Change checks a change by the rules of the file.
func Change(workload string, c Changes, now time.Time) (e events.WorkloadChanged, err error) {
	if c == (Changes{}) {
		return e, errors.New("nothing to change: give --autonomy, --deadline or --budget")
	}
	e.Workload = workload
	if e.Autonomy = fleet.Autonomy(c.Autonomy); c.Autonomy != "" && !e.Autonomy.Known() {
		return e, field("autonomy", fmt.Errorf("%q is none of observe, suggest, act", c.Autonomy))
	}
	if c.Deadline != "" {
		if e.Deadline, err = deadline(c.Deadline, now); err != nil {
			return e, field("deadline", err)
		}
	}
	if c.Budget != "" {
		m, err := money(c.Budget)
		if err != nil {
			return e, field("budget", err)
		}
		e.Budget = fleet.Known(m)
	}
	return e, nil
}

func field(name string, err error) error { return fmt.Errorf("field %s: %w", name, err) }

// variables checks what the job finds in its environment.
func (f file) variables(s *fleet.Spec) error {
	name := func(k string) error {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.HasPrefix(k, "LOWTIDE_") {
			return fmt.Errorf("%q cannot be a name; use others than LOWTIDE_*, without '='", k)
		}
		return nil
	}
	for k := range f.Env {
		if err := name(k); err != nil {
			return field("env", err)
		}
	}
	for k, ref := range f.Secrets {
		err := name(k)
		if _, twice := f.Env[k]; err == nil && twice {
			err = fmt.Errorf("%s is in env too; give it once", k)
		}
		if err == nil {
			_, _, err = fleet.Secret(ref).Split()
		}
		if err != nil {
			return field("secrets", err)
		}
		if s.Kit.Secrets == nil {
			s.Kit.Secrets = map[string]fleet.Secret{}
		}
		s.Kit.Secrets[k] = fleet.Secret(ref)
	}
	return nil
}

// strict makes a script end at the first line that fails.
func strict(c command) []string {
	if len(c) == 3 && c[0] == "sh" && c[1] == "-c" {
		return []string{"sh", "-e", "-c", c[2]}
	}
	return c
}

func positive(s string) (time.Duration, error) {
	if s == "" {
		return 0, errors.New("missing; give a duration such as 4h or 30m")
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; write 4h or 30m", s)
	}
	if d <= 0 || d > fleet.FarAway {
		return 0, fmt.Errorf("%s is not above 0 and at most ten years", s)
	}
	return d, nil
}

// deadline is a time, or a duration from now.
func deadline(s string, now time.Time) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		d, derr := time.ParseDuration(s)
		if derr != nil {
			return time.Time{}, fmt.Errorf("%q is neither a time such as 2026-12-01T08:00:00+08:00 nor a duration such as 6h", s)
		}
		at = now.Add(d)
	}
	if at.After(now.Add(fleet.FarAway)) {
		return time.Time{}, fmt.Errorf("%s is more than ten years away", s)
	}
	if !at.After(now) {
		return time.Time{}, fmt.Errorf("%s is in the past; give a time after %s", s, now.Format(time.RFC3339))
	}
	return at.UTC().Truncate(time.Second), nil
}

// money reads "20 USD"; plain numbers are USD.
func money(s string) (fleet.Money, error) {
	amount, cur, _ := strings.Cut(strings.TrimSpace(s), " ")
	a, err := decimal.NewFromString(amount)
	if err != nil {
		return fleet.Money{}, fmt.Errorf("%q is not an amount; write 20 USD", s)
	}
	if a.Sign() <= 0 {
		return fleet.Money{}, fmt.Errorf("%s is not above 0", s)
	}
	switch c := fleet.Currency(strings.ToUpper(strings.TrimSpace(cur))); c {
	case "", fleet.USD:
		return fleet.Money{Amount: a, Currency: fleet.USD}, nil
	case fleet.CNY:
		return fleet.Money{}, errors.New("budgets are kept in USD for now; convert it at your own rate")
	default:
		return fleet.Money{}, fmt.Errorf("currency %q is not known; write USD", cur)
	}
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(s), " ")
}
