package gpu

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/csv"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Grade says how well a reference throughput is known.
type Grade string

// The grades.
const (
	GradeA    Grade = "A"    // two independent sources within about 5 %
	GradeB    Grade = "B"    // one source, or sources further apart
	GradeC    Grade = "C"    // by analogy with a sibling, or measured in another precision
	GradeNone Grade = "none" // no published figure
)

// Rating is one row of the rated table: what a product is built and sold as. Figures are dense, without sparsity. A zero
// figure is unknown, except NVLink, which has HasNVLink beside it.
type Rating struct {
	SKU        string
	Names      []string // as NVML prints them
	Vendor     string   // nvidia, amd, huawei
	Form       string
	Arch       string
	Compute    string   // compute capability, or the vendor's name for it
	Devices    []uint16 // PCI device ids
	Ambiguous  []uint16 // of these, the ones that other products carry too: the name decides
	Subsystems []uint16 // known subsystem ids; others exist

	Units        int // streaming multiprocessors or compute units
	FlopsPerUnit int // FP16 with FP32 accumulation, per unit and clock
	BoostMHz     int // the clock behind Datasheet, not the highest the device shows

	Datasheet   float64   // FP16 in, FP32 accumulation, TFLOPS
	Half        float64   // FP16 accumulation, TFLOPS
	TF32        float64   // TFLOPS
	FP32        float64   // TFLOPS
	FP64        float64   // TFLOPS, vector
	FP64Tensor  float64   // TFLOPS
	Memory      []float64 // GB, each size it was built with
	MemoryType  string
	BusBits     int
	Bandwidth   float64 // GB/s
	L2          float64 // MB
	Watts       float64
	NVLink      float64 // GB/s, sum of both directions over all links
	HasNVLink   bool
	PCIe        string // generation and width, 4.0x16
	ECC         string // yes, no, opt
	MIG         bool
	Reference   float64 // TFLOPS that healthy devices reach on normal data at 8192; 0 unknown
	Grade       Grade   // of Reference
	Sources     int     // independent sources of Reference
	ReferenceBy string  // who measured it
	RatedBy     string  // whose datasheet
	Uncertain   string  // what to know before trusting the row
}

// Binding reports whether the reference may fail a device: it has a figure, not by analogy, from at least two
// independent sources. A device below a reference that does not bind is in doubt, not rejected.
func (r Rating) Binding() bool {
	return r.Reference > 0 && (r.Grade == GradeA || r.Grade == GradeB) && r.Sources >= 2
}

//go:embed rated.csv
var ratedCSV []byte

// table parses the embedded file once. A file that does not parse is a programmer's mistake.
var table = sync.OnceValue(func() []Rating {
	records, err := csv.NewReader(bytes.NewReader(ratedCSV)).ReadAll()
	if err != nil {
		panic("rated.csv: " + err.Error())
	}
	rows := make([]Rating, 0, len(records))
	for i, record := range records[1:] {
		row, err := parse(records[0], record)
		if err != nil {
			panic(fmt.Sprintf("rated.csv line %d: %v", i+2, err))
		}
		rows = append(rows, row)
	}
	return rows
})

// Ratings is the whole table. The rows are the caller's to read, not to change.
func Ratings() []Rating { return table() }

// TableVersion identifies the table in a result: the head of its SHA-256.
func TableVersion() string {
	sum := sha256.Sum256(ratedCSV)
	return hex.EncodeToString(sum[:8])
}

// Lookup finds the product of a PCI device id, a subsystem id and a name. Where one device id is several boards, the
// subsystem decides if the table knows it, else the name does. A zero id is unknown.
func Lookup(device, subsystem uint16, name string) (Rating, bool) {
	if device == 0 {
		return Rating{}, false
	}
	for _, r := range table() {
		if !slices.Contains(r.Devices, device) {
			continue
		}
		if !slices.Contains(r.Ambiguous, device) || slices.Contains(r.Subsystems, subsystem) || r.Called(name) {
			return r, true
		}
	}
	return Rating{}, false
}

// ByName finds the product that is called so: by SKU or by the name a driver prints, in any spelling of case, spaces and
// dashes and with or without the vendor's brand.
func ByName(name string) (Rating, bool) {
	for _, r := range table() {
		if r.Called(name) {
			return r, true
		}
	}
	return Rating{}, false
}

