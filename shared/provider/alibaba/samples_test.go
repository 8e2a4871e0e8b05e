package alibaba_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/alibaba"
	"lowtide/shared/provider/alibaba/alibabatest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// instead is an account in a region, and the stand-in with other answers to some actions: a status and a body.
func instead(t *testing.T, region string, by map[string]func(*http.Request) (int, []byte)) *alibaba.Alibaba {
	t.Helper()
	c, err := fake.Open(alibabatest.Market())
	if err != nil {
		t.Fatal(err)
	}
	ecs := alibabatest.New(c, &fake.Knobs{Now: time.Now})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f, ok := by[r.Header.Get("x-acs-action")]; ok {
			status, body := f(r)
			w.WriteHeader(status)
			_, _ = w.Write(body)
			return
		}
		ecs.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return alibaba.New(alibaba.Settings{
		Regions: []string{region}, KeyID: alibabatest.KeyID, Secret: alibabatest.Secret, Endpoint: srv.URL, Client: srv.Client(), Boot: boot,
		Images: map[string]string{"": alibabatest.Image}, Groups: map[string]string{"": alibabatest.Group}, Switches: alibabatest.Switches,
	})
}

func says(body string) func(*http.Request) (int, []byte) {
	return func(*http.Request) (int, []byte) { return http.StatusOK, []byte(body) }
}

// told are offers as zone, type, market and term, with price, stock and card.
func told(t *testing.T, p provider.Provider) map[string]string {
	t.Helper()
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, o := range offers {
		stock := "?"
		if n, known := o.Stock.Get(); known {
			stock = fmt.Sprint(n)
		}
		out[fmt.Sprint(o.Zone, " ", o.Type, " ", o.Market, " ", o.Term)] = fmt.Sprint(o.Price.Amount.Amount, " ", o.Price.Amount.Currency, "/", o.Price.Per, " stock ", stock, " ", o.GPUs, "x ", o.GPU, " ", o.Memory)
	}
	return out
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for k, w := range want {
		if got[k] != w {
			t.Errorf("%q: got %q, want %q", k, got[k], w)
		}
	}
	for k, g := range got {
		if want[k] == "" {
			t.Errorf("%q: got %q, want no such offer", k, g)
		}
	}
}

const noList = `{"PriceInfo": {"Price": {"Currency": "CNY", "OriginalPrice": 900, "TradePrice": 900}}}`

func TestTheVendorsStockIsRead(t *testing.T) {
	stock := providertest.Sample(t, "alibaba-DescribeAvailableResource-shape.json")
	compare(t, told(t, instead(t, "cn-hangzhou", map[string]func(*http.Request) (int, []byte){
		"DescribeAvailableResource": func(*http.Request) (int, []byte) { return http.StatusOK, stock },
		"DescribeInstanceTypes": says(`{"InstanceTypes": {"InstanceType": [
			{"InstanceTypeId": "ecs.gn6i-c4g1.xlarge", "GPUSpec": "NVIDIA T4", "GPUAmount": 1, "GPUMemorySize": 16},
			{"InstanceTypeId": "ecs.gn6v-c8g1.2xlarge", "GPUSpec": "NVIDIA V100", "GPUAmount": "1", "GPUMemorySize": "16"},
			{"InstanceTypeId": "ecs.gn7i-c8g1.2xlarge", "GPUSpec": "NVIDIA A10", "GPUAmount": 1}]}, "NextToken": ""}`),
		"DescribePrice": says(noList), // a sum with its disk in it is no price of a machine
		"DescribeSpotPriceHistory": func(r *http.Request) (int, []byte) {
			return http.StatusOK, fmt.Appendf(nil, `{"Currency": "CNY", "SpotPrices": {"SpotPriceType": [
				{"ZoneId": "cn-hangzhou-e", "InstanceType": %q, "SpotPrice": "2.5", "OriginPrice": 10.25, "Timestamp": "2026-03-01T11:00:00Z"}]}}`, r.URL.Query().Get("InstanceType"))
		},
	})), map[string]string{
		"cn-hangzhou-e ecs.gn6i-c4g1.xlarge on_demand 0s":  "10.25 CNY/instance-hour stock ? 1x T4 16",
		"cn-hangzhou-e ecs.gn6i-c4g1.xlarge spot 0s":       "2.5 CNY/instance-hour stock ? 1x T4 16",
		"cn-hangzhou-e ecs.gn6v-c8g1.2xlarge on_demand 0s": "10.25 CNY/instance-hour stock 0 1x V100 16",
		"cn-hangzhou-e ecs.gn6v-c8g1.2xlarge spot 0s":      "2.5 CNY/instance-hour stock 0 1x V100 16",
		"cn-hangzhou-e ecs.gn7i-c8g1.2xlarge on_demand 0s": "10.25 CNY/instance-hour stock ? 1x A10 24",
		"cn-hangzhou-e ecs.gn7i-c8g1.2xlarge spot 0s":      "2.5 CNY/instance-hour stock ? 1x A10 24",
	})
}

