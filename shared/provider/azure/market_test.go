package azure_test

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/azure"
	"lowtide/shared/provider/azure/azuretest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// account is one in eastus at the stand-in, which answers some requests ("PUT /virtualMachines/": by method and a part of
// the path) with other bytes.
type account struct {
	*azure.Azure
	server *azuretest.Server
	by     map[string]answer

	mu    sync.Mutex
	asked []string
}

type answer struct {
	status int
	body   string
}

func at(t *testing.T, change ...func(*azure.Settings)) *account {
	t.Helper()
	c, err := fake.Open(azuretest.Market())
	if err != nil {
		t.Fatal(err)
	}
	a := &account{server: azuretest.New(c, &fake.Knobs{}), by: map[string]answer{}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for key, said := range a.by {
			method, part, _ := strings.Cut(key, " ")
			if r.Method == method && strings.Contains(r.URL.Path, part) {
				b, _ := io.ReadAll(r.Body)
				a.mu.Lock()
				a.asked = append(a.asked, r.Method+" "+r.URL.Path+" "+string(b))
				a.mu.Unlock()
				w.WriteHeader(said.status)
				fmt.Fprint(w, said.body)
				return
			}
		}
		a.server.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	s := settings(srv.URL, srv.Client(), nil)
	s.Regions = []string{"eastus"}
	for _, f := range change {
		f(&s)
	}
	a.Azure = azure.New(s)
	return a
}

// public is an account that has none.
func public(s *azure.Settings) { s.Subscription, s.Tenant, s.ClientID, s.Secret = "", "", "", "" }

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
		key := fmt.Sprint(o.Zone, " ", o.Type, " ", o.Market, " ", o.Term)
		if out[key] != "" {
			t.Errorf("%s is offered twice", key)
		}
		out[key] = fmt.Sprint(o.Price.Amount.Amount.Round(4), " ", o.Price.Amount.Currency, "/", o.Price.Per, " stock ", stock, " ", o.GPUs, "x ", o.GPU, " ", o.Form, " ", o.Memory)
	}
	return out
}

func want(m fleet.Market) provider.Request {
	return provider.Request{Token: "t1", Name: "m1", Labels: providertest.Labels("p1"), UserData: "A=1\n", Offer: fleet.Offer{
		Cloud: "azure", Account: "main", Region: "eastus", Zone: "eastus-2", Type: "Standard_NC24ads_A100_v4", Market: m,
		Price: fleet.Price{Amount: fleet.Dollars(0.88), Per: fleet.PerInstanceHour},
	}}
}

func TestEveryMarketIsReadByItsUnitInEveryZone(t *testing.T) {
	got := told(t, at(t))
	for k, is := range map[string]string{
		"eastus-1 Standard_NC24ads_A100_v4 on_demand 0s":             "3.673 USD/instance-hour stock ? 1x A100 PCIe 80",
		"eastus-2 Standard_NC24ads_A100_v4 spot 0s":                  "0.88 USD/instance-hour stock ? 1x A100 PCIe 80", // a region's price in each of its zones
		"eastus-2 Standard_ND96isr_H100_v5 spot 0s":                  "39.3 USD/instance-hour stock ? 8x H100 SXM5 80",
		" Standard_NC24ads_A100_v4 reserved 8760h0m0s":               "1608.774 USD/month stock ? 1x A100 PCIe 80", // the whole term, though the unit says an hour
		" Standard_NC24ads_A100_v4 reserved 26280h0m0s":              "1072.516 USD/month stock ? 1x A100 PCIe 80",
		" Standard_NC64as_T4_v3 on_demand 0s":                        "4.352 USD/instance-hour stock 0 4x T4  16", // not for this subscription
		"eastus-1 Standard_NC128ds_xl_RTXPRO6000BSE_v6 on_demand 0s": "6.38 USD/instance-hour stock ? 1x   0",     // an unknown family has no model
	} {
		if got[k] != is {
			t.Errorf("%q: got %q, want %q in %v", k, got[k], is, got)
		}
	}
	for k := range got {
		if strings.Contains(k, "NV6ads") || strings.Contains(k, "D4s") || strings.Contains(k, "NC16as_T4_v3 spot") {
			t.Errorf("%s is offered: a sixth of a GPU, none, or not sold as spot", k)
		}
	}
}

