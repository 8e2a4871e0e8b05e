package provider

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Card is one GPU as it is told apart: model, form factor and memory. What a seller does not say is empty.
type Card struct {
	Model  string // canonical: "A100", "RTX 4090"
	Form   string // "PCIe", "SXM4", "NVL", …
	Memory int    // GB, as its maker counts
	Slice  bool   // less memory than the model was ever built with: a share of a GPU, or a fault
}

// cards is the one table of GPU names: canonical model, the sizes it was built with in GB, and other spellings that
// sellers use, without brand, case, spaces and dashes.
var cards = []struct {
	model string
	sizes []int
	also  []string
}{
	{"K80", []int{12, 24}, nil},
	{"M4000", []int{8}, nil},
	{"M60", []int{8}, nil},
	{"P4", []int{8}, nil},
	{"P40", []int{24}, nil},
	{"P4000", []int{8}, nil},
	{"P5000", []int{16}, nil},
	{"P6000", []int{24}, nil},
	{"P100", []int{12, 16}, nil},
	{"V100", []int{16, 32}, nil},
	{"V100S", []int{32}, nil},
	{"T4", []int{16}, nil},
	{"T4G", []int{16}, nil},
	{"A2", []int{16}, nil},
	{"A10", []int{24}, nil},
	{"A10G", []int{24}, nil},
	{"A16", []int{16}, nil},
	{"A30", []int{24}, nil},
	{"A40", []int{48}, nil},
	{"A100", []int{40, 80}, []string{"A100X"}},
	{"A800", []int{40, 80}, nil},
	{"L2", []int{24}, nil},
	{"L4", []int{24}, nil},
	{"L20", []int{48}, nil},
	{"L40", []int{48}, nil},
	{"L40S", []int{48}, nil},
	{"H20", []int{96, 141}, nil},
	{"H100", []int{80, 94, 96}, nil},
	{"H200", []int{141}, nil},
	{"H800", []int{80}, nil},
	{"GH200", []int{96, 144}, nil},
	{"B200", []int{180, 192}, nil},
	{"B300", []int{270, 288}, nil},
	{"GB200", []int{186, 192}, nil},
	{"GTX 1080 Ti", []int{11}, nil},
	{"RTX 2080 Ti", []int{11, 22}, nil},
	{"RTX 3060", []int{8, 12}, nil},
	{"RTX 3070", []int{8}, nil},
	{"RTX 3080", []int{10, 12}, nil},
	{"RTX 3090", []int{24}, nil},
	{"RTX 3090 Ti", []int{24}, nil},
	{"RTX 4070", []int{12}, nil},
	{"RTX 4080", []int{16}, nil},
	{"RTX 4090", []int{24, 48}, nil},
	{"RTX 4090 D", []int{24, 48}, nil},
	{"RTX 5080", []int{16}, nil},
	{"RTX 5090", []int{32}, nil},
	{"RTX 5090 D", []int{32}, nil},
	{"RTX 4000", []int{8}, []string{"QUADRORTX4000"}},
	{"RTX 5000", []int{16}, []string{"QUADRORTX5000"}},
	{"RTX 6000", []int{24}, []string{"QUADRORTX6000"}},
	{"RTX 8000", []int{48}, []string{"QUADRORTX8000"}},
	{"RTX A4000", []int{16}, []string{"A4000"}},
	{"RTX A4500", []int{20}, []string{"A4500"}},
	{"RTX A5000", []int{24}, []string{"A5000"}},
	{"RTX A6000", []int{48}, []string{"A6000"}},
	{"RTX 4000 Ada", []int{20}, []string{"RTX4000ADAGENERATION"}},
	{"RTX 5000 Ada", []int{32}, []string{"RTX5000ADAGENERATION"}},
	{"RTX 6000 Ada", []int{48}, []string{"RTX6000ADAGENERATION", "6000ADA"}},
	{"RTX PRO 6000", []int{96}, []string{"RTXPRO6000BLACKWELL", "RTXPRO6000WS", "RTXPRO6000S", "RTXPRO6000BLACKWELLWSSERVER", "RTXPRO6000SERVER"}},
	{"MI250X", []int{64, 128}, nil},
	{"MI300X", []int{192}, nil},
	{"MI325X", []int{256}, nil},
	{"Ascend 910B", []int{32, 64}, []string{"910B", "ASCEND910B2", "910B2", "ASCENDSNT9B", "SNT9B"}},
	{"Ascend 910", []int{32}, []string{"910", "SNT9"}},
	{"Ascend 310", []int{8}, []string{"310"}},
}

