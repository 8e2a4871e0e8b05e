package tencent_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
	"lowtide/shared/provider/tencent"
	"lowtide/shared/provider/tencent/tencenttest"
)

// instead is the stand-in with other answers to some actions.
func instead(t *testing.T, c fleet.Currency, by map[string]func() string) (provider.Provider, *fake.Cloud) {
	t.Helper()
	cloud, err := fake.Open(tencenttest.Market())
	if err != nil {
		t.Fatal(err)
	}
	cvm := tencenttest.New(cloud, &fake.Knobs{Now: time.Now})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f, ok := by[r.Header.Get("X-TC-Action")]; ok {
			fmt.Fprint(w, f())
			return
		}
		cvm.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return in(c)(srv.URL, srv.Client(), time.Now), cloud
}

func find(t *testing.T, p provider.Provider, zone, kind string, m fleet.Market, term time.Duration) fleet.Offer {
	t.Helper()
	all, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if o.Zone == zone && o.Type == kind && o.Market == m && o.Term == term {
			return o
		}
	}
	t.Fatalf("no %s %s in %s for %s among %d", kind, m, zone, term, len(all))
	return fleet.Offer{}
}

func want(o fleet.Offer) provider.Request {
	return provider.Request{Token: "t1", Name: "m1", Offer: o, Labels: providertest.Labels("p1"), UserData: "A=1\n"}
}

func TestPricesAreReadByTheirMarketAndUnit(t *testing.T) {
	p, _ := instead(t, fleet.USD, nil)
	const zone, kind, month = "ap-guangzhou-6", "GN10Xp.2XLARGE40", 730 * time.Hour
	for _, c := range []struct {
		market fleet.Market
		term   time.Duration
		price  string
		hourly float64
	}{
		{fleet.OnDemand, 0, "1.72 instance-hour", 1.72},   // what is paid, not the list price
		{fleet.Spot, 0, "0.26 instance-hour", 0.26},       //
		{fleet.Reserved, month, "753.36 month", 1.032},    // a month's sum
		{fleet.Reserved, 12 * month, "627.8 month", 0.86}, // a year's sum, by month
	} {
		o := find(t, p, zone, kind, c.market, c.term)
		if got := fmt.Sprint(o.Price.Amount.Amount, " ", o.Price.Per); got != c.price {
			t.Errorf("%s for %s: got %s, want %s", c.market, c.term, got, c.price)
		}
		if got, ok := o.PerHour(); !ok || got < c.hourly*0.999 || got > c.hourly*1.001 {
			t.Errorf("%s for %s: %v an hour, want %v", c.market, c.term, got, c.hourly)
		}
		if o.GPU != "V100" || o.Memory != 32 || o.GPUs != 1 {
			t.Errorf("read as %+v", o)
		}
	}
}

func TestAPriceInYuanIsNotTakenForDollars(t *testing.T) {
	p, _ := instead(t, fleet.CNY, nil)
	o := find(t, p, "ap-guangzhou-6", "GN7.2XLARGE32", fleet.OnDemand, 0)
	if _, known := o.PerHour(); known || o.Price.Amount.Currency != fleet.CNY {
		t.Errorf("without a rate: %+v", o)
	}
}

func TestSharesOfAGPUAndClustersAreNotSoldAndAnUnknownFamilyHasNoModel(t *testing.T) {
	p, _ := instead(t, fleet.USD, nil)
	all, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if o.Type == "GN7.LARGE20" || o.Type == "S5.LARGE8" || strings.HasPrefix(o.Type, "HCC") {
			t.Errorf("%s is offered", o)
		}
	}
	if o := find(t, p, "ap-guangzhou-6", "PNV9.4XLARGE64", fleet.Spot, 0); o.GPU != "" || o.GPUs != 1 {
		t.Errorf("an unknown family is read as %+v", o)
	}
}

