package vast

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"
	"golang.org/x/time/rate"

	"lowtide/shared/provider"
)

// mostAsks is the most that one search answers. There are no pages: more than this would be cut off, and is refused.
const mostAsks = 20000

// query is a search; is makes one condition of it.
type query map[string]any

func is(op string, val any) map[string]any { return map[string]any{op: val} }

// ask is one machine that may be rented, as the search shows it. Amounts are USD: an hour of the whole offer, a GB of
// traffic, a GB-month of disk.
type ask struct {
	ID         int64               `json:"id"`
	Box        int64               `json:"machine_id"` // the stranger's machine, whatever it is rented out as
	GPU        string              `json:"gpu_name"`
	GPUs       int                 `json:"num_gpus"`
	RAM        float64             `json:"gpu_ram"` // MB of one GPU
	CUDA       json.Number         `json:"cuda_max_good"`
	Base       decimal.NullDecimal `json:"dph_base"`
	Total      decimal.NullDecimal `json:"dph_total"` // with the disk that was asked for
	MinBid     decimal.NullDecimal `json:"min_bid"`
	DiskHour   decimal.NullDecimal `json:"storage_total_cost"`
	Storage    decimal.NullDecimal `json:"storage_cost"`
	Egress     decimal.NullDecimal `json:"inet_up_cost"`
	PrepaidOff decimal.NullDecimal `json:"credit_discount_max"`
	Place      string              `json:"geolocation"`
	Duration   float64             `json:"duration"` // seconds until the host's contract ends
}

// row is one rented machine.
type row struct {
	ID       int64               `json:"id"`
	Box      int64               `json:"machine_id"`
	Label    string              `json:"label"`
	Actual   string              `json:"actual_status"`
	Intended string              `json:"intended_status"`
	Current  string              `json:"cur_state"`
	Bid      bool                `json:"is_bid"`
	Total    decimal.NullDecimal `json:"dph_total"`
	GPU      string              `json:"gpu_name"`
	GPUs     int                 `json:"num_gpus"`
	RAM      float64             `json:"gpu_ram"`
	Place    string              `json:"geolocation"`
	Start    float64             `json:"start_date"`
}

// state reads three words of the market. A machine that was outbid stays, stopped, until it is destroyed: its disk bills.
func (r row) state() (provider.State, string) {
	switch {
	case r.Intended == "stopped" || r.Current == "stopped":
		if r.Bid {
			return provider.Stopped, "interrupted"
		}
		return provider.Stopped, "stopped"
	case r.Actual == "exited":
		return provider.Stopped, "exited"
	case r.Actual == "running":
		return provider.Running, ""
	case r.Actual == "offline":
		return provider.Running, "offline"
	}
	return provider.Pending, ""
}

// create is the body of a rent.
type create struct {
	Client            string            `json:"client_id"`
	Image             string            `json:"image"`
	Disk              int               `json:"disk"`
	Label             string            `json:"label"`
	OnStart           string            `json:"onstart"`
	RunType           string            `json:"runtype"`
	Env               map[string]string `json:"env"`
	Price             *decimal.Decimal  `json:"price,omitempty"` // the bid; without it the rent is on demand
	CancelUnavailable bool              `json:"cancel_unavail"`
}

// MarshalJSON writes the bid as a number: decimal's own form is a string.
func (c create) MarshalJSON() ([]byte, error) {
	type plain create
	if c.Price == nil {
		return json.Marshal(plain(c))
	}
	return json.Marshal(struct {
		plain
		Price json.Number `json:"price"`
	}{plain(c), json.Number(c.Price.String())})
}

// Pace is the least time between two calls of a kind; the zero Pace waits for nothing.
type Pace struct{ Search, Create, Destroy, Show time.Duration }

// Published is the pace that the vendor asks for.
func Published() Pace {
	return Pace{Search: 6 * time.Second, Create: 4500 * time.Millisecond, Destroy: 3 * time.Second, Show: 2 * time.Second}
}

type wire struct {
	base, key                                     string
	client                                        *http.Client
	turnSearch, turnCreate, turnDestroy, turnShow *rate.Limiter
}

func newWire(s Settings) *wire {
	every := func(d time.Duration) *rate.Limiter {
		if d <= 0 {
			return rate.NewLimiter(rate.Inf, 1)
		}
		return rate.NewLimiter(rate.Every(d), 1)
	}
	return &wire{s.URL, s.Key, s.Client, every(s.Pace.Search), every(s.Pace.Create), every(s.Pace.Destroy), every(s.Pace.Show)}
}

