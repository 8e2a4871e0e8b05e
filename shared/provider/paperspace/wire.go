package paperspace

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"
	"golang.org/x/time/rate"

	"lowtide/shared/provider"
)

// wire sends.
type wire struct {
	s    Settings
	pace *rate.Limiter
}

func newWire(s Settings) *wire {
	w := &wire{s: s, pace: rate.NewLimiter(rate.Inf, 1)}
	if s.PerSecond > 0 {
		w.pace = rate.NewLimiter(rate.Limit(s.PerSecond), max(int(s.PerSecond), 1))
	}
	return w
}

// Reads says whether a request changes nothing at this cloud.
func Reads(r *http.Request) bool { return r.Method == http.MethodGet }

// row is one machine as it is listed.
type row struct {
	ID           string              `json:"id"`
	Name         string              `json:"name"`
	State        string              `json:"state"`
	Type         string              `json:"machineType"`
	Region       string              `json:"region"` // "ny2", or "East Coast (NY2)"
	Rate         decimal.NullDecimal `json:"usageRate"`
	Created      string              `json:"dtCreated"`
	Deleted      string              `json:"dtDeleted"`
	Accelerators []struct {
		Name   string  `json:"name"`
		Memory float64 `json:"memory"` // bytes of one
		Count  int     `json:"count"`
	} `json:"accelerators"`
	Reservation *struct {
		ID string `json:"id"`
	} `json:"reservation"`
}

// state reads the vendor's word. One that is not known runs, so that it is looked after.
func (r row) state() (provider.State, string) {
	switch r.State {
	case "provisioning", "starting", "serviceready":
		return provider.Pending, ""
	case "off", "stopping":
		return provider.Stopped, "off"
	}
	return provider.Running, ""
}

// regionOf is a region's id, also where its label is told.
func regionOf(s string) string {
	if _, in, ok := strings.Cut(s, "("); ok {
		s = strings.TrimSuffix(in, ")")
	}
	return strings.ToLower(strings.TrimSpace(s))
}

func moment(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// purchase is the body of a create. What is false is said: the vendor's defaults are otherwise.
type purchase struct {
	Name     string `json:"name"`
	Type     string `json:"machineType"`
	Template string `json:"templateId"`
	Disk     int    `json:"diskSize"`
	Region   string `json:"region"`
	Address  string `json:"publicIpType"` // a dynamic one goes with its machine
	Script   string `json:"startupScriptId"`
	Start    bool   `json:"startOnCreate"`
	Password bool   `json:"emailPassword"`
	Shutdown bool   `json:"autoShutdownEnabled"`
	Snapshot bool   `json:"autoSnapshotEnabled"`
}

// made is the answer to a purchase.
type made struct {
	Event struct {
		State string `json:"state"` // "new", "in progress", "done", "error", "cancelled"
		Error string `json:"error"`
	} `json:"event"`
	Machine row `json:"data"`
}

// failure is a purchase that was taken and has failed already.
func (m made) failure() error {
	switch {
	case m.Event.State == "error", m.Event.State == "cancelled":
		return fmt.Errorf("%w: the machine could not be made (%s)", provider.ErrNoCapacity, m.Event.State)
	case m.Machine.ID == "":
		return fmt.Errorf("%w: an answer without a machine", provider.ErrUnknown)
	}
	return nil
}

func (w *wire) create(ctx context.Context, p purchase) (out made, err error) {
	err = w.call(ctx, http.MethodPost, "/machines", p, &out)
	return out, err
}

func (w *wire) machines(ctx context.Context) ([]row, error) {
	return pages[row](ctx, w, "/machines", url.Values{})
}

func (w *wire) machine(ctx context.Context, id string) (out row, err error) {
	err = w.call(ctx, http.MethodGet, "/machines/"+url.PathEscape(id), nil, &out)
	return out, err
}

func (w *wire) remove(ctx context.Context, id string) error {
	return w.call(ctx, http.MethodDelete, "/machines/"+url.PathEscape(id), nil, nil)
}

// types are the machine types that any template fits. Whether there are any is another question.
func (w *wire) types(ctx context.Context) ([]string, error) {
	type template struct {
		Types []struct {
			Label string `json:"machineTypeLabel"`
		} `json:"availableMachineTypes"`
	}
	all, err := pages[template](ctx, w, "/os-templates", url.Values{})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range all {
		for _, m := range t.Types {
			out = append(out, m.Label)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// available says whether a type is to be had in a region now; ErrNotFound for one that does not exist.
func (w *wire) available(ctx context.Context, name, region string) (bool, error) {
	var out struct {
		Available *bool `json:"available"`
	}
	err := w.call(ctx, http.MethodGet, "/machine-availability?"+url.Values{"machineType": {name}, "region": {region}}.Encode(), nil, &out)
	switch {
	case err != nil:
		return false, err
	case out.Available == nil:
		return false, fmt.Errorf("%w: an answer that is not as described", provider.ErrUnavailable)
	}
	return *out.Available, nil
}

// script is a startup script of the account.
type script struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// scripts are the ids of the startup scripts of that name.
func (w *wire) scripts(ctx context.Context, name string) ([]string, error) {
	all, err := pages[script](ctx, w, "/startup-scripts", url.Values{"name": {name}})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range all {
		if s.Name == name && s.ID != "" {
			out = append(out, s.ID)
		}
	}
	return out, nil
}

func (w *wire) write(ctx context.Context, name, text string) (string, error) {
	var out script
	err := w.call(ctx, http.MethodPost, "/startup-scripts", map[string]any{"name": name, "script": text, "isRunOnce": false}, &out)
	if err == nil && out.ID == "" {
		err = fmt.Errorf("%w: an answer without a script", provider.ErrUnavailable)
	}
	return out.ID, err
}

func (w *wire) unwrite(ctx context.Context, id string) error {
	return w.call(ctx, http.MethodDelete, "/startup-scripts/"+url.PathEscape(id), nil, nil)
}

// pages are all rows of a list.
func pages[T any](ctx context.Context, w *wire, path string, q url.Values) ([]T, error) {
	var out []T
	q.Set("limit", "120")
	err := provider.Pages(ctx, func(after string) (string, error) {
		if after != "" {
			q.Set("after", after)
		}
		var page struct {
			Items *[]T   `json:"items"`
			More  bool   `json:"hasMore"`
			Next  string `json:"nextPage"`
		}
		if err := w.call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &page); err != nil {
			return "", err
		}
		if page.Items == nil || page.More && page.Next == "" {
			return "", fmt.Errorf("%w: a page that is not as described", provider.ErrUnavailable)
		}
		out = append(out, *page.Items...)
		if !page.More {
			return "", nil
		}
		return page.Next, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// call makes one request. A machine alone is bought: a script that was written twice costs nothing.
func (w *wire) call(ctx context.Context, method, path string, in, out any) error {
	if w.s.Key == "" {
		return fmt.Errorf("%w: no key is configured", provider.ErrDenied)
	}
	req, err := provider.JSON(ctx, method, w.s.URL+path, in)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+w.s.Key)
	if err := w.pace.Wait(ctx); err != nil {
		return fmt.Errorf("%w by lowtide's own pace: %w", provider.ErrThrottled, err)
	}
	buys := method == http.MethodPost && path == "/machines"
	a, err := provider.Exchange(w.s.Client, req, buys)
	if err != nil {
		return err
	}
	if a.Status >= 300 {
		return explain(a, buys)
	}
	if out == nil {
		return nil
	}
	if json.Unmarshal(a.Body, out) != nil {
		return fmt.Errorf("%w: an answer that is not as described", provider.Lost(buys))
	}
	return nil
}
