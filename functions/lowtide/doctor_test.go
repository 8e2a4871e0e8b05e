package main

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/shared/provider/aws/awstest"
	"lowtide/shared/provider/fake"
)

// result is what the doctor found about a check; the zero finding if it did not look.
func (d *doctor) result(check string) finding {
	for _, f := range d.found {
		if f.Check == check {
			return f
		}
	}
	return finding{}
}

func TestTheDoctorFindsWhatIsWrongSaysHowToMendItAndBuysNothing(t *testing.T) {
	cloud, err := fake.Open(awstest.Market())
	if err != nil {
		t.Fatal(err)
	}
	defer cloud.Close()
	ec2 := httptest.NewServer(awstest.New(cloud, &fake.Knobs{Now: time.Now}))
	defer ec2.Close()
	program := []byte("an agent")
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/lowtide-linux-amd64" {
			_, _ = w.Write(program)
			return
		}
		http.NotFound(w, r)
	}))
	defer mirror.Close()
	sum := sha256.Sum256(program)
	bucket := "file://" + filepath.ToSlash(t.TempDir())
	good := map[string]string{
		"AWS_ENDPOINT_URL": ec2.URL, "AWS_ACCESS_KEY_ID": awstest.KeyID, "AWS_SECRET_ACCESS_KEY": awstest.Secret, "AWS_REGION": "us-east-1",
		"LOWTIDE_AWS_IMAGE": awstest.Image, "LOWTIDE_MIRROR": mirror.URL, "LOWTIDE_MIRROR_SHA256_AMD64": hex.EncodeToString(sum[:]), agentBucket: bucket,
		agentNATS: "tls://nats.example:4222", agentToken: "x", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	}
	before := len(cloud.Bill())
	type expected struct{ check, result, says string } // says: in what is found, or in its mend
	for name, c := range map[string]struct {
		set  map[string]string
		look func(*doctor)
		want []expected
	}{
		"all is well": {nil, func(d *doctor) { d.all(t.Context(), filepath.Join(t.TempDir(), "nobody")) }, []expected{
			{"nats", limping, "lowtide run --state"},
			{"bucket", healthy, ""},
			{"mirror amd64", healthy, ""},
			{"clock", healthy, ""},
			{"aws offers", healthy, ""},
			{"aws machines", healthy, ""},
			{"aws launch", healthy, "would be sold"},
		}},
		"a wrong key":          {map[string]string{"AWS_SECRET_ACCESS_KEY": "wrong"}, func(d *doctor) { d.clouds(t.Context()) }, []expected{{"aws offers", ill, "leave"}}},
		"an image that is not": {map[string]string{"LOWTIDE_AWS_IMAGE": "ami-0000"}, func(d *doctor) { d.clouds(t.Context()) }, []expected{{"aws launch", ill, "image"}}},
		"neither image nor way": {map[string]string{"LOWTIDE_AWS_IMAGE": "", agentNATS: ""}, func(d *doctor) { d.clouds(t.Context()) }, []expected{
			{"aws launch", limping, "LOWTIDE_AWS_IMAGE"}, {"machines", limping, agentNATS},
		}},
		"another program": {map[string]string{"LOWTIDE_MIRROR_SHA256_AMD64": strings.Repeat("0", 64), "LOWTIDE_MIRROR_SHA256_ARM64": strings.Repeat("0", 64), "now": "late"}, func(d *doctor) { d.mirror(t.Context()) }, []expected{
			{"mirror amd64", ill, hex.EncodeToString(sum[:])}, {"mirror arm64", ill, "GOARCH=arm64"}, {"clock", ill, "NTP"},
		}},
		"no bucket":             {nil, func(d *doctor) { d.bucket(t.Context(), "") }, []expected{{"bucket", limping, agentBucket}}},
		"a bucket that is none": {nil, func(d *doctor) { d.bucket(t.Context(), "gopher://x") }, []expected{{"bucket", ill, "URL"}}},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range good {
				t.Setenv(k, v)
			}
			for k, v := range c.set {
				t.Setenv(k, v)
			}
			d := doctor{getenv: os.Getenv, now: time.Now}
			if c.set["now"] != "" {
				d.now = func() time.Time { return time.Now().Add(2 * time.Minute) }
			}
			c.look(&d)
			for _, want := range c.want {
				f := d.result(want.check)
				if f.Result != want.result || !strings.Contains(f.Found+" "+f.Mend, want.says) || f.Result == ill && f.Mend == "" {
					t.Errorf("%s: got %+v, want %s with %q, and a mend", want.check, f, want.result, want.says)
				}
			}
		})
	}
	if n := len(cloud.Bill()) - before; n != 0 {
		t.Errorf("%d machines were bought", n)
	}
}
