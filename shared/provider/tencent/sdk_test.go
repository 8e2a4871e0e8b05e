package tencent_test

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
	"lowtide/shared/provider/tencent/tencenttest"
)

// sdk uses the vendor's Python SDK as its users do.
const sdk = `
import json, sys
from tencentcloud.common import credential
from tencentcloud.common.profile.client_profile import ClientProfile
from tencentcloud.common.profile.http_profile import HttpProfile
from tencentcloud.common.exception.tencent_cloud_sdk_exception import TencentCloudSDKException
from tencentcloud.cvm.v20170312 import cvm_client, models
host, key_id, key, image, ours = sys.argv[1:]
profile = ClientProfile(httpProfile=HttpProfile(protocol="http", endpoint=host))
api = cvm_client.CvmClient(credential.Credential(key_id, key), "ap-guangzhou", profile)
def ask(model, **fields):
    request = model()
    request.from_json_string(json.dumps(fields))
    return request
quotas = api.DescribeZoneInstanceConfigInfos(ask(models.DescribeZoneInstanceConfigInfosRequest, Filters=[{"Name": "instance-charge-type", "Values": ["SPOTPAID"]}])).InstanceTypeQuotaSet
def run(kind):
    return api.RunInstances(ask(models.RunInstancesRequest, Placement={"Zone": "ap-guangzhou-6"}, InstanceType=kind, ImageId=image, InstanceChargeType="POSTPAID_BY_HOUR",
        InstanceCount=1, InstanceName="by hand", ClientToken="by-hand-" + kind, UserData="IyEvYmluL3NoCg==", TagSpecification=[{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "vision"}]}]))
made = run("GN7.2XLARGE32").InstanceIdSet
listed = api.DescribeInstances(ask(models.DescribeInstancesRequest, Limit=20))
ended = api.TerminateInstances(ask(models.TerminateInstancesRequest, InstanceIds=[ours])).RequestId
try:
    run("NO.SUCH1")
    refused = ""
except TencentCloudSDKException as e:
    refused = e.code
print(json.dumps({
    "quotas": [[q.InstanceType, q.Zone, q.Status, q.Price.UnitPriceDiscount] for q in quotas], "made": made, "total": listed.TotalCount, "ended": ended, "refused": refused,
    "listed": [[i.InstanceId, i.InstanceChargeType, {t.Key: t.Value for t in i.Tags}] for i in listed.InstanceSet]}))
`

// What the vendor's own client cannot read, the stand-in has wrong; what it sends, and how it signs, the stand-in must take.
func TestTheVendorsOwnSDKWorksWithTheStandIn(t *testing.T) {
	c, err := fake.Open(tencenttest.Market())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(tencenttest.New(c, &fake.Knobs{Now: time.Now}))
	defer srv.Close()
	p := in(fleet.USD)(srv.URL, srv.Client(), time.Now)
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(offers, func(o fleet.Offer) bool { return o.Market == fleet.Spot && o.Region == "ap-guangzhou" })
	ours, err := p.Launch(t.Context(), provider.Request{Token: "t1", Name: "m", Offer: offers[i], Labels: providertest.Labels("p1"), UserData: "A=1\n"})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Quotas, Listed [][]any
		Made           []string
		Total          int
		Ended, Refused string
	}
	providertest.Python(t, "tencentcloud.cvm", sdk, &got, strings.TrimPrefix(srv.URL, "http://"), tencenttest.ID, tencenttest.Key, tencenttest.Image, ours.ID)
	if len(got.Quotas) != 8 || got.Total < 2 || len(got.Made) != 1 || got.Ended == "" || got.Refused != "InvalidParameterValue.InstanceTypeNotFound" {
		t.Errorf("the client does %+v", got)
	}
	seen := false
	for _, row := range got.Listed {
		labels := map[string]string{}
		for k, v := range row[2].(map[string]any) {
			labels[k] = v.(string)
		}
		if row[0] == ours.ID {
			seen = provider.FromTags(labels) == providertest.Labels("p1") && row[1] == "SPOTPAID"
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
