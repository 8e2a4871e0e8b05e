package suite_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"lowtide/benchrunner/suite"
	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
)

// quick is a run of well under a second on one thread.
func quick(t *testing.T, change func(*suite.Options)) suite.Result {
	t.Helper()
	o := suite.Options{Nonce: "n1", Threads: 1, Size: 64, Window: 4 * time.Millisecond, WarmUp: 20 * time.Millisecond}
	if change != nil {
		change(&o)
	}
	r, err := suite.Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAHealthyHostIsNotRejected(t *testing.T) {
	r := quick(t, nil)
	if r.Verdict == suite.Fail {
		t.Fatalf("got %q, want pass, or inconclusive where others use the cores: %v %v", r.Verdict, r.Causes, r.Devices[0].Causes)
	}
	d := r.Devices[0]
	if r.Nonce != "n1" || r.Schema != 1 || len(d.Windows) != 30 || !r.Product.Verified || d.ByReference == nil || d.Lower == nil {
		t.Errorf("got %+v", r)
	}
	if d.ByDatasheet != nil || d.ByClock != nil {
		t.Errorf("got ratios %v and %v of figures that a cpu does not have, want unknown", d.ByDatasheet, d.ByClock)
	}
}

func TestAThrottledHostIsRejected(t *testing.T) {
	// Half the rate of a calibration made a moment before: no neighbour on the cores explains that.
	r := quick(t, func(o *suite.Options) { o.Throttle = 0.6 })
	if r.Verdict != suite.Fail {
		t.Fatalf("got %q at %.2f, want fail: %v", r.Verdict, *r.Devices[0].ByReference, r.Devices[0].Causes)
	}
	if !r.Product.Verified {
		t.Error("the throttled product is still right, and was not verified")
	}
}

func TestThrottledHostIsRejectedInTheFullSuiteToo(t *testing.T) {
	if r := quick(t, func(o *suite.Options) { o.Throttle, o.Suite = 0.6, suite.Full }); r.Verdict != suite.Fail {
		t.Fatalf("got %q, want fail: %v", r.Verdict, r.Devices[0].Causes)
	}
}

func TestTheRatingIsCalibratedOnceAndKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "below", "rating.json")
	keep := func(o *suite.Options) { o.Calibration = file }
	first := quick(t, keep)
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	second := quick(t, keep)
	if again, _ := os.ReadFile(file); !bytes.Equal(kept, again) {
		t.Errorf("calibrated again: got %s, want %s", again, kept)
	}
	var rating suite.Calibration
	if err := json.Unmarshal(kept, &rating); err != nil {
		t.Fatal(err)
	}
	// A host that became slower meanwhile lowers the rating for its own run; nothing raises it.
	for _, r := range []suite.Result{first, second} {
		if d := r.Devices[0]; d.Rated > rating.TFLOPS || d.Rated != rating.TFLOPS && !strings.Contains(d.SKU, "beside the windows") {
			t.Errorf("rated %v (%s), kept %v", d.Rated, d.SKU, rating.TFLOPS)
		}
	}
	other := quick(t, func(o *suite.Options) { keep(o); o.Size = 48 })
	if other.Devices[0].Rated == first.Devices[0].Rated {
		t.Error("the rating of one size was used for another")
	}
	if again, _ := os.ReadFile(file); bytes.Equal(kept, again) {
		t.Error("a rating that does not fit was not replaced")
	}
}

func TestATornCalibrationIsMeasuredAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rating.json")
	if err := os.WriteFile(file, []byte(`{"tflops": 9e9, "cpu`), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := quick(t, func(o *suite.Options) { o.Calibration = file }); r.Devices[0].Rated > 1 {
		t.Errorf("got a rating of %v TFLOPS from a torn file", r.Devices[0].Rated)
	}
}

func TestAToldRatingReplacesTheCalibration(t *testing.T) {
	r := quick(t, func(o *suite.Options) { o.Rated = 1000 })
	if d := r.Devices[0]; r.Verdict != suite.Fail || d.Rated != 1000 {
		t.Errorf("got %q against %v TFLOPS, want fail against 1000", r.Verdict, d.Rated)
	}
}

