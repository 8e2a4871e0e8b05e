package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/chatops"
	"lowtide/shared/fleet"
	"lowtide/shared/fn/lambda"
	"lowtide/shared/store"
)

// A request comes through Lambda with its header names in lower case; what was signed are its bytes.
func TestASignedRequestPassesThroughAndAChangedOneDoesNot(t *testing.T) {
	const secret = "S3CRET-s3cret-0123456789"
	states := store.Memory()
	f := fleet.New("f", "install")
	f.Workloads["train"] = &fleet.Workload{Spec: &fleet.Spec{Name: "train"}, Phase: fleet.Accepted}
	val, err := new(fleet.Encoder).Encode(f)
	if err == nil {
		_, err = states.Create(t.Context(), "f", val)
	}
	if err != nil {
		t.Fatal(err)
	}
	var said []events.Event
	cfg := chatops.Config{
		Fleet: "f", States: states, Market: store.Memory(), Seen: store.Memory(),
		Say: func(_ context.Context, e ...events.Event) error { said = append(said, e...); return nil },
	}
	cfg.Slack.Secret = secret
	cfg.People = map[string]*chatops.Person{"ada": {Slack: "UADA", Role: "operator"}}
	door, err := chatops.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	body := "command=%2Flowtide&user_id=UADA&text=pause+train&trigger_id=1"
	ts := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "v0:%s:%s", ts, body)
	r := lambda.Request{
		Method: http.MethodPost, Path: "/slack", Body: []byte(strings.Replace(body, "train", "trail", 1)),
		Header: map[string]string{"x-slack-request-timestamp": ts, "x-slack-signature": "v0=" + hex.EncodeToString(mac.Sum(nil)), "content-type": "application/x-www-form-urlencoded"},
	}
	if out := serve(t.Context(), door, r); out.Status != http.StatusUnauthorized || len(said) > 0 {
		t.Errorf("one changed byte: %+v, said %v", out, said)
	}
	r.Body = []byte(body)
	if out := serve(t.Context(), door, r); out.Status != http.StatusOK || !strings.Contains(out.Body, "saves and stops") || !strings.HasPrefix(out.Header["Content-Type"], "application/json") {
		t.Errorf("got %+v", out)
	}
	if len(said) != 2 || said[0].Data != (events.WorkloadPaused{Workload: "train", By: "ada"}) {
		t.Errorf("said %+v", said)
	}
	if out := serve(t.Context(), door, lambda.Request{Method: http.MethodGet, Path: "/nowhere", Query: "a=b"}); out.Status != http.StatusNotFound {
		t.Errorf("nowhere: %+v", out)
	}
}