func TestPricesAreReadWithoutAnAccountAndNothingIsBoughtThen(t *testing.T) {
	a := at(t, public)
	got := told(t, a)
	if got[" Standard_NC24ads_A100_v4 spot 0s"] != "0.88 USD/instance-hour stock ? 1x A100 PCIe 80" {
		t.Errorf("got %v", got)
	}
	for k := range got {
		if strings.Contains(k, "RTXPRO") || strings.Contains(k, "NV6ads") {
			t.Errorf("%s is offered: how many GPUs it has, nobody told", k)
		}
	}
	if _, err := a.Launch(t.Context(), want(fleet.Spot)); !errors.Is(err, provider.ErrDenied) {
		t.Errorf("got %v", err)
	}
	if _, err := a.List(t.Context()); !errors.Is(err, provider.ErrDenied) {
		t.Errorf("got %v", err)
	}
}

// retail is a page of rows, each of which is of a size with GPUs.
func retail(size string, rows ...map[string]any) answer {
	for _, r := range rows {
		for k, v := range map[string]any{"armSkuName": size, "currencyCode": "USD", "unitOfMeasure": "1 Hour", "tierMinimumUnits": 0.0} {
			if _, ok := r[k]; !ok {
				r[k] = v
			}
		}
	}
	b, err := json.Marshal(map[string]any{"Items": rows, "NextPageLink": nil})
	if err != nil {
		panic(err)
	}
	return answer{200, string(b)}
}

// All rows of one recorded size: four of thirteen are wanted.
func TestFourOfTheThirteenRecordedRowsAreWanted(t *testing.T) {
	_, text, _ := strings.Cut(string(providertest.Sample(t, "azure-retail-rows-one-sku.tsv")), "\n")
	var rows []map[string]any
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		f := strings.Split(line, "\t")
		if i == 0 {
			continue
		}
		var price float64
		if _, err := fmt.Sscan(f[4], &price); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, map[string]any{"productName": f[0], "skuName": f[1], "type": f[2], "reservationTerm": f[3], "retailPrice": price})
	}
	const size = "Standard_NC24ads_A100_v4" // the rows are those of a size without a GPU
	a := at(t, public)
	a.by["GET /api/retail/prices"] = retail(size, rows...)
	got := told(t, a)
	for k, is := range map[string]string{
		" on_demand 0s": "0.673 USD/instance-hour", " spot 0s": "0.6057 USD/instance-hour", " reserved 8760h0m0s": "289.8333 USD/month", " reserved 26280h0m0s": "186.6944 USD/month",
	} {
		if !strings.HasPrefix(got[" "+size+k], is) {
			t.Errorf("%s: got %q, want %s", k, got[" "+size+k], is)
		}
	}
	if len(rows) != 13 || len(got) != 4 {
		t.Errorf("of %d rows, %d are offers: %v", len(rows), len(got), got)
	}
}

func TestTheRecordedPageIsReadAndPlaceholdersAreNoPrices(t *testing.T) {
	a := at(t, public)
	page := strings.ReplaceAll(string(providertest.Sample(t, "azure-retail-prices-page.json")), "Standard_B16als_v2", "Standard_NC24ads_A100_v4")
	a.by["GET /api/retail/prices"] = answer{200, page}
	got := told(t, a)
	if len(got) != 2 || !strings.HasPrefix(got[" Standard_NC24ads_A100_v4 on_demand 0s"], "0.673 ") || !strings.HasPrefix(got[" Standard_NC24ads_A100_v4 reserved 8760h0m0s"], "289.8333 ") {
		t.Errorf("got %v", got)
	}
	a = at(t, public)
	row := func(product, sku string, price float64) map[string]any {
		return map[string]any{"productName": product, "skuName": sku, "type": "Consumption", "retailPrice": price}
	}
	const p = "NCads A100 v4 Series"
	a.by["GET /api/retail/prices"] = retail(
		"Standard_NC24ads_A100_v4", row(p+" Windows", "NC24ads A100 v4", 4.777), row(p, "NC24ads A100 v4", 3.673), row(p, "NC24ads A100 v4 Spot", 0.88),
		row(p, "NC24ads A100 v4 Low Priority", 0.735), row(p, "NC24ads A100 v4", 0), row(p+" Dedicated Host", "NC24ads A100 v4", 9),
	)
	got = told(t, a)
	if len(got) != 2 || !strings.HasPrefix(got[" Standard_NC24ads_A100_v4 on_demand 0s"], "3.673 ") || !strings.HasPrefix(got[" Standard_NC24ads_A100_v4 spot 0s"], "0.88 ") {
		t.Errorf("got %v", got)
	}
}

