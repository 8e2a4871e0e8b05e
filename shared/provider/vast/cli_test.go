package vast_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
	"lowtide/shared/provider/vast"
	"lowtide/shared/provider/vast/vasttest"
)

// vastai is the vendor's own client. Without it the test is skipped, but not in CI.
func vastai(t *testing.T) string {
	t.Helper()
	for _, p := range []string{filepath.Join(os.Getenv("LOWTIDE_PYTHON"), "bin", "vastai"), "vastai"} {
		if found, err := exec.LookPath(p); err == nil {
			return found
		}
	}
	msg := "vastai is not here: python3 -m venv D && D/bin/pip install 'moto[ec2,server]' vastai, and set LOWTIDE_PYTHON=D"
	if os.Getenv("CI") != "" {
		t.Fatal(msg)
	}
	t.Skip(msg)
	return ""
}

// What the vendor's own client cannot read, the stand-in has wrong; what it sends, the stand-in must take.
func TestTheVendorsOwnClientWorksWithTheStandIn(t *testing.T) {
	program := vastai(t)
	c, err := fake.Open(vasttest.Market())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(vasttest.New(c, &fake.Knobs{}))
	defer srv.Close()
	run := func(out any, args ...string) {
		t.Helper()
		cmd := exec.Command(program, append([]string{"--url", srv.URL, "--api-key", vasttest.Key, "--raw"}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir())
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("vastai %s: %v: %s%s", strings.Join(args, " "), err, stdout.Bytes(), stderr.Bytes())
		}
		if out == nil {
			return
		}
		if err := json.Unmarshal(stdout.Bytes(), out); err != nil {
			t.Fatalf("vastai %s: %v in %.500s%.500s", strings.Join(args, " "), err, stdout.Bytes(), stderr.Bytes())
		}
	}
	var offers []struct {
		ID    int64   `json:"id"`
		GPU   string  `json:"gpu_name"`
		Total float64 `json:"dph_total"`
	}
	run(&offers, "search", "offers", "num_gpus=1 gpu_name=RTX_3090", "--type", "on-demand")
	if len(offers) != 3 || offers[0].GPU != "RTX 3090" || offers[0].Total < 0.25 {
		t.Fatalf("the client reads %+v", offers)
	}
	var made struct {
		Success  bool  `json:"success"`
		Contract int64 `json:"new_contract"`
	}
	run(&made, "create", "instance", fmt.Sprint(offers[0].ID), "--image", "pytorch/pytorch", "--disk", "40", "--label", "by hand", "--ssh", "--direct")
	if !made.Success || made.Contract == 0 {
		t.Fatalf("the client made %+v", made)
	}
	// Beside a machine that somebody made by hand, ours; both clients see both.
	v := vast.New(vast.Settings{URL: srv.URL, Key: vasttest.Key, Image: "i", Boot: boot})
	sold, err := v.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := v.Launch(t.Context(), provider.Request{Name: "m", Offer: sold[0], Labels: providertest.Labels("p1"), UserData: "LOWTIDE_MACHINE=m\n"})
	if err != nil || sold[0].Market != fleet.OnDemand {
		t.Fatalf("%s: %v", sold[0], err)
	}
	var rows []struct {
		ID    int64  `json:"id"`
		Label string `json:"label"`
	}
	run(&rows, "show", "instances")
	if len(rows) != 2 || rows[0].ID != made.Contract || rows[0].Label != "by hand" || provider.FromText(rows[1].Label) != providertest.Labels("p1") {
		t.Errorf("the client lists %+v", rows)
	}
	all, err := v.List(t.Context())
	if err != nil || len(all) != 2 || all[0].Labels != (provider.Labels{}) {
		t.Errorf("we list %+v (%v), want the one by hand as somebody else's", all, err)
	}
	run(nil, "destroy", "instance", ours.ID, "-y")
	if bill := c.Bill(); bill[len(bill)-1].State != provider.Ending && bill[len(bill)-1].Bills() {
		t.Errorf("destroyed by the client: %+v", bill[len(bill)-1].Machine)
	}
}
