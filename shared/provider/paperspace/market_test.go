package paperspace_test

import (
	"encoding/csv"
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
	"lowtide/shared/provider/paperspace"
	"lowtide/shared/provider/paperspace/paperspacetest"
	"lowtide/shared/provider/providertest"
)

// account is one at the stand-in, which answers some requests ("POST /machines") with other bytes.
type account struct {
	*paperspace.Paperspace
	server *paperspacetest.Server
	cloud  *fake.Cloud
	by     map[string]answer
	asked  []string
}

type answer struct {
	status int
	body   string
}

func at(t *testing.T) *account {
	t.Helper()
	c, err := fake.Open(paperspacetest.Market())
	if err != nil {
		t.Fatal(err)
	}
	a := &account{cloud: c, server: paperspacetest.New(c, &fake.Knobs{}), by: map[string]answer{}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.asked = append(a.asked, r.Method+" "+r.URL.Path)
		if said, ok := a.by[r.Method+" "+r.URL.Path]; ok {
			w.WriteHeader(said.status)
			fmt.Fprint(w, said.body)
			return
		}
		a.server.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	a.Paperspace = open(srv.URL, srv.Client(), time.Now).(*paperspace.Paperspace)
	return a
}

func want(plan string) provider.Request {
	return provider.Request{Token: "t", Name: "m", Labels: providertest.Labels(plan), UserData: "A=1\n", Offer: fleet.Offer{
		Cloud: "paperspace", Account: "main", Region: "ny2", Type: "A100-80G", Market: fleet.OnDemand,
	}}
}

func TestAPriceIsOfTheTableUntilThisAccountIsBilled(t *testing.T) {
	a := at(t)
	price := func() fleet.Offer {
		all, err := a.Offers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			if strings.HasPrefix(o.Type, "C5") {
				t.Errorf("%s has no GPU", o)
			}
			if o.Region == "ca1" && o.Type == "A100-80G" {
				return o
			}
		}
		t.Fatal("not offered")
		return fleet.Offer{}
	}
	if o := price(); o.Price.Amount.String() != "3.1800 USD" || o.Quoted.IsZero() || o.GPU != "A100" || o.Memory != 80 {
		t.Errorf("before: %+v", o)
	}
	m, err := a.Launch(t.Context(), want("p1"))
	if err != nil || m.Offer.Price.Amount.String() != "3.2800 USD" {
		t.Fatalf("got %+v and %v", m, err)
	}
	if o := price(); o.Price.Amount.String() != "3.2800 USD" || !o.Quoted.IsZero() {
		t.Errorf("after: %+v", o)
	}
}

func TestWhatIsNotToBeHadIsSaidAndNotProbed(t *testing.T) {
	a := at(t)
	a.by["GET /machine-availability"] = answer{200, string(providertest.Sample(t, "paperspace-v1-machine-availability.json"))}
	all, err := a.Offers(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatalf("got %v and %v", all, err)
	}
	for _, o := range all {
		if n, known := o.Stock.Get(); !known || n != 0 {
			t.Errorf("%s: stock %v", o, o.Stock)
		}
	}
	if _, err := a.Launch(t.Context(), want("p1")); !errors.Is(err, provider.ErrNoCapacity) {
		t.Errorf("got %v", err)
	}
	for _, asked := range a.asked {
		if strings.HasPrefix(asked, "POST") {
			t.Errorf("asked %s", asked)
		}
	}
}

func TestARefusalLeavesNoScriptWithACredential(t *testing.T) {
	a := at(t)
	a.by["POST /machines"] = answer{400, string(providertest.Sample(t, "paperspace-v1-error.json"))}
	if _, err := a.Launch(t.Context(), want("p1")); !errors.Is(err, provider.ErrNoCapacity) || len(a.server.Scripts()) != 0 {
		t.Errorf("got %v, left %v", err, a.server.Scripts())
	}
	for body, word := range map[string]string{
		`{"code": "BAD_REQUEST", "message": "You have reached your limit of machines"}`: "quota",
		`{"code": "BAD_REQUEST", "message": "diskSize is wrong"}`:                       "invalid",
		`{"code": "BAD_REQUEST", "message": "A payment method is needed"}`:              "denied",
	} {
		a.by["POST /machines"] = answer{400, body}
		if _, err := a.Launch(t.Context(), want("p1")); provider.Word(err) != word || strings.Contains(err.Error(), "limit of") {
			t.Errorf("%s: got %v, want %s", body, err, word)
		}
	}
}

