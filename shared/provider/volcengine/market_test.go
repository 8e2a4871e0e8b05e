package volcengine_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
	"lowtide/shared/provider/volcengine"
	"lowtide/shared/provider/volcengine/volcenginetest"
)

// instead is an account in Beijing, and the stand-in with other answers to some actions: a status and a body.
func instead(t *testing.T, by map[string]func(*http.Request) (int, string), change ...func(*volcengine.Settings)) (provider.Provider, *fake.Cloud) {
	t.Helper()
	c, err := fake.Open(volcenginetest.Market())
	if err != nil {
		t.Fatal(err)
	}
	ecs := volcenginetest.New(c, &fake.Knobs{Now: time.Now})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f, ok := by[r.URL.Query().Get("Action")]; ok {
			status, body := f(r)
			w.WriteHeader(status)
			fmt.Fprint(w, body)
			return
		}
		ecs.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	s := volcengine.Settings{
		Regions: []string{"cn-beijing"}, KeyID: volcenginetest.KeyID, Secret: volcenginetest.Secret, Endpoint: srv.URL,
		Config: volcenginetest.Config, Item: volcenginetest.Item,
		Images: map[string]string{"": volcenginetest.Image}, Groups: map[string]string{"": volcenginetest.Group}, Subnets: volcenginetest.Subnets,
		Boot: boot, Client: srv.Client(),
	}
	for _, f := range change {
		f(&s)
	}
	return volcengine.New(s), c
}

func says(status int, body string) func(*http.Request) (int, string) {
	return func(*http.Request) (int, string) { return status, body }
}

// told are the offers in one line each, by zone, type, market and term.
func told(t *testing.T, p provider.Provider) map[string]string {
	t.Helper()
	all, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, o := range all {
		stock := "?"
		if n, known := o.Stock.Get(); known {
			stock = fmt.Sprint(n)
		}
		out[fmt.Sprint(o.Zone, " ", o.Type, " ", o.Market, " ", o.Term)] = fmt.Sprint(o.Price.Amount.Amount, " ", o.Price.Amount.Currency, "/", o.Price.Per, " stock ", stock, " ", o.GPUs, "x ", o.GPU, " ", o.Form, " ", o.Memory)
		if _, known := o.PerHour(); known && o.Price.Amount.Currency == fleet.CNY {
			t.Errorf("%s: yuan are taken for dollars: %+v", o, o.Hourly)
		}
	}
	return out
}

func TestEveryMarketIsReadByItsUnit(t *testing.T) {
	p, _ := instead(t, nil)
	got := told(t, p)
	for k, want := range map[string]string{
		"cn-beijing-b ecs.gni2.3xlarge spot 0s":       "3.61 CNY/instance-hour stock ? 1x A10  24", // the newest, from the first page
		"cn-beijing-a ecs.pni2.28xlarge on_demand 0s": "238.77 CNY/instance-hour stock ? 8x A100 SXM4 80",
		" ecs.g1ve.2xlarge reserved 730h0m0s":         "4303.35 CNY/month stock ? 1x V100  32",
		" ecs.g1ve.2xlarge reserved 8760h0m0s":        "4303.35 CNY/month stock ? 1x V100  32", // a year's sum, by month
	} {
		if got[k] != want {
			t.Errorf("%q: got %q, want %q in %v", k, got[k], want, got)
		}
	}
	for k := range got {
		if strings.Contains(k, "vgn2i") || strings.Contains(k, "g3i") || strings.Contains(k, "g1ve.2xlarge spot") {
			t.Errorf("%s is offered: a share of a GPU, none, or not sold as spot", k)
		}
	}
}

func TestWithoutTheAccountsCodesNoPriceIsAskedOrGuessed(t *testing.T) {
	p, _ := instead(t, map[string]func(*http.Request) (int, string){
		"QueryPriceForPayAsYouGo": func(*http.Request) (int, string) { t.Error("asked"); return 400, "" },
	}, func(s *volcengine.Settings) { s.Config = "" })
	got := told(t, p)
	for k := range got {
		if !strings.Contains(k, " spot ") {
			t.Errorf("%s is offered", k)
		}
	}
	if len(got) != 4 {
		t.Errorf("got %v, want two types in two zones", got)
	}
}

