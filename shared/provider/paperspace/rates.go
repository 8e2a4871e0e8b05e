package paperspace

import (
	"strconv"
	"strings"
	"time"

	"lowtide/shared/provider"
)

// rates are USD an hour of a whole machine, for types of which this account has had none: the API tells no price. They are
// of skypilot-org/skypilot-catalog, series v6, which does not date itself and was last made when it was of use, about the
// middle of 2024. What an account pays replaces them, and so does its price book.
var rates = map[string]string{
	"H100": "5.95", "H100x8": "47.60", "A100-80G": "3.18", "A100-80Gx8": "25.44", "V100": "2.29", "V100-32G": "2.30", "V100-32Gx2": "4.60",
	"V100-32Gx4": "9.20", "GPU+": "0.45", "P4000": "0.51", "P4000x2": "1.02", "A4000": "0.76", "A4000x2": "1.52", "A4000x4": "3.04",
}

var ratesAsOf = time.Date(2024, 7, 1, 0, 0, 0, 0, time.UTC)

// kind reads the GPUs out of a type's name: "A100-80Gx8". The model is "" for a type without any, or one that is not known.
func kind(name string) (provider.Card, int) {
	count := 1
	base := name
	if i := strings.LastIndex(name, "x"); i > 0 {
		if n, err := strconv.Atoi(name[i+1:]); err == nil && n > 0 {
			base, count = name[:i], n
		}
	}
	switch base {
	case "GPU+":
		base = "M4000"
	case "V100": // the other one says its memory
		base = "V100-16G"
	case "A100":
		base = "A100-40G"
	case "H100":
		base = "H100-80G"
	}
	card, known := provider.ReadCard(base, 0)
	if !known || card.Slice {
		return provider.Card{}, 0
	}
	return card, count
}
