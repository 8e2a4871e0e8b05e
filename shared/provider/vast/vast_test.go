package vast_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
	"lowtide/shared/provider/vast"
	"lowtide/shared/provider/vast/vasttest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

func TestVastKeepsTheContract(t *testing.T) {
	providertest.Vendor{
		Cloud: vasttest.Market(),
		Serve: func(c *fake.Cloud, k *fake.Knobs) http.Handler { return vasttest.New(c, k) },
		Open: func(url string, client *http.Client, now func() time.Time) provider.Provider {
			return vast.New(vast.Settings{URL: url, Key: vasttest.Key, Image: "example/cuda:12", Boot: boot, Client: client, Now: now})
		},
		Buys: func(r *http.Request) bool {
			return r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/api/v0/asks/")
		},
		Reads:  vast.Reads,
		ID:     vasttest.ID,
		Secret: []string{vasttest.Key},
		Nobody: "999999",
	}.Run(t)
}
