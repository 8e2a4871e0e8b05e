package market

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// maxFile bounds one trace file: ten years of one-minute ticks are 16 MB.
const maxFile = 64 << 20

// maxCount bounds the instances of one tick; above it the file holds something else than counts.
const maxCount = 1 << 30

// Load reads every *.json file of a directory, in the order of their names. The zone is the file's name up to
// the first underscore, or the whole name without .json where two files would share it. All traces of a
// directory must have the same gap, because they share a clock; they may differ in length.
func Load(dir string) ([]Trace, error) {
	names, err := filepath.Glob(filepath.Join(escape(dir), "*.json"))
	if err != nil {
		return nil, fmt.Errorf("load traces from %s: %w", dir, err)
	}
	if len(names) == 0 {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("load traces from %s: no such directory; give one that holds <zone>_*.json files", dir)
		}
		return nil, fmt.Errorf("load traces from %s: no *.json file in it; give a directory that holds <zone>_*.json files", dir)
	}
	sort.Strings(names)
	traces := make([]Trace, 0, len(names))
	for _, name := range names {
		t, err := loadFile(name)
		if err != nil {
			return nil, err
		}
		if len(traces) > 0 && traces[0].Gap != t.Gap {
			return nil, fmt.Errorf("load trace %s: gap_seconds is %v and %v in %s; traces of one directory share a clock, keep other gaps in another directory",
				name, t.Gap.Seconds(), traces[0].Gap.Seconds(), filepath.Base(names[0]))
		}
		traces = append(traces, t)
	}
	nameZones(traces, names)
	return traces, nil
}

// Parse reads one trace: {"metadata": {"gap_seconds": 195}, "data": [0, 1, ...]}, data[i] being the number of
// instances to be had in tick i (1 = available). An optional "prices" holds the spot price of each tick in $/h.
// The zone is left empty: it is not in the file. Other keys are ignored.
func Parse(r io.Reader) (Trace, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return Trace{}, fmt.Errorf("read: %w", err)
	}
	if len(raw) > maxFile {
		return Trace{}, fmt.Errorf("longer than %d MiB; split it by time", maxFile>>20)
	}
	var f struct {
		Metadata struct {
			Gap *float64 `json:"gap_seconds"`
		} `json:"metadata"`
		Data   []float64 `json:"data"`
		Prices []float64 `json:"prices"`
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return Trace{}, explain(raw, err)
	}
	if f.Metadata.Gap == nil {
		return Trace{}, errors.New(`metadata.gap_seconds is missing; say how many seconds a tick lasts, like "metadata": {"gap_seconds": 195}`)
	}
	if !(*f.Metadata.Gap >= 1 && *f.Metadata.Gap <= 7*24*3600) {
		return Trace{}, fmt.Errorf("metadata.gap_seconds is %v; a tick lasts from 1 second to 7 days", *f.Metadata.Gap)
	}
	if len(f.Data) == 0 {
		return Trace{}, errors.New("data is empty or missing; it needs one count of instances for each tick")
	}
	t := Trace{Gap: time.Duration(math.Round(*f.Metadata.Gap * float64(time.Second)))}
	t.Count = make([]int, len(f.Data))
	for i, v := range f.Data {
		if v < 0 || v > maxCount || v != math.Trunc(v) {
			return Trace{}, fmt.Errorf("data[%d] is %v; it must be the whole number of instances available in that tick, 0 for none", i, v)
		}
		t.Count[i] = int(v)
	}
	if len(f.Prices) == 0 {
		return t, nil
	}
	if len(f.Prices) != len(f.Data) {
		return Trace{}, fmt.Errorf("prices has %d values and data %d; give one price a tick or leave prices out", len(f.Prices), len(f.Data))
	}
	for i, v := range f.Prices {
		if !(v > 0 && v < 1e6) {
			return Trace{}, fmt.Errorf("prices[%d] is %v; it must be a price in $/h above 0", i, v)
		}
	}
	t.Prices = f.Prices
	return t, nil
}

func loadFile(name string) (Trace, error) {
	f, err := os.Open(name)
	if err != nil {
		return Trace{}, fmt.Errorf("load trace: %w", err)
	}
	defer f.Close()
	t, err := Parse(f)
	if err != nil {
		return Trace{}, fmt.Errorf("load trace %s: %w", name, err)
	}
	return t, nil
}

// explain turns a decoder's error into one line with the place.
func explain(raw []byte, err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		at := int(min(syntax.Offset, int64(len(raw))))
		line := 1 + strings.Count(string(raw[:at]), "\n")
		return fmt.Errorf("not JSON at byte %d (line %d): %w; the file may be cut off or be a Git LFS pointer, fetch it again", at, line, err)
	}
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Errorf("%s at byte %d is a JSON %s; it must be numbers, as in \"data\": [0, 1, 1]", kind.Field, kind.Offset, kind.Value)
	}
	return fmt.Errorf("not a trace: %w", err)
}

// nameZones names each trace by its file.
func nameZones(traces []Trace, files []string) {
	short := func(file string) string {
		s := strings.TrimSuffix(filepath.Base(file), ".json")
		zone, _, _ := strings.Cut(s, "_")
		return zone
	}
	times := map[string]int{}
	for _, f := range files {
		times[short(f)]++
	}
	for i, f := range files {
		traces[i].Zone = short(f)
		if times[short(f)] > 1 || short(f) == "" {
			traces[i].Zone = strings.TrimSuffix(filepath.Base(f), ".json")
		}
	}
}

// escape keeps a directory's own *, ? and [ from being read as a pattern.
func escape(dir string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir)
}
