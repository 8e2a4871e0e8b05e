package lambdalabs_test

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/lambdalabs"
	"lowtide/shared/provider/lambdalabs/lambdalabstest"
	"lowtide/shared/provider/providertest"
)

// said is one answer.
type said struct {
	status int
	body   string
}

// vendor answers each path with the same bytes and keeps what it was asked, without a network.
type vendor struct {
	by map[string]said // by method and path

	mu    sync.Mutex
	asked []string
	at    []time.Time
}

func (v *vendor) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(b)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked, v.at = append(v.asked, r.Method+" "+r.URL.Path+" "+body), append(v.at, time.Now())
	a, ok := v.by[r.Method+" "+r.URL.Path]
	if !ok {
		return nil, errors.New("nobody answers")
	}
	return &http.Response{StatusCode: a.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(a.body)), Request: r}, nil
}

// launches are when and with what the vendor was asked to launch.
func (v *vendor) launches() (at []time.Time, bodies []string) {
	for i, a := range v.asked {
		if body, ok := strings.CutPrefix(a, launchPath+" "); ok {
			at, bodies = append(at, v.at[i]), append(bodies, body)
		}
	}
	return at, bodies
}

const (
	typesPath     = "GET /api/v1/instance-types"
	listPath      = "GET /api/v1/instances"
	launchPath    = "POST /api/v1/instance-operations/launch"
	terminatePath = "POST /api/v1/instance-operations/terminate"

	none   = `{"data": []}`
	bought = `{"data": {"instance_ids": ["0123"]}}`
)

func ok(body string) said { return said{http.StatusOK, body} }

// sells is the answer that tells one type, in us-east-1 or sold out.
func sells(name, gpu, gpus, cents string, regions ...string) string {
	places := ""
	for i, r := range regions {
		if i > 0 {
			places += ", "
		}
		places += `{"name": "` + r + `", "description": "d"}`
	}
	return `{"data": {"` + name + `": {"instance_type": {"name": "` + name + `", "description": "d", "gpu_description": "` + gpu +
		`", "price_cents_per_hour": ` + cents + `, "specs": {"vcpus": 1, "memory_gib": 1, "storage_gib": 1, "gpus": ` + gpus +
		`}}, "regions_with_capacity_available": [` + places + `]}}}`
}

var a10 = sells("gpu_1x_a10", "A10 (24 GB PCIe)", "1", "129", "us-east-1")

func open(pace lambdalabs.Pace, by map[string]said) (*lambdalabs.Lambda, *vendor) {
	v := &vendor{by: by}
	return lambdalabs.New(lambdalabs.Settings{
		URL: "http://lambda.example", Key: "k", SSHKey: "operator", Boot: boot, Pace: pace, Client: &http.Client{Transport: v},
	}), v
}

// want asks for an A10 at the price that it has.
func want(plan string) provider.Request {
	return provider.Request{Token: "t", Name: "f1-m-" + plan, Labels: providertest.Labels(plan), Offer: fleet.Offer{
		Cloud: lambdalabs.Cloud, Account: "main", Region: "us-east-1", Type: "gpu_1x_a10", Market: fleet.OnDemand,
		Price: fleet.Price{Amount: fleet.Dollars(1.29), Per: fleet.PerInstanceHour},
	}}
}

