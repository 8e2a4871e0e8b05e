// Package cli is benchrunner's command line, importable so that another program can carry the same runner as a
// subcommand.
//
// It promises the same flags, output and exit codes wherever it is embedded: 0 pass, 1 fail, 3 inconclusive, 2 for a
// command line or a machine that made no result. It reads its environment in one place, below.
package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"lowtide/benchrunner/suite"
)

// The exit codes of a finished benchmark. A command line or a machine that made no result exits with 2.
const (
	ExitPass         = 0
	ExitFail         = 1
	ExitUsage        = 2
	ExitInconclusive = 3
)

// The environment. A flag wins over its variable.
const (
	envThrottle    = "LOWTIDE_CPU_THROTTLE"    // share of time in [0, 1] that the cpu backend idles between kernels
	envCalibration = "LOWTIDE_CPU_CALIBRATION" // file that keeps this host's cpu rating
	envNonce       = "LOWTIDE_NONCE"           // the order's nonce
	envMachine     = "LOWTIDE_MACHINE"         // lowtide's name of this machine
	envFleet       = "LOWTIDE_FLEET"           // and its fleet
	envToken       = "LOWTIDE_NATS_TOKEN"      // credential for --nats; never a flag, which others can read
)

// Exit is the error of a benchmark that ran and did not pass: its code is the process's exit code.
type Exit struct{ Verdict suite.Verdict }

// Error names the verdict.
func (e Exit) Error() string { return "verdict: " + string(e.Verdict) }

// Code is the process's exit code for an error of Command's Execute.
func Code(err error) int {
	var exit Exit
	switch {
	case err == nil:
		return ExitPass
	case errors.As(err, &exit) && exit.Verdict == suite.Fail:
		return ExitFail
	case errors.As(err, &exit):
		return ExitInconclusive
	}
	return ExitUsage
}

// Command is the program: `benchrunner run` and `benchrunner calibrate`.
func Command() *cobra.Command {
	root := &cobra.Command{
		Use:           "benchrunner",
		Short:         "Prove that a machine's accelerators are what they were sold as and at least 90 % as fast as rated",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand(), calibrateCommand())
	return root
}

func runCommand() *cobra.Command {
	var o suite.Options
	var to saying
	run := &cobra.Command{
		Use:   "run",
		Short: "Measure and judge; exits with 0 pass, 1 fail, 3 inconclusive",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(environment(&o), to.check()); err != nil {
				return err
			}
			r, err := suite.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if err := to.say(cmd.Context(), cmd.OutOrStdout(), r); err != nil {
				return err
			}
			if r.Verdict != suite.Pass {
				return Exit{Verdict: r.Verdict}
			}
			return nil
		},
	}
	f := run.Flags()
	f.StringVar(&o.Backend, "backend", "cpu", "cpu, cuda, rocm or ascend")
	f.StringVar(&o.Suite, "suite", suite.Quick, "quick, or full (extends an undecided measurement and repeats it once)")
	f.StringVar(&o.Basis, "basis", suite.Reference, "what the 90 % are of: reference, or datasheet (fails nearly every healthy data-centre card)")
	f.DurationVar(&o.Duration, "duration", 0, "measured time, shared by the windows (default 300ms on cpu, 30s elsewhere)")
	f.DurationVar(&o.Window, "window", 0, "length of one window (default duration divided by windows)")
	f.IntVar(&o.Windows, "windows", 30, "number of windows")
	f.DurationVar(&o.WarmUp, "warm-up", 0, "longest warm-up (default a third of duration on cpu, 20s elsewhere)")
	f.IntSliceVar(&o.GPUs, "gpus", nil, "indices to measure (default all)")
	f.StringVar(&o.Nonce, "nonce", "", "seeds the inputs and is echoed (default $"+envNonce+", else random)")
	f.IntVar(&o.Size, "size", 0, "edge of the matrices (default 128 on cpu, 8192 elsewhere)")
	f.Float64Var(&o.Rated, "rated", 0, "reference in TFLOPS instead of the table's or the calibration's")
	f.StringVar(&o.Claim, "claim", "", "product the offer named, for instance \"H100 PCIe\"")
	f.IntVar(&o.Expect, "expect", 0, "number of devices the offer named")
	f.IntVar(&o.Threads, "threads", 0, "cpu: worker threads (default all cores)")
	f.StringVar(&o.Calibration, "calibration", "", "cpu: file that keeps this host's rating (default $"+envCalibration+", else calibrated in each run)")
	f.StringVar(&o.Sysfs, "sysfs", "", "root of sysfs (default /sys)")
	f.DurationVar(&o.Boot, "boot", 0, "how long to wait for a driver that is not there yet")
	to.flags(run)
	return run
}

func calibrateCommand() *cobra.Command {
	var o suite.Options
	c := &cobra.Command{
		Use:   "calibrate",
		Short: "Measure this host's cpu rating and print it as JSON",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := suite.Calibrate(cmd.Context(), o)
			if err != nil {
				return err
			}
			return encode(cmd.OutOrStdout(), c)
		},
	}
	c.Flags().IntVar(&o.Threads, "threads", 0, "worker threads (default all cores)")
	c.Flags().IntVar(&o.Size, "size", 0, "edge of the matrices (default 128)")
	return c
}

// environment fills what no flag said.
func environment(o *suite.Options) error {
	if o.Nonce == "" {
		o.Nonce = os.Getenv(envNonce)
	}
	if o.Calibration == "" {
		o.Calibration = os.Getenv(envCalibration)
	}
	if v := os.Getenv(envThrottle); v != "" {
		share, err := strconv.ParseFloat(v, 64)
		if err != nil || share < 0 || share > 1 {
			return fmt.Errorf("%s=%q: want a share of time from 0 to 1", envThrottle, v)
		}
		o.Throttle = share
	}
	return nil
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