// Reads says whether a request changes nothing at this cloud.
func Reads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodPost && r.URL.Path == "/api/v0/bundles/"
}

func (w *wire) search(ctx context.Context, q query) ([]ask, error) {
	var out struct {
		Offers []ask `json:"offers"`
	}
	if err := w.call(ctx, w.turnSearch, http.MethodPost, "/api/v0/bundles/", q, &out); err != nil {
		return nil, err
	}
	if out.Offers == nil {
		return nil, fmt.Errorf("%w: an answer without offers", provider.ErrUnavailable)
	}
	if len(out.Offers) >= mostAsks {
		return nil, fmt.Errorf("%w: more than %d offers, and the rest is not shown", provider.ErrUnavailable, mostAsks)
	}
	return out.Offers, nil
}

func (w *wire) instances(ctx context.Context) (out []row, err error) {
	err = provider.Pages(ctx, func(token string) (string, error) {
		q := url.Values{"limit": {"25"}}
		if token != "" {
			q.Set("after_token", token)
		}
		var page struct {
			Instances []row   `json:"instances"`
			Next      *string `json:"next_token"`
		}
		if err := w.call(ctx, w.turnShow, http.MethodGet, "/api/v1/instances/?"+q.Encode(), nil, &page); err != nil {
			return "", err
		}
		if page.Instances == nil {
			return "", fmt.Errorf("%w: an answer without instances", provider.ErrUnavailable)
		}
		out = append(out, page.Instances...)
		if page.Next == nil {
			return "", nil
		}
		return *page.Next, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// instance is one machine; nil if there is none. The answer is one object under a plural name.
func (w *wire) instance(ctx context.Context, id int64) (*row, error) {
	var out struct {
		Instance *row `json:"instances"`
	}
	err := w.call(ctx, w.turnShow, http.MethodGet, "/api/v0/instances/"+strconv.FormatInt(id, 10)+"/", nil, &out)
	return out.Instance, err
}

// create rents an ask. A bid under the lowest is refused and yet leaves a stopped machine: it is destroyed.
func (w *wire) create(ctx context.Context, ask int64, c create) (int64, error) {
	var out struct {
		Success  bool   `json:"success"`
		Contract int64  `json:"new_contract"`
		Error    string `json:"error"`
	}
	err := w.call(ctx, w.turnCreate, http.MethodPut, "/api/v0/asks/"+strconv.FormatInt(ask, 10)+"/", c, &out)
	if err == nil && out.Contract == 0 {
		return 0, fmt.Errorf("%w: an answer without a contract", provider.ErrUnknown)
	}
	if err == nil {
		return out.Contract, nil
	}
	var p *problem
	if as(err, &p) && p.Contract != 0 {
		if e := w.destroy(context.WithoutCancel(ctx), p.Contract); e != nil {
			return 0, fmt.Errorf("%w: refused (%s), yet machine %d was made and could not be destroyed: %w", provider.ErrUnknown, p.Word, p.Contract, e)
		}
	}
	return 0, err
}

// destroy ends a machine. An answer of 200 may say that it was not done.
func (w *wire) destroy(ctx context.Context, id int64) error {
	return w.call(ctx, w.turnDestroy, http.MethodDelete, "/api/v0/instances/"+strconv.FormatInt(id, 10)+"/", struct{}{}, nil)
}

// call makes one request.
func (w *wire) call(ctx context.Context, turn *rate.Limiter, method, path string, in, out any) error {
	req, err := provider.JSON(ctx, method, w.base+path, in)
	if err != nil {
		return err
	}
	if w.key != "" {
		req.Header.Set("Authorization", "Bearer "+w.key)
	} else if !strings.HasSuffix(path, "/bundles/") {
		return fmt.Errorf("%w: no key is configured", provider.ErrDenied)
	}
	if err := turn.Wait(ctx); err != nil {
		return fmt.Errorf("%w by lowtide's own pace: %w", provider.ErrThrottled, err)
	}
	writes := !Reads(req) && method != http.MethodDelete // an end may be repeated: a lost answer is no question
	a, err := provider.Exchange(w.client, req, writes)
	if err != nil {
		return err
	}
	return read(a, writes, out)
}