func TestCentsAreOfTheWholeMachineAndGPUsHaveTheirMakersNames(t *testing.T) {
	for _, c := range []struct{ gpu, gpus, cents, is string }{
		{"A100 (80 GB SXM4)", "8", "2232", "22.32 USD A100 SXM4 80"},
		{"A100 (40 GB PCIe)", "1", "199", "1.9900 USD A100 PCIe 40"},
		{"NVIDIA A100 (80 GB)", "1", "199", "1.9900 USD A100  80"}, // the form is not told
		{"H100 (80 GB SXM5)", "8", "3192", "31.92 USD H100 SXM5 80"},
		{"B200 (180 GB SXM6)", "2", "1378", "13.78 USD B200 SXM6 180"},
		{"GH200 (96 GB)", "1", "229", "2.2900 USD GH200  96"},
		{"A6000 (48 GB)", "4", "436", "4.3600 USD RTX A6000  48"},
		{"Tesla V100 (16 GB)", "8", "632", "6.3200 USD V100  16"},
		{"RTX 6000 (24 GB)", "1", "69", "0.6900 USD RTX 6000  24"},
		{"N/A", "0", "20", ""},             // no GPU
		{"A10 (24 GB PCIe)", "1", "0", ""}, // no price is no offer
		{"A10 (24 GB PCIe)", "1", "null", ""},
		{"A100 (10 GB)", "1", "50", ""}, // a share of a GPU
	} {
		l, _ := open(lambdalabs.Pace{}, map[string]said{typesPath: ok(sells("gpu_x", c.gpu, c.gpus, c.cents, "us-east-1"))})
		offers, err := l.Offers(t.Context())
		if err != nil || len(offers) > 1 {
			t.Fatalf("%s: got %v and %v", c.gpu, offers, err)
		}
		got := ""
		for _, o := range offers {
			memory := map[int]string{16: "16", 24: "24", 40: "40", 48: "48", 80: "80", 96: "96", 180: "180"}[o.Memory]
			got = strings.Join([]string{o.Price.Amount.String(), o.GPU, o.Form, memory}, " ")
			if o.Price.Per != fleet.PerInstanceHour || o.Hourly.Or(fleet.Money{}) != o.Price.Amount {
				t.Errorf("%s: read as %+v", c.gpu, o)
			}
			if _, told := o.Stock.Get(); told {
				t.Errorf("%s: stock %v, and the vendor tells no number", c.gpu, o.Stock)
			}
		}
		if got != c.is {
			t.Errorf("%s: got %q, want %q", c.gpu, got, c.is)
		}
	}
}

func TestATypeIsOfferedOnlyWhereThereIsCapacity(t *testing.T) {
	for regions, n := range map[string]int{"": 0, "us-east-1": 1, "us-east-1 us-west-1": 2} {
		l, _ := open(lambdalabs.Pace{}, map[string]said{typesPath: ok(sells("gpu_1x_a10", "A10 (24 GB PCIe)", "1", "129", strings.Fields(regions)...))})
		if offers, err := l.Offers(t.Context()); err != nil || len(offers) != n {
			t.Errorf("%q: got %v and %v, want %d", regions, offers, err, n)
		}
	}
}

func TestCapacityIsReadAndNotProbedByALaunch(t *testing.T) {
	for name, types := range map[string]string{
		"sold out everywhere": sells("gpu_1x_a10", "A10 (24 GB PCIe)", "1", "129"),
		"sold out here":       sells("gpu_1x_a10", "A10 (24 GB PCIe)", "1", "129", "us-west-1"),
		"dearer than planned": sells("gpu_1x_a10", "A10 (24 GB PCIe)", "1", "139", "us-east-1"),
		"no price any more":   sells("gpu_1x_a10", "A10 (24 GB PCIe)", "1", "0", "us-east-1"),
	} {
		l, v := open(lambdalabs.Pace{}, map[string]said{typesPath: ok(types), listPath: ok(none), launchPath: ok(bought)})
		m, err := l.Launch(t.Context(), want("p1"))
		if at, _ := v.launches(); provider.Word(err) != "no_capacity" || len(at) != 0 {
			t.Errorf("%s: got %+v, %v and %d launches", name, m, err, len(at))
		}
	}
}

