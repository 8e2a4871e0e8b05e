package provider_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lowtide/shared/provider"
)

func TestCodesAreSortedByTheFirstRowThatFits(t *testing.T) {
	codes := provider.Codes{
		{Is: provider.ErrDenied, Codes: []string{"*Balance*", "AuthFailure*"}},
		{Is: provider.ErrNoCapacity, Codes: []string{"*Insufficient*", "Exact"}},
	}
	for _, c := range []struct {
		status int
		code   string
		writes bool
		is     error
		says   string
	}{
		{400, "InsufficientBalance", true, provider.ErrDenied, "InsufficientBalance"},
		{400, "AuthFailure.Expired", true, provider.ErrDenied, "AuthFailure.Expired"},
		{500, "ZoneInsufficient", true, provider.ErrNoCapacity, "ZoneInsufficient"},
		{400, "Exactly", true, provider.ErrInvalid, "Exactly"},
		{500, "Exactly", true, provider.ErrUnknown, "Exactly"},
		{500, "", false, provider.ErrUnavailable, "status 500"},
		{429, "a sentence that\nmay hold a secret", false, provider.ErrThrottled, "status 429"},
		{302, "", true, provider.ErrUnknown, "status 302"},
		{200, "", false, provider.ErrUnavailable, "status 200"},
	} {
		p := codes.Refusal(c.status, c.code, c.writes)
		if !errors.Is(p, c.is) || !strings.HasSuffix(p.Error(), "("+c.says+")") {
			t.Errorf("%d %q: got %v, want %v with %s", c.status, c.code, p, c.is, c.says)
		}
	}
	if got := (&provider.Problem{Code: "C", Is: provider.ErrDenied, Hint: "ask for it"}).Error(); got != "not allowed (C): ask for it" {
		t.Errorf("got %q", got)
	}
}

func TestARequestRefusedForItsTimeIsSentOnceMoreWithTheCloudsClock(t *testing.T) {
	local := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for ahead, want := range map[time.Duration]string{3 * time.Hour: "12:00 15:00 15:00", time.Minute: "12:00 12:00"} {
		var asked []string
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", local.Add(ahead).Format(http.TimeFormat))
			asked = append(asked, r.URL.RawQuery)
		}))
		clock := provider.NewClock(func() time.Time { return local })
		for range 2 {
			_ = clock.Send(srv.Client(), false, func(at time.Time) (*http.Request, error) {
				return http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"?"+at.Format("15:04"), nil)
			}, func(provider.Answer) error {
				return &provider.Problem{Code: "Skewed", Is: provider.ErrDenied, Time: true}
			})
		}
		srv.Close()
		if got := strings.Join(asked, " "); got != want {
			t.Errorf("%s off: asked %s, want %s", ahead, got, want)
		}
	}
}

// http.Transport repeats a GET by itself when the connection dies under it.
func TestAPurchaseByGETIsSentOnce(t *testing.T) {
	for _, writes := range []bool{true, false} {
		bought := 0
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/buy" {
				fmt.Fprint(w, "fine")
				return
			}
			if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
				t.Errorf("a body is sent: %d %v", r.ContentLength, r.TransferEncoding)
			}
			bought++
			panic(http.ErrAbortHandler)
		}))
		ask := func(path string, writes bool) error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			_, err = provider.Exchange(srv.Client(), req, writes)
			return err
		}
		if err := ask("/", false); err != nil { // a connection that is kept
			t.Fatal(err)
		}
		err := ask("/buy", writes)
		srv.Close()
		if writes && (bought != 1 || !errors.Is(err, provider.ErrUnknown)) {
			t.Errorf("bought %d times, %v", bought, err)
		}
		if !writes && (bought < 2 || !errors.Is(err, provider.ErrUnavailable)) {
			t.Errorf("a read was tried %d times, %v: without a second try this test shows nothing", bought, err)
		}
	}
}
