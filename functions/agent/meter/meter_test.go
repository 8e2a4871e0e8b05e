package meter_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/agent/meter"
	"lowtide/shared/fleet"
	"lowtide/shared/gpu/gputest"
)

// asProgram makes this test binary read so many times and print what it saw: the loader keeps a library once it is open, so
// each fake machine needs a process of its own.
const asProgram = "LOWTIDE_TEST_LOOKS"

// seen is what the program prints.
type seen struct {
	Readings []agent.Reading
	CPU      time.Duration // that the looks cost
	Grew     int64         // memory of the process at most, above what it was before, bytes; 0 where the kernel does not tell
}

func TestMain(m *testing.M) {
	looks, err := strconv.Atoi(os.Getenv(asProgram))
	if err != nil {
		os.Exit(m.Run())
	}
	was := peak()
	use := meter.New(meter.Options{})
	var s seen
	before := cpuTime()
	for range looks {
		s.Readings = append(s.Readings[:max(0, len(s.Readings)-1)], use.Read(context.Background())) // the last two
		if len(s.Readings) == 1 && looks > 1 {
			s.Readings = append(s.Readings, s.Readings[0])
		}
		time.Sleep(110 * time.Millisecond) // the counters' own shortest span
	}
	s.CPU, s.Grew = cpuTime()-before, peak()-was
	use.Close()
	if json.NewEncoder(os.Stdout).Encode(s) != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func look(t testing.TB, looks int, env ...string) seen {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append([]string{asProgram + "=" + strconv.Itoa(looks), "HOME=" + t.TempDir()}, env...)
	out, err := cmd.Output()
	var s seen
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return s
}

func known(v float64) fleet.Maybe[float64] { return fleet.Known(v) }

func TestEachCardIsReadAsFarAsItCanBe(t *testing.T) {
	unknown := fleet.Maybe[float64]{}
	hopper := gputest.Card{"busy": 100, "sm": 7, "tensor": 3, "dram": 5, "pcie_mbs": 40, "power_w": 130, "clock": 1980, "processes": 1, "used_mb": 600}
	ampere := gputest.Card{"busy": 100, "busy_memory": 12, "pcie_mbs": 40, "power_w": 130, "clock": 1410, "used_mb": 600}
	sliced := gputest.Card{"mig": 1, "power_w": 130, "clock": 1410}
	for name, c := range map[string]struct {
		card   gputest.Card
		source string
		want   events.GPUUse
	}{
		"counters of its own":          {hopper, "gpm", events.GPUUse{SM: known(0.07), Active: known(1), Tensor: known(0.03), DRAM: known(0.05), PCIe: known(40), Processes: known(1)}},
		"the driver's samples":         {ampere, "nvml", events.GPUUse{SM: unknown, Active: known(1), Tensor: unknown, DRAM: known(0.12), PCIe: known(40), Processes: known(0)}},
		"in slices: unknown, not idle": {sliced, "nvml", events.GPUUse{Processes: known(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := look(t, 3, gputest.Machine{Cards: []gputest.Card{c.card}}.Environment(t)...)
			r := s.Readings[len(s.Readings)-1]
			if r.Source != c.source || len(r.GPUs) != 1 {
				t.Fatalf("got %+v", r)
			}
			got := r.GPUs[0]
			for what, v := range map[string][2]fleet.Maybe[float64]{
				"SM": {got.SM, c.want.SM}, "active": {got.Active, c.want.Active}, "tensor": {got.Tensor, c.want.Tensor}, "DRAM": {got.DRAM, c.want.DRAM},
				"PCIe": {got.PCIe, c.want.PCIe}, "processes": {got.Processes, c.want.Processes},
			} {
				if fmt.Sprintf("%.3v", v[0]) != fmt.Sprintf("%.3v", v[1]) {
					t.Errorf("%s: got %v, want %v", what, v[0], v[1])
				}
			}
			if got.Power.Or(0) != 130 || got.UUID == "" {
				t.Errorf("got %+v", got)
			}
			if _, ok := r.CPU.Get(); !ok {
				t.Error("the cores are unknown on a machine that has /proc")
			}
		})
	}
}

func TestALostCardAndAnOldLibraryTakeNothingFromTheRest(t *testing.T) {
	cards := []gputest.Card{{"busy": 40}, {"handle": 15}, {"busy": 60, "sm": 50}}
	s := look(t, 2, gputest.Machine{Cards: cards}.Environment(t, gputest.Old)...)
	r := s.Readings[len(s.Readings)-1]
	if len(r.GPUs) != 2 || r.Source != "nvml" || r.GPUs[0].Active.Or(0) != 0.4 || r.GPUs[1].Active.Or(0) != 0.6 {
		t.Errorf("got %+v", r)
	}
}

func TestWithoutALibraryTheGPUsAreUnknown(t *testing.T) {
	s := look(t, 2, "LD_LIBRARY_PATH="+t.TempDir())
	if r := s.Readings[len(s.Readings)-1]; r.Source != "" || len(r.GPUs) != 0 {
		t.Errorf("got %+v", r)
	}
}

// A look costs at most 0.5 % of a core, each five seconds, and all looks together add at most 30 MB to the agent.
const (
	mostCPU    = 25 * time.Millisecond
	mostMemory = 30 << 20
)

func TestALookIsCheap(t *testing.T) {
	cards := make([]gputest.Card, 8)
	for i := range cards {
		cards[i] = gputest.Card{"sm": 50, "uuid": fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i)}
	}
	const looks = 20
	s := look(t, looks, gputest.Machine{Cards: cards}.Environment(t)...)
	each := s.CPU / looks
	t.Logf("eight cards: %s of a core a look (%.3f %% at one each 5 s), %.1f MB", each, 100*each.Seconds()/5, float64(s.Grew)/(1<<20))
	if each > mostCPU {
		t.Errorf("a look costs %s of a core, at most %s", each, mostCPU)
	}
	if s.Grew > mostMemory && !raced {
		t.Errorf("%d bytes of memory, at most %d", s.Grew, mostMemory)
	}
}

func BenchmarkLook(b *testing.B) {
	cards := make([]gputest.Card, 8)
	for i := range cards {
		cards[i] = gputest.Card{"sm": 50, "uuid": fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i)}
	}
	env := gputest.Machine{Cards: cards}.Environment(b)
	for b.Loop() {
		s := look(b, 20, env...)
		b.ReportMetric(float64(s.CPU.Microseconds())/20, "core-µs/look")
		b.ReportMetric(float64(s.Grew)/(1<<20), "MB")
	}
}