func TestALaunchCarriesTheLabelsAndOneMachine(t *testing.T) {
	l, v := open(lambdalabs.Pace{}, map[string]said{typesPath: ok(a10), listPath: ok(none), launchPath: ok(bought)})
	long := want("p1")
	long.Name = strings.Repeat("n", 70)
	m, err := l.Launch(t.Context(), long)
	if err != nil || m.ID != "0123" || m.Offer.Price.Amount.String() != "1.2900 USD" {
		t.Fatalf("got %+v and %v", m, err)
	}
	_, bodies := v.launches()
	for _, part := range []string{
		`"region_name":"us-east-1"`, `"ssh_key_names":["operator"]`, `"name":"` + strings.Repeat("n", 64) + `"`,
		`{"key":"lowtide-plan","value":"p1"}`, `{"key":"lowtide-since",`,
	} {
		if len(bodies) != 1 || !strings.Contains(bodies[0], part) {
			t.Errorf("%s is not in %s", part, bodies)
		}
	}
	if strings.Contains(bodies[0], "quantity") {
		t.Errorf("a count is asked for: %s", bodies[0])
	}
	long.Labels.Workload = strings.Repeat("w", 129)
	if _, err := l.Launch(t.Context(), long); provider.Word(err) != "invalid" {
		t.Errorf("a label that the cloud would not keep: got %v", err)
	}
}

func TestWithoutAnSSHKeyOrAMirrorNothingIsAsked(t *testing.T) {
	v := &vendor{}
	for name, s := range map[string]lambdalabs.Settings{"no SSH key": {Boot: boot}, "no mirror": {SSHKey: "operator"}} {
		s.Key, s.Client = "k", &http.Client{Transport: v}
		if _, err := lambdalabs.New(s).Launch(t.Context(), want("p1")); provider.Word(err) != "refused_here" || len(v.asked) != 0 {
			t.Errorf("%s: got %v after %v", name, err, v.asked)
		}
	}
	if _, err := lambdalabs.New(lambdalabs.Settings{Client: &http.Client{Transport: v}}).Offers(t.Context()); provider.Word(err) != "denied" || len(v.asked) != 0 {
		t.Errorf("no key: got %v after %v", err, v.asked)
	}
}

func TestAListThatIsThrottledAfterALaunchLosesNoMachine(t *testing.T) {
	l, v := open(lambdalabs.Pace{}, map[string]said{typesPath: ok(a10), listPath: ok(none), launchPath: ok(`{"data": {"instance_ids": ["9d2c"]}}`)})
	m, err := l.Launch(t.Context(), want("p1"))
	if last := v.asked[len(v.asked)-1]; err != nil || m.ID != "9d2c" || !strings.HasPrefix(last, launchPath) {
		t.Fatalf("got %+v and %v, and was asked last for %s", m, err, last)
	}
	v.by[listPath] = said{http.StatusTooManyRequests, "slow down"}
	if all, err := l.List(t.Context()); provider.Word(err) != "throttled" || all != nil {
		t.Errorf("list: got %v and %v", all, err)
	}
	v.by[terminatePath] = ok(`{"data": {"terminated_instances": [{"id": "9d2c", "status": "terminating"}]}}`)
	if err := l.End(t.Context(), m.ID); err != nil {
		t.Errorf("end: %v", err)
	}
}

