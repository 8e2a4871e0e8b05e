package aws_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/aws"
	"lowtide/shared/provider/aws/awstest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

var credentials = sdk.CredentialsProviderFunc(func(context.Context) (sdk.Credentials, error) {
	return sdk.Credentials{AccessKeyID: awstest.KeyID, SecretAccessKey: awstest.Secret}, nil
})

func open(endpoint string, client *http.Client, now func() time.Time) provider.Provider {
	return aws.New(aws.Settings{
		Regions: []string{"us-east-1", "eu-central-1"}, Credentials: credentials, Endpoint: endpoint, Client: client, Now: now,
		Images: map[string]string{"": awstest.Image}, Boot: boot,
	})
}

// buys knows RunInstances; the body is put back.
func buys(r *http.Request) bool {
	b, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(b))
	v, _ := url.ParseQuery(string(b))
	return v.Get("Action") == "RunInstances"
}

func TestAWSKeepsTheContract(t *testing.T) {
	providertest.Vendor{
		Cloud:  awstest.Market(),
		Serve:  func(c *fake.Cloud, k *fake.Knobs) http.Handler { return awstest.New(c, k) },
		Open:   open,
		Buys:   buys,
		Reads:  aws.Reads,
		ID:     awstest.ID,
		Secret: []string{awstest.Secret, url.QueryEscape(awstest.Secret), awstest.KeyID},
		Nobody: "i-00000000000999999",
	}.Run(t)
}

func TestATrialSaysWhetherALaunchWouldGoThroughAndBuysNothing(t *testing.T) {
	cloud, err := fake.Open(awstest.Market())
	if err != nil {
		t.Fatal(err)
	}
	defer cloud.Close()
	served := httptest.NewServer(awstest.New(cloud, &fake.Knobs{Now: time.Now}))
	defer served.Close()
	a := open(served.URL, &http.Client{Transport: guarded{}}, time.Now).(*aws.AWS)
	all, err := a.Offers(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatalf("%d offers, %v", len(all), err)
	}
	before := len(cloud.Bill())
	want := provider.Request{Token: "t", Name: "n", Offer: all[0], Labels: providertest.Labels("p")}
	if err := a.Try(t.Context(), want); err != nil {
		t.Error(err)
	}
	want.Offer.Region = "mars-1"
	if err := a.Try(t.Context(), want); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("a region that is not configured: %v", err)
	}
	if n := len(cloud.Bill()) - before; n != 0 {
		t.Errorf("%d machines were bought", n)
	}
}

// guarded lets through only what the adapter says changes nothing.
type guarded struct{}

func (guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	if !aws.Reads(r) {
		return nil, errors.New("a writing request")
	}
	return http.DefaultTransport.RoundTrip(r)
}

func TestAMachineOfACapacityReservationIsAskedForByItsIdAndCostsNothingMore(t *testing.T) {
	c := awstest.Market()
	zone := c.Traces[0].Zone
	c.Reservations = []fleet.Reservation{{ID: "cr-0a1", Type: c.Types[0].Name, Zone: zone, Count: 1, Hourly: fleet.Dollars(2)}}
	cloud, err := fake.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cloud.Close() })
	srv := httptest.NewServer(awstest.New(cloud, &fake.Knobs{Now: time.Now}))
	t.Cleanup(srv.Close)
	p := open(srv.URL, srv.Client(), time.Now)
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var o fleet.Offer
	for _, x := range offers {
		if x.Zone == zone && x.Type == c.Types[0].Name && x.Market == fleet.OnDemand {
			o = x
		}
	}
	o.Market, o.Reservation, o.Hourly = fleet.Reserved, "cr-0a1", fleet.Known(fleet.Dollars(0))
	m, err := p.Launch(t.Context(), provider.Request{Token: "t1", Name: "m1", Offer: o, Labels: providertest.Labels("p1")})
	if err != nil || m.Offer.Pool() != o.Pool() {
		t.Fatalf("got %+v, %v; want %s", m.Offer, err, o)
	}
	all, err := p.List(t.Context())
	if err != nil || len(all) == 0 || all[len(all)-1].Offer.Reservation != "cr-0a1" || all[len(all)-1].Offer.Hourly.Or(fleet.Dollars(9)).Float() != 0 {
		t.Errorf("listed as %+v, %v", all, err)
	}
	if _, err := p.Launch(t.Context(), provider.Request{Token: "t2", Name: "m2", Offer: o, Labels: providertest.Labels("p2")}); provider.Word(err) != "no_capacity" {
		t.Errorf("a second machine of one: %v", err)
	}
}
