package market_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lowtide/shared/market"
)

func TestATraceIsAskedByTimeSinceItsStart(t *testing.T) {
	tr := market.Trace{Gap: 10 * time.Second, Count: []int{0, 2, 1}, Prices: []float64{1, 2, 3}}
	for _, c := range []struct {
		at    time.Duration
		room  int
		price float64
	}{
		{-time.Second, 0, 1}, {0, 0, 1}, {10 * time.Second, 2, 2}, {29 * time.Second, 1, 3}, {30 * time.Second, 0, 3},
	} {
		if got := tr.Room(c.at); got != c.room {
			t.Errorf("room at %v: got %d, want %d", c.at, got, c.room)
		}
		if got := tr.At(c.at); got != (c.room > 0) {
			t.Errorf("at %v: got %v, want %v", c.at, got, c.room > 0)
		}
		if got := tr.Price(c.at); got != c.price {
			t.Errorf("price at %v: got %v, want %v", c.at, got, c.price)
		}
	}
	if diff := cmp.Diff([]bool{false, true, false}, tr.Up(2)); diff != "" {
		t.Errorf("a gang of two (-want +got):\n%s", diff)
	}
}

func TestABrokenFileIsRefusedInOneLineThatNamesPlaceAndRemedy(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"cut off":    {`{"metadata": {"gap_seconds": 195}, "data": [0, 1`, "byte 48"},
		"lfs":        {"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"},
		"no gap":     {`{"data": [0, 1]}`, "gap_seconds is missing"},
		"zero gap":   {`{"metadata": {"gap_seconds": 0}, "data": [0]}`, "1 second to 7 days"},
		"no data":    {`{"metadata": {"gap_seconds": 195}}`, "data is empty"},
		"negative":   {`{"metadata": {"gap_seconds": 195}, "data": [0, -1]}`, "data[1] is -1"},
		"fraction":   {`{"metadata": {"gap_seconds": 195}, "data": [0.5]}`, "data[0] is 0.5"},
		"words":      {`{"metadata": {"gap_seconds": 195}, "data": ["up"]}`, "must be numbers"},
		"few prices": {`{"metadata": {"gap_seconds": 195}, "data": [0, 1], "prices": [1]}`, "prices has 1"},
		"free":       {`{"metadata": {"gap_seconds": 195}, "data": [0], "prices": [0]}`, "prices[0] is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "us-east-1a_v100_1.json")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := market.Load(dir)
			if err == nil {
				t.Fatal("got no error")
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one line with %q and the file", err, c.want)
			}
		})
	}
}

func TestLoadNamesZonesByFileAndWantsOneGap(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := market.Load(filepath.Join(dir, "absent")); err == nil || !strings.Contains(err.Error(), "no such directory") {
		t.Errorf("absent directory: got %v", err)
	}
	if _, err := market.Load(dir); err == nil || !strings.Contains(err.Error(), "no *.json file") {
		t.Errorf("empty directory: got %v", err)
	}
	write("a_v100_1.json", `{"metadata": {"gap_seconds": 60}, "data": [1]}`)
	write("a_v100_4.json", `{"metadata": {"gap_seconds": 60}, "data": [4]}`)
	write("b_v100_1.json", `{"metadata": {"gap_seconds": 60}, "data": [0]}`)
	traces, err := market.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	var zones []string
	for _, tr := range traces {
		zones = append(zones, tr.Zone)
	}
	if diff := cmp.Diff([]string{"a_v100_1", "a_v100_4", "b"}, zones); diff != "" {
		t.Errorf("zones (-want +got):\n%s", diff)
	}
	write("c.json", `{"metadata": {"gap_seconds": 30}, "data": [0]}`)
	if _, err := market.Load(dir); err == nil || !strings.Contains(err.Error(), "share a clock") {
		t.Errorf("two gaps: got %v", err)
	}
}

func TestModelDependsOnItsArgumentsAlone(t *testing.T) {
	a := market.Model(7, 4, 195*time.Second, 1500)
	if diff := cmp.Diff(a, market.Model(7, 4, 195*time.Second, 1500)); diff != "" {
		t.Errorf("same seed (-first +second):\n%s", diff)
	}
	if cmp.Equal(a, market.Model(8, 4, 195*time.Second, 1500)) {
		t.Error("another seed gave the same market")
	}
	if cmp.Equal(a[0].Count, a[1].Count) {
		t.Error("two zones are one")
	}
	if got := market.Model(1, 0, time.Second, 1); got != nil {
		t.Errorf("no zones: got %v", got)
	}
}

func TestModelledMarketsLookLikeRecordedOnes(t *testing.T) {
	traces := market.Model(1, 30, 195*time.Second, 8000)
	var up, young, youngLost, old, oldLost float64
	for _, tr := range traces {
		up += tr.Availability() / float64(len(traces))
		age := 0
		for i := 1; i < len(tr.Count); i++ {
			lost := tr.Count[i-1] > 0 && tr.Count[i] == 0
			switch {
			case tr.Count[i-1] == 0:
				age = 0
				continue
			case age < 3:
				young++
				youngLost += b2f(lost)
			case age > 120:
				old++
				oldLost += b2f(lost)
			}
			age++
		}
	}
	if up < 0.45 || up > 0.8 {
		t.Errorf("availability: got %.3f, want about 0.64", up)
	}
	if y, o := youngLost/young, oldLost/old; y < 10*o {
		t.Errorf("chance to be lost: got %.4f young and %.4f old a tick, want the young at least ten times as likely", y, o)
	}
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"metadata": {"gap_seconds": 195}, "data": [0, 1, 1]}`))
	f.Add([]byte(`{"metadata": {"gap_seconds": 1e300}, "data": [0, 1e99]}`))
	f.Add([]byte(`{"metadata": {"gap_seconds": 60}, "data": [4], "prices": [0.97]}`))
	f.Add([]byte(`{"metadata": null, "data": null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tr, err := market.Parse(bytes.NewReader(raw))
		if err != nil {
			if msg := err.Error(); msg == "" {
				t.Error("an error that says nothing")
			}
			return
		}
		if tr.Gap < time.Second || len(tr.Count) == 0 {
			t.Errorf("accepted without ticks: %+v", tr)
		}
		for i, c := range tr.Count {
			if c < 0 || tr.At(time.Duration(i)*tr.Gap) != (c > 0) {
				t.Errorf("tick %d: count %d", i, c)
			}
		}
		for _, off := range []time.Duration{-1 << 63, -1, 0, tr.Length(), 1<<63 - 1} {
			tr.Room(off)
			tr.Price(off)
		}
	})
}
