package alibaba_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"lowtide/shared/provider"
	"lowtide/shared/provider/alibaba"
	"lowtide/shared/provider/alibaba/alibabatest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

func open(endpoint string, client *http.Client, now func() time.Time) provider.Provider {
	return alibaba.New(alibaba.Settings{
		Regions: []string{"ap-southeast-1", "eu-central-1"}, KeyID: alibabatest.KeyID, Secret: alibabatest.Secret, Endpoint: endpoint,
		Images: map[string]string{"": alibabatest.Image}, Groups: map[string]string{"": alibabatest.Group}, Switches: alibabatest.Switches,
		Boot: boot, Client: client, Now: now,
	})
}

func TestAlibabaKeepsTheContract(t *testing.T) {
	providertest.Vendor{
		Cloud:  alibabatest.Market(),
		Serve:  func(c *fake.Cloud, k *fake.Knobs) http.Handler { return alibabatest.New(c, k) },
		Open:   open,
		Buys:   func(r *http.Request) bool { return r.Header.Get("x-acs-action") == "RunInstances" },
		Reads:  alibaba.Reads,
		Secret: []string{alibabatest.Secret, url.QueryEscape(alibabatest.Secret), alibabatest.KeyID},
		Nobody: "i-999999",
	}.Run(t)
}

// The vendor prints this request with its signature in its description of ACS3-HMAC-SHA256.
func TestTheStandInSignsAsTheVendorPrintsIt(t *testing.T) {
	got := alibabatest.Signature("YourAccessKeySecret", "POST",
		url.Values{"ImageId": {"win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd"}, "RegionId": {"cn-shanghai"}},
		map[string]string{
			"host": "ecs.cn-shanghai.aliyuncs.com", "x-acs-action": "RunInstances", "x-acs-date": "2023-10-26T10:22:32Z", "x-acs-version": "2014-05-26",
			"x-acs-content-sha256":  "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
			"x-acs-signature-nonce": "3156853299f313e23d1673dc12e1703d",
		})
	if want := "06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAClockThatIsOffIsCorrectedAndTemporaryKeysAreSigned(t *testing.T) {
	c, err := fake.Open(alibabatest.Market())
	if err != nil {
		t.Fatal(err)
	}
	var tokens, all int
	ecs := alibabatest.New(c, &fake.Knobs{Now: time.Now, Skew: -3 * time.Hour})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if all++; r.Header.Get("x-acs-security-token") == "temporary" {
			tokens++
		}
		ecs.ServeHTTP(w, r)
	}))
	defer srv.Close()
	p := alibaba.New(alibaba.Settings{
		Regions: []string{"eu-central-1"}, KeyID: alibabatest.KeyID, Secret: alibabatest.Secret, Token: "temporary", Endpoint: srv.URL,
	})
	for range 2 {
		if _, err := p.List(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if all != 3 || tokens != all {
		t.Errorf("%d requests, %d with the token; want 3: one was refused for its time", all, tokens)
	}
}