// Called reports whether name is one of the row's.
func (r Rating) Called(name string) bool {
	want := plain(name)
	return want != "" && (plain(r.SKU) == want || slices.ContainsFunc(r.Names, func(n string) bool { return plain(n) == want }))
}

// brands are words of a product's name that sellers and drivers put in or leave out.
var brands = []string{"nvidia", "tesla", "geforce", "amd", "instinct"}

// plain is a name without brand, case and punctuation.
func plain(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return strings.ContainsRune(" -_/(),", r) })
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return slices.Contains(brands, w) }), " ")
}

// mining are the products made for mining (pci.ids, version 2023.04.10), by device id.
var mining = map[uint16]string{
	0x2082: "CMP 170HX", 0x20c2: "CMP 170HX", 0x1e09: "CMP 50HX", 0x1f0b: "CMP 40HX", 0x2189: "CMP 30HX",
	0x220d: "CMP 90HX", 0x248a: "CMP 70HX", 0x1b07: "P102-100", 0x1b87: "P104-100", 0x1bc7: "P104-101",
	0x1c07: "P106-100", 0x1c09: "P106-090",
}

// Mining names the mining product of a device id or a name, empty for none.
func Mining(device uint16, name string) string {
	if product, ok := mining[device]; ok {
		return product
	}
	for _, product := range mining {
		if strings.Contains(plain(name), plain(product)) {
			return product
		}
	}
	if strings.HasPrefix(plain(name), "cmp ") {
		return name
	}
	return ""
}

// reader reads a record's cells by column and keeps the first error.
type reader struct {
	cells map[string]string
	err   error
}

func (r *reader) list(column string) []string {
	return strings.FieldsFunc(r.cells[column], func(c rune) bool { return c == ';' })
}

func (r *reader) number(column string) float64 {
	return r.parse(column, r.cells[column])
}

func (r *reader) parse(column, cell string) float64 {
	if cell == "" {
		return 0
	}
	v, err := strconv.ParseFloat(cell, 64)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("%s: %w", column, err)
	}
	return v
}

func (r *reader) ids(column string) []uint16 {
	var ids []uint16
	for _, cell := range r.list(column) {
		id, err := strconv.ParseUint(cell, 16, 16)
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("%s: %w", column, err)
		}
		ids = append(ids, uint16(id))
	}
	return ids
}

func parse(header, record []string) (Rating, error) {
	in := &reader{cells: map[string]string{}}
	for i, column := range header {
		in.cells[column] = record[i]
	}
	row := Rating{
		SKU: in.cells["sku"], Names: in.list("names"), Vendor: in.cells["vendor"], Form: in.cells["form"],
		Arch: in.cells["arch"], Compute: in.cells["compute"],
		Devices: in.ids("pci_device_ids"), Ambiguous: in.ids("shared_ids"), Subsystems: in.ids("subsystem_ids"),
		Units: int(in.number("units")), FlopsPerUnit: int(in.number("flops_per_unit_clock")),
		BoostMHz: int(in.number("boost_mhz")), Datasheet: in.number("datasheet_tflops"),
		Half: in.number("fp16_accumulate_tflops"), TF32: in.number("tf32_tflops"), FP32: in.number("fp32_tflops"),
		FP64: in.number("fp64_tflops"), FP64Tensor: in.number("fp64_tensor_tflops"),
		MemoryType: in.cells["memory_type"], BusBits: int(in.number("bus_bits")), Bandwidth: in.number("bandwidth_gbs"),
		L2: in.number("l2_mb"), Watts: in.number("tdp_w"),
		NVLink: in.number("nvlink_gbs"), HasNVLink: in.number("nvlink_gbs") > 0,
		PCIe: in.cells["pcie"], ECC: in.cells["ecc"], MIG: in.cells["mig"] == "yes",
		Reference: in.number("reference_tflops"), Grade: Grade(in.cells["grade"]), Sources: int(in.number("sources")),
		ReferenceBy: in.cells["reference_source"], RatedBy: in.cells["rated_source"], Uncertain: in.cells["uncertain"],
	}
	for _, cell := range in.list("memory_gb") {
		row.Memory = append(row.Memory, in.parse("memory_gb", cell))
	}
	return row, in.err
}
