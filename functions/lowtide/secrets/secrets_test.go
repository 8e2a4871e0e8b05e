package secrets_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/secrets"
	"lowtide/shared/fleet"
)

// holding is a fleet in which m1 runs w, m2 is made ready for it, and m3 runs it no more.
func holding() *fleet.Fleet {
	f := fleet.New("f", "install")
	start := fleet.Order{Epoch: 1, Start: &fleet.Start{Workload: "w"}}
	f.Machines["m1"] = &fleet.Instance{Name: "m1", Workload: "w", Phase: fleet.Verified, Order: start}
	f.Machines["m2"] = &fleet.Instance{Name: "m2", Workload: "w", Phase: fleet.Ready}
	f.Machines["m3"] = &fleet.Instance{Name: "m3", Workload: "w", Phase: fleet.Ending, Order: start}
	f.Machines["m4"] = &fleet.Instance{Name: "m4", Workload: "other", Phase: fleet.Verified, Order: fleet.Order{Epoch: 1, Start: &fleet.Start{Workload: "other"}}}
	f.Workloads["w"] = &fleet.Workload{On: "m1", Spec: &fleet.Spec{Name: "w", Kit: fleet.Kit{Secrets: map[string]fleet.Secret{"TOKEN": "env:TOKEN", "KEY": "file:team/key"}}}}
	f.Workloads["other"] = &fleet.Workload{On: "m4", Spec: &fleet.Spec{Name: "other", Kit: fleet.Kit{Secrets: map[string]fleet.Secret{"GONE": "env:GONE"}}}}
	return f
}

func connect(t *testing.T) (url string, opts []nats.Option) {
	t.Helper()
	s, err := embedded.Start(t.TempDir(), embedded.Options{Listen: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s.URL(), []nats.Option{nats.Token(s.Token())}
}

func dial(t *testing.T, url string, opts []nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestOnlyTheMachineThatRunsAWorkloadGetsItsSecretsAndNobodyElseCanReadThem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "team"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "team", "key"), []byte("line one\nline two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url, opts := connect(t)
	state := holding()
	desk := secrets.Desk{
		Fleet: "f", Log: slog.New(slog.NewTextHandler(io.Discard, nil)), State: func(context.Context) (*fleet.Fleet, error) { return state, nil },
		Read: secrets.Reader{Dir: dir, Getenv: func(n string) string { return map[string]string{"LOWTIDE_SECRET_TOKEN": "hunter2hunter2"}[n] }},
	}
	stop, err := desk.Serve(t.Context(), dial(t, url, opts))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	spy := dial(t, url, opts) // hears all that passes at NATS
	all, err := spy.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := spy.Flush(); err != nil {
		t.Fatal(err)
	}
	nc := dial(t, url, opts)
	got, err := secrets.Ask(t.Context(), nc, "f", "m1", "w")
	if err != nil || got["TOKEN"] != "hunter2hunter2" || got["KEY"] != "line one\nline two" || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	for who, why := range map[[2]string]string{
		{"m2", "w"}: "does not run", {"m3", "w"}: "is ending", {"m4", "w"}: "does not run", {"m1", "other"}: "does not run", {"m9", "w"}: "no machine",
		{"m4", "other"}: "LOWTIDE_SECRET_GONE is not set",
	} {
		if got, err := secrets.Ask(t.Context(), nc, "f", who[0], who[1]); !errors.Is(err, secrets.ErrRefused) || !strings.Contains(err.Error(), why) || got != nil {
			t.Errorf("%v: got %v, %v; want it refused: %s", who, got, err, why)
		}
	}
	if err := spy.Flush(); err != nil {
		t.Fatal(err)
	}
	var heard strings.Builder
	for m, err := all.NextMsg(time.Second); err == nil; m, err = all.NextMsg(100 * time.Millisecond) {
		heard.Write(m.Data)
	}
	if text := heard.String(); !strings.Contains(text, "sealed") || strings.Contains(text, "hunter2") || strings.Contains(text, "line one") {
		t.Errorf("passed at NATS: %s", text)
	}
}

func TestNothingIsHandedOutThatWasNotPutThereForIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	for file, text := range map[string]string{filepath.Join(dir, "short"): "abc", outside: "not for machines"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	r := secrets.Reader{Dir: dir, Getenv: func(name string) string { return map[string]string{"AWS_SECRET_ACCESS_KEY": "the account's"}[name] }}
	for _, ref := range []fleet.Secret{
		"env:AWS_SECRET_ACCESS_KEY", "file:link", "file:../outside", fleet.Secret("file:" + outside), "file:short", "file:gone", "aws-sm:x", "ssm:/x", "plain text", "vault:x", "env:",
	} {
		if v, err := r.Read(t.Context(), ref); !errors.Is(err, secrets.ErrRefused) || v != "" {
			t.Errorf("%s: got %q, %v", ref, v, err)
		}
	}
}

func TestSecretsOfAWSAreReadWithASignedRequest(t *testing.T) {
	var seen []string
	aws := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			SecretID       string `json:"SecretId"`
			Name           string
			WithDecryption bool
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		scope := strings.Split(strings.SplitN(r.Header.Get("Authorization"), ",", 2)[0], "/")
		seen = append(seen, strings.Join(append(scope[2:], r.Header.Get("X-Amz-Target"), q.SecretID+q.Name), " "))
		switch q.SecretID + q.Name {
		case "prod/db":
			_, _ = io.WriteString(w, `{"SecretString": "{\"user\": \"ada\", \"password\": \"hunter2hunter2\"}"}`)
		case "arn:aws:secretsmanager:eu-west-1:123456789012:secret:x":
			_, _ = io.WriteString(w, `{"SecretString": "all of it"}`)
		case "/team/token":
			if q.WithDecryption {
				_, _ = io.WriteString(w, `{"Parameter": {"Value": "parameter"}}`)
			}
		case "busy":
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"__type": "ThrottlingException", "message": "slow down"}`)
		default:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"__type": "com.amazonaws#ResourceNotFoundException", "message": "no such secret"}`)
		}
	}))
	defer aws.Close()
	for k, v := range map[string]string{"AWS_ENDPOINT_URL": aws.URL, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull} {
		t.Setenv(k, v)
	}
	r := secrets.Reader{Getenv: os.Getenv, AWS: &secrets.AWS{}}
	for ref, want := range map[fleet.Secret]string{
		"aws-sm:prod/db#password": "hunter2hunter2", "aws-sm:arn:aws:secretsmanager:eu-west-1:123456789012:secret:x": "all of it", "ssm:/team/token": "parameter",
	} {
		if v, err := r.Read(t.Context(), ref); err != nil || v != want {
			t.Errorf("%s: got %q, %v", ref, v, err)
		}
	}
	if all := strings.Join(seen, "\n"); !strings.Contains(all, "us-east-1 secretsmanager aws4_request secretsmanager.GetSecretValue prod/db") ||
		!strings.Contains(all, "eu-west-1 secretsmanager") || !strings.Contains(all, "us-east-1 ssm aws4_request AmazonSSM.GetParameter /team/token") {
		t.Errorf("asked:\n%s", all)
	}
	for ref, final := range map[fleet.Secret]bool{"aws-sm:gone": true, "aws-sm:busy": false, "aws-sm:prod/db#nothing": true} {
		_, err := r.Read(t.Context(), ref)
		if err == nil || errors.Is(err, secrets.ErrRefused) != final || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, for good: want %v", ref, err, final)
		}
	}
}