func TestWhatIsSoldOutIsSaid(t *testing.T) {
	for _, c := range []struct {
		status, category string
		known            bool
	}{{"SELL", "EnoughStock", false}, {"SELL", "UnderStock", false}, {"SELL", "WithoutStock", true}, {"SOLD_OUT", "EnoughStock", true}} {
		p, _ := instead(t, fleet.USD, map[string]func() string{"DescribeZoneInstanceConfigInfos": func() string {
			return `{"Response": {"InstanceTypeQuotaSet": [{"Zone": "ap-guangzhou-6", "InstanceType": "GN7.2XLARGE32", "InstanceFamily": "GN7", "InstanceChargeType": "SPOTPAID",
				"GpuCount": 1, "Gpu": 1, "Status": "` + c.status + `", "StatusCategory": "` + c.category + `", "Price": {"UnitPrice": 8.1, "UnitPriceDiscount": 1.2, "ChargeUnit": "HOUR"}}], "RequestId": "r"}}`
		}})
		o := find(t, p, "ap-guangzhou-6", "GN7.2XLARGE32", fleet.Spot, 0)
		if n, known := o.Stock.Get(); known != c.known || n != 0 {
			t.Errorf("%s %s: a stock of %v (known: %v)", c.status, c.category, n, known)
		}
	}
}

func TestCodesInsideA200AreSortedIntoTheClosedList(t *testing.T) {
	var code string
	p, _ := instead(t, fleet.USD, map[string]func() string{"RunInstances": func() string {
		return `{"Response": {"Error": {"Code": "` + code + `", "Message": "secret words"}, "RequestId": "r"}}`
	}})
	o := find(t, p, "ap-guangzhou-6", "GN7.2XLARGE32", fleet.Spot, 0)
	for _, c := range []struct{ codes, word string }{
		{"ResourcesSoldOut.SpecifiedInstanceType ResourcesSoldOut.AvailableZone ResourceInsufficient.SpecifiedInstanceType ResourceInsufficient.AvailabilityZoneSoldOut", "no_capacity"},
		{"InvalidParameterValue.InsufficientOffering InvalidParameterValue.InsufficientPrice UnsupportedOperation.NoInstanceTypeSupportSpot", "no_capacity"},
		{"InvalidParameterValue.InstanceTypeRequiredHpcCluster UnsupportedOperation.SpotUnsupportedRegion", "no_capacity"},
		{"LimitExceeded.SpotQuota LimitExceeded.UserSpotQuota LimitExceeded.InstanceQuota InstancesQuotaLimitExceeded", "quota"},
		{"RequestLimitExceeded RequestLimitExceeded.UinLimitExceeded", "throttled"},
		{"AuthFailure.SecretIdNotFound AuthFailure.SignatureFailure UnauthorizedOperation InvalidAccount.InsufficientBalance InvalidInstanceChargeType.OnlySupportedForSpot", "denied"},
		{"InvalidParameterValue.InstanceTypeNotFound MissingParameter UnknownParameter InvalidImageId.NotFound UnsupportedRegion InvalidClientToken.TooLong", "invalid"},
		{"ServiceUnavailable MutexOperation.TaskRunning", "unavailable"},
		{"InternalError InternalServerError FailedOperation ANewCode", "unknown_outcome"}, // it may have been bought: the token is asked again
	} {
		for _, code = range strings.Fields(c.codes) {
			_, err := p.Launch(t.Context(), want(o))
			if got := provider.Word(err); got != c.word || !strings.Contains(err.Error(), code) || strings.Contains(err.Error(), "secret words") {
				t.Errorf("%s: got %v (%s), want %s with the code and without the text", code, err, got, c.word)
			}
		}
	}
}

