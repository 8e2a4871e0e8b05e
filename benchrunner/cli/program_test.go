package cli_test

import (
	"strings"
	"testing"

	"lowtide/benchrunner/cli"
	"lowtide/benchrunner/suite"
	"lowtide/shared/gpu"
)

// brief is a cpu run of a few tenths of a second.
var brief = []string{"run", "--backend", "cpu", "--suite", "quick", "--json", "--size", "64", "--window", "4ms", "--threads", "1"}

func TestTheCPURunPrintsOneResult(t *testing.T) {
	a := benchrunner(t, nil, append(brief, "--nonce", "from a flag")...)
	if a.result.Nonce != "from a flag" || a.result.Verdict == suite.Fail || len(a.result.Devices) != 1 {
		t.Errorf("got %+v, exit %d", a.result, a.code)
	}
	if (a.code == cli.ExitPass) != (a.result.Verdict == suite.Pass) {
		t.Errorf("got exit code %d with verdict %q", a.code, a.result.Verdict)
	}
}

func TestTheEnvironmentThrottlesTheCPU(t *testing.T) {
	a := benchrunner(t, []string{"LOWTIDE_CPU_THROTTLE=0.6", "LOWTIDE_NONCE=from the environment"}, brief...)
	if a.code != cli.ExitFail || a.result.Verdict != suite.Fail {
		t.Errorf("got exit %d, verdict %q, want a rejected machine", a.code, a.result.Verdict)
	}
	if a.result.Nonce != "from the environment" {
		t.Errorf("got nonce %q", a.result.Nonce)
	}
}

func TestSenselessCommandLinesMakeNoResult(t *testing.T) {
	for _, tt := range []struct {
		env  []string
		args []string
	}{
		{nil, []string{"run", "--backend", "abacus"}},
		{nil, []string{"run", "--gpus", "9"}},
		{nil, []string{"run", "--suite", "endless"}},
		{nil, []string{"walk"}},
		{[]string{"LOWTIDE_CPU_THROTTLE=much"}, brief},
		{[]string{"LOWTIDE_CPU_THROTTLE=1.5"}, brief},
	} {
		if a := benchrunner(t, tt.env, tt.args...); a.code != cli.ExitUsage || len(a.stdout) > 0 || a.stderr == "" {
			t.Errorf("%v %v: got exit %d, stdout %q, stderr %q, want %d and a reason", tt.env, tt.args, a.code, a.stdout, a.stderr, cli.ExitUsage)
		}
	}
}

func TestUnbuiltBackendsAreRefusedWithWhatIsMissing(t *testing.T) {
	for backend, library := range map[string]string{"rocm": "librocblas", "ascend": "libdcmi"} {
		a := benchrunner(t, nil, "run", "--json", "--backend", backend)
		f := causes(a.result)[gpu.BackendNotBuilt]
		if a.code != cli.ExitInconclusive || !strings.Contains(f.Detail, library) {
			t.Errorf("%s: got exit %d, %v, want %d naming %s", backend, a.code, causes(a.result), cli.ExitInconclusive, library)
		}
	}
}

func TestTheReportIsForPeople(t *testing.T) {
	a := benchrunner(t, machine(a100).Environment(t), "run", "--backend", "cuda", "--size", "320", "--window", "2ms")
	for _, part := range []string{"PASS", "NVIDIA A100-SXM4-80GB", "of the datasheet 0.82", "TFLOPS ", "MHz "} {
		if !strings.Contains(string(a.stdout), part) {
			t.Errorf("no %q in:\n%s", part, a.stdout)
		}
	}
}

func TestCalibrateRatesThisHost(t *testing.T) {
	a := benchrunner(t, nil, "calibrate", "--size", "64", "--threads", "1")
	if a.code != cli.ExitPass || !strings.Contains(string(a.stdout), `"tflops": 0.0`) {
		t.Errorf("got exit %d, %s", a.code, a.stdout)
	}
}