// page is what an exporter serves, written to its documented form.
func page(rows ...string) string {
	var b strings.Builder
	for _, r := range rows {
		name, _, _ := strings.Cut(r, "{")
		fmt.Fprintf(&b, "# HELP %s x\n# TYPE %s gauge\n%s\n", name, name, r)
	}
	return b.String()
}

func TestOldAndNewNamesOfTheExporterMeanTheSame(t *testing.T) {
	row := func(name, value string) string { return name + `{gpu="0",UUID="GPU-1",modelName="X"} ` + value }
	old := page(row("DCGM_FI_PROF_SM_ACTIVE", "0.07"), row("DCGM_FI_DEV_GPU_UTIL", "100"), row("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0.03"),
		row("DCGM_FI_PROF_DRAM_ACTIVE", "0.05"), row("DCGM_FI_DEV_FB_USED", "1000"), row("DCGM_FI_DEV_POWER_USAGE", "130"),
		row("DCGM_FI_PROF_PCIE_TX_BYTES", "1e6"), row("DCGM_FI_PROF_PCIE_RX_BYTES", "3e6"))
	renamed := page(row("DCGM_FI_PROF_SM_UTIL_RATIO", "0.07"), row("DCGM_FI_DEV_GPU_UTIL_RATIO", "1"), row("DCGM_FI_PROF_TENSOR_UTIL_RATIO", "0.03"),
		row("DCGM_FI_PROF_DRAM_UTIL_RATIO", "0.05"), row("DCGM_FI_DEV_FB_USED_BYTES", "1048576000"), row("DCGM_FI_DEV_BOARD_POWER_WATTS", "130"),
		row("DCGM_FI_PROF_PCIE_TX_BYTES", "1e6"), row("DCGM_FI_PROF_PCIE_RX_BYTES", "3e6"))
	for name, text := range map[string]string{"old": old, "new": renamed} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }))
		r := meter.New(meter.Options{Scrape: s.URL}).Read(t.Context())
		s.Close()
		if r.Source != "dcgm" || len(r.GPUs) != 1 {
			t.Fatalf("%s: got %+v", name, r)
		}
		g := r.GPUs[0]
		if g.UUID != "GPU-1" || g.SM != known(0.07) || g.Active != known(1) || g.Tensor != known(0.03) || g.DRAM != known(0.05) || g.Power != known(130) || g.PCIe != known(4) {
			t.Errorf("%s: got %+v", name, g)
		}
		if mb := g.Memory.Or(0); mb < 1048.5 || mb > 1048.6 {
			t.Errorf("%s: %v MB held, want 1048.576", name, mb)
		}
	}
}

