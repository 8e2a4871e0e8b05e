package fleet_test

import (
	"testing"

	"lowtide/shared/fleet"
)

func TestWhatAnOfferDoesNotTellIsNo(t *testing.T) {
	full := fleet.Offer{Cloud: "aws", Region: "eu-west-1", GPU: "A100", GPUs: 8, Form: "SXM4", Memory: 80, CUDA: "12.10", Certified: "iso27001,soc2"}
	silent := fleet.Offer{Cloud: "aws", Region: "eu-west-1", GPU: "A100", GPUs: 8}
	for name, c := range map[string]struct {
		want        fleet.Want
		met, silent bool
	}{
		"nothing":           {fleet.Want{}, true, true},
		"memory":            {fleet.Want{Memory: 80}, true, false},
		"more memory":       {fleet.Want{Memory: 81}, false, false},
		"NVLink":            {fleet.Want{NVLink: true}, true, false},
		"an older CUDA":     {fleet.Want{CUDA: "12.9"}, true, false},
		"a newer CUDA":      {fleet.Want{CUDA: "13"}, false, false},
		"a region":          {fleet.Want{Regions: []string{"us-*", "eu-*"}}, true, true},
		"another region":    {fleet.Want{Regions: []string{"us-*"}}, false, false},
		"a certificate":     {fleet.Want{Certified: []string{"soc2"}}, true, false},
		"another one":       {fleet.Want{Certified: []string{"soc2", "hipaa"}}, false, false},
		"outside of China":  {fleet.Want{Side: fleet.Outside}, true, true},
		"in mainland China": {fleet.Want{Side: fleet.China}, false, false},
	} {
		if met, silent := c.want.Met(&full), c.want.Met(&silent); met != c.met || silent != c.silent {
			t.Errorf("%s: met %v and by an offer that tells nothing %v, want %v and %v", name, met, silent, c.met, c.silent)
		}
	}
	if one := (fleet.Offer{GPUs: 1}); !one.Linked() {
		t.Error("one GPU has nothing to be joined to")
	}
}

func TestTheBorderIsReadFromRegionsAndBuckets(t *testing.T) {
	for o, want := range map[fleet.Offer]fleet.Side{
		{Cloud: "aws", Region: "cn-northwest-1"}: fleet.China, {Cloud: "aws", Region: "ap-southeast-1"}: fleet.Outside,
		{Cloud: "alibaba", Region: "cn-beijing"}: fleet.China, {Cloud: "alibaba", Region: "cn-hongkong"}: fleet.Outside,
		{Cloud: "tencent", Region: "ap-shanghai"}: fleet.China, {Cloud: "tencent", Region: "ap-hongkong"}: fleet.Outside, {Cloud: "tencent", Region: "na-ashburn"}: fleet.Outside,
		{Cloud: "azure", Region: "chinanorth3"}: fleet.China, {Cloud: "vast", Region: "CN"}: fleet.China, {Cloud: "vast", Region: "HK"}: fleet.Outside,
	} {
		if got := o.Side(); got != want {
			t.Errorf("%s %s: got %s, want %s", o.Cloud, o.Region, got, want)
		}
	}
	for address, want := range map[string]fleet.Side{
		"s3://b?region=cn-north-1": fleet.China, "s3://b?region=eu-west-1": fleet.Outside, "s3://b?endpoint=https://s3.cn-north-1.amazonaws.com.cn": fleet.China,
		"s3://b?endpoint=https://oss-cn-hangzhou-internal.aliyuncs.com": fleet.China, "s3://b?endpoint=https://oss-cn-hongkong.aliyuncs.com": fleet.Outside,
		"s3://b?endpoint=https://cos.ap-shanghai.myqcloud.com": fleet.China, "s3://b?endpoint=https://cos.ap-singapore.myqcloud.com": fleet.Outside,
		"s3://b?endpoint=https://obs.cn-north-4.myhuaweicloud.com": fleet.China, "s3://b?endpoint=https://tos-s3-cn-beijing.volces.com": fleet.China,
		"s3://b?endpoint=https://storage.googleapis.com": fleet.Outside, "file:///a": fleet.Outside, "azblob://b": fleet.Outside,
	} {
		if got := fleet.SideOfBucket(address); got != want {
			t.Errorf("%s: got %s, want %s", address, got, want)
		}
	}
}
