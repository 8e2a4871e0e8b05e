package provider_test

import (
	"strings"
	"testing"

	"lowtide/shared/provider"
	"lowtide/shared/provider/providertest"
)

func TestOneGPUHasOneNameWhateverASellerCallsIt(t *testing.T) {
	for _, c := range []struct {
		text string
		gb   float64
		want provider.Card
	}{
		{"A100 SXM4", 80, provider.Card{Model: "A100", Form: "SXM4", Memory: 80}},
		{"NVIDIA A100-PCIE-40GB", 0, provider.Card{Model: "A100", Form: "PCIe", Memory: 40}},
		{"A100 (80 GB SXM4)", 0, provider.Card{Model: "A100", Form: "SXM4", Memory: 80}},
		{"RTX_4090", 23.988, provider.Card{Model: "RTX 4090", Memory: 24}},
		{"NVIDIA GeForce RTX 3090", 24, provider.Card{Model: "RTX 3090", Memory: 24}},
		{"RTX 3090 Ti", 24, provider.Card{Model: "RTX 3090 Ti", Memory: 24}},
		{"8x Tesla V100-SXM2-16GB", 0, provider.Card{Model: "V100", Form: "SXM2", Memory: 16}},
		{"NVIDIA H100 80GB HBM3", 0, provider.Card{Model: "H100", Form: "SXM5", Memory: 80}},
		{"H100 SXM", 79.6, provider.Card{Model: "H100", Form: "SXM", Memory: 80}},
		{"L4", 22.35, provider.Card{Model: "L4", Memory: 24}}, // as EC2 counts it
		{"L4", 2.79, provider.Card{Model: "L4", Memory: 3, Slice: true}},
		{"A10G", 0, provider.Card{Model: "A10G", Memory: 24}},
		{"Quadro RTX 6000", 0, provider.Card{Model: "RTX 6000", Memory: 24}},
		{"RTX 6000 Ada Generation", 48, provider.Card{Model: "RTX 6000 Ada", Memory: 48}},
		{"nvidia_h100", 80, provider.Card{Model: "H100", Memory: 80}},
		{"A6000", 48, provider.Card{Model: "RTX A6000", Memory: 48}},
		{"Ascend snt9b", 64, provider.Card{Model: "Ascend 910B", Memory: 64}},
	} {
		if got, ok := provider.ReadCard(c.text, c.gb); got != c.want || !ok {
			t.Errorf("%q with %v GB: got %+v, %v, want %+v", c.text, c.gb, got, ok, c.want)
		}
	}
	if got, ok := provider.ReadCard("Frobnicator 9000", 12); ok || got.Model != "FROBNICATOR 9000" {
		t.Errorf("an unknown card: got %+v, %v, want the seller's own word", got, ok)
	}
}

func TestLabelsComeBackFromTagsAndFromOneText(t *testing.T) {
	l := providertest.Labels("p 1&x=ü?")
	if got := provider.FromTags(l.Tags()); got != l {
		t.Errorf("tags: got %+v, want %+v", got, l)
	}
	if got := provider.FromText(l.Text()); got != l || strings.ContainsFunc(l.Text(), func(r rune) bool { return r < 33 || r > 126 }) {
		t.Errorf("text %q: got %+v, want %+v", l.Text(), got, l)
	}
	for _, s := range []string{"", "train-7", "lowtide", "lowtide?", "lowtide?f=a", "other?i=x", "%zz"} {
		if got := provider.FromText(s); got != (provider.Labels{}) {
			t.Errorf("%q: got %+v, want somebody else's", s, got)
		}
	}
}
