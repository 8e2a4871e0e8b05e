package all_test

import (
	"errors"
	"strings"
	"testing"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/all"
)

func env(kv map[string]string) func(string) string { return func(k string) string { return kv[k] } }

func find(t *testing.T, name string, list []all.Cloud) all.Cloud {
	t.Helper()
	for _, c := range list {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("%s is not among %d clouds", name, len(list))
	return all.Cloud{}
}

func TestEveryCloudIsOpenOrSkippedWithOneLine(t *testing.T) {
	list, err := all.Open(t.Context(), all.Options{Getenv: env(nil)})
	if err != nil || len(list) != len(all.Names()) || len(list) != 10 {
		t.Fatalf("got %d clouds and %v", len(list), err)
	}
	for _, c := range list {
		if c.Provider != nil || c.Skipped == "" || strings.Contains(c.Skipped, "\n") {
			t.Errorf("%s without settings: %+v", c.Name, c)
		}
	}
}

func TestWhatALaunchLacksIsSaidAndOffersWorkWithoutIt(t *testing.T) {
	list, err := all.Open(t.Context(), all.Options{Getenv: env(map[string]string{
		"VAST_API_KEY": "k", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1",
		"ALIBABA_CLOUD_ACCESS_KEY_ID": "a", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "b", "LOWTIDE_ALIBABA_REGIONS": "cn-hangzhou",
		"LOWTIDE_ALIBABA_VSWITCHES": "cn-hangzhou-i=vsw-1", "LOWTIDE_ALIBABA_SECURITY_GROUPS": "sg-1",
		"LAMBDA_API_KEY": "k", "AZURE_SUBSCRIPTION_ID": "s", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": "x",
		"HUAWEICLOUD_SDK_AK": "a", "HUAWEICLOUD_SDK_SK": "b", "LOWTIDE_HUAWEI_PROJECTS": "cn-north-4=0a", "PAPERSPACE_API_KEY": "k", "VOLCENGINE_ACCESS_KEY": "a", "VOLCENGINE_SECRET_KEY": "b", "VOLCENGINE_REGION": "cn-beijing",
	})})
	if err != nil {
		t.Fatal(err)
	}
	if c := find(t, "vast", list); c.Provider == nil || c.Lacks != "LOWTIDE_MIRROR, LOWTIDE_VAST_IMAGE" {
		t.Errorf("vast: %+v", c)
	}
	if c := find(t, "lambdalabs", list); c.Provider == nil || c.Lacks != "LOWTIDE_MIRROR, LOWTIDE_LAMBDALABS_SSH_KEY" {
		t.Errorf("lambdalabs: %+v", c)
	}
	if c := find(t, "paperspace", list); c.Provider == nil || c.Lacks != "LOWTIDE_MIRROR, LOWTIDE_PAPERSPACE_TEMPLATE" {
		t.Errorf("paperspace: %+v", c)
	}
	if c := find(t, "huawei", list); c.Provider == nil || c.Lacks != "LOWTIDE_MIRROR, LOWTIDE_HUAWEI_IMAGE, LOWTIDE_HUAWEI_SUBNETS, LOWTIDE_HUAWEI_SECURITY_GROUPS" {
		t.Errorf("huawei: %+v", c)
	}
	if c := find(t, "azure", list); c.Provider == nil || c.Lacks != "LOWTIDE_MIRROR, LOWTIDE_AZURE_GROUP, LOWTIDE_AZURE_IMAGE, LOWTIDE_AZURE_SUBNETS, LOWTIDE_AZURE_SSH_KEY" {
		t.Errorf("azure: %+v", c)
	}
	if c := find(t, "volcengine", list); c.Provider == nil || c.Lacks != "LOWTIDE_MIRROR, LOWTIDE_VOLCENGINE_IMAGE, LOWTIDE_VOLCENGINE_SUBNETS, LOWTIDE_VOLCENGINE_SECURITY_GROUPS" {
		t.Errorf("volcengine: %+v", c)
	}
	if c := find(t, "aws", list); c.Provider == nil || c.Lacks != "LOWTIDE_MIRROR, LOWTIDE_AWS_IMAGE" {
		t.Errorf("aws: %+v", c)
	}
	if c := find(t, "alibaba", list); c.Provider == nil || c.Lacks != "LOWTIDE_MIRROR, LOWTIDE_ALIBABA_IMAGE" {
		t.Errorf("alibaba: %+v", c)
	}
	if c := find(t, "aws", list); c.Provider.Traits().Dry {
		t.Error("a real account says that it is dry")
	}
	list, err = all.Open(t.Context(), all.Options{Dry: true, Only: []string{"vast"}, Getenv: env(map[string]string{"VAST_API_KEY": "k", "VAST_URL": "http://127.0.0.1:1"})})
	if err != nil || len(list) != 1 || !list[0].Provider.Traits().Dry {
		t.Fatalf("dry: %+v and %v", list, err)
	}
	if err := list[0].Provider.End(t.Context(), "1"); !errors.Is(err, provider.ErrRefusedHere) {
		t.Errorf("an end in a dry run: %v", err)
	}
}

func TestCloudsThatShowTheirOffersToAnybodyAreOpenWithoutAnAccount(t *testing.T) {
	list, err := all.Open(t.Context(), all.Options{Getenv: env(nil), Public: true})
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, c := range list {
		if c.Provider != nil {
			open = append(open, c.Name+" lacks "+strings.Split(c.Lacks, ",")[0])
		}
	}
	if got := strings.Join(open, "; "); got != "azure lacks AZURE_SUBSCRIPTION_ID; vast lacks VAST_API_KEY" {
		t.Errorf("got %s", got)
	}
}

func TestWrongSettingsHaveALineEachAndNoSecret(t *testing.T) {
	_, err := all.Open(t.Context(), all.Options{Getenv: env(map[string]string{
		"VAST_API_KEY": "s3cret", "LOWTIDE_VAST_DISK": "-5", "PAPERSPACE_API_KEY": "s3cret", "LOWTIDE_PAPERSPACE_DISK": "77", "LOWTIDE_PAPERSPACE_REGIONS": "mars", "LOWTIDE_AZURE_ADDRESS": "perhaps",
		"HUAWEICLOUD_SDK_AK": "a", "HUAWEICLOUD_SDK_SK": "s3cret", "LOWTIDE_HUAWEI_PROJECTS": "cn-north-4=0a", "LOWTIDE_HUAWEI_SPOT": "1.5", "LOWTIDE_HUAWEI_SUBNETS": "cn-north-4=vpc", "LOWTIDE_CAP_HOURLY": "much", "LOWTIDE_MIRROR_SHA256_AMD64": "abc",
	})})
	if err == nil {
		t.Fatal("wrong settings are taken")
	}
	for _, name := range []string{"LOWTIDE_VAST_DISK", "LOWTIDE_PAPERSPACE_DISK", "LOWTIDE_PAPERSPACE_REGIONS", "LOWTIDE_AZURE_ADDRESS", "LOWTIDE_HUAWEI_SPOT", "LOWTIDE_HUAWEI_SUBNETS", "LOWTIDE_CAP_HOURLY", "LOWTIDE_MIRROR_SHA256_AMD64"} {
		if strings.Count(err.Error(), name) != 1 {
			t.Errorf("%s is not named once in %q", name, err)
		}
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a secret in %q", err)
	}
	if _, err := all.Open(t.Context(), all.Options{Getenv: env(nil), Only: []string{"gcp"}}); err == nil {
		t.Error("an unknown cloud is opened")
	}
}

func TestAPriceBookIsReadWholeOrRefusedLineByLine(t *testing.T) {
	b, err := all.ReadBook("b", []byte("rates: {as_of: 2026-11-30, CNY: 0.14}\ndeals: [{cloud: aws, type: 'p5*', times: 0.82, vat: 0.19, until: 2027-01-01}]\n"+
		"prices: [{cloud: lambdalabs, region: us-east-1, type: gpu_8x_h100, gpu: H100 SXM5, gpus: 8, market: reserved, price: 12000 USD/month, term: 1y, as_of: 2026-11-01, source: contract}]\n"))
	if err != nil || len(b.Deals) != 1 || len(b.Prices) != 1 {
		t.Fatalf("got %+v and %v", b, err)
	}
	if o := b.Prices[0]; o.GPU != "H100" || o.Form != "SXM5" || o.Term.Hours() != 8760 || o.Price.Per != fleet.PerMonth || o.Quoted.IsZero() {
		t.Errorf("read %+v", o)
	}
	for _, c := range []struct{ text, want string }{
		{"rates: {CNY: 0.14}", "as_of"},
		{"rates: {as_of: 2026-11-30, CNY: 0}", "CNY"},
		{"deals: [{times: 0}]", "times"},
		{"deals: [{market: free}]", "market"},
		{"prices: [{cloud: a, region: r, type: t, market: spot, price: 5, as_of: 2026-11-01, source: s}]", "price"},
		{"prices: [{cloud: a, region: r, type: t, market: spot, price: 5 CNY/hour, source: s}]", "as_of"},
		{"price: []", "unknown field"},
		{"[", "b:"},
	} {
		if _, err := all.ReadBook("b", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q named", c.text, err, c.want)
		}
	}
}

func TestTencentIsOpenedOnlyWhenTheCurrencyOfItsPricesIsTold(t *testing.T) {
	for currency, want := range map[string]string{"": "skipped", "CNY": "open", "USD": "open", "EUR": "wrong"} {
		list, err := all.Open(t.Context(), all.Options{Only: []string{"tencent"}, Getenv: env(map[string]string{
			"TENCENTCLOUD_SECRET_ID": "i", "TENCENTCLOUD_SECRET_KEY": "s3cret", "TENCENTCLOUD_REGION": "ap-guangzhou", "LOWTIDE_TENCENT_CURRENCY": currency,
		})})
		got := "open"
		switch c := find(t, "tencent", list); {
		case err != nil && strings.Contains(err.Error(), "LOWTIDE_TENCENT_CURRENCY") && !strings.Contains(err.Error(), "s3cret"):
			got = "wrong"
		case c.Provider == nil && strings.Contains(c.Skipped, "LOWTIDE_TENCENT_CURRENCY"):
			got = "skipped"
		case c.Lacks != "LOWTIDE_MIRROR, LOWTIDE_TENCENT_IMAGE":
			got = c.Lacks
		}
		if got != want {
			t.Errorf("%q: %s, want %s (%v)", currency, got, want, err)
		}
	}
}
