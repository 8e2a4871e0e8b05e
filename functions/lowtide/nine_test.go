package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/shared/provider/alibaba/alibabatest"
	clouds "lowtide/shared/provider/all"
	"lowtide/shared/provider/aws/awstest"
	"lowtide/shared/provider/azure/azuretest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/huawei/huaweitest"
	"lowtide/shared/provider/lambdalabs/lambdalabstest"
	"lowtide/shared/provider/paperspace/paperspacetest"
	"lowtide/shared/provider/tencent/tencenttest"
	"lowtide/shared/provider/vast/vasttest"
	"lowtide/shared/provider/volcengine/volcenginetest"
)

// nineClouds are the stand-ins of all clouds, configured as a person would.
func nineClouds(t *testing.T) {
	t.Helper()
	bare(t)
	serve := func(cfg fake.Config, vendor func(*fake.Cloud, *fake.Knobs) http.Handler) string {
		c, err := fake.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewServer(vendor(c, &fake.Knobs{Now: time.Now}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	for k, v := range map[string]string{
		"AWS_ENDPOINT_URL":  serve(awstest.Market(), func(c *fake.Cloud, k *fake.Knobs) http.Handler { return awstest.New(c, k) }),
		"AWS_ACCESS_KEY_ID": awstest.KeyID, "AWS_SECRET_ACCESS_KEY": awstest.Secret, "AWS_REGION": "us-east-1",
		"LOWTIDE_AZURE_URL":     serve(azuretest.Market(), func(c *fake.Cloud, k *fake.Knobs) http.Handler { return azuretest.New(c, k) }),
		"AZURE_SUBSCRIPTION_ID": azuretest.Subscription, "AZURE_TENANT_ID": azuretest.Tenant, "AZURE_CLIENT_ID": azuretest.Client, "AZURE_CLIENT_SECRET": azuretest.Secret,
		"LAMBDA_URL":             serve(lambdalabstest.Market(), func(c *fake.Cloud, k *fake.Knobs) http.Handler { return lambdalabstest.New(c, k) }),
		"LAMBDA_API_KEY":         lambdalabstest.Key,
		"VAST_URL":               serve(vasttest.Market(), func(c *fake.Cloud, k *fake.Knobs) http.Handler { return vasttest.New(c, k) }),
		"VAST_API_KEY":           vasttest.Key,
		"PAPERSPACE_URL":         serve(paperspacetest.Market(), func(c *fake.Cloud, k *fake.Knobs) http.Handler { return paperspacetest.New(c, k) }),
		"PAPERSPACE_API_KEY":     paperspacetest.Key,
		"LOWTIDE_TENCENT_URL":    serve(tencenttest.Market(), func(c *fake.Cloud, k *fake.Knobs) http.Handler { return tencenttest.New(c, k) }),
		"TENCENTCLOUD_SECRET_ID": tencenttest.ID, "TENCENTCLOUD_SECRET_KEY": tencenttest.Key, "TENCENTCLOUD_REGION": "ap-guangzhou", "LOWTIDE_TENCENT_CURRENCY": "USD",
		"LOWTIDE_ALIBABA_URL":         serve(alibabatest.Market(), func(c *fake.Cloud, k *fake.Knobs) http.Handler { return alibabatest.New(c, k) }),
		"ALIBABA_CLOUD_ACCESS_KEY_ID": alibabatest.KeyID, "ALIBABA_CLOUD_ACCESS_KEY_SECRET": alibabatest.Secret, "LOWTIDE_ALIBABA_REGIONS": "ap-southeast-1",
		"LOWTIDE_HUAWEI_URL": serve(huaweitest.Market(), func(c *fake.Cloud, k *fake.Knobs) http.Handler { return huaweitest.New(c, k) }),
		"HUAWEICLOUD_SDK_AK": huaweitest.KeyID, "HUAWEICLOUD_SDK_SK": huaweitest.Secret, "LOWTIDE_HUAWEI_PROJECTS": "cn-north-4=" + huaweitest.Projects["cn-north-4"], "LOWTIDE_HUAWEI_SPOT": "0.5",
		"LOWTIDE_VOLCENGINE_URL": serve(volcenginetest.Market(), func(c *fake.Cloud, k *fake.Knobs) http.Handler { return volcenginetest.New(c, k) }),
		"VOLCENGINE_ACCESS_KEY":  volcenginetest.KeyID, "VOLCENGINE_SECRET_KEY": volcenginetest.Secret, "VOLCENGINE_REGION": "cn-beijing",
	} {
		t.Setenv(k, v)
	}
}

func TestNineCloudsAreShownTogetherEachInItsOwnCurrency(t *testing.T) {
	nineClouds(t)
	s, err := (offersFlags{hours: 72}).shop(t.Context(), "")
	if err != nil || len(s.Skipped) != 1 || s.Skipped[0].Cloud != "static" {
		t.Fatalf("skipped %v, %v; want only machines of one's own", s.Skipped, err)
	}
	priced, shown := map[string]int{}, map[string]int{}
	for _, o := range s.Offers {
		if shown[o.Cloud]++; o.Hour != nil {
			priced[o.Cloud]++
		}
	}
	yuan := []string{"huawei", "volcengine"} // without an exchange rate nobody knows what that is in dollars
	for _, name := range clouds.Names() {
		if name == "static" {
			continue
		}
		if shown[name] == 0 || (priced[name] == 0) != slices.Contains(yuan, name) {
			t.Errorf("%s: %d offers, %d with a price in dollars", name, shown[name], priced[name])
		}
	}
	var last float64
	for _, o := range s.Offers {
		if r := o.rank(); r < last {
			t.Fatalf("%s %s is out of order", o.Cloud, o.Type)
		} else {
			last = r
		}
		if o.Hour == nil && !strings.Contains(o.Doubt, "CNY") && o.Term == "" && slices.Contains(yuan, o.Cloud) {
			t.Errorf("%s %s has no price, and %q does not say why", o.Cloud, o.Type, o.Doubt)
		}
	}
}
