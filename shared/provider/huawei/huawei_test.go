package huawei_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/huawei"
	"lowtide/shared/provider/huawei/huaweitest"
	"lowtide/shared/provider/providertest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

func settings(endpoint string, client *http.Client, now func() time.Time) huawei.Settings {
	return huawei.Settings{
		Projects: huaweitest.Projects, KeyID: huaweitest.KeyID, Secret: huaweitest.Secret, Endpoint: endpoint, SpotShare: decimal.RequireFromString("0.5"),
		Images: map[string]string{"": huaweitest.Image}, Groups: map[string]string{"": huaweitest.Group}, Bandwidth: 100,
		Subnets: map[string]string{"cn-north-4": huaweitest.Subnet, "cn-east-3": huaweitest.Subnet}, Boot: boot, Client: client, Now: now,
	}
}

func open(endpoint string, client *http.Client, now func() time.Time) provider.Provider {
	return huawei.New(settings(endpoint, client, now))
}

func TestHuaweiKeepsTheContract(t *testing.T) {
	providertest.Vendor{
		Cloud: huaweitest.Market(),
		Serve: func(c *fake.Cloud, k *fake.Knobs) http.Handler { return huaweitest.New(c, k) },
		Open:  open,
		Buys: func(r *http.Request) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/cloudservers")
		},
		Reads:  huawei.Reads,
		Secret: []string{huaweitest.Secret, huaweitest.KeyID},
		Nobody: "i-999999",
	}.Run(t)
}
