package azure_test

import (
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/azure/azuretest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// sdk uses the vendor's Python SDK as its users do, over TLS: it sends its token nowhere else.
const sdk = `
import json, sys, time, urllib.request, urllib.parse, ssl, warnings
warnings.filterwarnings("ignore")
from azure.core import MatchConditions
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError
from azure.mgmt.compute import ComputeManagementClient
url, sub, tenant, client, secret, group, image, ssh, ours = sys.argv[1:]
class Login:
    def get_token(self, *scopes, **_):
        form = urllib.parse.urlencode({"grant_type": "client_credentials", "client_id": client, "client_secret": secret, "scope": scopes[0]}).encode()
        with urllib.request.urlopen(url + "/" + tenant + "/oauth2/v2.0/token", form, context=ssl._create_unverified_context()) as r:
            got = json.load(r)
        return AccessToken(got["access_token"], int(time.time()) + got["expires_in"])
api = ComputeManagementClient(Login(), sub, base_url=url, credential_scopes=[url + "/.default"], connection_verify=False, polling_interval=0)
skus = [[s.name, {c.name: c.value for c in s.capabilities or []}.get("GPUs"), s.location_info[0].zones, [r.reason_code for r in s.restrictions or []]]
    for s in api.resource_skus.list(filter="location eq 'eastus'") if s.resource_type == "virtualMachines"]
publisher, offer, sku, version = image.split(":")
def vm(name, size):
    return {"location": "eastus", "zones": ["1"], "tags": {"team": "vision"}, "properties": {
        "hardwareProfile": {"vmSize": size},
        "storageProfile": {"imageReference": {"publisher": publisher, "offer": offer, "sku": sku, "version": version},
            "osDisk": {"name": name + "-disk", "createOption": "FromImage", "deleteOption": "Delete", "diskSizeGB": 64, "managedDisk": {"storageAccountType": "Premium_LRS"}}},
        "osProfile": {"computerName": name, "adminUsername": "me", "linuxConfiguration": {"disablePasswordAuthentication": True,
            "ssh": {"publicKeys": [{"path": "/home/me/.ssh/authorized_keys", "keyData": ssh}]}}},
        "networkProfile": {"networkApiVersion": "2020-11-01", "networkInterfaceConfigurations": [{"name": name + "-nic", "properties": {"primary": True, "deleteOption": "Delete",
            "ipConfigurations": [{"name": "ip", "properties": {"primary": True, "subnet": {"id": "/subscriptions/x/virtualNetworks/net/subnets/machines"}}}]}}]}}}
made = api.virtual_machines.begin_create_or_update(group, "by-hand", vm("by-hand", "Standard_NC24ads_A100_v4"), match_condition=MatchConditions.IfMissing, etag="").result()
def refused(f):
    try:
        f()
        return ""
    except HttpResponseError as e:
        return str(e.status_code) + " " + (e.error.code if e.error else "")
again = refused(lambda: api.virtual_machines.begin_create_or_update(group, "by-hand", vm("by-hand", "Standard_NC24ads_A100_v4"), match_condition=MatchConditions.IfMissing, etag="").result())
nosize = refused(lambda: api.virtual_machines.begin_create_or_update(group, "other", vm("other", "no_such")).result())
listed = [[v.name, v.location, v.zones, v.hardware_profile.vm_size, v.priority, v.provisioning_state, v.tags] for v in api.virtual_machines.list_all()]
power = [[s.code for s in v.instance_view.statuses] for v in api.virtual_machines.list_all(status_only="true")]
api.virtual_machines.begin_delete(group, ours).result()
print(json.dumps({"skus": skus, "made": [made.name, made.provisioning_state], "again": again, "nosize": nosize, "listed": listed, "power": power}))
`

// What the vendor's own client cannot read, the stand-in has wrong; what it sends, the stand-in must take.
func TestTheVendorsOwnSDKWorksWithTheStandIn(t *testing.T) {
	cfg := azuretest.Market()
	cfg.Boot, cfg.Ending = -1, -1
	c, err := fake.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewTLSServer(azuretest.New(c, &fake.Knobs{Now: time.Now}))
	defer srv.Close()
	p := open(srv.URL, srv.Client(), time.Now)
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(offers, func(o fleet.Offer) bool { return o.Market == fleet.Spot })
	ours, err := p.Launch(t.Context(), provider.Request{Token: "t1", Name: "m", Offer: offers[i], Labels: providertest.Labels("p1"), UserData: "A=1\n"})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		SKUs          [][]any
		Made          []string
		Again, NoSize string
		Listed        [][]any
		Power         [][]string
	}
	providertest.Python(t, "azure.mgmt.compute", sdk, &got, srv.URL, azuretest.Subscription, azuretest.Tenant, azuretest.Client, azuretest.Secret, azuretest.Group,
		azuretest.Image, azuretest.SSHKey, ours.ID)
	if len(got.SKUs) != 7 || got.Made[0] != "by-hand" || got.Made[1] != "Succeeded" || len(got.Power) != 2 || got.Power[0][1] != "PowerState/running" {
		t.Errorf("the client reads %+v", got)
	}
	if got.Again != "412 PreconditionFailed" || got.NoSize != "400 InvalidParameter" {
		t.Errorf("the client is refused with %q and %q", got.Again, got.NoSize)
	}
	for _, row := range got.Listed {
		tags := map[string]string{}
		for k, v := range row[6].(map[string]any) {
			tags[k] = v.(string)
		}
		if row[0] == ours.ID && (provider.FromTags(tags) != providertest.Labels("p1") || row[4] != "Spot") {
			t.Errorf("the client sees ours as %v", row)
		}
	}
	all, err := p.List(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != "by-hand" || all[0].Labels != (provider.Labels{}) || all[0].Offer.Market != fleet.OnDemand {
		t.Errorf("after the client deleted ours we list %+v (%v), want the one by hand as somebody else's", all, err)
	}
}
