package huawei_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/huawei"
	"lowtide/shared/provider/huawei/huaweitest"
	"lowtide/shared/provider/providertest"
)

// account is one in Beijing at the stand-in, which answers some requests ("POST …/cloudservers": by the path's end) with
// other bytes.
type account struct {
	*huawei.Huawei
	by    map[string]answer
	asked []string // of what is answered so
}

type answer struct {
	status int
	body   string
}

func at(t *testing.T, change ...func(*huawei.Settings)) *account {
	t.Helper()
	c, err := fake.Open(huaweitest.Market())
	if err != nil {
		t.Fatal(err)
	}
	ecs := huaweitest.New(c, &fake.Knobs{Now: time.Now})
	a := &account{by: map[string]answer{}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for end, said := range a.by {
			method, path, _ := strings.Cut(end, " ")
			if r.Method == method && strings.HasSuffix(r.URL.Path, path) {
				b, _ := io.ReadAll(r.Body)
				a.asked = append(a.asked, end+" "+string(b))
				w.WriteHeader(said.status)
				fmt.Fprint(w, said.body)
				return
			}
		}
		ecs.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	s := settings(srv.URL, srv.Client(), nil)
	s.Projects = map[string]string{"cn-north-4": huaweitest.Projects["cn-north-4"]}
	for _, f := range change {
		f(&s)
	}
	a.Huawei = huawei.New(s)
	return a
}

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
		out[fmt.Sprint(o.Zone, " ", o.Type, " ", o.Market, " ", o.Term)] = fmt.Sprint(o.Price.Amount.Amount, " ", o.Price.Amount.Currency, "/", o.Price.Per, " stock ", stock, " ", o.GPUs, "x ", o.GPU, " ", o.Memory)
	}
	return out
}

func want(m fleet.Market, price float64) provider.Request {
	return provider.Request{Token: "t1", Name: "m1", Labels: providertest.Labels("p1"), UserData: "A=1\n", Offer: fleet.Offer{
		Cloud: "huawei", Account: "main", Region: "cn-north-4", Zone: "cn-north-4a", Type: "pi2.2xlarge.4", Market: m,
		Price: fleet.Price{Amount: fleet.Money{Amount: decimal.NewFromFloat(price), Currency: fleet.CNY}, Per: fleet.PerInstanceHour},
	}}
}

func TestEveryMarketIsReadByItsUnit(t *testing.T) {
	got := told(t, at(t))
	for k, is := range map[string]string{
		"cn-north-4a pi2.2xlarge.4 on_demand 0s":   "8.28 CNY/instance-hour stock ? 1x T4 16", // what is paid, and no currency named is yuan
		"cn-north-4b pi2.2xlarge.4 spot 0s":        "4.14 CNY/instance-hour stock ? 1x T4 16", // the limit that would be bought with
		"cn-north-4a p2s.16xlarge.8 on_demand 0s":  "163.44 CNY/instance-hour stock ? 8x V100 32",
		"cn-north-4a kai1s.4xlarge.2 on_demand 0s": "6.66 CNY/instance-hour stock ? 2x Ascend 310 8",
		" pi2.2xlarge.4 reserved 730h0m0s":         "3358 CNY/month stock ? 1x T4 16",
		" pi2.2xlarge.4 reserved 8760h0m0s":        "3358 CNY/month stock ? 1x T4 16", // a year's sum, by month
	} {
		if got[k] != is {
			t.Errorf("%q: got %q, want %q in %v", k, got[k], is, got)
		}
	}
	for k := range got {
		if strings.Contains(k, "g6v") || strings.Contains(k, "s6.") || strings.Contains(k, "kai1s.4xlarge.2 spot") {
			t.Errorf("%s is offered: a share of a card, none, or not sold as spot", k)
		}
	}
}

func TestSpotWithoutAConfiguredLimitHasNoPriceAndIsNotOffered(t *testing.T) {
	for k := range told(t, at(t, func(s *huawei.Settings) { s.SpotShare = decimal.Zero })) {
		if strings.Contains(k, "spot") {
			t.Errorf("%s is offered", k)
		}
	}
	a := at(t)
	if _, err := a.Launch(t.Context(), want(fleet.Spot, 0)); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if _, err := a.Launch(t.Context(), want(fleet.Spot, 1)); !errors.Is(err, provider.ErrNoCapacity) { // under the market
		t.Errorf("got %v", err)
	}
}

