package vast_test

import (
	"fmt"
	"strings"
	"testing"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/providertest"
)

func TestTheVendorsOwnOffersAreRead(t *testing.T) {
	v, _ := answers(t, map[string]string{"POST /api/v0/bundles/": string(providertest.Sample(t, "vast-bundles.json"))}, 200)
	offers, err := v.Offers(t.Context())
	if err != nil || len(offers) == 0 {
		t.Fatalf("got %d and %v", len(offers), err)
	}
	got := map[string]bool{}
	for _, o := range offers {
		if price, ok := o.PerHour(); !ok || price <= 0 || o.GPU == "" || o.GPUs <= 0 || len(o.Region) != 2 {
			t.Errorf("read as %+v", o)
		}
		got[o.Region+" "+o.Type+" "+string(o.Market)] = true
	}
	if !got["RO 1x_RTX_3090_24GB on_demand"] || !got["RO 1x_RTX_3090_24GB spot"] {
		t.Errorf("read %v", got)
	}
}

func TestTheVendorsOwnMachineIsReadAndIsNotOurs(t *testing.T) {
	one := string(providertest.Sample(t, "vast-instance.json"))
	row := one[strings.Index(one, "{\n  \"id\""):strings.LastIndex(one, "}")]
	v, _ := answers(t, map[string]string{"GET /api/v1/instances/": `{"instances": [` + row + `], "next_token": null}`}, 200)
	all, err := v.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("got %+v and %v", all, err)
	}
	m := all[0]
	if m.ID != "883" || m.State != provider.Running || m.Labels != (provider.Labels{}) || m.Offer.GPU != "RTX A5000" || m.Offer.Market != fleet.OnDemand || m.Since.Year() != 2025 {
		t.Errorf("read as %+v", m)
	}
}

func TestTheVendorsOwnRefusalsAreOfTheClosedList(t *testing.T) {
	for _, c := range []struct {
		file   string
		status int
		word   string
	}{
		{"vast-create-no-such-ask-404.json", 404, "no_capacity"},
		{"vast-create-gone-410.json", 410, "no_capacity"},
		{"vast-create-bid-too-low-but-created.json", 400, "no_capacity"},
		{"vast-429.txt", 429, "throttled"},
	} {
		v, asked := answers(t, map[string]string{
			"GET /api/v1/instances/": `{"instances": [], "next_token": null}`, "POST /api/v0/bundles/": read(t, "bundles.json"),
			"PUT /api/v0/asks/": string(providertest.Sample(t, c.file)), "DELETE /": `{"success": true}`,
		}, c.status)
		offers, err := v.Offers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = v.Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: offers[0], Labels: providertest.Labels("p1")})
		if provider.Word(err) != c.word {
			t.Errorf("%s: got %v, want %s", c.file, err, c.word)
		}
		if strings.Contains(c.file, "but-created") != strings.Contains(fmt.Sprint(*asked), "DELETE /api/v0/instances/1234569/") {
			t.Errorf("%s: asked %v", c.file, *asked)
		}
	}
}
