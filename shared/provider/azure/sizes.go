package azure

import (
	"regexp"
	"strconv"
	"strings"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// kind is a size's GPUs; without a model where its name tells none.
type kind struct {
	card  provider.Card
	count int
}

func (k kind) of(o fleet.Offer) fleet.Offer {
	o.GPU, o.GPUs, o.Form, o.Memory = k.card.Model, k.count, k.card.Form, k.card.Memory
	return o
}

// sizes says which GPUs a size has, by what its name looks like and by its first number, the vCPUs. The first row that fits
// counts; vCPUs that a row lacks are a share of a GPU. Source: the vendor's pages of its sizes.
var sizes = []struct {
	name  *regexp.Regexp
	gpu   string
	count map[int]int
}{
	{regexp.MustCompile(`^Standard_NC(\d+)r?s_v3$`), "V100 PCIe 16GB", map[int]int{6: 1, 12: 2, 24: 4}},
	{regexp.MustCompile(`^Standard_ND(\d+)rs_v2$`), "V100 SXM2 32GB", map[int]int{40: 8}},
	{regexp.MustCompile(`^Standard_NC(\d+)as_T4_v3$`), "T4", map[int]int{4: 1, 8: 1, 16: 1, 64: 4}},
	{regexp.MustCompile(`^Standard_NC(\d+)ads_A100_v4$`), "A100 PCIe 80GB", map[int]int{24: 1, 48: 2, 96: 4}},
	{regexp.MustCompile(`^Standard_ND(\d+)asr(_A100)?_v4$`), "A100 SXM4 40GB", map[int]int{96: 8}},
	{regexp.MustCompile(`^Standard_ND(\d+)amsr?_A100_v4$`), "A100 SXM4 80GB", map[int]int{96: 8}},
	{regexp.MustCompile(`^Standard_NCC?(\d+)adi?s_H100_v5$`), "H100 NVL 94GB", map[int]int{40: 1, 80: 2}},
	{regexp.MustCompile(`^Standard_ND(\d+)is[a-z]*(_flex|_noIB)?_H100_v5$`), "H100 SXM5 80GB", map[int]int{96: 8}},
	{regexp.MustCompile(`^Standard_ND(\d+)isr_H200_v5$`), "H200", map[int]int{96: 8}},
	{regexp.MustCompile(`^Standard_ND(\d+)isr_MI300X_v5$`), "MI300X", map[int]int{96: 8}},
	{regexp.MustCompile(`^Standard_ND(\d+)isr_NDR_GB200_v6$`), "GB200", map[int]int{128: 4}},
	{regexp.MustCompile(`^Standard_NV(\d+)adm?s_A10_v5$`), "A10", map[int]int{36: 1, 72: 2}},
}

// kindOf are the GPUs of a size. told is how many the API says that it has, 0 for none or where it was not asked: it counts
// only for a size that the table does not know.
func kindOf(size string, told int) (kind, bool) {
	for _, row := range sizes {
		m := row.name.FindStringSubmatch(size)
		if m == nil {
			continue
		}
		cpus, _ := strconv.Atoi(m[1])
		card, _ := provider.ReadCard(row.gpu, 0)
		return kind{card, row.count[cpus]}, row.count[cpus] > 0
	}
	return kind{count: told}, told > 0
}

// region is a region's name as it is compared: "WestUS 3" is westus3.
func region(s string) string { return strings.ToLower(strings.ReplaceAll(s, " ", "")) }