func TestRowsThatStayAmbiguousAreNoPrice(t *testing.T) {
	a := at(t, public)
	row := func(price float64) map[string]any {
		return map[string]any{"productName": "NC Series", "skuName": "NC24ads A100 v4", "type": "Consumption", "retailPrice": price}
	}
	a.by["GET /api/retail/prices"] = retail("Standard_NC24ads_A100_v4", row(3.673), row(1.1), row(3.673))
	if got := told(t, a); len(got) != 0 {
		t.Errorf("picked %v", got)
	}
	a = at(t, public)
	a.by["GET /api/retail/prices"] = retail("Standard_NC24ads_A100_v4", row(3.673), row(3.673))
	if got := told(t, a); len(got) != 1 {
		t.Errorf("twice the same: %v", got)
	}
}

// The sizes of two public catalogues: each is known, or a share of a GPU, or of a family that nobody knows.
func TestTheCataloguesSizesAreKnown(t *testing.T) {
	known := map[string]string{
		"Standard_NC12s_v3": "2x V100 PCIe 16", "Standard_NC24rs_v3": "4x V100 PCIe 16", "Standard_ND40rs_v2": "8x V100 SXM2 32", "Standard_NC16as_T4_v3": "1x T4  16",
		"Standard_NC64as_T4_v3": "4x T4  16", "Standard_NC96ads_A100_v4": "4x A100 PCIe 80", "Standard_ND96asr_v4": "8x A100 SXM4 40", "Standard_ND96asr_A100_v4": "8x A100 SXM4 40",
		"Standard_ND96amsr_A100_v4": "8x A100 SXM4 80", "Standard_ND96ams_A100_v4": "8x A100 SXM4 80", "Standard_NC80adis_H100_v5": "2x H100 NVL 94", "Standard_NCC40ads_H100_v5": "1x H100 NVL 94",
		"Standard_ND96isr_H100_v5": "8x H100 SXM5 80", "Standard_ND96is_flex_H100_v5": "8x H100 SXM5 80", "Standard_ND96isr_H200_v5": "8x H200  141", "Standard_ND96isr_MI300X_v5": "8x MI300X  192",
		"Standard_ND128isr_NDR_GB200_v6": "4x GB200  0", "Standard_NV36ads_A10_v5": "1x A10  24", "Standard_NV72ads_A10_v5": "2x A10  24", "Standard_NV6ads_A10_v5": "", "Standard_NV18ads_A10_v5": "",
	}
	sizes := map[string]bool{}
	for _, file := range []string{"azure-ondemand-retail-2026-06-18.csv", "azure-skypilot-catalog-v6.csv"} {
		_, text, _ := strings.Cut(string(providertest.Sample(t, file)), "\n")
		all, err := csv.NewReader(strings.NewReader(text)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all[1:] {
			sizes[r[0]] = true
		}
	}
	for size := range sizes {
		a := at(t, public)
		a.by["GET /api/retail/prices"] = retail(size, map[string]any{"productName": "P", "skuName": "S", "type": "Consumption", "retailPrice": 1})
		got := told(t, a)[" "+size+" on_demand 0s"]
		unknown := strings.Contains(size, "RTXPRO6000") || strings.Contains(size, "Promo") || strings.Contains(size, "A10_v4") || strings.Contains(size, "ND40s_v3") || strings.Contains(size, "NV16as")
		if is, listed := known[size]; listed && !strings.HasSuffix(got, strings.TrimSpace(is)) || listed && is == "" && got != "" || unknown && got != "" {
			t.Errorf("%s: got %q, want %q", size, got, is)
		}
		if got == "" && !unknown && known[size] == "" && !strings.Contains(size, "NV") {
			t.Errorf("%s is of no known family", size)
		}
	}
}

func TestTheVendorsErrorsAreOfTheClosedList(t *testing.T) {
	var all []struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	raw := providertest.Sample(t, "azure-errors.json")
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	var bodies []json.RawMessage
	if err := json.Unmarshal(raw, &bodies); err != nil {
		t.Fatal(err)
	}
	words := map[string]string{"OperationNotAllowed": "quota"}
	for i, e := range all {
		word := words[e.Error.Code]
		if word == "" {
			word = "no_capacity"
		}
		a := at(t)
		a.by["PUT /virtualMachines/"] = answer{409, string(bodies[i])}
		_, err := a.Launch(t.Context(), want(fleet.Spot))
		if provider.Word(err) != word || !strings.Contains(err.Error(), e.Error.Code) || strings.Contains(err.Error(), "aka.ms") {
			t.Errorf("%s: got %v, want %s", e.Error.Code, err, word)
		}
	}
	for _, c := range []struct {
		status           int
		code, text, word string
	}{
		{409, "OperationNotAllowed", "exceeding approved Standard NCADS_A100_v4 Family Cores quota. Current Limit: 0", "quota"},
		{409, "OperationNotAllowed", "The disk is in use", "invalid"},
		{429, "OperationNotAllowed", "Too many requests", "throttled"},
		{403, "RequestDisallowedByPolicy", "", "denied"},
		{404, "ResourceGroupNotFound", "", "invalid"},
		{500, "InternalServerError", "", "unknown_outcome"}, // it may have been made: the name is asked again
		{409, "AnotherOperationInProgress", "", "unavailable"},
	} {
		a := at(t)
		a.by["PUT /virtualMachines/"] = answer{c.status, `{"error": {"code": "` + c.code + `", "message": "` + c.text + `"}}`}
		if _, err := a.Launch(t.Context(), want(fleet.OnDemand)); provider.Word(err) != c.word {
			t.Errorf("%d %s %q: got %v, want %s", c.status, c.code, c.text, err, c.word)
		}
	}
}

func TestALaunchThatFailedLeavesNothing(t *testing.T) {
	a := at(t)
	const failed = `{"id": "/subscriptions/s/resourceGroups/gpus/providers/Microsoft.Compute/virtualMachines/v", "location": "eastus", "tags": {"lowtide-install": "i"},
		"properties": {"provisioningState": "Failed"}}`
	a.by["PUT /virtualMachines/"] = answer{201, failed}
	a.by["GET /virtualMachines/"] = answer{200, failed}
	a.by["DELETE /"] = answer{202, ``}
	_, err := a.Launch(t.Context(), want(fleet.Spot))
	if !errors.Is(err, provider.ErrNoCapacity) {
		t.Errorf("got %v", err)
	}
	all := strings.Join(a.asked, "\n")
	for _, part := range []string{"/virtualMachines/lowtide-", "/networkInterfaces/lowtide-", "/publicIPAddresses/lowtide-", "/disks/lowtide-"} {
		if !strings.Contains(all, "providers/Microsoft.") || !strings.Contains(all[strings.Index(all, "DELETE"):], part) {
			t.Errorf("no deletion of %s in\n%s", part, all)
		}
	}
}

func TestWhatIsOrderedGoesWithItsMachineAndSpotIsSpot(t *testing.T) {
	a := at(t)
	a.by["PUT /virtualMachines/"] = answer{500, ``}
	for market, parts := range map[fleet.Market][]string{
		fleet.Spot:     {`"priority":"Spot"`, `"evictionPolicy":"Delete"`, `"maxPrice":-1`, `"zones":["2"]`},
		fleet.OnDemand: {`"deleteOption":"Delete","diskSizeGB":100`, `"properties":{"primary":true,"deleteOption":"Delete"`, `"properties":{"deleteOption":"Delete"}`},
	} {
		if _, err := a.Launch(t.Context(), want(market)); !errors.Is(err, provider.ErrUnknown) {
			t.Errorf("got %v", err)
		}
		last := a.asked[len(a.asked)-1]
		for _, part := range parts {
			if !strings.Contains(last, part) {
				t.Errorf("%s: %s is not in %s", market, part, last)
			}
		}
		if market == fleet.OnDemand && (strings.Contains(last, "priority") || strings.Contains(last, "billingProfile")) {
			t.Errorf("on demand is ordered as %s", last)
		}
	}
	w := want(fleet.Reserved)
	if _, err := a.Launch(t.Context(), w); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("a reservation is bought by the hour: %v", err)
	}
	w = want(fleet.Spot)
	if w.Offer.Zone = "westeurope-1"; provider.Word(func() error { _, err := a.Launch(t.Context(), w); return err }()) != "invalid" {
		t.Error("another region's zone is taken")
	}
}

