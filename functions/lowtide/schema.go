package main

import (
	"github.com/spf13/cobra"

	"lowtide/functions/intake"
)

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "The JSON Schema of the workload file, for editors", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(intake.Schema)
			return err
		},
	}
}
