package vast_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
	"lowtide/shared/provider/vast"
	"lowtide/shared/provider/vast/vasttest"
)

// answers is a market that answers each path with the same bytes and keeps what it was asked.
func answers(t *testing.T, by map[string]string, status int) (*vast.Vast, *[]string) {
	t.Helper()
	var mu sync.Mutex
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		asked = append(asked, r.Method+" "+r.URL.Path+" "+string(b))
		mu.Unlock()
		for path, body := range by {
			if strings.HasPrefix(r.Method+" "+r.URL.Path, path) {
				if r.Method == http.MethodPut {
					w.WriteHeader(status)
				}
				_, _ = io.WriteString(w, body)
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(srv.Close)
	return vast.New(vast.Settings{URL: srv.URL, Key: "k", Image: "i", Boot: boot, Client: srv.Client()}), &asked
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPricesHoldTheDiskAndAreOfTheWholeOffer(t *testing.T) {
	v, asked := answers(t, map[string]string{"POST /api/v0/bundles/": read(t, "bundles.json")}, 200)
	offers, err := v.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range offers {
		got[strings.Join([]string{o.Region, o.Type, string(o.Market)}, " ")] = o.Price.Amount.String() + " of " + o.GPU + " " + o.Form
		if o.Zone != "" || !o.Marketplace {
			t.Errorf("%s: zone %q, marketplace %v", o, o.Zone, o.Marketplace)
		}
	}
	for key, want := range map[string]string{
		"DK 4x_RTX_4090_24GB on_demand":  "1.6200 USD of RTX 4090 ",
		"DK 4x_RTX_4090_24GB spot":       "0.6650 USD of RTX 4090 ", // 0.48 bid, a tenth over it, and the disk
		"DK 4x_RTX_4090_24GB reserved":   "1.0268 USD of RTX 4090 ", // 40 % off the GPUs, nothing off the disk
		"US 1x_A100_SXM4_80GB on_demand": "0.9000 USD of A100 SXM4", // the cheaper of two
		"ZZ 1x_RTX_3090_24GB on_demand":  "0.2521 USD of RTX 3090 ", // no place told
	} {
		if got[key] != want {
			t.Errorf("%s: got %q, want %q", key, got[key], want)
		}
	}
	for key := range got {
		if strings.Contains(key, "1x_A100_SXM4_80GB spot") || strings.Contains(key, "L4") {
			t.Errorf("%s is sold, at %s: it has no lowest bid, or no price, or is a share of a GPU", key, got[key])
		}
	}
	for _, o := range offers {
		if o.Region == "US" && o.Market == fleet.OnDemand && o.Type == "1x_A100_SXM4_80GB" && o.Stock.Or(0) != 2 {
			t.Errorf("stock %v, want the two machines", o.Stock)
		}
		if o.Market == fleet.Reserved && o.Term <= 0 {
			t.Errorf("%s: paid ahead without a term", o)
		}
	}
	var q map[string]any
	if err := json.Unmarshal([]byte((*asked)[0][strings.Index((*asked)[0], "{"):]), &q); err != nil || q["type"] != "on-demand" || q["allocated_storage"] != 50.0 {
		t.Errorf("asked %s", (*asked)[0])
	}
}

func TestABidThatIsRefusedAndYetMakesAMachineIsDestroyed(t *testing.T) {
	v, asked := answers(t, map[string]string{
		"GET /api/v1/instances/": `{"instances": [], "next_token": null}`, "POST /api/v0/bundles/": read(t, "bundles.json"),
		"PUT /api/v0/asks/":           `{"success": false, "error": "invalid_price", "msg": "bid below current minimum", "new_contract": 1234569}`,
		"DELETE /api/v0/instances/12": `{"success": true}`,
	}, 400)
	offers, err := v.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range offers {
		if o.Market != fleet.Spot {
			continue
		}
		_, err := v.Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: o, Labels: providertest.Labels("p1")})
		if provider.Word(err) != "no_capacity" {
			t.Errorf("got %v, want a refusal", err)
		}
		if last := (*asked)[len(*asked)-1]; !strings.HasPrefix(last, "DELETE /api/v0/instances/1234569/") {
			t.Errorf("the last call was %q: the machine that was made all the same still bills", last)
		}
		return
	}
	t.Error("nothing is sold by bid")
}

func TestASuccessThatSaysNoIsNoEnd(t *testing.T) {
	v, _ := answers(t, map[string]string{"DELETE /": `{"success": false, "msg": "instance busy"}`}, 200)
	if err := v.End(t.Context(), "7"); provider.Word(err) != "unavailable" {
		t.Errorf("got %v, want it to be tried again", err)
	}
}

func TestAMachineThatWasOutbidIsStoppedAndBillsUntilItIsEnded(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	cfg := vasttest.Market()
	cfg.Now = func() time.Time { return now }
	c, err := fake.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	market := vasttest.New(c, &fake.Knobs{})
	srv := httptest.NewServer(market)
	defer srv.Close()
	v := vast.New(vast.Settings{URL: srv.URL, Key: vasttest.Key, Image: "i", Boot: boot, Client: srv.Client(), Now: cfg.Now})
	offers, err := v.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spot := offers[len(offers)-1]
	m, err := v.Launch(t.Context(), provider.Request{Name: "m", Offer: spot, Labels: providertest.Labels("p1")})
	if err != nil || m.Offer.Market != fleet.Spot {
		t.Fatalf("got %+v and %v", m, err)
	}
	market.Outbid(m.ID)
	all, err := v.List(t.Context())
	if err != nil || len(all) != 1 || all[0].State != provider.Stopped || all[0].Why != "interrupted" {
		t.Fatalf("got %+v and %v, want it stopped", all, err)
	}
	if err := v.End(t.Context(), m.ID); err != nil {
		t.Error(err)
	}
	now = now.Add(time.Minute)
	if all, err = v.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after its end: %+v and %v", all, err)
	}
}