func TestAnAccountWithoutSpotIsToldHowToGetIt(t *testing.T) {
	p, _ := instead(t, fleet.USD, map[string]func() string{"RunInstances": func() string {
		return `{"Response": {"Error": {"Code": "InvalidInstanceChargeType.OnlySupportedForSpot", "Message": ""}, "RequestId": "r"}}`
	}})
	_, err := p.Launch(t.Context(), want(find(t, p, "ap-guangzhou-6", "GN7.2XLARGE32", fleet.Spot, 0)))
	if provider.Word(err) != "denied" || !strings.Contains(err.Error(), "apply for it") {
		t.Errorf("got %v", err)
	}
}

func TestAMachineThatCouldNotBeMadeIsNotSaidToRun(t *testing.T) {
	p, _ := instead(t, fleet.USD, map[string]func() string{
		"RunInstances": func() string { return `{"Response": {"InstanceIdSet": ["ins-1"], "RequestId": "r"}}` },
		"DescribeInstances": func() string {
			return `{"Response": {"TotalCount": 1, "InstanceSet": [{"InstanceId": "ins-1", "InstanceState": "LAUNCH_FAILED", "InstanceType": "GN7.2XLARGE32",
				"InstanceChargeType": "SPOTPAID", "Placement": {"Zone": "ap-guangzhou-6"}, "CreatedTime": "2026-03-01T00:00:00Z", "Tags": []}], "RequestId": "r"}}`
		},
	})
	if _, err := p.Launch(t.Context(), want(find(t, p, "ap-guangzhou-6", "GN7.2XLARGE32", fleet.Spot, 0))); provider.Word(err) != "no_capacity" {
		t.Errorf("got %v", err)
	}
}

func TestStatesAreTold(t *testing.T) {
	for said, is := range map[string]provider.State{
		"PENDING": provider.Pending, "RUNNING": provider.Running, "REBOOTING": provider.Running, "STOPPED": provider.Stopped, "STOPPING": provider.Stopped,
		"SHUTDOWN": provider.Stopped, "TERMINATING": provider.Ending, "LAUNCH_FAILED": provider.Gone, "ANEWSTATE": provider.Running,
	} {
		p, _ := instead(t, fleet.USD, map[string]func() string{"DescribeInstances": func() string {
			return `{"Response": {"TotalCount": 1, "InstanceSet": [{"InstanceId": "ins-1", "InstanceState": "` + said + `", "CreatedTime": "2026-03-01T00:00:00Z", "Tags": null}], "RequestId": "r"}}`
		}})
		all, err := p.List(t.Context())
		if err != nil || len(all) == 0 || all[0].State != is || all[0].Until.IsZero() == (is == provider.Gone) {
			t.Errorf("%s: got %+v and %v", said, all, err)
		}
	}
}

func TestAMachineWithoutATimeDoesNotBlindTheList(t *testing.T) {
	p, _ := instead(t, fleet.USD, map[string]func() string{"DescribeInstances": func() string {
		return `{"Response": {"TotalCount": 1, "InstanceSet": [{"InstanceId": "ins-1", "InstanceState": "RUNNING", "CreatedTime": "", "Tags": []}], "RequestId": "r"}}`
	}})
	if all, err := p.List(t.Context()); err != nil || len(all) != 2 || !all[0].Since.IsZero() {
		t.Errorf("got %+v and %v", all, err)
	}
}

func TestAListThatChangesWhileItIsReadIsAnError(t *testing.T) {
	page := 0
	p, _ := instead(t, fleet.USD, map[string]func() string{"DescribeInstances": func() string {
		page++
		return fmt.Sprintf(`{"Response": {"TotalCount": %d, "InstanceSet": [{"InstanceId": "ins-%d", "InstanceState": "RUNNING", "CreatedTime": "2026-03-01T00:00:00Z"}]}}`, 4-page, page)
	}})
	if all, err := p.List(t.Context()); provider.Word(err) != "unavailable" || len(all) > 0 {
		t.Errorf("got %+v and %v", all, err)
	}
}

