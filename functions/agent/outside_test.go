package agent_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"lowtide/functions/agent"
	"lowtide/shared/provider/providertest"
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

// What each cloud's metadata service answers, most of it as the vendor prints it.
func TestEachCloudsNoticeIsReadInItsOwnForm(t *testing.T) {
	if os.Getenv("LOWTIDE_SHARED") == "" {
		t.Setenv("LOWTIDE_SHARED", "../../../shared")
	}
	sample := func(name string) func(*testing.T) string {
		return func(t *testing.T) string { return string(providertest.Sample(t, name)) }
	}
	text := func(s string) func(*testing.T) string { return func(*testing.T) string { return s } }
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	const begun = `{"DocumentIncarnation": 2, "Events": [{"EventType": "Preempt", "Resources": ["vm-7"], "EventStatus": "Started", "NotBefore": ""}]}`
	for _, c := range []struct {
		name, self, now string
		body            func(*testing.T) string
		want            string // ""; no notice
	}{
		{"AWS", "", "2026-03-01T00:00:00Z", text(`{"action": "terminate", "time": "2026-03-01T12:02:00Z"}`), "2026-03-01T12:02:00Z"},
		{"Alibaba", "", "2015-01-05T17:57:00Z", sample("alibaba-imds-termination-time.txt"), "2015-01-05T18:02:00Z"},
		{"Volcano Engine", "", "2026-01-01T00:00:00Z", sample("volc-imds-termination-time.txt"), "2026-01-01T00:05:00Z"},
		{"Tencent, a time of China's zone", "", "2018-08-18T04:03:33Z", sample("tencent-imds-termination-time.txt"), "2018-08-18T04:05:33Z"},
		{"Huawei, if its time is of UTC", "", "2023-06-01T09:10:00Z", sample("huawei-spot-instance-action.json"), "2023-06-01T09:15:00Z"},
		{"Huawei, if its time is of China's zone", "", "2023-06-01T01:10:00Z", sample("huawei-spot-instance-action.json"), "2023-06-01T01:15:00Z"},
		{"Azure", "VM-GPU-1", "2016-09-19T18:29:00Z", sample("azure-scheduledevents-preempt.json"), "2016-09-19T18:29:47Z"},
		{"Azure, another machine of the group", "vm-gpu-2", "2016-09-19T18:29:00Z", sample("azure-scheduledevents-preempt.json"), ""},
		{"Azure, begun", "vm-7", "2026-08-01T05:40:32Z", text(begun), "2026-08-01T05:40:45Z"},
		{"Azure, begun, the next look", "vm-7", "2026-08-01T05:40:37Z", text(begun), "2026-08-01T05:40:45Z"},
		{"Azure, nothing planned", "vm-7", "2026-08-01T05:40:32Z", text(`{"DocumentIncarnation": 1, "Events": []}`), ""},
		{"Azure, a pause of memory", "vm-7", "2026-08-01T05:40:32Z", text(`{"DocumentIncarnation": 1, "Events": [{"EventType": "Freeze", "Resources": ["vm-7"], "NotBefore": ""}]}`), ""},
		{"an empty answer", "", "2026-03-01T00:00:00Z", text("\n"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := c.body(t)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Metadata") != "true" {
					w.WriteHeader(http.StatusBadRequest)
				}
				_, _ = w.Write([]byte(body))
			}))
			defer srv.Close()
			n, found, err := agent.Endpoint{URL: srv.URL, Self: c.self, Now: func() time.Time { return at(c.now) }}.Look(t.Context())
			if err != nil || found != (c.want != "") || found && (!n.Time.Equal(at(c.want)) || n.Action != "terminate") {
				t.Errorf("got %+v, %v, %v, want %s", n, found, err, c.want)
			}
		})
	}
	for _, body := range []string{`{"action": "terminate"}`, `{"action": "terminate", "timestamp": "soon"}`, "soon", "{"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		if n, found, err := (agent.Endpoint{URL: srv.URL}).Look(t.Context()); err == nil || found {
			t.Errorf("%s: got %+v, %v: no time that could be read, and no error", body, n, found)
		}
		srv.Close()
	}
}