func TestACodeThatTheAccountDoesNotKnowIsNoPriceAndARefusalIsAnError(t *testing.T) {
	p, _ := instead(t, nil, func(s *volcengine.Settings) { s.Config = "wrong" })
	if got := told(t, p); len(got) != 4 {
		t.Errorf("got %v, want spot alone", got)
	}
	p, _ = instead(t, map[string]func(*http.Request) (int, string){"QueryPriceForPayAsYouGo": says(403, `{"ResponseMetadata": {"Error": {"Code": "AccessDenied"}}}`)})
	if _, err := p.Offers(t.Context()); !errors.Is(err, provider.ErrDenied) {
		t.Errorf("got %v", err)
	}
}

func TestTheVendorsShapesAreRead(t *testing.T) {
	sample := func(name string) func(*http.Request) (int, string) {
		return says(http.StatusOK, string(providertest.Sample(t, name)))
	}
	p, _ := instead(t, map[string]func(*http.Request) (int, string){
		"DescribeAvailableResource": sample("volc-DescribeAvailableResource.json"),
		"DescribeSpotPriceHistory":  sample("volc-DescribeSpotPriceHistory.json"),
		"QueryPriceForPayAsYouGo":   sample("volc-QueryPriceForPayAsYouGo.json"),
		"QueryPriceForSubscription": says(400, `{"ResponseMetadata": {"Error": {"Code": "InvalidParameter"}}}`),
		"RunInstances":              says(400, string(providertest.Sample(t, "volc-error.json"))),
	})
	got := told(t, p)
	for k, want := range map[string]string{
		"cn-beijing-a ecs.gni2.3xlarge spot 0s":       "3.61 CNY/instance-hour stock ? 1x A10  24",
		"cn-beijing-a ecs.gni2.3xlarge on_demand 0s":  "18 CNY/instance-hour stock ? 1x A10  24",
		"cn-beijing-a ecs.pni2.28xlarge on_demand 0s": "18 CNY/instance-hour stock 0 8x A100 SXM4 80",
	} {
		if got[k] != want {
			t.Errorf("%q: got %q, want %q in %v", k, got[k], want, got)
		}
	}
	if len(got) != 3 {
		t.Errorf("got %v", got)
	}
	o := fleet.Offer{Region: "cn-beijing", Zone: "cn-beijing-a", Type: "ecs.gni2.3xlarge", Market: fleet.Spot}
	if _, err := p.Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: o}); !errors.Is(err, provider.ErrNoCapacity) {
		t.Errorf("got %v", err)
	}
}

func TestCodesAreSortedIntoTheClosedList(t *testing.T) {
	var status int
	var code string
	p, _ := instead(t, map[string]func(*http.Request) (int, string){"RunInstances": func(*http.Request) (int, string) {
		return status, `{"ResponseMetadata": {"Error": {"Code": "` + code + `", "Message": "secret words"}}}`
	}})
	o := fleet.Offer{Region: "cn-beijing", Zone: "cn-beijing-a", Type: "ecs.gni2.3xlarge", Market: fleet.Spot}
	for _, c := range []struct {
		status      int
		codes, word string
	}{
		{400, "OperationDenied.NoStock ResourceSoldOut InsufficientResource.Zone InvalidInstanceType.NotSupported", "no_capacity"},
		{400, "InsufficientBalance AccessDenied AccountFrozen InvalidAccessKey", "denied"}, // a want of money is none of machines
		{400, "LimitExceeded.MaximumInstances QuotaExceeded", "quota"},
		{400, "AccountFlowLimitExceeded Throttling RequestLimitExceeded", "throttled"},
		{400, "InvalidParameter MissingParameter ANewCode", "invalid"},
		{503, "ServiceUnavailable", "unavailable"},
		{500, "InternalError ANewCode", "unknown_outcome"}, // it may have been bought: the token is asked again
		{200, "ANewCode", "unknown_outcome"},               // a refusal inside a success
	} {
		for code = range strings.FieldsSeq(c.codes) {
			status = c.status
			_, err := p.Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: o, Labels: providertest.Labels("p1")})
			if got := provider.Word(err); got != c.word || !strings.Contains(err.Error(), code) || strings.Contains(err.Error(), "secret words") {
				t.Errorf("%d %s: got %v (%s), want %s with the code and without the text", status, code, err, got, c.word)
			}
		}
	}
}

