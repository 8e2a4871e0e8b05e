package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clouds "lowtide/shared/provider/all"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/vast/vasttest"
)

// bare takes all clouds' settings out of the environment.
func bare(t *testing.T) {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		vendor := slices.ContainsFunc([]string{"AWS_", "AZURE_", "LAMBDA_", "VAST_", "PAPERSPACE_", "TENCENTCLOUD_", "ALIBABA_", "HUAWEICLOUD_", "VOLCENGINE_"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if vendor || strings.HasPrefix(name, "LOWTIDE_") && name != "LOWTIDE_LONG" && name != "LOWTIDE_SHARED" {
			t.Setenv(name, "")
		}
	}
}

// say runs a command and returns what it printed.
func say(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := root()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestOffersWithoutAnAccountAreAnExampleAndEachCloudIsSkippedWithAReason(t *testing.T) {
	bare(t)
	out, err := say(t, "offers")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.SplitN(out, "\n", 2)[0], "made-up prices") || !strings.Contains(out, "8x A100 SXM4 80GB") {
		t.Errorf("got\n%s", out)
	}
	for _, c := range clouds.Names() {
		if strings.Count(out, "skipped "+c+": ") != 1 {
			t.Errorf("%s is not said to be skipped once:\n%s", c, out)
		}
	}
}

// ranked asks vast's stand-in with a key.
func ranked(t *testing.T, args ...string) shop {
	t.Helper()
	c, err := fake.Open(vasttest.Market())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(vasttest.New(c, &fake.Knobs{}))
	t.Cleanup(srv.Close)
	t.Setenv("VAST_URL", srv.URL)
	t.Setenv("VAST_API_KEY", vasttest.Key)
	out, err := say(t, append([]string{"offers", "--output", "json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var s shop
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return s
}

func TestOffersAreRankedByWhatAnHourOfOneGPUCosts(t *testing.T) {
	bare(t)
	s := ranked(t, "--market", "spot,on_demand")
	if s.Example || len(s.Offers) != 24 {
		t.Fatalf("got %d offers, example %v", len(s.Offers), s.Example)
	}
	for i := 1; i < len(s.Offers); i++ {
		if *s.Offers[i-1].GPUHour > *s.Offers[i].GPUHour {
			t.Errorf("%+v comes before %+v", s.Offers[i-1], s.Offers[i])
		}
	}
	if o := s.Offers[0]; o.Cloud != "vast" || *o.Hour != *o.List || o.Rated == nil || o.Measured != nil || *o.Stock != 1 || o.Hazard != nil || o.Age != "0s" {
		t.Errorf("the first is %+v", o)
	}
	if got := *ranked(t, "--gpu", "rtx_3090", "--market", "on_demand", "--with-data", "500GB", "--hours", "100").Offers[0].Data; got != 2 {
		t.Errorf("500 GB at 0.004 USD a GB cost %v, want 2", got)
	}
}

func TestDealsTaxAndQuotesOfOnesOwnCount(t *testing.T) {
	bare(t)
	file := filepath.Join(t.TempDir(), "book.yaml")
	book := "rates: {as_of: 2026-11-30, CNY: 0.14}\ndeals:\n- {cloud: vast, times: 0.5, vat: 0.2}\n- {cloud: vast, type: '2x_RTX*', times: 1}\nprices:\n" +
		"- {cloud: huawei, region: cn-north-4, type: snt9b.8, gpu: Ascend 910B, gpus: 8, market: on_demand, price: 5 CNY/gpu-hour, as_of: 2026-11-01, source: contract}\n"
	if err := os.WriteFile(file, []byte(book), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LOWTIDE_BOOK", file)
	got := map[string]offered{}
	for _, o := range ranked(t, "--market", "on_demand").Offers {
		got[o.Type] = o
	}
	for kind, want := range map[string][2]string{ // list, own
		"1x_RTX_3090_24GB": {"0.2603", "0.1562"}, "2x_RTX_4090_24GB": {"0.7903", "0.9483"}, "snt9b.8": {"5.6000", "5.6000"},
	} {
		if o := got[kind]; amount(o.List, 4) != want[0] || amount(o.Hour, 4) != want[1] {
			t.Errorf("%s: got list %s and own %s, want %v", kind, amount(o.List, 4), amount(o.Hour, 4), want)
		}
	}
	if o := got["snt9b.8"]; !strings.Contains(o.Rate, "2026-11-30") || !strings.HasSuffix(o.Age, "d") && o.Age != "?" {
		t.Errorf("own quote: %+v", o)
	}
}

func TestCostReproducesTheDocumentsExample(t *testing.T) {
	bare(t)
	for _, c := range []struct{ args, want string }{
		{"--price|3.2 USD/gpu-hour|--gpus|4|--hours|72|--data|500GB|--egress|0.05 USD", "946.6"},
		{"--price|8 CNY/gpu-hour|--tier|96=6.4|--tier|360=4|--hours|500", "3017.6"}, // 96, 264 and 140 hours
		{"--price|3.2 USD/gpu-hour|--hours|8760|--reserved|60|--reserved-off|43.75", "20673.6"},
		{"--price|2 USD/hour|--gpus|8|--hours|10", "20"},                // a machine's price is not multiplied by its GPUs
		{"--price|730 USD/month|--hours|10|--term|1m", "730"},           // paid, used or not
		{"--price|10 USD/hour|--hours|10|--discount|20|--vat|10", "88"}, // tax on what is paid
		{"--price|10 USD/hour|--hours|10|--reserve|15", "115"},
	} {
		out, err := say(t, append([]string{"cost", "--output", "json"}, strings.Split(c.args, "|")...)...)
		var r struct {
			Total string `json:"total"`
		}
		if err != nil || json.Unmarshal([]byte(out), &r) != nil || r.Total != c.want {
			t.Errorf("%s: got %q and %v, want %s", c.args, out, err, c.want)
		}
	}
	for _, args := range []string{
		"--price|3.2|--hours|1", "--price|3.2 USD/gpu-hour|--hours|-1", "--price|3.2 USD/gpu-hour|--hours|1|--data|5GB",
		"--price|3.2 USD/gpu-hour|--hours|1|--in|CNY", "--price|3.2 USD/gpu-hour|--hours|1|--tier|x", "--price|3 USD/hour|--hours|1|--data|1GB|--egress|1 CNY",
	} {
		_, err := say(t, append([]string{"cost"}, strings.Split(args, "|")...)...)
		var c coded
		if !errors.As(err, &c) || c.code != exitUsage || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line and status 2", args, err)
		}
	}
}