func TestAMachineThatFailedWhileItWasMadeIsDeleted(t *testing.T) {
	a := at(t)
	made := string(providertest.Sample(t, "paperspace-v1-machine-create-response.json"))
	a.by["POST /machines"] = answer{200, strings.Replace(made, `"state": "new"`, `"state": "error"`, 1)}
	a.by["GET /machines/psabc1234567"] = answer{200, `{"id": "psabc1234567", "name": "` + providertest.Labels("p1").Text() + `"}`}
	a.by["DELETE /machines/psabc1234567"] = answer{200, `{}`}
	_, err := a.Launch(t.Context(), want("p1"))
	if !errors.Is(err, provider.ErrNoCapacity) || len(a.server.Scripts()) != 0 || !strings.Contains(strings.Join(a.asked, "\n"), "DELETE /machines/psabc1234567") {
		t.Errorf("got %v, left %v, asked %v", err, a.server.Scripts(), a.asked)
	}
}

func TestTheVendorsMachineIsRead(t *testing.T) {
	a := at(t)
	a.by["POST /machines"] = answer{200, string(providertest.Sample(t, "paperspace-v1-machine-create-response.json"))}
	m, err := a.Launch(t.Context(), want("p1"))
	if err != nil || m.ID != "psabc1234567" || m.State != provider.Pending || m.Offer.Price.Amount.String() != "3.1800 USD" || m.Offer.GPU != "A100" ||
		m.Offer.Region != "ny2" || m.Since.Year() != 2026 {
		t.Errorf("got %+v and %v", m, err)
	}
}

func TestAMachineThatIsOffIsToldAsStopped(t *testing.T) {
	a := at(t)
	m, err := a.Launch(t.Context(), want("p1"))
	if err != nil {
		t.Fatal(err)
	}
	for said, is := range map[string]provider.State{
		"provisioning": provider.Pending, "starting": provider.Pending, "ready": provider.Running, "off": provider.Stopped, "upgrading": provider.Running,
	} {
		a.server.SetState(m.ID, said)
		all, err := a.List(t.Context())
		if err != nil || len(all) != 1 || all[0].State != is {
			t.Errorf("%s: got %+v and %v", said, all, err)
		}
	}
	if err := a.End(t.Context(), m.ID); err != nil || len(a.server.Scripts()) != 0 {
		t.Errorf("end: %v, left %v", err, a.server.Scripts())
	}
}

func TestAScriptThatCouldNotBeDeletedIsDeletedByTheNextEnd(t *testing.T) {
	a := at(t)
	m, err := a.Launch(t.Context(), want("p1"))
	if err != nil {
		t.Fatal(err)
	}
	a.by["DELETE /startup-scripts/ss1"] = answer{503, ``}
	if err := a.End(t.Context(), m.ID); !errors.Is(err, provider.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	delete(a.by, "DELETE /startup-scripts/ss1")
	if err := a.End(t.Context(), m.ID); err != nil && !errors.Is(err, provider.ErrNotFound) || len(a.server.Scripts()) != 0 {
		t.Errorf("got %v, left %v", err, a.server.Scripts())
	}
}

// Each GPU type of the catalogue has the name and the price of the table.
func TestTheCataloguesRowsAreTheTable(t *testing.T) {
	_, rows, _ := strings.Cut(string(providertest.Sample(t, "paperspace-skypilot-catalog-v6.csv")), "\n")
	all, err := csv.NewReader(strings.NewReader(rows)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	listed := map[string]string{}
	for _, r := range all[1:] {
		types = append(types, `{"machineTypeLabel": "`+r[0]+`"}`)
		if r[1] != "" {
			listed[r[0]] = r[8]
		}
	}
	a := at(t)
	a.by["GET /os-templates"] = answer{200, `{"hasMore": false, "items": [{"availableMachineTypes": [` + strings.Join(types, ",") + `]}]}`}
	a.by["GET /machine-availability"] = answer{200, `{"available": true}`}
	offers, err := a.Offers(t.Context())
	if err != nil || len(offers) != 3*len(listed) {
		t.Fatalf("got %d offers and %v, want %d types in three regions", len(offers), err, len(listed))
	}
	for _, o := range offers {
		if o.Price.Amount.Amount.StringFixed(2) != listed[o.Type] || o.Memory == 0 {
			t.Errorf("%s: read as %+v, the catalogue has %s", o.Type, o, listed[o.Type])
		}
	}
}
