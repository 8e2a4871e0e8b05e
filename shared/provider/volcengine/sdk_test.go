package volcengine_test

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
	"lowtide/shared/provider/volcengine/volcenginetest"
)

// sdk uses the vendor's Python SDK as its users do.
const sdk = `
import json, sys
import volcenginesdkcore, volcenginesdkecs as ecs, volcenginesdkbilling as billing
host, ak, sk, image, subnet, group, ours = sys.argv[1:]
c = volcenginesdkcore.Configuration()
c.ak, c.sk, c.region, c.host, c.scheme = ak, sk, "cn-beijing", host, "http"
client = volcenginesdkcore.ApiClient(c)
api = ecs.ECSApi(client)
types, token = [], None
while True:
    page = api.describe_instance_types(ecs.DescribeInstanceTypesRequest(max_results=100, next_token=token))
    types += [[t.instance_type_id, [[d.product_name, d.count, d.memory.size] for d in t.gpu.gpu_devices]] for t in page.instance_types]
    token = page.next_token
    if not token:
        break
zones = api.describe_available_resource(ecs.DescribeAvailableResourceRequest(destination_resource="InstanceType", instance_charge_type="PostPaid", spot_strategy="SpotAsPriceGo")).available_zones
spot = api.describe_spot_price_history(ecs.DescribeSpotPriceHistoryRequest(instance_type_id="ecs.gni2.3xlarge", max_results=10)).spot_prices
price = billing.BILLINGApi(client).query_price_for_pay_as_you_go(billing.QueryPriceForPayAsYouGoRequest(product="ecs", config_list=[
    billing.ConfigListForQueryPriceForPayAsYouGoInput(configuration_code="ecs.ecs.gni2.3xlarge", charge_item_code="instance", count="1", quantity=1, use_duration=1)]))
made = api.run_instances(ecs.RunInstancesRequest(
    zone_id="cn-beijing-a", instance_type_id="ecs.gni2.3xlarge", image_id=image, instance_name="by hand", count=1, min_count=1, client_token="tok",
    instance_charge_type="PostPaid", spot_strategy="NoSpot", user_data="IyEvYmluL3NoCg==", tags=[ecs.TagForRunInstancesInput(key="team", value="vision")],
    network_interfaces=[ecs.NetworkInterfaceForRunInstancesInput(subnet_id=subnet, security_group_ids=[group])],
    volumes=[ecs.VolumeForRunInstancesInput(volume_type="ESSD_PL0", size=40, delete_with_instance="true")],
    eip_address=ecs.EipAddressForRunInstancesInput(charge_type="PayByTraffic", bandwidth_mbps=10, release_with_instance=True))).instance_ids
listed = api.describe_instances(ecs.DescribeInstancesRequest(max_results=100)).instances
ended = api.delete_instances(ecs.DeleteInstancesRequest(instance_ids=[ours])).operation_details
try:
    api.run_instances(ecs.RunInstancesRequest(zone_id="cn-beijing-a", instance_type_id="no.such", image_id=image, instance_name="n", count=1, client_token="tok2",
        instance_charge_type="PostPaid", spot_strategy="NoSpot", network_interfaces=[ecs.NetworkInterfaceForRunInstancesInput(subnet_id=subnet, security_group_ids=[group])],
        volumes=[ecs.VolumeForRunInstancesInput(volume_type="ESSD_PL0", size=40)]))
    refused = ""
except volcenginesdkcore.rest.ApiException as e:
    refused = json.loads(e.body)["ResponseMetadata"]["Error"]["Code"]
print(json.dumps({
    "types": types, "zones": [[z.zone_id, [[s.value, s.status] for r in z.available_resources for s in r.supported_resources]] for z in zones],
    "spot": [[s.zone_id, s.spot_price] for s in spot], "price": [price.currency, price.total_original_amount, price.total_discount_amount], "made": made,
    "listed": [[i.instance_id, i.status, i.spot_strategy, {t.key: t.value for t in i.tags or []}] for i in listed],
    "ended": [[d.instance_id, d.error.code if d.error else None] for d in ended], "refused": refused}))
`

// What the vendor's own client cannot read, the stand-in has wrong; what it sends, and how it signs, the stand-in must take.
func TestTheVendorsOwnSDKWorksWithTheStandIn(t *testing.T) {
	c, err := fake.Open(volcenginetest.Market())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(volcenginetest.New(c, &fake.Knobs{Now: time.Now}))
	defer srv.Close()
	p := open(srv.URL, srv.Client(), time.Now)
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(offers, func(o fleet.Offer) bool { return o.Market == fleet.Spot && o.Region == "cn-beijing" })
	ours, err := p.Launch(t.Context(), provider.Request{Token: "t1", Name: "m", Offer: offers[i], Labels: providertest.Labels("p1"), UserData: "A=1\n"})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Types   [][]any
		Zones   [][]any
		Spot    [][]any
		Price   []string
		Made    []string
		Listed  [][]any
		Ended   [][]any
		Refused string
	}
	providertest.Python(t, "volcenginesdkecs", sdk, &got, strings.TrimPrefix(srv.URL, "http://"), volcenginetest.KeyID, volcenginetest.Secret, volcenginetest.Image,
		volcenginetest.Subnets["cn-beijing-a"], volcenginetest.Group, ours.ID)
	if len(got.Types) != 5 || len(got.Zones) != 2 || len(got.Spot) == 0 || got.Spot[0][1] != 3.61 || got.Price[0] != "CNY" || got.Price[1] != "14.4000" || got.Price[2] != "12.9600" {
		t.Errorf("the client reads %+v", got)
	}
	if len(got.Made) != 1 || got.Refused != "InvalidInstanceType.NotFound" || len(got.Ended) != 1 || got.Ended[0][1] != nil {
		t.Errorf("the client made %v, was refused %q, ended %v", got.Made, got.Refused, got.Ended)
	}
	labels := map[string]string{}
	for _, row := range got.Listed {
		if row[0] == ours.ID {
			for k, v := range row[3].(map[string]any) {
				labels[k] = v.(string)
			}
			if row[2] != "SpotAsPriceGo" {
				t.Errorf("the client sees ours as %v", row)
			}
		}
	}
	if provider.FromTags(labels) != providertest.Labels("p1") {
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
	}
	if len(all) != 2 {
		t.Errorf("we list %+v", all)
	}
}
