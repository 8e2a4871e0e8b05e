package agent_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"lowtide/functions/agent"
)

// EC2's metadata service in its second version: nothing without a token, a token only by PUT with a time to live.
func TestANoticeBehindATokenIsHeard(t *testing.T) {
	doomed := false
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") == "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_, _ = w.Write([]byte("AQAEtoken=="))
	})
	mux.HandleFunc("GET /latest/meta-data/spot/instance-action", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != "AQAEtoken==":
			w.WriteHeader(http.StatusUnauthorized)
		case !doomed:
			http.NotFound(w, r)
		default:
			_, _ = w.Write([]byte(`{"action":"terminate","time":"2026-03-01T12:02:00Z"}`))
		}
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	e := agent.Endpoint{URL: srv.URL + "/latest/meta-data/spot/instance-action", Token: srv.URL + "/latest/api/token"}
	if _, found, err := e.Look(t.Context()); found || err != nil {
		t.Errorf("before the notice: found %v, %v", found, err)
	}
	doomed = true
	n, found, err := e.Look(t.Context())
	if want := time.Date(2026, 3, 1, 12, 2, 0, 0, time.UTC); !found || err != nil || !n.Time.Equal(want) || n.Action != "terminate" {
		t.Errorf("got %+v, %v, %v, want %s", n, found, err, want)
	}
	e.Token = ""
	if _, _, err := e.Look(t.Context()); err == nil {
		t.Error("a refusal without a token is no error")
	}
}
