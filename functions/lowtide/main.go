// Command lowtide runs GPU workloads on the cheapest capacity that meets their deadlines.
//
//	lowtide run        everything in one process: NATS inside, a fake cloud, real training jobs, one story
//	lowtide submit     ask for a workload
//	lowtide status     what runs where, and what it costs
//
// It promises documented exit codes: 0 done, 1 it did not come out well (a workload was refused, a promise was not
// kept), 2 bad input or usage, 3 nobody to talk to.
// It holds no decisions: it wires the functions together and shows what they say.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	benchrunner "lowtide/benchrunner/cli"
	"lowtide/functions/agent/holder"
	"lowtide/functions/lowtide/simulate"
	"lowtide/functions/lowtide/trainer"
)

// The exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
	exitNobody = 3
)

// coded is an error with an exit code of its own.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

func failed(format string, args ...any) error { return coded{fmt.Errorf(format, args...), exitFailed} }
func usage(err error) error                   { return coded{err, exitUsage} }
func nobody(err error) error                  { return coded{err, exitNobody} }

// needs is for commands that take exactly these arguments, and says which when they do not come.
func needs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return usage(fmt.Errorf("%s wants %s, and got %s; see %s --help", cmd.CommandPath(), strings.Join(names, " "), counted(len(args), "argument", "arguments"), cmd.CommandPath()))
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lowtide: "+err.Error())
		var c coded
		var proof benchrunner.Exit
		switch {
		case errors.As(err, &c):
			os.Exit(c.code)
		case errors.As(err, &proof):
			os.Exit(benchrunner.Code(err)) // its own codes: whoever ordered the proof reads them
		}
		os.Exit(exitUsage) // what cobra refuses is usage
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lowtide",
		Short: "GPU workloads on the cheapest capacity that meets their deadlines",
		Long: "GPU workloads on the cheapest capacity that meets their deadlines.\n\n" +
			"Exit status: 0 done, 1 refused or not kept, 2 bad input or usage, 3 no lowtide found to talk to.",
		SilenceUsage: true, SilenceErrors: true,
	}
	for _, c := range []*cobra.Command{
		runCommand(),
		submitCommand(),
		schemaCommand(),
		doctorCommand(),
		reserveCommand(),
		statusCommand(),
		eventsCommand(),
		logsCommand(),
		planCommand(),
		pauseCommand(),
		resumeCommand(),
		keepCommand(),
		stopCommand(),
		changeCommand(),
		panicCommand(),
		simulate.Command(),
		cloudCommand(),
		offersCommand(),
		trialCommand(),
		relayCommand(),
		natsCommand(),
		checkpointsCommand(),
		costCommand(),
		adviseCommand(),
		chooseCommand(),
		approveCommand(),
		denyCommand(),
		notifyCommand(),
		rulesCommand(),
	} {
		cmd.AddCommand(c)
	}
	for _, c := range []*cobra.Command{agentCommand(), holder.Command(), trainer.Command(), benchrunner.Command()} {
		c.Hidden = true
		cmd.AddCommand(c)
	}
	return cmd
}
