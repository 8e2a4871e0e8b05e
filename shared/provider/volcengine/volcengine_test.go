package volcengine_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
	"lowtide/shared/provider/volcengine"
	"lowtide/shared/provider/volcengine/volcenginetest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

func open(endpoint string, client *http.Client, now func() time.Time) provider.Provider {
	return volcengine.New(volcengine.Settings{
		Regions: []string{"cn-beijing", "cn-shanghai"}, KeyID: volcenginetest.KeyID, Secret: volcenginetest.Secret, Endpoint: endpoint,
		Config: volcenginetest.Config, Item: volcenginetest.Item, Bandwidth: 100,
		Images: map[string]string{"": volcenginetest.Image}, Groups: map[string]string{"": volcenginetest.Group}, Subnets: volcenginetest.Subnets,
		Boot: boot, Client: client, Now: now,
	})
}

func TestVolcengineKeepsTheContract(t *testing.T) {
	providertest.Vendor{
		Cloud:  volcenginetest.Market(),
		Serve:  func(c *fake.Cloud, k *fake.Knobs) http.Handler { return volcenginetest.New(c, k) },
		Open:   open,
		Buys:   func(r *http.Request) bool { return r.URL.Query().Get("Action") == "RunInstances" },
		Reads:  volcengine.Reads,
		Secret: []string{volcenginetest.Secret, url.QueryEscape(volcenginetest.Secret), volcenginetest.KeyID},
		Nobody: "i-999999",
	}.Run(t)
}
