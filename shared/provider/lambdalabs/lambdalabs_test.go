package lambdalabs_test

import (
	"net/http"
	"testing"
	"time"

	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/lambdalabs"
	"lowtide/shared/provider/lambdalabs/lambdalabstest"
	"lowtide/shared/provider/providertest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

func TestLambdaKeepsTheContract(t *testing.T) {
	providertest.Vendor{
		Cloud: lambdalabstest.Market(),
		Serve: func(c *fake.Cloud, k *fake.Knobs) http.Handler { return lambdalabstest.New(c, k) },
		Open: func(url string, client *http.Client, now func() time.Time) provider.Provider {
			return lambdalabs.New(lambdalabs.Settings{
				URL: url, Key: lambdalabstest.Key, SSHKey: lambdalabstest.SSHKey, Boot: boot, Client: client, Now: now,
			})
		},
		Buys:   func(r *http.Request) bool { return r.URL.Path == "/api/v1/instance-operations/launch" },
		Reads:  lambdalabs.Reads,
		ID:     lambdalabstest.ID,
		Secret: []string{lambdalabstest.Key, lambdalabstest.Notebook},
		Nobody: "a0000000000000000000000000999999",
	}.Run(t)
}