func TestStockHidesInOneText(t *testing.T) {
	a := at(t)
	a.by["GET /flavors"] = answer{200, `{"flavors": [{"id": "pi2.2xlarge.4", "os_extra_specs": {"info:gpus": "{\"name\": \"NVIDIA T4\", \"memory_mb\": 15360, \"count\": 1}",
		"cond:operation:status": "abandon", "cond:operation:az": "cn-north-4a(sellout),cn-north-4b(promotion),cn-north-4c(abandon)",
		"cond:spot:operation:az": "cn-north-4a(normal),cn-north-4b(normal)"}}]}`}
	a.by["GET /flavor-sell-policies"] = answer{200, `{"sell_policies": [{"id": 1, "flavor_id": "pi2.2xlarge.4", "sell_status": "sellout", "availability_zone_id": "cn-north-4b"}]}`}
	got := told(t, a)
	for k, stock := range map[string]string{
		"cn-north-4a pi2.2xlarge.4 on_demand 0s": "stock 0", "cn-north-4b pi2.2xlarge.4 on_demand 0s": "stock ?",
		"cn-north-4a pi2.2xlarge.4 spot 0s": "stock ?", "cn-north-4b pi2.2xlarge.4 spot 0s": "stock 0",
	} {
		if !strings.Contains(got[k], stock) {
			t.Errorf("%s: got %q, want %s", k, got[k], stock)
		}
	}
	if len(got) != 6 { // and two subscriptions
		t.Errorf("got %v", got)
	}
}

func TestTheVendorsPrintedAnswersAreRead(t *testing.T) {
	a := at(t)
	a.by["POST /on-demand-resources"] = answer{200, string(providertest.Sample(t, "huawei-bss-on-demand-ratings-usd.json"))}
	a.by["POST /subscribe-rate"] = answer{200, string(providertest.Sample(t, "huawei-bss-period-ratings.json"))}
	a.by["GET /flavor-sell-policies"] = answer{200, string(providertest.Sample(t, "huawei-flavor-sell-policies.json"))}
	all, err := a.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[fleet.Market]string{}
	for _, o := range all { // the first question is the one that is answered
		seen[o.Market] += fmt.Sprint(o.Price.Amount, " ")
		if _, known := o.PerHour(); known != (o.Price.Amount.Currency == fleet.USD) {
			t.Errorf("%s: %+v", o, o)
		}
	}
	if !strings.HasPrefix(seen[fleet.OnDemand], "494.94 USD ") || !strings.HasPrefix(seen[fleet.Reserved], "32.20 CNY 2.6833 CNY ") {
		t.Errorf("read %v", seen)
	}
	a = at(t)
	a.by["POST /on-demand-resources"] = answer{200, string(providertest.Sample(t, "huawei-bss-on-demand-ratings.json"))}
	if all, err = a.Offers(t.Context()); err != nil {
		t.Fatal(err)
	}
	prices := ""
	for _, o := range all { // not the sum of both, which stands above
		if o.Market == fleet.OnDemand && o.Zone == "cn-north-4a" {
			prices += fmt.Sprint(o.Price.Amount, " ")
		}
	}
	if prices != "12.52 CNY 3.3000 CNY " {
		t.Errorf("read %q", prices)
	}
	a.by["POST /cloudservers"] = answer{400, string(providertest.Sample(t, "huawei-error-flavor-sold-out.json"))}
	if _, err := a.Launch(t.Context(), want(fleet.OnDemand, 1)); !errors.Is(err, provider.ErrNoCapacity) || !strings.Contains(err.Error(), "Ecs.0018") {
		t.Errorf("got %v", err)
	}
}

func TestOneFlavourWithoutAPriceHidesNoOthers(t *testing.T) {
	a := at(t)
	a.by["GET /flavors"] = answer{200, `{"flavors": [
		{"id": "pi2.2xlarge.4", "os_extra_specs": {"info:gpu:name": "1 * NVIDIA T4 / 1 * 16G", "cond:operation:status": "normal"}},
		{"id": "unpriced.1", "os_extra_specs": {"info:gpu:name": "1 * NVIDIA T4 / 1 * 16G", "cond:operation:status": "normal"}}]}`}
	got := told(t, a)
	if len(got) != 3 || got[" pi2.2xlarge.4 on_demand 0s"] == "" {
		t.Errorf("got %v", got)
	}
}

