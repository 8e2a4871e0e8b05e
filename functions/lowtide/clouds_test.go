package main

import (
	"bytes"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/provider/aws/awstest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/vast/vasttest"
)

// twoClouds are the stand-ins of two clouds, configured as a person would.
func twoClouds(t *testing.T, rented bool) (ec2, market *fake.Cloud, vast *vasttest.Server) {
	t.Helper()
	bare(t)
	serve := func(cfg fake.Config) *fake.Cloud {
		cfg.Boot, cfg.Ending = time.Second, time.Second
		c, err := fake.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ec2, market = serve(awstest.Market()), serve(vasttest.Market())
	vast = vasttest.New(market, &fake.Knobs{})
	a, v := httptest.NewServer(awstest.New(ec2, &fake.Knobs{Now: time.Now})), httptest.NewServer(vast)
	t.Cleanup(a.Close)
	t.Cleanup(v.Close)
	set := map[string]string{
		"VAST_URL": v.URL, "VAST_API_KEY": vasttest.Key, "AWS_ENDPOINT_URL": a.URL, "AWS_ACCESS_KEY_ID": awstest.KeyID,
		"AWS_SECRET_ACCESS_KEY": awstest.Secret, "AWS_REGION": "us-east-1", "LOWTIDE_AWS_IMAGE": awstest.Image,
		"LOWTIDE_MIRROR": "https://mirror.example", "LOWTIDE_MIRROR_SHA256_AMD64": strings.Repeat("0", 64), "LOWTIDE_VAST_IMAGE": "example/cuda:12",
	}
	if rented {
		set[agentNATS], set[agentToken], set[agentBucket] = "tls://nats.example:4222", "agents-only", "s3://checkpoints"
	}
	for k, val := range set {
		t.Setenv(k, val)
	}
	return ec2, market, vast
}

// start runs a daemon at both clouds and asks for eight A100s.
func start(t *testing.T) *deck {
	t.Helper()
	f := runFlags{state: t.TempDir(), clouds: []string{"aws", "vast"}, lease: 6 * time.Hour, ask: askFlags{otherwise: "reject"}}
	m, err := f.market(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d, err := begin(t.Context(), f.state, f, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.end(false) })
	spec := fleet.Spec{
		Name: "train", Run: []string{"true"}, Work: time.Hour, Steps: 360, GPUs: 8, Models: []string{"A100"}, Autonomy: fleet.Act, SaveEvery: 10 * time.Minute,
	}
	if err := d.host.Say(t.Context(), events.New(d.fleet, "test", d.clock.Now(), events.WorkloadSubmitted{Spec: spec})); err != nil {
		t.Fatal(err)
	}
	return d
}

// until waits for what a daemon in real time does, and ticks it on.
func until(t *testing.T, d *deck, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(4 * time.Minute); !done(); time.Sleep(100 * time.Millisecond) { // the clouds have no way to call back
		if time.Now().After(end) {
			t.Fatalf("%s does not happen", what)
		}
	}
}

func TestOneRingBuysAtTheCheaperOfTwoClouds(t *testing.T) {
	ec2, market, _ := twoClouds(t, true)
	d := start(t)
	until(t, d, "a purchase", func() bool { return len(market.Bill().Ours())+len(ec2.Bill().Ours()) > 0 })
	bill := market.Bill().Ours()
	if len(bill) != 1 || len(ec2.Bill().Ours()) != 0 || bill[0].Offer.Type != "8x_A100_SXM4_80GB" || bill[0].Offer.Market != fleet.Spot {
		t.Fatalf("bought %+v and %+v, want one bid at the market, which is half of EC2's spot", bill, ec2.Bill().Ours())
	}
	if l := bill[0].Labels; l.Install != d.install || l.Fleet != d.fleet || l.Workload != "train" {
		t.Errorf("it carries %+v", l)
	}
	// The red button works from the clouds alone.
	d.end(false)
	out := &bytes.Buffer{}
	if err := endAtClouds(t.Context(), out, []string{"aws", "vast"}, d.install, time.Minute); err != nil || len(market.Bill().Ours().Running()) != 0 {
		t.Errorf("panic: %v, %s", err, out)
	}
}

func TestABidThatIsOutbidIsReplacedAndItsDiskStopsBilling(t *testing.T) {
	if os.Getenv("LOWTIDE_LONG") == "" {
		t.Skip("half a minute of real time; LOWTIDE_LONG=1 plays it (functions/census and shared/provider/vast test its halves)")
	}
	_, market, vast := twoClouds(t, true)
	d := start(t)
	until(t, d, "a purchase", func() bool { return len(market.Bill().Ours()) > 0 })
	first := market.Bill().Ours()[0].ID
	vast.Outbid(vasttest.ID(first))
	until(t, d, "a replacement", func() bool { return len(market.Bill().Ours()) > 1 })
	until(t, d, "the end of what was outbid", func() bool { return !market.Bill().Ours()[0].Bills() })
	if twice := market.Bill().Twice(); len(twice) > 0 {
		t.Errorf("bought twice: %v", twice)
	}
}

func TestADryRunAtRealCloudsPlansAndBuysNothing(t *testing.T) {
	ec2, market, _ := twoClouds(t, false) // no machine could reach this lowtide: dry by itself
	d := start(t)
	heard, err := d.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var launched *events.InstanceLaunched
	until(t, d, "a dry purchase", func() bool {
		select {
		case h := <-heard:
			if l, ok := h.event.Data.(events.InstanceLaunched); ok {
				launched = &l
				if !h.event.Dry {
					t.Error("the fact does not say that it is dry")
				}
			}
		default:
		}
		return launched != nil
	})
	if hourly, ok := launched.Offer.PerHour(); !ok || launched.Offer.Cloud != "vast" || hourly < 4 || hourly > 5 {
		t.Errorf("launched %+v, want the live price", launched.Offer)
	}
	if n := len(ec2.Writes()) + len(market.Writes()); n != 0 {
		t.Errorf("%d writing calls", n)
	}
}

func TestAStateNeverForgetsAtWhichCloudsItBuys(t *testing.T) {
	twoClouds(t, true)
	f := runFlags{state: t.TempDir(), clouds: []string{"aws", "vast"}, speed: 1}
	if _, err := f.market(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]string{nil, {"aws"}} {
		f.clouds = list
		if _, err := f.market(t.Context()); err == nil || !strings.Contains(err.Error(), "vast") {
			t.Errorf("started with %v: %v, want the missing cloud named", list, err)
		}
	}
}
