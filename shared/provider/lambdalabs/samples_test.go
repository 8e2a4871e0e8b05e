package lambdalabs_test

import (
	"encoding/csv"
	"strings"
	"testing"

	"lowtide/shared/provider"
	"lowtide/shared/provider/lambdalabs"
	"lowtide/shared/provider/providertest"
)

func TestTheVendorsOwnTypesAreRead(t *testing.T) {
	l, _ := open(lambdalabs.Pace{}, map[string]said{typesPath: ok(string(providertest.Sample(t, "lambda-instance-types.json")))})
	offers, err := l.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range offers {
		got[o.Region+" "+o.Type] = o.Price.Amount.String() + " " + o.GPU + " " + o.Form
	}
	if len(got) != 2 || got["us-east-1 gpu_1x_h100_sxm5"] != "4.2900 USD H100 SXM5" || got["us-west-1 gpu_1x_a100"] != "1.9900 USD A100 " {
		t.Errorf("read %q", got)
	}
}

func TestTheVendorsOwnAnswersToALaunchAreOfTheClosedList(t *testing.T) {
	for _, c := range []struct {
		file   string
		status int
		word   string
	}{
		{"lambda-error-insufficient-capacity.json", 400, "no_capacity"},
		{"lambda-error-quota.json", 400, "quota"},
		{"lambda-error-provider.json", 503, "unknown_outcome"},
		{"lambda-launch-response.json", 200, ""},
	} {
		l, _ := open(lambdalabs.Pace{}, map[string]said{typesPath: ok(a10), listPath: ok(none), launchPath: {c.status, string(providertest.Sample(t, c.file))}})
		m, err := l.Launch(t.Context(), want("p1"))
		if c.word == "" && (err != nil || m.ID != "0920582c7ff041399e34823a0be62549") || c.word != "" && provider.Word(err) != c.word {
			t.Errorf("%s: got %+v and %v, want %s", c.file, m, err, c.word)
		}
	}
}

func TestEveryGPUOfThePublicCatalogueHasAName(t *testing.T) {
	_, rows, _ := strings.Cut(string(providertest.Sample(t, "lambda-skypilot-catalog-v9.csv")), "\n")
	all, err := csv.NewReader(strings.NewReader(rows)).ReadAll()
	if err != nil || len(all) < 100 {
		t.Fatalf("got %d rows and %v", len(all), err)
	}
	for _, r := range all[1:] {
		if card, known := provider.ReadCard(r[1], 0); r[1] != "" && (!known || card.Slice) {
			t.Errorf("%s: %q is read as %+v", r[0], r[1], card)
		}
	}
}
