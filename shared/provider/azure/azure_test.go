package azure_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"lowtide/shared/provider"
	"lowtide/shared/provider/azure"
	"lowtide/shared/provider/azure/azuretest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

func settings(endpoint string, client *http.Client, now func() time.Time) azure.Settings {
	return azure.Settings{
		Regions: []string{"eastus", "westeurope"}, Subscription: azuretest.Subscription, Tenant: azuretest.Tenant, ClientID: azuretest.Client, Secret: azuretest.Secret,
		Endpoint: endpoint, Group: azuretest.Group, Images: map[string]string{"": azuretest.Image}, SSHKey: azuretest.SSHKey, Address: true,
		Subnets: map[string]string{"eastus": azuretest.Subnet, "westeurope": azuretest.Subnet}, Boot: boot, Client: client, Now: now,
	}
}

func open(endpoint string, client *http.Client, now func() time.Time) provider.Provider {
	return azure.New(settings(endpoint, client, now))
}

func TestAzureKeepsTheContract(t *testing.T) {
	var server *azuretest.Server // the one that is under test: a machine's name is not that of the fake cloud
	providertest.Vendor{
		Cloud: azuretest.Market(),
		Serve: func(c *fake.Cloud, k *fake.Knobs) http.Handler {
			server = azuretest.New(c, k)
			return server
		},
		Open: open,
		Buys: func(r *http.Request) bool {
			return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/virtualMachines/")
		},
		Reads:  azure.Reads,
		ID:     func(id string) string { return server.Name(id) },
		Secret: azuretest.Secrets(),
		Nobody: "lowtide-99999999999999999999",
	}.Run(t)
}
