package intake

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"

	"lowtide/shared/fleet"
)

// gpusFile is a number of GPUs, or what is asked of them.
type gpusFile struct {
	Count  int      `yaml:"count"`
	Models []string `yaml:"models"`
	Memory string   `yaml:"memory"`
	NVLink bool     `yaml:"nvlink"`
	CUDA   string   `yaml:"cuda"`
}

// UnmarshalYAML takes both forms.
func (g *gpusFile) UnmarshalYAML(b []byte) error {
	if yaml.Unmarshal(b, &g.Count) == nil {
		return nil
	}
	type plain gpusFile
	if err := yaml.UnmarshalWithOptions(b, (*plain)(g), yaml.Strict()); err != nil {
		return errors.New("gpus: want a number, or {count, models, memory, nvlink, cuda}")
	}
	return nil
}

// allowFile is where a workload may run.
type allowFile struct {
	Clouds         []string `yaml:"clouds"`
	Regions        []string `yaml:"regions"`
	Certifications []string `yaml:"certifications"`
}

var cudaVersion = regexp.MustCompile(`^[0-9]{1,2}(\.[0-9]{1,2})?$`)

// machines checks what is asked of the machines, and where they may be.
func (f file) machines(s *fleet.Spec) error {
	g := f.GPUs
	if len(g.Models) > 0 && len(f.Models) > 0 {
		return field("gpus", errors.New("models are given twice, here and in the field models; give them once"))
	}
	s.Models = append(s.Models, g.Models...)
	if g.Memory != "" {
		n, err := bytesOf(strings.Replace(strings.ToUpper(g.Memory), "GIB", "GB", 1)) // cards are named in GB and mean GiB
		if err != nil || n < 1e9 || n > 1e12 {
			return field("gpus", fmt.Errorf("memory: %q is not the memory of one GPU; write 40GB", g.Memory))
		}
		s.Want.Memory = int(n / 1e9)
	}
	if s.Want.NVLink = g.NVLink; g.NVLink && g.Count < 2 {
		return field("gpus", errors.New("nvlink: it joins GPUs of one machine; give a count of 2 or more"))
	}
	if s.Want.CUDA = g.CUDA; g.CUDA != "" && !cudaVersion.MatchString(g.CUDA) {
		return field("gpus", fmt.Errorf("cuda: %q is not a version; write \"12.4\", in quotes", g.CUDA))
	}
	if len(f.Allow.Clouds) > 0 && len(f.Clouds) > 0 {
		return field("allow", errors.New("clouds are given twice, here and in the field clouds; give them once"))
	}
	s.Clouds = append(s.Clouds, f.Allow.Clouds...)
	switch f.Border {
	case "", cross, string(fleet.China), string(fleet.Outside):
	default:
		return field("border", fmt.Errorf("%q is none of china, outside, cross", f.Border))
	}
	for _, r := range f.Allow.Regions {
		if _, err := path.Match(r, ""); err != nil || r == "" {
			return field("allow", fmt.Errorf("regions: %q is no pattern; write eu-west-1 or eu-*", r))
		}
	}
	s.Want.Regions = f.Allow.Regions
	for _, c := range f.Allow.Certifications {
		s.Want.Certified = append(s.Want.Certified, strings.ToLower(strings.TrimSpace(c)))
	}
	return nil
}

// The words of the field border besides the sides.
const cross = "cross"

// At settles on which side of mainland China's border the machines must be: that of the bucket, unless the file says
// another or lets data cross. Data on the other side is refused. Whoever takes a file calls it.
func (a *Asked) At(bucket string) error {
	side := fleet.Side(a.border)
	switch a.border {
	case "":
		side = fleet.SideOfBucket(bucket)
	case cross:
		return nil
	case string(fleet.China), string(fleet.Outside):
		if lies := fleet.SideOfBucket(bucket); strings.Contains(bucket, "://") && !local(bucket) && lies != side {
			return field("border", fmt.Errorf("%s, but checkpoints go to a bucket that lies %s; name a bucket on that side, or write cross", where(side), where(lies)))
		}
	}
	if u := a.Spec.Kit.Data.URL; u != "" && !local(u) && fleet.SideOfBucket(u) != side {
		return field("data", fmt.Errorf("it lies %s and the machines would be %s; data crosses mainland China's border only with border: cross", where(fleet.SideOfBucket(u)), where(side)))
	}
	a.Spec.Want.Side = side
	return nil
}

// local says that a bucket is a directory, which tells nothing of where it lies.
func local(bucket string) bool {
	return strings.HasPrefix(bucket, "file:") || strings.HasPrefix(bucket, "mem:")
}

func where(s fleet.Side) string {
	if s == fleet.China {
		return "in mainland China"
	}
	return "outside mainland China"
}
