package trainer

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// Command is the trainer as a program. It reads LOWTIDE_CKPT_DIR and LOWTIDE_DEADLINE, prints its Result as one line of
// JSON, and exits with 0 when it has finished and when it has saved because it was asked to.
func Command() *cobra.Command {
	c := Config{Dir: os.Getenv("LOWTIDE_CKPT_DIR"), Deadline: os.Getenv("LOWTIDE_DEADLINE")}
	if c.Dir == "" {
		c.Dir = "ckpt"
	}
	var trace string
	cmd := &cobra.Command{
		Use:   "trainer",
		Short: "Train a small network that can be stopped anywhere and resumed elsewhere",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Log = cmd.ErrOrStderr()
			if trace != "" {
				f, err := os.OpenFile(trace, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
				if err != nil {
					return err
				}
				defer f.Close()
				c.Each = func(step int64) {
					fmt.Fprintf(f, "%s %d %d\n", os.Getenv("LOWTIDE_EPOCH"), step, time.Now().UnixNano())
				}
			}
			res, err := Run(cmd.Context(), c)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(res)
		},
	}
	f := cmd.Flags()
	f.Int64Var(&c.Steps, "steps", 10_000, "steps to make in all")
	f.Uint64Var(&c.Seed, "seed", 1, "seed of data, weights and data order")
	f.DurationVar(&c.StepTime, "step-time", 0, "least time that a step takes")
	f.Int64Var(&c.SaveEvery, "save-every", 1000, "steps between saves; 0 for none")
	f.DurationVar(&c.SaveAfter, "save-after", 0, "time between saves; 0 for none")
	f.StringVar(&trace, "trace", "", "file to append a line to for each step made: epoch, step, nanoseconds since 1970")
	f.IntVar(&c.Hidden, "hidden", smallest, "hidden units; about 300 bytes of checkpoint for each")
	return cmd
}