func TestA200ThatHoldsARefusalIsNoEnd(t *testing.T) {
	p, _ := instead(t, map[string]func(*http.Request) (int, string){
		"DescribeInstances": says(200, `{"Result": {"Instances": [{"InstanceId": "i-1"}], "NextToken": ""}}`),
		"DeleteInstances":   says(200, `{"Result": {"OperationDetails": [{"InstanceId": "i-1", "Error": {"Code": "InvalidInstance.InvalidInstanceStatus"}}]}}`),
	})
	if err := p.End(t.Context(), "i-1"); !errors.Is(err, provider.ErrUnavailable) {
		t.Errorf("got %v, want it to be tried again", err)
	}
}

func TestAMachineIsReadWithWhatWasPlannedToBePaid(t *testing.T) {
	for _, c := range []struct {
		row    string
		state  provider.State
		market fleet.Market
		price  string
	}{
		{`"Status": "CREATING", "SpotStrategy": "SpotAsPriceGo"`, provider.Pending, fleet.Spot, ""},
		{`"Status": "RUNNING", "SpotStrategy": "SpotWithPriceLimit", "Tags": [{"Key": "lowtide-price", "Value": "3.5-CNY"}]`, provider.Running, fleet.Spot, "3.5000 CNY"},
		{`"Status": "STOPPED", "SpotStrategy": "NoSpot", "Tags": [{"Key": "lowtide-price", "Value": "much"}]`, provider.Stopped, fleet.OnDemand, ""},
		{`"Status": "DELETING", "SpotStrategy": "NoSpot"`, provider.Ending, fleet.OnDemand, ""},
		{`"Status": "ERROR"`, provider.Stopped, fleet.OnDemand, ""},
		{`"Status": "ANEWONE", "InstanceChargeType": "PrePaid"`, provider.Running, fleet.Reserved, ""},
	} {
		p, _ := instead(t, map[string]func(*http.Request) (int, string){"DescribeInstances": says(200, `{"Result": {"Instances": [{"InstanceId": "i-1",
			"InstanceTypeId": "ecs.gni2.3xlarge", "ZoneId": "cn-beijing-a", "CreatedAt": "2026-03-01T08:00+08:00", `+c.row+`}]}}`)})
		all, err := p.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: got %+v and %v", c.row, all, err)
		}
		price := ""
		if all[0].Offer.Price.Amount.Amount.Sign() > 0 {
			price = all[0].Offer.Price.Amount.String()
		}
		if all[0].State != c.state || all[0].Offer.Market != c.market || price != c.price || !all[0].Since.Equal(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)) {
			t.Errorf("%s: read as %+v", c.row, all[0])
		}
	}
}

func TestAnAddressGoesWithItsMachineAndASubscriptionIsNotBought(t *testing.T) {
	var asked string
	p, _ := instead(t, map[string]func(*http.Request) (int, string){"RunInstances": func(r *http.Request) (int, string) {
		asked = r.URL.RawQuery
		return 200, `{"Result": {"InstanceIds": ["i-1"]}}`
	}}, func(s *volcengine.Settings) { s.Bandwidth = 50 })
	o := fleet.Offer{
		Region: "cn-beijing", Zone: "cn-beijing-a", Type: "ecs.gni2.3xlarge", Market: fleet.OnDemand,
		Price: fleet.Price{Amount: fleet.Money{Amount: fleet.Dollars(3.5).Amount, Currency: fleet.CNY}, Per: fleet.PerInstanceHour},
	}
	m, err := p.Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: o})
	if err != nil || m.Offer.Pool() != o.Pool() || m.State != provider.Pending {
		t.Errorf("got %+v and %v", m, err)
	}
	for _, part := range []string{"EipAddress.ReleaseWithInstance=true", "Volumes.1.DeleteWithInstance=true", "SpotStrategy=NoSpot", "Value=3.5-CNY"} {
		if !strings.Contains(asked, part) {
			t.Errorf("%s is not in %s", part, asked)
		}
	}
	o.Market, o.Term = fleet.Reserved, 730*time.Hour
	if _, err := p.Launch(t.Context(), provider.Request{Token: "t", Offer: o}); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestATrialOfAPurchaseBuysNothing(t *testing.T) {
	adapter, _ := instead(t, nil, func(s *volcengine.Settings) {
		s.Client = &http.Client{Transport: provider.ReadOnly(http.DefaultTransport, volcengine.Reads)}
	})
	p := adapter.(*volcengine.Volcengine)
	o := fleet.Offer{Region: "cn-beijing", Zone: "cn-beijing-a", Type: "ecs.gni2.3xlarge", Market: fleet.OnDemand}
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