func TestTheCloudItselfEndsAMachineAtItsHardEnd(t *testing.T) {
	p, cloud := instead(t, fleet.USD, nil)
	w := want(find(t, p, "ap-guangzhou-6", "GN7.2XLARGE32", fleet.OnDemand, 0))
	w.HardEnd = time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	if _, err := p.Launch(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if got := cloud.Bill().Ours()[0].HardEnd; !got.Equal(w.HardEnd) {
		t.Errorf("got %s, want %s", got, w.HardEnd)
	}
}

func TestSpotIsBoughtForAtMostTwiceItsOfferAndInTheNetworkOfItsZone(t *testing.T) {
	var body string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b, _ := io.ReadAll(r.Body); r.Header.Get("X-TC-Action") == "RunInstances" {
			body = string(b)
		}
		fmt.Fprint(w, `{"Response": {"InstanceIdSet": ["ins-1"], "TotalCount": 0, "InstanceSet": [], "RequestId": "r"}}`)
	}))
	t.Cleanup(srv.Close)
	p := tencent.New(tencent.Settings{
		Regions: []string{"ap-guangzhou"}, ID: "i", Key: "k", Currency: fleet.USD, Endpoint: srv.URL, Images: map[string]string{"ap-guangzhou": "img-1"},
		Subnets: map[string]string{"ap-guangzhou-6": "vpc-1/subnet-1"}, Boot: boot,
	})
	o := fleet.Offer{Cloud: "tencent", Account: "main", Region: "ap-guangzhou", Zone: "ap-guangzhou-6", Type: "GN7.2XLARGE32", Market: fleet.Spot}
	if _, err := p.Launch(t.Context(), want(o)); provider.Word(err) != "invalid" || body != "" {
		t.Errorf("without a price: got %v, asked %s", err, body)
	}
	o.Price = fleet.Price{Amount: fleet.Dollars(0.1734), Per: fleet.PerInstanceHour}
	m, err := p.Launch(t.Context(), want(o))
	if err != nil || m.ID != "ins-1" || m.State != provider.Pending || m.Offer.Pool() != o.Pool() {
		t.Errorf("got %+v and %v", m, err)
	}
	for _, part := range []string{`"MaxPrice":"0.35"`, `"VpcId":"vpc-1"`, `"SubnetId":"subnet-1"`, `"ClientToken":"t1"`, `"Key":"lowtide-install"`} {
		if !strings.Contains(body, part) {
			t.Errorf("%s is not in %s", part, body)
		}
	}
	if strings.Contains(body, "InternetAccessible") || strings.Contains(body, "SystemDisk") {
		t.Errorf("what was not configured is asked for: %s", body)
	}
}

func TestASubscriptionIsShownAndNotBought(t *testing.T) {
	p, _ := instead(t, fleet.USD, map[string]func() string{"RunInstances": func() string { t.Error("asked all the same"); return "" }})
	if _, err := p.Launch(t.Context(), want(find(t, p, "ap-guangzhou-6", "GN7.2XLARGE32", fleet.Reserved, 730*time.Hour))); provider.Word(err) != "invalid" {
		t.Errorf("got %v", err)
	}
}

// The vendor's printed row pairs POSTPAID_BY_HOUR with no hourly price and a monthly one: it is no offer, also with a GPU.
func TestTheVendorsPrintedRowHasNoHourlyPrice(t *testing.T) {
	printed := strings.Replace(string(providertest.Sample(t, "tencent-DescribeZoneInstanceConfigInfos.json")), `"GpuCount": 0`, `"GpuCount": 1`, 1)
	for charge, n := range map[string]int{"POSTPAID_BY_HOUR": 0, "PREPAID": 2} {
		p, _ := instead(t, fleet.CNY, map[string]func() string{"DescribeZoneInstanceConfigInfos": func() string {
			return strings.Replace(printed, "POSTPAID_BY_HOUR", charge, 1)
		}})
		all, err := p.Offers(t.Context())
		if err != nil || len(all) != 2*n { // both regions are answered alike
			t.Fatalf("%s: got %+v and %v", charge, all, err)
		}
		if n > 0 && (all[0].Price.Amount.String() != "59.00 CNY" || all[1].Price.Amount.String() != "48.97 CNY") {
			t.Errorf("%s: got %+v", charge, all)
		}
	}
}

