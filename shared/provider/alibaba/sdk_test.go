package alibaba_test

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/alibaba/alibabatest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// sdk uses the vendor's Python SDK as its users do.
const sdk = `
import json, sys
from alibabacloud_ecs20140526.client import Client
from alibabacloud_ecs20140526 import models as m
from alibabacloud_tea_openapi.models import Config
host, key_id, key, image, switch, group, ours = sys.argv[1:]
api = Client(Config(access_key_id=key_id, access_key_secret=key, endpoint=host, protocol="HTTP", region_id="ap-southeast-1"))
region = "ap-southeast-1"
types, token = [], None
while True:
    page = api.describe_instance_types(m.DescribeInstanceTypesRequest(max_results=100, next_token=token)).body
    types += [[t.instance_type_id, t.gpuspec, t.gpuamount] for t in page.instance_types.instance_type]
    token = page.next_token
    if not token:
        break
zones = api.describe_available_resource(m.DescribeAvailableResourceRequest(region_id=region, destination_resource="InstanceType", instance_charge_type="PostPaid", spot_strategy="NoSpot")).body.available_zones.available_zone
history = api.describe_spot_price_history(m.DescribeSpotPriceHistoryRequest(region_id=region, network_type="vpc", instance_type="ecs.gn6i-c4g1.xlarge")).body
def run(kind):
    return api.run_instances(m.RunInstancesRequest(region_id=region, zone_id="ap-southeast-1a", instance_type=kind, image_id=image, v_switch_id=switch, security_group_id=group,
        instance_name="by hand", instance_charge_type="PostPaid", spot_strategy="NoSpot", amount=1, client_token="by-hand-" + kind, user_data="IyEvYmluL3NoCg==",
        io_optimized="optimized", system_disk=m.RunInstancesRequestSystemDisk(category="cloud_essd", size="40"), tag=[m.RunInstancesRequestTag(key="team", value="vision")]))
made = run("ecs.gn6i-c4g1.xlarge").body.instance_id_sets.instance_id_set
listed = api.describe_instances(m.DescribeInstancesRequest(region_id=region, max_results=100)).body.instances.instance
ended = api.delete_instances(m.DeleteInstancesRequest(region_id=region, instance_id=[ours], force=True)).status_code
try:
    run("no.such")
    refused = ""
except Exception as e:
    refused = e.code
print(json.dumps({
    "types": types, "zones": [[z.zone_id, [s.value for r in z.available_resources.available_resource for s in r.supported_resources.supported_resource]] for z in zones],
    "currency": history.currency, "made": made, "ended": ended, "refused": refused,
    "listed": [[i.instance_id, i.spot_strategy, {t.tag_key: t.tag_value for t in (i.tags.tag if i.tags else [])}] for i in listed]}))
`

// What the vendor's own client cannot read, the stand-in has wrong; what it sends, and how it signs, the stand-in must take.
func TestTheVendorsOwnSDKWorksWithTheStandIn(t *testing.T) {
	c, err := fake.Open(alibabatest.Market())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(alibabatest.New(c, &fake.Knobs{Now: time.Now}))
	defer srv.Close()
	p := open(srv.URL, srv.Client(), time.Now)
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(offers, func(o fleet.Offer) bool { return o.Market == fleet.Spot && o.Region == "ap-southeast-1" })
	ours, err := p.Launch(t.Context(), provider.Request{Token: "t1", Name: "m", Offer: offers[i], Labels: providertest.Labels("p1"), UserData: "A=1\n"})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Types, Zones, Listed [][]any
		Currency, Refused    string
		Made                 []string
		Ended                int
	}
	providertest.Python(t, "alibabacloud_ecs20140526.client", sdk, &got, strings.TrimPrefix(srv.URL, "http://"), alibabatest.KeyID, alibabatest.Secret, alibabatest.Image,
		alibabatest.Switches["ap-southeast-1a"], alibabatest.Group, ours.ID)
	if len(got.Types) != 5 || len(got.Zones) != 2 || got.Currency != "USD" || len(got.Made) != 1 || got.Ended != 200 || got.Refused != "InvalidInstanceType.ValueNotSupported" {
		t.Errorf("the client does %+v", got)
	}
	seen := false
	for _, row := range got.Listed {
		labels := map[string]string{}
		for k, v := range row[2].(map[string]any) {
			labels[k] = v.(string)
		}
		if row[0] == ours.ID {
			seen = provider.FromTags(labels) == providertest.Labels("p1") && row[1] == "SpotAsPriceGo"
		}
	}
	if !seen {
		t.Errorf("the client lists %v", got.Listed)
	}
	all, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.ID == got.Made[0] && (m.Labels != (provider.Labels{}) || m.Offer.Market != fleet.OnDemand) {
			t.Errorf("the one by hand is read as %+v", m)
		}
		if m.ID == ours.ID && m.State != provider.Ending {
			t.Errorf("ended by the client: %+v", m)
		}
	}
}
