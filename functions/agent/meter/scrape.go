package meter

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/shared/fleet"
)

// SourceDCGM is the source of what an exporter's page says.
const SourceDCGM = "dcgm"

const (
	mostPage   = 8 << 20         // bytes
	scrapeTime = 3 * time.Second // of one look
)

// scraper reads an exporter's page. A scrape does not ask the hardware: the page is as old as the exporter's own interval.
type scraper struct {
	url    string
	client *http.Client
}

// names are the exporter's, old and new: it renamed many with 4.9.0, and some changed their unit (NVIDIA/dcgm-exporter,
// release notes). Of one field the first that is on the page counts, so the profiler's names stand before the driver's.
var names = []struct {
	name  string
	scale float64 // to the field's unit
	field func(*events.GPUUse) *fleet.Maybe[float64]
}{
	{"DCGM_FI_PROF_SM_ACTIVE", 1, sm},
	{"DCGM_FI_PROF_SM_UTIL_RATIO", 1, sm},
	{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1, active},
	{"DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 1, active},
	{"DCGM_FI_DEV_GPU_UTIL", 0.01, active}, // percent
	{"DCGM_FI_DEV_GPU_UTIL_RATIO", 1, active},
	{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1, tensor},
	{"DCGM_FI_PROF_TENSOR_UTIL_RATIO", 1, tensor},
	{"DCGM_FI_PROF_DRAM_ACTIVE", 1, dram},
	{"DCGM_FI_PROF_DRAM_UTIL_RATIO", 1, dram},
	{"DCGM_FI_DEV_FB_USED", 1.048576, memory},   // MiB
	{"DCGM_FI_DEV_FB_USED_BYTES", 1e-6, memory}, // bytes
	{"DCGM_FI_DEV_POWER_USAGE", 1, power},
	{"DCGM_FI_DEV_BOARD_POWER_WATTS", 1, power},
	{"DCGM_FI_DEV_SM_CLOCK", 1, clock},
}

func sm(g *events.GPUUse) *fleet.Maybe[float64]     { return &g.SM }
func active(g *events.GPUUse) *fleet.Maybe[float64] { return &g.Active }
func tensor(g *events.GPUUse) *fleet.Maybe[float64] { return &g.Tensor }
func dram(g *events.GPUUse) *fleet.Maybe[float64]   { return &g.DRAM }
func memory(g *events.GPUUse) *fleet.Maybe[float64] { return &g.Memory }
func power(g *events.GPUUse) *fleet.Maybe[float64]  { return &g.Power }
func clock(g *events.GPUUse) *fleet.Maybe[float64]  { return &g.Clock }

// PCIe traffic is two rows, in bytes a second.
var pcie = []string{"DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES"}

func (s *scraper) read(ctx context.Context, r *agent.Reading) {
	page, err := s.fetch(ctx)
	if err != nil {
		return // unknown until the exporter answers
	}
	gpus := map[string]*events.GPUUse{}
	of := func(uuid string) *events.GPUUse {
		if gpus[uuid] == nil {
			gpus[uuid] = &events.GPUUse{UUID: uuid}
		}
		return gpus[uuid]
	}
	for _, n := range names {
		for uuid, v := range rows(page[n.name]) {
			if to := n.field(of(uuid)); to.IsZero() {
				*to = fleet.Known(v * n.scale)
			}
		}
	}
	out, in := rows(page[pcie[0]]), rows(page[pcie[1]])
	for uuid, v := range out {
		if w, ok := in[uuid]; ok {
			of(uuid).PCIe = fleet.Known((v + w) / 1e6)
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(gpus)) {
		r.GPUs = append(r.GPUs, *gpus[uuid])
		r.Source = SourceDCGM
	}
}

func (s *scraper) fetch(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	client := s.client
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", s.url, res.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(io.LimitReader(res.Body, mostPage))
}

// rows are a metric's values by the GPU's UUID. Slices of a GPU have the same UUID and cannot be told apart here: they are
// left out, so that one busy slice is not lost among idle ones.
func rows(f *dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	if f == nil {
		return out
	}
	sliced := map[string]bool{}
	for _, m := range f.GetMetric() {
		uuid, slice := "", ""
		for _, l := range m.GetLabel() {
			switch l.GetName() {
			case "UUID":
				uuid = l.GetValue()
			case "GPU_I_ID":
				slice = l.GetValue()
			}
		}
		if slice != "" {
			sliced[uuid] = true
		}
		switch {
		case m.GetGauge() != nil:
			out[uuid] = m.GetGauge().GetValue()
		case m.GetCounter() != nil:
			out[uuid] = m.GetCounter().GetValue()
		case m.GetUntyped() != nil:
			out[uuid] = m.GetUntyped().GetValue()
		}
	}
	maps.DeleteFunc(out, func(uuid string, _ float64) bool { return sliced[uuid] })
	return out
}