func TestTheVendorsErrorInsideA200IsNoCapacity(t *testing.T) {
	soldOut := string(providertest.Sample(t, "tencent-error-sold-out.json"))
	p, _ := instead(t, fleet.USD, map[string]func() string{"RunInstances": func() string { return soldOut }})
	if _, err := p.Launch(t.Context(), want(find(t, p, "ap-guangzhou-6", "GN7.2XLARGE32", fleet.Spot, 0))); provider.Word(err) != "no_capacity" {
		t.Errorf("got %v", err)
	}
}

// The vendor prints one request with its key and signature: the stand-in, which judges the adapter's, must agree.
func TestTheStandInAgreesWithTheVendorsPrintedSignature(t *testing.T) {
	cloud, err := fake.Open(tencenttest.Market())
	if err != nil {
		t.Fatal(err)
	}
	cvm := tencenttest.New(cloud, &fake.Knobs{Now: func() time.Time { return time.Unix(1551113065, 0) }})
	for body, code := range map[string]string{
		`{"Limit": 1, "Filters": [{"Values": ["\u672a\u547d\u540d"], "Name": "instance-name"}]}`: "UnknownParameter", // signed well; no filters here
		`{"Limit": 2, "Filters": [{"Values": ["\u672a\u547d\u540d"], "Name": "instance-name"}]}`: "AuthFailure.SignatureFailure",
	} {
		r := httptest.NewRequest(http.MethodPost, "https://cvm.tencentcloudapi.com/", strings.NewReader(body))
		for k, v := range map[string]string{
			"Content-Type": "application/json; charset=utf-8", "X-TC-Action": "DescribeInstances", "X-TC-Timestamp": "1551113065", "X-TC-Version": "2017-03-12", "X-TC-Region": "ap-guangzhou",
			"Authorization": "TC3-HMAC-SHA256 Credential=" + tencenttest.ID + "/2019-02-25/cvm/tc3_request, SignedHeaders=content-type;host, " +
				"Signature=72e494ea809ad7a8c8f7a4507b9bddcbaa8e581f516e8da2f66e2c5a96525168",
		} {
			r.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		cvm.ServeHTTP(w, r)
		if !strings.Contains(w.Body.String(), `"`+code+`"`) {
			t.Errorf("%s: got %s, want %s", body, w.Body, code)
		}
	}
}

func TestATrialOfAPurchaseBuysNothing(t *testing.T) {
	cloud, err := fake.Open(tencenttest.Market())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(tencenttest.New(cloud, &fake.Knobs{Now: time.Now}))
	defer srv.Close()
	p := in(fleet.USD)(srv.URL, &http.Client{Transport: provider.ReadOnly(http.DefaultTransport, tencent.Reads)}, time.Now)
	w := want(find(t, p, "ap-guangzhou-6", "GN7.2XLARGE32", fleet.OnDemand, 0))
	try := p.(*tencent.Tencent).Try
	if err := try(t.Context(), w); err != nil {
		t.Errorf("what would be sold: %v", err)
	}
	if _, err := p.Launch(t.Context(), w); provider.Word(err) != "refused_here" {
		t.Errorf("a purchase got through: %v", err)
	}
	w.Token = strings.Repeat("t", 65)
	if err := try(t.Context(), w); provider.Word(err) != "invalid" {
		t.Errorf("a token that is too long: %v", err)
	}
	if n := len(cloud.Bill()); n != 0 {
		t.Errorf("%d machines were bought", n)
	}
}
