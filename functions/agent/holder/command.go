package holder

import (
	"github.com/spf13/cobra"
)

// DefaultLogLimit is how many bytes log and log.1 may have together.
const DefaultLogLimit = 64 << 20

// Command is the holder as a program: "holder --dir DIR --epoch N -- command arguments". Start calls it; people do not.
func Command() *cobra.Command {
	var (
		dir          string
		epoch, limit int64
		isGate       bool
	)
	cmd := &cobra.Command{
		Use:           "holder --dir DIR --epoch N -- command [arguments]",
		Short:         "Keep a workload running while agents come and go",
		Hidden:        true,
		SilenceUsage:  true,
		SilenceErrors: true, // told to whoever started it; printed by main
		Args:          cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if isGate {
				return gate(args)
			}
			return hold(dir, args, epoch, limit, inherited())
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", ".", "the directory of this run")
	f.Int64Var(&epoch, "epoch", 1, "the epoch of this run")
	f.Int64Var(&limit, "log-limit", DefaultLogLimit, "bytes of log to keep")
	f.BoolVar(&isGate, "gate", false, "become the command once told to")
	_ = f.MarkHidden("gate")
	return cmd
}