var (
	cardBreaks  = regexp.MustCompile(`[\s_\-/(),;]+`)
	cardMemory  = regexp.MustCompile(`^([0-9]{1,3})(G|GB|GIB)$`)
	cardForm    = regexp.MustCompile(`^(SXM[0-9]?|PCIE|NVL|OAM|HGX|DGX)$`)
	cardCount   = regexp.MustCompile(`^([0-9]{1,2}X|X[0-9]{1,2})$`)
	cardNoise   = []string{"NVIDIA", "TESLA", "GEFORCE", "VOLTA", "TURING", "AMPERE", "HOPPER", "AMD", "INSTINCT", "HUAWEI", "GPU", "TENSOR", "CORE", "EACH", "PER", "BOARD", "HAS", "2", "GCD", "HBM2", "HBM2E", "HBM3", "HBM3E", "GB", "WS", "SERVER", "EDITION", "WORKSTATION"}
	cardSpelled = func() map[string]int {
		m := map[string]int{}
		for i, c := range cards {
			m[squeeze(c.model)] = i
			for _, a := range c.also {
				m[a] = i
			}
		}
		return m
	}()
)

func squeeze(s string) string { return strings.ToUpper(strings.ReplaceAll(s, " ", "")) }

// ReadCard reads what a seller calls a GPU: "A100 SXM4", "NVIDIA A100-PCIE-40GB", "A100 (80 GB SXM4)", "RTX_4090",
// "8x Tesla V100". memory is what the seller says one GPU has, in GB or GiB; 0 if nothing: sellers round it, and drivers
// keep a little back, so the nearest size that was built within 7 % counts. ok is false for a name that the table lacks:
// the model is then the seller's own word.
func ReadCard(text string, memory float64) (c Card, ok bool) {
	var words []string
	tokens := cardBreaks.Split(strings.ToUpper(text), -1)
	for i, t := range tokens {
		switch {
		case t == "", cardCount.MatchString(t), slices.Contains(cardNoise, t):
		case cardForm.MatchString(t):
			c.Form = formOf(t)
		case cardMemory.MatchString(t):
			memory = number(cardMemory.FindStringSubmatch(t)[1], memory)
		case i+1 < len(tokens) && tokens[i+1] == "GB" && number(t, 0) > 0:
			memory = number(t, memory)
		default:
			words = append(words, t)
		}
	}
	name := strings.Join(words, "")
	i, ok := cardSpelled[name]
	if !ok {
		c.Model, c.Memory = strings.Join(words, " "), int(math.Round(memory))
		return c, false
	}
	c.Model = cards[i].model
	c.Memory, c.Slice = built(cards[i].sizes, memory)
	if c.Form == "" && strings.Contains(strings.ToUpper(text), "HBM3") && c.Model == "H100" {
		c.Form = "SXM5" // drivers name the board by its memory
	}
	return c, true
}

// formOf writes a form factor as its maker does; boards of a maker's own carry what the words mean.
func formOf(t string) string {
	switch t {
	case "PCIE":
		return "PCIe"
	case "HGX", "DGX":
		return "SXM"
	}
	return t
}

// built is the size that a seller means; a size far under all of them is a share of a GPU.
func built(sizes []int, said float64) (gb int, slice bool) {
	if said <= 0 {
		if len(sizes) == 1 {
			return sizes[0], false
		}
		return 0, false
	}
	for _, s := range sizes {
		if math.Abs(said/float64(s)-1) <= 0.07 {
			return s, false
		}
	}
	return int(math.Round(said)), said < 0.93*float64(sizes[0])
}

func number(s string, otherwise float64) float64 {
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		return f
	}
	return otherwise
}
