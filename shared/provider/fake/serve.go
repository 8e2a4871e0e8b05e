package fake

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// Serve is the cloud over HTTP: its API for Dial under /v1/, and the metadata that its machines ask under
//
//	GET  /metadata/{id}/interruption   404, or {"action":"terminate","time":RFC 3339}
//	POST /metadata/{id}/poweroff       the machine shuts itself down for good; 204
//	GET  /metadata/{id}/identity       {"id","name","cloud","account","zone","type","market","since"}
//
// {id} is the cloud's id of a machine. There is no authentication: it listens on this host only.
func Serve(c *Cloud) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/traits", func(w http.ResponseWriter, _ *http.Request) { reply(w, c.Traits(), nil) })
	mux.HandleFunc("GET /v1/about", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, About{c.id, c.cfg.Clock, c.cfg.Now().UTC()}, nil)
	})
	mux.HandleFunc("GET /v1/offers", func(w http.ResponseWriter, r *http.Request) {
		offers, err := c.Offers(r.Context())
		reply(w, offers, err)
	})
	mux.HandleFunc("POST /v1/launch", func(w http.ResponseWriter, r *http.Request) {
		var want provider.Request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&want); err != nil {
			reply(w, nil, fmt.Errorf("%w: %w", provider.ErrInvalid, err))
			return
		}
		m, err := c.Launch(context.WithoutCancel(r.Context()), want) // a caller that hangs up has bought all the same
		reply(w, m, err)
	})
	mux.HandleFunc("GET /v1/machines", func(w http.ResponseWriter, r *http.Request) {
		machines, err := c.List(r.Context())
		reply(w, machines, err)
	})
	mux.HandleFunc("DELETE /v1/machines/{id}", func(w http.ResponseWriter, r *http.Request) {
		reply(w, struct{}{}, c.End(context.WithoutCancel(r.Context()), r.PathValue("id")))
	})
	mux.HandleFunc("GET /v1/bill", func(w http.ResponseWriter, _ *http.Request) { reply(w, c.Bill(), nil) })
	mux.HandleFunc("GET /v1/reservations", func(w http.ResponseWriter, _ *http.Request) { reply(w, c.Booked(), nil) })
	mux.HandleFunc("POST /v1/reservations", func(w http.ResponseWriter, r *http.Request) {
		var want fleet.Reservation
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&want)
		if err != nil {
			err = fmt.Errorf("%w: %w", provider.ErrInvalid, err)
		} else {
			err = c.Book(want)
		}
		reply(w, struct{}{}, err)
	})
	mux.HandleFunc("GET /v1/writes", func(w http.ResponseWriter, _ *http.Request) { reply(w, c.Writes(), nil) })
	mux.HandleFunc("GET /v1/notices", func(w http.ResponseWriter, r *http.Request) {
		var after int
		_, err := fmt.Sscanf(cmp.Or(r.URL.Query().Get("after"), "0"), "%d", &after)
		if err != nil {
			err = fmt.Errorf("%w: after: %w", provider.ErrInvalid, err)
		}
		reply(w, c.Notices(after), err)
	})
	mux.HandleFunc("POST /v1/interrupt/{id}", func(w http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(cmp.Or(r.URL.Query().Get("notice"), c.cfg.Notice.String()))
		switch {
		case err != nil:
			err = fmt.Errorf("%w: notice: %w", provider.ErrInvalid, err)
		case !c.Interrupt(r.PathValue("id"), d):
			err = provider.ErrNotFound
		}
		reply(w, struct{}{}, err)
	})
	mux.HandleFunc("GET /metadata/{id}/interruption", c.serveInterruption)
	mux.HandleFunc("POST /metadata/{id}/poweroff", func(w http.ResponseWriter, r *http.Request) {
		c.PowerOff(r.PathValue("id"))
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /metadata/{id}/identity", c.serveIdentity)
	return mux
}

func (c *Cloud) serveInterruption(w http.ResponseWriter, r *http.Request) {
	endsBy, ok := c.Interruption(r.PathValue("id"))
	if !ok {
		http.NotFound(w, r)
		return
	}
	reply(w, struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}{"terminate", endsBy}, nil)
}

// Identity is what a machine may know about itself.
type Identity struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Cloud   string    `json:"cloud"`
	Account string    `json:"account"`
	Zone    string    `json:"zone"`
	Type    string    `json:"type"`
	Market  string    `json:"market"`
	Since   time.Time `json:"since"`
}

func (c *Cloud) serveIdentity(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	m := c.live[r.PathValue("id")]
	c.mu.Unlock()
	if m == nil {
		http.NotFound(w, r)
		return
	}
	o := m.Offer // of a machine, name, offer and begin never change
	reply(w, Identity{m.ID, m.Name, o.Cloud, o.Account, o.Zone, o.Type, string(o.Market), m.Since}, nil)
}