// The vendor's example of prices is of a machine without a GPU; the types here say otherwise, so that it is offered.
func TestTheVendorsPricesAreReadAndZeroIsNone(t *testing.T) {
	prices := providertest.Sample(t, "alibaba-DescribeSpotPriceHistory.json")
	p := instead(t, "cn-hangzhou", map[string]func(*http.Request) (int, []byte){
		"DescribeAvailableResource": says(`{"AvailableZones": {"AvailableZone": [{"ZoneId": "cn-hangzhou-g", "AvailableResources": {"AvailableResource": [
			{"Type": "InstanceType", "SupportedResources": {"SupportedResource": [{"Value": "ecs.g5.large", "Status": "Available", "StatusCategory": "WithStock"},
				{"Value": "ecs.vgn6i-m4.xlarge", "Status": "Available", "StatusCategory": "WithStock"}]}}]}},
			{"ZoneId": "cn-hangzhou-h", "AvailableResources": {"AvailableResource": [
			{"Type": "InstanceType", "SupportedResources": {"SupportedResource": [{"Value": "ecs.g5.large", "Status": "Available"}]}}]}}]}}`),
		"DescribeInstanceTypes": says(`{"InstanceTypes": {"InstanceType": [
			{"InstanceTypeId": "ecs.vgn6i-m4.xlarge", "GPUSpec": "NVIDIA T4", "GPUAmount": 1, "GPUMemorySize": 4},
			{"InstanceTypeId": "ecs.g5.large", "GPUSpec": "NVIDIA T4", "GPUAmount": 1, "GPUMemorySize": 16}]}}`), // the first is a quarter of one
		"DescribeSpotPriceHistory": func(*http.Request) (int, []byte) { return http.StatusOK, prices },
		"DescribePrice": func(r *http.Request) (int, []byte) {
			sum := map[string]string{"Hour": "0", "Month": `"127.44"`, "Year": "1200"}[r.URL.Query().Get("PriceUnit")]
			return http.StatusOK, []byte(`{"PriceInfo": {"Price": {"Currency": "CNY", "DetailInfos": {"DetailInfo": [
				{"Resource": "systemDisk", "OriginalPrice": 20}, {"Resource": "instanceType", "OriginalPrice": ` + sum + `, "TradePrice": 1}]}}}}`)
		},
	})
	compare(t, told(t, p), map[string]string{
		"cn-hangzhou-g ecs.g5.large on_demand 0s": "0.354 CNY/instance-hour stock ? 1x T4 16",
		"cn-hangzhou-g ecs.g5.large spot 0s":      "0.036 CNY/instance-hour stock ? 1x T4 16",
		" ecs.g5.large reserved 730h0m0s":         "127.44 CNY/month stock ? 1x T4 16",
		" ecs.g5.large reserved 8760h0m0s":        "100 CNY/month stock ? 1x T4 16",
	})
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range offers {
		if !o.Hourly.IsZero() {
			t.Errorf("%s: yuan are taken for dollars: %v", o, o.Hourly.Or(fleet.Money{}))
		}
		if o.Term == 0 {
			continue
		}
		if _, err := p.Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: o}); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("a subscription is launched by the hour: %v", err)
		}
	}
}

func TestTheStandInsMarketIsReadWhole(t *testing.T) {
	got := told(t, instead(t, "ap-southeast-1", nil))
	for k, want := range map[string]string{
		"ap-southeast-1b ecs.gn6v-c10g1.20xlarge spot 0s":    "8.85 USD/instance-hour stock ? 8x V100 16", // the newest, from the second page
		"ap-southeast-1a ecs.gn7i-c8g1.2xlarge on_demand 0s": "1.9 USD/instance-hour stock ? 1x A10 24",   // never sold as spot: from the list
		" ecs.gn6i-c4g1.xlarge reserved 730h0m0s":            "591.3 USD/month stock ? 1x T4 16",
		" ecs.gn6i-c4g1.xlarge reserved 8760h0m0s":           "591.3 USD/month stock ? 1x T4 16",
	} {
		if got[k] != want {
			t.Errorf("%q: got %q, want %q in %v", k, got[k], want, got)
		}
	}
}

