package lambdalabs

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/shopspring/decimal"
	"golang.org/x/time/rate"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// kind is a machine type.
type kind struct {
	Name  string `json:"name"`
	GPU   string `json:"gpu_description"` // "A100 (80 GB SXM4)"; "N/A" without GPUs
	Cents int64  `json:"price_cents_per_hour"`
	Specs struct {
		GPUs int `json:"gpus"`
	} `json:"specs"`
}

// price is USD an hour of the whole machine with all its GPUs; the vendor counts in cents.
func (k kind) price() fleet.Money {
	return fleet.Money{Amount: decimal.New(k.Cents, -2), Currency: fleet.USD}
}

type place struct {
	Name string `json:"name"`
}

// stocked is a type and the regions that have some; no region is sold out.
type stocked struct {
	Type    kind    `json:"instance_type"`
	Regions []place `json:"regions_with_capacity_available"`
}

func (s stocked) in(region string) bool { return slices.Contains(s.Regions, place{region}) }

type tag struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type tags []tag

func (t tags) byKey() map[string]string {
	m := map[string]string{}
	for _, x := range t {
		m[x.Key] = x.Value
	}
	return m
}

// row is one machine as it is listed. The vendor's row also holds secrets (a notebook's token and URL): they are not read.
type row struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Region place  `json:"region"`
	Type   kind   `json:"instance_type"`
	Tags   tags   `json:"tags"`
}

// state reads the vendor's word. A word that is not known bills until it is known not to.
func (r row) state() (provider.State, string) {
	switch r.Status {
	case "booting":
		return provider.Pending, ""
	case "active":
		return provider.Running, ""
	case "terminating":
		return provider.Ending, ""
	case "preempted":
		return provider.Stopped, "interrupted"
	}
	return provider.Running, r.Status // "unhealthy"
}

// purchase is the body of a launch. There is no count: the vendor sells one machine a call.
type purchase struct {
	Region   string   `json:"region_name"`
	Type     string   `json:"instance_type_name"`
	SSHKeys  []string `json:"ssh_key_names"` // exactly one
	Name     string   `json:"name"`
	UserData string   `json:"user_data"`
	Tags     tags     `json:"tags"`
}

func (p purchase) since() time.Time { return moment(p.Tags.byKey()[tagSince]) }

// Pace is the least time between two calls of a kind; the zero Pace waits for nothing.
type Pace struct{ Call, Launch time.Duration }

// Published is the pace that the vendor asks for: one call a second, five launches a minute.
func Published() Pace { return Pace{Call: time.Second, Launch: 12 * time.Second} }

type wire struct {
	base, key string
	client    *http.Client
	pace      Pace
	turn      *rate.Limiter
	launches  *rate.Limiter // of whoever is buying
}

func newWire(s Settings) *wire {
	return &wire{s.URL, s.Key, s.Client, s.Pace, every(s.Pace.Call), every(s.Pace.Launch)}
}

func every(d time.Duration) *rate.Limiter {
	if d <= 0 {
		return rate.NewLimiter(rate.Inf, 1)
	}
	return rate.NewLimiter(rate.Every(d), 1)
}

// Reads says whether a request changes nothing at this cloud.
func Reads(r *http.Request) bool { return r.Method == http.MethodGet }

// The paths of the API.
const (
	pathKinds     = "/api/v1/instance-types"
	pathInstances = "/api/v1/instances"
	pathLaunch    = "/api/v1/instance-operations/launch"
	pathTerminate = "/api/v1/instance-operations/terminate"
)

// kinds are the types by name.
func (w *wire) kinds(ctx context.Context) (out map[string]stocked, err error) {
	return out, w.call(ctx, http.MethodGet, pathKinds, nil, &out)
}

// instances are all machines: the vendor's list has no pages.
func (w *wire) instances(ctx context.Context) ([]row, error) {
	var out []row
	if err := w.call(ctx, http.MethodGet, pathInstances, nil, &out); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, r := range out {
		if r.ID == "" || seen[r.ID] {
			return nil, fmt.Errorf("%w: its list names a machine twice, or without an id", provider.ErrUnavailable)
		}
		seen[r.ID] = true
	}
	return out, nil
}

// launch buys one machine and is the one call whose lost answer is ErrUnknown.
func (w *wire) launch(ctx context.Context, p purchase) (id string, err error) {
	if err := wait(ctx, w.launches); err != nil {
		return "", err
	}
	defer func() { // the next is reckoned from the answer to this one, which may have waited for its turn as a call
		w.launches = every(w.pace.Launch)
		w.launches.Allow()
	}()
	var out struct {
		IDs []string `json:"instance_ids"`
	}
	if err := w.call(ctx, http.MethodPost, pathLaunch, p, &out); err != nil {
		return "", err
	}
	if len(out.IDs) != 1 || out.IDs[0] == "" {
		return "", fmt.Errorf("%w: an answer with %d machines", provider.ErrUnknown, len(out.IDs))
	}
	return out.IDs[0], nil
}

// terminate ends a machine. The answer names what ends; what it does not name is asked for again.
func (w *wire) terminate(ctx context.Context, id string) error {
	var out struct {
		Ended []struct {
			ID string `json:"id"`
		} `json:"terminated_instances"`
	}
	if err := w.call(ctx, http.MethodPost, pathTerminate, map[string][]string{"instance_ids": {id}}, &out); err != nil {
		return err
	}
	for _, e := range out.Ended {
		if e.ID == id {
			return nil
		}
	}
	return fmt.Errorf("%w: an answer that does not say that it ends", provider.ErrUnavailable)
}

func wait(ctx context.Context, turn *rate.Limiter) error {
	if err := turn.Wait(ctx); err != nil {
		return fmt.Errorf("%w by lowtide's own pace: %w", provider.ErrThrottled, err)
	}
	return nil
}

// call makes one request.
func (w *wire) call(ctx context.Context, method, path string, in, out any) error {
	if w.key == "" {
		return fmt.Errorf("%w: no key is configured", provider.ErrDenied)
	}
	req, err := provider.JSON(ctx, method, w.base+path, in)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	if err := wait(ctx, w.turn); err != nil {
		return err
	}
	buys := path == pathLaunch // an end may be repeated: a lost answer is no question
	a, err := provider.Exchange(w.client, req, buys)
	if err != nil {
		return err
	}
	return read(a, buys, out)
}