// About is which cloud it is, and in what time it reckons.
type About struct {
	ID    string    `json:"id"`    // random, as old as the bill
	Clock string    `json:"clock"` // Config.Clock
	Now   time.Time `json:"now"`
}

// problem is an error on the wire.
type problem struct {
	Word string `json:"word"`
	Text string `json:"text"`
}

func reply(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		status := http.StatusConflict
		if errors.Is(err, provider.ErrNotFound) {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
		v = problem{provider.Word(err), err.Error()}
	}
	_ = json.NewEncoder(w).Encode(v) // a client that has hung up is told nothing
}

// Client is a cloud in another process. It implements provider.Provider.
type Client struct {
	base   string
	http   *http.Client
	traits provider.Traits
}

// Dial reaches a cloud that Serve serves at an address, such as http://127.0.0.1:4711, and asks it for its traits.
func Dial(ctx context.Context, address string) (*Client, error) {
	c := &Client{base: strings.TrimRight(address, "/"), http: &http.Client{Timeout: 30 * time.Second}}
	if err := c.call(ctx, http.MethodGet, "/v1/traits", nil, &c.traits); err != nil {
		return nil, err
	}
	return c, nil
}

// URL is where it was dialled.
func (c *Client) URL() string { return c.base }

// Traits implements provider.Provider.
func (c *Client) Traits() provider.Traits { return c.traits }

// About tells which cloud it is.
func (c *Client) About(ctx context.Context) (out About, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/about", nil, &out)
	return out, err
}

// Offers implements provider.Provider.
func (c *Client) Offers(ctx context.Context) (out []fleet.Offer, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/offers", nil, &out)
	return out, err
}

// Launch implements provider.Provider.
func (c *Client) Launch(ctx context.Context, want provider.Request) (out provider.Machine, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/launch", want, &out)
	return out, err
}

// List implements provider.Provider.
func (c *Client) List(ctx context.Context) (out []provider.Machine, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/machines", nil, &out)
	return out, err
}

// End implements provider.Provider.
func (c *Client) End(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/machines/"+id, nil, nil)
}

// Bill is the bill as the cloud knows it.
func (c *Client) Bill(ctx context.Context) (out Bill, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/bill", nil, &out)
	return out, err
}

// Book pays for a reservation; one that is booked stays as it is.
func (c *Client) Book(ctx context.Context, r fleet.Reservation) error {
	return c.call(ctx, http.MethodPost, "/v1/reservations", r, nil)
}

// Booked lists the account's reservations.
func (c *Client) Booked(ctx context.Context) (out []Booked, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/reservations", nil, &out)
	return out, err
}

// Writes lists every writing call ever made to the account.
func (c *Client) Writes(ctx context.Context) (out []Write, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/writes", nil, &out)
	return out, err
}

// Notices lists the notices after a sequence number.
func (c *Client) Notices(ctx context.Context, after int) (out []Notice, err error) {
	err = c.call(ctx, http.MethodGet, fmt.Sprintf("/v1/notices?after=%d", after), nil, &out)
	return out, err
}

// Interrupt takes a machine back with notice from now.
func (c *Client) Interrupt(ctx context.Context, id string, notice time.Duration) error {
	return c.call(ctx, http.MethodPost, "/v1/interrupt/"+id+"?notice="+notice.String(), nil, nil)
}

// call makes one request. A writing request that may have arrived and was not answered is ErrUnknown.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("fake: %s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return fmt.Errorf("fake: %s %s: %w: %w", method, path, provider.ErrInvalid, err)
	}
	lost := provider.ErrUnknown
	if method == http.MethodGet {
		lost = provider.ErrUnavailable
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			lost = provider.ErrUnavailable // nothing was sent
		}
		var with *url.Error // says method and URL once more
		if errors.As(err, &with) {
			err = with.Err
		}
		return fmt.Errorf("fake: %s %s: %w: %w", method, path, lost, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("fake: %s %s: %w: %w", method, path, lost, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		var p problem
		if err := json.Unmarshal(b, &p); err != nil || p.Word == "" {
			return fmt.Errorf("fake: %s %s: %w: status %d", method, path, lost, resp.StatusCode)
		}
		return wordError(p)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("fake: %s %s: %w: %w", method, path, lost, err)
	}
	return nil
}

// wordError makes the error of the closed list again that was put on the wire.
func wordError(p problem) error {
	for _, e := range []error{
		provider.ErrNoCapacity, provider.ErrQuota, provider.ErrThrottled, provider.ErrUnavailable, provider.ErrDenied,
		provider.ErrInvalid, provider.ErrUnknown, provider.ErrNotFound, provider.ErrRefusedHere,
	} {
		if provider.Word(e) == p.Word {
			return remote{p.Text, e}
		}
	}
	return errors.New(p.Text)
}

// remote keeps the text as it came and unwraps to the value of the closed list.
type remote struct {
	text string
	is   error
}

func (r remote) Error() string { return r.text }
func (r remote) Unwrap() error { return r.is }
