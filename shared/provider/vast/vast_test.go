package vast_test

import (
	"net/http"
	"testing"

	"lowtide/shared/provider"
	"lowtide/shared/provider/providertest"
	"lowtide/shared/provider/vast"
	"lowtide/shared/provider/vast/vasttest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

func open(url string, client *http.Client, clock providertest.Clock) provider.Provider {
	return vast.New(vast.Settings{URL: url, Key: vasttest.Key, Image: "example/cuda:12", Boot: boot, Client: client, Now: clock})
}

func TestVastKeepsTheContract(t *testing.T) {
	v := vasttest.Vendor(open)
	v.Reads = vast.Reads
	v.Run(t)
}