func TestTheScriptStartsAnAgentWithTheRightChecksumAlone(t *testing.T) {
	script, err := boot.Script("A=it's two\nB=$(rm -rf x)\n", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`export A='it'\''s two'`, `export B='$(rm -rf x)'`, "sha256sum -c -"} {
		if !strings.Contains(script, want) {
			t.Errorf("%q is not in\n%s", want, script)
		}
	}
	if _, err := (provider.Boot{}).Script("", ""); provider.Word(err) != "refused_here" {
		t.Errorf("without a mirror: got %v", err)
	}
}

func TestAMachineThatIsToBeAvoidedIsNotRented(t *testing.T) {
	v, asked := answers(t, map[string]string{
		"GET /api/v1/instances/": `{"instances": [], "next_token": null}`, "POST /api/v0/bundles/": read(t, "bundles.json"),
		"PUT /api/v0/asks/": `{"success": true, "new_contract": 1234569}`,
	}, 200)
	offers, err := v.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rents := func() (n int) {
		for _, a := range *asked {
			if strings.HasPrefix(a, "PUT ") {
				n++
			}
		}
		return n
	}
	want := provider.Request{Token: "t", Name: "m", Labels: providertest.Labels("p1")}
	for _, o := range offers {
		if o.Market == fleet.OnDemand {
			want.Offer = o
		}
	}
	m, err := v.Launch(t.Context(), want)
	if err != nil || m.Offer.Host == "" || rents() != 1 {
		t.Fatalf("got %+v, %v after %d rents, want one on a machine that is named", m, err, rents())
	}
	// Every box of the market is to be avoided.
	var page struct {
		Offers []struct {
			Box json.Number `json:"machine_id"`
		} `json:"offers"`
	}
	if err := json.Unmarshal([]byte(read(t, "bundles.json")), &page); err != nil {
		t.Fatal(err)
	}
	for _, a := range page.Offers {
		want.Avoid = append(want.Avoid, a.Box.String())
	}
	want.Labels = providertest.Labels("p2")
	if m, err := v.Launch(t.Context(), want); provider.Word(err) != "no_capacity" || rents() != 1 {
		t.Errorf("got %+v, %v after %d rents, want a refusal", m, err, rents())
	}
}
