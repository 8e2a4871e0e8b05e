package aws_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/aws/awstest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// instead is the stand-in with other answers to some actions: a status and a body.
func instead(t *testing.T, by map[string]func() (int, []byte)) provider.Provider {
	t.Helper()
	c, err := fake.Open(awstest.Market())
	if err != nil {
		t.Fatal(err)
	}
	ec2 := awstest.New(c, &fake.Knobs{Now: time.Now})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(b))
		v, _ := url.ParseQuery(string(b))
		action := v.Get("Action")
		if r.Header.Get("X-Amz-Target") != "" {
			action = "GetProducts"
		}
		if f, ok := by[action]; ok {
			status, body := f()
			w.WriteHeader(status)
			_, _ = w.Write(body)
			return
		}
		ec2.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return open(srv.URL, srv.Client(), time.Now)
}

func TestTheVendorsSchemaOfPricesIsRead(t *testing.T) {
	spot, list := providertest.Sample(t, "aws-ec2-DescribeSpotPriceHistory.xml"), providertest.Sample(t, "aws-pricing-GetProducts.json")
	p := instead(t, map[string]func() (int, []byte){
		"DescribeSpotPriceHistory": func() (int, []byte) { return 200, spot },
		"GetProducts":              func() (int, []byte) { return 200, list },
	})
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range offers {
		got[fmt.Sprint(o.Zone, " ", o.Type, " ", o.Market, " ", o.Term)] = o.Price.Amount.Amount.String() + " " + string(o.Price.Amount.Currency) + " " + o.GPU
	}
	for key, want := range map[string]string{
		"use1-az1 p4d.24xlarge on_demand 0s": "21.957642 USD A100", "use1-az1 p4d.24xlarge spot 0s": "8.0087 USD A100",
		" p4d.24xlarge reserved 8760h0m0s": "14 USD A100",
	} {
		if got[key] != want {
			t.Errorf("%q: got %q, want %q in %v", key, got[key], want, got)
		}
	}
}

func TestCodesAreSortedIntoTheClosedList(t *testing.T) {
	var status int
	var code string
	p := instead(t, map[string]func() (int, []byte){"RunInstances": func() (int, []byte) {
		return status, []byte(`<Response><Errors><Error><Code>` + code + `</Code><Message>secret words</Message></Error></Errors></Response>`)
	}})
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		status      int
		codes, word string
	}{
		{500, "InsufficientInstanceCapacity Server.InsufficientInstanceCapacity UnfulfillableCapacity ReservationCapacityExceeded", "no_capacity"},
		{400, "Unsupported SpotMaxPriceTooLow InsufficientFreeAddressesInSubnet", "no_capacity"},
		{400, "VcpuLimitExceeded MaxSpotInstanceCountExceeded InstanceLimitExceeded", "quota"},
		{503, "RequestLimitExceeded Throttling ThrottlingException", "throttled"},
		{403, "UnauthorizedOperation AuthFailure.ServiceLinkedRoleCreationNotPermitted OptInRequired PendingVerification ExpiredToken", "denied"},
		{400, "IdempotentParameterMismatch InvalidParameterValue InvalidAMIID.NotFound MissingParameter UnknownParameter ANewCode", "invalid"},
		{503, "Unavailable ServiceUnavailable", "unavailable"},
		{500, "InternalError ANewCode", "unknown_outcome"}, // it may have been bought: the token is asked again
	} {
		for _, code = range strings.Fields(c.codes) {
			status = c.status
			_, err := p.Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: offers[0], Labels: providertest.Labels("p1")})
			if got := provider.Word(err); got != c.word || !strings.Contains(err.Error(), code) || strings.Contains(err.Error(), "secret words") {
				t.Errorf("%d %s: got %v (%s), want %s with the code and without the text", c.status, code, err, got, c.word)
			}
		}
	}
}

func TestWhatCannotBeBoughtByTheHourIsRefusedHere(t *testing.T) {
	p := instead(t, map[string]func() (int, []byte){"RunInstances": func() (int, []byte) { t.Error("asked all the same"); return 400, nil }})
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range offers {
		if o.Market != fleet.Reserved {
			continue
		}
		if _, err := p.Launch(t.Context(), provider.Request{Token: "t", Name: "m", Offer: o}); provider.Word(err) != "invalid" {
			t.Errorf("%s: got %v", o, err)
		}
		return
	}
	t.Error("no reserved rate is shown")
}

func TestAListedMachineCostsWhatItsPoolWasOfferedAt(t *testing.T) {
	p := instead(t, nil)
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range offers {
		if o.Term > 0 || i%3 > 0 {
			continue
		}
		plan := fmt.Sprint("p", i)
		m, err := p.Launch(t.Context(), provider.Request{Token: plan, Name: plan, Offer: o, Labels: providertest.Labels(plan)})
		if err != nil {
			t.Fatal(err)
		}
		all, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			if l.ID == m.ID && l.Offer.Hourly.Or(fleet.Money{}).String() != o.Hourly.Or(fleet.Money{}).String() {
				t.Errorf("%s is listed at %s, offered at %s", o, l.Offer.Hourly.Or(fleet.Money{}), o.Hourly.Or(fleet.Money{}))
			}
		}
	}
}
