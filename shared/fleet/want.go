package fleet

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Want is what a workload asks of its machines beyond number and model of their GPUs. What an offer does not tell is no.
type Want struct {
	Memory    int      `json:"memory,omitempty"` // of one GPU, GB, as its maker counts
	NVLink    bool     `json:"nvlink,omitempty"` // between the GPUs
	CUDA      string   `json:"cuda,omitempty"`   // that the driver runs at least, "12.4"
	Regions   []string `json:"regions,omitempty"`
	Certified []string `json:"certified,omitempty"` // what the cloud must be certified for, as the owner's price book says
	Side      Side     `json:"side,omitempty"`      // of mainland China's border; "": either
}

// Side is where something lies, as mainland China's border has it.
type Side string

// The sides.
const (
	China   Side = "china" // the mainland: Hong Kong, Macao and Taiwan are outside of this border
	Outside Side = "outside"
)

// Met says that an offer has it all.
func (w Want) Met(o *Offer) bool {
	return (w.Memory == 0 || o.Memory >= w.Memory) &&
		(!w.NVLink || o.Linked()) &&
		(w.CUDA == "" || o.CUDA != "" && Version(o.CUDA, w.CUDA) >= 0) &&
		(len(w.Regions) == 0 || slices.ContainsFunc(w.Regions, func(r string) bool { ok, _ := path.Match(r, o.Region); return ok })) &&
		certified(w.Certified, o.Certified) &&
		(w.Side == "" || w.Side == o.Side())
}

// String is what is asked for, in words; "" for nothing.
func (w Want) String() string {
	if w.Memory == 0 && !w.NVLink && w.CUDA == "" && len(w.Regions) == 0 && len(w.Certified) == 0 && w.Side == "" {
		return ""
	}
	var all []string
	say := func(asked bool, format string, args ...any) {
		if asked {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	say(w.Memory > 0, "%d GB or more each", w.Memory)
	say(w.NVLink, "joined by NVLink")
	say(w.CUDA != "", "a driver for CUDA %s or later", w.CUDA)
	say(len(w.Regions) > 0, "in %s", strings.Join(w.Regions, ", "))
	say(len(w.Certified) > 0, "certified for %s", strings.Join(w.Certified, ", "))
	say(w.Side == China, "in mainland China, where its data lies")
	say(w.Side == Outside, "outside mainland China, where its data lies")
	return strings.Join(all, ", ")
}

// Linked says that the offer's GPUs are known to be joined by NVLink, or that there is nothing to join.
func (o *Offer) Linked() bool {
	if o.GPUs == 1 {
		return true
	}
	for _, form := range []string{"SXM", "HGX", "DGX"} {
		if strings.HasPrefix(o.Form, form) {
			return true
		}
	}
	return false
}

func certified(want []string, has string) bool {
	all := strings.Split(has, ",")
	return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(all, w) })
}

// Version compares dotted numbers; what is no number counts as 0.
func Version(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		var n, m int
		if i < len(x) {
			n, _ = strconv.Atoi(x[i])
		}
		if i < len(y) {
			m, _ = strconv.Atoi(y[i])
		}
		if n != m {
			return cmp.Compare(n, m)
		}
	}
	return 0
}

// abroad are Tencent Cloud's regions in Asia that are not in the mainland; all others that begin with "ap-" are.
var abroad = []string{"ap-hongkong", "ap-taipei", "ap-singapore", "ap-bangkok", "ap-jakarta", "ap-seoul", "ap-tokyo", "ap-mumbai", "ap-osaka"}

// Side is where the offer's machines are, by the names that the clouds give their regions.
func (o *Offer) Side() Side {
	r := strings.ToLower(o.Region)
	in := strings.HasPrefix(r, "cn-") && !strings.HasPrefix(r, "cn-hongkong")
	switch o.Cloud {
	case "azure":
		in = strings.HasPrefix(r, "china")
	case "vast": // a country
		in = r == "cn"
	case "tencent":
		in = strings.HasPrefix(r, "ap-") && !slices.ContainsFunc(abroad, func(a string) bool { return strings.HasPrefix(r, a) })
	}
	if in {
		return China
	}
	return Outside
}

// SideOfBucket is where a bucket's URL says it lies; outside where it does not say.
func SideOfBucket(address string) Side {
	u, err := url.Parse(address)
	if err != nil {
		return Outside
	}
	host, q := u.Host, u.Query()
	if e, err := url.Parse(q.Get("endpoint")); err == nil && e.Host != "" {
		host = e.Host
	}
	host = strings.ToLower(host)
	if strings.HasSuffix(host, ".cn") || (&Offer{Region: q.Get("region")}).Side() == China {
		return China
	}
	for part := range strings.SplitSeq(host, ".") {
		for _, prefix := range []string{"oss-", "tos-", "tos-s3-", "obs-", "s3-", ""} { // "oss-cn-beijing-internal", "cos.ap-shanghai", "obs.cn-north-4"
			name, found := strings.CutPrefix(part, prefix)
			cloud := ""
			if strings.HasPrefix(name, "ap-") && strings.HasSuffix(host, ".myqcloud.com") {
				cloud = "tencent"
			}
			if found && (&Offer{Cloud: cloud, Region: name}).Side() == China {
				return China
			}
		}
	}
	return Outside
}