func TestACPUHasNoDatasheet(t *testing.T) {
	if r := quick(t, func(o *suite.Options) { o.Basis = suite.Datasheet }); r.Verdict != suite.Inconclusive {
		t.Errorf("got %q, want inconclusive: there is nothing to divide by", r.Verdict)
	}
}

func TestAnUnbuiltBackendRejectsNothing(t *testing.T) {
	for _, name := range []string{"rocm", "ascend"} {
		r := quick(t, func(o *suite.Options) { o.Backend = name })
		if r.Verdict != suite.Inconclusive || len(r.Causes) != 1 || r.Causes[0].Cause != gpu.BackendNotBuilt {
			t.Errorf("%s: got %q %v, want inconclusive by backend_not_built", name, r.Verdict, r.Causes)
		}
	}
}

func TestSenselessOptionsAreRefused(t *testing.T) {
	for _, o := range []suite.Options{
		{Backend: "abacus"},
		{Suite: "slow"},
		{Basis: "hope"},
		{Windows: 2},
		{Window: -time.Second},
		{Rated: -1},
		{GPUs: []int{7}},
		{Throttle: 2},
	} {
		if _, err := suite.Run(context.Background(), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestACancelledRunEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := suite.Run(ctx, suite.Options{Duration: time.Hour, Rated: 1, Size: 64}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

func TestAResultSurvivesJSON(t *testing.T) {
	r := quick(t, nil)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back suite.Result
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(back)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, again) {
		t.Errorf("got %s, want %s", again, text)
	}
	for _, field := range []string{
		"nonce", "backend", "suite", "started", "elapsed", "verdict", "devices", "measured_tflops",
		"rated_tflops", "basis", "ratio_reference", "lower95", "upper95", "windows", "product", "identity", "health",
	} {
		if !strings.Contains(string(text), `"`+field+`"`) {
			t.Errorf("no field %q in %s", field, text)
		}
	}
}

func TestTheReportShowsVerdictRatiosAndPlot(t *testing.T) {
	r := quick(t, func(o *suite.Options) { o.Throttle = 0.6 })
	var b strings.Builder
	if err := r.Report(&b); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"FAIL", "n1", "of the reference 0.", "of the datasheet unknown", "degraded", "TFLOPS ", "█"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("no %q in:\n%s", part, b.String())
		}
	}
}

func TestAnAnswerIsHeldAgainstItsOrder(t *testing.T) {
	began := time.Now()
	f := quick(t, nil).Fact("m1")
	outside := time.Since(began)
	order := product.Order{Nonce: "n1", Size: 64, Work: 30 * 4 * time.Millisecond}
	check := func(o product.Order, outside time.Duration) error {
		var parts []product.Part
		for _, d := range f.Devices {
			parts = append(parts, product.Part{Work: d.Work, Checksum: d.Checksum})
		}
		return o.Check(f.Size, parts, outside)
	}
	if err := check(order, outside); err != nil || f.Machine != "m1" || f.Nonce != "n1" || len(f.Devices) != 1 {
		t.Fatalf("an honest answer was refused: %v: %+v", err, f)
	}
	for _, tt := range []struct {
		name    string
		order   product.Order
		outside time.Duration
		want    error
	}{
		{"of a smaller size", product.Order{Nonce: "n1", Size: 128}, outside, product.ErrSmall},
		{"impossibly fast", order, 10 * time.Millisecond, product.ErrImpossible},
		{"an old answer to a new nonce", product.Order{Nonce: "n2", Size: 64}, outside, product.ErrProduct},
		{"after too little work", product.Order{Nonce: "n1", Size: 64, Work: time.Second}, outside, product.ErrShort},
	} {
		if err := check(tt.order, tt.outside); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestABusyHostIsNotABadMachine(t *testing.T) {
	stop, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for stop.Err() == nil { // checking is the load
			}
		})
	}
	r := quick(t, nil)
	cancel()
	wait.Wait()
	if r.Verdict == suite.Fail {
		t.Errorf("got fail, want pass or inconclusive: %v", r.Devices[0].Causes)
	}
	for _, f := range r.Devices[0].Causes {
		if f.Cause == gpu.ClockDisagrees {
			t.Errorf("CPU time was taken for a false clock: %v", f)
		}
	}
}