func TestAnExporterThatIsAwayOrSlicedLeavesTheGPUsUnknown(t *testing.T) {
	for name, text := range map[string]string{
		"away": "", "garbage": "{{{", "sliced": page(`DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",GPU_I_ID="1"} 4`), "empty": "\n",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if text == "" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			fmt.Fprint(w, text)
		}))
		r := meter.New(meter.Options{Scrape: s.URL}).Read(t.Context())
		s.Close()
		if r.Source != "" || len(r.GPUs) != 0 {
			t.Errorf("%s: got %+v", name, r)
		}
	}
}

func TestTheKernelsCountersBecomeRates(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	at := func(cpu, idle, sectors, bytes int) {
		write("stat", fmt.Sprintf("cpu  %d 0 0 %d 0 0 0 0 0 0\ncpu0 1 2 3 4\n", cpu, idle))
		write("diskstats", fmt.Sprintf(" 8 0 sda 1 0 %d 0 1 0 0 0 0 0 0\n 8 1 sda1 1 0 %d 0 1 0 999999 0 0 0 0\n", sectors, sectors))
		write("net/dev", fmt.Sprintf("Inter-|\n face |\n    lo: 99999999 0 0 0 0 0 0 0 99999999 0\n  eth0: %d 0 0 0 0 0 0 0 %d 0\n", bytes, bytes))
	}
	at(100, 900, 0, 0)
	use := meter.New(meter.Options{Proc: proc, Scrape: "http://127.0.0.1:1"})
	if r := use.Read(t.Context()); !r.CPU.IsZero() || !r.Disk.IsZero() || !r.Network.IsZero() {
		t.Errorf("one look gives no rate: %+v", r)
	}
	time.Sleep(100 * time.Millisecond) // rates are of real time
	at(400, 1000, 2000, 5e6)
	r := use.Read(t.Context())
	if r.CPU.Or(0) != 0.75 || r.Disk.Or(0) <= 0 || r.Network.Or(0) <= 9*r.Disk.Or(0) {
		t.Errorf("got %+v, want 3 of 4 ticks, about 1 MB and 10 MB over the same time", r)
	}
	if err := os.RemoveAll(proc); err != nil {
		t.Fatal(err)
	}
	if r := use.Read(t.Context()); !r.CPU.IsZero() || !r.Disk.IsZero() || !r.Network.IsZero() {
		t.Errorf("hidden counters are unknown: %+v", r)
	}
}
