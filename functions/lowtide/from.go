package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lowtide/functions/intake"
)

// foreign is a workload as another tool's file has it, and what that file does not say.
type foreign struct {
	file string
	more intake.More
}

func (f *foreign) on(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "from", "", "a task file of SkyPilot instead of FILE; each field that is not honoured is named")
	for name, at := range map[string]*string{
		"name": &f.more.Name, "work": &f.more.Work, "deadline": &f.more.Deadline, "budget": &f.more.Budget, "autonomy": &f.more.Autonomy, "checkpoint": &f.more.Checkpoint,
	} {
		cmd.Flags().StringVar(at, name, "", "with --from: the field "+name+" of a workload file")
	}
}

func (f *foreign) args(cmd *cobra.Command, args []string) error {
	switch {
	case f.file == "" && f.more != (intake.More{}):
		return errors.New("what goes with --from belongs into the workload file")
	case f.file == "":
		return needs("FILE")(cmd, args)
	case len(args) > 0:
		return fmt.Errorf("with --from there is no FILE besides: %q", args[0])
	}
	return nil
}

// name is the file to read.
func (f *foreign) name(args []string) string {
	if f.file != "" {
		return f.file
	}
	return args[0]
}

// parse reads it; what is not honoured is told on the error output, as the answer may be for a program.
func (f *foreign) parse(cmd *cobra.Command, name string, b []byte, now time.Time) (intake.Asked, error) {
	if f.file == "" {
		return intake.Parse(name, b, now)
	}
	asked, notes, err := intake.Sky(name, b, f.more, now)
	if err != nil {
		return asked, err
	}
	for _, n := range notes {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", name, n)
	}
	return asked, nil
}
