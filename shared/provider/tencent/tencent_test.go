package tencent_test

import (
	"net/http"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
	"lowtide/shared/provider/tencent"
	"lowtide/shared/provider/tencent/tencenttest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

// in opens an account that bills in a currency.
func in(c fleet.Currency) func(string, *http.Client, func() time.Time) provider.Provider {
	return func(url string, client *http.Client, now func() time.Time) provider.Provider {
		return tencent.New(tencent.Settings{
			Regions: []string{"ap-guangzhou", "na-siliconvalley"}, ID: tencenttest.ID, Key: tencenttest.Key, Currency: c, Endpoint: url,
			Images: map[string]string{"": tencenttest.Image}, Bandwidth: 100, Disk: 80, Groups: []string{"sg-0example"}, Boot: boot, Client: client, Now: now,
		})
	}
}

func TestTencentKeepsTheContract(t *testing.T) {
	providertest.Vendor{
		Cloud:  tencenttest.Market(),
		Serve:  func(c *fake.Cloud, k *fake.Knobs) http.Handler { return tencenttest.New(c, k) },
		Open:   in(fleet.USD),
		Buys:   func(r *http.Request) bool { return r.Header.Get("X-TC-Action") == "RunInstances" },
		Reads:  tencent.Reads,
		ID:     tencenttest.Number,
		Secret: []string{tencenttest.ID, tencenttest.Key},
		Nobody: "ins-i0999999",
	}.Run(t)
}
