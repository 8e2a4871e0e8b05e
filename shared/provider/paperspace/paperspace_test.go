package paperspace_test

import (
	"net/http"
	"testing"
	"time"

	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/paperspace"
	"lowtide/shared/provider/paperspace/paperspacetest"
	"lowtide/shared/provider/providertest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

func open(url string, client *http.Client, now func() time.Time) provider.Provider {
	return paperspace.New(paperspace.Settings{
		URL: url, Key: paperspacetest.Key, Templates: map[string]string{"": paperspacetest.Template}, Boot: boot, Client: client, Now: now,
	})
}

func TestPaperspaceKeepsTheContract(t *testing.T) {
	providertest.Vendor{
		Cloud:  paperspacetest.Market(),
		Serve:  func(c *fake.Cloud, k *fake.Knobs) http.Handler { return paperspacetest.New(c, k) },
		Open:   open,
		Buys:   func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == "/machines" },
		Reads:  paperspace.Reads,
		ID:     paperspacetest.ID,
		Secret: []string{paperspacetest.Key},
		Nobody: "psi999999",
	}.Run(t)
}