func TestFourLaunchesAreTwelveSecondsApartAndCallsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, v := open(lambdalabs.Published(), map[string]said{typesPath: ok(a10), listPath: ok(none), launchPath: ok(bought)})
		var all sync.WaitGroup
		for _, plan := range []string{"p1", "p2", "p3", "p4"} {
			all.Go(func() {
				if _, err := l.Launch(t.Context(), want(plan)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		at, bodies := v.launches()
		if len(at) != 4 || len(slices.Compact(slices.Sorted(slices.Values(bodies)))) != 4 {
			t.Fatalf("launched %q", bodies)
		}
		for i := 1; i < len(at); i++ {
			if gap := at[i].Sub(at[i-1]); gap < 11900*time.Millisecond {
				t.Errorf("launch %d came %s after the one before", i+1, gap)
			}
		}
		for i := 1; i < len(v.at); i++ {
			if gap := v.at[i].Sub(v.at[i-1]); gap < 990*time.Millisecond {
				t.Errorf("call %d (%s) came after %s", i+1, v.asked[i], gap)
			}
		}
	})
}

func TestAnEndThatIsNotConfirmedIsTriedAgain(t *testing.T) {
	l, _ := open(lambdalabs.Pace{}, map[string]said{terminatePath: ok(`{"data": {"terminated_instances": []}}`)})
	if err := l.End(t.Context(), "0123"); provider.Word(err) != "unavailable" {
		t.Errorf("got %v", err)
	}
}

func TestTheVendorsStatesAreOurs(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	cfg := lambdalabstest.Market()
	cfg.Now = func() time.Time { return now }
	c, err := fake.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cloud := lambdalabstest.New(c, &fake.Knobs{})
	srv := httptest.NewServer(cloud)
	defer srv.Close()
	l := lambdalabs.New(lambdalabs.Settings{
		URL: srv.URL, Key: lambdalabstest.Key, SSHKey: lambdalabstest.SSHKey, Boot: boot, Client: srv.Client(), Now: cfg.Now,
	})
	m, err := l.Launch(t.Context(), want("p1"))
	if err != nil {
		t.Fatal(err)
	}
	states := map[string][2]string{
		"booting": {"pending", ""}, "active": {"running", ""}, "unhealthy": {"running", "unhealthy"}, "terminating": {"ending", ""},
		"preempted": {"stopped", "interrupted"}, "brand-new": {"running", "brand-new"},
	}
	for _, status := range slices.Sorted(maps.Keys(states)) {
		cloud.SetStatus(m.ID, status)
		all, err := l.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: got %+v and %v", status, all, err)
		}
		if got := [2]string{string(all[0].State), all[0].Why}; got != states[status] || !all[0].Since.Equal(now) || all[0].Offer.Pool() != m.Offer.Pool() {
			t.Errorf("%s: read as %+v", status, all[0])
		}
	}
	cloud.SetStatus(m.ID, "terminated")
	if all, err := l.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("terminated: got %+v and %v", all, err)
	}
}

func TestRefusalsAreReadByTheirCode(t *testing.T) {
	refused := func(code string) string {
		return `{"error": {"code": "` + code + `", "message": "m", "suggestion": null}}`
	}
	for _, c := range []struct {
		status             int
		body, launch, list string
	}{
		{400, refused("instance-operations/launch/insufficient-capacity"), "no_capacity", "no_capacity"},
		{400, refused("global/quota-exceeded"), "quota", "quota"},
		{400, refused("global/invalid-parameters"), "invalid", "invalid"},
		{400, refused("global/object-does-not-exist"), "invalid", "not_found"},
		{403, refused("global/account-inactive"), "denied", "denied"},
		{400, refused("global/invalid-address"), "denied", "denied"},
		{500, refused("global/internal-error"), "unknown_outcome", "unavailable"},
		{400, refused("provider/internal-unavailable"), "unknown_outcome", "unavailable"},
		{429, refused("whatever"), "throttled", "throttled"},
		{200, refused("global/new-word"), "unknown_outcome", "unavailable"},
		{302, "", "unknown_outcome", "unavailable"},
		{200, `{}`, "unknown_outcome", "unavailable"},
		{200, `{"data": null}`, "unknown_outcome", "unavailable"},
		{200, `{"data": {"instance_ids": []}}`, "unknown_outcome", "unavailable"},
	} {
		l, _ := open(lambdalabs.Pace{}, map[string]said{typesPath: ok(a10), listPath: ok(none), launchPath: {c.status, c.body}})
		if _, err := l.Launch(t.Context(), want("p1")); provider.Word(err) != c.launch {
			t.Errorf("launch, %d %s: got %v, want %s", c.status, c.body, err, c.launch)
		}
		l, _ = open(lambdalabs.Pace{}, map[string]said{listPath: {c.status, c.body}})
		if _, err := l.List(t.Context()); provider.Word(err) != c.list {
			t.Errorf("list, %d %s: got %v, want %s", c.status, c.body, err, c.list)
		}
	}
}