func TestCodesAreSortedIntoTheClosedList(t *testing.T) {
	var status int
	var body []byte
	p := instead(t, "ap-southeast-1", map[string]func(*http.Request) (int, []byte){"RunInstances": func(*http.Request) (int, []byte) { return status, body }})
	o := fleet.Offer{Cloud: "alibaba", Account: "main", Region: "ap-southeast-1", Zone: "ap-southeast-1a", Type: "ecs.gn6i-c4g1.xlarge", Market: fleet.Spot}
	ask := func(code, word string) {
		t.Helper()
		_, err := p.Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: o, Labels: providertest.Labels("p1")})
		if got := provider.Word(err); got != word || !strings.Contains(err.Error(), code) || strings.Contains(err.Error(), "secret words") {
			t.Errorf("%d %s: got %v (%s), want %s with the code and without the text", status, code, err, got, word)
		}
	}
	for _, c := range []struct {
		status      int
		codes, word string
	}{
		{403, "OperationDenied.NoStock OperationDenied NoInstanceStock Zone.NotOnSale ResourceNotAvailable", "no_capacity"},
		{400, "InvalidSpotPriceLimit.LowerThanPublicPrice", "no_capacity"},
		{403, "QuotaExceed.ElasticQuota QuotaExceed.AfterpayInstance", "quota"},
		{400, "Throttling Throttling.User Throttling.ConcurrentLimitExceeded", "throttled"},
		{403, "Forbidden.RAM Forbbiden.SubUser InvalidSpotAuthorized InvalidPayMethod InvalidAccountStatus.NotEnoughBalance", "denied"},
		{404, "InvalidAccessKeyId.NotFound", "denied"},
		{400, "IdempotentParameterMismatch InvalidInstanceType.ValueNotSupported InvalidInstanceType.ZoneNotSupported MissingParameter ANewCode", "invalid"},
		{503, "ServiceUnavailable", "unavailable"},
		{500, "InternalError ANewCode", "unknown_outcome"}, // it may have been bought: the token is asked again
	} {
		for code := range strings.FieldsSeq(c.codes) {
			status, body = c.status, []byte(`{"Code": "`+code+`", "Message": "secret words"}`)
			ask(code, c.word)
		}
	}
	status, body = http.StatusForbidden, providertest.Sample(t, "alibaba-error-no-stock.json")
	ask("OperationDenied.NoStock", "no_capacity")
}

// A limit in another currency than the account's, or one that the strategy ignores, cannot be sent: none is.
func TestSpotIsAskedForByNameAndWithoutALimit(t *testing.T) {
	var asked []string
	p := instead(t, "ap-southeast-1", map[string]func(*http.Request) (int, []byte){"RunInstances": func(r *http.Request) (int, []byte) {
		v := r.URL.Query()
		asked = append(asked, v.Get("SpotStrategy")+v.Get("SpotPriceLimit"))
		return http.StatusForbidden, []byte(`{"Code": "NoInstanceStock"}`)
	}})
	for _, m := range []fleet.Market{fleet.Spot, fleet.OnDemand} {
		o := fleet.Offer{Region: "ap-southeast-1", Zone: "ap-southeast-1a", Type: "ecs.gn6i-c4g1.xlarge", Market: m}
		if _, err := p.Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: o}); !errors.Is(err, provider.ErrNoCapacity) {
			t.Error(err)
		}
	}
	if !slices.Equal(asked, []string{"SpotAsPriceGo", "NoSpot"}) {
		t.Errorf("asked for %q", asked)
	}
}

func TestAMachinesStatusAndLockAreRead(t *testing.T) {
	for _, c := range []struct {
		row   string
		state provider.State
		why   string
	}{
		{`"Status": "Pending"`, provider.Pending, ""},
		{`"Status": "Starting"`, provider.Pending, ""},
		{`"Status": "Running"`, provider.Running, ""},
		{`"Status": "Running", "OperationLocks": {"LockReason": [{"LockReason": "Recycling"}]}`, provider.Running, "interrupted"},
		{`"Status": "Stopping"`, provider.Ending, ""},
		{`"Status": "Stopped"`, provider.Stopped, "stopped"},
		{`"Status": "Stopped", "OperationLocks": {"LockReason": [{"LockReason": "financial"}]}`, provider.Stopped, "unpaid"},
	} {
		p := instead(t, "ap-southeast-1", map[string]func(*http.Request) (int, []byte){"DescribeInstances": says(
			`{"Instances": {"Instance": [{"InstanceId": "i-1", "CreationTime": "2026-03-01T11:07Z", "SpotStrategy": "SpotWithPriceLimit", ` + c.row + `}]}}`,
		)})
		all, err := p.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %v and %v", c.row, all, err)
		}
		if m := all[0]; m.State != c.state || m.Why != c.why || m.Offer.Market != fleet.Spot || m.Since.Minute() != 7 {
			t.Errorf("%s: got %s %q %s since %s", c.row, m.State, m.Why, m.Offer.Market, m.Since)
		}
	}
}

