package chatops

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"lowtide/events"
)

func (d *desk) bearer(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(token), []byte(d.Alerts.Bearer)) == 1
}

// alertmanager takes the webhook of an Alertmanager (version 4). Its grouping stays.
func (d *desk) alertmanager(w http.ResponseWriter, r *http.Request, body []byte) {
	if !d.bearer(r) {
		refuse(w, errSignature)
		return
	}
	var in struct {
		Version     string            `json:"version"`
		GroupKey    string            `json:"groupKey"`
		Status      string            `json:"status"`
		Labels      map[string]string `json:"commonLabels"`
		Group       map[string]string `json:"groupLabels"`
		Annotations map[string]string `json:"commonAnnotations"`
		Alerts      []struct {
			Status   string    `json:"status"`
			StartsAt time.Time `json:"startsAt"`
		} `json:"alerts"`
	}
	if json.Unmarshal(body, &in) != nil || in.Version != "4" || in.GroupKey == "" || in.Status != "firing" && in.Status != "resolved" {
		refuse(w, errBroken)
		return
	}
	f := events.AlertReceived{
		Group: digest(in.GroupKey), Name: first(in.Labels["alertname"], in.Group["alertname"], "alert"), Firing: in.Status == "firing",
		Severity: in.Labels["severity"], Labels: in.Labels, Annotations: in.Annotations, From: "alertmanager",
	}
	for _, a := range in.Alerts {
		if a.Status == "firing" {
			f.Count++
		}
		if f.Since.IsZero() || a.StartsAt.Before(f.Since) {
			f.Since = a.StartsAt.UTC()
		}
	}
	d.heard(w, r.Context(), f, digest(string(body)))
}

// cloudEvent takes a CloudEvents 1.0 document in structured mode: a subject that fires until a type ends in
// ".resolved" or ".closed".
func (d *desk) cloudEvent(w http.ResponseWriter, r *http.Request, body []byte) {
	if !d.bearer(r) {
		refuse(w, errSignature)
		return
	}
	var in struct {
		SpecVersion string         `json:"specversion"`
		ID          string         `json:"id"`
		Type        string         `json:"type"`
		Source      string         `json:"source"`
		Subject     string         `json:"subject"`
		Time        time.Time      `json:"time"`
		Data        map[string]any `json:"data"`
	}
	if json.Unmarshal(body, &in) != nil || in.SpecVersion != "1.0" || in.ID == "" || in.Type == "" || in.Source == "" {
		refuse(w, errBroken)
		return
	}
	over := strings.HasSuffix(in.Type, ".resolved") || strings.HasSuffix(in.Type, ".closed")
	f := events.AlertReceived{
		Group: digest(in.Source, in.Subject, strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(in.Type, ".resolved"), ".closed"), ".opened")),
		Name:  in.Type, Firing: !over, Count: 1, From: in.Source, Since: in.Time.UTC(), Labels: map[string]string{}, Annotations: map[string]string{},
	}
	for k, v := range in.Data {
		switch s := v.(type) {
		case string:
			if k == "severity" {
				f.Severity = s
			}
			if k == "summary" || k == "description" || k == "title" {
				f.Annotations["summary"] = cut(s, 500)
				continue
			}
			f.Labels[cut(k, 60)] = cut(s, 200)
		case float64, bool:
			f.Labels[cut(k, 60)] = fmt.Sprint(s)
		}
	}
	d.heard(w, r.Context(), f, digest(in.Source, in.ID))
}

// heard says the alert; the sender repeats it if that fails.
func (d *desk) heard(w http.ResponseWriter, ctx context.Context, f events.AlertReceived, id string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	e := events.New(d.Fleet, "chatops/alerts", d.Now(), f)
	e.ID = "alert-" + id
	if err := d.Say(ctx, e); err != nil {
		refuse(w, errAway)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func first(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return ""
}
