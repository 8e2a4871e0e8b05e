package huawei_test

import (
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/huawei/huaweitest"
	"lowtide/shared/provider/providertest"
)

// sdk uses the vendor's Python SDK as its users do.
const sdk = `
import json, sys
from huaweicloudsdkcore.auth.credentials import BasicCredentials, GlobalCredentials
from huaweicloudsdkcore.exceptions.exceptions import ClientRequestException
import huaweicloudsdkecs.v2 as ecs, huaweicloudsdkbss.v2 as bss
url, ak, sk, project, image, vpc, subnet, group, ours = sys.argv[1:]
api = ecs.EcsClient.new_builder().with_credentials(BasicCredentials(ak, sk, project)).with_endpoint(url).build()
flavors = api.list_flavors(ecs.ListFlavorsRequest()).flavors
policies = api.list_flavor_sell_policies(ecs.ListFlavorSellPoliciesRequest(sell_mode="spot")).sell_policies
rates = bss.BssClient.new_builder().with_credentials(GlobalCredentials(ak, sk, "domain")).with_endpoint(url).build()
price = rates.list_on_demand_resource_ratings(bss.ListOnDemandResourceRatingsRequest(body=bss.RateOnDemandReq(project_id=project, inquiry_precision=1, product_infos=[
    bss.DemandProductInfo(id="1", cloud_service_type="hws.service.type.ec2", resource_type="hws.resource.type.vm", resource_spec="pi2.2xlarge.4.linux", region="cn-north-4",
        usage_factor="Duration", usage_value=1, usage_measure_id=4, subscription_num=1)])))
def server(flavor):
    return ecs.CreatePostPaidServersRequest(x_client_token="by-hand", body=ecs.CreatePostPaidServersRequestBody(server=ecs.PostPaidServer(
        name="by-hand", flavor_ref=flavor, image_ref=image, vpcid=vpc, count=1, availability_zone="cn-north-4a", user_data="IyEvYmluL3NoCg==",
        nics=[ecs.PostPaidServerNic(subnet_id=subnet)], security_groups=[ecs.PostPaidServerSecurityGroup(id=group)],
        root_volume=ecs.PostPaidServerRootVolume(volumetype="SSD", size=40), server_tags=[ecs.PostPaidServerTag(key="team", value="vision")],
        extendparam=ecs.PostPaidServerExtendParam(charging_mode=0, region_id="cn-north-4"))))
made = api.create_post_paid_servers(server("pi2.2xlarge.4"))
listed = api.list_servers_details(ecs.ListServersDetailsRequest(limit=50, offset=1))
one = api.show_server(ecs.ShowServerRequest(server_id=ours)).server
job = api.show_job(ecs.ShowJobRequest(job_id=made.job_id)).status
ended = api.delete_servers(ecs.DeleteServersRequest(body=ecs.DeleteServersRequestBody(servers=[ecs.ServerId(id=ours)], delete_publicip=True, delete_volume=True))).job_id
try:
    api.create_post_paid_servers(server("no.such"))
    refused = ""
except ClientRequestException as e:
    refused = e.error_code
print(json.dumps({
    "flavors": [[f.id, f.os_extra_specs.infogpus, f.os_extra_specs.condoperationaz] for f in flavors], "policies": [[p.flavor_id, p.sell_status] for p in policies],
    "price": [float(r.amount) for r in price.product_rating_results], "made": made.server_ids, "job": job, "ended": ended, "refused": refused, "count": listed.count,
    "one": [one.id, one.status, one.metadata["charging_mode"], one.tags]}))
`

// What the vendor's own client cannot read, the stand-in has wrong; what it sends, and how it signs, the stand-in must take.
func TestTheVendorsOwnSDKWorksWithTheStandIn(t *testing.T) {
	c, err := fake.Open(huaweitest.Market())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(huaweitest.New(c, &fake.Knobs{Now: time.Now}))
	defer srv.Close()
	p := open(srv.URL, srv.Client(), time.Now)
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(offers, func(o fleet.Offer) bool { return o.Market == fleet.Spot && o.Region == "cn-north-4" })
	ours, err := p.Launch(t.Context(), provider.Request{Token: "t1", Name: "m", Offer: offers[i], Labels: providertest.Labels("p1"), UserData: "A=1\n"})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Flavors, Policies   [][]any
		Price               []float64
		Made                []string
		Job, Ended, Refused string
		Count               int
		One                 []any
	}
	providertest.Python(t, "huaweicloudsdkecs", sdk, &got, srv.URL, huaweitest.KeyID, huaweitest.Secret, huaweitest.Projects["cn-north-4"], huaweitest.Image,
		"vpc-example", "subnet-example", huaweitest.Group, ours.ID)
	if len(got.Flavors) != 5 || len(got.Policies) == 0 || len(got.Price) != 1 || got.Price[0] < 8.27 || got.Price[0] > 8.29 {
		t.Errorf("the client reads %+v", got)
	}
	if len(got.Made) != 1 || got.Job != "RUNNING" || got.Ended == "" || got.Refused != "Ecs.0005" || got.Count != 2 {
		t.Errorf("the client does %+v", got)
	}
	if len(got.One) != 4 || got.One[0] != ours.ID || got.One[2] != "2" || len(got.One[3].([]any)) != len(providertest.Labels("p1").Tags()) {
		t.Errorf("the client sees ours as %v", got.One)
	}
	all, err := p.List(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("we list %+v and %v", all, err)
	}
	for _, m := range all {
		if m.ID == got.Made[0] && (m.Labels != (provider.Labels{}) || m.Offer.Market != fleet.OnDemand) {
			t.Errorf("the one by hand is read as %+v", m)
		}
		if m.ID == ours.ID && m.State != provider.Ending {
			t.Errorf("deleted by the client: %+v", m)
		}
	}
}