func TestPricesThatWereReadAreNotAskedForAgain(t *testing.T) {
	asked, throttled := map[string]int{}, true
	p := instead(t, "ap-southeast-1", map[string]func(*http.Request) (int, []byte){"DescribePrice": func(r *http.Request) (int, []byte) {
		v := r.URL.Query()
		if asked[v.Get("InstanceType")]++; throttled && v.Get("InstanceType") == "ecs.gn7i-c8g1.2xlarge" {
			return http.StatusBadRequest, []byte(`{"Code": "Throttling.User"}`)
		}
		return http.StatusNotFound, []byte(`{"Code": "InvalidAction"}`) // an account that may not ask for prices
	}})
	if offers, err := p.Offers(t.Context()); !errors.Is(err, provider.ErrThrottled) || len(offers) > 0 {
		t.Errorf("throttled at the last type: got %d offers and %v", len(offers), err)
	}
	throttled = false
	for range 2 {
		offers, err := p.Offers(t.Context())
		if err != nil || len(offers) != 8 { // two types in two zones on two markets, at the history's prices
			t.Errorf("got %d offers and %v, want 8", len(offers), err)
		}
	}
	if asked["ecs.gn6i-c4g1.xlarge"] != 3 || asked["ecs.gn6v-c10g1.20xlarge"] != 3 || asked["ecs.gn7i-c8g1.2xlarge"] != 4 {
		t.Errorf("asked %v times, want an hour, a month and a year each, and the throttled one once more", asked)
	}
}

func TestWhatLacksForALaunchIsSaidAndNothingIsAsked(t *testing.T) {
	o := fleet.Offer{Region: "ap-southeast-1", Zone: "ap-southeast-1a", Type: "ecs.gn6i-c4g1.xlarge", Market: fleet.Spot}
	whole := alibaba.Settings{
		Regions: []string{"ap-southeast-1"}, KeyID: "k", Secret: "s", Endpoint: "http://127.0.0.1:1", Boot: boot,
		Images: map[string]string{"": "i"}, Groups: map[string]string{"": "g"}, Switches: map[string]string{"ap-southeast-1a": "v"},
	}
	for want, change := range map[string]func(*alibaba.Settings){
		"no image":          func(s *alibaba.Settings) { s.Images = map[string]string{"eu-central-1": "i"} },
		"no security group": func(s *alibaba.Settings) { s.Groups = nil },
		"no VSwitch":        func(s *alibaba.Settings) { s.Switches = map[string]string{"ap-southeast-1b": "v"} },
		"no mirror":         func(s *alibaba.Settings) { s.Boot = provider.Boot{} },
	} {
		s := whole
		change(&s)
		_, err := alibaba.New(s).Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: o})
		if !errors.Is(err, provider.ErrRefusedHere) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := alibaba.New(whole).Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: o}); !errors.Is(err, provider.ErrUnavailable) {
		t.Errorf("with all settings it is asked, and nobody is there: got %v", err)
	}
}

func TestAnyTextIsSignedAsItIsSent(t *testing.T) {
	p := instead(t, "ap-southeast-1", nil)
	o := fleet.Offer{Region: "ap-southeast-1", Zone: "ap-southeast-1a", Type: "ecs.gn6i-c4g1.xlarge", Market: fleet.Spot}
	l := providertest.Labels("p1")
	l.Workload = "训练 a+b~c*d%&=/"
	if m, err := p.Launch(t.Context(), provider.Request{Token: "t", Name: "two words", Offer: o, Labels: l}); err != nil || m.Labels != l {
		t.Errorf("got %+v and %v", m, err)
	}
	all, err := p.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Labels != l {
		t.Errorf("listed %+v and %v, want the labels as they were sent", all, err)
	}
}

func TestATrialOfAPurchaseBuysNothing(t *testing.T) {
	c, err := fake.Open(alibabatest.Market())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(alibabatest.New(c, &fake.Knobs{Now: time.Now}))
	defer srv.Close()
	p := open(srv.URL, &http.Client{Transport: provider.ReadOnly(http.DefaultTransport, alibaba.Reads)}, time.Now).(*alibaba.Alibaba)
	o := fleet.Offer{Region: "ap-southeast-1", Zone: "ap-southeast-1a", Type: "ecs.gn6i-c4g1.xlarge", Market: fleet.OnDemand}
	want := provider.Request{Token: "t", Name: "m", Offer: o, Labels: providertest.Labels("p1")}
	if err := p.Try(t.Context(), want); err != nil {
		t.Errorf("what would be sold: %v", err)
	}
	if _, err := p.Launch(t.Context(), want); !errors.Is(err, provider.ErrRefusedHere) {
		t.Errorf("a purchase got through: %v", err)
	}
	want.Token = strings.Repeat("t", 65)
	if err := p.Try(t.Context(), want); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("a token that is too long: %v", err)
	}
	if all, err := p.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("listed %v, %v", all, err)
	}
}
