package static

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/shopspring/decimal"

	"lowtide/shared/provider"
)

type machineFile struct {
	Name   string `yaml:"name"`
	SSH    string `yaml:"ssh"`
	Region string `yaml:"region"`
	GPU    string `yaml:"gpu"`
	GPUs   int    `yaml:"gpus"`
	CUDA   string `yaml:"cuda"`
	Price  string `yaml:"price"`
	Until  string `yaml:"until"`
}

var plain = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,47}$`)

// Read reads a file of machines. Every entry that is wrong has its own line in the error.
//
//	machines:
//	  - {name: rack1-a, ssh: ada@rack1, gpu: A100 80GB SXM4, gpus: 8, price: 0, region: fra, cuda: "12.4", until: 2027-03-31}
//
// price is USD an hour and may be 0 for what is paid anyway; until is the last day of its contract. region, cuda and until may
// be left out.
func Read(file string, b []byte) (out []Machine, err error) {
	defer func() {
		if recover() != nil { // the library panics on some files that are not YAML
			out, err = nil, fmt.Errorf("%s: not YAML", file)
		}
	}()
	var f struct {
		Machines []machineFile `yaml:"machines"`
	}
	if err := yaml.NewDecoder(bytes.NewReader(b), yaml.DisallowUnknownField()).Decode(&f); err != nil {
		return nil, fmt.Errorf("%s: %s", file, strings.SplitN(err.Error(), "\n", 2)[0])
	}
	var errs error
	names, targets := map[string]bool{}, map[string]bool{}
	for i, m := range f.Machines {
		got, err := m.read()
		switch {
		case err == nil && names[got.Name]:
			err = fmt.Errorf("name: %s is given twice", got.Name)
		case err == nil && targets[got.Target]:
			err = fmt.Errorf("ssh: %s is given twice, and serves one workload at a time", got.Target)
		}
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("%s: machine %d: %w", file, i+1, err))
			continue
		}
		names[got.Name], targets[got.Target] = true, true
		out = append(out, got)
	}
	if errs == nil && len(out) == 0 {
		errs = fmt.Errorf("%s: it lists no machines", file)
	}
	return out, errs
}

func (m machineFile) read() (Machine, error) {
	out := Machine{Name: m.Name, Target: m.SSH, Region: m.Region, GPUs: m.GPUs, CUDA: m.CUDA}
	switch {
	case !plain.MatchString(m.Name):
		return out, fmt.Errorf("name %q: use lower-case letters, digits, '-' and '.', 48 at most", m.Name)
	case m.SSH == "" || strings.HasPrefix(m.SSH, "-") || strings.ContainsAny(m.SSH, " \t\n"):
		return out, fmt.Errorf("ssh %q: want user@host, or a name of your ssh configuration", m.SSH)
	case m.GPUs < 0 || m.GPUs > 16:
		return out, fmt.Errorf("gpus: %d on one machine; want 0 to 16", m.GPUs)
	}
	if m.GPU != "" {
		card, known := provider.ReadCard(m.GPU, 0)
		if !known {
			return out, fmt.Errorf("gpu: %q is not known; write it as nvidia-smi does", m.GPU)
		}
		out.Card = card
	}
	if out.Region == "" {
		out.Region = "here"
	}
	price, err := decimal.NewFromString(m.Price)
	if err != nil || price.IsNegative() {
		return out, fmt.Errorf("price %q: want USD an hour, 0 for what is paid anyway", m.Price)
	}
	out.Hourly = price
	if m.Until != "" {
		day, err := time.Parse(time.DateOnly, m.Until)
		if err != nil {
			return out, fmt.Errorf("until %q: want a day such as 2027-03-31", m.Until)
		}
		out.Until = day.AddDate(0, 0, 1)
	}
	return out, nil
}