// The vendor promised to delete what it takes back, and left machines deallocated for hours.
func TestAMachineThatWasTakenBackAndLingersIsStopped(t *testing.T) {
	a := at(t)
	m, err := a.Launch(t.Context(), want(fleet.Spot))
	if err != nil {
		t.Fatal(err)
	}
	for power, is := range map[string][2]string{
		"running": {"running", ""}, "deallocated": {"stopped", "interrupted"}, "stopped": {"stopped", "stopped"}, "starting": {"pending", ""},
	} {
		a.server.SetPower(m.ID, power)
		all, err := a.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("got %+v and %v", all, err)
		}
		if got := [2]string{string(all[0].State), all[0].Why}; got != is && !(power == "running" && all[0].State == provider.Pending) {
			t.Errorf("%s: got %v, want %v", power, got, is)
		}
	}
	if err := a.End(t.Context(), m.ID); err != nil {
		t.Error(err)
	}
}

// A link to the next page names a host: nothing is sent there, least of all a token.
func TestALinkToTheNextPageLeadsNowhereElse(t *testing.T) {
	a := at(t) // the stand-in's links name another host
	if _, err := a.Offers(t.Context()); err != nil {
		t.Error(err)
	}
	a.by["GET /skus"] = answer{200, `{"value": [], "nextLink": "::"}`}
	if _, err := a.Offers(t.Context()); !errors.Is(err, provider.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestATokenIsAskedForOnceAndRenewedInTime(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	a := at(t, func(s *azure.Settings) { s.Now = func() time.Time { return now } })
	a.by["POST /oauth2/v2.0/token"] = answer{200, `{"access_token": "eyJexample.token.0123456789", "expires_in": 3599}`}
	logins := func() (n int) {
		for _, x := range a.asked {
			if strings.Contains(x, "/token") {
				n++
			}
		}
		return n
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if _, err := a.List(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if logins() != 1 {
		t.Errorf("%d logins of five callers", logins())
	}
	now = now.Add(56 * time.Minute)
	if _, err := a.List(t.Context()); err != nil || logins() != 2 {
		t.Errorf("%v, %d logins after most of an hour", err, logins())
	}
	a.by["POST /oauth2/v2.0/token"] = answer{401, `{"error": "invalid_client"}`}
	now = now.Add(time.Hour)
	if _, err := a.List(t.Context()); !errors.Is(err, provider.ErrDenied) {
		t.Errorf("got %v", err)
	}
}

func TestPricesAndSizesAreKeptForAWhile(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	a := at(t, func(s *azure.Settings) { s.Keep, s.Now = 30*time.Minute, func() time.Time { return now } })
	first := told(t, a)
	a.by["GET /api/retail/prices"], a.by["GET /skus"] = answer{503, ``}, answer{503, ``}
	now = now.Add(29 * time.Minute)
	if again := told(t, a); len(again) != len(first) || len(first) == 0 {
		t.Errorf("%d offers, %d before", len(again), len(first))
	}
	now = now.Add(2 * time.Minute)
	if all, err := a.Offers(t.Context()); !errors.Is(err, provider.ErrUnavailable) || len(all) > 0 {
		t.Errorf("half an hour later: %d offers and %v", len(all), err)
	}
}