func TestCodesAreSortedIntoTheClosedList(t *testing.T) {
	a := at(t)
	for _, c := range []struct {
		status      int
		codes, word string
	}{
		{400, "Ecs.0018 Ecs.0044 Ecs.0319 Ecs.0703", "no_capacity"},
		{400, "Ecs.0001", "quota"},
		{400, "Ecs.0003", "denied"},
		{401, "APIGW.0301", "denied"},
		{400, "Ecs.0005 Ecs.0704 Ecs.9999", "invalid"},
		{429, "APIGW.0308", "throttled"},
		{500, "Ecs.9999", "unknown_outcome"}, // it may have been bought: the token is asked again
		{400, "Ecs.0702", "unavailable"},
	} {
		for code := range strings.FieldsSeq(c.codes) {
			body := `{"error": {"code": "` + code + `", "message": "secret words"}}`
			if !strings.HasPrefix(code, "Ecs") {
				body = `{"error_code": "` + code + `", "error_msg": "secret words"}`
			}
			a.by["POST /cloudservers"] = answer{c.status, body}
			_, err := a.Launch(t.Context(), want(fleet.OnDemand, 1))
			if got := provider.Word(err); got != c.word || !strings.Contains(err.Error(), code) || strings.Contains(err.Error(), "secret words") {
				t.Errorf("%d %s: got %v (%s), want %s", c.status, code, err, got, c.word)
			}
		}
	}
}

func TestAJobThatFailedIsALackOfCapacityAndLeavesNothing(t *testing.T) {
	a := at(t)
	a.by["POST /cloudservers"] = answer{200, `{"job_id": "j1", "serverIds": ["s-1"]}`}
	a.by["GET /jobs/j1"] = answer{200, `{"status": "FAIL", "error_code": "Common.0001", "entities": {"sub_jobs": [{"status": "FAIL", "error_code": "Ecs.0018"}]}}`}
	a.by["GET /cloudservers/s-1"] = answer{200, `{"server": {"id": "s-1", "status": "ERROR"}}`}
	a.by["POST /cloudservers/delete"] = answer{200, `{"job_id": "j2"}`}
	_, err := a.Launch(t.Context(), want(fleet.OnDemand, 1))
	all := strings.Join(a.asked, "\n")
	if !errors.Is(err, provider.ErrNoCapacity) || !strings.Contains(all, `"delete_publicip":true,"delete_volume":true,"servers":[{"id":"s-1"}]`) {
		t.Errorf("got %v, asked %s", err, all)
	}
}

func TestAMachineIsReadWithItsMarketAndWhatWasPlanned(t *testing.T) {
	for _, c := range []struct {
		row    string
		state  provider.State
		market fleet.Market
		price  string
	}{
		{`"status": "BUILD", "metadata": {"charging_mode": "2"}, "tags": ["lowtide-price=4.14-CNY"]`, provider.Pending, fleet.Spot, "4.1400 CNY"},
		{`"status": "ACTIVE", "metadata": {"charging_mode": "0"}, "tags": ["lowtide-price=much"]`, provider.Running, fleet.OnDemand, ""},
		{`"status": "ACTIVE", "OS-EXT-STS:task_state": "deleting"`, provider.Ending, fleet.OnDemand, ""},
		{`"status": "SHUTOFF", "metadata": {"charging_mode": "1"}`, provider.Stopped, fleet.Reserved, ""},
		{`"status": "ERROR"`, provider.Stopped, fleet.OnDemand, ""},
	} {
		a := at(t)
		a.by["GET /detail"] = answer{200, `{"count": 1, "servers": [{"id": "s-1", "created": "2026-03-01T00:00:00Z", "flavor": {"id": "x"}, ` + c.row + `}]}`}
		all, err := a.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: got %+v and %v", c.row, all, err)
		}
		price := ""
		if all[0].Offer.Price.Amount.Amount.Sign() > 0 {
			price = all[0].Offer.Price.Amount.String()
		}
		if all[0].State != c.state || all[0].Offer.Market != c.market || price != c.price || all[0].Since.IsZero() {
			t.Errorf("%s: read as %+v", c.row, all[0])
		}
	}
}

func TestAscend910BIsNoECSMachine(t *testing.T) {
	a := at(t)
	w := want(fleet.OnDemand, 40)
	for _, kind := range []string{"snt9b.8", "modelarts.bm.npu.arm.8snt9b3"} {
		w.Offer.Type = kind
		if _, err := a.Launch(t.Context(), w); !errors.Is(err, provider.ErrRefusedHere) || !strings.Contains(err.Error(), "ModelArts") {
			t.Errorf("%s: got %v", kind, err)
		}
	}
}
