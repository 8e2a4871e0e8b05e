package provider_test

import (
	"errors"
	"slices"
	"testing"

	"lowtide/shared/provider"
)

func TestOneRegionThatFailsFailsAllAndIsNamed(t *testing.T) {
	one := func(region string) ([]string, error) {
		if region == "bad" {
			return []string{"half"}, provider.ErrThrottled
		}
		return []string{region + "1", region + "2"}, nil
	}
	if got, err := provider.Across("c", "list", []string{"x", "y"}, one); err != nil || !slices.Equal(got, []string{"x1", "x2", "y1", "y2"}) {
		t.Errorf("got %v, %v", got, err)
	}
	got, err := provider.Across("c", "list", []string{"x", "bad", "y"}, one)
	if got != nil || !errors.Is(err, provider.ErrThrottled) || err.Error() != "c: list in bad: "+provider.ErrThrottled.Error() {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestAMachineIsVisitedWhereItWasSeenElseLookedForEverywhere(t *testing.T) {
	var homes provider.Homes
	homes.Seen("m1", "y")
	for id, want := range map[string][]string{"m1": {"y known"}, "m2": {"x", "y"}, "m3": {"x", "y", "z"}} {
		var been []string
		err := homes.Visit(id, []string{"x", "y", "z"}, func(region string, known bool) error {
			if known {
				region += " known"
			}
			if been = append(been, region); id == "m2" && region == "y" || known {
				return nil
			}
			return provider.ErrNotFound
		})
		if !slices.Equal(been, want) || (err != nil) != (id == "m3") || err != nil && !errors.Is(err, provider.ErrNotFound) {
			t.Errorf("%s: been to %v, %v; want %v", id, been, err, want)
		}
	}
	refused := homes.Visit("m4", []string{"x", "y"}, func(string, bool) error { return provider.ErrDenied })
	if !errors.Is(refused, provider.ErrDenied) {
		t.Errorf("what one region refuses: %v", refused)
	}
}
